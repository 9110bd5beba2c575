"""A pool of streams: each as if it were alone, to the last bit, and errors that change nothing."""

from __future__ import annotations

import numpy as np
import pytest

import jaxrnn
from jaxrnn import Streams

FRAME = {"input_2": (1, 1, 257)}


@pytest.fixture(scope="module")
def dtln(models):
    return jaxrnn.load(models / "dtln_1.onnx")


def frames(count, seed=0):
    rng = np.random.default_rng(seed)
    return [{"input_2": rng.uniform(0, 1, (1, 1, 257)).astype(np.float32)} for _ in range(count)]


@pytest.mark.parametrize("packed", [False, True])
def test_a_stream_never_depends_on_its_neighbours(dtln, packed):
    params = dtln.pack(dtln.params) if packed else dtln.params
    alone, shared = Streams(dtln, params, 5), Streams(dtln, params, 5)
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
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)
    for name, value in alone.state(one).items():
        np.testing.assert_array_equal(shared.state(here)[name], value)


def test_a_pool_equals_single_steps(dtln):
    pool = Streams(dtln, dtln.params, 3)
    names = [pool.open() for _ in range(3)]
    states = [dtln.init_state() for _ in names]
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


def test_frames_wait_in_line_and_reset_forgets_them(dtln):
    pool = Streams(dtln, dtln.params, 2)
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


def test_a_place_is_fresh_for_the_next(dtln):
    pool = Streams(dtln, dtln.params, 1)
    old = pool.open()
    pool.push(old, frames(1)[0])
    pool.run()
    pool.close(old)
    new = pool.open()
    assert new != old
    assert not pool.state(new)["input_3"].any()


def test_errors_change_nothing(dtln):
    pool = Streams(dtln, dtln.params, 1)
    name = pool.open()
    (frame,) = frames(1)
    pool.push(name, frame)
    pool.run()
    before = pool.state(name)
    with pytest.raises(jaxrnn.StateError, match="all 1 streams are open"):
        pool.open()
    for act in (lambda: pool.push(99, frame), lambda: pool.reset(99), lambda: pool.close(99), lambda: pool.state(99)):
        with pytest.raises(jaxrnn.StateError, match="no open stream 99"):
            act()
    wrong = {"input_2": np.zeros((1, 2, 257), np.float32)}
    for bad in (wrong, {"other": frame["input_2"]}, {}, {"input_2": frame["input_2"].astype(np.float64)}):
        with pytest.raises(jaxrnn.InputError):
            pool.push(name, bad)
    assert pool.run() == {}
    assert len(pool) == 1
    np.testing.assert_array_equal(pool.state(name)["input_3"], before["input_3"])
    with pytest.raises(jaxrnn.InputError, match="capacity"):
        Streams(dtln, dtln.params, 0)


def test_open_lengths_are_fixed_by_the_first_frame(models):
    model = jaxrnn.load(models / "silero_vad_16k_op15.onnx", static={"sr": 16000})
    pool = Streams(model, model.params, 2)
    name = pool.open()
    with pytest.raises(jaxrnn.InputError, match="batch of 1"):
        pool.push(name, {"input": np.zeros((2, 576), np.float32)})
    pool.push(name, {"input": np.zeros((1, 576), np.float32)})
    with pytest.raises(jaxrnn.InputError, match=r"\[1, 576\]"):
        pool.push(name, {"input": np.zeros((1, 600), np.float32)})
    assert pool.run()[name]["output"].shape == (1, 1)
