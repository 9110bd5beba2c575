"""Why an update is not finite: the first example, node of the graph or parameter that is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxrnn._jax.context import exact_types
from jaxrnn.cells import matrix_products_in
from jaxrnn.training.batches import BatchChunk
from jaxrnn.training.forward import Forward
from jaxrnn.training.parameters import finite
from jaxrnn.training.updates import Updates, UpdateState

Arrays = Mapping[str, Any]


def explain(updates: Updates, before: UpdateState, after: UpdateState, chunk: BatchChunk, labels: list[str]) -> str:
    """What is not finite first in an update, in words.

    Args:
        updates: what was computed.
        before: the state before the update, which is finite.
        after: the state that it gave.
        chunk: the batch.
        labels: of the rows of the batch.
    """
    trained = [name for name in updates.forward.model.program.parameters if name in before.trained]
    carry = {name: _own_rows(array) for name, array in before.carry.items()}
    with matrix_products_in(updates.forward.dtype):
        reason = _on_examples(updates.forward, updates.params(before.trained), carry, chunk, trained, labels)
    if reason:
        return reason
    if updates.placement.processes > 1:
        return "the loss and the gradients of every example of this process are finite; see what the others say"
    bad = next((name for name in trained if not finite(after.trained[name])), None)
    if bad is None:
        return "the loss and the gradients of every example are finite, but not their means"
    return (
        f"the gradients are finite, but the update makes parameters infinite or NaN, the first of them {bad!r}; the "
        "learning rate may be too high"
    )


def _own_rows(array: jax.Array) -> np.ndarray:
    """This process's rows of an array that is split along its first axis."""
    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return np.concatenate([np.asarray(shard.data) for shard in shards])


def _on_examples(
    forward: Forward, params: Arrays, carry: Arrays, chunk: BatchChunk, trained: list[str], labels: list[str]
) -> str:
    """What goes wrong on the first example that does."""
    arrays, mask, weights = chunk.own
    device = next(iter(chunk.mask.addressable_shards)).device
    with jax.default_device(device), exact_types():
        params = jax.device_put({name: np.asarray(value) for name, value in params.items()})

        def row(index: int) -> tuple[Any, Any, Any]:
            return jax.tree.map(lambda x: jax.device_put(x[index]), (carry, arrays, mask))

    def loss_of(values: Arrays, state: Arrays, example: Arrays, mask: jax.Array) -> jax.Array:
        return forward.measure({**params, **values}, state, example, mask, chunk.ragged)[0]

    gradients = jax.jit(jax.value_and_grad(loss_of))
    values = {name: params[name] for name in trained}
    for index in map(int, np.flatnonzero(weights)):
        for name, array in {**arrays, **carry}.items():
            if not finite(array[index]):
                return f"{name!r} of {labels[index]} holds {_kind(array[index])}"
        loss, gradient = gradients(values, *row(index))
        bad = [name for name in trained if not finite(gradient[name])]
        if np.isfinite(loss) and not bad:
            continue
        if not np.isfinite(loss):
            where = _first_node(forward, params, *row(index), chunk.ragged)
            reason = where or "every output of the model is finite there, so it is the loss function that is not"
            return f"the loss of {labels[index]} is {_kind(np.asarray(loss))}; {reason}"
        return (
            f"the loss of {labels[index]} is finite ({float(loss):.4g}), but the first parameter whose gradient is not "
            f"is {bad[0]!r} ({_kind(gradient[bad[0]])})"
        )
    return ""


def _first_node(forward: Forward, params: Arrays, state: Arrays, example: Arrays, mask: Any, ragged: bool) -> str:
    """The first node of the graph with an output that is not finite, on one example."""
    layout, model = forward.layout, forward.model
    inputs = {info.name: example[info.name] for info in layout.inputs}
    if layout.mode != "scan":
        return _walk(forward, params, {**inputs, **forward.state_inputs(state)}, "")
    step = jax.jit(model.step)
    for frame in range(int(np.asarray(mask).sum())):
        here = _frame(forward, inputs, frame, mask.shape[0])
        outputs, new = step(params, state, here)
        if not all(map(finite, [*outputs.values(), *new.values()])):
            return _walk(forward, params, {**here, **forward.state_inputs(state)}, f", in frame {frame}")
        state = new
    return ""


def _frame(forward: Forward, inputs: Arrays, frame: int, count: int) -> dict[str, Any]:
    """The inputs of one frame of ``count``."""
    cut = {}
    for info in forward.layout.inputs:
        value, axis = inputs[info.name], forward.layout.axes.get(info.name)
        if axis is None:
            cut[info.name] = value
        elif value.ndim == len(info.shape or ()):
            size = value.shape[axis] // count
            cut[info.name] = jax.lax.slice_in_dim(value, frame * size, (frame + 1) * size, axis=axis)
        else:
            cut[info.name] = jax.lax.index_in_dim(value, frame, axis, keepdims=False)
    return cut


def _walk(forward: Forward, params: Arrays, inputs: Arrays, where: str) -> str:
    for name, (node, value) in forward.model.intermediates(params, inputs).items():
        if any(not finite(leaf) for leaf in jax.tree.leaves(value)):
            leaf = next(leaf for leaf in jax.tree.leaves(value) if not finite(leaf))
            return (
                f"the first node whose output is not finite is {node.name!r} ({node.operator}), output {name!r}"
                f"{where}: {_kind(leaf)}"
            )
    return ""


def _kind(array: Any) -> str:
    wide = np.asarray(array)
    wide = wide if wide.dtype.kind in "fc" else wide.astype(np.float32)
    return "NaN" if np.isnan(wide).any() else "infinity"
