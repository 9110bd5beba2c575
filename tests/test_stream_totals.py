"""Totals of long streams: right after days, whatever the pulses, in JAX and in exported files."""

from __future__ import annotations

import fractions
import functools
import itertools
import math
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exported_files import ExportedStream
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from quick_compiling import as_users_compile
from stream_functions import conv
from streaming_verifier import check_gradients, check_values
from tiers import in_later_tier, of_tiers
from verifier import run_session, session

import jaxrnn
from jaxrnn.streaming import stream, totals

PULSES = (1, 16, 160)
LONG = 1 << 26
LEVEL = np.float64(np.float32(0.3))
FACTOR = np.float64(np.float32(1 + 1e-7))


def running_mean(x):
    return jnp.cumsum(x) / jnp.arange(1, x.shape[0] + 1, dtype=x.dtype)


#: Functions of frames of 0.3, and what they come to after so many frames.
FUNCTIONS = {
    "running sum": (jnp.cumsum, lambda frames: frames * LEVEL),
    "running mean": (running_mean, lambda frames: LEVEL),
    "associative sum": (lambda x: jaxrnn.signal.associative_scan(jnp.add, x), lambda frames: frames * LEVEL),
    "running product": (lambda x: lax.cumprod(x - x + np.float32(FACTOR)), lambda frames: FACTOR**frames),
    "running logsumexp": (lax.cumlogsumexp, lambda frames: LEVEL + math.log(frames)),
    "sum": (jnp.sum, lambda frames: frames * LEVEL),
    "mean": (jnp.mean, lambda frames: LEVEL),
    "product": (lambda x: jnp.prod(x - x + np.float32(FACTOR)), lambda frames: FACTOR**frames),
    "dot": (lambda x: x @ x, lambda frames: frames * LEVEL**2),
    "einsum": (lambda x: jnp.einsum("t,t->", x, x), lambda frames: frames * LEVEL**2),
}


def streamed_by(function, pulse, dtype=np.float32, shape=()):
    return stream(function, jax.ShapeDtypeStruct((160, *shape), dtype), axes=0, pulse=pulse)


def after_many_frames(function, pulse, frames=LONG):
    """What a stream gives after so many frames of 0.3, or the next lower number of pulses; and that number."""
    streamed = streamed_by(function, pulse)
    steps, x = frames // pulse, jnp.full(pulse, 0.3, jnp.float32)

    def run(state):
        state = lax.fori_loop(0, steps - 1, lambda _, state: streamed.step(None, state, x)[1], state)
        output, state = streamed.step(None, state, x)
        return output if streamed.rate else streamed.flush(None, state)[0]

    return float(np.ravel(as_users_compile(run, streamed.init()))[-1]), steps * pulse


@pytest.mark.parametrize(
    ("name", "pulse"),
    of_tiers(
        [(name, pulse) for name in FUNCTIONS for pulse in PULSES],
        [("running sum", 16), ("sum", 16)],
        [("running sum", 1), ("running sum", 160), ("running mean", 16)],
    ),
)
def test_many_frames(name, pulse):
    """Compiled with all optimisations."""
    function, expected = FUNCTIONS[name]
    found, frames = after_many_frames(function, pulse)
    np.testing.assert_allclose(found, expected(frames), rtol=1e-6)


@pytest.mark.thorough
def test_a_total_without_a_remainder_drifts(monkeypatch):
    """This tests the test."""
    monkeypatch.setattr(totals, "_two_sum", lambda a, b: totals.Wide(a + b, jnp.zeros_like(a + b)))
    found, frames = after_many_frames(jnp.cumsum, 1, 1 << 25)
    assert found < 0.9 * frames * LEVEL


# -- types and pulses


@functools.cache
def recordings(dtype):
    """Frames ``[480, 3]``: ones, tenths, and random ones around 1."""
    rng = np.random.default_rng(0)
    columns = np.ones(480), np.full(480, 0.1), rng.normal(1, 1, 480)
    return np.stack(columns, 1).astype(dtype)


