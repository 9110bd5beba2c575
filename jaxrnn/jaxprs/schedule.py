"""The schedule of a step over time: the parts of the step, in the order in which they run over all frames.

Fixed values, which depend only on parameters, are computed once: `Packed` parameters contain them. Then come the parts,
each over all frames:

- a `BatchedEquations` has no carry, and is computed for all frames at once;
- a `Loop` is a ``lax.scan`` with only the work that its carry needs;
- other parts, such as recognised cells, compute their part of the carry in their own way.

Parts pass results on as residuals, with time as the first axis. A broadcast is repeated in each part that reads it.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

from jaxrnn._files.messages import short_repr
from jaxrnn._jax import varying
from jaxrnn._jax.context import compute_type, own_arithmetic
from jaxrnn.cells.forms import in_blocks
from jaxrnn.errors import InputError
from jaxrnn.jaxprs.equations import (
    Atom,
    Environment,
    dependents,
    made_by,
    needed,
    read,
    read_by,
    run,
    shape_of,
    trace_inlined,
    type_of,
    variables,
)
from jaxrnn.jaxprs.numbering import fingerprint
from jaxrnn.jaxprs.primitives import entry_of


@dataclass
class Values:
    """The known values of all frames while a schedule runs."""

    fixed: Environment  # values that are equal in all frames
    stacked: Environment  # other values, with time as the first axis
    length: Any  # the number of frames

    def of(self, atom: Atom) -> tuple[Any, bool]:
        """Return a value, and whether time is its first axis."""
        if isinstance(atom, Literal):
            return np.asarray(atom.val, type_of(atom)), False
        return (self.stacked[atom], True) if atom in self.stacked else (self.fixed[atom], False)

    def over_time(self, atom: Atom) -> jax.Array:
        """Return a value with time as the first axis."""
        value, stacked = self.of(atom)
        return value if stacked else jnp.broadcast_to(value, (self.length, *jnp.shape(value)))


@dataclass(frozen=True)
class Part:
    """A part of a step that runs over all frames."""

    reads: tuple[Var, ...]  # the variables that the part reads, in each frame or fixed
    gives: tuple[Var, ...]  # the variables that the part can compute for each frame

    @property
    def bytes_a_frame(self) -> int:
        """Return the bytes that the part computes for a frame before its loop, if they should fit into the cache."""
        return 0

    def run(self, values: Values, init: Environment) -> Environment:
        """Run over all frames, add results to the values, and return the final values of variables."""
        raise NotImplementedError


@dataclass(frozen=True)
class BatchedEquations(Part):
    """Equations for all frames at once."""

    equations: tuple[JaxprEqn, ...]

    def run(self, values: Values, init: Environment) -> Environment:
        """Run all frames at once, without a carry."""
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
    """Arrays of the carry that depend on each other."""

    carry: tuple[Var, ...]
    next_carry: tuple[Atom, ...]  # the arrays after a step
    equations: tuple[JaxprEqn, ...]  # the equations from this carry to the next carry

    def run(self, values: Values, init: Environment) -> Environment:
        """Run the loop; the final values are the carry."""
        residuals = [variable for variable in self.reads if variable in values.stacked]

        def step(carry: list[Any], frame: tuple[list[Any], Any]) -> tuple[list[Any], list[Any]]:
            environment = values.fixed | dict(zip((*self.carry, *residuals), (*carry, *frame[0]), strict=True))
            run(self.equations, environment)
            after = [jnp.asarray(read(atom, environment)) for atom in self.next_carry]
            return after, [environment[variable] for variable in self.gives]

        xs = [values.stacked[variable] for variable in residuals]
        # A scan can take a symbolic length only from arrays.
        ticks = None if xs else jnp.zeros(values.length, bool)
        last, ys = varying.scan(step, [init[variable] for variable in self.carry], (xs, ticks))
        values.stacked.update(zip(self.gives, ys, strict=True))
        return dict(zip(self.carry, last, strict=True))


@dataclass(frozen=True)
class Schedule:
    """A step in parts, in the order in which they run."""

    step: Step
    fixed: tuple[JaxprEqn, ...]  # the equations that run once
    parts: tuple[Part, ...]
    final: tuple[JaxprEqn, ...] = ()  # equations from final values of parts to final values of the carry

    @own_arithmetic()
    def run(self, params: Sequence[Any], xs: Sequence[Any], init: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Run the step over all frames; return the last carry, and the outputs with time as the first axis."""
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
    """Return the loop around some arrays of the carry: the equations between them, with all possible results.

    The loop has no residuals yet; `arrange` adds residuals.
    """
    next_of = dict(zip(step.carry, step.next_carry, strict=True))
    after = tuple(next_of[variable] for variable in carry)
    varying = dependents(step.equations, [*carry, *(made_by(step.effects) if effects else ())], set(known))
    inside = [e for e in step.equations if not varying.isdisjoint(e.outvars) or (effects and e.effects)]
    equations = needed(inside, after, effects=effects)
    made = dict.fromkeys(variable for equation in equations for variable in equation.outvars)
    return Loop((), (*carry, *made), tuple(carry), after, tuple(equations))


