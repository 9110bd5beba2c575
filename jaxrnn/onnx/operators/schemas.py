"""Schemas made of other ones: those of earlier versions, and of operators that hand attributes on."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])


def earlier(function: Callable[..., Any], *absent: str, **fixed: Any) -> Callable[..., Any]:
    """An operator as it was before it had some inputs and attributes.

    Args:
        function: the later version.
        absent: the inputs and attributes that the earlier version does not have. They keep the later one's defaults.
        fixed: the same with values that differ from the defaults.
    """
    signature = inspect.signature(function)
    assert {*absent, *fixed} <= signature.parameters.keys()
    parameters = [each for each in signature.parameters.values() if each.name not in {*absent, *fixed}]
    version = functools.partial(function, **fixed)
    version.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return version


def as_attributes(function: Callable[..., Any], *names: str, **defaults: int) -> Callable[..., Any]:
    """An operator as it was when some of its inputs were attributes of integers.

    Args:
        function: the later version.
        names: the inputs. An attribute is optional where the input is.
        defaults: the same with defaults of their own.
    """
    signature = inspect.signature(function)
    moved = {name: signature.parameters[name].default for name in names} | defaults

    @functools.wraps(function)
    def version(*inputs: Any, **attributes: Any) -> Any:
        values = {name: attributes.pop(name, default) for name, default in moved.items()}
        arrays = {name: None if value is None else np.asarray(value, np.int64) for name, value in values.items()}
        return function(*inputs, **arrays, **attributes)

    kept = [each for each in signature.parameters.values() if each.name not in moved]
    added = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=moved[name]) for name in moved]
    version.__signature__ = signature.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
    return version


def inherits(source: Callable[..., Any], *names: str) -> Callable[[Function], Function]:
    """A decorator of an operator that hands its ``**attributes`` on: to its own schema, it adds those of ``source``.

    Args:
        source: what takes the attributes, as keyword-only parameters.
        names: which of them the operator has; all where none is named.
    """

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        inherited = [
            each
            for each in inspect.signature(source).parameters.values()
            if each.kind is each.KEYWORD_ONLY and (each.name in names or not names)
        ]
        function.__signature__ = signature.replace(parameters=[*own, *inherited])  # type: ignore[attr-defined]
        return function

    return decorate
