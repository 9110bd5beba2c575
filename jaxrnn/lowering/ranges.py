"""What is known of integers in a graph: between which numbers they are, by the operators that made them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir

from jaxrnn.lowering.writer import Operand, constant_of, dtype_of, shape_of
from jaxrnn.onnx.operators import traits_of

#: The least and the greatest number.
Range = tuple[int, int]

_LONGEST_CHAIN = 24


def range_of(x: Operand | None, depth: int = _LONGEST_CHAIN) -> Range:
    """Between which numbers integers or booleans are; those of the type, where nothing else is known."""
    if x is None or not (dtype_of(x) == np.bool_ or jnp.issubdtype(dtype_of(x), jnp.integer)):
        return (0, 0)
    array = x if isinstance(x, np.ndarray) else constant_of(x)
    if array is not None and array.size:
        return int(array.min()), int(array.max())
    limits = (0, 1) if dtype_of(x) == np.bool_ else (int(jnp.iinfo(dtype_of(x)).min), int(jnp.iinfo(dtype_of(x)).max))
    node = x.producer() if isinstance(x, ir.Value) else None
    if node is None or depth == 0:
        return limits
    found = _of_node(node, depth - 1)
    return found if found is not None and limits[0] <= found[0] and found[1] <= limits[1] else limits


def _of_node(node: ir.Node, depth: int) -> Range | None:
    operator, inputs = node.op_type, list(node.inputs)
    if operator in ("ArgMax", "ArgMin"):
        assert inputs[0] is not None
        return 0, max(shape_of(inputs[0])[node.attributes["axis"].as_int()] - 1, 0)
    if operator == "Cast":
        return range_of(inputs[0], depth) if _is_whole(inputs[0]) else None
    if traits_of(node).moves_first:
        return range_of(inputs[0], depth)
    if operator in ("Concat", "Where"):
        parts = [range_of(each, depth) for each in (inputs[1:] if operator == "Where" else inputs)]
        return min(low for low, _ in parts), max(high for _, high in parts)
    if operator in _ARITHMETIC and all(map(_is_whole, inputs)):
        return _ARITHMETIC[operator](node, [range_of(each, depth) for each in inputs])
    return None


def _is_whole(x: ir.Value | None) -> bool:
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


#: By operator, the range of its result from those of its operands.
_ARITHMETIC: dict[str, Callable[[ir.Node, Sequence[Range]], Range | None]] = {
    "Add": lambda node, of: (of[0][0] + of[1][0], of[0][1] + of[1][1]),
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
    """Whether a comparison of integers holds for all of them; None where that is not known."""
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
