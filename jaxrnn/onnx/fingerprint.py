"""The fingerprint of a bound graph: its nodes, constants and names, but not the values of its parameters."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterable
from typing import Any

import onnx_ir as ir

from jaxrnn.jaxprs.fingerprints import fingerprint
from jaxrnn.onnx.blocks import Block, BoundNode
from jaxrnn.onnx.program import Program


def fingerprint_of(program: Program, options: Any) -> str:
    """The fingerprint of a graph and of the options that it was loaded with."""
    parameters = {name: (array.dtype.name, array.shape) for name, array in program.parameters.items()}
    return fingerprint(_block(program.block), parameters, options)


def _block(block: Block) -> Any:
    constants = {str(value.name): array for value, array in block.constants.items()}
    parameters = {str(value.name): name for value, name in block.parameters.items()}
    return _names(block.inputs), _names(block.outputs), constants, parameters, list(map(_node, block.nodes))


def _node(node: BoundNode) -> Any:
    operator = node.operator
    attributes = {name: _block(value) if isinstance(value, Block) else value for name, value in node.attributes.items()}
    own = [function_facts(operator.function)] if operator.own else []
    identifier = (operator.domain, operator.name, operator.since, *own)
    return identifier, _names(node.inputs), _names(node.outputs), attributes


def function_facts(function: Any) -> Any:
    """What tells a user's function from another: its name and its code, with what it closes over."""
    if isinstance(function, functools.partial):
        return function_facts(function.func), function.args, function.keywords
    inner = inspect.unwrap(function)
    code = getattr(inner, "__code__", None)
    cells = [cell.cell_contents for cell in getattr(inner, "__closure__", None) or ()]
    return inner, [] if code is None else _code(code), cells, getattr(inner, "__kwdefaults__", None)


def _code(code: types.CodeType) -> Any:
    constants = [_code(each) if isinstance(each, types.CodeType) else each for each in code.co_consts]
    return code.co_code, code.co_names, constants


def _names(values: Iterable[ir.Value | None]) -> list[str | None]:
    return [None if value is None else str(value.name) for value in values]