def one_loop(step: Step) -> Schedule:
    """Return the schedule with one loop around the carry and all side effects."""
    looped = bool(step.carry or step.effects)
    return arrange(step, [loop_around(step, step.carry, effects=True)] if looped else [])


def arrange(step: Step, parts: Sequence[Part], final: Sequence[JaxprEqn] = ()) -> Schedule:
    """Return the schedule of parts that compute the whole carry, with batches between the parts.

    Each needed equation runs in the first batch in which its operands are available.
    """
    return _Arrangement(step, parts).schedule(final)


class _Arrangement:
    """The level of each variable of a step: variables of level k are available after k parts."""

    def __init__(self, step: Step, parts: Sequence[Part]):
        self.step, self.parts = step, parts
        #: The part that computes each variable in ``gives``.
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
        """Return the parts with batches between, built in reverse, so that the reads of later parts are available."""
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
        """Return True if a variable is first available after this number of parts, and no part computes it."""
        return self.level[variable] == number and variable not in self.giver

    def _repeats(self, variable: Var) -> bool:
        """Return True if the equation of a variable may be repeated; a part may compute the variable differently."""
        return isinstance(self.giver.get(variable), Loop | None)

    def _is_computed(self, number: int, variable: Var) -> bool:
        """Return True if a variable belongs to the batch after this number of parts."""
        maker = self.step.makers.get(variable)
        if maker is None or self.level[variable] < 0:
            return False
        return self._is_at(number, variable) or (is_repeated(maker) and self._repeats(variable))

    def _loop(self, loop: Loop, reads: Iterable[Var]) -> Loop:
        """Restrict a loop to results that later parts read, and add residuals."""
        possible, core = set(loop.gives), made_by(loop.equations)
        gives = tuple(variable for variable in reads if variable in possible)
        effects = [equation for equation in loop.equations if equation.effects]
        segment = self.step.segment([*loop.next_carry, *gives], core.__contains__, self._repeats, effects)
        residuals = tuple(variable for variable in segment.residuals if variable not in loop.carry)
        return Loop(residuals, gives, loop.carry, loop.next_carry, segment.equations)


Function = Callable[[Any, Any, Any], tuple[Any, Any]]


@dataclass(frozen=True)
class Segment:
    """Equations that run together."""

    #: the equations in order, including repeated equations of earlier segments (`is_repeated`)
    equations: tuple[JaxprEqn, ...]
    residuals: tuple[Var, ...]  # the variables of earlier segments, or inputs, that the equations read


@dataclass(frozen=True)
class Step:
    """A step ``(params, frame, carry) -> (outputs, carry)`` as a jaxpr without inner jitted calls."""

    closed: ClosedJaxpr  # the jaxpr
    #: the inputs
    params: tuple[Var, ...]
    frame: tuple[Var, ...]
    carry: tuple[Var, ...]
    #: the results
    outputs: tuple[Atom, ...]
    next_carry: tuple[Atom, ...]
    structure: Any  # the tree of the results

    @classmethod
    def trace(cls, function: Function, params: Any, frame: Any, carry: Any) -> Step:
        """Trace a function as a step on arrays of these shapes."""
        closed, structure = trace_inlined(function, params, frame, carry)
        invars, outvars = closed.jaxpr.invars, closed.jaxpr.outvars
        first, second, _ = (len(jax.tree.leaves(tree)) for tree in (params, frame, carry))
        of_frame, of_carry = invars[first : first + second], invars[first + second :]
        cut = len(outvars) - len(of_carry)
        results = tuple(outvars[:cut]), tuple(outvars[cut:])
        return cls(closed, tuple(invars[:first]), tuple(of_frame), tuple(of_carry), *results, structure)

    @property
    def equations(self) -> list[JaxprEqn]:
        """Return all equations."""
        return self.closed.jaxpr.eqns

    @functools.cached_property
    def makers(self) -> dict[Var, JaxprEqn]:
        """Return the equation that computes each variable."""
        return {variable: equation for equation in self.equations for variable in equation.outvars}

    @functools.cached_property
    def effects(self) -> list[JaxprEqn]:
        """Return the equations with side effects."""
        return [equation for equation in self.equations if equation.effects]

    @functools.cached_property
    def fixed(self) -> frozenset[Var]:
        """Return the variables that depend only on parameters and constants, and are equal in all frames."""
        varying = dependents(self.equations, [*self.frame, *self.carry, *made_by(self.effects)])
        jaxpr = self.closed.jaxpr
        return frozenset({*jaxpr.constvars, *self.params, *self.makers} - varying)

    def constants(self) -> Environment:
        """Return the values that the step closed over."""
        return dict(zip(self.closed.jaxpr.constvars, self.closed.consts, strict=True))

    def segment(
        self,
        targets: Iterable[Atom],
        inside: Callable[[Var], bool],
        repeats: Callable[[Var], bool] = lambda variable: True,
        effects: Iterable[JaxprEqn] = (),
    ) -> Segment:
        """Return the equations that compute the targets in one segment."""
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
        """Return the rest of the step after all fixed values are computed."""
        results = (*self.outputs, *self.next_carry)
        return self.segment(results, lambda variable: variable not in self.fixed, effects=self.effects)

    @functools.cached_property
    def folded(self) -> tuple[Var, ...]:
        """Return the fixed variables that the remainder reads: unchanged parameters included, constants excluded."""
        constants = set(self.closed.jaxpr.constvars)
        return tuple(v for v in self.remainder.residuals if v in self.fixed and v not in constants)

    @functools.cached_property
    def folding(self) -> list[JaxprEqn]:
        """Return the equations that compute the folded variables from parameters and constants."""
        return needed(self.equations, self.folded, {*self.params, *self.closed.jaxpr.constvars})

    def results(self, environment: Environment) -> Any:
        """Return the results of the step from an environment."""
        leaves = [read(atom, environment) for atom in (*self.outputs, *self.next_carry)]
        return jax.tree.unflatten(self.structure, leaves)


