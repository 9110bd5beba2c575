"""A pool of streams: each as if it were alone, to the last bit, and errors that change nothing."""

from __future__ import annotations

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilations import compilations
from jax import lax
from refusals import check_refused
from tiers import of_tiers

import jaxrnn
from jaxrnn import StreamPool
from jaxrnn.steps import ArraySpec, OutputSpec, StateSpec, Stepper, StepSpec, in_batch, nothing_left


@pytest.fixture(scope="module")
def dtln(models):
    return jaxrnn.load(models / "dtln_1.onnx")


def frames(count, seed=0):
    rng = np.random.default_rng(seed)
    return [{"input_2": rng.uniform(0, 1, (1, 1, 257)).astype(np.float32)} for _ in range(count)]


@pytest.mark.thorough
@pytest.mark.parametrize("packed", [False, True])
def test_a_stream_never_depends_on_its_neighbours(dtln, packed):
    params = dtln.pack(dtln.params) if packed else dtln.params
    alone, shared = StreamPool(dtln, params, 5), StreamPool(dtln, params, 5)
    one, here = alone.open(), shared.open()
    neighbours = [shared.open() for _ in range(3)]
    rng = np.random.default_rng(1)
    for step, frame in enumerate(frames(12)):
        alone.push(one, frame)
        shared.push(here, frame)
        for index, neighbour in enumerate(neighbours):
            if rng.random() < 0.5:
                poison = np.full((1, 1, 257), np.nan if index == 0 else 1e20, np.float32)
                shared.push(neighbour, {"input_2": poison})
        if step == 5:
            shared.close(neighbours.pop())
            neighbours.append(shared.open())
        expected, found = alone.run()[one], shared.run()[here]
        jax.tree.map(np.testing.assert_array_equal, found, expected)
    jax.tree.map(np.testing.assert_array_equal, shared.state(here), alone.state(one))


def test_a_pool_equals_single_steps(dtln):
    pool = StreamPool(dtln, dtln.params, 3)
    names = [pool.open() for _ in range(3)]
    states = [dtln.init() for _ in names]
    for step in range(4):
        given = frames(3, seed=step)
        for name, frame in zip(names, given, strict=True):
            if (step + name) % 3:  # not every stream has input every time
                pool.push(name, frame)
        results = pool.run()
        assert set(results) == {name for name in names if (step + name) % 3}
        for index, name in enumerate(names):
            if name in results:
                outputs, states[index] = dtln.step(dtln.params, states[index], given[index])
                np.testing.assert_allclose(results[name]["activation_2"], outputs["activation_2"], atol=1e-5)
            np.testing.assert_allclose(pool.state(name)["input_3"], states[index]["input_3"], atol=1e-5)


@pytest.mark.thorough
def test_frames_wait_in_line_and_reset_forgets_them(dtln):
    pool = StreamPool(dtln, dtln.params, 2)
    name = pool.open()
    first, second = frames(2)
    pool.push(name, first)
    pool.push(name, second)
    assert len(pool.run()) == len(pool.run()) == 1
    assert pool.run() == {}
    assert pool.state(name)["input_3"].any()
    pool.push(name, first)
    pool.reset(name)
    assert pool.run() == {}
    assert not pool.state(name)["input_3"].any()


@pytest.mark.thorough
def test_a_place_is_fresh_for_the_next(dtln):
    pool = StreamPool(dtln, dtln.params, 1)
    old = pool.open()
    pool.push(old, frames(1)[0])
    pool.run()
    pool.close(old)
    new = pool.open()
    assert new != old
    assert not pool.state(new)["input_3"].any()


def test_errors_change_nothing(dtln):
    pool = StreamPool(dtln, dtln.params, 1)
    name = pool.open()
    (frame,) = frames(1)
    pool.push(name, frame)
    pool.run()
    before = pool.state(name)
    check_refused(jaxrnn.StateError, "all 1 streams are open", pool.open)
    for act in (lambda: pool.push(99, frame), lambda: pool.reset(99), lambda: pool.close(99), lambda: pool.state(99)):
        check_refused(jaxrnn.StateError, "stream 99 is not open", act)
    for other in (0.0, False, [0], np.array(0), None):  # which Python takes for 0, or cannot look up
        check_refused(jaxrnn.StateError, r"is not open; open streams: 0", pool.state, other)
    with pytest.raises(jaxrnn.InputError, match=r"stepper\.step"):
        jax.jit(lambda x: pool.push(name, {"input_2": x}))(frame["input_2"])
    wrong = {"input_2": np.zeros((1, 2, 257), np.float32)}
    for bad in (wrong, {"other": frame["input_2"]}, {}, {"input_2": frame["input_2"].astype(np.float64)}):
        with pytest.raises(jaxrnn.InputError):
            pool.push(name, bad)
    assert pool.run() == {}
    assert len(pool) == 1
    np.testing.assert_array_equal(pool.state(name)["input_3"], before["input_3"])


