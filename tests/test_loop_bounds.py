"""Loops whose trip count depends on data: with a bound they have every derivative, and never more trips unseen."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from onnx import TensorProto, helper
from refusals import check_refused
from small_models import graph_of
from test_control_flow import loop_model, model, rng_array, value
from tiers import of_tiers
from verifier import assert_same, in_float64, peer_outputs

import jaxrnn

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node = helper.make_node

#: Where the roots begin, and how many there are: a row of every length.
STARTS = {0.5: 0, 1.5: 1, 2.0: 2, 3.3: 4}


def body_of(nodes, carried, name):
    """A loop body: ``carried`` gives the types of x, and the nodes compute x_out, and NAME_again, the condition."""
    inputs = [value("i", INT64, []), value(f"{name}_go_on", BOOL, []), *(value(n, k, []) for n, k in carried.items())]
    outputs = [value(f"{name}_again", BOOL, []), *(value(f"{n}_out", k, []) for n, k in carried.items())]
    return helper.make_graph(nodes, name, inputs, outputs)


def roots_body():
    """s' = s + w * sqrt(a - 1), a' = a - w, k' = k + 1, while a' > 1: behind the end the root has no value."""
    nodes = [
        node("Sub", ["a", "one"], ["above"]),
        node("Sqrt", ["above"], ["root"]),
        node("Mul", ["root", "w"], ["weighted"]),
        node("Add", ["s", "weighted"], ["s_out"]),
        node("Sub", ["a", "w"], ["a_out"]),
        node("Add", ["k", "unit"], ["k_out"]),
        node("Greater", ["a_out", "one"], ["roots_again"]),
    ]
    return body_of(nodes, {"a": FLOAT, "s": FLOAT, "k": INT64}, "roots")


CONSTANTS = [("w", np.float32(0.75)), ("one", np.float32(1)), ("unit", np.array(1)), ("zero", np.array(0))]


def roots_model():
    """One loop that ends by its condition, or after n trips."""
    nodes = [
        node("Greater", ["a0", "one"], ["start"]),
        node(
            "Loop", ["n", "start", "a0", "s0", "zero"], ["a_last", "s_last", "k_last"], name="roots", body=roots_body()
        ),
    ]
    inputs = [value("n", INT64, []), value("a0", shape=[]), value("s0", shape=[])]
    outputs = [value("a_last", shape=[]), value("s_last", shape=[]), value("k_last", INT64, [])]
    return model(nodes, inputs, outputs, CONSTANTS)


def nested_model():
    """m times: t' = s * w + t, where the roots begin from a0 + i and from t; every trip has roots of its own."""
    nodes = [
        node("Cast", ["i"], ["i_float"], to=FLOAT),
        node("Add", ["a0", "i_float"], ["begin"]),
        node("Greater", ["begin", "one"], ["start"]),
        node("Loop", ["", "start", "begin", "t", "c"], ["a_last", "s_last", "c_out"], name="inner", body=roots_body()),
        node("Mul", ["s_last", "w"], ["scaled"]),
        node("Add", ["scaled", "t"], ["t_out"]),
        node("Identity", ["outer_go_on"], ["outer_again"]),
    ]
    body = body_of(nodes, {"t": FLOAT, "c": INT64}, "outer")
    loop = node("Loop", ["m", "", "t0", "zero"], ["t_last", "count"], name="outer", body=body)
    inputs = [value("m", INT64, []), value("a0", shape=[]), value("t0", shape=[])]
    return model([loop], inputs, [value("t_last", shape=[]), value("count", INT64, [])], CONSTANTS)


def roots(params, a, s, most=100):
    """The loop written out."""
    count = 0
    while count < most and a > params["one"]:
        s, a, count = s + params["w"] * jnp.sqrt(a - params["one"]), a - params["w"], count + 1
    return a, s, count


def nested(params, a, t, trips):
    for index in range(trips):
        t = params["w"] * roots(params, a + index, t)[1] + t
    return t


