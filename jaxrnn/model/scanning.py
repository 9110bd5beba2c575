"""A whole recording through a step in one call: where its frames are, and how many each stream has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxrnn._files.messages import describe
from jaxrnn._jax.context import exact_types
from jaxrnn.errors import InputError
from jaxrnn.jaxprs.scanning import scan as hoisted_scan
from jaxrnn.steps.specs import ArraySpec, converted

if TYPE_CHECKING:
    from jaxrnn.model.steps import Steps

Arrays = Mapping[str, Any]


def scan(
    steps: Steps,
    params: Any,
    state: Arrays,
    inputs: Arrays,
    time_axis: int | Mapping[str, int],
    lengths: jax.Array | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Steps over a time axis, carry-independent work in one go."""
    with exact_types():
        lead = steps.lead(state, inputs, frames=1)
        batched = bool(lead)
        axes = {info.name: _axis_of(time_axis, info.name) for info in steps.spec.inputs}
        frames = {info.name: _frames(info, inputs, axes[info.name], batched) for info in steps.spec.inputs}
        counts = {name: array.shape[0] for name, (array, _) in frames.items()}
        if not counts:
            raise InputError("a model without inputs besides its state has no time axis to scan")
        if len(set(counts.values())) > 1:
            raise InputError(f"the inputs must have one number of frames, not {counts}")
        stacked = all(is_stacked for _, is_stacked in frames.values())
        arrays = {name: array for name, (array, _) in frames.items()}
        batch = lead[0] if lead else steps.spec.batch(state) or 1
        exists = None if lengths is None else _existing(lengths, next(iter(counts.values())), batch)
        example = {name: jax.ShapeDtypeStruct(array.shape[1:], array.dtype) for name, array in arrays.items()}
        update = None if exists is None else _masked_update(steps, batched)
        results, final = hoisted_scan(
            lambda p, frame, carry: steps.step(p, carry, frame),
            params,
            arrays,
            dict(state),
            exists=exists,
            masked_update=update,
        )
        if exists is not None:
            results = _blank(steps, results, exists, params, state, example, batched)
        return {name: _unstack(value, _axis_of(time_axis, name), stacked) for name, value in results.items()}, final


def _frames(info: ArraySpec, inputs: Arrays, axis: int, batched: bool) -> tuple[jax.Array, bool]:
    """An input as ``[frames, ...]``, and whether its frames were stacked along an axis of their own."""
    if info.name not in inputs:
        raise InputError(f"missing input: {info}")
    if info.shape is None:
        raise InputError(f"{info.as_input} has no declared rank, so its frames cannot be told apart")
    value = converted(info, inputs[info.name])
    rank = len(info.shape) + batched
    if value.ndim == rank + 1:
        return jnp.moveaxis(value, axis, 0), True
    if value.ndim != rank or not -rank <= axis < rank:
        raise InputError(
            f"{info.as_input} got {describe(value)}: a recording has one axis more, for the frames, or the frames "
            f"joined along axis {axis}"
        )
    axis %= rank
    size = None if batched and axis == 0 else info.shape[axis - batched]
    if isinstance(size, int) and size and not value.shape[axis] % size:
        return _cut(value, axis, size), False
    why = {
        int: f"axis {axis} cannot be cut into frames of {size}",
        str: f"the file leaves axis {axis} open, so that one step takes all of these frames",
    }.get(type(size), f"axis {axis} is that of the streams")
    raise InputError(
        f"{info.as_input} got {describe(value)}: {why}; to scan, stack the frames along an axis of their own"
    )


