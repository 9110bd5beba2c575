"""Rules for elementwise operators and casts, which become single nodes with broadcasting.

The bounds of integers (`range_of`) decide comparisons, such as bounds checks of indices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax.extend.core import JaxprEqn

from jaxrnn.export.lowering import RULES, Lowering
from jaxrnn.export.reshaping import bare, broadcast, thin
from jaxrnn.export.writer import Operand, constant_of, dtype_of, shape_of
from jaxrnn.jaxprs.equations import shape_of as shape_of_atom
from jaxrnn.jaxprs.equations import type_of
from jaxrnn.jaxprs.primitives import entry_of
from jaxrnn.onnx.operators import traits_of
from jaxrnn.streaming.diagnostics import describe_equation


def elements(
    lowering: Lowering, operator: str, *operands: Operand, shape: Any = None, dtype: Any = None, **attributes: Any
) -> Operand:
    """Write an elementwise node on operands that broadcast.

    Repeated operands are read before the repetition. A comparison with a constant result becomes a constant.
    """
    shape = np.broadcast_shapes(*map(shape_of, operands)) if shape is None else tuple(shape)
    if (holds := compared(operator, *operands) if len(operands) == 2 else None) is not None:
        return np.full(shape, holds)
    thinned = [thin(operand) for operand in operands]
    rank = max((len(shape_of(each)) for each in thinned if isinstance(each, ir.Value)), default=0)
    if rank == len(shape):
        thinned = [_without_front(each) if isinstance(each, np.ndarray) else each for each in thinned]
    dtype = dtype_of(operands[0]) if dtype is None else dtype
    result = lowering.writer.node(operator, *thinned, dtype=dtype, **attributes)
    return broadcast(lowering.writer, result, shape)


def _without_front(x: np.ndarray) -> np.ndarray:
    """Remove leading axes of size 1 from a constant, so that parameters keep their names."""
    sizes = [axis for axis, size in enumerate(x.shape) if size != 1]
    return x.reshape(x.shape[sizes[0] :]) if sizes and sizes[0] else x


@RULES.add(kind="elementwise")
def elementwise(lowering: Lowering, equation: JaxprEqn, *operands: Operand) -> Operand:
    """Write the operator of the same meaning."""
    operator, result = entry_of(equation).operator, equation.outvars[0]
    if not operator:
        lowering.refuse("ONNX has no such function; compute it outside, or write it with other functions")
    return elements(lowering, operator, *operands, shape=shape_of_atom(result), dtype=type_of(result))


@RULES.add("square")
def square(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Write a product."""
    return elements(lowering, "Mul", x, x)


@RULES.add("select_n")
def select(lowering: Lowering, equation: JaxprEqn, which: Operand, *cases: Operand) -> Operand:
    """Write ``Where``, nested for more than two cases."""
    if len(cases) == 1:
        return cases[0]
    if isinstance(which, np.ndarray) and which.size and (which == which.flat[0]).all():
        return cases[int(which.flat[0])]
    shape, dtype = shape_of_atom(equation.outvars[0]), type_of(equation.outvars[0])
    if len(cases) == 2 and dtype_of(which) == np.bool_:
        return elements(lowering, "Where", bare(which), cases[1], cases[0], shape=shape, dtype=dtype)
    result = cases[0]
    for index, case in enumerate(cases[1:], 1):
        chosen = elements(lowering, "Equal", which, np.array(index, dtype_of(which)), dtype=bool)
        result = elements(lowering, "Where", chosen, case, result, shape=shape, dtype=dtype)
    return result


def cast(lowering: Lowering, x: Operand, dtype: Any) -> Operand:
    """Cast an operand."""
    return broadcast(lowering.writer, lowering.writer.cast(thin(x), dtype), shape_of(x))


@RULES.add("clamp")
def clamp(lowering: Lowering, equation: JaxprEqn, low: Operand, x: Operand, high: Operand) -> Operand:
    """Write ``Clip`` for scalar bounds, else ``Min`` of ``Max``."""
    if not (shape_of(low) or shape_of(high)):
        return elements(lowering, "Clip", x, low, high)
    return elements(lowering, "Min", elements(lowering, "Max", x, low), high)


