"""LinearAttention: from ONNX's layout to the recurrence of `jaxrnn.cells`."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrnn.cells.linear_attention import linear_attention
from jaxrnn.cells.linear_attention_chunks import AttentionFrames
from jaxrnn.onnx.operators.arithmetic import alike
from jaxrnn.onnx.operators.rounding import widest
from jaxrnn.onnx.registry import Carries, since
from jaxrnn.onnx.values import Value, traced

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
    alike(*inputs)
    if update_rule not in RULES:
        raise ValueError(f"update_rule must be one of {', '.join(RULES)}, not {update_rule!r}")
    for name, operand, needed in zip(("decay", "beta"), (decay, beta), RULES[update_rule], strict=True):
        if needed != (operand is not None):
            rule = f"the update rule {update_rule!r}"
            raise ValueError(f"{rule} needs {name}, which is missing" if needed else f"{rule} takes no {name}")
    if kv_num_heads < 1 or q_num_heads < 1 or q_num_heads % kv_num_heads:
        raise ValueError(f"q_num_heads must be a multiple of kv_num_heads, not {q_num_heads} and {kv_num_heads}")
    ranks = [len(x.shape) for x in inputs]
    if set(ranks) != {3} or len({tuple(x.shape[:2]) for x in inputs}) > 1:
        shown = ", ".join(str(tuple(x.shape)) for x in inputs)
        raise ValueError(f"the inputs must have rank 3, one batch and one length, but their shapes are {shown}")
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
    _check(frames, size)
    shape = (query.shape[0], kv_num_heads, size, width)
    if past_state is not None and tuple(past_state.shape) != shape:
        raise ValueError(f"past_state has shape {tuple(past_state.shape)}, but {shape} is expected")
    start = jnp.zeros(shape, dtype) if past_state is None else traced(past_state).astype(dtype)
    y, state = linear_attention(jax.tree.map(lambda x: x.astype(dtype), frames), start)
    y = y * jnp.asarray(scale or max(size, 1) ** -0.5, dtype)
    y = y.reshape((*y.shape[:2], q_num_heads * width)).swapaxes(0, 1)
    return [y.astype(query.dtype), state.astype(query.dtype if past_state is None else past_state.dtype)]


def _heads(x: Value, heads: int, name: str) -> jax.Array:
    """``[batch, time, heads * size]`` as ``[time, batch, heads, size]``."""
    x = traced(x).swapaxes(0, 1)
    if x.shape[2] % heads:
        raise ValueError(f"{name} has {x.shape[2]} features, which cannot be cut into {heads} heads")
    return x.reshape((*x.shape[:2], heads, x.shape[2] // heads))


def _check(frames: AttentionFrames, size: int) -> None:
    if frames.query.shape[4] != size:
        raise ValueError(f"a head of the query has {frames.query.shape[4]} features, but one of the key {size}")
    if frames.decay is not None and frames.decay.shape[3] not in (1, size):
        raise ValueError(f"decay must have 1 or {size} features for each head of the key, not {frames.decay.shape[3]}")
    if frames.rate is not None and frames.rate.shape[3] != 1:
        raise ValueError(f"beta must have 1 feature, or 1 for each head of the key, not {frames.rate.shape[2:]}")


OPERATORS = {
    "LinearAttention": since(
        linear_attention_operator, 27, carries=Carries({"state": (3, 1)}, time_axis=1, features=(0, 2))
    )
}
