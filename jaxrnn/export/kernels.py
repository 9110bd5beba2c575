"""Element types of operators: the types of the specification that engines have kernels for."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from jaxrnn.errors import UnsupportedError

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_SHORT = ("int16", "uint16")
_LONG = ("uint32", "uint64")

#: Types of the specification without a correct CPU kernel in ONNX Runtime, by operator. Wrong kernels: ``Sign`` of NaN
#: is 0 in float16, and extremes of int64 stop at int32.
_WITHOUT_KERNEL: Mapping[str, Sequence[str]] = {
    "ArgMax": (*_SHORT, *_LONG),
    "ArgMin": (*_SHORT, *_LONG),
    "BitShift": ("uint16",),
    "Clip": _SHORT,
    "CumSum": _LONG,
    "Gemm": ("int32", "int64", *_LONG),
    "Max": _SHORT,
    "Min": _SHORT,
    "Pad": _SHORT,
    "ReduceL1": _LONG,
    "ReduceMax": ("int64", *_LONG),
    "ReduceMin": ("int64", *_LONG),
    "ReduceProd": _LONG,
    "ReduceSum": _LONG,
    "ScatterElements": ("float16",),
    "ScatterND": ("float16",),
    "Sign": ("float16",),
    "TopK": ("uint16", *_LONG),
    "Where": ("bool", *_SHORT, "uint64"),
}

#: Operators with bfloat16 kernels in ONNX Runtime, which only move elements.
_MOVES = frozenset(
    """
    Cast Concat Gather GatherElements GatherND Identity If Loop Reshape Scan Slice Split Squeeze Transpose
    """.split()  # noqa: SIM905
)

#: Wider types that represent all values of a type. Sums and products wrap around when they are cast back.
_WIDER: Mapping[str, Sequence[str]] = {
    "bool": ("uint8", "int32"),
    "int8": ("int32",),
    "uint8": ("int32",),
    "int16": ("int32",),
    "uint16": ("int32", "uint32", "int64"),
    "uint32": ("int64", "float64"),
    "float16": ("float32",),
    "bfloat16": ("float32",),
}

#: Operators whose results have the same bits for uint64 and int64.
_SIGNLESS = frozenset(("CumSum", "ReduceProd", "ReduceSum", "Where"))


class _Signature(NamedTuple):
    operands: tuple[str, ...]
    results: tuple[str, ...]
    allowed: dict[str, frozenset[np.dtype]]


@functools.cache
def _signature(operator: str, opset: int) -> _Signature:
    schema = onnx.defs.get_schema(operator, opset)
    allowed = {each.type_param_str: _tensors(each.allowed_type_strs) for each in schema.type_constraints}
    return _Signature(tuple(i.type_str for i in schema.inputs), tuple(o.type_str for o in schema.outputs), allowed)


def _tensors(kinds: Sequence[str]) -> frozenset[np.dtype]:
    names = [kind[len("tensor(") : -1] for kind in kinds if kind.startswith("tensor(")]
    codes = [{"float": "FLOAT", "double": "DOUBLE"}.get(name, name.upper()) for name in names if name != "string"]
    return frozenset(np.dtype(ir.DataType[code].numpy()) for code in codes)


def substitutes(
    operator: str, opset: int, operands: Sequence[np.dtype | None], results: Sequence[np.dtype]
) -> dict[str, np.dtype]:
    """Map type variables to compute types, for compute types that differ from the operands' type."""
    signature = _signature(operator, opset)
    changed: dict[str, np.dtype] = {}
    for variable, dtype in zip(signature.operands, operands, strict=False):  # the last operand may be variadic
        if dtype is not None and variable in signature.allowed:
            computed = _computed_in(operator, opset, dtype, signature.allowed[variable])
            if computed != dtype:
                changed[variable] = computed
    for variable, dtype in zip(signature.results, results, strict=False):
        if variable not in changed and dtype not in signature.allowed.get(variable, {dtype}):
            raise _lacking(operator, opset, dtype)
    return changed


def _computed_in(operator: str, opset: int, dtype: np.dtype, allowed: frozenset[np.dtype]) -> np.dtype:
    lacking = _WITHOUT_KERNEL.get(operator, ())
    runs = dtype in allowed and dtype.name not in lacking and (dtype != _BFLOAT16 or operator in _MOVES)
    if runs:
        return dtype
    if dtype not in allowed and operator == "Cast":  # the substitute would also need a cast
        raise _lacking(operator, opset, dtype)
    wider = [*_WIDER.get(dtype.name, ())]
    if dtype == np.uint64 and operator in _SIGNLESS:
        wider.append("int64")
    if dtype.name.startswith("float8"):
        wider.append("float32")
    for name in wider:
        if np.dtype(name) in allowed and name not in lacking:
            return np.dtype(name)
    if dtype in allowed:
        return dtype
    raise _lacking(operator, opset, dtype)


def _lacking(operator: str, opset: int, dtype: np.dtype) -> UnsupportedError:
    later = (
        schema.since_version
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.name == operator
        and not schema.domain
        and schema.since_version > opset
        and any(dtype in _tensors(each.allowed_type_strs) for each in schema.type_constraints)
    )
    first = min(later, default=None)
    fix = "" if first is None else f", but in opset {first}: give `opset={first}`"
    return UnsupportedError(f"{operator} does not take {dtype.name} in opset {opset}{fix}")


def takes(operator: str, opset: int, operands: Sequence[np.dtype | None]) -> bool:
    """Return True if the operator is defined for these operand types; None is an omitted operand."""
    if not onnx.defs.has(operator, max_inclusive_version=opset):
        return False
    signature = _signature(operator, opset)
    pairs = zip(signature.operands, operands, strict=False)
    return all(
        dtype is None or dtype in signature.allowed.get(variable, _tensors([variable])) for variable, dtype in pairs
    )


def changed_types(
    operator: str, opset: int, changed: Mapping[str, np.dtype], operands: int, results: int
) -> tuple[list[np.dtype | None], list[np.dtype | None]]:
    """Return the types that operands and results are cast to; None means unchanged."""
    signature = _signature(operator, opset)
    pairs = ((signature.operands, operands), (signature.results, results))
    of_operands, of_results = (
        [changed.get(variables[min(index, len(variables) - 1)]) for index in range(count)] for variables, count in pairs
    )
    return of_operands, of_results
