"""Programs in the operations of LiteRT: one list of rewrites, each with the operation that LiteRT lacks.

A rewrite is a rule of a primitive, a function of JAX arrays. Equations without a rule stay as they are. Equations of
known operands are computed now.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn._jax.versions import Scan
from jaxrnn.errors import UnsupportedError
from jaxrnn.export.lowering import known_results
from jaxrnn.export.rules.layers import steps_of
from jaxrnn.jaxprs.equations import bind, called, evaluate, free_axes, needed, shape_of, type_of, walk
from jaxrnn.jaxprs.own import computed, platforms_of
from jaxrnn.jaxprs.primitives import Rules
from jaxrnn.streaming.diagnostics import Path, describe_equation

#: Loops are unrolled up to this number of trips, and up to this number of equations.
TRIPS, EQUATIONS = 256, 20_000

#: Rules ``(forms, equation, *operands)``.
RULES: Rules[Callable[..., Any]] = Rules()


class Forms:
    """An evaluator that traces a program again, in operations of LiteRT. ``path`` is the stack of equations."""

    def __init__(self) -> None:
        self.path: Path = ()
        #: True inside of an operator on integers of 8 bits.
        self.in_bytes = False

    def evaluate(self, jaxpr: Any, operands: Sequence[Any]) -> list[Any]:
        """Evaluate a jaxpr; NumPy operands are known."""
        inner = getattr(jaxpr, "jaxpr", jaxpr)
        live = inner.replace(eqns=needed(inner.eqns, inner.outvars, effects=True))
        return evaluate(jaxpr.replace(jaxpr=live) if inner is not jaxpr else live, operands, self.apply)

    def apply(self, equation: JaxprEqn, operands: list[Any]) -> Sequence[Any]:
        """Evaluate an equation."""
        known = known_results(equation, [_known(each) for each in operands], small=False)
        if known is not None:
            return known
        outer, self.path = self.path, (*self.path, equation)
        try:
            rule = RULES.of(equation)
            results = bind(equation, operands) if rule is None else rule(self, equation, *operands)
            return results if isinstance(results, list) else [results]
        finally:
            self.path = outer

    def refuse(self, reason: str) -> Any:
        """Refuse the current equation."""
        raise UnsupportedError(f"{describe_equation(self.path)}: {reason}")


def _known(operand: Any) -> Any:
    """Return a number as an array."""
    return np.asarray(operand) if isinstance(operand, (bool, int, float, complex, np.generic)) else operand


@RULES.add(kind="call")
@RULES.add(kind="checkpoint")
@RULES.add(kind="custom rule")
def _call(forms: Forms, equation: JaxprEqn, *operands: Any) -> list[Any]:
    return forms.evaluate(called(equation), operands)


@RULES.add("custom_linear_solve")
def _solve(forms: Forms, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """Evaluate the equations that solve; the other equations are for derivatives."""
    lengths = equation.params["const_lengths"]
    start = lengths.matvec + lengths.vecmat
    right = operands[start + lengths.solve + lengths.transpose_solve :]
    return forms.evaluate(equation.params["jaxprs"].solve, [*operands[start : start + lengths.solve], *right])


@RULES.add("platform_index")
def _platform(forms: Forms, equation: JaxprEqn) -> Any:
    return np.array(len(equation.params["platforms"]) - 1, np.int32)


@RULES.add("onnx_operator")
def _operator(forms: Forms, equation: JaxprEqn, *operands: Any) -> list[Any]:
    outer, forms.in_bytes = forms.in_bytes, sum(np.dtype(type_of(each)).itemsize == 1 for each in equation.invars) > 1
    closed = jax.make_jaxpr(lambda *arrays: computed(*arrays, **equation.params))(*operands)
    try:
        return forms.evaluate(closed, operands)
    finally:
        forms.in_bytes = outer


@RULES.add("recurrent_layer")
def _layer(forms: Forms, equation: JaxprEqn, *operands: Any) -> list[Any]:
    return forms.evaluate(steps_of(equation), operands)


@RULES.add("cond")
def _branch(forms: Forms, equation: JaxprEqn, which: Any, *operands: Any) -> list[Any]:
    """Evaluate the branch of a known condition; without one, evaluate all branches and choose the results."""
    branches, platforms = equation.params["branches"], platforms_of(equation)
    if platforms is not None:
        return forms.evaluate(branches[platforms.index(None)], operands)
    index = jnp.clip(which, 0, len(branches) - 1)
    results = [forms.evaluate(branch, operands) for branch in branches]
    chosen = results[0]
    for number, others in enumerate(results[1:], 1):
        chosen = [jnp.where(index == number, new, old) for new, old in zip(others, chosen, strict=True)]
    return chosen


@RULES.add("scan")
def _loop(forms: Forms, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """``While``: the converter leaves the body in the graph, where LiteRT cannot run it."""
    params = equation.params
    fixed, carry, xs = Scan.of(equation).split(operands)
    length, body = params["length"], params["jaxpr"]
    size = length * sum(1 for _ in walk(body.jaxpr))
    if length > TRIPS or size > EQUATIONS:
        forms.refuse(
            f"LiteRT gets loops unrolled, and a loop of {length:,} trips would be {size:,} operations: choose a smaller "
            "pulse"
        )
    carries, collected = len(carry), []
    for trip in reversed(range(length)) if params["reverse"] else range(length):
        frames = [lax.index_in_dim(x, trip, keepdims=False) if not isinstance(x, np.ndarray) else x[trip] for x in xs]
        results = forms.evaluate(body, [*fixed, *carry, *frames])
        carry = results[:carries]
        collected.append(results[carries:])
    if params["reverse"]:
        collected.reverse()
    if not collected:
        return [*carry, *(np.zeros(shape_of(each), type_of(each)) for each in equation.outvars[carries:])]
    return [*carry, *(jnp.stack(ys) for ys in zip(*collected, strict=True))]


@RULES.add("while")
def _repeat(forms: Forms, equation: JaxprEqn, *operands: Any) -> list[Any]:
    return forms.refuse("LiteRT runs no loop whose number of trips depends on data: choose --target onnx")


@RULES.add("dot_general")
def _product(forms: Forms, equation: JaxprEqn, x: Any, y: Any) -> Any:
    """Products with several free or batch axes, or in another order than ``[B, M, K] @ [B, K, N]``."""
    (contract_x, contract_y), (batch_x, batch_y) = equation.params["dimension_numbers"]
    rows, columns = free_axes(equation)
    sizes = [[each.shape[axis] for axis in axes] for each, axes in ((x, batch_x), (x, rows), (y, columns))]
    inner = math.prod(x.shape[axis] for axis in contract_x)
    lead = [math.prod(sizes[0])] if batch_x else []
    left = _arranged(x, (*batch_x, *rows, *contract_x), (*lead, math.prod(sizes[1]), inner))
    right = _arranged(y, (*batch_y, *contract_y, *columns), (*lead, inner, math.prod(sizes[2])))
    number = len(lead)
    numbers = (([number + 1], [number]), ([*range(number)], [*range(number)]))

    def product(left: Any, right: Any) -> Any:
        if not lead:
            # The converter moves reshapes of operands behind a product, and then refuses the rank that it made. A known
            # operand stays visible, so that the product becomes FullyConnected.
            known = [isinstance(each, np.ndarray) for each in (left, right)]
            left, right = (
                each if is_known else lax.optimization_barrier(each)
                for each, is_known in zip((left, right), known, strict=True)
            )
        return lax.dot_general(left, right, numbers)

    result = _in_floats(forms, equation, (left, number + 1), (right, number), 1, product)
    return result.reshape(*sizes[0], *sizes[1], *sizes[2])


#: The integers that float32 represents, up to this number.
_WHOLE = 2**24


def _in_floats(
    forms: Forms,
    equation: JaxprEqn,
    left: tuple[Any, int],
    right: tuple[Any, int],
    taps: int,
    product: Callable[[Any, Any], Any],
) -> Any:
    """Products of integers: computed in float32, in parts along the contracted axes whose sums float32 represents."""
    dtype = np.dtype(type_of(equation.outvars[0]))
    (x, axis_x), (y, axis_y) = left, right
    if dtype.kind == "f":
        return product(*(each if each.dtype == dtype else each.astype(dtype) for each in (x, y)))
    if not (forms.in_bytes or all(each.dtype.itemsize == 1 for each in (x, y))):
        forms.refuse(f"LiteRT has no products of {dtype.name}: compute it in float32")
    largest = 255 * (int(np.abs(y.astype(np.int64)).max(initial=1)) if isinstance(y, np.ndarray) else 255)
    size, each = x.shape[axis_x], _WHOLE // (largest * taps)
    if each == 0:
        forms.refuse(f"float32 does not represent sums of {taps:,} products of integers")
    total: Any = 0
    for start in range(0, size, each):
        end = min(start + each, size)
        part = product(*(_cut(a, axis, start, end).astype(np.float32) for a, axis in ((x, axis_x), (y, axis_y))))
        total = total + part.astype(dtype)
    return total


def _cut(x: Any, axis: int, start: int, end: int) -> Any:
    return x[(slice(None),) * axis + (slice(start, end),)]


def _arranged(x: Any, axes: Sequence[int], shape: Sequence[int]) -> Any:
    """Transpose and reshape; known arrays stay known."""
    return (np if isinstance(x, np.ndarray) else jnp).transpose(x, axes).reshape(shape)


@RULES.add("conv_general_dilated")
def _convolution(forms: Forms, equation: JaxprEqn, x: Any, kernel: Any) -> Any:
    """Dilated inputs: the zeros between frames are written."""
    params, numbers = equation.params, equation.params["dimension_numbers"]
    for axis, spacing in zip(numbers.lhs_spec[2:], params["lhs_dilation"], strict=True):
        x = _spread(x, axis, spacing)

    def convolve(x: Any, kernel: Any) -> Any:
        changed = {"lhs_dilation": (1,) * len(params["lhs_dilation"]), "preferred_element_type": None}
        return bind(equation, [jnp.asarray(x), jnp.asarray(kernel)], **changed)[0]

    taps = math.prod(kernel.shape[axis] for axis in numbers.rhs_spec[2:])
    if (
        np.dtype(type_of(equation.outvars[0])).kind != "f"
        and x.shape[numbers.lhs_spec[1]] != kernel.shape[numbers.rhs_spec[1]]
    ):
        forms.refuse("LiteRT has no convolution of integers in groups: compute it in float32")
    return _in_floats(forms, equation, (x, numbers.lhs_spec[1]), (kernel, numbers.rhs_spec[1]), taps, convolve)


def _spread(x: Any, axis: int, spacing: int) -> Any:
    """Insert zeros between elements along an axis."""
    if spacing == 1 or x.shape[axis] < 2:
        return x
    before, count, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    pairs = jnp.pad(
        x.reshape(*before, count, 1, *after), [(0, spacing - 1 if d == axis + 1 else 0) for d in range(x.ndim + 1)]
    )
    return lax.slice_in_dim(pairs.reshape(*before, count * spacing, *after), 0, (count - 1) * spacing + 1, axis=axis)


#: Types without a kernel of LiteRT's Select, and the types in which the choice is exact.
_NARROW = {np.dtype(np.uint8): np.int32, np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64}


@RULES.add("select_n")
def _select(forms: Forms, equation: JaxprEqn, which: Any, *cases: Any) -> Any:
    """Choices of unsigned integers."""
    dtype = np.dtype(type_of(equation.outvars[0]))
    if (wide := _NARROW.get(dtype)) is None:
        return bind(equation, [which, *cases])[0]
    return lax.select_n(which, *(jnp.asarray(each).astype(wide) for each in cases)).astype(dtype)
