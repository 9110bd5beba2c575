"""How an ONNX operator is written down: one function a version, its signature being the schema.

Positional parameters are the operator's inputs, in order (``None`` where an optional input is absent, ``*name`` for
variadic ones). Keyword-only parameters are its attributes, with ONNX's names and defaults; one without a default is
required. Two annotations say what the importer must know:

- ``Static``: the input is needed while tracing; the function receives a NumPy array.
- ``Foldable``: if the file gives a constant here, it is a number of the formula (an exponent, a bound) and not a
  parameter of the model.

A function returns its one output, or a list of its outputs; a tuple is a value of ONNX's sequence type. A keyword-only
parameter ``output_count`` is no attribute: it receives the number of outputs that the node names. Nor is
``output_name``: it receives the name of the first of them, which tells the node from all others of the graph.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import onnx

STATIC = "static"
FOLDABLE = "foldable"
Static = Annotated[np.ndarray, STATIC]
Foldable = Annotated[Any, FOLDABLE]

OUTPUT_COUNT = "output_count"
OUTPUT_NAME = "output_name"
REQUIRED = inspect.Parameter.empty

#: ONNX's own numbers of opsets have 32 bits, and a file's 64.
_NEWEST = 2**31 - 1

Versions = dict[int, Callable[..., Any]]


def since(function: Callable[..., Any], *versions: int) -> Versions:
    """The table entry for one function that implements the operator as of each of these opset versions."""
    return dict.fromkeys(versions, function)


def schema_of(domain: str, name: str, opset: int) -> onnx.defs.OpSchema | None:
    """The definition of an operator that an opset contains; None where ONNX does not define it."""
    try:
        return onnx.defs.get_schema(name, min(max(opset, 0), _NEWEST), domain)
    except onnx.defs.SchemaError:
        return None


@dataclass(frozen=True)
class InputSlot:
    """One declared input of an operator."""

    name: str
    static: bool
    foldable: bool
    required: bool


@dataclass(frozen=True)
class Operator:
    """One version of one operator: its function and the schema read from the signature; ``own`` if it is a user's."""

    name: str
    domain: str
    since: int
    function: Callable[..., Any]
    slots: tuple[InputSlot, ...]
    variadic: InputSlot | None
    attributes: Mapping[str, Any]
    wants_output_count: bool
    wants_output_name: bool
    own: bool = False

    def slot(self, index: int) -> InputSlot | None:
        """The declared input at this position, or None where the operator takes fewer."""
        return self.slots[index] if index < len(self.slots) else self.variadic

    @functools.cached_property
    def schema(self) -> onnx.defs.OpSchema | None:
        """ONNX's definition of it; None where there is none."""
        return schema_of(self.domain, self.name, self.since)

    def __str__(self) -> str:
        return f"{self.domain + '::' if self.domain else ''}{self.name}-{self.since}"


def _marks(hint: Any) -> tuple[str, ...]:
    """The marks on a parameter's type, also where it is ``Static | None``."""
    own = getattr(hint, "__metadata__", ())
    return own or tuple(mark for part in typing.get_args(hint) for mark in getattr(part, "__metadata__", ()))


@functools.cache
def read_signature(
    function: Callable[..., Any],
) -> tuple[tuple[InputSlot, ...], InputSlot | None, dict[str, Any], bool, bool]:
    """The slots, the variadic slot, the attributes with defaults, and whether it takes the output count and name."""
    inner = function.func if isinstance(function, functools.partial) else function
    hints = typing.get_type_hints(inner, include_extras=True)
    slots, variadic, attributes, of_outputs = [], None, {}, set()
    for parameter in inspect.signature(function).parameters.values():
        marks = _marks(hints.get(parameter.name))
        slot = InputSlot(parameter.name, STATIC in marks, FOLDABLE in marks, parameter.default is REQUIRED)
        if parameter.kind is parameter.VAR_POSITIONAL:
            variadic = slot
        elif parameter.kind is not parameter.KEYWORD_ONLY:
            slots.append(slot)
        elif parameter.name in (OUTPUT_COUNT, OUTPUT_NAME):
            of_outputs.add(parameter.name)
        else:
            attributes[parameter.name] = parameter.default
    return tuple(slots), variadic, attributes, OUTPUT_COUNT in of_outputs, OUTPUT_NAME in of_outputs


def operator(name: str, domain: str, version: int, function: Callable[..., Any], *, own: bool = False) -> Operator:
    """The `Operator` that a table entry describes, or a user's own function."""
    return Operator(name, domain, version, function, *read_signature(function), own)
