"""The schedule of a step over time: in which order its parts run over all frames.

What is fixed, because it depends on parameters alone, is computed once. Then come the parts, each over all frames:

- a `Batch` has no carry, and is computed for all frames at once;
- a `Loop` is a ``lax.scan`` of what its carry needs, and nothing else;
- others, such as recognised cells, see to a part of the carry in a way of their own.

Parts hand their results on as residuals, with time in front. A broadcast is repeated in every part that reads it
rather than handed on.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn, Literal, Var

from jaxrnn.cells.chunks import in_blocks
from jaxrnn.guards import own_arithmetic
from jaxrnn.jaxprs.equations import Atom, Environment, read, run, type_of, variables
from jaxrnn.jaxprs.slices import dependents, made_by, needed, read_by
from jaxrnn.jaxprs.step import Step, is_broadcast


@dataclass
class Values:
    """What is known of all frames while a schedule runs.

    Attributes:
        fixed: values that are the same in every frame.
        stacked: the others, with time in front.
        length: the number of frames.
    """

    fixed: Environment
    stacked: Environment
    length: Any

    def of(self, atom: Atom) -> tuple[Any, bool]:
        """A value, and whether it has time in front."""
        if isinstance(atom, Literal):
            return np.asarray(atom.val, type_of(atom)), False
        return (self.stacked[atom], True) if atom in self.stacked else (self.fixed[atom], False)

    def over_time(self, atom: Atom) -> jax.Array:
        """A value with time in front."""
        value, stacked = self.of(atom)
        return value if stacked else jnp.broadcast_to(value, (self.length, *jnp.shape(value)))


@dataclass(frozen=True)
class Part:
    """A part of a step that runs over all frames.

    Attributes:
        reads: the variables that it reads, of every frame or fixed.
        gives: the variables whose values it can give for every frame.
    """

    reads: tuple[Var, ...]
    gives: tuple[Var, ...]

    @property
    def bytes_a_frame(self) -> int:
        """Bytes that it makes of every frame before its loop, where these are worth keeping in the cache."""
        return 0

    def run(self, values: Values, init: Environment) -> Environment:
        """Run over all frames: adds what it gives to the values.

        Args:
            values: those of all frames.
            init: the carry before the first frame.

        Returns:
            Final values: those of variables after the last frame.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Batch(Part):
    """Equations for all frames at once."""

    equations: tuple[JaxprEqn, ...]

    def run(self, values: Values, init: Environment) -> Environment:
        """As `Part.run`; there is no carry."""
        residuals = [variable for variable in self.reads if variable in values.stacked]

        def one_frame(slices: list[Any]) -> list[Any]:
            environment = values.fixed | dict(zip(residuals, slices, strict=True))
            run(self.equations, environment)
            return [environment[variable] for variable in self.gives]

        ys = jax.vmap(one_frame)([values.stacked[variable] for variable in residuals])
        values.stacked.update(zip(self.gives, ys, strict=True))
        return {}


@dataclass(frozen=True)
class Loop(Part):
    """Arrays of the carry that depend on each other.

    Attributes:
        carry: the arrays.
        next_carry: what they become.
        equations: what the next carry needs of this one.
    """

    carry: tuple[Var, ...]
    next_carry: tuple[Atom, ...]
    equations: tuple[JaxprEqn, ...]

    def run(self, values: Values, init: Environment) -> Environment:
        """As `Part.run`; the final values are those of the carry."""
        residuals = [variable for variable in self.reads if variable in values.stacked]

        def step(carry: list[Any], slices: list[Any]) -> tuple[list[Any], list[Any]]:
            environment = values.fixed | dict(zip((*self.carry, *residuals), (*carry, *slices), strict=True))
            run(self.equations, environment)
            after = [jnp.asarray(read(atom, environment)) for atom in self.next_carry]
            return after, [environment[variable] for variable in self.gives]

        xs = [values.stacked[variable] for variable in residuals]
        last, ys = lax.scan(step, [init[variable] for variable in self.carry], xs, length=values.length)
        values.stacked.update(zip(self.gives, ys, strict=True))
        return dict(zip(self.carry, last, strict=True))


