"""Streams after NaN and infinities: what is checked, and how a stream recovers in each engine."""

from __future__ import annotations

import copy
import pickle
import warnings

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from packages import needs_litert
from refusals import check_refused

import jaxrnn
from jaxrnn.demo import PACKAGED
from jaxrnn.export import FileRunner, export_litert, verify_export
from jaxrnn.steps import ArraySpec, OutputSpec, StateSpec, StepSpec, in_batch, nothing_left
from jaxrnn.steps.finite import Watch

WEIGHTS = np.random.default_rng(0).normal(size=(3, 3, 3)).astype(np.float32) / 2
PARAMS = {"w": WEIGHTS}


def remembering(params, x):
    """A recurrence, a filter that overflows, and a look-ahead of two frames."""

    def step(carry, frame):
        h, y = carry
        carry = jnp.tanh(frame @ params["w"][0] + h @ params["w"][1]), frame + y / 2
        return carry, carry

    _, (h, y) = jax.lax.scan(step, (jnp.zeros(3), jnp.zeros(3)), x["x"])
    later = jnp.pad(x["x"], ((0, 2), (0, 0)))[2:]
    return {"y": h + y + later, "loud": (y > 1).astype(jnp.int32)}


@pytest.fixture(scope="module")
def streamed():
    example = {"x": jax.ShapeDtypeStruct((8, 3), jnp.float32)}
    return jaxrnn.stream(remembering, example, axes=0, params=PARAMS, pulse=2)


def frames(count, bad=None, value=np.nan):
    x = np.random.default_rng(1).normal(size=(count, 2, 3)).astype(np.float32)
    if bad is not None:
        x[bad, 1, 2] = value
    return [{"x": each} for each in x]


def check_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
        assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype)


VALUES = [np.nan, np.inf, -np.inf, 3e38]  # twice 3e38 overflows


@pytest.mark.parametrize("value", VALUES)
def test_a_runner_begins_anew(streamed, value):
    run = jaxrnn.Runner(streamed, PARAMS, on_nonfinite="reset")
    pulses = frames(8, 3, value)
    if value == 3e38:
        pulses[3]["x"][:] = value
    found = [run(pulse) for pulse in pulses]
    anew = jaxrnn.Runner(streamed, PARAMS)
    for pulse, outputs in zip(pulses[:3], found[:3], strict=True):
        check_equal(outputs, anew(pulse))
    check_equal(found[3], {name: np.zeros_like(array) for name, array in found[0].items()})
    anew.reset()
    for pulse, outputs in zip(pulses[4:], found[4:], strict=True):
        check_equal(outputs, anew(pulse))
    assert run.resets == 1
    check_equal(run.flush(), anew.flush())


@pytest.mark.parametrize("value", VALUES[:3])
def test_a_runner_stays_as_before_the_step(streamed, value):
    run, other = jaxrnn.Runner(streamed, PARAMS, on_nonfinite="raise"), jaxrnn.Runner(streamed, PARAMS)
    first, *pulses = frames(8, 3, value)
    check_equal(run(first), outputs := other(first))
    for number, pulse in enumerate(pulses, 1):
        if number == 3:
            with pytest.raises(jaxrnn.NonFiniteError, match=r"NaN or infinities, in state .*on_nonfinite=") as raised:
                run(pulse)
            check_equal(raised.value.outputs, {name: np.zeros_like(array) for name, array in outputs.items()})
        else:
            check_equal(run(pulse), other(pulse))
    assert run.resets == 0
    kept = jaxrnn.Runner(streamed, PARAMS)
    assert not np.isfinite([kept(pulse)["y"] for pulse in frames(8, 3, value)][-1]).all()


