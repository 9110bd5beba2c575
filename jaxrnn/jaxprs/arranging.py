"""Arranging parts into the schedule of a step: what else is to be computed goes in batches between them."""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterable, Sequence

from jax.extend.core import JaxprEqn, Var

from jaxrnn.jaxprs.equations import variables
from jaxrnn.jaxprs.schedule import BatchedEquations, Loop, Part, Schedule
from jaxrnn.jaxprs.slices import dependents, made_by, needed, read_by
from jaxrnn.jaxprs.step import Step, is_repeated


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
    return _Arrangement(step, parts).schedule(final)


class _Arrangement:
    """Where each variable of a step is computed: level k is what is known after k parts."""

    def __init__(self, step: Step, parts: Sequence[Part]):
        self.step, self.parts = step, parts
        #: The part that gives a variable.
        self.giver = {variable: part for part in parts for variable in part.gives}
        self.level: dict[Var, int] = collections.defaultdict(lambda: len(parts) + 1)
        self.level.update({variable: number for number, part in enumerate(parts, 1) for variable in part.gives})
        self.level.update(dict.fromkeys(step.frame, 0))
        self.level.update(dict.fromkeys(step.fixed, -1))
        for equation in step.equations:
            level = max((self.level[variable] for variable in variables(equation.invars)), default=-1)
            for variable in equation.outvars:
                self.level.setdefault(variable, level)

    def schedule(self, final: Sequence[JaxprEqn]) -> Schedule:
        """The parts with batches between them, made backwards, so that each knows what later ones read."""
        step, schedule = self.step, []
        reads = dict.fromkeys(variables(step.outputs))
        fixed = {*reads, *variables(step.next_carry), *read_by(final)}

        def add(part: Part) -> None:
            nonlocal reads
            schedule.append(part)
            reads = dict.fromkeys([*(variable for variable in reads if variable not in part.gives), *part.reads])
            fixed.update(part.reads)

        for number in range(len(self.parts), -1, -1):
            targets = tuple(variable for variable in reads if self._is_computed(number, variable))
            if targets:
                segment = step.segment(targets, functools.partial(self._is_at, number), self._repeats)
                add(BatchedEquations(segment.residuals, targets, segment.equations))
            if number:
                part = self.parts[number - 1]
                add(self._loop(part, reads) if isinstance(part, Loop) else part)
        inputs = {*step.params, *step.closed.jaxpr.constvars}
        once = needed(step.equations, [variable for variable in fixed if self.level[variable] == -1], inputs)
        return Schedule(step, tuple(once), tuple(reversed(schedule)), tuple(final))

    def _is_at(self, number: int, variable: Var) -> bool:
        """Whether a variable is first known after so many parts, and none of them gives it."""
        return self.level[variable] == number and variable not in self.giver

    def _repeats(self, variable: Var) -> bool:
        """Whether the equation that computes a variable may be repeated: a part may know it in another way."""
        return isinstance(self.giver.get(variable), Loop | None)

    def _is_computed(self, number: int, variable: Var) -> bool:
        """Whether a variable that is read belongs to the batch after so many parts."""
        maker = self.step.makers.get(variable)
        if maker is None or self.level[variable] < 0:
            return False
        return self._is_at(number, variable) or (is_repeated(maker) and self._repeats(variable))

    def _loop(self, loop: Loop, reads: Iterable[Var]) -> Loop:
        """A loop that gives no more than what later parts read, and takes residuals for it."""
        possible, core = set(loop.gives), made_by(loop.equations)
        gives = tuple(variable for variable in reads if variable in possible)
        effects = [equation for equation in loop.equations if equation.effects]
        segment = self.step.segment([*loop.next_carry, *gives], core.__contains__, self._repeats, effects)
        residuals = tuple(variable for variable in segment.residuals if variable not in loop.carry)
        return Loop(residuals, gives, loop.carry, loop.next_carry, segment.equations)
