"""The skeleton of recurrent layers: time, direction, sequence lengths, stacking, and derivatives."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxrnn._jax import varying
from jaxrnn._jax.context import own_arithmetic
from jaxrnn.cells.cell import Carry, RecurrentCell, Weights
from jaxrnn.cells.forms import Types, in_blocks, in_chunks, is_in_parts, is_plain, matrix_products_in, product_type

DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}

#: The most bytes of the recurrent weights of a direction for which both directions of a layer over a single row run in
#: a single loop, because products take little of the time. With larger weights, two loops are faster on CPUs.
SMALL = 1 << 17


def run_direction(
    cell: RecurrentCell,
    weights: Weights,
    x: jax.Array,
    initial: Carry,
    *,
    reverse: bool = False,
    exists: jax.Array | None = None,
) -> tuple[jax.Array, Carry]:
    """Run a cell over frames ``[time, batch, features]`` in one direction.

    The carry has arrays ``[batch, hidden]``. Returns outputs ``[time, batch, hidden]`` in the order of the input, and
    the final carry. ``exists``, ``bool[time, batch or 1, 1]``, marks the frames that exist: in both directions,
    other frames leave the carry unchanged and output zeros. A single frame compiles without a loop. Without frames, the
    final carry is the initial carry.
    """
    input_weights, recurrent = cell.prepare(weights, x.dtype)
    if isinstance(x.shape[0], int) and x.shape[0] == 1:
        new = cell.step(recurrent, initial, cell.split_gates(cell.project(input_weights, x[0])))
        return masked_output(exists, new[0][None]), masked_update(None if exists is None else exists[0], new, initial)

    def block(carry: Carry, frames: tuple[jax.Array, jax.Array | None]) -> tuple[Carry, jax.Array]:
        frame, mask = frames
        return sequence(cell, reverse, product_type(), recurrent, carry, cell.project(input_weights, frame), mask)

    def run(carry: Carry, frames: tuple[jax.Array, jax.Array | None]) -> tuple[Carry, jax.Array]:
        return in_blocks(block, carry, frames, _bytes_a_frame(cell, initial), reverse=reverse)

    final, y = in_chunks(run, initial, (x, exists), reverse=reverse)
    return y, final


def _bytes_a_frame(cell: RecurrentCell, initial: Carry) -> Any:
    """Return the bytes of a projected frame."""
    return cell.gates * initial[0].size * initial[0].dtype.itemsize


def _is_one_loop(
    cells: Sequence[RecurrentCell], weights: Sequence[Weights], x: jax.Array, initial: Sequence[Carry]
) -> bool:
    """Return True if the two directions of a layer run in one loop.

    The gradient of several rows is faster in two loops. A symbolic number of rows is the number of frames in a pulse:
    few.
    """
    frames, rows = x.shape[:2]
    return (
        len(cells) == 2
        and not is_plain()
        and cells[0] == cells[1]
        and isinstance(frames, int)
        and frames > 1
        and (not isinstance(rows, int) or rows == 1)
        and weights[0].recurrent.nbytes <= SMALL
        and not is_in_parts(frames, _bytes_a_frame(cells[0], initial[0]))
    )


def _run_both(
    cell: RecurrentCell, weights: Sequence[Weights], x: jax.Array, initial: Sequence[Carry], exists: jax.Array | None
) -> tuple[jax.Array, Carry]:
    """Run two directions in one loop over a batch of two; the second direction has reversed frames."""

    def both(array: jax.Array) -> jax.Array:
        return jnp.stack([array, jnp.flip(array, 0)], 1)

    prepared = [cell.prepare(each, x.dtype) for each in weights]
    inputs, recurrent = jax.tree.map(lambda *pair: jnp.stack(pair), *prepared)
    start = jax.tree.map(lambda *pair: jnp.stack(pair), *initial)
    projected = jax.vmap(cell.project, (0, 1), 1)(inputs, both(x))
    one = functools.partial(sequence, cell, False, product_type())
    mask = None if exists is None else both(exists)
    final, y = jax.vmap(one, (0, 0, 1, 1), (0, 1))(recurrent, start, projected, mask)
    return jnp.stack([y[:, 0], jnp.flip(y[:, 1], 0)], 1), final


def sequence(
    cell: RecurrentCell,
    reverse: bool,
    dtype: np.dtype | None,
    recurrent: Any,
    initial: Carry,
    projected: jax.Array,
    exists: jax.Array | None,
) -> tuple[Carry, jax.Array]:
    """Run a cell over all frames, from the projected inputs ``[time, batch, gates * hidden]`` and recurrent weights.

    The operand type of products, ``dtype``, is an argument because JAX may trace the derivative long after the context
    `matrix_products_in` has ended. Otherwise like `run_direction`, but returns the final carry first.
    """
    return _sequence(cell, reverse, dtype, *varying.alike(recurrent, initial, projected, exists))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _sequence(
    cell: RecurrentCell,
    reverse: bool,
    dtype: np.dtype | None,
    recurrent: Any,
    initial: Carry,
    projected: jax.Array,
    exists: jax.Array | None,
) -> tuple[Carry, jax.Array]:
    plain = is_plain()  # a step of an engine reads one array, and splits the array

    def step(carry: Carry, frame: tuple[Any, jax.Array | None]) -> tuple[Carry, jax.Array]:
        gates, mask = frame
        new = cell.step(recurrent, carry, cell.split_gates(gates) if plain else gates)
        return masked_update(mask, new, carry), masked_output(mask, new[0])

    with matrix_products_in(dtype):
        return varying.scan(
            step, initial, (projected if plain else cell.split_gates(projected), exists), reverse=reverse
        )


@own_arithmetic()
def _jvp(
    cell: RecurrentCell, reverse: bool, dtype: np.dtype | None, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[tuple[Carry, jax.Array], tuple[Carry, jax.Array]]:
    recurrent, initial, projected, exists = primals
    d_recurrent, d_initial, d_projected, _ = tangents

    def step(carry: Carry, frame: tuple[Any, jax.Array | None]) -> tuple[Carry, Any]:
        gates, mask = frame
        new, coefficients = cell.linearize(recurrent, carry, gates)
        new = masked_update(mask, new, carry)
        residuals = cell.residuals(recurrent, carry, new)
        # Where all frames exist, the hidden state before a step is the output of the step before it.
        return new, (masked_output(mask, new[0]), coefficients, residuals if mask is None else (carry[0], *residuals))

    def linear_step(d_carry: Carry, frame: Any) -> tuple[Carry, jax.Array]:
        d_gates, coefficients, mask = frame
        d_new = masked_update(mask, cell.tangent(recurrent, coefficients, d_carry, d_gates), d_carry)
        return d_new, masked_output(mask, d_new[0])

    with matrix_products_in(dtype):
        frames = cell.split_gates(projected), exists
        final, (y, coefficients, residuals) = varying.scan(step, initial, frames, reverse=reverse)
        d_total = _dense(d_projected)
        if not all(map(_is_zero, jax.tree.leaves(d_recurrent, is_leaf=_is_zero))):
            if exists is None:
                before = (y[1:], initial[0][None]) if reverse else (initial[0][None], y[:-1])
                # Without frames, there is no hidden state before a frame.
                residuals = (jnp.concatenate(before) if y.shape[0] != 0 else y, *residuals)
            d_weights = jax.tree.map(_dense, d_recurrent, is_leaf=_is_zero)
            d_total = d_total + cell.weight_tangents(d_weights, residuals, coefficients)
        d_start = tuple(map(_dense, d_initial))
        d_frames = cell.split_gates(d_total), coefficients, exists
        d_final, d_y = varying.scan(linear_step, d_start, d_frames, reverse=reverse)
    return (final, y), (d_final, d_y)


_sequence.defjvp(_jvp, symbolic_zeros=True)


def _is_zero(value: Any) -> bool:
    return isinstance(value, SymbolicZero)


def _dense(tangent: Any) -> Any:
    return jnp.zeros(tangent.shape, tangent.dtype) if _is_zero(tangent) else tangent


def masked_update(mask: jax.Array | None, new: Carry, old: Carry) -> Carry:
    """Return the carry after a step: the new carry in existing frames, else the old carry."""
    if mask is None:
        return new
    return tuple(jnp.where(mask, after, before) for after, before in zip(new, old, strict=True))


def masked_output(mask: jax.Array | None, y: jax.Array) -> jax.Array:
    """Return the output of a step, with zeros in frames that do not exist."""
    return y if mask is None else jnp.where(mask, y, jnp.zeros((), y.dtype))


def run_layer(
    cells: Sequence[RecurrentCell],
    weights: Weights,
    x: jax.Array,
    initial: Sequence[jax.Array | None],
    *,
    direction: str = "forward",
    exists: jax.Array | None = None,
) -> tuple[jax.Array, Carry]:
    """Run a layer of one or two directions, D, with a cell for each direction.

    Weights and the carry have a leading axis D; None in ``initial`` means zeros. ``exists`` is ``bool[time, batch or
    1]``, or None if all frames exist. Returns outputs ``[time, D, batch, hidden]`` and the final carry, arrays ``[D,
    batch, hidden]``. Otherwise like `run_direction`.
    """
    if not is_plain():
        return written_out(cells, weights, x, initial, direction=direction, exists=exists)
    shape = (len(cells), x.shape[1], weights.recurrent.shape[-1])
    starts = tuple(jnp.zeros(shape, x.dtype) if each is None else each for each in initial)
    operands, structure = jax.tree.flatten((x, starts, weights, exists))
    y, *final = layer_p.bind(
        *operands, cells=tuple(cells), direction=direction, structure=structure, types=Types.here(), fills=True
    )
    return y, tuple(final)


def written_out(
    cells: Sequence[RecurrentCell],
    weights: Weights,
    x: jax.Array,
    initial: Sequence[jax.Array | None],
    *,
    direction: str,
    exists: jax.Array | None = None,
) -> tuple[jax.Array, Carry]:
    """Run a layer like `run_layer`, but step by step also in plain forms."""
    zeros = jnp.zeros((x.shape[1], weights.recurrent.shape[-1]), x.dtype)
    starts = [tuple(zeros if each is None else each[d] for each in initial) for d in range(len(cells))]
    parts = [jax.tree.map(lambda each, d=d: each[d], weights) for d in range(len(cells))]
    mask = None if exists is None else exists[..., None]
    if _is_one_loop(cells, parts, x, starts):
        return _run_both(cells[0], parts, x, starts, mask)
    rows = zip(cells, parts, starts, DIRECTIONS[direction], strict=True)
    results = [run_direction(cell, part, x, start, reverse=way, exists=mask) for cell, part, start, way in rows]
    outputs = jnp.stack([y for y, _ in results], 1)
    return outputs, tuple(jnp.stack(arrays) for arrays in zip(*(carry for _, carry in results), strict=True))


def existing(lengths: jax.Array, frames: Any) -> jax.Array:
    """Return the existing frames of each row, ``bool[time, batch]``."""
    return jnp.arange(frames, dtype=lengths.dtype)[:, None] < lengths[None, :]


#: A layer in plain forms. Its operands are the leaves of ``(x, initial, weights, exists)`` as `run_layer` takes them,
#: with the parameters ``cells``, ``direction``, ``structure``, the tree of the operands, ``types``, and ``fills``,
#: which is True if outputs must be zeros in frames that do not exist. Its results are the outputs and the arrays of the
#: final carry.
layer_p = Primitive("recurrent_layer")
layer_p.multiple_results = True


@own_arithmetic()
def computed(
    *operands: Any, cells: tuple[RecurrentCell, ...], direction: str, structure: Any, types: Types, fills: bool
) -> list[jax.Array]:
    """Evaluate the primitive in the usual forms."""
    x, initial, weights, exists = jax.tree.unflatten(structure, operands)
    with dataclasses.replace(types, plain=False).in_force():
        y, final = run_layer(cells, weights, x, initial, direction=direction, exists=exists)
    return [y, *final]


def _shapes(*operands: Any, cells: tuple[RecurrentCell, ...], structure: Any, **_: Any) -> list[Any]:
    x, initial, _weights, _exists = jax.tree.unflatten(structure, operands)
    _, batch, hidden = initial[0].shape
    return [x.update(shape=(x.shape[0], len(cells), batch, hidden)), *initial]


def _batched(operands: Any, axes: Any, **params: Any) -> Any:
    """Merge the mapped axis into the batch of a layer; if weights are mapped, map the whole layer."""
    structure = params["structure"]
    x, initial, weights, exists = jax.tree.unflatten(structure, operands)
    places = jax.tree.unflatten(structure, [-1 if axis is None else axis for axis in axes])
    if any(place >= 0 for place in jax.tree.leaves(places[2])):
        return jax.vmap(functools.partial(computed, **params), axes)(*operands), [0] * (1 + len(initial))
    size = next(operand.shape[axis] for operand, axis in zip(operands, axes, strict=True) if axis is not None)
    batch = x.shape[1 + (0 <= places[0] <= 1)]

    def merged(array: jax.Array, place: int) -> jax.Array:
        """Merge the mapped axis into the batch, the second axis of all operands."""
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