def test_the_choice_and_the_count_stay(streamed, tmp_path):
    """In copies, pickles, after new parameters, and with machine code."""
    check_refused(
        jaxrnn.InputError, "on_nonfinite must be one of", jaxrnn.Runner, streamed, PARAMS, on_nonfinite="rest"
    )
    compiled = tmp_path / "stream.jaxrnn"
    jaxrnn.save_compiled(streamed, compiled, params=PARAMS, native=True)
    good, bad = frames(2, 1)
    for stepper, params in ((jaxrnn.load_compiled(compiled, native=True), None), (streamed, PARAMS)):
        run = jaxrnn.Runner(stepper, params, on_nonfinite="reset")
        run(bad)
        run(good)
        runs = [run, copy.copy(run), copy.deepcopy(run)]
        if stepper is not streamed:
            runs.append(pickle.loads(pickle.dumps(run)))
        expected = run.state
        for each in runs:
            assert each.resets == 1
            check_equal(each.state, expected)
            each(bad)
            assert each.resets == 2
    run.params = {"w": 2 * WEIGHTS}
    run(bad)
    assert (run.resets, np.isfinite(run(good)["y"]).all()) == (3, True)
    run.reset()
    assert run.resets == 3


def test_what_begins_infinite_may_be_infinite():
    """A minimum of no frames is inf, in the state and in the frames before frame 0; NaN is a fault there too."""
    streamed = jaxrnn.stream(
        lambda x: {"least": jax.lax.cummin(jnp.pad(x["x"], (0, 2))[2:], 0)}, {"x": np.zeros(8, np.float32)}, axes=0
    )
    run, pulses = jaxrnn.Runner(streamed, on_nonfinite="reset"), np.arange(8, dtype=np.float32)[:, None]
    found = [run({"x": pulse})["least"] for pulse in pulses]
    assert (np.isinf(found[0]).all(), run.resets) == (True, 0)
    run({"x": np.full(1, np.nan, np.float32)})
    assert run.resets == 1


def pool_of(streamed, **options):
    pool = jaxrnn.StreamPool(streamed, PARAMS, 3, **options)
    return pool, [pool.open() for _ in range(3)]


def pushed(pool, streams, pulses):
    """Run a round: a pulse of each stream."""
    for stream, pulse in zip(streams, pulses, strict=True):
        pool.push(stream, pulse)
    return pool.run()


@pytest.mark.parametrize("value", VALUES[:3])
def test_a_stream_of_a_pool_begins_anew_and_leaves_its_neighbours_alone(streamed, value):
    pool, streams = pool_of(streamed, on_nonfinite="reset")
    known, same = pool_of(streamed)
    good, bad = frames(8), frames(8, 3, value)
    zeros = {"y": np.zeros((2, 3), np.float32), "loud": np.zeros((2, 3), np.int32)}
    for number in range(8):
        if number == 4:
            known.reset(same[1])
            pool = pickle.loads(pickle.dumps(pool))
            pool.params = {"w": WEIGHTS.copy()}
            known.params = {"w": WEIGHTS.copy()}
        if number == 6:
            pool.grow(4)
            known.grow(4)
        found = pushed(pool, streams, (good[number], bad[number], good[number]))
        expected = pushed(known, same, (good[number], bad[number], good[number]))
        for stream in (0, 2) if number == 3 else range(3):
            check_equal(found[streams[stream]], expected[same[stream]])
        if number == 3:
            check_equal(found[streams[1]], zeros)
    assert [pool.resets(stream) for stream in streams] == [0, 1, 0]
    check_equal(pool.flush(streams[1]), known.flush(same[1]))
    check_refused(jaxrnn.StateError, "is not open", pool.resets, 17)


def test_a_pool_stays_as_before_the_run(streamed):
    pool, streams = pool_of(streamed, on_nonfinite="raise")
    known, same = pool_of(streamed)
    good, bad = frames(3), frames(3, 1)
    for pulses in zip(good[:1], good[:1], good[:1], strict=True):
        pushed(pool, streams, pulses)
        pushed(known, same, pulses)
    with pytest.raises(jaxrnn.NonFiniteError, match=r"in stream\(s\) 1: in state .* of stream 1\.") as raised:
        pushed(pool, streams, (good[1], bad[1], good[1]))
    assert raised.value.streams == (streams[1],)
    with pytest.raises(jaxrnn.NonFiniteError):
        pool.run()  # the frames wait
    pool.reset(streams[1])
    found, expected = pool.run(), pushed(known, same, (good[1],) * 3)
    assert found.keys() == {streams[0], streams[2]}
    for stream in (0, 2):
        check_equal(found[streams[stream]], expected[same[stream]])
    check_refused(
        jaxrnn.InputError, "on_nonfinite must be", jaxrnn.StreamPool, streamed, PARAMS, 1, on_nonfinite="zero"
    )


