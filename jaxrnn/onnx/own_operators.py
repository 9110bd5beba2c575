"""One's own operators: functions that `load` takes beside those of the package, or in place of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir

from jaxrnn.errors import InputError
from jaxrnn.onnx.graph import normal_domain
from jaxrnn.onnx.operators import find_operator, schema_version
from jaxrnn.onnx.registry import Operator, operator, signature_problem

#: By domain and name.
OwnOperators = Mapping[tuple[str, str], Callable[..., Any]]


def own_operators(functions: OwnOperators | None) -> dict[tuple[str, str], Callable[..., Any]]:
    """A user's operators by normal domain and name.

    Raises:
        InputError: a key is no pair of domain and name, or a signature is none of an operator; lists all of them.
    """
    if functions is None:
        return {}
    if not isinstance(functions, Mapping):
        raise InputError(f"operators must be a dict {{(domain, name): function}}, not {type(functions).__name__}")
    problems, own = [], {}
    for key, function in functions.items():
        if not (isinstance(key, tuple) and len(key) == 2 and all(isinstance(part, str) for part in key) and key[1]):
            problems.append(f"  {key!r}: a key is a pair (domain, name), such as ('my.domain', 'Scale')")
            continue
        problem = signature_problem(function)
        if problem is not None:
            problems.append(f"  {key[0] or 'ai.onnx'}::{key[1]}: {problem}")
        own[normal_domain(key[0]), key[1]] = function
    if problems:
        raise InputError(f"operators: {len(problems)} of {len(functions)} cannot be used:\n" + "\n".join(problems))
    return own


def operator_of(node: ir.Node, own: OwnOperators) -> Operator:
    """The operator that a node means: a user's own before the package's.

    Raises:
        UnsupportedError: there is none; names the nearest.
    """
    domain = normal_domain(node.domain)
    function = own.get((domain, node.op_type))
    if function is None or node.version is None:
        return find_operator(domain, node.op_type, node.version)
    version = schema_version(domain, node.op_type, node.version) or node.version
    return operator(node.op_type, domain, version, function, own=True)
