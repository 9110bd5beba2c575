"""One step of a recurrence as a jaxpr, and parts of it that can be evaluated by themselves."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Var

from jaxrnn.jaxprs.equations import Atom, Environment, read, trace, variables
from jaxrnn.jaxprs.platforms import is_platform_index
from jaxrnn.jaxprs.slices import dependents, made_by, needed

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
