"""Operators that were those of a file, as they were."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import onnx
from jax.extend.core import JaxprEqn

from jaxrnn.jaxprs.equations import shape_of as shape_of_atom
from jaxrnn.jaxprs.equations import type_of
from jaxrnn.jaxprs.operators import computed
from jaxrnn.lowering import kernels
from jaxrnn.lowering.lowering import Lowering, Rule
from jaxrnn.lowering.writer import Operand, dtype_of


def operator(lowering: Lowering, equation: JaxprEqn, *operands: Operand) -> list[Operand]:
    """The operator; where the opset has none for these types and attributes, what it computes."""
    params, opset = equation.params, lowering.writer.opset
    defaults = inspect.signature(params["function"]).parameters
    attributes: dict[str, Any] = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in params["attributes"]
        if value != defaults[key].default
    }
    name, each = params["name"], iter(operands)
    inputs = [next(each) if there else None for there in params["present"]]
    types = [None if value is None else dtype_of(value) for value in inputs]
    if (
        not kernels.takes(name, opset, types)
        or not attributes.keys() <= onnx.defs.get_schema(name, opset).attributes.keys()
    ):
        return lowering.trace(functools.partial(computed, **params), *operands)
    results = [(shape_of_atom(variable), type_of(variable)) for variable in equation.outvars]
    while inputs[-1] is None:
        inputs.pop()
    return [*lowering.writer.nodes_of(name, inputs, results, **attributes)]


RULES: dict[str, Rule] = {"onnx_operator": operator}
