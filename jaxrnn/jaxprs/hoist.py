"""Running a step over time at sequence speed: whatever needs no carry is computed for all frames at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal, Var

from jaxrnn.cells.chunks import in_chunks
from jaxrnn.jaxprs import recognition
from jaxrnn.jaxprs.equations import Environment, trace, variables
from jaxrnn.jaxprs.stages import AFTER, BEFORE, CORE, PACK, Stages, collect, cut, run_stage

Step = Callable[[Any, Any, Any], tuple[Any, Any]]
Keep = Callable[[Any, Any, Any], Any]


def scan(
    step: Step,
    params: Any,
    frames: Any,
    carry: Any,
    *,
    exists: Any = None,
    keep: Keep | None = None,
) -> tuple[Any, Any]:
    """``lax.scan`` of a step, with the part before and the part behind the carry taken out of the loop.

    LSTM, GRU and RNN cells in the step, written out or not, each become a sequence of their own.

    Args:
        step: ``(params, frame, carry) -> (outputs, carry)``, pure.
        params: pytree that every step reads.
        frames: pytree of arrays with time in front.
        carry: pytree before the first step.
        exists: ``bool[time, ...]``, which frames exist.
        keep: ``(exists_t, new, old) -> carry``: what becomes of the carry in a frame that may not exist.

    Returns:
        The outputs with time in front, and the last carry. Equal to the loop of steps up to the rounding of batched
        products.
    """

    def run(carry: Any, part: tuple[Any, Any]) -> tuple[Any, Any]:
        return _scan(step, params, *part, carry, keep)

    last, outputs = in_chunks(run, carry, (frames, exists))
    return outputs, last


def _scan(step: Step, params: Any, frames: Any, exists: Any, carry: Any, keep: Keep | None) -> tuple[Any, Any]:
    """The last carry, and the outputs with time in front."""
    one = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape[1:], array.dtype), (frames, exists))
    stages = cut(step, params, one[0], carry)
    closed = stages.closed if keep is None else _masked(step, params, one, carry, keep)
    leaves = [jax.tree.leaves(tree) for tree in (params, (frames, exists), carry)]
    found = recognition.scan_of(closed, *leaves, loose=keep is not None)
    if found is not None:
        last, outputs = found
        results, final = jax.tree.unflatten(stages.structure, [*outputs, *last])
        return final, results
    constants = run_stage(stages, PACK, dict(zip(stages.params, jax.tree.leaves(params), strict=True)))

    batched = dict(zip(stages.frame, jax.tree.leaves(frames), strict=True))
    batched |= _for_all_frames(stages, BEFORE, constants, batched, (*stages.inputs[CORE], *stages.inputs[AFTER]))
    into_core = [variable for variable in stages.inputs[CORE] if variable in batched]
    out_of_core = [variable for variable in stages.inputs[AFTER] if stages.stage_of[variable] == CORE]
    leaves, carry_structure = jax.tree.flatten(carry)

    def body(old: list[Any], slices: tuple[list[Any], Any]) -> tuple[list[Any], list[Any]]:
        residuals, here = slices
        given = dict(zip((*into_core, *stages.carry), (*residuals, *old), strict=True))
        environment = run_stage(stages, CORE, constants | given)
        new = collect(stages.next_carry, environment)
        if keep is not None:
            new = jax.tree.leaves(keep(here, carry_structure.unflatten(new), carry_structure.unflatten(old)))
        return new, [environment[variable] for variable in out_of_core]

    last, later = lax.scan(body, leaves, ([batched[variable] for variable in into_core], exists))
    batched |= dict(zip(out_of_core, later, strict=True))
    batched |= _for_all_frames(stages, AFTER, constants, batched, variables(stages.outputs))
    length = jax.tree.leaves(frames)[0].shape[0]
    outputs = [
        batched[atom] if atom in batched else jnp.broadcast_to(value, (length, *jnp.shape(value)))
        for atom, value in ((atom, _constant(atom, constants)) for atom in stages.outputs)
    ]
    results, final = jax.tree.unflatten(stages.structure, [*outputs, *last])
    return final, results


def _masked(step: Step, params: Any, frame: Any, carry: Any, keep: Keep) -> ClosedJaxpr:
    """The step with what becomes of its carry in a frame that may not exist."""

    def kept(params: Any, frame: tuple[Any, Any], old: Any) -> tuple[Any, Any]:
        outputs, new = step(params, frame[0], old)
        return outputs, keep(frame[1], new, old)

    return trace(kept, params, frame, carry)[0]


def _for_all_frames(
    stages: Stages, stage: int, constants: Environment, batched: Environment, wanted: Iterable[Var]
) -> Environment:
    """The wanted variables of a stage that lies outside the loop, with time in front."""
    made = [
        variable for variable in dict.fromkeys(wanted) if stages.stage_of[variable] == stage and variable not in batched
    ]
    if not made:
        return {}
    given = [variable for variable in stages.inputs[stage] if variable in batched]

    def one_frame(values: list[Any]) -> list[Any]:
        environment = run_stage(stages, stage, constants | dict(zip(given, values, strict=True)))
        return [environment[variable] for variable in made]

    results = jax.vmap(one_frame)([batched[variable] for variable in given])
    return dict(zip(made, results, strict=True))


def _constant(atom: Var | Literal, constants: Environment) -> Any:
    return atom.val if isinstance(atom, Literal) else constants.get(atom)