@pytest.mark.parametrize("dtype", of_tiers([np.float16, jnp.bfloat16, np.float32], [], [jnp.bfloat16]))
def test_types_and_pulses(dtype):
    """Equal to the sum in float64, rounded once: of each frame, and at the end."""

    def function(x):
        return jnp.cumsum(x, 0), lax.reduce_sum(x, (0,))

    x = recordings(dtype)
    expected = np.cumsum(x.astype(np.float64), 0).astype(dtype)
    for pulse in PULSES:
        running, total = streamed_by(function, pulse, dtype, (3,)).run(None, jnp.asarray(x))
        assert running.dtype == total.dtype == dtype
        np.testing.assert_array_equal(np.asarray(running), expected, f"pulse {pulse}")
        np.testing.assert_array_equal(np.asarray(total), expected[-1], f"pulse {pulse}")


@pytest.mark.parametrize("dtype", of_tiers([np.float16, jnp.bfloat16, np.float32], [], [np.float16]))
def test_products_by_type_and_pulse(dtype):
    """Of columns that do not overflow."""

    def function(x):
        return jnp.cumprod(x, 0), lax.reduce_prod(x, (0,))

    x = (1 + recordings(np.float64) / 512).astype(dtype)
    expected = np.cumprod(x.astype(np.float64), 0).astype(dtype)
    for pulse in PULSES:
        running, total = streamed_by(function, pulse, dtype, (3,)).run(None, jnp.asarray(x))
        np.testing.assert_array_equal(np.asarray(running), expected, f"pulse {pulse}")
        np.testing.assert_array_equal(np.asarray(total), expected[-1], f"pulse {pulse}")


@pytest.mark.parametrize("name", in_later_tier(["cumsum", "cumprod", "cumlogsumexp"], ["cumprod", "cumlogsumexp"]))
def test_types_below_float32(name):
    """In the stream's own type, up to a rounding of it."""
    function = functools.partial(getattr(lax, name), axis=0)
    for dtype in (np.float16, jnp.bfloat16):
        x = 1 + recordings(dtype) / 512
        assert x.dtype == dtype
        streamed = streamed_by(function, 7, dtype, (3,))
        assert {entry.dtype.name for entry in streamed.state} == {"float32"}
        found = np.asarray(streamed.run(None, jnp.asarray(x)), np.float32)
        with jax.enable_x64(True):
            expected = np.asarray(function(jnp.asarray(x, np.float64)))
        np.testing.assert_allclose(found, expected, rtol=float(jnp.finfo(dtype).eps))


def test_exact_totals_have_no_remainder():
    """Those of integers, of extremes and of bits."""

    def function(x):
        return jnp.cumsum(x), lax.cummax(x.astype(jnp.float32)), jnp.bitwise_or.reduce(x), jnp.max(x), jnp.prod(x)

    kinds = [entry.kind for entry in streamed_by(function, 1, np.int32).state]
    assert sorted(kinds) == ["counter", *["total"] * 5]


_SIZES = st.floats(-1e3, 1e3, width=32) | st.sampled_from([1e15, -1e15, 1e-15, 3e7, 0.1]).map(np.float32)


@pytest.mark.thorough
@settings(max_examples=30)
@given(st.lists(_SIZES, min_size=1, max_size=40), st.sampled_from([1, 3, 8]))
def test_sums_of_all_sizes(values, pulse):
    """Within a rounding of the exact sum, and 2**-44 of the sizes of the frames."""
    x = np.array(values, np.float32)
    found = np.asarray(_cumulative(pulse)(jnp.asarray(np.pad(x, (0, 40 - len(x))))))[: len(x)]
    for index, total in enumerate(found):
        exact = math.fsum(x[: index + 1].astype(np.float64))
        spread = math.fsum(np.abs(x[: index + 1]).astype(np.float64))
        assert abs(float(total) - exact) <= abs(exact) * 2.0**-24 + spread * 2.0**-44


@functools.cache
def _cumulative(pulse):
    streamed = streamed_by(jnp.cumsum, pulse)
    return jax.jit(functools.partial(streamed.run, None))


