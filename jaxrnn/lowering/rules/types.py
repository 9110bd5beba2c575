"""Changes of element type."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax.extend.core import JaxprEqn

from jaxrnn.lowering.lowering import Lowering, Rule
from jaxrnn.lowering.rules.elementwise import cast, elements
from jaxrnn.lowering.writer import Operand, dtype_of


def convert(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """``Cast``; from floats to integers within JAX's limits, which ONNX leaves open."""
    dtype = np.dtype(equation.params["new_dtype"])
    if jnp.issubdtype(dtype_of(x), jnp.floating) and jnp.issubdtype(dtype, jnp.integer):
        return _to_integer(lowering, x, dtype)
    if isinstance(x, np.ndarray):  # which is known to be better as it is
        x = lowering.writer.value(x)
    return cast(lowering, x, dtype)


def _to_integer(lowering: Lowering, x: Operand, dtype: np.dtype) -> Operand:
    """The fraction is cut off; what is out of range becomes the nearest integer of the type, and NaN 0."""
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


def reduce_precision(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """``Cast`` to the type of that precision and back."""
    bits = (equation.params["exponent_bits"], equation.params["mantissa_bits"])
    own = jnp.finfo(dtype_of(x))
    if bits == (own.nexp, own.nmant):
        return x
    if bits == (8, 7) and dtype_of(x) == np.float32:
        return cast(lowering, cast(lowering, x, jnp.bfloat16), np.float32)
    return lowering.refuse(
        f"ONNX has no operator that rounds {dtype_of(x).name} to {bits[0]} bits of exponent and {bits[1]}"
    )


def reinterpret(lowering: Lowering, equation: JaxprEqn, x: Operand) -> Operand:
    """``Cast`` between integers with a sign and without, else ``BitCast``."""
    dtype, own = np.dtype(equation.params["new_dtype"]), dtype_of(x)
    if dtype.itemsize != own.itemsize:
        lowering.refuse(f"ONNX has no operator that reads the bits of {own.name} as {dtype.name}")
    if dtype.kind in "iu" and own.kind in "iu":
        return cast(lowering, x, dtype)
    return elements(lowering, "BitCast", x, dtype=dtype, to=int(ir.DataType.from_numpy(dtype)))


RULES: dict[str, Rule] = {
    "bitcast_convert_type": reinterpret,
    "convert_element_type": convert,
    "reduce_precision": reduce_precision,
}
