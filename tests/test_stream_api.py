"""What a caller does with a `Streamed`: states, batches, transformations, facts."""

from __future__ import annotations

import functools
import gc
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilations import compilations
from jax import lax
from refusals import check_refused
from stream_functions import CASES, conv, lstm, rnn
from tiers import of_tiers

import jaxrnn
from jaxrnn.demo import PACKAGED
from jaxrnn.steps import nothing_left
from jaxrnn.streaming.measuring import drawn

X = jax.ShapeDtypeStruct((20, 3), np.float32)


def network(params, x):
    """A recurrence with a trained initial carry, behind a convolution that looks ahead."""
    y = conv(x["x"], (0, 2)) * x["gain"]

    def body(carry, frame):
        carry = jnp.tanh(carry * params["weight"] + frame)
        return carry, carry

    final, y = lax.scan(body, params["initial"], y)
    return {"y": y, "final": final, "energy": jnp.sum(y**2)}


PARAMS = {"weight": jnp.array([0.5, 0.2, -0.3]), "initial": jnp.array([0.1, 0.2, 0.3])}
EXAMPLE = {"x": X, "gain": jax.ShapeDtypeStruct((3,), np.float32)}
AXES = {"x": 0, "gain": None}


@pytest.fixture(scope="module")
def streamed():
    return jaxrnn.stream(network, EXAMPLE, axes=AXES, params=PARAMS, pulse=2)


def inputs_of(frames, seed=0):
    return {"x": drawn((frames, 3), seed=seed), "gain": np.asarray([1.0, 2.0, 0.5], np.float32)}


def test_init_says_when_it_needs_parameters(streamed):
    with pytest.raises(jaxrnn.InputError, match="depends on params: call `init"):
        streamed.init()
    assert streamed.init(params=PARAMS).keys() == {"float32"}


def test_init_says_when_it_needs_constants():
    def from_constants(x):
        return lax.scan(lambda c, f: (c + f,) * 2, jnp.full(3, x["h0"]), x["x"])

    example = {"x": X, "h0": jax.ShapeDtypeStruct((), np.float32)}
    streamed = jaxrnn.stream(from_constants, example, axes={"x": 0, "h0": None})
    check_refused(jaxrnn.InputError, "depends on constants: call `init", streamed.init)
    h0, x = np.float32(1), drawn((3, 3))
    state = streamed.init(constants={"h0": h0})
    for frame in x:
        y, state = streamed.step(None, state, {"x": frame[None], "h0": h0})
    np.testing.assert_allclose(y[1][0], 1 + x.sum(0), rtol=1e-6)
    check_refused(jaxrnn.InputError, "constant in time: pass it in the tail", streamed.flush, None, state)
    np.testing.assert_allclose(streamed.flush(None, state, {"h0": h0}).outputs[0], 1 + x.sum(0), rtol=1e-6)