NOT_FINITE = {
    "infinity": [1, np.inf, 2, 3, 4],
    "both infinities": [1, np.inf, -np.inf, 3, 4],
    "minus infinity": [-np.inf, -np.inf, 2, -np.inf, 4],
    "no number": [1, 2, np.nan, 3, 4],
    "overflow": [3e38, 3e38, 1, 1, -3e38],
    "almost": [3e38, 1e37, -3e38, 1e38, 1],
    "late overflow": [1.1, 1.3, 3e38, 1.7, -1.9],
    "zeros": [0, -0.0, 0, 0, 0],
}


@pytest.mark.parametrize("name", in_later_tier(["cumsum", "cumprod", "cumlogsumexp"], ["cumprod", "cumlogsumexp"]))
def test_what_is_not_finite(name):
    """As NumPy has it, in pulses that hold it in their middle, too; the state holds no NaN before a frame does."""
    reference = {"cumsum": np.cumsum, "cumprod": np.cumprod, "cumlogsumexp": np.logaddexp.accumulate}[name]
    x = np.array([*NOT_FINITE.values()], np.float32).T
    with np.errstate(all="ignore"):
        expected = reference(x, axis=0)
    for pulse in (1, 3, 5):
        streamed = streamed_by(functools.partial(getattr(lax, name), axis=0), pulse, shape=x.shape[1:])
        found = np.asarray(streamed.run(None, jnp.asarray(x)))
        np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=f"pulse {pulse}")


@pytest.mark.parametrize("name", of_tiers(["cumsum", "cumprod", "cumlogsumexp"], [], ["cumprod"]))
def test_gradients_where_totals_begin(name):
    """Beside frames that do not exist, of a total that is minus infinity at first."""
    check_gradients(lambda x: getattr(lax, name)(conv(x, (3, 2)), 0), (20, 3))


@pytest.mark.thorough
def test_gradients_of_products_with_zeros():
    check_gradients(lambda x: (jnp.cumprod(jnp.maximum(x, 0), 0), jnp.prod(jnp.maximum(x, 0), 0)), (20, 3))


@pytest.mark.thorough
def test_a_variance_whose_origin_is_far_away():
    x = jnp.full(4, 2e19, jnp.float32)
    assert streamed_by(jnp.var, 1).run(None, x) == jnp.var(x) == 0


@pytest.mark.parametrize(("rate", "ahead"), [(2, 1), (3, 2)])
def test_totals_of_repeated_frames_that_look_ahead(rate, ahead):
    """The first frames of the total do not exist, for a part of a pulse."""

    def function(x):
        repeated = jnp.pad(jnp.repeat(x, rate, axis=0), ((0, ahead), (0, 0)))[ahead:]
        return jnp.cumsum(repeated, 0), repeated.sum(0)

    check_values(function, (20, 1), lengths=(1, 4), chunkings=((1,),))


#: Floats of 8 bits; all but the last have no infinity.
FLOAT8 = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e4m3b11fnuz", "float8_e5m2"]


@pytest.mark.parametrize("dtype", of_tiers(FLOAT8, FLOAT8[:1], []))
def test_extremes_of_floats_without_infinity(dtype):
    def function(x):
        x = x.astype(dtype)
        least = jnp.asarray(jnp.finfo(dtype).min, dtype)
        pooled = lax.reduce_window(x, least, lax.max, (3, 1), (1, 1), ((1, 1), (0, 0)))
        extremes = lax.cummax(x, 0), lax.cummin(x, 0), pooled, x.max(0), x.min(0)
        return *(each.astype(np.float32) for each in extremes), jnp.argmax(x, 0), jnp.argmin(x, 0)

    check_values(function, (20, 3), lengths=(1, 8), chunkings=((3,),))


def test_totals_wait_for_the_last_frames():
    """Those that come long after the input has ended."""
    check_values(lambda x: (conv(x, (0, 5)).sum(0), conv(x, (0, 5)).prod(0)), (20, 3))