def _cut(value: jax.Array, axis: int, size: int) -> jax.Array:
    """Frames that are joined along an axis, as ``[frames, ...]``."""
    cut = value.reshape((*value.shape[:axis], value.shape[axis] // size, size, *value.shape[axis + 1 :]))
    return jnp.moveaxis(cut, axis, 0)


def _existing(lengths: jax.Array, frames: int, batch: int) -> jax.Array:
    """``bool[frames, batch]``."""
    if lengths.shape != (batch,) or not jnp.issubdtype(lengths.dtype, jnp.integer):
        raise InputError(f"lengths must be {batch} integers, one for each stream, not {describe(lengths)}")
    return jnp.arange(frames, dtype=lengths.dtype)[:, None] < lengths[None, :]


def _masked_update(steps: Steps, batched: bool) -> Any:
    """How a frame that does not exist leaves the carry of its stream alone."""
    axes = {
        name: 0 if batched else next((a for a, size in enumerate(v.shape) if size == steps.spec.batch_symbol), None)
        for name, v in steps.state.items()
    }

    def update(exists: jax.Array, new: Arrays, old: Arrays) -> dict[str, Any]:
        return {name: jnp.where(_along(exists, axes[name], new[name].ndim), new[name], old[name]) for name in new}

    return update


def _blank(
    steps: Steps, results: Arrays, exists: jax.Array, params: Any, state: Arrays, example: Arrays, batched: bool
) -> dict[str, Any]:
    """Outputs ``[frames, ...]`` with zeros where a stream has no frame."""
    axes = dict.fromkeys(results, 0) if batched else _batch_axes_of_outputs(steps, params, state, example)
    blanked = {}
    for name, value in results.items():
        mask = jax.vmap(lambda here, axis=axes[name], rank=value.ndim - 1: _along(here, axis, rank))(exists)
        blanked[name] = jnp.where(mask, value, jnp.zeros((), value.dtype))
    return blanked


def _batch_axes_of_outputs(steps: Steps, params: Any, state: Arrays, example: Arrays) -> dict[str, int | None]:
    """Which axis of every output grows with the batch, seen by tracing with one stream more."""
    if steps.spec.batch_symbol is None:
        return {info.name: None for info in steps.spec.outputs}

    def shapes(extra: int) -> dict[str, tuple[int, ...]]:
        def grown(shape: Sequence[Any], declared: Sequence[Any] | None) -> tuple[int, ...]:
            names = declared or shape
            return tuple(s + extra if n == steps.spec.batch_symbol else s for s, n in zip(shape, names, strict=True))

        carry = {n: jax.ShapeDtypeStruct(grown(state[n].shape, v.shape), v.dtype) for n, v in steps.state.items()}
        declared = {info.name: info.shape for info in steps.spec.inputs}
        frame = {n: jax.ShapeDtypeStruct(grown(e.shape, declared[n]), e.dtype) for n, e in example.items()}
        outputs, _ = jax.eval_shape(steps.one_step, params, carry, frame)
        return {name: value.shape for name, value in outputs.items()}

    one, more = shapes(0), shapes(1)
    return {
        name: next((a for a, (x, y) in enumerate(zip(one[name], more[name], strict=True)) if x != y), None)
        for name in one
    }


def _axis_of(time_axis: int | Mapping[str, int], name: str) -> int:
    return time_axis if isinstance(time_axis, int) else time_axis.get(name, 0)


def _along(mask: jax.Array, axis: int | None, rank: int) -> jax.Array:
    """A mask over streams, shaped to select along the batch axis of an array; a single stream has none."""
    if axis is None:
        return mask.reshape((1,) * rank)
    return mask.reshape(tuple(mask.shape[0] if d == axis else 1 for d in range(rank)))


def _unstack(value: jax.Array, axis: int, stacked: bool) -> jax.Array:
    """Outputs with the frames where the caller had them in the inputs: on an axis of their own, or joined."""
    if stacked:
        return jnp.moveaxis(value, 0, axis)
    rank = value.ndim - 1
    if not -rank <= axis < rank:
        return value  # the output has no such axis: its frames stay in front
    axis %= rank
    moved = jnp.moveaxis(value, 0, axis)
    return moved.reshape((*moved.shape[:axis], math.prod(moved.shape[axis : axis + 2]), *moved.shape[axis + 2 :]))