def is_repeated(equation: JaxprEqn) -> bool:
    """Return True for an equation that is repeated in each part that reads it, and never passed on.

    A broadcast is free and enlarges a small value. The platform is determined during lowering.
    """
    return entry_of(equation).repeated


@dataclass(frozen=True)
class Purpose:
    """The purpose of packed parameters; hashable and equal for equal programs."""

    program: str
    folding: str = ""  # the fingerprint of the folded work; empty without folded work
    pulse: int | None = None  # the frames in each step of a streamed function
    dtype: str | None = None  # the compute dtype; None for the file's own types
    label: str = field(default="", compare=False)  # the name in messages


@short_repr
@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Packed:
    """The result of `Model.pack` and `Streamed.pack`, accepted in place of parameters; a pytree.

    Attributes:
        params: the parameters, not packed.
        folded: the transposed, joined and folded arrays that a step reads, in the order of its jaxpr. Empty for models
            without steps. With a compute dtype, the weights of products have that type.
        purpose: the program that accepts the parameters, and the step that reads the folded arrays. Other functions,
            and steps of other sizes, use the parameters that are not packed.
    """

    params: Any
    folded: tuple[jax.Array, ...]
    purpose: Purpose = field(metadata={"static": True})


def unpack(params: Any, program: Any) -> Any:
    """Unpack parameters that are packed for a program; return other parameters unchanged.

    A program has a ``fingerprint``, and a ``label`` for messages.
    """
    if not isinstance(params, Packed):
        return params
    if params.purpose.program != program.fingerprint:
        raise InputError(
            f"the parameters were packed for {params.purpose.label}, and {program.label} is a different program: pack "
            "the parameters with its pack method"
        )
    return params.params


def computing_type(params: Any, dtype: Any) -> np.dtype | None:
    """Return the compute dtype of a call: the argument, or else the dtype of the packed parameters."""
    return compute_type(params.purpose.dtype if dtype is None and isinstance(params, Packed) else dtype)


Folded = tuple[jax.Array, ...]


def folded_for(function: Function, params: Any, frame: Any, carry: Any) -> tuple[Folded, str]:
    """Return the folded arrays of a step for arrays of these shapes, and their fingerprint."""
    step = _traced(function, params, frame, carry)
    return fold(step, params), folding_of(step)


def run_packed(function: Function, params: Packed, frame: Any, carry: Any) -> Any:
    """Run a step with packed parameters; with unpacked parameters if they were packed for a different step."""
    step = _traced(function, params.params, frame, carry)
    if not fits(step, params.folded, params.purpose.folding):
        return function(params.params, frame, carry)
    return run_folded(step, params.folded, frame, carry)


def _traced(function: Function, *arguments: Any) -> Step:
    return Step.trace(function, *jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments))


def fold(step: Step, params: Any) -> Folded:
    """Compute the arrays that the remainder of a step reads from parameters: transposed, joined, scaled, rounded."""
    environment = step.constants() | dict(zip(step.params, jax.tree.leaves(params), strict=True))
    run(step.folding, environment)
    return tuple(environment[variable] for variable in step.folded)


def folding_of(step: Step) -> str:
    """Return the fingerprint of the result of `fold`."""
    jaxpr = step.closed.jaxpr.replace(invars=[*step.params], eqns=step.folding, outvars=[*step.folded])
    return fingerprint(ClosedJaxpr(jaxpr, step.closed.consts))


def fits(step: Step, folded: Folded, folding: str) -> bool:
    """Return True if folded arrays with this fingerprint fit this step; sizes may differ."""
    expected = [(shape_of(variable), type_of(variable)) for variable in step.folded]
    return expected == [(array.shape, array.dtype) for array in folded] and folding == folding_of(step)


def run_folded(step: Step, folded: Folded, frame: Any, carry: Any) -> Any:
    """Run a step with folded parameters."""
    environment = step.constants()
    inputs = (*step.folded, *step.frame, *step.carry)
    environment.update(zip(inputs, (*folded, *jax.tree.leaves(frame), *jax.tree.leaves(carry)), strict=True))
    run(step.remainder.equations, environment)
    return step.results(environment)