@pytest.mark.thorough
def test_complex_totals():
    check_values(lambda x: jnp.abs(jnp.cumsum(lax.complex(x[:, :2], x[:, 1:]), 0)), (20, 3))


def test_associative_sums():
    """They are sums in any tree, also with operands in another order; what is more than a sum is none."""
    assert _kinds(lambda a, b: b + a) == ["remainder", "total"]
    assert _kinds(lambda a, b: a + b + 0 * b) == ["carry", "carry"]
    assert _kinds(jnp.maximum) == ["carry", "carry"]

    def moments(x):
        parts = {"count": jnp.ones_like(x), "sum": x, "squares": x * x}
        return jaxrnn.signal.associative_scan(lambda a, b: jax.tree.map(jnp.add, a, b), parts)

    streamed = check_values(moments, (20, 3))
    # The sum of ones counts frames.
    assert [entry.kind for entry in streamed.state].count("remainder") == 2


def _kinds(function):
    streamed = streamed_by(lambda x: jaxrnn.signal.associative_scan(function, x), 1)
    return sorted(entry.kind for entry in streamed.state if entry.kind != "counter")


# -- exported files

EXPORTED = {
    "running sum": (lax.cumsum, np.cumsum),
    "running product": (lax.cumprod, np.cumprod),
    "running logsumexp": (lax.cumlogsumexp, np.logaddexp.accumulate),
}


def exported(folder, function, pulse, dtype, shape=(3,)):
    example = {"x": jax.ShapeDtypeStruct((160, *shape), dtype)}
    streamed = stream(lambda inputs: {"y": function(inputs["x"])}, example, axes=0, pulse=pulse)
    paths = folder / "step.onnx", folder / "flush.onnx"
    jaxrnn.export_onnx(streamed, None, paths[0], flush=paths[1])
    return paths


@pytest.mark.parametrize(
    ("name", "dtype", "pulse"),
    of_tiers(
        [(name, dtype, pulse) for name in EXPORTED for dtype in (np.float16, np.float32) for pulse in PULSES],
        [("running sum", np.float16, 16), *(("running sum", np.float32, pulse) for pulse in PULSES)],
        [("running logsumexp", np.float32, 16)],
    ),
)
def test_files_by_type_and_pulse(tmp_path, name, dtype, pulse):
    """In ONNX Runtime with its optimisations: as in float64, rounded once; logarithms up to a rounding more."""
    function, reference = EXPORTED[name]
    x = (1 + recordings(np.float64) / 512).astype(dtype) if name == "running product" else recordings(dtype)
    found = ExportedStream(*exported(tmp_path, function, pulse, dtype)).run({"x": x})["y"]
    exact = reference(x.astype(np.float64), axis=0)
    if name == "running logsumexp":
        np.testing.assert_allclose(found, exact, rtol=2 * np.finfo(dtype).eps)
    else:
        np.testing.assert_array_equal(found, exact.astype(dtype))


@pytest.mark.parametrize(
    ("name", "pulse"),
    of_tiers(
        [(name, pulse) for name in ("sum", "product") for pulse in PULSES],
        [("sum", 16), ("product", 1)],
        [("product", 160)],
    ),
)
def test_float64(tmp_path, name, pulse):
    """In JAX and in ONNX Runtime: equal to exact fractions, rounded once, which sums in float64 are not."""
    function, operation = {"sum": (lax.cumsum, operator.add), "product": (lax.cumprod, operator.mul)}[name]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(480, 3)) * 10.0 ** rng.integers(-8, 8, (480, 3)) if name == "sum" else recordings(np.float64)
    x = x if name == "sum" else 1 + x / 512
    columns = [itertools.accumulate(map(fractions.Fraction, column), operation) for column in x.T.tolist()]
    expected = np.array([list(map(float, column)) for column in columns]).T
    with jax.enable_x64(True):
        found = streamed_by(function, pulse, np.float64, (3,)).run(None, jnp.asarray(x))
        paths = exported(tmp_path, function, pulse, np.float64)
    np.testing.assert_array_equal(np.asarray(found), expected)
    np.testing.assert_array_equal(ExportedStream(*paths).run({"x": x})["y"], expected)
    assert not np.array_equal(np.add.accumulate(x) if name == "sum" else np.multiply.accumulate(x), expected)


