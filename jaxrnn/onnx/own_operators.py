"""One's own operators: functions that `load` takes beside those of the package, or in place of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir

from jaxrnn.errors import InputError
from jaxrnn.onnx.graph import normal_domain
from jaxrnn.onnx.operators import find_operator
from jaxrnn.onnx.registry import REQUIRED, Operator, operator, read_signature, schema_of

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
        problem = _signature_problem(function)
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
    schema = schema_of(domain, node.op_type, node.version)
    version = node.version if schema is None else schema.since_version
    return operator(node.op_type, domain, version, function, own=True)


def _signature_problem(function: Any) -> str | None:
    """Why a function cannot be an operator, or None."""
    if not callable(function):
        return f"an operator is a function, not {type(function).__name__}"
    try:
        _, _, attributes, *_ = read_signature(function)
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError, NameError) as error:
        return f"its signature, which is the operator's schema, cannot be read: {error}"
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            return f"**{parameter.name} would hide attributes that nobody reads: name each, as a keyword-only parameter"
        if parameter.kind is parameter.KEYWORD_ONLY:
            default = attributes.get(parameter.name)
            if default is not REQUIRED and not _is_attribute(default):
                return (
                    f"the attribute {parameter.name!r} has the default {default!r}, and ONNX's attributes are numbers, "
                    "strings, and tuples of them (None: absent)"
                )
        elif parameter.kind is not parameter.VAR_POSITIONAL and parameter.default not in (REQUIRED, None):
            return (
                f"the input {parameter.name!r} has the default {parameter.default!r}: an optional input that is absent "
                "is None. An attribute is a keyword-only parameter, after a *"
            )
    return None


def _is_attribute(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_attribute, value))
    return value is None or isinstance(value, (int, float, str))
