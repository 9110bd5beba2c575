"""Live systems: weights change between two steps, streams move, pools grow, and the delay is dropped."""

from __future__ import annotations

import functools
import io
import json
import pickle
import threading
import time

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from compilations import compilations
from refusals import check_refused
from test_pool import in_threads

import jaxrnn
from jaxrnn.steps import ArraySpec, DropDelay, OutputSpec, StateSpec, StepSpec, in_batch, nothing_left

WIDTH = 3
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def filtered(params, x):
    """Frames of the past times weights, and all frames so far times a weight: no state depends on the weights."""
    padded = jnp.pad(x["x"], ((2, 0), (0, 0)))
    window = jnp.stack([padded[k : k + x["x"].shape[0]] for k in range(3)], 1)
    return {"y": jnp.tanh(jnp.einsum("tkc,kcd->td", window, params["w"])) + params["b"] * jnp.cumsum(x["x"], 0)}


def smoothed(params, x):
    """A carry that depends on the weights, and a look-ahead of two frames."""

    def step(h, frame):
        h = jnp.tanh(frame @ params["w"][0] + h @ params["w"][1])
        return h, h

    _, h = jax.lax.scan(step, jnp.zeros(WIDTH), x["x"])
    padded = jnp.pad(h, ((0, 2), (0, 0)))
    return {"y": h + padded[2:] * params["b"]}


def weights(seed):
    rng = np.random.default_rng(seed)
    return {"w": rng.normal(size=(3, WIDTH, WIDTH)).astype(np.float32), "b": np.array([seed + 1], np.float32)}


@functools.cache
def streamed(function, pulse=2):
    example = {"x": jax.ShapeDtypeStruct((8, WIDTH), jnp.float32)}
    return jaxrnn.stream(function, example, axes=0, params=weights(0), pulse=pulse)


def noise(frames, seed=0):
    return np.random.default_rng(seed).normal(size=(frames, WIDTH)).astype(np.float32)


def pulses(x, pulse=2):
    return [{"x": x[k : k + pulse]} for k in range(0, len(x), pulse)]


def saved(state):
    """Write and read a state as a file."""
    file = io.BytesIO()
    np.savez(file, **state)
    file.seek(0)
    return np.load(file)


@pytest.mark.thorough
def test_weights_change_and_streams_move_while_threads_push():
    """Each of 1,000 steps gives what the weights of that step give for the whole recording."""
    stepper, versions, steps, count = streamed(filtered), [weights(k) for k in range(6)], 250, 4
    recordings = [noise(2 * steps, seed) for seed in range(count + 1)]
    offline = [[np.asarray(stepper.offline(each, {"x": x})["y"]) for each in versions] for x in recordings]
    pools = [jaxrnn.StreamPool(stepper, versions[0], count) for _ in range(2)]
    run = jaxrnn.Runner(stepper, versions[0])
    for pool in pools:  # first calls compile, and so does the first exchange
        state = None
        for _ in range(3):
            stream = pool.open(state=state)
            pool.push(stream, {"x": recordings[0][:2]})
            pool.run()
            state = pool.state(stream)
            pool.close(stream)
    for live in (*pools, run):
        live.params = versions[0]
    turns, owners, found = [threading.Lock() for _ in pools], {}, [[] for _ in recordings]
    done = threading.Event()

    def push(number):
        at, stream = 0, pools[0].open()
        owners[0, stream] = number
        for step, pulse in enumerate(pulses(recordings[number])):
            pools[at].push(stream, pulse)
            if step % 60 == 20 * (number + 1) % 60:  # the outputs of a run belong to a stream before it moves
                with turns[0], turns[1]:
                    state = saved(pools[at].state(stream))
                    pools[at].close(stream)
                    at = 1 - at
                    stream = pools[at].open(state=state)
                    owners[at, stream] = number
            time.sleep(1e-4)

    def collect(at):
        end = time.monotonic() + 100
        while not all(len(each) == steps for each in found[:count]) and time.monotonic() < end:
            with turns[at]:
                for stream, outputs in pools[at].run().items():
                    found[owners[at, stream]].append(outputs["y"])

    def live_run():
        found[count] += [run(pulse)["y"] for pulse in pulses(recordings[count])]

    def exchange():
        for version in versions[1:]:
            time.sleep(0.05)
            for live in (*pools, run):
                live.params = version
        done.set()

    with compilations() as compiled:
        in_threads(
            exchange,
            live_run,
            *(functools.partial(push, k) for k in range(count)),
            *(functools.partial(collect, at) for at in range(2)),
        )
    assert done.is_set()
    assert not compiled
    used = set()
    for parts, references in zip(found, offline, strict=True):
        assert len(parts) == steps
        version = 0
        for step, part in enumerate(parts):
            errors = [np.abs(part - each[2 * step : 2 * step + 2]).max() for each in references]
            assert min(errors) < 1e-3 < sorted(errors)[1]
            assert np.argmin(errors) >= version or parts is not found[count]  # a stream can move to an older pool
            version = int(np.argmin(errors))
            used.add(version)
    assert len(used) > 1