def test_totals_of_files_in_float16(tmp_path):
    """Totals are wider than all other numbers of the file: 4000 frames of 0.1 are 400, in steps of 0.25."""
    streamed = stream(
        lambda inputs: {"y": jnp.cumsum(inputs["x"])}, {"x": jax.ShapeDtypeStruct((160,), np.float32)}, axes=0, pulse=16
    )
    paths = tmp_path / "step.onnx", tmp_path / "flush.onnx"
    jaxrnn.export_onnx(streamed, None, paths[0], flush=paths[1], dtype="float16")
    x = np.full(4000, 0.1, np.float32)
    found, exact = ExportedStream(*paths).run({"x": x})["y"], np.cumsum(x.astype(np.float16), dtype=np.float64)
    np.testing.assert_allclose(found, exact, rtol=np.finfo(np.float16).eps)


@pytest.mark.parametrize("kind", [np.int32, np.uint32])
def test_positions_of_files_in_float16(tmp_path, kind):
    """Positions are wider, too: float16 has no 3999, and the remainder would be 0."""
    remainders = lambda x: x + jnp.remainder(jnp.arange(x.shape[0], dtype=kind).astype(np.float32), 2)  # noqa: E731
    function = lambda inputs: {"y": remainders(inputs["x"])}  # noqa: E731
    streamed = stream(function, {"x": jax.ShapeDtypeStruct((160,), np.float32)}, axes=0, pulse=500)
    jaxrnn.export_onnx(streamed, None, tmp_path / "step.onnx", dtype="float16")
    found = ExportedStream(tmp_path / "step.onnx").run({"x": np.zeros(4000, np.float32)})["y"]
    np.testing.assert_array_equal(found, np.arange(4000) % 2)