def test_a_step_that_fails_while_it_runs_changes_nothing():
    # JAX raises the second when the program was called before.
    fails, failures = [False], (jax.errors.JaxRuntimeError, ValueError)

    class Failing(Stepper):
        spec = StepSpec(
            "failing",
            inputs=(ArraySpec("x", np.dtype("float32"), (2,)),),
            outputs=(OutputSpec("y", np.dtype("float32"), (2,)),),
            state=(StateSpec("sum", np.dtype("float32"), (2,)),),
        )

        def init(self, batch=None, *, params=None, constants=None):
            return in_batch(self.spec, {"sum": jnp.zeros(2)}, batch)

        def step(self, params, state, inputs):
            def read(x):
                if fails[0]:
                    raise OSError("the sensor is off")
                return x

            x = jax.pure_callback(read, inputs["x"], inputs["x"], vmap_method="expand_dims")
            return {"y": state["sum"] + x}, {"sum": state["sum"] + x}

        def flush(self, params, state, tail=None, valid=None):
            return nothing_left(self.spec, tail, valid)

    pool, frame = StreamPool(Failing(), None, 2), {"x": np.ones(2, np.float32)}
    first, second = pool.open(), pool.open()
    for number in (1, 2):
        pool.push(first, frame)
        pool.push(second, frame)
        fails[0] = True
        check_refused(failures, "the sensor is off", pool.run)
        assert pool.state(first)["sum"].tolist() == [number - 1] * 2
        fails[0] = False
        outputs = pool.run()
        assert [outputs[stream]["y"].tolist() for stream in (first, second)] == [[number] * 2] * 2
    assert pool.run() == {}
    # An interrupt at the end of a run undoes the run, and meanwhile the next run of another thread may have failed.
    for _ in range(2):
        pool.push(first, frame)
    before = pool._live.value
    pool.run()
    fails[0] = True
    check_refused(failures, "the sensor is off", pool.run)
    fails[0] = False
    pool._live.value = before
    assert [pool.run()[first]["y"].tolist() for _ in range(2)] == [[3] * 2, [4] * 2]


@pytest.mark.parametrize("capacity", [0, -1, True, 2.0, "2", None, np.float32(2)])
def test_a_capacity_is_a_positive_integer(dtln, capacity):
    words = r"capacity, the largest number of open streams, must be a whole number from 1 on"
    check_refused(jaxrnn.InputError, words, StreamPool, dtln, dtln.params, capacity)


@pytest.mark.parametrize("make", [jaxrnn.Runner, lambda function, params: StreamPool(function, params, np.int32(2))])
def test_parameters_are_checked_before_anything_runs(dtln, make):
    params = dict(dtln.params)
    name, array = next(iter(params.items()))
    wrong = [
        ({key: value for key, value in params.items() if key != name}, "missing"),
        ({**params, "more": array}, "no parameter 'more'"),
        ({**params, name: array[1:]}, "must be float32"),
        ({**params, name: 1.0}, "must be float32"),
        ([array], "must be a dict"),
    ]
    for bad, said in wrong:
        check_refused(jaxrnn.InputError, said, make, dtln, bad)
    with pytest.raises(jaxrnn.InputError, match=r"a model, a streamed function, .* not function, which has no spec"):
        make(lambda x: x, params)
    assert make(dtln, params) is not None


@pytest.mark.thorough
def test_parameters_of_a_network_are_exchanged(dtln):
    other = {name: array * 1.25 for name, array in dtln.params.items()}
    run, pool = jaxrnn.Runner(dtln), StreamPool(dtln, None, 2)
    stream, step, state = pool.open(), jax.jit(dtln.step), dtln.init()
    for params, frame in zip((dtln.params, other, dtln.pack(dtln.params)), frames(3), strict=True):
        run.params = pool.params = params
        assert run.params is pool.params is params
        pool.push(stream, frame)
        outputs, state = step(params, state, frame)
        for found in (run(frame), pool.run()[stream]):
            np.testing.assert_allclose(found["activation_2"], outputs["activation_2"], atol=1e-5)
        for found in (run.state, pool.state(stream)):
            np.testing.assert_allclose(found["input_3"], state["input_3"], atol=1e-5)


class Gain(Stepper):
    """The sum of all frames from a parameter on, and the sum times a parameter."""

    spec = StepSpec(
        "gain",
        inputs=(ArraySpec("x", np.dtype("float32"), (2,)),),
        outputs=(OutputSpec("y", np.dtype("float32"), (2,)),),
        state=(StateSpec("sum", np.dtype("float32"), ("n",)),),
    )

    def init(self, batch=None, *, params=None, constants=None):
        if not isinstance(params, dict):
            raise jaxrnn.InputError("params must be a dict")
        return {"sum": params["start"]}

    def step(self, params, state, inputs):
        after = state["sum"] + inputs["x"]
        return {"y": after * params["gain"]}, {"sum": after}

    def flush(self, params, state, tail=None, valid=None):
        return nothing_left(self.spec, tail, valid)


