"""Streams of a great age: positions and lengths stay right when counts pass 2**31, in JAX and in exported files."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import of_tiers
from verifier import run_session, session

import jaxrnn
from jaxrnn.streaming import stream

MONTH = 30 * 24 * 3600 * 16000
TABLE = np.random.default_rng(0).normal(size=(7, 2)).astype(np.float32)


def column(numbers):
    return jnp.asarray(numbers)[:, None]


def far(x):
    return jnp.minimum(jnp.arange(x.shape[0]), 6)


#: By name: a function of frames ``[time, 2]``, and its values at frames i (int64) with the input x.
FUNCTIONS = {
    "position": (lambda x: x + jnp.arange(x.shape[0], dtype=x.dtype)[:, None], lambda x, i: x + i[:, None]),
    "cast position": (
        lambda x: x + column(3 * jnp.arange(x.shape[0]) + 1).astype(x.dtype),
        lambda x, i: x + (3 * i[:, None] + 1),
    ),
    "division": (lambda x: x + column(jnp.arange(x.shape[0]) // 3).astype(x.dtype), lambda x, i: x + i[:, None] // 3),
    "first frames": (
        lambda x: jnp.where(column(jnp.arange(x.shape[0])) < 5, 0 * x, x),
        lambda x, i: np.where(i[:, None] < 5, 0, x),
    ),
    "remainder": (
        lambda x: x * column(jnp.arange(x.shape[0]) % 37).astype(x.dtype),
        lambda x, i: x * (i[:, None] % 37),
    ),
    "remainders": (
        lambda x: x * (column(jnp.arange(x.shape[0])) % jnp.array([11, 13])).astype(x.dtype),
        lambda x, i: x * (i[:, None] % [11, 13]),
    ),
    "remainder of a division": (
        lambda x: x * column(jnp.arange(x.shape[0]) // 3 % 11).astype(x.dtype),
        lambda x, i: x * (i[:, None] // 3 % 11),
    ),
    "table": (lambda x: x + jnp.asarray(TABLE)[far(x)], lambda x, i: x + TABLE[np.minimum(i, 6)]),
    "32 bits": (
        lambda x: x + column(jnp.arange(x.shape[0]).astype(jnp.int32) % 37 + jnp.int32(5)).astype(x.dtype),
        lambda x, i: x + i[:, None] % 37 + 5,
    ),
    "there and back": (
        lambda x: x + column(jnp.arange(x.shape[0]).astype(jnp.int32)).astype(x.dtype),
        lambda x, i: x + i[:, None],
    ),
    "unsigned": (lambda x: jnp.arange(x.shape[0], dtype=jnp.uint32) * 2, lambda x, i: (2 * i).astype(np.uint32)),
    "narrow": (lambda x: jnp.arange(x.shape[0]).astype(jnp.int8), lambda x, i: i.astype(np.int8)),
    "any but the first": (
        lambda x: x * column(jnp.arange(x.shape[0])).astype(bool).astype(x.dtype),
        lambda x, i: x * (i[:, None] > 0),
    ),
    "half precision": (lambda x: jnp.arange(x.shape[0]).astype(jnp.bfloat16), lambda x, i: i.astype(jnp.bfloat16)),
    "hash": (
        lambda x: (jnp.arange(x.shape[0], dtype=jnp.uint32) * np.uint32(2654435761)) >> 7,
        lambda x, i: (i.astype(np.uint32) * np.uint32(2654435761)) >> 7,
    ),
    "delayed": (
        lambda x: jnp.pad(x, ((0, 2), (0, 0)))[2:] + column(jnp.arange(x.shape[0])).astype(x.dtype),
        lambda x, i: np.roll(x, -2, 0) + i[:, None],
    ),
    "cut at the end": (
        lambda x: x[:-3] + column(jnp.arange(x.shape[0])[:-3]).astype(x.dtype),
        lambda x, i: x + i[:, None],
    ),
    "at least 1": (
        lambda x: x / column(jnp.maximum(jnp.arange(x.shape[0]), 1)).astype(x.dtype),
        lambda x, i: x / np.maximum(i[:, None], 1),
    ),
    "clipped below": (
        lambda x: x + column(jnp.clip(jnp.arange(x.shape[0]) - 5, 0)).astype(x.dtype),
        lambda x, i: x + np.maximum(i[:, None] - 5, 0),
    ),
    "chosen": (
        lambda x: (
            x + jnp.where(x > 0, column(jnp.arange(x.shape[0])), column(jnp.arange(x.shape[0]) + 9)).astype(x.dtype)
        ),
        lambda x, i: x + np.where(x > 0, i[:, None], i[:, None] + 9),
    ),
    "distance": (
        lambda x: x + jnp.abs(column(jnp.arange(x.shape[0])) - jnp.arange(2)).astype(x.dtype),
        lambda x, i: x + np.abs(i[:, None] - np.arange(2)),
    ),
    "halved and cut": (
        lambda x: x[:-3] + column((jnp.arange(x.shape[0]) // 2)[:-3]).astype(x.dtype),
        lambda x, i: x + i[:, None] // 2,
    ),
    "every third": (
        lambda x: (x + column(jnp.arange(x.shape[0])).astype(x.dtype))[::3],
        lambda x, i: (x + i[:, None])[i % 3 == 0],
    ),
    "twice as many": (
        lambda x: jnp.repeat(x, 2, 0) + column(jnp.arange(2 * x.shape[0])).astype(x.dtype),
        lambda x, i: np.repeat(x, 2, 0) + np.repeat(2 * i, 2)[:, None] + np.tile([0, 1], len(i))[:, None],
    ),
    "steps of 160": (
        lambda x: jnp.where(column(jnp.arange(x.shape[0]) * 160 < 1000), 0 * x, x),
        lambda x, i: np.where(i[:, None] * 160 < 1000, 0, x),
    ),
}

#: The same for functions whose only result is known at the end; of the number of frames.
AT_END = {
    "length": (lambda x: x[0] * 0 + x.shape[0], lambda frames: frames),
    "square of the length": (lambda x: x[0] * 0 + jnp.square(jnp.float32(x.shape[0])), lambda frames: frames**2),
    "number of elements": (
        lambda x: x[0] * 0 + jnp.asarray(3000 * x.shape[0] + 7).astype(x.dtype),
        lambda frames: 3000 * frames + 7,
    ),
    "windows": (lambda x: x[0] * 0 + (x.shape[0] - 1) // 3, lambda frames: (frames - 1) // 3),
}


def aged(streamed, units):
    """Entries of the state after so many units, for functions that keep counters only."""
    plan = streamed._plan
    entries = {name: np.asarray(value) for name, value in streamed.entries(streamed.init()).items()}
    laps = plan.facts.laps
    done = max(0, -(-(units - laps.limit) // laps.length)) if entries["units"].dtype == np.int32 else 0
    given = {"count": min(units, plan.facts.horizon), "units": units - done * laps.length, "laps": done}
    return {name: np.asarray(given[name], value.dtype) if name in given else value for name, value in entries.items()}


def ages(streamed):
    """Units before the first fall, before the third, and a month of frames at 16 kHz."""
    laps, unit = streamed._plan.facts.laps, streamed._plan.clock.unit
    return laps.limit - 24, laps.limit + 2 * laps.length - 24, MONTH // unit


def streamed_by(name, pulse):
    function = {**FUNCTIONS, **AT_END}[name][0]
    example = {"x": jax.ShapeDtypeStruct((48, 2), np.float32)}
    streamed = stream(lambda inputs: {"y": function(inputs["x"])}, example, axes=0)
    return streamed.with_pulse(pulse * streamed.smallest_pulse)


def check_frames(name, streamed, step):
    """Compare frames with `FUNCTIONS`, across a fall of the count; `step` runs one step on entries of the state."""
    plan, pulse = streamed._plan, streamed.pulse
    unit, (output,) = plan.clock.unit, plan.facts.outputs
    for units in ages(streamed):
        entries, pieces = aged(streamed, units), []
        frames = 48 * unit
        x = np.random.default_rng(1).normal(size=(frames, 2)).astype(np.float32)
        for start in range(0, frames, pulse):
            y, entries = step(entries, x[start : start + pulse])
            pieces.append(np.asarray(y))
        found = np.concatenate(pieces)[output.delay :]
        expected = FUNCTIONS[name][1](x.astype(np.float64), units * unit + np.arange(frames))[: len(found)]
        assert len(found) == len(expected)
        if found.dtype.kind == "f":
            np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-6, err_msg=f"{name} after {units} units")
        else:
            np.testing.assert_array_equal(found, expected, f"{name} after {units} units")


@pytest.mark.parametrize(
    ("name", "pulse"),
    of_tiers(
        [(name, pulse) for name in FUNCTIONS for pulse in (1, 4, 16)], [(name, 4) for name in FUNCTIONS], thorough=()
    ),
)
def test_positions(name, pulse):
    check_positions(name, pulse)


@pytest.mark.parametrize("name", of_tiers(FUNCTIONS, [*FUNCTIONS][::3], []))
def test_positions_of_64_bits(name):
    """Positions that are cast to 32 bits count in laps, too."""
    with jax.enable_x64(True):
        check_positions(name, 4)


def check_positions(name, pulse):
    """Compare frames of jitted steps."""
    streamed = streamed_by(name, pulse)
    run = jax.jit(streamed.step)

    def step(entries, x):
        y, state = run(None, streamed._plan.layout.pack(entries), {"x": x})
        return y["y"], {key: np.asarray(value) for key, value in streamed.entries(state).items()}

    check_frames(name, streamed, step)


@pytest.mark.parametrize(
    ("name", "pulse"),
    of_tiers(
        [(name, pulse) for name in FUNCTIONS if name != "half precision" for pulse in (1, 4, 16)],
        [("cast position", 4), ("first frames", 16), ("remainder", 1)],
        thorough=(),
    ),
)
def test_positions_in_files(tmp_path, name, pulse):
    """In ONNX Runtime."""
    streamed = streamed_by(name, pulse)
    jaxrnn.export_onnx(streamed, None, tmp_path / "step.onnx")
    opened = session(tmp_path / "step.onnx")
    types = {each.name: each.type for each in opened.get_inputs()}

    def step(entries, x):
        kinds = {"tensor(int32)": np.int32, "tensor(float)": np.float32}
        state = {key: np.asarray(value, kinds[types[key]]) for key, value in entries.items()}
        given = run_session(opened, {"x": x, **state} if "x" in types else state)
        return given["y"], {key: given[f"{key}_next"] for key in state}

    check_frames(name, streamed, step)


@pytest.mark.parametrize("name", AT_END)
def test_lengths(name):
    streamed = streamed_by(name, 4)
    for units in ages(streamed):
        state = streamed._plan.layout.pack(aged(streamed, units))
        for _ in range(8):
            _, state = streamed.step(None, state, {"x": np.zeros((streamed.pulse, 2), np.float32)})
        found = streamed.flush(None, state, {"x": np.zeros((3, 2), np.float32)}, 2).outputs["y"]
        expected = AT_END[name][1](units * streamed.smallest_pulse + 8 * streamed.pulse + 2)
        np.testing.assert_allclose(found, np.float64(expected), rtol=1e-6)