def test_an_exchange_compiles_once_and_is_checked():
    stepper, x = streamed(smoothed), noise(8)
    run, pool = jaxrnn.Runner(stepper, weights(0)), jaxrnn.StreamPool(stepper, weights(0), 2)
    stream, state = pool.open(), stepper.init()

    def step(pulse):
        pool.push(stream, pulse)
        np.testing.assert_allclose(alone := run(pulse)["y"], pool.run()[stream]["y"], rtol=1e-6)
        return alone

    for number, pulse in enumerate(pulses(x)):
        with compilations() as compiled:
            for live in (run, pool):
                live.params = weights(number) if number % 2 else stepper.pack(weights(number))
        assert not compiled or number < 3  # plain and packed parameters, after the first run of the pool
        outputs, state = stepper.step(weights(number), state, pulse)
        np.testing.assert_allclose(step(pulse), outputs["y"], rtol=1e-5, atol=1e-6)
    good = weights(3)
    for live in (run, pool):
        kept = live.params
        for bad in ({"w": good["w"]}, {**good, "b": good["b"].astype(np.int32)}, {**good, "w": good["w"][:2]}, 3):
            check_refused(jaxrnn.InputError, "params", setattr, live, "params", bad)
        assert live.params is kept
    rest = stepper.flush(weights(3), state)
    expected = np.asarray(rest.outputs["y"])[: int(rest.counts["y"])]
    for found in (run.flush(), pool.flush(stream)):
        np.testing.assert_allclose(found["y"], expected, rtol=1e-5, atol=1e-6)


def test_a_stream_moves_between_runners_pools_pulses_and_files(tmp_path):
    x, params = noise(17), weights(0)
    expected = np.asarray(smoothed(params, {"x": x})["y"])
    compiled = tmp_path / "compiled.jaxrnn"
    jaxrnn.save_compiled(streamed(smoothed), compiled, params=params)
    run, pool = jaxrnn.Runner(streamed(smoothed), params), jaxrnn.StreamPool(streamed(smoothed, 4), params, 2)
    drop = DropDelay(streamed(smoothed).spec)
    assert drop.left == {"y": 2}
    assert (drop.delay_ms, DropDelay(streamed(smoothed).spec, 50).delay_ms) == ({"y": None}, {"y": 40.0})
    found = [drop(run({"x": x[k : k + 2]})) for k in (0, 2)]
    assert [len(each["y"]) for each in found] == [0, 2]
    stream = pool.open(state=saved(run.state))
    pool.push(stream, {"x": x[4:8]})
    pool.push(stream, {"x": x[8:12]})
    found.append(drop(pool.run()[stream]))
    check_refused(jaxrnn.StateError, "frames of x wait in the state", setattr, run, "state", pool.state(stream))
    other = jaxrnn.StreamPool(streamed(smoothed, 4), params, 1)
    moved = other.open(state=saved(pool.state(stream)))
    found.append(drop(other.run()[moved]))
    last = jaxrnn.Runner(jaxrnn.load_compiled(compiled))
    last.state = saved(other.state(moved))
    found += [drop(last({"x": x[k : k + 2]})) for k in (12, 14)]
    found.append(drop(last.flush({"x": x[16:]})))
    np.testing.assert_allclose(np.concatenate([each["y"] for each in found]), expected, rtol=1e-5, atol=1e-6)