@pytest.mark.thorough
def test_step_and_flush_give_the_trees_of_the_function(streamed):
    """Outputs known at the end are None in a step, and whole in the flush; counts say what exists."""
    x = inputs_of(5)
    state = streamed.init(params=PARAMS)
    y, state = jax.jit(streamed.step)(PARAMS, state, {**x, "x": x["x"][:2]})
    assert (y["final"], y["energy"], y["y"].shape) == (None, None, (2, 3))
    y, state = jax.jit(streamed.step)(PARAMS, state, {**x, "x": x["x"][2:4]})
    tail = {**x, "x": np.concatenate([x["x"][4:], np.full((1, 3), np.nan, np.float32)])}
    flushed = jax.jit(streamed.flush)(PARAMS, state, tail, 1)
    expected = network(PARAMS, x)
    assert streamed.delay == {"y": 2, "final": None, "energy": None}
    # 5 frames exist, of which 2 have come out behind a delay of 2.
    assert flushed.counts == {"y": 3, "final": None, "energy": None}
    np.testing.assert_allclose(y["y"], expected["y"][:2], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(flushed.outputs["y"][:3], expected["y"][2:], rtol=1e-5, atol=1e-6)
    assert not np.any(flushed.outputs["y"][3:])
    for name in ("final", "energy"):
        np.testing.assert_allclose(flushed.outputs[name], expected[name], rtol=1e-5)


@pytest.mark.thorough
def test_batches(streamed):
    """A state of several streams, the same under vmap, and each alone."""
    batch = 3
    x = [inputs_of(2, seed) for seed in range(batch)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *x)
    first, step, flush = streamed.init(params=PARAMS), jax.jit(streamed.step), jax.jit(streamed.flush)
    together, state = step(PARAMS, streamed.init(batch, params=PARAMS), stacked)
    mapped, _ = jax.jit(jax.vmap(streamed.step, (None, None, 0)))(PARAMS, first, stacked)
    flushed = flush(PARAMS, state, {**stacked, "x": stacked["x"][:, :1]}, np.asarray([1, 0, 1]))
    assert flushed.counts["y"].shape == (batch,)
    for index in range(batch):
        alone, own = step(PARAMS, first, x[index])
        np.testing.assert_allclose(together["y"][index], alone["y"], rtol=1e-6)
        np.testing.assert_allclose(mapped["y"][index], alone["y"], rtol=1e-6)
        rest = flush(PARAMS, own, {**x[index], "x": x[index]["x"][:1]}, [1, 0, 1][index])
        assert int(rest.counts["y"]) == int(flushed.counts["y"][index])
        np.testing.assert_allclose(flushed.outputs["final"][index], rest.outputs["final"], rtol=1e-6)


def test_one_state_for_every_pulse():
    """Pulses of different size give and take the same state."""
    for name in ("strides of several layers", "recurrence in a loop"):
        function = CASES[name].function
        first = jaxrnn.stream(function, X, axes=0, pulse=6)
        x = drawn((12, 3))
        one = two = first.init()
        for start in (0, 6):
            _, one = jax.jit(first.step)(None, one, x[start : start + 6])
        _, two = jax.jit(first.with_pulse(12).step)(None, two, x)
        for key, value in first.entries(one).items():
            np.testing.assert_allclose(value, first.entries(two)[key], rtol=1e-5, atol=1e-5, err_msg=f"{name}: {key}")


@pytest.mark.thorough
def test_gradient_through_a_loop_of_steps(streamed):
    """Truncated back-propagation: gradients through steps with the state carried on."""
    x = inputs_of(6)

    def loss(params):
        state = streamed.init(params=params)
        total = 0.0
        for start in (0, 2, 4):
            y, state = streamed.step(params, state, {**x, "x": x["x"][start : start + 2]})
            total += jnp.sum(y["y"] ** 2) if start else 0.0
        return total

    def offline(params):
        return jnp.sum(network(params, x)["y"][:4] ** 2)

    found, expected = jax.jit(jax.grad(loss))(PARAMS), jax.jit(jax.grad(offline))(PARAMS)
    for name in PARAMS:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-5)


def test_recordings_of_many_lengths_share_their_programs(streamed):
    """Otherwise each new length compiles a dozen programs, which JAX keeps."""
    recordings = [{**inputs_of(40), "x": inputs_of(40)["x"][:length]} for length in range(17, 33)]
    for x in (recordings[0], recordings[-1]):
        streamed.run(PARAMS, x)
    with compilations() as compiled:
        results = [streamed.run(PARAMS, x) for x in recordings]
    assert len(compiled) <= 1  # pulses of one power of two
    for x, result in zip(recordings[::5], results[::5], strict=True):
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), result, network(PARAMS, x))


@pytest.mark.thorough
def test_recordings_that_begin_alike(streamed):
    """They share their programs, and each gives what `run` gives, also shorter than a pulse."""
    recordings = [{**inputs_of(21), "x": inputs_of(21)["x"][:length]} for length in (1, 3, 10, 11, 21)]
    for x, result in zip(recordings, streamed.run_prefixes(PARAMS, recordings), strict=True):
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), result, streamed.run(PARAMS, x))


