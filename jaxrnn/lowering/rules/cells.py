"""Loops whose bodies hold recurrent cells, whatever they were written in: the cells become layers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn

from jaxrnn.cells import plain_forms
from jaxrnn.jaxprs.equations import evaluate, type_of
from jaxrnn.jaxprs.equations import shape_of as shape_of_atom
from jaxrnn.jaxprs.scanning import scan_recognised
from jaxrnn.lowering.lowering import Lowering, Rule
from jaxrnn.lowering.rules import loops
from jaxrnn.lowering.writer import Operand
from jaxrnn.streaming.access import scan_parts


def scan(lowering: Lowering, equation: JaxprEqn, *operands: Operand) -> list[Operand]:
    """The layers that a scan is, and what is left of its body; any other scan as a loop."""
    layers = _as_layers(equation)
    return loops.scan(lowering, equation, *operands) if layers is None else lowering.evaluate(layers, operands)


def _as_layers(equation: JaxprEqn) -> ClosedJaxpr | None:
    """A scan with its cells as layers; None where it has none."""
    consts, carries = scan_parts(equation)
    body, reverse = equation.params["jaxpr"], equation.params["reverse"]
    found = False

    def function(*arrays: Any) -> list[Any]:
        nonlocal found
        fixed, carry, xs = arrays[:consts], list(arrays[consts : consts + carries]), arrays[consts + carries :]

        def step(carry: list[Any], frame: list[Any]) -> tuple[list[Any], list[Any]]:
            results = evaluate(body, [*fixed, *carry, *frame])
            return results[:carries], results[carries:]

        results = scan_recognised(step, carry, [jnp.flip(x, 0) if reverse else x for x in xs])
        if results is None:
            return []
        found = True
        last, ys = results
        return [*last, *(jnp.flip(y, 0) if reverse else y for y in ys)]

    structs = [jax.ShapeDtypeStruct(shape_of_atom(atom), type_of(atom)) for atom in equation.invars]
    with plain_forms():
        closed = jax.make_jaxpr(function)(*structs)
    return closed if found else None


RULES: dict[str, Rule] = {"scan": scan}