def test_a_state_of_another_network_is_refused():
    run, pool = jaxrnn.Runner(streamed(smoothed), weights(0)), jaxrnn.StreamPool(streamed(smoothed), weights(0), 1)
    run({"x": noise(2)})
    state, (name, *_) = run.state, [each.name for each in streamed(smoothed).spec.state]
    delayed = jaxrnn.Runner(streamed(filtered), weights(0)).state
    frames = {"jaxrnn.waiting/x": noise(2)[None], "jaxrnn.waiting/other": noise(4).reshape(2, 2, 3)}
    wrong = [
        (3, "must be a dict of arrays"),
        ({**state, "more": np.zeros(2)}, "no state 'more'"),
        ({key: array for key, array in state.items() if key != name}, f"state '{name}' is missing"),
        ({**state, name: state[name].astype(np.float64)}, f"the state '{name}' must be"),
        ({**state, "jaxrnn.network": delayed["jaxrnn.network"]}, "comes from a network other than"),
        (delayed, "has no state"),
        ({**state, **frames}, "differ in number"),
    ]
    for given, words in wrong:
        check_refused(jaxrnn.StateError, words, setattr, run, "state", given)
        with pytest.raises(jaxrnn.StateError, match=words):
            pool.open(state=given)
    jax.tree.map(np.testing.assert_array_equal, run.state, state)
    assert len(pool) == 0
    entries = {key: array for key, array in state.items() if key != "jaxrnn.network"}
    run.state = entries  # such as the state of a pure step
    jax.tree.map(np.testing.assert_array_equal, run.state, state)


def test_a_state_that_went_through_json():
    run, pool = jaxrnn.Runner(streamed(smoothed), weights(0)), jaxrnn.StreamPool(streamed(smoothed), weights(0), 2)
    stream, (first, second, third) = pool.open(), pulses(noise(6))
    pool.push(stream, first)
    pool.run()
    for frame in (second, third):  # which wait
        pool.push(stream, frame)
    stored = json.loads(json.dumps({name: array.tolist() for name, array in pool.state(stream).items()}))
    moved = pool.open(state=stored)
    for name, array in pool.state(stream).items():
        np.testing.assert_array_equal(pool.state(moved)[name], array)
        assert pool.state(moved)[name].dtype == array.dtype
    run.state = {name: value for name, value in stored.items() if not name.startswith("jaxrnn.waiting/")}
    np.testing.assert_array_equal(run(second)["y"], pool.run()[moved]["y"])
    name = streamed(smoothed).spec.state[0].name
    words = f"the state '{name}' cannot be made from list"
    check_refused(jaxrnn.StateError, words, setattr, run, "state", {**stored, name: [[1], []]})


def test_a_state_with_nan_is_accepted_only_on_request():
    def made(**options):
        given = streamed(smoothed), weights(0)
        return jaxrnn.Runner(*given, **options), jaxrnn.StreamPool(*given, 1, **options)

    run, pool = made()
    run({"x": np.full((2, WIDTH), np.nan, np.float32)})
    poisoned = run.state
    words = r"the state '.*' has NaN in \d+ of \d+ elements, .*allow_nan=True"
    check_refused(jaxrnn.StateError, words, setattr, run, "state", poisoned)
    check_refused(jaxrnn.StateError, words, functools.partial(pool.open, state=poisoned))
    for each in (*made(allow_nan=True), *(pickle.loads(pickle.dumps(each)) for each in made(allow_nan=True))):
        if isinstance(each, jaxrnn.Runner):
            each.state = poisoned
            taken = each.state
        else:
            taken = each.state(each.open(state=poisoned))
        jax.tree.map(np.testing.assert_array_equal, taken, poisoned)


