"""The values of a body's variables for all frames at once, computed when they are asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal

from jaxrnn.jaxprs.equations import Environment, run, variables
from jaxrnn.jaxprs.recognition.arrays import elements
from jaxrnn.jaxprs.recognition.body import Body
from jaxrnn.jaxprs.recognition.positions import Atom, Elements, type_of


class Frames:
    """What is known of all frames.

    Attributes:
        fixed: the values that are the same in every frame.
        values: the others, with time in front.
        length: the number of frames.
    """

    def __init__(self, body: Body, fixed: Environment, values: Environment, length: Any):
        self.body, self.fixed, self.values, self.length = body, fixed, values, length

    def of(self, atom: Atom) -> tuple[Any, bool]:
        """A value, and whether it has time in front."""
        if isinstance(atom, Literal):
            return np.asarray(atom.val, type_of(atom)), False
        if atom in self.fixed:
            return self.fixed[atom], False
        self.compute([atom])
        return self.values[atom], True

    def elements(self, chosen: Elements) -> jax.Array:
        """Elements ``[rows, columns]`` of a variable, with time in front where they are not fixed."""
        value, timed = self.of(chosen.atom)
        return elements(jax.numpy.asarray(value), chosen.at, (self.length,) if timed else ())

    def compute(self, atoms: Iterable[Atom]) -> None:
        """Compute these variables, together, from those that there are."""
        there = self.fixed.keys() | self.values.keys()
        wanted = [variable for variable in dict.fromkeys(variables(atoms)) if variable not in there]
        if not wanted:
            return
        needed, equations = set(wanted), []
        for equation in reversed(self.body.equations):
            if needed.intersection(equation.outvars):
                equations.append(equation)
                needed.update(v for v in variables(equation.invars) if v not in there)
        equations.reverse()
        read = dict.fromkeys(v for equation in equations for v in variables(equation.invars))
        given = [variable for variable in read if variable in self.values]

        def one_frame(values: list[Any]) -> list[Any]:
            environment = self.fixed | dict(zip(given, values, strict=True))
            run(equations, environment)
            return [environment[variable] for variable in wanted]

        results = jax.vmap(one_frame)([self.values[variable] for variable in given])
        self.values.update(zip(wanted, results, strict=True))


def fixed_values(body: Body, params: Iterable[Any]) -> Environment:
    """The values of all variables that are the same in every frame."""
    environment: Environment = dict(zip(body.closed.jaxpr.constvars, body.closed.consts, strict=True))
    environment.update(zip(body.params, params, strict=True))
    run([e for e in body.equations if body.fixed.issuperset(e.outvars)], environment)
    return environment
