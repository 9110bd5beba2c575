"""Comparisons and logic. On static operands the result is static, so that ``If`` on a known condition folds."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from jaxrnn.onnx import symbols
from jaxrnn.onnx.operators.arithmetic import alike, unary
from jaxrnn.onnx.registry import elementwise
from jaxrnn.onnx.text import moves_text
from jaxrnn.onnx.values import Value, is_static, is_symbolic, operands, traced


def compare(
    function: Callable[[Any, Any], Any], symbolic: Callable[[Any, Any], Any]
) -> Callable[[Value, Value], Value]:
    """A comparison of two broadcast inputs of one type.

    Args:
        function: the comparison of arrays.
        symbolic: the comparison of two integers of which one depends on a symbolic dimension.
    """

    def apply(a: Value, b: Value) -> Value:
        _, (a, b) = alike(a, b, whole=True)
        if is_symbolic(a) or is_symbolic(b):
            return symbols.each(symbolic, a, b)
        return function(a, b)

    return apply


def equal(first: Any, second: Any) -> bool:
    """Whether two integers are equal, of which one depends on a symbolic dimension."""
    return bool(symbols.size_of(first) == symbols.size_of(second))


def conjunction(a: Value, b: Value) -> Value:
    """And."""
    if is_static(a, b) and (is_symbolic(a) or is_symbolic(b)):
        return symbols.each(operator.and_, a, b)
    np_or_jnp, (a, b) = operands(a, b)
    return np_or_jnp.logical_and(a, b)


def logical(name: str) -> Callable[[Value, Value], Value]:
    """A logical operator of two broadcast boolean inputs."""

    def apply(a: Value, b: Value) -> Value:
        np_or_jnp, (a, b) = operands(a, b)
        return getattr(np_or_jnp, name)(a, b)

    return apply


def negate(x: Value) -> Value:
    """Not."""
    np_or_jnp, (x,) = operands(x)
    return np_or_jnp.logical_not(x)


@moves_text
def where(condition: Value, x: Value, y: Value) -> Value:
    """Where, with all three broadcast."""
    alike(x, y)
    np_or_jnp, (condition, x, y) = operands(condition, x, y)
    return np_or_jnp.where(condition, x, y)


def is_infinite(x: Value, *, detect_negative: int = 1, detect_positive: int = 1) -> Value:
    """IsInf, of both signs or of one."""
    x = traced(x)
    return (jnp.isneginf(x) & bool(detect_negative)) | (jnp.isposinf(x) & bool(detect_positive))


OPERATORS = {
    "And": elementwise(conjunction, 7),
    "Equal": elementwise(compare(operator.eq, equal), 7, 11, 13, 19, compares="="),
    "Greater": elementwise(
        compare(operator.gt, lambda a, b: symbols.less(b, a, or_equal=False)), 7, 9, 13, compares=">"
    ),
    "GreaterOrEqual": elementwise(
        compare(operator.ge, lambda a, b: symbols.less(b, a, or_equal=True)), 12, 16, compares=">="
    ),
    "IsInf": elementwise(is_infinite, 10, 20),
    "IsNaN": elementwise(unary(jnp.isnan), 9, 13, 20),
    "Less": elementwise(compare(operator.lt, lambda a, b: symbols.less(a, b, or_equal=False)), 7, 9, 13, compares="<"),
    "LessOrEqual": elementwise(
        compare(operator.le, lambda a, b: symbols.less(a, b, or_equal=True)), 12, 16, compares="<="
    ),
    "Not": elementwise(negate, 1),
    "Or": elementwise(logical("logical_or"), 7),
    "Where": elementwise(where, 9, 16),
    "Xor": elementwise(logical("logical_xor"), 7),
}
