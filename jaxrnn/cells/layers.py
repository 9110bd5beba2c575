"""A recurrent layer as ONNX has it: all directions in one, with the weights and the carries of a direction stacked.

In plain forms, a layer is one equation of its own primitive, which a lowering to ONNX can write as one node. JAX's
transformations go through it: mapped layers are one layer over a larger batch, and derivatives are those of the layer
in its usual form.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxrnn._jax.context import own_arithmetic
from jaxrnn.cells.cell import Carry, Cell, Weights
from jaxrnn.cells.platforms import is_plain
from jaxrnn.cells.products import Types
from jaxrnn.cells.recurrence import exists_of, run


def run_layer(
    cells: Sequence[Cell],
    weights: Weights,
    x: jax.Array,
    initial: Sequence[jax.Array | None],
    *,
    direction: str = "forward",
    lengths: jax.Array | None = None,
    exists: jax.Array | None = None,
) -> tuple[jax.Array, Carry]:
    """Run a layer of one or two directions, D.

    Args:
        cells: one for each direction.
        weights: those of each direction, with an axis of size D in front.
        x: ``[time, batch, features]``.
        initial: the arrays of the carry before the first step, each ``[D, batch, hidden]``; None for zeros.
        direction: ``"forward"``, ``"reverse"`` or ``"bidirectional"``.
        lengths: as in `run`.
        exists: ``bool[time, batch or 1]``, which frames exist, in place of the lengths.

    Returns:
        Outputs ``[time, D, batch, hidden]`` and the final carry, arrays ``[D, batch, hidden]``.
    """
    if not is_plain():
        return written_out(cells, weights, x, initial, direction=direction, lengths=lengths, exists=exists)
    shape = (len(cells), x.shape[1], weights.recurrent.shape[-1])
    starts = tuple(jnp.zeros(shape, x.dtype) if each is None else each for each in initial)
    mask = exists_of(x, lengths)
    operands, structure = jax.tree.flatten((x, starts, weights, exists if mask is None else mask[..., 0]))
    y, *final = layer_p.bind(
        *operands, cells=tuple(cells), direction=direction, structure=structure, types=Types.here(), fills=True
    )
    return y, tuple(final)


def written_out(
    cells: Sequence[Cell],
    weights: Weights,
    x: jax.Array,
    initial: Sequence[jax.Array | None],
    *,
    direction: str,
    lengths: jax.Array | None = None,
    exists: jax.Array | None = None,
) -> tuple[jax.Array, Carry]:
    """As `run_layer`, step by step in plain forms too."""
    batch, hidden = x.shape[1], weights.recurrent.shape[-1]
    zeros = jnp.zeros((batch, hidden), x.dtype)
    carries = [tuple(zeros if each is None else each[d] for each in initial) for d in range(len(cells))]
    parts = [jax.tree.map(lambda each, d=d: each[d], weights) for d in range(len(cells))]
    exists = None if exists is None else exists[..., None]
    return run(cells, parts, x, carries, direction=direction, lengths=lengths, exists=exists)


#: A layer in plain forms. Its operands are the leaves of ``(x, initial, weights, exists)`` as `run_layer` takes them,
#: with the parameters ``cells``, ``direction``, ``structure``, the tree of the operands, ``types``, and ``fills``,
#: whether outputs are zeros in frames that do not exist: otherwise, they may be anything. Its results are the outputs
#: and the arrays of the final carry.
layer_p = Primitive("recurrent_layer")
layer_p.multiple_results = True


@own_arithmetic()
def computed(
    *operands: Any, cells: tuple[Cell, ...], direction: str, structure: Any, types: Types, fills: bool
) -> list[jax.Array]:
    """The results of the primitive, in the usual forms."""
    x, initial, weights, exists = jax.tree.unflatten(structure, operands)
    with dataclasses.replace(types, plain=False).in_force():
        y, final = run_layer(cells, weights, x, initial, direction=direction, exists=exists)
    return [y, *final]


def _shapes(*operands: Any, cells: tuple[Cell, ...], structure: Any, **_: Any) -> list[Any]:
    x, initial, _weights, _exists = jax.tree.unflatten(structure, operands)
    _, batch, hidden = initial[0].shape
    return [x.update(shape=(x.shape[0], len(cells), batch, hidden)), *initial]


def _batched(operands: Any, axes: Any, **params: Any) -> Any:
    """A layer over a larger batch, with the mapped axis in front; several layers where weights are mapped."""
    structure = params["structure"]
    x, initial, weights, exists = jax.tree.unflatten(structure, operands)
    places = jax.tree.unflatten(structure, [-1 if axis is None else axis for axis in axes])
    if any(place >= 0 for place in jax.tree.leaves(places[2])):
        return jax.vmap(functools.partial(computed, **params), axes)(*operands), [0] * (1 + len(initial))
    size = next(operand.shape[axis] for operand, axis in zip(operands, axes, strict=True) if axis is not None)
    batch = x.shape[1 + (0 <= places[0] <= 1)]

    def merged(array: jax.Array, place: int) -> jax.Array:
        """The array with the mapped axis merged into its batch, the second axis of all operands."""
        rows = array.ndim - (place >= 0)
        front = jnp.expand_dims(array, 1) if place < 0 else jnp.moveaxis(array, place, 1)
        shape = (front.shape[0], size, batch, *front.shape[3:])
        assert front.ndim == rows + 1
        return jnp.broadcast_to(front, shape).reshape(shape[0], size * batch, *shape[3:])

    initial = tuple(map(merged, initial, places[1]))
    if exists is not None and (places[3] >= 0 or exists.shape[1] != 1):
        exists = merged(exists, places[3])
    results = layer_p.bind(*jax.tree.leaves((merged(x, places[0]), initial, weights, exists)), **params)
    apart = [each.reshape(*each.shape[:-2], size, batch, each.shape[-1]) for each in results]
    return apart, [each.ndim - 3 for each in apart]


def _layer_jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    moving = [index for index, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]

    def of_moving(*some: Any) -> list[jax.Array]:
        merged = list(primals)
        for index, value in zip(moving, some, strict=True):
            merged[index] = value
        return computed(*merged, **params)

    return jax.jvp(of_moving, [primals[index] for index in moving], [tangents[index] for index in moving])


layer_p.def_impl(computed)
layer_p.def_abstract_eval(_shapes)
mlir.register_lowering(layer_p, mlir.lower_fun(computed, multiple_results=True))
batching.primitive_batchers[layer_p] = _batched
ad.primitive_jvps[layer_p] = _layer_jvp
