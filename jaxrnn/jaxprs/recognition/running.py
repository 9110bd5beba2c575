"""Running a body that was cut into cells and loops."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Var

from jaxrnn.cells.chunks import in_blocks
from jaxrnn.cells.products import product_type
from jaxrnn.cells.sequence import sequence
from jaxrnn.guards import own_arithmetic
from jaxrnn.jaxprs.equations import Environment, read, run, variables
from jaxrnn.jaxprs.recognition.arrays import elements
from jaxrnn.jaxprs.recognition.frames import Frames, fixed_values
from jaxrnn.jaxprs.recognition.matching import Held, Match
from jaxrnn.jaxprs.recognition.plan import Late, Loop, Plan, Shift
from jaxrnn.jaxprs.recognition.positions import Atom, Elements, shape_of, type_of
from jaxrnn.jaxprs.recognition.weights import Gates


@own_arithmetic()
def run_plan(plan: Plan, params: list[Any], frames: list[Any], carry: list[Any]) -> tuple[list[Any], list[Any]]:
    """The body over all frames.

    Args:
        plan: the body, cut.
        params: leaves of what every step reads.
        frames: leaves with time in front, at least one frame.
        carry: leaves before the first step.

    Returns:
        The last carry, and the outputs with time in front.
    """
    fixed = fixed_values(plan.body, params)

    def block(carry: list[Any], part: list[Any]) -> tuple[list[Any], list[Any]]:
        return _run_block(plan, fixed, part, carry)

    return in_blocks(block, [jnp.asarray(array) for array in carry], frames, _bytes_a_frame(plan))


def _bytes_a_frame(plan: Plan) -> int:
    """Bytes of the gates of one frame, of the cell with most of them."""
    cells = [step for step in plan.steps if isinstance(step, Match)]
    return max(cell.grid.elements.size * cell.cell.gates * type_of(cell.output).itemsize for cell in cells)


def _run_block(plan: Plan, fixed: Environment, frames: list[Any], carry: list[Any]) -> tuple[list[Any], list[Any]]:
    """The last carry and the outputs of some frames."""
    body, length = plan.body, frames[0].shape[0]
    there = Frames(body, fixed, dict(zip(body.frame, frames, strict=True)), length)
    before = dict(zip(body.carry, map(jnp.asarray, carry), strict=True))
    next_of = dict(zip(body.carry, body.next_carry, strict=True))
    last: Environment = {}
    ends: Environment = {}
    for step in plan.steps:
        if isinstance(step, Match):
            ends.update(_run_cell(step, there, before))
        elif isinstance(step, Loop):
            last.update(_run_loop(step, there, before, next_of))
        elif isinstance(step, Late):
            _run_late(step, there, before)
        else:
            last.update(_run_shift(step, there, before, next_of))
    for variable in plan.settled:
        last[variable] = _end(plan, next_of[variable], {**there.fixed, **ends})
    there.compute(body.outputs)
    outputs = []
    for atom in body.outputs:
        value, timed = there.of(atom)
        outputs.append(value if timed else jnp.broadcast_to(jnp.asarray(value), (length, *np.shape(value))))
    return [last[variable] for variable in body.carry], outputs


def _run_cell(found: Match, frames: Frames, before: Environment) -> Environment:
    """The cell over all frames; the variables of its carry behind the last one."""
    gates = Gates(found, frames)
    exists = None
    if found.mask is not None:
        chosen = frames.elements(found.mask.elements)
        chosen = chosen if found.mask.when else ~chosen
        exists = jnp.broadcast_to(chosen, (frames.length, found.grid.elements.shape[0], 1))
    shape = found.grid.elements.shape
    initial = tuple(jnp.broadcast_to(elements(before[held.carry], held.at), shape) for held in found.held)
    final, y = sequence(found.cell, False, product_type(), gates.recurrent(), initial, gates.projected(), exists)
    frames.values[found.output] = _back(y, found.held[0], (frames.length,))
    return {held.new.atom: _back(value, held, ()) for value, held in zip(final, found.held, strict=True)}  # type: ignore[misc]


def _back(value: jax.Array, held: Held, lead: tuple[Any, ...]) -> jax.Array:
    """Elements of a cell as the variable that they are."""
    shape = shape_of(held.new.atom)
    places = np.empty(held.new.at.size, int)
    places[held.new.at.reshape(-1)] = np.arange(held.new.at.size)
    return elements(value, places.reshape(-1, shape[-1] if shape else 1), lead).reshape((*lead, *shape))


def _run_loop(loop: Loop, frames: Frames, before: Environment, next_of: dict[Var, Atom]) -> Environment:
    """The arrays of the carry behind the last frame."""
    frames.compute(loop.given)

    def step(old: list[Any], given: list[Any]) -> tuple[list[Any], list[Any]]:
        environment = frames.fixed | dict(zip((*loop.carries, *loop.given), (*old, *given), strict=True))
        run(loop.core, environment)
        new = [jnp.asarray(read(next_of[carry], environment)) for carry in loop.carries]
        return new, [*old, *(environment[variable] for variable in loop.emitted)]

    start = [before[carry] for carry in loop.carries]
    last, made = lax.scan(step, start, [frames.values[variable] for variable in loop.given], length=frames.length)
    frames.values.update(zip((*loop.carries, *loop.emitted), made, strict=True))
    return dict(zip(loop.carries, last, strict=True))


def _run_shift(shift: Shift, frames: Frames, before: Environment, next_of: dict[Var, Atom]) -> Environment:
    value, timed = frames.of(next_of[shift.carry])
    start = before[shift.carry]
    if not timed:
        value = jnp.broadcast_to(jnp.asarray(value, start.dtype), (frames.length, *start.shape))
    frames.values[shift.carry] = jnp.concatenate([start[None], value[:-1]])
    return {shift.carry: value[-1]}


def _run_late(late: Late, frames: Frames, before: Environment) -> None:
    shape = shape_of(late.variable)
    rows = (-1, shape[-1] if shape else 1)
    start, source = (Elements(choice.atom, choice.at.reshape(rows)) for choice in (late.before, late.source))
    grid = start.at.shape
    assert isinstance(start.atom, Var)
    first = jnp.broadcast_to(elements(before[start.atom], start.at), grid)
    later = jnp.broadcast_to(frames.elements(source), (frames.length, *grid))
    frames.values[late.variable] = jnp.concatenate([first[None], later[:-1]]).reshape((frames.length, *shape))


def _end(plan: Plan, atom: Atom, environment: Environment) -> Any:
    """A value behind the last frame, from those of the cells' carries: what a mask holds back, they hold too."""
    body = plan.body

    def value_of(atom: Atom) -> Any:
        if isinstance(atom, Var) and atom not in environment:
            if atom in plan.carries.updates:
                environment[atom] = value_of(plan.carries.updates[atom])
            else:
                equation = body.maker[atom][0]
                for operand in variables(equation.invars):
                    value_of(operand)
                run([equation], environment)
        return read(atom, environment)

    return value_of(atom)
