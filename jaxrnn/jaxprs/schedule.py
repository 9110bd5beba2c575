"""The schedule of a step over time: in which order its parts run over all frames.

What is fixed, because it depends on parameters alone, is computed once. Then come the parts, each over all frames:

- a `BatchedEquations` has no carry, and is computed for all frames at once;
- a `Loop` is a ``lax.scan`` of what its carry needs, and nothing else;
- others, such as recognised cells, see to a part of the carry in a way of their own.

Parts hand their results on as residuals, with time in front. A broadcast is repeated in every part that reads it
rather than handed on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn, Literal, Var

from jaxrnn._jax import varying
from jaxrnn._jax.context import own_arithmetic
from jaxrnn.cells.chunks import in_blocks
from jaxrnn.jaxprs.equations import Atom, Environment, read, run, type_of
from jaxrnn.jaxprs.step import Step


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
