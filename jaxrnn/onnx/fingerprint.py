"""The fingerprint of a bound graph: its nodes, constants and names, but not the values of its parameters."""

from __future__ import annotations

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
    identifier = (operator.domain, operator.name, operator.since)
    return identifier, _names(node.inputs), _names(node.outputs), attributes


def _names(values: Iterable[ir.Value | None]) -> list[str | None]:
    return [None if value is None else str(value.name) for value in values]