def test_parameters_are_exchanged_and_the_state_stays():
    """After a reset, and for a stream that has not run, the first state is that of the new parameters."""
    params = [{"start": jnp.full(2, 10.0 * n), "gain": jnp.float32(n)} for n in range(4)]
    frame, run, pool = {"x": np.ones(2, np.float32)}, jaxrnn.Runner(Gain(), params[1]), StreamPool(Gain(), params[1], 2)
    stream = pool.open()

    def step():
        pool.push(stream, frame)
        (found,) = {run(frame)["y"][0], pool.run()[stream]["y"][0]}
        return found

    assert step() == 11 * 1
    late = pool.open()
    run.params = pool.params = params[2]
    assert run.params is pool.params is params[2]
    assert step() == 12 * 2
    assert pool.state(late)["sum"][0] == 20
    for live in (run, pool):
        check_refused(jaxrnn.InputError, "must be a dict", setattr, live, "params", [1])
        wrong = {**params[3], "start": jnp.zeros(3)}
        check_refused(jaxrnn.StateError, r"'sum' is float32\[2\].* float32\[3\]", setattr, live, "params", wrong)
    assert step() == 13 * 2
    run.params = pool.params = params[3]
    run.reset()
    pool.reset(stream)
    assert step() == 31 * 3


def counting():
    """Each step adds its frame to all that have come."""
    example = {"x": jax.ShapeDtypeStruct((8, 64), jnp.float32)}
    return jaxrnn.stream(lambda x: {"y": jnp.cumsum(x["x"], 0)}, example, axes=0)


def in_threads(*functions):
    """Run functions in threads of their own, and raise the first error of any."""
    with ThreadPoolExecutor(len(functions)) as threads:
        for each in [threads.submit(function) for function in functions]:
            each.result()


@pytest.mark.thorough
def test_threads_take_turns():
    pool, steps, ones = StreamPool(counting(), None, 8), 150, {"x": np.ones((1, 64), np.float32)}
    streams = [pool.open() for _ in range(4)]
    done, results = threading.Event(), {stream: [] for stream in streams}
    for stream in streams:
        for _ in range(steps):
            pool.push(stream, ones)

    def run():
        while found := pool.run():
            for stream, outputs in found.items():
                results[stream].append(outputs["y"][0, 0])
        done.set()

    def look():
        while not done.is_set():
            for stream in streams:
                assert all(np.isfinite(value).all() for value in pool.state(stream).values())

    def come_and_go():
        while not done.is_set():
            other = pool.open()
            pool.reset(other)
            pool.flush(other)
            pool.close(other)

    in_threads(run, run, look, come_and_go)
    for stream in streams:
        assert sorted(results[stream]) == list(range(1, steps + 1))


def test_threads_share_a_runner():
    runner, ones = jaxrnn.Runner(counting(), None), {"x": np.ones((1, 64), np.float32)}
    results = []

    def run():
        results.extend(runner(ones)["y"][0, 0] for _ in range(150))

    in_threads(run, run, run)
    assert sorted(results) == list(range(1, 451))


def test_open_lengths_are_fixed_by_the_first_frame(models):
    model = jaxrnn.load(models / "silero_vad_16k_op15.onnx", static={"sr": 16000})
    pool = StreamPool(model, model.params, 2)
    name = pool.open()
    with pytest.raises(jaxrnn.InputError, match=r"float32\[2, 576\]: axis 0 must be 1"):
        pool.push(name, {"input": np.zeros((2, 576), np.float32)})
    pool.push(name, {"input": np.zeros((1, 576), np.float32)})
    check_refused(jaxrnn.InputError, r"\[1, 576\]", pool.push, name, {"input": np.zeros((1, 600), np.float32)})
    assert pool.run()[name]["output"].shape == (1, 1)


def test_a_model_in_steps_keeps_nothing_back(dtln):
    pool = StreamPool(dtln, dtln.params, 2)
    name = pool.open()
    pool.push(name, frames(1)[0])
    check_refused(jaxrnn.StateError, r"1 frame.* wait", pool.flush, name)
    pool.run()
    check_refused(jaxrnn.InputError, "no tail", pool.flush, name, frames(1)[0])
    assert pool.state(name)["input_3"].any()
    assert pool.flush(name) == {}
    assert not pool.state(name)["input_3"].any()
    check_refused(jaxrnn.InputError, "has no constant inputs", pool.open, constants={"input_2": np.zeros(3)})


