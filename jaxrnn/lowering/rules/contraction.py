"""Products of matrices: ``MatMul`` on operands whose axes are in its order."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jax.extend.core import JaxprEqn

from jaxrnn.jaxprs.equations import shape_of as shape_of_atom
from jaxrnn.jaxprs.equations import type_of
from jaxrnn.lowering.lowering import Lowering, Rule
from jaxrnn.lowering.movement import reshape, transpose
from jaxrnn.lowering.rules.elementwise import cast
from jaxrnn.lowering.writer import Operand, dtype_of, shape_of


def contract(lowering: Lowering, equation: JaxprEqn, x: Operand, y: Operand) -> Operand:
    """``[..., rows, contracted] @ [..., contracted, columns]``."""
    (contract_x, contract_y), (batch_x, batch_y) = equation.params["dimension_numbers"]
    dtype = type_of(equation.outvars[0])
    writer = lowering.writer
    rows, columns = _free(x, (*contract_x, *batch_x)), _free(y, (*contract_y, *batch_y))
    batch = [shape_of(x)[axis] for axis in batch_x]
    inner = math.prod(shape_of(x)[axis] for axis in contract_x)
    of_rows, of_columns = ([shape_of(each)[axis] for axis in axes] for each, axes in ((x, rows), (y, columns)))
    x, y = (each if dtype_of(each) == dtype else cast(lowering, each, dtype) for each in (x, y))
    left = transpose(writer, x, (*batch_x, *rows, *contract_x))
    right = transpose(writer, y, (*batch_y, *contract_y, *columns))
    # More axes of rows are a batch to MatMul where the other operand has none.
    kept = of_rows if not batch and of_rows else [math.prod(of_rows)]
    left = reshape(writer, left, (*batch, *kept, inner))
    right = reshape(writer, right, (*batch, inner, math.prod(of_columns)))
    product = writer.node("MatMul", left, right, shape=(*batch, *kept, math.prod(of_columns)), dtype=dtype)
    return reshape(writer, product, shape_of_atom(equation.outvars[0]))


def _free(x: Operand, taken: Sequence[int]) -> list[int]:
    return [axis for axis in range(len(shape_of(x))) if axis not in taken]


RULES: dict[str, Rule] = {"dot_general": contract}
