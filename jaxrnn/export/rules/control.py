"""Rules for branches (``If``) and loops (unrolled, ``Scan`` or ``Loop``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax.extend.core import ClosedJaxpr, JaxprEqn

from jaxrnn._jax.versions import Scan
from jaxrnn.cells.forms import plain_forms
from jaxrnn.export.lowering import RULES, Lowering, subgraph
from jaxrnn.export.reshaping import reshape, source_of
from jaxrnn.export.rules.elementwise import elements
from jaxrnn.export.small.control import chosen_branch, unrolled
from jaxrnn.export.writer import Operand, dtype_of, maker_of, shape_of
from jaxrnn.jaxprs.equations import evaluate, needed, trace, type_of, walk
from jaxrnn.jaxprs.equations import shape_of as shape_of_atom
from jaxrnn.jaxprs.scanning import scan_recognised


@RULES.add("cond")
def branch(lowering: Lowering, equation: JaxprEqn, which: Operand, *operands: Operand) -> list[Operand]:
    """Write the branch for a constant index, else ``If``, nested for more than two branches."""
    if (chosen := chosen_branch(equation, which)) is not None:
        return lowering.evaluate(chosen, operands)
    return _chosen(lowering, equation, range(len(equation.params["branches"])), which, operands)


def _chosen(
    lowering: Lowering, equation: JaxprEqn, numbers: Sequence[int], which: Operand, operands: Sequence[Operand]
) -> list[Operand]:
    branches = equation.params["branches"]
    if len(numbers) == 1:
        return lowering.evaluate(branches[numbers[0]], operands)
    half = len(numbers) // 2
    condition = _is_at_least(lowering, which, numbers[half])
    if isinstance(condition, np.ndarray):
        return _chosen(lowering, equation, numbers[half:] if condition else numbers[:half], which, operands)

    def of(some: Sequence[int], name: str) -> ir.Graph:
        return subgraph(lowering, name, [], lambda inside: _chosen(inside, equation, some, which, operands))

    kinds = [(shape_of_atom(each), type_of(each)) for each in equation.outvars]
    then, otherwise = of(numbers[half:], "then"), of(numbers[:half], "else")
    return [*lowering.writer.nodes_of("If", [condition], kinds, then_branch=then, else_branch=otherwise)]


def _is_at_least(lowering: Lowering, which: Operand, number: int) -> Operand:
    """Compare a branch index. The index is often a cast condition."""
    made = maker_of(which, "Cast")
    if number == 1 and made is not None and dtype_of(source_of(made)) == np.bool_:
        return source_of(made)
    return elements(lowering, "GreaterOrEqual", which, np.array(number, dtype_of(which)), dtype=bool)


#: Loops are unrolled up to this number of equations.
_UNROLLED = 240


def loop(lowering: Lowering, equation: JaxprEqn, *operands: Operand) -> list[Operand]:
    """Unroll a short scan, or write ``Scan``."""
    params = equation.params
    fixed, initial, xs = Scan.of(equation).split(operands)
    consts, carries, body = len(fixed), len(initial), params["jaxpr"]
    length = params["length"]
    size = sum(1 for _ in walk(body.jaxpr.replace(eqns=needed(body.jaxpr.eqns, body.jaxpr.outvars))))
    if length < 2 or length * size <= _UNROLLED:
        return unrolled(lowering, equation, *operands)
    # Values that the body returns unchanged are not carries.
    own = body.jaxpr.invars[consts : consts + carries]
    moving = [index for index in range(carries) if body.jaxpr.outvars[index] is not own[index]]
    xs = list(xs) or [np.zeros(length, bool)]  # a Scan needs an input to scan
    direction = [int(params["reverse"])]

    def write(inside: Lowering, *values: Operand) -> list[Operand]:
        carry = _with(initial, moving, values)
        frames = values[len(moving) :] if len(operands) > consts + carries else ()
        results = inside.evaluate(body, [*fixed, *carry, *frames])
        return [*(results[index] for index in moving), *results[carries:]]

    frames = [(shape_of(x)[1:], dtype_of(x)) for x in xs]
    kinds = [(shape_of(initial[index]), dtype_of(initial[index])) for index in moving]
    graph = subgraph(lowering, "step", [*kinds, *frames], write)
    stacked = [(shape_of_atom(each), type_of(each)) for each in equation.outvars[carries:]]
    results = lowering.writer.nodes_of(
        "Scan",
        [*(initial[index] for index in moving), *xs],
        [*kinds, *stacked],
        body=graph,
        num_scan_inputs=len(xs),
        scan_input_directions=direction * len(xs) if params["reverse"] else None,
        scan_output_directions=direction * len(stacked) if params["reverse"] and stacked else None,
    )
    return [*_with(initial, moving, results), *results[len(moving) :]]


def _with(values: Sequence[Any], places: Sequence[int], new: Sequence[Any]) -> list[Any]:
    """Replace the values at these places."""
    replaced = dict(zip(places, new, strict=False))
    return [replaced.get(place, value) for place, value in enumerate(values)]


@RULES.add("while")
def repeat(lowering: Lowering, equation: JaxprEqn, *operands: Operand) -> list[Operand]:
    """Write ``Loop``. With a condition for each element of a batch, the others keep their values."""
    params = equation.params
    counts = (params["cond_nconsts"], params["body_nconsts"])
    of_condition, of_body = operands[: counts[0]], operands[counts[0] : sum(counts)]
    initial = operands[sum(counts) :]

    def holds(here: Lowering, carry: Sequence[Operand]) -> Operand:
        return here.evaluate(params["cond_jaxpr"], [*of_condition, *carry])[0]

    def any_of(here: Lowering, conditions: Operand) -> Operand:
        return here.trace(jnp.any, conditions)[0] if shape_of(conditions) else conditions

    def chosen(here: Lowering, conditions: Operand, new: Operand, old: Operand) -> Operand:
        spread = (*shape_of(conditions), *[1] * (len(shape_of(old)) - len(shape_of(conditions))))
        return elements(here, "Where", reshape(here.writer, conditions, spread), new, old, dtype=dtype_of(old))

    first = any_of(lowering, holds(lowering, initial))
    if isinstance(first, np.ndarray) and not first:
        return list(initial)
    inner = params["body_jaxpr"].jaxpr
    own = inner.invars[counts[1] :]
    moving = [index for index in range(len(initial)) if inner.outvars[index] is not own[index]]

    def write(inside: Lowering, count: Operand, condition: Operand, *values: Operand) -> list[Operand]:
        before = _with(initial, moving, values)
        carry = inside.evaluate(params["body_jaxpr"], [*of_body, *before])
        if shape_of_atom(params["cond_jaxpr"].jaxpr.outvars[0]):
            alive = holds(inside, before)
            carry = [chosen(inside, alive, *pair) for pair in zip(carry, before, strict=True)]
        return [any_of(inside, holds(inside, carry)), *(carry[index] for index in moving)]

    kinds = [(shape_of_atom(equation.outvars[index]), type_of(equation.outvars[index])) for index in moving]
    graph = subgraph(lowering, "body", [((), np.int64), ((), np.bool_), *kinds], write)
    inputs = [None, first, *(initial[index] for index in moving)]
    results = lowering.writer.nodes_of("Loop", inputs, kinds, body=graph)
    return _with(initial, moving, results)


@RULES.add("scan")
def scan(lowering: Lowering, equation: JaxprEqn, *operands: Operand) -> list[Operand]:
    """Write the recurrent layers that a scan contains, and the rest of the body; or the scan as a loop."""
    layers = _as_layers(equation)
    return loop(lowering, equation, *operands) if layers is None else lowering.evaluate(layers, operands)


def _as_layers(equation: JaxprEqn) -> ClosedJaxpr | None:
    """Return a scan with the cells as layers, or None if the scan has no cells."""
    counts = Scan.of(equation)
    body, reverse = equation.params["jaxpr"], equation.params["reverse"]
    found = False

    def function(*arrays: Any) -> list[Any]:
        nonlocal found
        fixed, carry, xs = counts.split(arrays)

        def step(carry: list[Any], frame: list[Any]) -> tuple[list[Any], list[Any]]:
            results = evaluate(body, [*fixed, *carry, *frame])
            return results[: counts.carry], results[counts.carry :]

        results = scan_recognised(step, carry, [jnp.flip(x, 0) if reverse else x for x in xs])
        if results is None:
            return []
        found = True
        last, ys = results
        return [*last, *(jnp.flip(y, 0) if reverse else y for y in ys)]

    structs = [jax.ShapeDtypeStruct(shape_of_atom(atom), type_of(atom)) for atom in equation.invars]
    with plain_forms():
        closed, _ = trace(function, *structs)
    return closed if found else None