class Case:
    """A model in pulses: recordings for it, and the time axes of its inputs and outputs."""

    def __init__(self, folder, name, pulse, outputs):
        self.model = jaxrnn.load(folder / f"{name}.onnx")
        self.streamed = self.model.stream(pulse=pulse)
        self.pulse, self.outputs = pulse, outputs
        self.axes = {info.name: info.shape.index("S") for info in self.model.inputs}

    def pool(self, capacity):
        return StreamPool(self.streamed, self.model.params, capacity)

    def recording(self, length, seed=0):
        rng = np.random.default_rng(seed)
        shapes = {info.name: [length if d == "S" else d for d in info.shape] for info in self.model.inputs}
        return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}

    def cut(self, recording, begin, end):
        return {
            name: array[(slice(None),) * self.axes[name] + (slice(begin, end),)] for name, array in recording.items()
        }

    def pulses(self, recording, length):
        return [self.cut(recording, i, i + self.pulse) for i in range(0, length // self.pulse * self.pulse, self.pulse)]

    def tail(self, recording, length):
        rest = length % self.pulse
        return (self.cut(recording, length - rest, length), rest) if rest else (None, 0)

    def joined(self, pieces):
        """What run and flush gave, without the delay."""
        return {
            name: np.concatenate([piece[name] for piece in pieces], axis)[
                (slice(None),) * axis + (slice(self.streamed.delay[name], None),)
            ]
            for name, axis in self.outputs.items()
        }


PULSED = {
    "keyword_net": (2, {"logits": 2}),
    "wave_net": (64, {"clean": 2}),
}


@pytest.fixture(scope="module", params=of_tiers(PULSED, ("wave_net",), ()))
def case(request, models):
    return Case(models, request.param, *PULSED[request.param])


@pytest.mark.thorough
def test_pulses_of_a_pool_give_what_the_model_gives_for_whole_recordings(case):
    pool = case.pool(3)
    lengths = [4 * case.pulse, 5 * case.pulse + case.pulse // 2, 7 * case.pulse + 1]
    recordings = [case.recording(length, seed) for seed, length in enumerate(lengths)]
    names = [pool.open() for _ in lengths]
    pieces = {name: [] for name in names}
    for name, recording, length in zip(names, recordings, lengths, strict=True):
        for pulse in case.pulses(recording, length):
            pool.push(name, pulse)
    while results := pool.run():
        for name, outputs in results.items():
            pieces[name].append(outputs)
    for name, recording, length in zip(names, recordings, lengths, strict=True):
        pieces[name].append(pool.flush(name, *case.tail(recording, length)))
        expected = case.model(recording)
        for output, value in case.joined(pieces[name]).items():
            assert value.shape == expected[output].shape
            np.testing.assert_allclose(value, expected[output], atol=1e-5, rtol=1e-5)


@pytest.mark.thorough
def test_a_stream_in_pulses_never_depends_on_its_neighbours(case):
    alone, shared = case.pool(5), case.pool(5)
    neighbours = [shared.open() for _ in range(3)]
    one, here = alone.open(), shared.open()
    length = 9 * case.pulse + case.pulse // 2
    recording = case.recording(length)
    poison = {name: np.full_like(array, np.nan) for name, array in case.cut(recording, 0, case.pulse).items()}
    loud = {name: np.full_like(array, 1e20) for name, array in poison.items()}
    for step, pulse in enumerate(case.pulses(recording, length)):
        alone.push(one, pulse)
        shared.push(here, pulse)
        for index, neighbour in enumerate(neighbours):
            if (step + index) % 2:
                shared.push(neighbour, loud if index else poison)
        expected, found = alone.run()[one], shared.run()[here]
        jax.tree.map(np.testing.assert_array_equal, found, expected)
        if step == 4:
            shared.close(neighbours.pop())
            neighbours.append(shared.open())
        if step in (3, 6):
            shared.flush(neighbours[0], poison, case.pulse // 2)
            shared.reset(neighbours[1])
    jax.tree.map(np.testing.assert_array_equal, shared.state(here), alone.state(one))
    tail = case.tail(recording, length)
    expected, found = alone.flush(one, *tail), shared.flush(here, *tail)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.thorough
def test_a_flush_leaves_other_streams_alone_and_its_own_fresh(case):
    pool = case.pool(2)
    ended, other = pool.open(), pool.open()
    fresh = pool.state(ended)
    recording = case.recording(2 * case.pulse)
    given = []
    for _ in range(2):  # the second recording gives what the first gave
        pieces = []
        for pulse in case.pulses(recording, 2 * case.pulse):
            pool.push(ended, pulse)
            if not given:
                pool.push(other, pulse)
            pieces.append(pool.run()[ended])
        before = pool.state(other)
        given.append([*pieces, pool.flush(ended)])
        jax.tree.map(np.testing.assert_array_equal, pool.state(other), before)
        jax.tree.map(np.testing.assert_array_equal, pool.state(ended), fresh)
    for first, second in zip(*given, strict=True):
        jax.tree.map(np.testing.assert_array_equal, second, first)


@pytest.mark.thorough
def test_errors_of_pulses_change_nothing(models):
    case = Case(models, "keyword_net", 4, {"logits": 2})
    pool = case.pool(1)
    name = pool.open()
    recording = case.recording(8)
    pool.push(name, case.cut(recording, 0, 4))
    pool.run()
    before = pool.state(name)
    pulse = case.cut(recording, 0, 4)["feats"]
    bad = [np.concatenate([pulse, pulse], 2), pulse.astype(np.float64), pulse[0]]
    for value in (np.concatenate([pulse, pulse], 1), *bad[1:]):
        check_refused(jaxrnn.InputError, "feats", pool.push, name, {"feats": value})
    check_refused(jaxrnn.InputError, "no input 'other'", pool.push, name, {"other": pulse})
    assert pool.run() == {}
    short = {"feats": pulse[:, :, :2]}
    wrong = [
        (({"feats": bad[0]}, 2), "at most the frames of a pulse"),
        (({"feats": bad[1]}, 2), "got float64"),
        (({"other": pulse}, 2), "no input 'other'"),
        ((pulse, 2), "dict of arrays by name"),
        ((short, 3), "from 0 to the 2 frame"),
        ((short, -1), "from 0 to the 2 frame"),
        ((None, 1), "from 0 to the 0 frame"),
        ((short, 1.0), "from 0 to the 2 frame"),
    ]
    for arguments, said in wrong:
        check_refused(jaxrnn.InputError, said, pool.flush, name, *arguments)
    pool.push(name, {"feats": pulse})
    check_refused(jaxrnn.StateError, r"1 frame.* wait", pool.flush, name)
    waiting = {"jaxrnn.waiting/feats": pulse[None]}
    jax.tree.map(np.testing.assert_array_equal, pool.state(name), {**before, **waiting})
    check_refused(jaxrnn.StateError, "stream 99 is not open", pool.flush, 99)


def recurrent(params, x):
    """A recurrence that starts from a parameter and a constant input, a look-ahead, and what is known at the end."""

    def step(carry, frame):
        carry = jnp.tanh(params["decay"] * carry + frame)
        return carry, carry

    last, hidden = lax.scan(step, params["start"] + x["offset"], x["x"])
    later = jnp.pad(x["x"], [(0, 2), (0, 0)])[2:]
    return {"h": hidden, "ahead": later - x["x"], "last": last, "mean": jnp.mean(x["x"], 0)}


def recurrent_streamed(pulse=2):
    params = {"decay": jnp.full(3, 0.5), "start": jnp.array([0.1, -0.2, 0.3])}
    example = {"x": jax.ShapeDtypeStruct((10, 3), jnp.float32), "offset": jax.ShapeDtypeStruct((3,), jnp.float32)}
    streamed = jaxrnn.stream(recurrent, example, axes={"x": 0, "offset": None}, params=params, pulse=pulse)
    return streamed, params


def test_a_tail_has_the_constant_input_of_the_frames_that_wait():
    streamed, params = recurrent_streamed(pulse=4)
    offset, x = np.ones(3, np.float32), np.ones((3, 3), np.float32)
    pool = StreamPool(streamed, params, 1, warm=False)
    stream = pool.open({"offset": offset})
    pool.push(stream, {"x": x[:2], "offset": offset})
    tail = {"x": x[2:], "offset": 5 * offset}
    check_refused(jaxrnn.InputError, "'offset' is constant in a pulse", pool.flush, stream, tail)
    expected = recurrent(params, {"x": x, "offset": offset})
    found = pool.flush(stream, tail | {"offset": offset})
    np.testing.assert_allclose(found["h"], expected["h"], atol=1e-6)


@pytest.mark.thorough
def test_a_streamed_function_with_held_inputs_and_results_at_the_end():
    streamed, params = recurrent_streamed()
    pool = StreamPool(streamed, params, 2)
    check_refused(jaxrnn.InputError, "constants", pool.open)
    assert len(pool) == 0
    rng = np.random.default_rng(0)
    streams = []
    for length in (7, 4):
        offset = rng.normal(size=3).astype(np.float32)
        streams.append((pool.open({"offset": offset}), offset, rng.normal(size=(length, 3)).astype(np.float32)))
    for name, offset, x in streams:
        pieces = []
        for begin in range(0, len(x) - len(x) % 2, 2):
            pool.push(name, {"x": x[begin : begin + 2], "offset": offset})
            (outputs,) = pool.run().values()
            assert outputs.keys() == {"h", "ahead"}
            pieces.append(outputs)
        check_refused(jaxrnn.InputError, "'offset' is constant in time", pool.flush, name)
        rest = pool.flush(name, {"x": x[len(x) - len(x) % 2 :], "offset": offset}, len(x) % 2)
        expected = recurrent(params, {"x": x, "offset": offset})
        for output in ("h", "ahead"):
            found = np.concatenate([*(piece[output] for piece in pieces), rest[output]])
            np.testing.assert_allclose(found[streamed.delay[output] :], expected[output], atol=1e-6)
        for output in ("last", "mean"):
            np.testing.assert_allclose(rest[output], expected[output], atol=1e-6)
    # A reset, too, begins where this very stream began.
    name, offset, _ = streams[0]
    pool.push(name, {"x": np.ones((2, 3), np.float32), "offset": offset})
    pool.run()
    pool.reset(name)
    found = pool.state(name)
    (carry,) = [value for entry, value in found.items() if value.shape == (3,) and entry.startswith("scan.carry")][:1]
    np.testing.assert_allclose(carry, params["start"] + offset)


def test_other_trees_and_parameters_are_refused():
    array = jax.ShapeDtypeStruct((10, 3), jnp.float32)
    bare = jaxrnn.stream(lambda x: {"y": x * 2.0}, array, axes=0)
    check_refused(jaxrnn.InputError, r"takes.*one dict", StreamPool, bare, None, 1)
    nested = jaxrnn.stream(lambda x: {"y": {"z": x["x"] * 2.0}}, {"x": array}, axes=0)
    check_refused(jaxrnn.InputError, r"gives.*one dict", StreamPool, nested, None, 1)
    streamed, params = recurrent_streamed()
    check_refused(jaxrnn.InputError, "give params", StreamPool, streamed, None, 1)
    with pytest.raises(jaxrnn.InputError, match=r"params\['decay'\] must be float32\[3\], not float32\[2\]"):
        StreamPool(streamed, {**params, "decay": jnp.zeros(2)}, 1)
    check_refused(jaxrnn.InputError, "is missing", StreamPool, streamed, {"decay": params["decay"]}, 1)


def stream_of(function, shape, pulse):
    """A stream from ``x`` to ``y`` along the first axis."""
    example = {"x": jax.ShapeDtypeStruct(shape, np.float32)}
    return jaxrnn.stream(lambda arrays: {"y": function(arrays["x"])}, example, axes=0, pulse=pulse)


def sums(x):
    """Running sums plus frames that come two later."""
    return jnp.cumsum(x) + jnp.pad(x, (0, 2))[2:]


@pytest.mark.parametrize("block", [1, 3, 64, 128, 160, 480])
def test_blocks_of_any_size_give_what_the_function_gives(block):
    """Frames are cut and kept, also while the stream moves to another pool, and the delay of blocks is what is said."""
    streamed = stream_of(sums, (999,), 160)
    sound = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    pool = StreamPool(streamed, None, 2)
    first, late = pool.open(), pool.open()
    found, given, delay = [], 0, streamed.spec.block_delay(block)
    for number, part in enumerate(np.split(sound, range(block, 1000, block))):
        pool.push(first, {"x": part})
        given += len(part)
        while outputs := pool.run():
            found.append(outputs[first]["y"])
        assert len(part) < block or sum(map(len, found)) >= given - delay
        if number == 2:
            state, pool = pool.state(first), StreamPool(streamed, None, 3, warm=False)
            first = pool.open(state=state)
            late = pool.open(state=state)
            pool.push(late, {"x": np.full(1, np.nan, np.float32)})  # in a copy of the frames that wait
            pool.reset(late)
    found.append(pool.flush(first)["y"])
    expected = sums(sound)
    np.testing.assert_allclose(np.concatenate(found)[streamed.spec.outputs[0].delay :], expected, rtol=1e-5, atol=1e-5)


def test_the_tail_follows_the_frames_that_wait():
    streamed = stream_of(jnp.cumsum, (9,), 4)
    sound = np.arange(1, 9, dtype=np.float32)
    pool = StreamPool(streamed, None, 1)
    stream = pool.open()
    pool.push(stream, {"x": sound[:3]})
    check_refused(jaxrnn.InputError, "push the tail, call run", pool.flush, stream, {"x": sound[3:6]})
    assert pool.run() == {}
    copied = copy.copy(pool)
    np.testing.assert_array_equal(pool.flush(stream, {"x": sound[3:6]}, 1)["y"], np.cumsum(sound[:4]))
    copied.push(stream, {"x": sound[3:6]})
    np.testing.assert_array_equal(copied.run()[stream]["y"], np.cumsum(sound[:4]))
    np.testing.assert_array_equal(copied.flush(stream)["y"], np.cumsum(sound[:6])[4:])


def test_many_streams_in_one_array():
    """A row is a push of its own, whole pulses and others; nothing is queued if a row does not fit."""
    streamed = stream_of(lambda x: jnp.cumsum(x, 0), (9, 2), 4)
    pool, single = StreamPool(streamed, None, 5), StreamPool(streamed, None, 5)
    streams = [pool.open() for _ in range(5)]
    assert streams == [single.open() for _ in range(5)]
    rng = np.random.default_rng(0)
    for count, which in ((4, streams), (3, streams[1:4]), (4, streams[::-1]), (9, streams[2:])):
        rows = rng.standard_normal((len(which), count, 2)).astype(np.float32)
        given = rows.copy()
        pool.push_many(which, {"x": given})
        given[:] = np.nan  # was copied
        for stream, row in zip(which, rows, strict=True):
            single.push(stream, {"x": row})
        while expected := single.run():
            jax.tree.map(np.testing.assert_array_equal, pool.run(), expected)
    rows = [rng.standard_normal((4, 2)).tolist() for _ in streams]  # lists, which become float32
    pool.push_many(streams, {"x": rows})
    for stream, row in zip(streams, rows, strict=True):
        single.push(stream, {"x": row})
    jax.tree.map(np.testing.assert_array_equal, pool.run(), single.run())
    before = [pool.state(stream) for stream in streams]
    uneven = {"x": [rows[0], rows[1][:2]]}
    check_refused(jaxrnn.InputError, "input x cannot be made from list", pool.push_many, streams[:2], uneven)
    check_refused(jaxrnn.InputError, "input x cannot be made from list", pool.push, streams[0], {"x": [[1.0], []]})
    check_refused(jaxrnn.InputError, "must be the ids of streams", pool.push_many, streams[0], {"x": rows[:1]})
    traced = jax.jit(lambda x: pool.push_many(streams, {"x": x}))
    check_refused(jaxrnn.InputError, "a value that JAX traces", traced, np.zeros((5, 4, 2), np.float32))
    for which, shape, words in (
        (streams, (4, 4, 2), "there are 5 streams: give a row each"),
        (streams, (5, 4, 3), "x"),
        ([0, 0], (2, 4, 2), "named twice"),
    ):
        error = jaxrnn.StateError if which == [0, 0] else jaxrnn.InputError
        check_refused(error, words, pool.push_many, which, {"x": np.zeros(shape, np.float32)})
    jax.tree.map(np.testing.assert_array_equal, [pool.state(stream) for stream in streams], before)


def test_a_pool_compiles_before_its_streams_need_it(monkeypatch):
    """The run and the flush are compiled when the pool is made, and before it grows; later calls compile nothing."""
    streamed = stream_of(lambda x: jnp.tanh(jnp.cumsum(x)), (9,), 4)
    pool = StreamPool(streamed, None, 2)

    def check_ready():
        with compilations() as compiled:
            for count in range(1, 1 + pool.capacity):  # a stream begins before the first run, and after
                stream = pool.open(state=state if count == pool.capacity else None)
                for each in range(stream - count + 1, stream + 1):
                    pool.push(each, {"x": np.ones(4, np.float32)})
                assert [outputs["y"].shape for outputs in pool.run().values()] == [(4,)] * count
            pool.reset(stream)
            assert pool.flush(stream, {"x": np.ones(1, np.float32)})["y"].shape == (1,)
        assert not compiled

    state = pool.state(pool.open())
    pool.close(0)
    check_ready()
    for stream in (1, 2):
        pool.close(stream)
    pool.grow(3)
    check_ready()
    monkeypatch.setattr(jaxrnn.Streamed, "step", None)  # which a compilation would trace
    unready = StreamPool(streamed, None, 2, warm=False)
    unready.push(unready.open(), {"x": np.ones(4, np.float32)})
    with pytest.raises(TypeError):
        unready.run()


def test_blocks_are_multiples_of_what_recordings_are():
    """A recording in pairs of frames comes in blocks of pairs."""
    example = {"x": jax.ShapeDtypeStruct((8,), np.float32)}
    streamed = jaxrnn.stream(lambda a: {"y": a["x"].reshape(-1, 2).sum(1)}, example, axes=0, multiple=2, pulse=4)
    pool = StreamPool(streamed, None, 1)
    stream = pool.open()
    odd = {"x": np.ones(3, np.float32)}
    check_refused(jaxrnn.InputError, "x got 3 frames, but needs a multiple of 2", pool.push, stream, odd)
    pool.push(stream, {"x": np.ones(6, np.float32)})
    assert pool.run()[stream]["y"].tolist() == [2, 2]
    assert pool.flush(stream)["y"].tolist() == [2]


class Totals(Stepper):
    """Running totals of two inputs, of which one has two columns a frame, plus an input that is constant in a pulse."""

    spec = StepSpec(
        "totals",
        inputs=(
            ArraySpec("x", np.dtype("float32"), (4, 2), 0),
            ArraySpec("z", np.dtype("float32"), (3, 8), 1),
            ArraySpec("level", np.dtype("float32"), ()),
        ),
        outputs=(OutputSpec("y", np.dtype("float32"), (4,), 0),),
        state=(StateSpec("sum", np.dtype("float32"), ()),),
        pulse=4,
    )

    def init(self, batch=None, *, params=None, constants=None):
        return in_batch(self.spec, {"sum": jnp.float32(0)}, batch)

    def step(self, params, state, inputs):
        totals = state["sum"] + jnp.cumsum(inputs["x"].sum(1) + inputs["z"].reshape(3, 4, 2).sum((0, 2)))
        return {"y": totals + inputs["level"]}, {"sum": totals[-1]}

    def flush(self, params, state, tail=None, valid=None):
        return self.step(params, state, tail)[0], {"y": valid}


class Followed:
    """What a stream of `Totals` must give: the frames that wait, and the total of those that have run."""

    def __init__(self):
        self.waiting, self.total = [], 0

    def next(self, count):
        """Return the outputs for the next frames."""
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        found = self.total + np.cumsum([frame for frame, _ in taken])
        self.total = found[-1] if count else self.total
        return np.array([total + level for total, (_, level) in zip(found, taken, strict=True)], np.float32)


@pytest.mark.parametrize("seed", of_tiers(range(12), [0], [1, 2]))
def test_no_frame_is_lost_whatever_is_called(seed):
    """Blocks of any size, single and many, with calls of all kinds between them, and calls that fail or are undone."""
    rng = np.random.default_rng(seed)
    pool, streams, other_level = StreamPool(Totals(), None, 3), {}, {"level": np.float32(-1)}

    def block(followed, count):
        """Return integers, whose sums are exact, and the sums; a level stays until the pulse is full."""
        begun = [level for _, level in followed.waiting[len(followed.waiting) // 4 * 4 :]]
        level = begun[0] if begun else int(rng.integers(9))
        x, z = rng.integers(-9, 9, (count, 2)), rng.integers(-9, 9, (3, 2 * count))
        sums = x.sum(1) + z.reshape(3, count, 2).sum((0, 2))
        queued = []
        for total in sums.tolist():
            if not (len(followed.waiting) + len(queued)) % 4:
                begun = [level]
            queued.append((total, begun[0]))
        return {"x": np.float32(x), "z": np.float32(z), "level": np.array(level, np.float32)}, queued

    def push(most=9):
        stream = rng.choice([*streams])
        arrays, queued = block(streams[stream], int(rng.integers(most + 1)))
        given = {name: array.tolist() for name, array in arrays.items()} if rng.random() < 0.1 and queued else arrays
        pool.push(stream, given)
        arrays["x"][:], streams[stream].waiting[len(streams[stream].waiting) :] = np.nan, queued  # were copied

    def drip():
        """Push single frames, of which a state joins many."""
        for _ in range(20):
            push(most=1)
        for stream in streams:
            pool.state(stream)

    def push_many():
        chosen, count = [*streams], int(rng.integers(10))
        if rng.random() < 0.5:
            chosen = rng.permutation(chosen)[: rng.integers(1, 1 + len(chosen))].tolist()
        blocks, queued = zip(*(block(streams[stream], count) for stream in chosen), strict=True)
        arrays = {name: np.stack([each[name] for each in blocks]) for name in blocks[0]}
        pool.push_many(chosen, arrays)
        arrays["z"][:] = np.nan
        for stream, each in zip(chosen, queued, strict=True):
            streams[stream].waiting += each

    def run():
        results = pool.run()
        assert results.keys() == {stream for stream, each in streams.items() if len(each.waiting) >= 4}
        for stream, outputs in results.items():
            assert outputs["y"].tolist() == streams[stream].next(4).tolist()

    def flush():
        stream = rng.choice([*streams])
        followed = streams[stream]
        while len(followed.waiting) >= 4:
            run()
        arrays, queued = block(followed, int(rng.integers(1, 5 - len(followed.waiting))))
        followed.waiting += queued
        rest = pool.flush(stream, arrays)["y"]
        assert rest.tolist() == followed.next(len(followed.waiting)).tolist()
        streams[stream] = Followed()

    def reset():
        stream = rng.choice([*streams])
        pool.reset(stream)
        streams[stream] = Followed()

    def close():
        stream = rng.choice([*streams])
        pool.close(stream)
        del streams[stream]

    def move():
        """Open a stream, or a copy of another, in a pool that grows when it is full."""
        if len(streams) == pool.capacity:
            close() if pool.capacity == 5 else pool.grow(5)
        if streams and rng.random() < 0.6:
            stream = rng.choice([*streams])
            streams[pool.open(state=pool.state(stream))] = copy.deepcopy(streams[stream])
        else:
            streams[pool.open()] = Followed()

    def copied():
        nonlocal pool
        pool = copy.copy(pool) if rng.random() < 0.5 else pickle.loads(pickle.dumps(pool))

    def fail():
        stream = rng.choice([*streams])
        arrays, _ = block(streams[stream], 3)
        short = {**arrays, "z": arrays["z"][:, :2]}
        many = {name: np.stack([array, array]) for name, array in arrays.items()}
        check_refused(jaxrnn.InputError, "different numbers of frames", pool.push, stream, short)
        check_refused(jaxrnn.StateError, "named twice", pool.push_many, [stream, stream], many)
        if len(streams[stream].waiting) % 4:
            held = {**arrays, **other_level}
            check_refused(jaxrnn.InputError, "wait with another value", pool.push, stream, held)
            rows = {name: np.stack([array]) for name, array in held.items()}
            check_refused(jaxrnn.InputError, "wait with another value", pool.push_many, [stream], rows)

    def undone():
        """An interrupt can undo a call, after other calls have begun; no value is changed in place."""
        before, kept = pool._live.value, copy.deepcopy(streams)
        for _ in range(rng.integers(1, 4)):
            (push, push_many, run, reset)[rng.integers(4)]()
        pool._live.value = before
        streams.update(kept)

    calls = [push, push_many, run] * 6 + [undone] * 3 + [drip, flush, reset, close, move, move, copied, fail, fail]
    for number in range(400):
        call = calls[rng.integers(len(calls))] if streams else move
        if call is not copied or number % 40 < 2:  # which compiles
            call()
    for _ in range(100):
        run()
    assert not any(len(each.waiting) >= 4 for each in streams.values())