def finite(tree):
    return all(bool(np.isfinite(leaf).all()) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("bound", of_tiers([4, 9, {"roots": 4}], [{"roots": 4}]))
@pytest.mark.parametrize("most", of_tiers([0, 1, 3, 50], (3,), thorough=()))
def test_values_are_the_while_loops(bound, most):
    """Ended by the condition or by the count, after no trip too, with a bound that is just enough or ample."""
    bounded, free = jaxrnn.load(roots_model(), max_trip_count=bound), jaxrnn.load(roots_model())
    start = np.float32(0.5)
    for begin, count in STARTS.items():
        inputs = {"n": np.array(most), "a0": np.float32(begin), "s0": start}
        expected = peer_outputs(roots_model(), inputs)
        assert expected["k_last"] == min(count, most)
        for act in (bounded.apply, jax.jit(bounded.apply)):
            # A few additions, each rounded, and the engine's own square root.
            assert_same(act(bounded.params, inputs), expected, atol=1e-6)
    rows = jnp.array([*STARTS], jnp.float32)
    mapped, wanted = (
        jax.vmap(lambda a, each=each: each.apply(each.params, {"n": np.array(most), "a0": a, "s0": start}))(rows)
        for each in (bounded, free)
    )
    assert_same(mapped, wanted, atol=1e-6)


@pytest.mark.nightly
def test_derivatives_are_those_of_the_loop_written_out():
    """Of parameters, captured by the body, and of what is carried; mapped too, where the step runs for ended rows."""
    wide = jaxrnn.load(in_float64(roots_model()), max_trip_count=6)
    with jax.enable_x64(True):

        def total(params, a, s, remat=None):
            return wide.apply(params, {"n": np.array(50), "a0": a, "s0": s}, remat=remat)["s_last"]

        rows, start = jnp.array([*STARTS]), jnp.array(0.5)
        expected = [jax.grad(lambda *x: roots(*x)[1], (0, 1, 2))(wide.params, a, start) for a in rows]
        alone = jax.grad(total, (0, 1, 2))
        recomputed = jax.jit(jax.grad(functools.partial(total, remat=4), (0, 1, 2)))
        for act, count in ((jax.jit(alone), len(rows)), (recomputed, len(rows)), (alone, 2)):
            for a, slopes in zip(rows[:count], expected, strict=False):
                found = jax.tree.leaves(act(wide.params, a, start))
                np.testing.assert_allclose(found, jax.tree.leaves(slopes), rtol=1e-14, atol=1e-14)

        def summed(params, rows, start):
            return jnp.sum(jax.vmap(total, (None, 0, None))(params, rows, start))

        slopes = jax.jit(jax.grad(summed, (0, 2)))(wide.params, rows, start)
        together = [sum(leaves) for leaves in zip(*(jax.tree.leaves((s[0], s[2])) for s in expected), strict=True)]
        np.testing.assert_allclose(jax.tree.leaves(slopes), together, rtol=1e-14)
        point = (wide.params, rows, start)
        check_grads(jax.jit(summed), point, order=1, modes=("fwd", "rev"), atol=1e-6, rtol=1e-6, eps=1e-5)
        curved = jax.jit(jax.hessian(total))(wide.params, rows[3], start)
        expected = jax.hessian(lambda params: roots(params, rows[3], start)[1])(wide.params)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-13, atol=1e-13), curved, expected)