def test_pools_of_machine_code_and_of_integers_begin_anew(streamed, tmp_path):
    jaxrnn.save_compiled(streamed, tmp_path / "stream.jaxrnn", params=PARAMS, native=True, batches=(3,))
    for stepper, frame in (
        (jaxrnn.load_compiled(tmp_path / "stream.jaxrnn", native=True), np.ones((2, 3), np.float32)),
        (Odd("float32", 0, "int32"), np.ones(2, np.float32)),
    ):
        pool = jaxrnn.StreamPool(stepper, None, 3, on_nonfinite="reset")
        streams = [pool.open() for _ in range(3)]
        bad = np.full_like(frame, np.nan)
        found = pushed(pool, streams, ({"x": frame}, {"x": bad}, {"x": frame}))
        assert [pool.resets(stream) for stream in streams] == [0, 1, 0]
        assert all("" not in outputs for outputs in found.values())
        assert not any(array.any() for array in found[streams[1]].values())
        check_equal(found[streams[0]], found[streams[2]])
        again = pushed(pool, streams, ({"x": frame},) * 3)
        check_equal(again[streams[1]], found[streams[0]])


class Odd:
    """A step of given types, which keeps its input: the state begins at a given value."""

    def __init__(self, dtype, start, out=None):
        self.start, self.out = np.full(2, start, dtype), np.dtype(out or dtype)
        self.spec = StepSpec(
            "odd",
            inputs=(ArraySpec("x", np.dtype(dtype), (2,)),),
            outputs=(OutputSpec("y", self.out, (2,)),),
            state=(StateSpec("h", np.dtype(dtype), (2,)),),
        )

    def init(self, batch=None, *, params=None, constants=None):
        return in_batch(self.spec, {"h": self.start}, batch)

    def step(self, params, state, inputs):
        real = inputs["x"].real if jnp.iscomplexobj(inputs["x"]) and self.out.kind != "c" else inputs["x"]
        return {"y": jnp.nan_to_num(real).astype(self.out)}, {"h": inputs["x"]}

    def flush(self, params, state, tail=None, valid=None):
        return nothing_left(self.spec, tail, valid)


@pytest.mark.parametrize(
    ("dtype", "start", "out", "fault"),
    [
        ("float32", 0, None, (np.nan, np.inf)),
        ("float32", -np.inf, None, (np.nan,)),
        ("float32", np.nan, None, ()),
        ("float32", 0, "int32", (np.nan, np.inf)),
        ("float16", 0, None, (np.nan, np.inf)),
        (ml_dtypes.bfloat16, 0, None, (np.nan, np.inf)),
        ("float64", 0, None, (np.nan, np.inf)),
        ("complex64", 0, None, (np.nan, np.inf, complex(0, np.inf))),
        ("int32", 0, None, ()),
    ],
)
def test_types_and_entries_that_may_be_infinite(dtype, start, out, fault):
    stepper = Odd(dtype, start, out)
    run = jaxrnn.Runner(stepper, on_nonfinite="reset")
    values = [0, 1] if np.dtype(dtype).kind == "i" else [0, np.nan, np.inf, -1, complex(0, np.inf)]
    for value in values if np.dtype(dtype).kind == "c" else values[:4]:
        before = run.resets
        frame = np.full(2, stepper.start[0], dtype)
        frame[1] = value
        outputs = run({"x": frame})
        assert outputs.keys() == {"y"}
        expected = any(value == each or (value != value and each != each) for each in fault)
        assert run.resets - before == expected, value


class Shown(Odd):
    """A delay of a step, which begins with NaN."""

    def step(self, params, state, inputs):
        return {"y": state["h"]}, {"h": inputs["x"]}


