"""Writing by index: ScatterElements, ScatterND, and chunks into caches.

Negative indices count from the end. Known indices are checked against the axis. Those that depend on data are not
written where they lie outside of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn._jax import varying
from jaxrnn._jax.context import own_arithmetic
from jaxrnn.onnx.operators.arithmetic import alike
from jaxrnn.onnx.operators.indexing import element_index, wrap_indices, wrap_tuples
from jaxrnn.onnx.operators.reshaping import axes_of
from jaxrnn.onnx.registry import bounded, earlier, since
from jaxrnn.onnx.text import moves_text
from jaxrnn.onnx.values import Value, is_static, is_symbolic, traced

_SCATTER = {"none": "set", "add": "add", "mul": "multiply", "max": "max", "min": "min"}


_REDUCE = {"add": jnp.add, "multiply": jnp.multiply, "max": jnp.maximum, "min": jnp.minimum}


def _scatter(reduction: str) -> str:
    if reduction not in _SCATTER:
        raise ValueError(f"reduction must be one of {', '.join(_SCATTER)}, not {reduction!r}")
    return _SCATTER[reduction]


@moves_text
def scatter_elements(data: Value, indices: Value, updates: Value, *, axis: int = 0, reduction: str = "none") -> Value:
    """ScatterElements."""
    alike(data, updates)
    (axis,) = axes_of([axis], len(data.shape))
    if reduction == "none" and is_static(data, indices, updates) and not is_symbolic(indices):
        result = data.astype(np.result_type(data, updates))  # a shape, perhaps with symbolic sizes
        np.put_along_axis(result, wrap_indices(indices, data.shape[axis]), updates, axis)
        return result
    index = traced(wrap_indices(indices, data.shape[axis])).astype(jnp.int32)
    return _write(traced(data), element_index(index, axis), traced(updates), _scatter(reduction))


@moves_text
def scatter_nd(data: Value, indices: Value, updates: Value, *, reduction: str = "none") -> Value:
    """ScatterND."""
    alike(data, updates)
    data, updates, operation = traced(data), traced(updates), _scatter(reduction)
    box = _box(indices, data.shape)
    if box is not None:
        sizes = [part.stop - part.start for part in box]
        return _write_box(data, box, updates.reshape(*sizes, *data.shape[len(box) :]), operation)
    index = wrap_tuples(indices, data.shape)
    return _write(data, tuple(jnp.moveaxis(index, -1, 0)), updates, operation)


def _write(data: jax.Array, index: tuple[jax.Array, ...], updates: jax.Array, operation: str) -> jax.Array:
    if operation == "multiply" and jnp.issubdtype(data.dtype, jnp.inexact):
        return _multiplied(data, updates, *index)
    return getattr(data.at[index], operation)(updates)


@jax.custom_jvp
def _multiplied(data: jax.Array, updates: jax.Array, *index: jax.Array) -> jax.Array:
    return data.at[index].multiply(updates)


@_multiplied.defjvp
@own_arithmetic()
def _multiplied_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
    """One update after another: where several meet in one element, JAX has no derivative of doing them at once."""
    (data, updates, *index), (d_data, d_updates, *_) = primals, tangents
    places = [part.reshape(-1) for part in index]

    def one_by_one(data: jax.Array, updates: jax.Array) -> jax.Array:
        def step(data: jax.Array, update: tuple[list[jax.Array], jax.Array]) -> tuple[jax.Array, None]:
            place, factor = update
            return data.at[tuple(place)].multiply(factor, unique_indices=True), None

        return varying.scan(step, data, (places, updates.reshape(-1, *data.shape[len(index) :])))[0]

    return jax.jvp(one_by_one, (data, updates), (d_data, d_updates))


def _box(indices: Value, sizes: tuple[Any, ...]) -> list[slice] | None:
    """The ranges that known indices of ScatterND cover in order, as exporters write ``x[:, a:b] = y``."""
    if not is_static(indices) or is_symbolic(indices) or not indices.size:
        return None
    columns = [wrap_indices(indices[..., d], sizes[d]).ravel() for d in range(indices.shape[-1])]
    ranges = [slice(int(column[0]), int(column[-1]) + 1) for column in columns]
    shape = [part.stop - part.start for part in ranges]
    if min(shape) < 1 or math.prod(shape) != columns[0].size:
        return None
    expected = (grid.ravel() + part.start for grid, part in zip(np.indices(shape), ranges, strict=True))
    return ranges if all(map(np.array_equal, columns, expected)) else None


def _write_box(data: jax.Array, box: Sequence[slice], updates: jax.Array, operation: str, axis: int = 0) -> jax.Array:
    """The data with a box of it updated, by slices and concatenations: fast, and known to every transformation."""
    while axis < len(box) and box[axis] == slice(0, data.shape[axis]):
        axis += 1
    if axis == len(box):
        return updates if operation == "set" else _REDUCE[operation](data, updates)
    before, inside, after = jnp.split(data, [box[axis].start, box[axis].stop], axis)
    parts = [before, _write_box(inside, box, updates, operation, axis + 1), after]
    return jnp.concatenate([part for part in parts if part.shape[axis]], axis)


@moves_text
def tensor_scatter(
    past: Value, update: Value, write_indices: Value = None, *, axis: int = -2, mode: str = "linear"
) -> Value:
    """TensorScatter: write a chunk of each row into a cache at the row's own position, which may be circular."""
    if mode not in ("linear", "circular"):
        raise ValueError(f"mode must be linear or circular, not {mode!r}")
    (axis,) = axes_of([axis], len(past.shape))
    cache, chunk = jnp.moveaxis(traced(past), axis, 1), jnp.moveaxis(traced(update), axis, 1)
    start = jnp.zeros(cache.shape[0], jnp.int64) if write_indices is None else traced(write_indices)
    index = start[:, None] + jnp.arange(chunk.shape[1])[None, :]
    if mode == "circular":
        index = index % cache.shape[1]
    written = jax.vmap(lambda row, at, new: row.at[at].set(new, mode="drop"))(cache, index, chunk)
    return jnp.moveaxis(written, 1, axis)


OPERATORS = {
    "Scatter": since(earlier(scatter_elements, "reduction"), 9, 11),
    "ScatterElements": bounded(scatter_elements, 11, 13, 16, 18),
    "ScatterND": bounded(scatter_nd, 11, 13, 16, 18),
    "TensorScatter": since(tensor_scatter, 24),
}