@pytest.mark.nightly
def test_nested_loops():
    """A loop that ends by its condition inside one whose count is an input, each with a bound of its own."""
    bounds = {"outer": 3, "inner": 7}
    narrow, wide = (jaxrnn.load(each, max_trip_count=bounds) for each in (nested_model(), in_float64(nested_model())))
    begin, start = np.float32(0.8), np.float32(0.5)
    for trips in (0, 1, 2, 3):
        inputs = {"m": np.array(trips), "a0": begin, "t0": start}
        expected = peer_outputs(nested_model(), inputs)
        assert_same(narrow.apply(narrow.params, inputs), expected, atol=2e-6)
        assert_same(jax.jit(narrow.apply)(narrow.params, inputs), expected, atol=2e-6)
        with jax.enable_x64(True):

            def last(params, a, t, m):
                return wide.apply(params, {"m": m, "a0": a, "t0": t})["t_last"]

            point = (wide.params, jnp.array(0.8), jnp.array(0.5))
            slopes = jax.jit(jax.grad(last, (0, 1, 2)))(*point, np.array(trips))
            written_out = jax.grad(nested, (0, 1, 2))(*point, trips)
            jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-13, atol=1e-13), slopes, written_out)
    # The inner bound is too small for the third trip: what came before it is as it was.
    tight = jaxrnn.load(nested_model(), max_trip_count={"outer": 3, "inner": 2})
    few, many = ({"m": np.array(trips), "a0": begin, "t0": start} for trips in (2, 3))
    assert_same(tight.apply(tight.params, few), peer_outputs(nested_model(), few), atol=2e-6)
    for act in (tight.apply, jax.jit(tight.apply)):
        spoiled = act(tight.params, many)
        assert np.isnan(spoiled["t_last"])
        assert int(spoiled["count"]) == np.iinfo(np.int64).min


def test_more_trips_than_the_bound_are_never_silent():
    """An error that names node, bound and count; where none can be raised, NaN in values and derivatives."""
    tight = jaxrnn.load(roots_model(), max_trip_count=3)
    inputs = {"n": np.array(50), "a0": np.float32(3.3), "s0": np.float32(0)}
    with pytest.raises(jaxrnn.NodeError, match=r"node 'roots' \(Loop-16\).*goes on after 3 trips.*max_trip_count=3"):
        tight.apply(tight.params, inputs)
    assert int(tight.apply(tight.params, inputs | {"n": np.array(3)})["k_last"]) == 3

    def last(params, a):
        return tight.apply(params, inputs | {"a0": a})

    for name, found in jax.jit(last)(tight.params, inputs["a0"]).items():
        assert int(found) == np.iinfo(np.int64).min if name == "k_last" else np.isnan(found)
    slope = jax.jit(jax.grad(lambda params, a: last(params, a)["s_last"], (0, 1)))(tight.params, inputs["a0"])
    assert np.isnan(jax.tree.leaves(slope)).all()
    rows = jnp.array([*STARTS], jnp.float32)
    mapped = jax.vmap(lambda a: last(tight.params, a))(rows)
    np.testing.assert_array_equal(np.isnan(mapped["s_last"]), [False, False, False, True])
    np.testing.assert_array_equal(mapped["k_last"][:3], [0, 1, 2])

    counted = jaxrnn.load(loop_model("none"), max_trip_count=3)
    given = {"n": np.array(4), "start": np.array(True), "a0": rng_array(3)}
    with pytest.raises(jaxrnn.NodeError, match=r"node 'loop' \(Loop-16\).*makes 4 trips, but `max_trip_count=3"):
        counted.apply(counted.params, given)
    seen = jaxrnn.load(loop_model("data", trips=False), max_trip_count=2)
    with pytest.raises(jaxrnn.NodeError, match=r"goes on after 2 trips, but `max_trip_count=2"):
        seen.apply(seen.params, {"start": np.array(True), "a0": np.zeros(3, np.float32)})


def test_a_count_that_the_file_knows_needs_no_bound():
    """Known while tracing, the loop makes all of its trips; and no more than the count bounds one with a condition."""
    inputs = {"a0": rng_array(3)}
    for condition in ("none", "data"):
        static = {"n": 6, "start": True}
        for scanned in (True, False):
            proto = loop_model(condition, scanned=scanned)
            expected = peer_outputs(proto, {**inputs, "n": np.array(6), "start": np.array(True)})
            loaded = jaxrnn.load(proto, static=static, max_trip_count=6 if condition == "data" else 1)
            assert_same(loaded.apply(loaded.params, inputs), expected, atol=1e-6)
            if condition == "none" or not scanned:
                assert_same(jax.jit(loaded.apply)(loaded.params, inputs), expected, atol=1e-6)
    ample = jaxrnn.load(loop_model("data", scanned=False), static={"n": 6, "start": True}, max_trip_count=10**12)
    assert "length=6" in str(jax.make_jaxpr(ample.apply)(ample.params, inputs))


