"""LSTM, GRU, RNN and LinearAttention: conversion of ONNX's inputs, layouts and attributes to `jaxrnn.cells`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.cells.cell import GRU, LSTM, RNN, RecurrentCell, Weights, parse_activations
from jaxrnn.cells.linear_attention import AttentionFrames, linear_attention
from jaxrnn.cells.recurrence import DIRECTIONS, existing, run_layer
from jaxrnn.jaxprs.own import Carried, visible
from jaxrnn.onnx.evaluate import demand
from jaxrnn.onnx.operators.arithmetic import of_one_type, shapes_of
from jaxrnn.onnx.operators.types import widest
from jaxrnn.onnx.registry import Carries, Pair, Versions, bounded, inherits, since
from jaxrnn.onnx.values import Value, check_choice, is_known, is_static, traced


def make_cells(
    make: Callable[[tuple[Any, ...], float | None], RecurrentCell],
    default: tuple[str, ...],
    direction: str,
    *,
    activation_alpha: tuple[float, ...] | None = None,
    activation_beta: tuple[float, ...] | None = None,
    activations: tuple[str, ...] | None = None,
    clip: float | None = None,
) -> list[RecurrentCell]:
    """Return a cell for each direction, from attributes of a node; a ``clip`` of 0 means no clipping."""
    check_choice("direction", direction, DIRECTIONS)
    count = len(DIRECTIONS[direction])
    names = tuple(activations) if activations else default * count
    if len(names) != len(default) * count:
        raise ValueError(
            f"activations has {len(names)} names; {len(default)} for each of {count} direction(s) expected"
        )
    parsed = parse_activations(names, activation_alpha or (), activation_beta or ())
    each = len(default)
    return [make(parsed[index * each : (index + 1) * each], clip or None) for index in range(count)]


def check_shapes(
    gates: int, shapes: Mapping[str, tuple[Any, ...] | None], direction: str, hidden_size: int | None
) -> int | None:
    """Check the known operand shapes of a recurrent node, in layout 0; return the hidden size or None."""
    directions = len(DIRECTIONS.get(direction, DIRECTIONS["forward"]))
    for name in "XWR":
        shape = shapes.get(name)
        if shape is not None and len(shape) != 3:
            raise ValueError(f"{name} must have rank 3, but its shape is {shape}")
    r = shapes.get("R")
    hidden = hidden_size if r is None else r[-1]
    if hidden_size is not None and hidden_size != hidden:
        raise ValueError(f"hidden_size is {hidden_size}, but R of shape {r} is for {hidden}")
    if hidden is None:
        return None
    x, w = shapes.get("X"), shapes.get("W")
    features = x[2] if x is not None and x[2] is not None else w[2] if w is not None else None
    carry = None if x is None else (directions, x[1], hidden)
    expected = {
        "W": None if features is None else (directions, gates * hidden, features),
        "R": (directions, gates * hidden, hidden),
        "B": (directions, 2 * gates * hidden),
        "P": (directions, 3 * hidden),
        "initial_h": carry,
        "initial_c": carry,
    }
    for name, shape in expected.items():
        actual = shapes.get(name)
        if actual is not None and shape is not None and not _fits(actual, shape):
            raise ValueError(
                f"{name} has shape {actual}, but {shape} is expected for {directions} direction(s), {gates} gate(s), "
                f"hidden size {hidden} and {features} features"
            )
    return hidden


def _fits(shape: tuple[Any, ...], expected: tuple[Any, ...]) -> bool:
    """Return True if two shapes agree; None is an unknown dimension."""
    if len(shape) != len(expected):
        return False
    return all(a is None or b is None or a == b for a, b in zip(shape, expected, strict=True))


def checked_lengths(sequence_lens: Value, time: Any, batch: Any) -> jax.Array | None:
    """Return the lengths of the sequences, or None if all frames are known to exist."""
    if sequence_lens is None:
        return None
    if tuple(sequence_lens.shape) != (batch,):
        raise ValueError(f"sequence_lens has shape {tuple(sequence_lens.shape)}, but ({batch},) is expected")
    if is_known(sequence_lens) and isinstance(time, int):
        known = np.asarray(sequence_lens)
        if known.size and not (known.min() >= 0 and known.max() <= time):
            raise ValueError(f"sequence_lens {known.tolist()} must lie between 0 and the time axis' {time}")
        if is_static(sequence_lens) and np.all(known == time):
            return None
    demand(lambda: (sequence_lens >= 0) & (sequence_lens <= time))
    return traced(sequence_lens)


@inherits(make_cells)
def _layer(
    make: Callable[[tuple[Any, ...], float | None], RecurrentCell],
    default: tuple[str, ...],
    x: Value,
    w: Value,
    r: Value,
    b: Value,
    sequence_lens: Value,
    initial: Sequence[Value],
    p: Value = None,
    *,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    output_count: int,
    **of_cells: Any,
) -> list[Value]:
    """Run a recurrent operator: output Y and the final carries, in the layout of the node.

    The keyword-only parameters are the attributes that all recurrent operators share. ``make`` returns a cell from
    activations and the bound of ``clip``.
    """
    cells = make_cells(make, default, direction, **of_cells)
    of_one_type(x, w, r, b, p, *initial)
    check_choice("layout", layout, (0, 1))
    x, w, r = traced(x), traced(w), traced(r)
    b, p = (None if value is None else traced(value) for value in (b, p))
    carries = [None if value is None else traced(value) for value in initial]
    if layout and x.ndim == 3:
        x = jnp.swapaxes(x, 0, 1)
        carries = [None if value is None else jnp.swapaxes(value, 0, 1) for value in carries]
    names = ("X", "W", "R", "B", "P", "initial_h", "initial_c")
    shapes = {name: tuple(v.shape) for name, v in zip(names, (x, w, r, b, p, *carries), strict=False) if v is not None}
    check_shapes(cells[0].gates, shapes, direction, hidden_size)
    lengths = checked_lengths(sequence_lens, x.shape[0], x.shape[1])
    exists = None if lengths is None else existing(lengths, x.shape[0])
    y, final = run_layer(cells, Weights(w, r, b, p), x, carries, direction=direction, exists=exists)
    if layout:
        y = jnp.transpose(y, (2, 0, 1, 3))
        final = tuple(jnp.swapaxes(value, 0, 1) for value in final)
    return visible_layer([y, *final], initial, direction, layout, all_exist=sequence_lens is None)[:output_count]


def visible_layer(
    results: Sequence[jax.Array], initial: Sequence[Value], direction: str, layout: int = 0, *, all_exist: bool
) -> list[jax.Array]:
    """Wrap the outputs and final carries of a recurrent operator by `visible`."""
    steps = results[0].shape[layout]
    is_one = isinstance(steps, int) and steps == 1
    two_ways = direction == "bidirectional" and not is_one
    forward = direction == "forward" or is_one
    slots = []
    for index, slot in enumerate("hc"[: len(results) - 1]):
        if not two_ways:
            slots.append(Carried(slot, 1 + index, index, forward))
            continue
        slots.append(Carried(slot, 1 + index, index, True, (layout, 0)))
        slots.append(Carried(f"{slot}_reverse", 1 + index, index, False, (layout, 1)))
    starts = [None if value is None else traced(value) for value in initial]
    shown = layout if forward and all_exist and initial[0] is not None else None
    return visible(results, starts, slots, steps, shown=shown)


@inherits(_layer)
def lstm(
    X: Value,
    W: Value,
    R: Value,
    B: Value = None,
    sequence_lens: Value = None,
    initial_h: Value = None,
    initial_c: Value = None,
    P: Value = None,
    *,
    input_forget: int = 0,
    **layer: Any,
) -> list[Value]:
    """LSTM: Y, Y_h, Y_c."""
    make = functools.partial(LSTM, input_forget=bool(input_forget))
    initial = (initial_h, initial_c)
    return _layer(make, ("Sigmoid", "Tanh", "Tanh"), X, W, R, B, sequence_lens, initial, P, **layer)


@inherits(_layer)
def gru(
    X: Value,
    W: Value,
    R: Value,
    B: Value = None,
    sequence_lens: Value = None,
    initial_h: Value = None,
    *,
    linear_before_reset: int = 0,
    **layer: Any,
) -> list[Value]:
    """GRU: Y, Y_h."""
    make = functools.partial(GRU, linear_before_reset=bool(linear_before_reset))
    return _layer(make, ("Sigmoid", "Tanh"), X, W, R, B, sequence_lens, (initial_h,), **layer)


@inherits(_layer)
def rnn(
    X: Value, W: Value, R: Value, B: Value = None, sequence_lens: Value = None, initial_h: Value = None, **layer: Any
) -> list[Value]:
    """RNN: Y, Y_h."""
    return _layer(RNN, ("Tanh",), X, W, R, B, sequence_lens, (initial_h,), **layer)


def _check_declared(gates: int, shapes: Mapping[str, Any], attributes: Mapping[str, Any]) -> None:
    """Check the shapes that a file declares in either layout, without carries, time and batch."""
    known = {name: shapes[name] for name in "XWRBP" if name in shapes}
    if known.get("X") is not None:
        known["X"] = (None, None, *known["X"][2:])
    check_shapes(gates, known, attributes.get("direction", "forward"), attributes.get("hidden_size"))


def _equal_in_layer(attributes: Mapping[str, Any], operands: Sequence[Any], open_sizes: Any) -> Iterator[Pair]:
    """Yield the sizes that a layer needs to be equal."""
    x, w, r, _, lengths, *initial = [*shapes_of(operands), *[None] * 7][:7]
    batch = 0 if attributes.get("layout", 0) else 1
    if x is None or len(x) != 3:
        return
    if w:
        yield x[2], w[2]
    for start in initial:
        if start and r and len(start) == 3:
            yield start[2], r[2]
            yield start[1 - batch], r[0]
            yield start[batch], x[batch]
    if lengths:
        yield lengths[0], x[batch]


#: The carries depend on direction and layout, so that the function declares them (`visible_layer`).
_carries = functools.partial(Carries, by_function=True, weights=(1, 2, 3, 7), features=(1, -1), hidden=(2, -1))
_H, _C = {"h": (5, 1)}, {"c": (6, 2)}


def _before_opset_7(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operator with the attribute `output_sequence`, which repeats the outputs of a node."""

    def layer(*inputs: Value, output_sequence: int = 0, **attributes: Any) -> list[Value]:
        del output_sequence
        return function(*inputs, **attributes)

    parameters = inspect.signature(function).parameters.values()
    own = inspect.signature(layer).parameters["output_sequence"]
    layer.__signature__ = inspect.Signature([*parameters, own])  # type: ignore[attr-defined]
    return layer


