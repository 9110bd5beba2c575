"""``lax.scan`` at sequence speed: work without a carry runs for all frames at once, and cells run as sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jaxrnn._jax import varying
from jaxrnn.cells.forms import in_chunks, is_plain
from jaxrnn.jaxprs.recognition import RecognisedCell, schedule_of_cells
from jaxrnn.jaxprs.schedule import Function, Schedule, Step, one_loop

Update = Callable[[Any, Any, Any], Any]


def scan(
    step: Function, params: Any, frames: Any, carry: Any, *, exists: Any = None, masked_update: Update | None = None
) -> tuple[Any, Any]:
    """Scan a step, with the work before and after the carry taken out of the loop.

    The LSTM, GRU and RNN cells in the step, including written-out cells, become sequences. Returns the outputs with
    time as the first axis, and the last carry, equal to the loop of steps up to rounding of batched products.
    """

    def masked(params: Any, frame: tuple[Any, Any], old: Any) -> tuple[Any, Any]:
        outputs, new = step(params, frame[0], old)
        return outputs, new if masked_update is None else masked_update(frame[1], new, old)

    def run(carry: Any, part: tuple[Any, Any]) -> tuple[Any, Any]:
        traced = Step.trace(masked, params, _first(part), carry)
        # Outputs do not matter in frames that do not exist.
        schedule = _with_cells(traced, part, loose=masked_update is not None) or one_loop(traced)
        return _run(schedule, params, part, carry)[::-1]

    params, frames, exists, carry = varying.alike(params, frames, exists, carry)
    last, outputs = in_chunks(run, carry, (frames, exists))
    return outputs, last


def scan_cells(step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, frames: Any) -> tuple[Any, Any]:
    """Evaluate ``lax.scan(step, carry, frames)`` with recurrent cells as sequences, equal up to rounding."""
    return scan_recognised(step, carry, frames) or varying.scan(step, carry, frames)


def scan_recognised(
    step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, frames: Any, *, loose: bool = False
) -> tuple[Any, Any] | None:
    """Evaluate like `scan_cells`; return None without cells, or in plain forms with cells that are not layers."""
    if not jax.tree.leaves(frames):
        return None
    traced = Step.trace(lambda _, frame, carry: step(carry, frame)[::-1], (), _first(frames), carry)
    schedule = _with_cells(traced, frames, loose=loose)
    if schedule is None:
        return None
    if is_plain() and not all(part.is_layer for part in schedule.parts if isinstance(part, RecognisedCell)):
        return None
    return _run(schedule, (), frames, carry)[::-1]


def step_with_layers(step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, frame: Any) -> tuple[Any, Any]:
    """Evaluate ``step(carry, frame)``; in plain forms, its recurrent cells are layers of a single frame."""
    found = scan_recognised(step, carry, jax.tree.map(lambda array: array[None], frame)) if is_plain() else None
    if found is None:
        return step(carry, frame)
    last, outputs = found
    return last, jax.tree.map(lambda array: array[0], outputs)


def _first(frames: Any) -> Any:
    """Return the shapes of a frame."""
    return jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape[1:], array.dtype), frames)


def _with_cells(step: Step, frames: Any, *, loose: bool = False) -> Schedule | None:
    """Return the schedule of a step over frames with its cells as sequences; None without cells."""
    length = jax.tree.leaves(frames)[0].shape[0]
    return None if isinstance(length, int) and length == 0 else schedule_of_cells(step, loose=loose)


def _run(schedule: Schedule, params: Any, frames: Any, carry: Any) -> tuple[Any, Any]:
    """Return the outputs, with time as the first axis, and the last carry."""
    leaves = [jax.tree.leaves(tree) for tree in (params, frames, carry)]
    last, outputs = schedule.run(*leaves)
    return jax.tree.unflatten(schedule.step.structure, [*outputs, *last])