@RULES.add("stop_gradient")
def identity(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Return the operand, because files have no gradients."""
    return x


@RULES.add("convert_element_type")
def convert(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Write ``Cast``. Floats saturate as integers in JAX; ONNX leaves that open."""
    dtype = np.dtype(equation.params["new_dtype"])
    if jnp.issubdtype(dtype_of(x), jnp.floating) and jnp.issubdtype(dtype, jnp.integer):
        return _to_integer(lowering, x, dtype)
    if isinstance(x, np.ndarray):  # a quantised constant, which stays small
        x = lowering.writer.value(x)
    return cast(lowering, x, dtype)


def _to_integer(lowering: Lowering, x: Operand, dtype: np.dtype) -> Operand:
    """Truncate and saturate; NaN becomes 0."""
    info = jnp.iinfo(dtype)
    low, high = int(info.min), int(info.max)
    width = np.float64 if dtype.itemsize >= 4 else np.float32
    if dtype_of(x) != np.float64:
        x = cast(lowering, x, width)
    wide = dtype_of(x)
    largest = wide.type(high) if int(wide.type(high)) <= high else np.nextafter(wide.type(high), wide.type(0))
    inside = elements(lowering, "Clip", x, np.array(low, wide), np.array(largest, wide))
    inside = elements(
        lowering, "Where", elements(lowering, "IsNaN", x, dtype=bool), np.array(0, wide), inside, dtype=wide
    )
    whole = cast(lowering, inside, dtype)
    if int(largest) == high:
        return whole
    above = elements(lowering, "Greater", x, np.array(largest, wide), dtype=bool)
    return elements(lowering, "Where", above, np.array(high, dtype), whole, dtype=dtype)


@RULES.add("reduce_precision")
def reduce_precision(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Write casts to the type of this precision and back."""
    bits = (equation.params["exponent_bits"], equation.params["mantissa_bits"])
    own = jnp.finfo(dtype_of(x))
    if bits == (own.nexp, own.nmant):
        return x
    if bits == (8, 7) and dtype_of(x) == np.float32:
        return cast(lowering, cast(lowering, x, jnp.bfloat16), np.float32)
    return lowering.refuse(f"ONNX cannot round {dtype_of(x).name} to {bits[0]} exponent and {bits[1]} mantissa bits")


@RULES.add("bitcast_convert_type")
def reinterpret(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Write ``Cast`` between signed and unsigned integers, else ``BitCast``."""
    dtype, own = np.dtype(equation.params["new_dtype"]), dtype_of(x)
    if dtype.itemsize != own.itemsize:
        lowering.refuse(f"ONNX cannot reinterpret the bits of {own.name} as {dtype.name}")
    if dtype.kind in "iu" and own.kind in "iu":
        return cast(lowering, x, dtype)
    if own.kind == "u" and jnp.issubdtype(dtype, jnp.floating):
        # From 1 to 2, numbers are equally spaced. Random floats are built from bits in this way.
        one, bits = np.ones((), dtype).view(own), jnp.finfo(dtype).nmant
        low, high = range_of(x)
        if one <= low and high < int(one) + (1 << bits):
            fraction = cast(lowering, elements(lowering, "Sub", x, one), dtype)
            fraction = elements(lowering, "Mul", fraction, np.array(2.0**-bits, dtype))
            return elements(lowering, "Add", fraction, np.ones((), dtype))
    return elements(lowering, "BitCast", x, dtype=dtype, to=int(ir.DataType.from_numpy(dtype)))


#: The least and the greatest value.
Range = tuple[int, int]

_LONGEST_CHAIN = 24


def range_of(x: Operand | None, depth: int = _LONGEST_CHAIN) -> Range:
    """Return bounds of integers or booleans, by default the bounds of the type."""
    if x is None or not _is_integer(x):
        return (0, 0)
    array = x if isinstance(x, np.ndarray) else constant_of(x)
    if array is not None and array.size:
        return int(array.min()), int(array.max())
    limits = (0, 1) if dtype_of(x) == np.bool_ else (int(jnp.iinfo(dtype_of(x)).min), int(jnp.iinfo(dtype_of(x)).max))
    if not isinstance(x, ir.Value) or depth == 0 or (node := x.producer()) is None:
        return limits
    found = _of_node(node, x.index(), depth - 1)
    return found if found is not None and limits[0] <= found[0] and found[1] <= limits[1] else limits


def _of_node(node: ir.Node, output: int | None, depth: int) -> Range | None:
    operator, inputs = node.op_type, list(node.inputs)
    if (operator, output) in (("ArgMax", 0), ("ArgMin", 0), ("TopK", 1)):
        assert inputs[0] is not None
        return 0, max(shape_of(inputs[0])[node.attributes["axis"].as_int()] - 1, 0)
    if operator == "Cast":
        return range_of(inputs[0], depth) if _is_integer(inputs[0]) else None
    if traits_of(node).moves_first:
        return range_of(inputs[0], depth)
    if operator in ("Concat", "Where"):
        parts = [range_of(each, depth) for each in (inputs[1:] if operator == "Where" else inputs)]
        return min(low for low, _ in parts), max(high for _, high in parts)
    if operator in _ARITHMETIC and all(map(_is_integer, inputs)):
        return _ARITHMETIC[operator](node, [range_of(each, depth) for each in inputs])
    return None


def _is_integer(x: Operand | None) -> bool:
    """Return True for integers and booleans."""
    return x is not None and (dtype_of(x) == np.bool_ or jnp.issubdtype(dtype_of(x), jnp.integer))


def _corners(node: ir.Node, ranges: Sequence[Range]) -> Range:
    products = [a * b for a in ranges[0] for b in ranges[1]]
    return min(products), max(products)


def _remainder(node: ir.Node, ranges: Sequence[Range]) -> Range | None:
    (low, high), (least, most) = ranges
    if least <= 0:
        return None
    signed = "fmod" in node.attributes and node.attributes["fmod"].as_int()
    if low >= 0:
        return 0, min(high, most - 1)
    return (-(most - 1) if signed else 0), most - 1


#: For each operator, the bounds of the result from the bounds of the operands.
_ARITHMETIC: dict[str, Callable[[ir.Node, Sequence[Range]], Range | None]] = {
    "Add": lambda node, of: (of[0][0] + of[1][0], of[0][1] + of[1][1]),
    "BitShift": lambda node, of: (
        (of[0][0] >> of[1][1], of[0][1] >> of[1][0]) if node.attributes["direction"].as_string() == "RIGHT" else None
    ),
    "Clip": lambda node, of: (
        min(max(of[0][0], of[1][0]), of[2][0]),
        min(max(of[0][1], of[1][1]), of[2][1]),
    ),
    "Max": lambda node, of: (max(low for low, _ in of), max(high for _, high in of)),
    "Min": lambda node, of: (min(low for low, _ in of), min(high for _, high in of)),
    "Mod": _remainder,
    "Mul": _corners,
    "Neg": lambda node, of: (-of[0][1], -of[0][0]),
    "Sub": lambda node, of: (of[0][0] - of[1][1], of[0][1] - of[1][0]),
}


def compared(operator: str, x: Operand, y: Operand) -> bool | None:
    """Return the result of an integer comparison that is constant for all values in range, else None."""
    if not all(jnp.issubdtype(dtype_of(each), jnp.integer) for each in (x, y)):
        return None
    (low, high), (least, most) = range_of(x), range_of(y)
    if operator == "Less":
        return True if high < least else False if low >= most else None
    if operator == "GreaterOrEqual":
        return True if low >= most else False if high < least else None
    if operator in ("Greater", "LessOrEqual"):
        return compared("Less" if operator == "Greater" else "GreaterOrEqual", y, x)
    return None


@RULES.add("erfc")
def complement(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """Write a temporary node. In float64, only rewrites such as ``Gelu`` replace the node, and `lower` refuses it."""
    result = lowering.writer.node("Erfc", x)
    lowering.writer.nodes[-1].meta["place"] = describe_equation(lowering.path)
    return result


@RULES.add("ne")
def unequal(lowering: Lowering, equation: JaxprEqn, x: Operand, y: Operand) -> Operand:
    """Write ``Xor`` of booleans, because tract's ``Equal`` takes numbers only, or a negated ``Equal``."""
    if dtype_of(x) == np.bool_:
        return elements(lowering, "Xor", x, y)
    return elements(lowering, "Not", elements(lowering, "Equal", x, y, dtype=bool))
