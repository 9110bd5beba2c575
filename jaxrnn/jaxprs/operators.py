"""Operators as one equation: functions that stay what an ONNX file has in plain forms, so that a graph has them again.

What quantises is many primitives in JAX, and one operator to every engine.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from jaxrnn._jax.context import own_arithmetic
from jaxrnn.cells.platforms import is_plain

#: An operator. Its operands are those that are there, its parameters ``name``, of ONNX; ``function`` of all operands
#: and attributes; ``present``, which operands there are; ``attributes``, pairs; and ``along``: ``"elements"`` where it
#: does the same to all elements of its first operand, ``"rows"`` where to all rows, of the last axis, else ``""``.
operator_p = Primitive("onnx_operator")
operator_p.multiple_results = True


def whole(name: str, along: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: a function of arrays, some of them None, and attributes is one equation in plain forms.

    Args:
        name: of the operator.
        along: as of the primitive.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*operands: Any, **attributes: Any) -> Any:
            if not is_plain():
                return function(*operands, **attributes)
            pairs = [(key, tuple(value) if isinstance(value, list) else value) for key, value in attributes.items()]
            results = operator_p.bind(
                *(jnp.asarray(each) for each in operands if each is not None),
                name=name,
                function=function,
                present=tuple(each is not None for each in operands),
                attributes=tuple(sorted(pairs)),
                along=along,
            )
            return results if len(results) > 1 else results[0]

        return call

    return decorate


@own_arithmetic()
def computed(
    *operands: Any, function: Callable[..., Any], present: Sequence[bool], attributes: Sequence[Any], **_: Any
) -> list[jax.Array]:
    """The results of the primitive."""
    each = iter(operands)
    results = function(*(next(each) if there else None for there in present), **dict(attributes))
    return [*results] if isinstance(results, list | tuple) else [results]


def _shapes(*operands: Any, **params: Any) -> list[Any]:
    structs = [jax.ShapeDtypeStruct(operand.shape, operand.dtype) for operand in operands]
    results = jax.eval_shape(functools.partial(computed, **params), *structs)
    return [ShapedArray(each.shape, each.dtype) for each in results]


def _batched(operands: Any, axes: Any, **params: Any) -> Any:
    others = zip(axes[1:], operands[1:], strict=True)
    alike = all(axis is None and operand.size == 1 for axis, operand in others)
    if params["along"] == "elements" and alike:
        results = operator_p.bind(*operands, **params)
        return results, [axes[0]] * len(results)
    results = jax.vmap(functools.partial(computed, **params), axes)(*operands)
    return results, [0] * len(results)


operator_p.def_impl(computed)
operator_p.def_abstract_eval(_shapes)
mlir.register_lowering(operator_p, mlir.lower_fun(computed, multiple_results=True))
batching.primitive_batchers[operator_p] = _batched
