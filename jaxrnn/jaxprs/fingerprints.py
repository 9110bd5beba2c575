"""Fingerprints of programs: equal for the same computation, however often it is traced, loaded or unpickled."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from jaxrnn.jaxprs.equations import is_key

#: Where an object lies, which is another place in every process.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def fingerprint(*facts: Any) -> str:
    """Return the SHA-256 of numbers, strings, arrays, jaxprs, and of tuples, lists and dicts of such values.

    Names of variables and derivative rules do not matter. Other objects count by their repr, and functions by their
    name. A traced value is identified by its identity.
    """
    digest = hashlib.sha256()
    _feed(digest.update, facts)
    return digest.hexdigest()


def fingerprint_of_equations(
    equations: Iterable[JaxprEqn], inputs: Sequence[Var], constants: Mapping[Var, Any], results: Iterable[Var | Literal]
) -> str:
    """Return the fingerprint of equations on input variables and constants."""
    digest = hashlib.sha256()
    _feed_equations(digest.update, equations, inputs, constants, results)
    return digest.hexdigest()


def _feed(update: Callable[[bytes], Any], value: Any) -> None:
    if isinstance(value, (ClosedJaxpr, Jaxpr)):
        jaxpr, constants = (value.jaxpr, value.consts) if isinstance(value, ClosedJaxpr) else (value, ())
        known = dict(zip(jaxpr.constvars, constants, strict=False))
        inputs = [*jaxpr.invars, *(variable for variable in jaxpr.constvars if variable not in known)]
        _feed_equations(update, jaxpr.eqns, inputs, known, jaxpr.outvars)
    elif isinstance(value, Tracer):
        _feed(update, ("traced", id(value)))
    elif isinstance(value, (np.ndarray, np.generic, jax.Array)):
        if isinstance(value, jax.Array) and is_key(value.dtype):
            value = jax.random.key_data(value)
        array = np.asarray(jax.device_get(value))
        _feed(update, ("array", array.dtype.name, str(array.shape)))
        if array.dtype.kind in "OT":
            _feed(update, array.ravel().tolist())
        else:
            update(array.tobytes())
    elif isinstance(value, Mapping):
        _feed(update, sorted(((str(key), entry) for key, entry in value.items()), key=lambda item: item[0]))
    elif isinstance(value, (tuple, list)):
        update(f"({len(value)}:".encode())
        for item in value:
            _feed(update, item)
    else:
        named = callable(value) and hasattr(value, "__qualname__")
        shown = f"{value.__module__}.{value.__qualname__}" if named else _ADDRESS.sub("", repr(value))
        encoded = f"{type(value).__name__} {shown}".encode()
        update(f"{len(encoded)}:".encode() + encoded)


def _feed_equations(
    update: Callable[[bytes], Any],
    equations: Iterable[JaxprEqn],
    inputs: Sequence[Var],
    constants: Mapping[Var, Any],
    results: Iterable[Var | Literal],
) -> None:
    """Feed equations to the hash; variables are numbered in order of appearance."""
    numbers: dict[Var, int] = {}

    def number(variable: Var) -> int:
        return numbers.setdefault(variable, len(numbers))

    def atom(each: Var | Literal) -> Any:
        if isinstance(each, Literal):
            return "literal", str(each.aval), each.val
        if each in constants and each not in numbers:
            return number(each), "constant", constants[each]
        return number(each)

    _feed(update, [(number(variable), str(variable.aval)) for variable in inputs])
    for equation in equations:
        _feed(update, (equation.primitive.name, dict(equation.params)))
        _feed(update, [atom(each) for each in equation.invars])
        _feed(update, [(number(each), str(each.aval)) for each in equation.outvars])
    _feed(update, [atom(each) for each in results])