@dataclass(frozen=True)
class Schedule:
    """A step in parts, in the order in which they run.

    Attributes:
        step: the step.
        fixed: the equations that are computed once.
        parts: the parts.
        final: equations that compute next values of the carry from final values of parts.
    """

    step: Step
    fixed: tuple[JaxprEqn, ...]
    parts: tuple[Part, ...]
    final: tuple[JaxprEqn, ...] = ()

    @own_arithmetic()
    def run(self, params: Sequence[Any], xs: Sequence[Any], init: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The step over all frames.

        Args:
            params: leaves of what every step reads.
            xs: leaves of the frames, with time in front.
            init: leaves of the carry before the first frame.

        Returns:
            The last carry, and the outputs with time in front.
        """
        fixed = self.step.constants() | dict(zip(self.step.params, params, strict=True))
        run(self.fixed, fixed)

        def block(carry: list[Any], frames: list[Any]) -> tuple[list[Any], list[Any]]:
            return self._run_frames(fixed, frames, carry)

        carry = [jnp.asarray(array) for array in init]
        bytes_a_frame = max((part.bytes_a_frame for part in self.parts), default=0)
        return in_blocks(block, carry, list(xs), bytes_a_frame) if bytes_a_frame else block(carry, list(xs))

    def _run_frames(self, fixed: Environment, xs: list[Any], carry: list[Any]) -> tuple[list[Any], list[Any]]:
        step = self.step
        values = Values(fixed, dict(zip(step.frame, xs, strict=True)), xs[0].shape[0])
        init = dict(zip(step.carry, carry, strict=True))
        final: Environment = {}
        for part in self.parts:
            final.update(part.run(values, init))
        environment = {**fixed, **final}
        run(self.final, environment)
        last = [
            final[variable] if variable in final else read(after, environment)
            for variable, after in zip(step.carry, step.next_carry, strict=True)
        ]
        return last, [values.over_time(atom) for atom in step.outputs]


def loop_around(step: Step, carry: Sequence[Var], known: Iterable[Var] = (), *, effects: bool = False) -> Loop:
    """The loop around some arrays of the carry: the equations that depend on them, and that they need.

    It gives all that it could, and reads nothing yet: `arrange` sees to that.

    Args:
        step: the step.
        carry: the arrays.
        known: variables that are computed before the loop.
        effects: side effects belong to it, in order.
    """
    next_of = dict(zip(step.carry, step.next_carry, strict=True))
    after = tuple(next_of[variable] for variable in carry)
    varying = dependents(step.equations, [*carry, *(made_by(step.effects) if effects else ())], set(known))
    inside = [e for e in step.equations if not varying.isdisjoint(e.outvars) or (effects and e.effects)]
    equations = needed(inside, after, effects=effects)
    made = dict.fromkeys(variable for equation in equations for variable in equation.outvars)
    return Loop((), (*carry, *made), tuple(carry), after, tuple(equations))


def plain(step: Step) -> Schedule:
    """The schedule with one loop, around all of the carry and all side effects; with none where there is neither."""
    looped = bool(step.carry or step.effects)
    return arrange(step, [loop_around(step, step.carry, effects=True)] if looped else [])


def arrange(step: Step, parts: Sequence[Part], final: Sequence[JaxprEqn] = ()) -> Schedule:
    """The schedule of parts that see to all of the carry: what else is to be computed goes in batches between them.

    Every equation runs in the first batch that knows its operands, if anything needs it.

    Args:
        step: the step.
        parts: in order; each knows what those before it give, and all that follows from it.
        final: as in `Schedule`.
    """
    # Level k is what is known after k parts; the last one, what never is.
    level: dict[Var, int] = collections.defaultdict(lambda: len(parts) + 1)
    own = {variable: part for part in parts for variable in part.gives}
    level.update({variable: number for number, part in enumerate(parts, 1) for variable in part.gives})
    level.update(dict.fromkeys(step.frame, 0))
    level.update(dict.fromkeys(step.fixed, -1))
    for equation in step.equations:
        at = max((level[variable] for variable in variables(equation.invars)), default=-1)
        for variable in equation.outvars:
            level.setdefault(variable, at)

    def repeats(variable: Var) -> bool:
        return variable not in own or isinstance(own[variable], Loop)

    # Backwards, so that every part knows what later ones read.
    reads = dict.fromkeys(variable for variable in variables(step.outputs))
    fixed = dict.fromkeys([*variables(step.outputs), *read_by(final), *variables(step.next_carry)])
    schedule: list[Part] = []
    for number in range(len(parts), -1, -1):
        batch = _batch(step, number, reads, level, own, repeats)
        if batch is not None:
            schedule.append(batch)
            reads = {v: None for v in reads if v not in batch.gives} | dict.fromkeys(batch.reads)
        if number:
            part = parts[number - 1]
            if isinstance(part, Loop):
                part = _loop(step, part, reads, repeats)
            schedule.append(part)
            reads = {v: None for v in reads if v not in part.gives} | dict.fromkeys(part.reads)
            fixed |= dict.fromkeys(part.reads)
        fixed |= reads
    once = needed(step.equations, [v for v in fixed if level[v] == -1], {*step.params, *step.closed.jaxpr.constvars})
    return Schedule(step, tuple(once), tuple(reversed(schedule)), tuple(final))


def _batch(
    step: Step,
    number: int,
    reads: Iterable[Var],
    level: dict[Var, int],
    own: dict[Var, Part],
    repeats: Callable[[Var], bool],
) -> Batch | None:
    """What is computed for all frames after so many parts; None where that is nothing."""

    def inside(variable: Var) -> bool:
        return level[variable] == number and variable not in own

    def is_target(variable: Var) -> bool:
        maker = step.makers.get(variable)
        if maker is None or level[variable] < 0:
            return False
        return inside(variable) or (is_broadcast(maker) and repeats(variable))

    targets = tuple(filter(is_target, reads))
    stage = step.stage(targets, inside, repeats)
    return Batch(stage.residuals, targets, stage.equations) if targets else None


def _loop(step: Step, loop: Loop, reads: Iterable[Var], repeats: Callable[[Var], bool]) -> Loop:
    """A loop that gives no more than what later parts read, and takes residuals for it."""
    made = set(loop.gives)
    core = made_by(loop.equations)
    gives = tuple(variable for variable in reads if variable in made)
    effects = [equation for equation in loop.equations if equation.effects]
    stage = step.stage([*loop.next_carry, *gives], core.__contains__, repeats, effects)
    residuals = tuple(variable for variable in stage.residuals if variable not in loop.carry)
    return Loop(residuals, gives, loop.carry, loop.next_carry, stage.equations)