@pytest.mark.thorough
def test_leaves_of_different_rate():
    """Samples and features of one recording, each with its own number of frames."""

    def both(x):
        frames = x["samples"].reshape(-1, 4)
        return x["features"] + jnp.sum(frames, -1)[:, None], jnp.cumsum(x["samples"])

    example = {
        "samples": jax.ShapeDtypeStruct((400,), np.float32),
        "features": jax.ShapeDtypeStruct((100, 3), np.float32),
    }
    streamed = jaxrnn.stream(both, example, axes=0, pulse=2)
    assert streamed.rate == (1, 4)
    x = {"samples": drawn((28,)), "features": drawn((7, 3))}
    for found, expected in zip(jax.jit(streamed.run, static_argnums=0)(None, x), both(x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(
        jaxrnn.InputError,
        match=r"different numbers of frames: .*: 7, .*: 27 \(of 27/4 input frames\)",
    ):
        streamed.run(None, {**x, "samples": x["samples"][:27]})


EXACT = ("causal", "centred", "look-ahead", "differences", "max pooling", "stride 2", "wide kernel")
BOUNDED = (
    "valid",
    "many pads",
    "transposed by 2",
    "transposed, cropped",
    "transposed with stride",
    "cut and pad with the end known late",
    "every third from the second on",
    "branches of different delay",
    "slices of one buffer",
    "frames split",
    "repeated",
    "time behind another axis",
    "layers with look-ahead in a loop",
    "branch",
    "spectrum of overlapping frames",
)


@pytest.mark.parametrize("name", of_tiers([*EXACT, *BOUNDED], [*EXACT[::4], *BOUNDED[:1]], thorough=()))
def test_reach_is_what_the_jacobian_shows(name):
    """Look-ahead and receptive field bound what outputs depend on, and nothing less does."""
    function = CASES[name].function
    streamed = jaxrnn.stream(function, X, axes=0, pulse=60)
    x = jnp.array(drawn((24, 3)))
    rates = jax.tree.leaves(streamed.rate, is_leaf=lambda item: item is None)
    ahead, span = 0, 0
    for rate, jacobian in zip(rates, jax.tree.leaves(jax.jit(jax.jacobian(function))(x)), strict=True):
        if rate is None:
            continue
        depends = np.asarray(jnp.any(jacobian != 0, axis=(*range(1, jacobian.ndim - 2), jacobian.ndim - 1)))
        for place, row in enumerate(depends):
            used = np.flatnonzero(row)
            if len(used):
                ahead = max(ahead, used[-1] - int(place / rate))
                span = max(span, used[-1] - used[0] + 1)
    assert ahead <= streamed.look_ahead
    assert streamed.receptive_field is None or span <= streamed.receptive_field
    if name in EXACT:
        assert (ahead, span) == (streamed.look_ahead, streamed.receptive_field)


def test_state_and_table():
    """The state is named after scopes, and the table shows all facts."""

    def scoped(x):
        with jax.named_scope("encoder"):
            y = conv(x, (0, 2))
        with jax.named_scope("decoder"):
            return lstm(y)

    streamed = jaxrnn.stream(scoped, X, axes=0)
    assert {(entry.name, entry.kind, entry.shape) for entry in streamed.state} == {
        ("decoder.carry0", "carry", (3,)),
        ("decoder.carry1", "carry", (3,)),
        ("encoder.history", "history", (2, 1, 3)),
        ("count", "counter", ()),
    }
    text = streamed.table()
    for word in (
        "pulse",
        "look-ahead",
        "2 input frame(s)",
        "all of the past",
        "at the end",
        "encoder.history",
        "bytes",
    ):
        assert word in text
    assert sum(entry.nbytes for entry in streamed.state) == 4 * streamed.init()["float32"].size


def test_closed_over_parameters(streamed):
    """A step with its parameters closed over, as one would deploy it."""
    x = inputs_of(2)
    step = jax.jit(functools.partial(streamed.step, PARAMS))
    found, _ = step(streamed.init(params=PARAMS), x)
    expected, _ = streamed.step(PARAMS, streamed.init(params=PARAMS), x)
    np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-6)


def test_long_streams():
    """The count of frames stops where nothing depends on it any more; true positions go on."""

    def positions(x):
        return rnn(conv(x, (0, 2))), jnp.arange(x.shape[0])

    streamed = jaxrnn.stream(positions, X, axes=0, pulse=10)
    state = streamed.init()
    entries = streamed.entries(state)
    assert set(entries) >= {"count", "units"}
    step = jax.jit(streamed.step)
    for index in range(20):
        y, state = step(None, state, drawn((10, 3), seed=index))
        np.testing.assert_array_equal(y[1], 10 * index + np.arange(10))
    assert int(streamed.entries(state)["count"]) < 10
    assert int(streamed.entries(state)["units"]) == 200


def test_none_in_the_example_is_not_a_leaf():
    def total(x):
        return jnp.cumsum(x["x"]) if x["gain"] is None else jnp.cumsum(x["x"]) * x["gain"]

    x = {"x": jnp.arange(5.0), "gain": None}
    for axes in (0, {"x": 0, "gain": None}):
        np.testing.assert_array_equal(jaxrnn.stream(total, x, axes=axes, pulse=2).run(None, x), total(x))
    with pytest.raises(jaxrnn.StreamError, match="no leaf of the example has a time axis"):
        jaxrnn.stream(total, None, axes=0)


@pytest.mark.thorough
def test_jit_may_be_disabled():
    def leaky(x):
        return lax.scan(lambda level, frame: (0.5 * level + frame, level), 0.0, jnp.cumsum(x))[1]

    x = jnp.arange(9.0)
    expected = leaky(x)
    with jax.disable_jit():
        np.testing.assert_allclose(jaxrnn.stream(leaky, x, axes=0, pulse=2).run(None, x), expected, rtol=1e-6)


def test_configuration_is_left_alone():
    before = dict(jax.config.values)
    streamed = jaxrnn.stream(jnp.tanh, X, axes=0)
    streamed.run(None, drawn((3, 3)))
    assert dict(jax.config.values) == before


@pytest.mark.thorough
def test_packed_parameters(streamed):
    """Parameters with the work on them done: for this pulse, and as plain ones everywhere else."""
    x, state = inputs_of(2), streamed.init(params=PARAMS)
    packed = streamed.pack(PARAMS)
    expected, after = streamed.step(PARAMS, state, x)
    for function in (streamed.step, jax.jit(streamed.step)):
        found, new = function(packed, state, x)
        np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-6)
        np.testing.assert_allclose(new["float32"], after["float32"], rtol=1e-6)
    twice = {**x, "x": np.concatenate([x["x"]] * 2)}
    found, _ = streamed.with_pulse(4).step(packed, streamed.init(params=packed), twice)
    np.testing.assert_allclose(found["y"][:2], expected["y"], rtol=1e-6)
    np.testing.assert_allclose(streamed.run(packed, twice)["y"], network(PARAMS, twice)["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("taps", "spacing", "dilation"), [(1, 2, 1), (3, 2, 1), (2, 3, 2), (4, 2, 3), (3, 4, 2)])
def test_a_frame_that_is_not_finite_stays_where_a_transposed_convolution_has_it(taps, spacing, dilation):
    kernel = np.random.default_rng(taps).integers(-3, 4, (taps, 3, 2)).astype(np.float32)

    def function(x):
        high = spacing - 1 + (taps - 1) * dilation
        numbers = ("NTC", "TIO", "NTC")
        return lax.conv_general_dilated(x[None], kernel, (1,), [(0, high)], (spacing,), (dilation,), numbers)[0]

    x = np.random.default_rng(0).integers(-9, 9, (7, 3)).astype(np.float32)
    x[0], x[4] = np.inf, np.nan
    streamed = jaxrnn.stream(function, X, axes=0)
    np.testing.assert_array_equal(jax.jit(streamed.run, static_argnums=0)(None, x), function(x))


@pytest.mark.thorough
def test_all_frames_of_a_tail_exist_unless_a_number_is_given(tmp_path):
    """In streams, live streams, pools and compiled files. A step without a flush refuses a tail."""

    def smooth(x):
        return {"y": conv(x["x"], (1, 2))}

    streamed = jaxrnn.stream(smooth, {"x": X}, axes={"x": 0}, pulse=4)
    x = drawn((7, 3))
    first, tail, expected = {"x": x[:4]}, {"x": x[4:]}, smooth({"x": x})["y"]
    jaxrnn.save_compiled(streamed, tmp_path / "stream.jaxrnn")
    for stepper in (streamed, jaxrnn.load_compiled(tmp_path / "stream.jaxrnn")):
        (y, state), delay = stepper.step(None, stepper.init(), first), streamed.delay["y"]
        rest, counts = stepper.flush(None, state, tail)
        found = np.concatenate([y["y"], rest["y"][: int(counts["y"])]])
        np.testing.assert_allclose(found[delay:], expected, atol=1e-6)
        run, pool = jaxrnn.Runner(stepper, None), jaxrnn.StreamPool(stepper, None, 2)
        stream = pool.open()
        pool.push(stream, first)
        for y, rest in ((run(first), run.flush(tail)), (pool.run()[stream], pool.flush(stream, tail))):
            np.testing.assert_allclose(np.concatenate([y["y"], rest["y"]])[delay:], expected, atol=1e-6)
    spec = jaxrnn.load(PACKAGED).spec
    check_refused(jaxrnn.InputError, "no tail: a step takes a whole frame", nothing_left, spec, first)
    check_refused(jaxrnn.InputError, "a tail would be lost", nothing_left, streamed.spec, tail)


def test_a_trace_pauses_the_collector_and_leaves_it_as_it_was():
    """Also after an error, in nested traces, and when several threads trace."""
    seen = []

    def run(times):
        def traced(x):
            seen.append(gc.isenabled())
            return functools.reduce(lambda y, _: jnp.cumsum(y, 0), range(times), x)

        jaxrnn.stream(traced, jax.ShapeDtypeStruct((8, 2), np.float32), axes=0)

    was = gc.isenabled()
    try:
        for wanted in (True, False):
            (gc.enable if wanted else gc.disable)()
            with ThreadPoolExecutor(2) as threads:
                for each in [threads.submit(run, times) for times in (1, 9)]:
                    each.result()
            with pytest.raises(ZeroDivisionError):
                jaxrnn.stream(lambda x: x / (x.shape[1] // 0), jax.ShapeDtypeStruct((8, 2), np.float32), axes=0)
            assert gc.isenabled() == wanted
    finally:
        (gc.enable if was else gc.disable)()
    assert seen
    assert not any(seen)
