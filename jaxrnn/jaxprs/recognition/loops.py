"""``lax.scan`` that recognises cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr

from jaxrnn.jaxprs.equations import trace
from jaxrnn.jaxprs.recognition.plan import plan
from jaxrnn.jaxprs.recognition.running import run_plan

Step = Callable[[Any, Any], tuple[Any, Any]]


def scan(step: Step, carry: Any, frames: Any) -> tuple[Any, Any]:
    """``lax.scan(step, carry, frames)``, in which recurrent cells run as sequences.

    Args:
        step: ``(carry, frame) -> (carry, outputs)``, pure; what it closes over is the same in every frame.
        carry: pytree before the first step.
        frames: pytree of arrays with time in front.

    Returns:
        The last carry, and the outputs with time in front. Equal to ``lax.scan`` up to rounding; without a cell in the
        step it is that.
    """
    leaves = jax.tree.leaves(frames)
    if not leaves or _is_zero(leaves[0].shape[0]):
        return lax.scan(step, carry, frames)

    def turned(frame: Any, carry: Any) -> tuple[Any, Any]:
        new, outputs = step(carry, frame)
        return outputs, new

    def one(array: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(array.shape[1:], array.dtype)

    examples = jax.tree.map(one, frames), jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), carry)
    closed, out_structure = trace(turned, *examples)
    found = scan_of(closed, [], leaves, jax.tree.leaves(carry), loose=False)
    if found is None:
        return lax.scan(step, carry, frames)
    last, outputs = found
    results, final = jax.tree.unflatten(out_structure, [*outputs, *last])
    return final, results


def scan_of(
    closed: ClosedJaxpr, params: list[Any], frames: list[Any], carry: list[Any], *, loose: bool
) -> tuple[list[Any], list[Any]] | None:
    """A step given as a jaxpr over all frames, if there is a cell in it.

    Args:
        closed: of the leaves of parameters, one frame and the carry; its outputs end with the next carry.
        params: what every step reads.
        frames: arrays with time in front.
        carry: arrays before the first step.
        loose: outputs do not matter in frames in which a mask keeps the carry.

    Returns:
        The last carry, and the outputs with time in front; None where no cell was recognised.
    """
    if not frames or not carry or _is_zero(frames[0].shape[0]):
        return None
    signature = [(variable.aval.shape, variable.aval.dtype) for variable in closed.jaxpr.invars[-len(carry) :]]
    if signature != [(atom.aval.shape, atom.aval.dtype) for atom in closed.jaxpr.outvars[-len(carry) :]]:
        return None
    found = plan(closed, (len(params), len(frames)), loose=loose)
    return None if found is None else run_plan(found, params, frames, carry)


def _is_zero(size: Any) -> bool:
    return isinstance(size, int) and size == 0