@pytest.mark.parametrize("pulse", PULSES)
def test_files_after_many_frames(tmp_path, pulse):
    """The last frames of 2**26, from the state before them: the total grows by what they add."""
    step = session(exported(tmp_path, jnp.cumsum, pulse, np.float32, ())[0])
    steps = max(1, 4096 // pulse)
    before = (LONG - steps * pulse) * LEVEL
    high = np.float32(before)
    state = {"cumsum.total": high[None], "cumsum.remainder": np.float32([before - high])}
    state["count"] = np.zeros((), np.int32)
    for _ in range(steps):
        given = run_session(step, {"x": np.full(pulse, 0.3, np.float32), **state})
        state = {name: given[f"{name}_next"] for name in state}
    after = (state["cumsum.total"].astype(np.float64) + state["cumsum.remainder"]).item()
    np.testing.assert_allclose(after - before, steps * pulse * LEVEL, rtol=1e-6)
    np.testing.assert_allclose(given["y"][-1], LONG * LEVEL, rtol=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize("pulse", [160, 4096])
def test_files_through_many_frames(tmp_path, pulse):
    """All 2**26, or the next lower number of pulses."""
    step = session(exported(tmp_path, jnp.cumsum, pulse, np.float32, ())[0])
    state = {name: np.zeros(1, np.float32) for name in ("cumsum.total", "cumsum.remainder")}
    state["count"] = np.zeros((), np.int32)
    x, steps = np.full(pulse, 0.3, np.float32), LONG // pulse
    for _ in range(steps):
        given = run_session(step, {"x": x, **state})
        state = {name: given[f"{name}_next"] for name in state}
    np.testing.assert_allclose(given["y"][-1], steps * pulse * LEVEL, rtol=1e-6)


# -- networks of a great age


AGES = {"1 minute": 60, "8 hours": 8 * 3600, "30 days": 30 * 24 * 3600}
#: By network: frames of its totals in a second, and the pulse.
NETWORKS = {"tasnet_cln": (16000 // 8, 8), "se": (100, 1)}


@pytest.mark.parametrize(
    ("network", "age"),
    of_tiers([(network, age) for network in NETWORKS for age in AGES], [], [("se", "30 days")]),
)
def test_networks_of_an_age(models, network, age):
    """What 100 pulses add to each total is what it grows by."""
    path = models / "speech" / f"{network}_script.onnx"
    rate, pulse = NETWORKS[network]
    ratios = _growth(jaxrnn.load(path), pulse, AGES[age] * rate)
    assert ratios
    np.testing.assert_allclose(ratios, 1, atol=1e-3)


def _growth(model, pulse, frames):
    """For each total, what it grows by over what 100 pulses add to it, from a state after so many frames."""
    added = {}
    original = totals.Total.after_each

    def after_each(total, x, *arguments):
        name = total._names[0]
        jax.debug.callback(lambda x: added.setdefault(name, []).append(np.sum(np.asarray(x, np.float64))), x)
        return original(total, x, *arguments)

    rng = np.random.default_rng(0)
    (info,) = model.inputs
    shape = [100 * pulse if isinstance(size, str) else size for size in info.shape]
    x = {info.name: rng.normal(size=shape).astype(np.float32)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(totals.Total, "after_each", after_each)
        streamed = model.stream(info.shape[-1], pulse=pulse)
        _, state = streamed.scan(model.params, streamed.init(), x)
        jax.effects_barrier()
        young = {name: np.asarray(value) for name, value in streamed.entries(state).items()}
        times = frames / float(young["units"])
        old = dict(young)
        for name in added:
            old[name] = np.float32(young[name] * times)
        old["units"] = np.asarray(frames, young["units"].dtype)
        added.clear()
        _, state = streamed.scan(model.params, streamed._plan.layout.pack(old), x)
        jax.effects_barrier()
    new = streamed.entries(state)
    return [(_value(new, name) - _value(old, name)) / np.sum(added[name]) for name in added]


def _value(entries, total):
    names = total, total.replace(".total", ".remainder")
    return sum(np.sum(np.asarray(entries[name], np.float64)) for name in names)


# -- a day

MINUTE, HOUR = 60 * 100, 3600 * 100


def normalised(x):
    """Running statistics, histories, delays, positions in a ring, products and extremes."""
    count = jnp.arange(1, x.shape[0] + 1, dtype=x.dtype)
    mean = jnp.cumsum(x) / count
    y = (x - mean) / jnp.sqrt(jnp.cumsum(x * x) / count - mean * mean)
    smooth = conv(y[:, None], (3, 2), kernel=np.full((6, 1, 1), 0.2, np.float32))[:, 0]
    ring = jnp.arange(x.shape[0]) % 7
    return jnp.where(ring == 3, smooth, y), jnp.cumprod(1 + jnp.sign(x) / 2**20), lax.cummax(x)


@pytest.mark.thorough
@pytest.mark.parametrize("hours", of_tiers([1, 24], [1], thorough=()))
def test_a_day(hours):
    """A day of frames, 100 a second, in large pulses and at last one by one: as offline on its last minute."""
    total = hours * HOUR
    large = (total - MINUTE) // 1000
    x = (0.3 + np.random.default_rng(0).normal(size=total)).astype(np.float32)
    with jax.enable_x64(True):
        expected = [np.asarray(each[-MINUTE:]) for each in jax.jit(normalised)(x.astype(np.float64))]
    streamed = stream(normalised, x[:large], axes=0, pulse=large)
    state = streamed.init()
    step = jax.jit(streamed.step)
    for begin in range(0, total - MINUTE, large):
        _, state = step(None, state, x[begin : begin + large])
    frames = streamed.with_pulse(1)
    outputs, state = jax.jit(frames.scan)(None, state, x[-MINUTE:])
    ends, counts = frames.flush(None, state)
    for output, end, count, offline in zip(outputs, ends, counts, expected, strict=True):
        found = np.concatenate([output, end[: int(count)]])
        np.testing.assert_allclose(found[-MINUTE:], offline, rtol=1e-5, atol=1e-5)