class Doubling:
    """A sum in bfloat16 with a wide count, which doubles its frames if a number says so while it is traced."""

    spec = StepSpec(
        "doubling",
        inputs=(ArraySpec("x", BFLOAT16, (2,)),),
        outputs=(OutputSpec("y", BFLOAT16, (2,)),),
        state=(StateSpec("sum", BFLOAT16, (2,)), StateSpec("count", np.dtype("int64"), ())),
    )

    def init(self, batch=None, *, params=None, constants=None):
        return in_batch(self.spec, {"sum": np.zeros(2, BFLOAT16), "count": np.zeros((), np.int64)}, batch)

    def step(self, params, state, inputs):
        after = state["sum"] + (inputs["x"] * 2 if float(params) > 1 else inputs["x"])
        return {"y": after}, {"sum": after, "count": state["count"] + np.int64(1)}

    def flush(self, params, state, tail=None, valid=None):
        return nothing_left(self.spec, tail, valid)


def test_a_stepper_that_needs_numbers_and_types_that_files_lack():
    run, pool = jaxrnn.Runner(Doubling(), np.float32(1)), jaxrnn.StreamPool(Doubling(), np.float32(1), 2)
    stream, frame = pool.open(), {"x": np.ones(2, BFLOAT16)}
    for params, expected in ((np.float32(1), 1), (np.float32(2), 3)):
        run.params = pool.params = params
        pool.push(stream, frame)
        assert run(frame)["y"][0] == pool.run()[stream]["y"][0] == expected
    pool.push(stream, frame)
    other = jaxrnn.StreamPool(Doubling(), np.float32(2), 1)
    moved = other.open(state=saved(pool.state(stream)))
    assert other.run()[moved]["y"][0] == 5
    run.state = saved(other.state(moved))
    assert run(frame)["y"][0] == 7
    assert (run.state["count"], run.state["count"].dtype) == (4, np.int64)
    words = "the state 'count': the value 1.5 does not fit the type int64"
    check_refused(jaxrnn.StateError, words, setattr, run, "state", {"sum": [1, 2], "count": 1.5})
    run.state = {"sum": [1.25, 2], "count": 2**40}
    assert (run.state["sum"].dtype, run.state["count"]) == (BFLOAT16, 2**40)


def test_a_pool_grows():
    x, stepper = noise(12), streamed(smoothed)
    pool, run = jaxrnn.StreamPool(stepper, weights(0), 1), jaxrnn.Runner(stepper, weights(0))
    pool.grow(2)
    first, given = pool.open(), pulses(x)
    late = [first]
    for number, pulse in enumerate(given):
        pool.push(first, pulse)
        if number == 2:
            late.append(pool.open())
            check_refused(jaxrnn.StateError, "all 2 streams are open", pool.open)
            pool.grow(5)
            assert (pool.capacity, len(pool)) == (5, 2)
            late += [pool.open() for _ in range(3)]
            pool.push(late[-1], given[0])
        outputs = pool.run()
        np.testing.assert_allclose(outputs[first]["y"], run(pulse)["y"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(pool.flush(late[-1])["y"], smoothed(weights(0), {"x": x[:2]})["y"], rtol=1e-5, atol=1e-6)
    check_refused(jaxrnn.InputError, "does not shrink to 4", pool.grow, 4)
    check_refused(jaxrnn.InputError, "must be a whole number", pool.grow, 5.5)