@pytest.mark.thorough
def test_weights_are_not_kept_for_every_trip():
    """The backward pass keeps what the loop carries in each trip, and of what every trip reads one copy."""
    size, bound = 256, 64
    nodes = [node("MatMul", ["a", "W"], ["aw"]), node("Tanh", ["aw"], ["a_out"]), node("Identity", ["g"], ["g_out"])]
    begin, end = {"i": (INT64, []), "g": (BOOL, []), "a": [1, size]}, {"g_out": (BOOL, []), "a_out": [1, size]}
    body = graph_of(nodes, begin, end, name="body")
    loop = node("Loop", ["n", "", "a0"], ["y"], name="loop", body=body)
    weight = rng_array(size, size) * np.float32(0.05)
    proto = model([loop], [value("n", INT64, []), value("a0", shape=[1, size])], [value("y")], [("W", weight)])
    loaded = jaxrnn.load(proto, max_trip_count=bound)

    def loss(params, n):
        return jnp.sum(loaded.apply(params, {"n": n, "a0": np.ones((1, size), np.float32)})["y"])

    compiled = jax.jit(jax.grad(loss)).lower(loaded.params, jnp.asarray(3, jnp.int32)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 8 * weight.nbytes


def test_without_a_bound_reverse_mode_says_what_to_do():
    """The error names the node and the hint; forward mode needs no bound, mapped and of second order too."""
    free = jaxrnn.load(in_float64(roots_model()))
    with jax.enable_x64(True):

        def total(a):
            return free.apply(free.params, {"n": np.array(50), "a0": a, "s0": np.float64(0)})["s_last"]

        rows = jnp.array([*STARTS])
        mapped = jax.vmap(total)
        backwards = [jax.grad(total), jax.jit(jax.grad(total)), jax.vmap(jax.grad(total))]
        if jax.__version_info__ >= (0, 10, 2):  # before, JAX itself fails on such a loop in a Hessian
            backwards.append(jax.hessian(total))
        for act in backwards:
            with pytest.raises(jaxrnn.NodeError, match=r"node 'roots' \(Loop-16\).*max_trip_count"):
                act(rows if act is backwards[2] else rows[3])
        expected = [float(jax.grad(lambda a: roots(free.params, a, 0.0)[1])(a)) for a in rows]
        np.testing.assert_allclose(jax.jit(jax.jacfwd(mapped))(rows), np.diag(expected), rtol=1e-14)
        np.testing.assert_allclose(jax.linearize(mapped, rows)[1](jnp.ones(4)), expected, rtol=1e-14)
        curved = [float(jax.hessian(lambda a: roots(free.params, a, 0.0)[1])(a)) for a in rows]
        np.testing.assert_allclose(jax.jit(jax.vmap(jax.jacfwd(jax.jacfwd(total))))(rows), curved, rtol=1e-13)


@pytest.mark.thorough
def test_a_bounded_loop_in_a_stream():
    """A loop inside every frame, so often as an input says: its derivatives streamed are the offline ones."""
    nodes = [node("Mul", ["a", "w"], ["a_w"]), node("Tanh", ["a_w"], ["a_out"]), node("Identity", ["g"], ["g_out"])]
    begin, end = {"i": (INT64, []), "g": (BOOL, []), "a": [None, 2]}, {"g_out": (BOOL, []), "a_out": [None, 2]}
    body = graph_of(nodes, begin, end, name="body")
    loop = node("Loop", ["n", "", "x"], ["y"], name="loop", body=body)
    proto = model(
        [loop], [value("n", INT64, []), value("x", shape=["S", 2])], [value("y", shape=["S", 2])], CONSTANTS[:1]
    )
    loaded = jaxrnn.load(proto, max_trip_count=5)
    streamed, x, count = loaded.stream(pulse=2), jnp.array(rng_array(7, 2)), np.array(3)

    def loss(run):
        return lambda params, x: jnp.sum(run(params, {"n": count, "x": x})["y"] ** 3)

    for mode in (jax.grad, lambda f, places: lambda *point: jax.jvp(f, point, point)):
        found, expected = (mode(loss(run), (0, 1))(loaded.params, x) for run in (streamed.run, loaded.apply))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, expected)


