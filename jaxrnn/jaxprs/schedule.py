"""The schedule of a step over time: in which order its parts run over all frames.

What is fixed, because it depends on parameters alone, is computed once. Then come the parts, each over all frames:

- a `BatchedEquations` has no carry, and is computed for all frames at once;
- a `Loop` is a ``lax.scan`` of what its carry needs, and nothing else;
- others, such as recognised cells, see to a part of the carry in a way of their own.

Parts hand their results on as residuals, with time in front. A broadcast is repeated in every part that reads it
rather than handed on.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

from jaxrnn._jax import varying
from jaxrnn._jax.context import own_arithmetic
from jaxrnn.cells.chunks import in_blocks
from jaxrnn.jaxprs.equations import (
    Atom,
    Environment,
    dependents,
    made_by,
    needed,
    read,
    read_by,
    run,
    trace,
    type_of,
    variables,
)
from jaxrnn.jaxprs.primitives import is_platform_index


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
class BatchedEquations(Part):
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

        def step(carry: list[Any], frame: tuple[list[Any], Any]) -> tuple[list[Any], list[Any]]:
            environment = values.fixed | dict(zip((*self.carry, *residuals), (*carry, *frame[0]), strict=True))
            run(self.equations, environment)
            after = [jnp.asarray(read(atom, environment)) for atom in self.next_carry]
            return after, [environment[variable] for variable in self.gives]

        xs = [values.stacked[variable] for variable in residuals]
        # A scan takes a symbolic length from arrays alone.
        ticks = None if xs else jnp.zeros(values.length, bool)
        last, ys = varying.scan(step, [init[variable] for variable in self.carry], (xs, ticks))
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


Function = Callable[[Any, Any, Any], tuple[Any, Any]]


@dataclass(frozen=True)
class Segment:
    """Equations that run together.

    Attributes:
        equations: in order. Those of an earlier segment that `is_repeated` are repeated among them.
        residuals: the variables that they read of earlier segments, or of the inputs.
    """

    equations: tuple[JaxprEqn, ...]
    residuals: tuple[Var, ...]


@dataclass(frozen=True)
class Step:
    """A step ``(params, frame, carry) -> (outputs, carry)`` as a jaxpr without inner calls of jitted functions.

    Attributes:
        closed: the jaxpr.
        params, frame, carry: its inputs.
        outputs, next_carry: its results.
        structure: the tree of the results.
    """

    closed: ClosedJaxpr
    params: tuple[Var, ...]
    frame: tuple[Var, ...]
    carry: tuple[Var, ...]
    outputs: tuple[Atom, ...]
    next_carry: tuple[Atom, ...]
    structure: Any

    @classmethod
    def trace(cls, function: Function, params: Any, frame: Any, carry: Any) -> Step:
        """The step that a function is on arrays like these."""
        closed, structure = trace(function, params, frame, carry)
        invars, outvars = closed.jaxpr.invars, closed.jaxpr.outvars
        first, second, _ = (len(jax.tree.leaves(tree)) for tree in (params, frame, carry))
        of_frame, of_carry = invars[first : first + second], invars[first + second :]
        cut = len(outvars) - len(of_carry)
        results = tuple(outvars[:cut]), tuple(outvars[cut:])
        return cls(closed, tuple(invars[:first]), tuple(of_frame), tuple(of_carry), *results, structure)

    @property
    def equations(self) -> list[JaxprEqn]:
        """All of its equations."""
        return self.closed.jaxpr.eqns

    @functools.cached_property
    def makers(self) -> dict[Var, JaxprEqn]:
        """The equation that computes each variable."""
        return {variable: equation for equation in self.equations for variable in equation.outvars}

    @functools.cached_property
    def effects(self) -> list[JaxprEqn]:
        """The equations with side effects."""
        return [equation for equation in self.equations if equation.effects]

    @functools.cached_property
    def fixed(self) -> frozenset[Var]:
        """The variables that are the same in every frame: they depend on parameters and constants alone."""
        varying = dependents(self.equations, [*self.frame, *self.carry, *made_by(self.effects)])
        jaxpr = self.closed.jaxpr
        return frozenset({*jaxpr.constvars, *self.params, *self.makers} - varying)

    def constants(self) -> Environment:
        """The values that the step closed over."""
        return dict(zip(self.closed.jaxpr.constvars, self.closed.consts, strict=True))

    def segment(
        self,
        targets: Iterable[Atom],
        inside: Callable[[Var], bool],
        repeats: Callable[[Var], bool] = lambda variable: True,
        effects: Iterable[JaxprEqn] = (),
    ) -> Segment:
        """The equations that compute the targets in one segment.

        Args:
            targets: what it is to compute.
            inside: whether a variable is computed in this segment, if it is needed.
            repeats: whether a variable of an earlier segment may be computed again.
            effects: equations that belong to it for their side effects.
        """
        chosen = {id(equation) for equation in effects}
        pending = [*variables(targets), *(v for equation in effects for v in variables(equation.invars))]
        seen: set[Var] = set()
        residuals: list[Var] = []
        while pending:
            variable = pending.pop()
            if variable in seen:
                continue
            seen.add(variable)
            maker = self.makers.get(variable)
            if maker is not None and (inside(variable) or (is_repeated(maker) and repeats(variable))):
                chosen.add(id(maker))
                pending += variables(maker.invars)
            else:
                residuals.append(variable)
        return Segment(tuple(equation for equation in self.equations if id(equation) in chosen), tuple(residuals))

    @functools.cached_property
    def remainder(self) -> Segment:
        """What is left of the step where all that is fixed has been computed."""
        results = (*self.outputs, *self.next_carry)
        return self.segment(results, lambda variable: variable not in self.fixed, effects=self.effects)

    @functools.cached_property
    def folded(self) -> tuple[Var, ...]:
        """The fixed variables that the remainder reads, unchanged parameters among them, but no constants."""
        constants = set(self.closed.jaxpr.constvars)
        return tuple(v for v in self.remainder.residuals if v in self.fixed and v not in constants)

    @functools.cached_property
    def folding(self) -> list[JaxprEqn]:
        """The equations that compute the folded variables of parameters and constants."""
        return needed(self.equations, self.folded, {*self.params, *self.closed.jaxpr.constvars})

    def results(self, environment: Environment) -> Any:
        """What the step returned, from an environment that holds all of it."""
        leaves = [read(atom, environment) for atom in (*self.outputs, *self.next_carry)]
        return jax.tree.unflatten(self.structure, leaves)


def is_repeated(equation: JaxprEqn) -> bool:
    """Whether an equation is computed wherever it is read, and never handed on.

    A broadcast costs nothing and makes a small value large. The platform is known where a program is lowered, and
    nowhere before.
    """
    return equation.primitive.name in ("broadcast_in_dim", "iota") or is_platform_index(equation)