def _entry(function: Callable[..., Any], gates: int, states: Mapping[str, tuple[int, int]], *before: int) -> Versions:
    check = functools.partial(_check_declared, gates)
    newer = bounded(function, 7, 14, 22, carries=_carries(states), equal_sizes=_equal_in_layer, check=check)
    return newer | since(_before_opset_7(function), *before)


#: By rule: whether the state decays, and whether it is updated by the delta rule.
RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}


def linear_attention_operator(
    query: Value,
    key: Value,
    value: Value,
    past_state: Value = None,
    decay: Value = None,
    beta: Value = None,
    *,
    chunk_size: int = 64,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
) -> list[Value]:
    """LinearAttention: the output and the new state, computed in float32 or in the type of wider inputs."""
    del chunk_size  # has no effect on values
    inputs = [x for x in (query, key, value, decay, beta) if x is not None]
    of_one_type(*inputs)
    check_choice("update_rule", update_rule, RULES)
    for name, operand, needed in zip(("decay", "beta"), (decay, beta), RULES[update_rule], strict=True):
        if needed != (operand is not None):
            rule = f"the update rule {update_rule!r}"
            raise ValueError(f"{rule} needs {name}, which is missing" if needed else f"{rule} takes no {name}")
    if kv_num_heads < 1 or q_num_heads < 1 or q_num_heads % kv_num_heads:
        raise ValueError(f"q_num_heads must be a multiple of kv_num_heads, not {q_num_heads} and {kv_num_heads}")
    ranks = [len(x.shape) for x in inputs]
    if set(ranks) != {3} or any(tuple(x.shape[:2]) != tuple(query.shape[:2]) for x in inputs):
        shown = ", ".join(str(tuple(x.shape)) for x in inputs)
        raise ValueError(f"the inputs must have rank 3, equal batches and equal lengths, but their shapes are {shown}")
    dtype = widest(query.dtype, query.dtype if past_state is None else past_state.dtype)
    q = _heads(query, q_num_heads, "query")
    frames = AttentionFrames(
        query=q.reshape((*q.shape[:2], kv_num_heads, q_num_heads // kv_num_heads, q.shape[3])),
        key=_heads(key, kv_num_heads, "key"),
        value=_heads(value, kv_num_heads, "value"),
        decay=None if decay is None else _heads(decay, kv_num_heads, "decay"),
        rate=None if beta is None else _heads(beta, 1 if beta.shape[2] == 1 else kv_num_heads, "beta"),
    )
    size, width = frames.key.shape[3], frames.value.shape[3]
    if frames.query.shape[4] != size:
        raise ValueError(f"a head of the query has {frames.query.shape[4]} features, but one of the key {size}")
    if frames.decay is not None and frames.decay.shape[3] not in (1, size):
        raise ValueError(f"decay must have 1 or {size} features for each head of the key, not {frames.decay.shape[3]}")
    if frames.rate is not None and frames.rate.shape[3] != 1:
        raise ValueError(f"beta must have 1 feature, or 1 for each head of the key, not {frames.rate.shape[2:]}")
    shape = (query.shape[0], kv_num_heads, size, width)
    if past_state is not None and tuple(past_state.shape) != shape:
        raise ValueError(f"past_state has shape {tuple(past_state.shape)}, but {shape} is expected")
    start = jnp.zeros(shape, dtype) if past_state is None else traced(past_state).astype(dtype)
    y, state = linear_attention(jax.tree.map(lambda x: x.astype(dtype), frames), start)
    y = y * jnp.asarray(scale or max(size, 1) ** -0.5, dtype)
    y = y.reshape((*y.shape[:2], q_num_heads * width)).swapaxes(0, 1)
    return [y.astype(query.dtype), state.astype(query.dtype if past_state is None else past_state.dtype)]


def _heads(x: Value, heads: int, name: str) -> jax.Array:
    """Reshape ``[batch, time, heads * size]`` to ``[time, batch, heads, size]``."""
    x = traced(x).swapaxes(0, 1)
    if x.shape[2] % heads:
        raise ValueError(f"{name} has {x.shape[2]} features, which cannot be cut into {heads} heads")
    return x.reshape((*x.shape[:2], heads, x.shape[2] // heads))


OPERATORS: dict[str, Versions] = {
    "GRU": _entry(gru, GRU.gates, _H, 1, 3),
    "LSTM": _entry(lstm, LSTM.gates, _H | _C, 1),
    "RNN": _entry(rnn, RNN.gates, _H, 1),
    "LinearAttention": since(
        linear_attention_operator, 27, carries=Carries({"state": (3, 1)}, time_axis=1, features=(0, 2))
    ),
}