def test_rows_of_an_old_scan_that_have_ended():
    """Opset 8: a body without a derivative where a row has no frames: gradients are finite, and zero there."""
    nodes = [node("Log", ["x"], ["logged"]), node("Mul", ["logged", "w"], ["lw"]), node("Add", ["h", "lw"], ["h_out"])]
    nodes += [node("Identity", ["h_out"], ["y"])]
    body = graph_of(nodes, {"h": [3], "x": [3]}, {"h_out": [3], "y": [3]})
    scan = node("Scan", ["lens", "h0", "xs"], ["h_last", "ys"], body=body, num_scan_inputs=1)
    inputs = [value("lens", INT64, [2]), value("h0", shape=[2, 3]), value("xs", shape=[2, 5, 3])]
    proto = model([scan], inputs, [value("h_last"), value("ys")], CONSTANTS[:1], opset=8)
    loaded = jaxrnn.load(proto)
    lengths, h0, xs = np.array([5, 2]), jnp.array(rng_array(2, 3)), np.abs(rng_array(2, 5, 3, seed=1)) + 0.1
    xs[1, 2:] = 0

    def loss(params, h0, xs):
        results = loaded.apply(params, {"lens": lengths, "h0": h0, "xs": xs})
        return jnp.sum(results["h_last"]) + jnp.sum(results["ys"])

    slopes = jax.jit(jax.grad(loss, (0, 1, 2)))(loaded.params, h0, jnp.array(xs))
    weights = np.array([[6, 5, 4, 3, 2], [3, 2, 0, 0, 0]], np.float32)[..., None]  # in h_last, and in every later y
    np.testing.assert_allclose(slopes[2], np.where(weights > 0, 0.75 * weights / np.maximum(xs, 0.1), 0), rtol=1e-6)
    expected = np.sum(weights * np.log(np.maximum(xs, 0.1)))
    np.testing.assert_allclose(slopes[0]["w"], expected, rtol=1e-5)
    assert finite(slopes)


@pytest.mark.parametrize(
    ("bound", "message"),
    [
        (0, "must be a whole number from 1 on, not 0"),
        (-3, "not -3"),
        (2.0, "not 2.0"),
        (True, "not True"),
        ("4", "not '4'"),
        ({"roots": 0}, "max_trip_count of 'roots' must be a whole number from 1 on"),
        ({"root": 4}, "no Loop 'root' .did you mean 'roots'.*the Loop nodes are: 'roots'"),
        ({"a_last": 4}, "there is no Loop 'a_last'"),
    ],
)
def test_wrong_bounds(bound, message):
    check_refused(jaxrnn.InputError, message, jaxrnn.load, roots_model(), max_trip_count=bound)


def test_what_a_loop_of_unknown_length_carries_must_keep_its_type():
    nodes = [node("Concat", ["a", "a"], ["a_out"], axis=0), node("Identity", ["c"], ["c_out"])]
    begin, end = {"i": (INT64, []), "c": (BOOL, []), "a": [None]}, {"c_out": (BOOL, []), "a_out": [None]}
    body = graph_of(nodes, begin, end, name="body")
    loop = node("Loop", ["n", "", "a0"], ["a_last"], name="growing", body=body)
    proto = model([loop], [value("n", INT64, []), value("a0", shape=[None])], [value("a_last")])
    for bound in (None, 3):
        loaded = jaxrnn.load(proto, max_trip_count=bound)
        inputs = {"n": np.array(2), "a0": rng_array(2)}
        assert loaded.apply(loaded.params, inputs)["a_last"].shape == (8,)
        with pytest.raises(jaxrnn.NodeError, match=r"'growing'.*are float32\[2\] before a trip, and float32\[4\]"):
            jax.jit(loaded.apply)(loaded.params, inputs)