def test_outputs_beside_an_entry_that_begins_with_nan_may_have_nan():
    """Such a stream does not begin anew at each step, in a Runner and in a pool."""
    stepper, x = Shown("float32", np.nan), np.arange(6, dtype=np.float32).reshape(3, 2)
    run, pool = jaxrnn.Runner(stepper, on_nonfinite="reset"), jaxrnn.StreamPool(stepper, None, 2, on_nonfinite="reset")
    stream = pool.open()
    for frame, expected in zip(x, [np.full(2, np.nan, np.float32), *x[:2]], strict=True):
        check_equal(run({"x": frame}), {"y": expected})
        pool.push(stream, {"x": frame})
        check_equal(pool.run()[stream], {"y": expected})
    assert (run.resets, pool.resets(stream)) == (0, 0)


def test_outputs_in_64_bits_are_judged_in_64_bits():
    """Also outside of JAX's context for such types, as in FileRunner: 1e300 is finite, and too large for 32 bits."""
    spec = StepSpec(
        "s", (), (OutputSpec("y", np.dtype("float64"), (2,)),), (StateSpec("h", np.dtype("float64"), (1,)),)
    )
    watch = Watch(spec, {"h": np.full(1, -np.inf)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert watch.places({"y": np.array([1e300, np.inf])}, {"h": np.ones(1)}) == []
        assert watch.places({"y": np.array([1e300, np.nan])}, {"h": np.ones(1)}) == ["the outputs"]


class Begun(Shown):
    """A delay that begins with NaN and a parameter."""

    def init(self, batch=None, *, params=None, constants=None):
        first = 1 if params is None else params["s"]
        return in_batch(self.spec, {"h": jnp.stack([jnp.float32(jnp.nan), jnp.float32(first)])}, batch)


def test_a_stream_that_begins_with_nan_begins_with_the_new_parameters():
    stepper = Begun("float32", np.nan)
    pool = jaxrnn.StreamPool(stepper, {"s": np.float32(1)}, 2)
    stream = pool.open()
    pool.params = {"s": np.float32(2)}
    np.testing.assert_array_equal(pool.state(stream)["h"], [np.nan, 2])


def test_streams_of_a_pool_that_begin_differently_are_judged_as_alone():
    """A constant input that is infinite is the first state of a minimum, which then may be infinite."""

    def least(x):
        return {"y": jax.lax.scan(lambda carry, row: (jnp.minimum(carry, row),) * 2, x["h"], x["x"])[1]}

    shapes = {"x": jax.ShapeDtypeStruct((8, 3), jnp.float32), "h": jax.ShapeDtypeStruct((3,), jnp.float32)}
    streamed = jaxrnn.stream(least, shapes, axes={"x": 0, "h": None})
    pool = jaxrnn.StreamPool(streamed, None, 2, on_nonfinite="reset")
    for h, resets in ((np.inf, 1), (0.0, 2)):
        constants = {"h": np.full(3, h, np.float32)}
        run, stream = jaxrnn.Runner(streamed, None, constants, on_nonfinite="reset"), pool.open(constants)
        for value in (np.inf, 1, np.nan, -np.inf, 2):
            frame = {"x": np.full((1, 3), value, np.float32), **constants}
            pool.push(stream, frame)
            check_equal(pool.run()[stream], run(frame))
        assert (run.resets, pool.resets(stream)) == (resets, resets)


def test_a_copy_of_a_file_runner_is_a_second_stream(streamed, tmp_path):
    jaxrnn.export_onnx(streamed, PARAMS, tmp_path / "step.onnx")
    run, (first, bad, *pulses) = FileRunner(tmp_path / "step.onnx", on_nonfinite="reset"), frames(6, 1)
    run(first)
    copies = [copy.copy(run), copy.deepcopy(run)]
    for pulse in (bad, *pulses):
        run(pulse)
    expected = FileRunner(tmp_path / "step.onnx")
    expected(first)
    for pulse in pulses:
        known = expected(pulse)
        for each in copies:
            check_equal(each(pulse), known)
    assert [each.resets for each in (run, *copies)] == [1, 0, 0]


@pytest.mark.parametrize("join_state", [False, True])
def test_a_file_judges_each_entry_of_its_state(join_state, tmp_path):
    """A minimum, which begins infinite, does not hide a sum that overflows in the same array."""

    def sums(x):
        _, total = jax.lax.scan(lambda carry, row: (2 * carry + row,) * 2, jnp.zeros(3), x["x"])
        return {"least": jax.lax.cummin(x["x"], 0), "y": jnp.tanh(total)}

    streamed = jaxrnn.stream(sums, {"x": jax.ShapeDtypeStruct((8, 3), jnp.float32)}, axes=0)
    jaxrnn.export_onnx(streamed, None, tmp_path / "step.onnx", join_state=join_state)
    runs = [jaxrnn.Runner(streamed, on_nonfinite="reset"), FileRunner(tmp_path / "step.onnx", on_nonfinite="reset")]
    for run in runs:
        for value in (1, 3e38, 3e38, 1):
            run({"x": np.full((1, 3), value, np.float32)})
    assert [run.resets for run in runs] == [1, 1]


@pytest.mark.parametrize("size", [1, 7, 129, 10_000])
def test_no_element_escapes(size):
    """The maximum of 10,000 elements in XLA loses NaN."""
    spec = StepSpec("s", (), (), (StateSpec("h", np.dtype("float32"), (size,)),))
    watch = Watch(spec, {"h": np.zeros(size, np.float32)})
    y = np.ones(3, np.float32)
    marked = jax.jit(lambda h: watch.marked({"y": jnp.asarray(y)}, {"h": h}, (h,))["y"])
    clean = np.random.default_rng(0).normal(size=size).astype(np.float32)
    np.testing.assert_array_equal(marked(clean), y)
    for place in [*range(min(size, 129)), size - 1]:
        for value in (np.nan, -np.inf):
            h = clean.copy()
            h[place] = value
            assert np.isnan(marked(h)[0])


@pytest.mark.parametrize("ending", ["onnx", pytest.param("tflite", marks=needs_litert)])
def test_exported_files_recover(ending, tmp_path):
    """The GRU of ONNX Runtime turns NaN into numbers, so that only the input shows the fault."""
    model = jaxrnn.load(PACKAGED, static={"h": np.zeros((1, 1, 80), np.float32)})
    streamed, path = model.stream("time"), tmp_path / f"step.{ending}"
    if ending == "onnx":
        jaxrnn.export_onnx(streamed, model.params, path)
    else:
        export_litert(streamed, model.params, path)
    for value in (np.nan, np.inf):
        x = np.random.default_rng(0).uniform(0, 1, (6, 1, 1, 129)).astype(np.float32)
        x[2, 0, 0, 7] = value
        anew, known = FileRunner(path), {}
        for choice in ("raise", "reset"):
            run, found = FileRunner(path, on_nonfinite=choice), []
            for number, frame in enumerate(x):
                if (choice, number) == ("raise", 2):
                    with pytest.raises(jaxrnn.NonFiniteError, match="input 'magnitude'"):
                        run({"magnitude": frame})
                else:
                    found.append(run({"magnitude": frame})["mask"])
            known[choice] = found
            assert run.resets == (choice == "reset")
        without = [anew({"magnitude": each})["mask"] for each in np.delete(x, 2, 0)]
        anew.reset()
        begun = [anew({"magnitude": each})["mask"] for each in x[3:]]
        np.testing.assert_array_equal(known["raise"], without)
        np.testing.assert_array_equal(known["reset"], [*without[:2], np.zeros_like(without[0]), *begun])
    check_refused(jaxrnn.InputError, "on_nonfinite must be one of", FileRunner, path, on_nonfinite="zero")


ODD = (np.nan, -np.nan, np.inf, -np.inf, 1e30, -3e38, 1e-40, 0.5)


@pytest.mark.parametrize("ending", ["onnx", pytest.param("tflite", marks=needs_litert)])
def test_a_guard_is_in_the_file(ending, tmp_path):
    """NaN and infinities are zeros in step, flush and function, and all finite numbers stay."""

    def write(stepper, name, **options):
        path = tmp_path / f"{name}.{ending}"
        if ending == "tflite":
            return export_litert(stepper, None, path, guard=True, **options).step.path
        flush = {} if "example" in options else {"flush": tmp_path / f"{name}.flush.onnx"}
        return jaxrnn.export_onnx(stepper, None, path, guard=True, **flush, **options).step.path

    def late(x):
        return {"y": jnp.pad(x["x"], ((0, 2), (0, 0)))[2:] / 2, "n": x["n"]}

    shapes = {"x": jax.ShapeDtypeStruct((8, 4), jnp.float32), "n": jax.ShapeDtypeStruct((8,), jnp.int32)}
    streamed = jaxrnn.stream(late, shapes, axes=0, pulse=2)
    path = write(streamed, "step")
    report = verify_export(streamed, None, path)
    assert (report.ok, report.flushed) == (True, True)
    x = np.random.default_rng(0).choice(np.array(ODD, np.float32), (9, 4))
    n = np.arange(9, dtype=np.int32)
    run = FileRunner(path, on_nonfinite="raise")
    found = [run({"x": x[k : k + 2], "n": n[k : k + 2]}) for k in range(0, 8, 2)]
    found.append(run.flush({"x": x[8:], "n": n[8:]}))
    clean = np.where(np.isfinite(x), x, 0)
    tiny = np.float32(1e-38)  # engines may take subnormal numbers for zeros
    expected = np.concatenate([clean[2:], np.zeros((2, 4), np.float32)]) / 2
    np.testing.assert_allclose(np.concatenate([each["y"] for each in found])[2:], expected, rtol=0, atol=tiny)
    np.testing.assert_array_equal(np.concatenate([each["n"] for each in found]), n)
    if ending == "onnx":
        facts = dict(ort.InferenceSession(path).get_modelmeta().custom_metadata_map)
        assert facts["jaxrnn.guard"] == "zeros"
        assert "NaN and infinities in the inputs count as zeros." in onnx.load(path).graph.doc_string
        again = jaxrnn.load(path)
        outputs, _ = again.step(again.params, again.init(), {"x": x[:2], "n": n[:2]})
        assert np.isfinite(outputs["y"]).all()
        written = write(lambda x: {"y": x["x"]}, "function", example={"x": shapes["x"]})
        (found,) = ort.InferenceSession(written).run(None, {"x": x[:8]})
        np.testing.assert_array_equal(found, clean[:8])
        with pytest.raises(jaxrnn.InputError, match="guard applies to a step"):
            jaxrnn.export_onnx(jaxrnn.load(PACKAGED), None, path, guard=True)
        small = jaxrnn.export_onnx(streamed, None, tmp_path / "small.onnx", guard=True, dtype="float16")
        half = FileRunner(small.step.path)
        x = np.where(np.abs(clean) > 60_000, np.float32(1), x)  # which the type does not hold
        found = [half({"x": x[k : k + 2], "n": n[k : k + 2]})["y"] for k in range(0, 8, 2)]
        expected = np.where(np.isfinite(x), x, 0)[2:8] / 2
        np.testing.assert_allclose(np.concatenate(found)[2:], expected, atol=1e-3)


@pytest.mark.parametrize("ending", ["onnx", pytest.param("tflite", marks=needs_litert)])
def test_a_guarded_network_hears_zeros(ending, tmp_path):
    model = jaxrnn.load(PACKAGED, static={"h": np.zeros((1, 1, 80), np.float32)})
    streamed, path = model.stream("time"), tmp_path / f"step.{ending}"
    write = jaxrnn.export_onnx if ending == "onnx" else export_litert
    write(streamed, model.params, path, guard=True)
    assert verify_export(streamed, model.params, path).ok
    x = np.random.default_rng(0).uniform(0, 1, (6, 1, 1, 129)).astype(np.float32)
    odd = x.copy()
    odd[2, 0, 0, :4] = np.nan, np.inf, -np.inf, -np.nan
    x[2, 0, 0, :4] = 0
    runs = FileRunner(path), FileRunner(path)
    for given, clean in zip(odd, x, strict=True):
        found, expected = (run({"magnitude": each})["mask"] for run, each in zip(runs, (given, clean), strict=True))
        np.testing.assert_array_equal(found, expected)
