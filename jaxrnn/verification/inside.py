"""Values inside a model: computed in one call, and the float type with the fewest digits of each value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax.core import Tracer

from jaxrnn._jax.context import exact_types
from jaxrnn.errors import StaticValueError
from jaxrnn.model import Model
from jaxrnn.onnx.evaluate import BoundNode, Scope, call, reads_of
from jaxrnn.onnx.graph import bind_inputs
from jaxrnn.onnx.values import is_text


def intermediates(model: Model, inputs: Mapping[str, Any]) -> dict[str, tuple[BoundNode, Any]]:
    """Compute `Model.intermediates` in a compiled function if possible, which is faster than node by node."""
    seen: dict[str, tuple[BoundNode, Any]] = {}

    def traced_values(params: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        seen.update(model.intermediates(params, inputs))
        traced = {name: value for name, (_, value) in seen.items()}
        return {name: x for name, x in traced.items() if any(isinstance(y, Tracer) for y in jax.tree.leaves(x))}

    with exact_types():
        bound = bind_inputs(model.inputs, inputs)
        if any(map(is_text, jax.tree.leaves(bound))):  # JAX has no strings
            return model.intermediates(model.params, bound)
        try:
            values = jax.jit(traced_values)(model.params, bound)
        except StaticValueError:
            return model.intermediates(model.params, bound)
    return {name: (node, values.get(name, value)) for name, (node, value) in seen.items()}


def precisions(model: Model, inputs: Mapping[str, Any]) -> dict[str, np.dtype]:
    """Return the float type with the fewest digits in which each value inside the model is computed.

    A node rounds to the type of its results. A node that moves elements of a type does not round, so weights that are
    stored in float16 and cast to float32 are numbers of float32. Values that are not computed from floats are left out.
    """
    watch = _Precisions()
    with exact_types():
        bound = bind_inputs(model.inputs, inputs)
        try:
            if any(map(is_text, jax.tree.leaves(bound))):
                raise StaticValueError("JAX has no strings")
            jax.eval_shape(
                lambda params, inputs: [*model.intermediates(params, inputs, watch)][:0], model.params, bound
            )
        except StaticValueError:
            model.intermediates(model.params, bound, watch)
    return {str(value.name): dtype for value, dtype in watch.found.items() if value.name}


class _Precisions:
    """Computes nodes, and notes the float type with the fewest digits on the way to each value."""

    def __init__(self) -> None:
        self.found: dict[ir.Value, np.dtype] = {}

    def __call__(self, node: BoundNode, arguments: Sequence[Any], scope: Scope) -> tuple[Any, ...]:
        outputs = call(node, arguments, scope)
        before = [self.found[value] for value in reads_of(node) if value in self.found]
        moved = getattr(arguments[0], "dtype", None) if node.operator.traits.moves_first else None
        for value, result in zip(node.outputs, outputs, strict=False):
            dtypes = {leaf.dtype for leaf in jax.tree.leaves(result) if hasattr(leaf, "dtype")}
            # A type of 8 bits or less is a code for numbers, and not a type of arithmetic.
            own = [each for each in dtypes if each != moved and jnp.issubdtype(each, jnp.inexact) and each.itemsize > 1]
            if kinds := [*before, *own]:
                self.found[value] = max(kinds, key=lambda each: float(jnp.finfo(each).eps))
        return outputs
