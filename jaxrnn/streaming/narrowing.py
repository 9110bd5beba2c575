"""Narrow origins: values of a small type, from which the frames of a wider value can be computed again.

Example: a quantised model dequantises uint8 frames before each convolution. The history of the convolution keeps the
uint8 frames, and the step dequantises the whole window. The results are bit-identical, because the equations in between
compute each element separately. The state takes a quarter of the memory, and an inference engine finds the
DequantizeLinear directly before the convolution.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from jaxrnn.jaxprs.equations import bind, type_of
from jaxrnn.streaming.values import Chunk, FinalValue, is_length, is_static

#: Primitives that cost less than a wider value in the state.
_CHEAP = frozenset(("add", "convert_element_type", "copy", "mul", "neg", "stop_gradient", "sub"))
#: Moves of the elements of each frame, which may as well move narrow elements.
_MOVES = frozenset(("broadcast_in_dim", "expand_dims", "reshape", "slice", "squeeze", "transpose"))


@dataclasses.dataclass(frozen=True)
class _Step:
    """An equation with a single streamed operand; the other operands are the same in each frame."""

    equation: JaxprEqn
    operands: tuple[Any, ...]  # None in the place of the streamed operand

    def __call__(self, frames: Any, axis: int) -> Any:
        shape = frames.shape

        def spread(operand: Any) -> Any:
            if not isinstance(operand, Chunk):
                return operand
            return jnp.broadcast_to(
                operand.array, [shape[d] if d == axis else n for d, n in enumerate(operand.array.shape)]
            )

        arrays = [frames if each is None else jnp.asarray(spread(each)) for each in self.operands]
        return bind(self.equation, arrays)[0]

    def before(self, value: np.ndarray) -> np.ndarray | None:
        """Return a static operand for which the result is `value`, or None."""
        name, dtype = self.equation.primitive.name, type_of(self.equation.invars[self.operands.index(None)])
        if name == "onnx_operator":  # DequantizeLinear
            zero_point = self.operands[2] if len(self.operands) > 2 else np.zeros((), dtype)
            is_zero = _same(np.zeros(()), value) and is_static(zero_point) and np.size(zero_point) == 1
            return np.asarray(zero_point, dtype).reshape(()) if is_zero else None
        if len(self.operands) == 1:
            known = np.real(value) if np.iscomplexobj(value) and dtype.kind != "c" else value
            candidate = (-known if name == "neg" else known).astype(dtype)
            again = (-candidate if name == "neg" else candidate).astype(value.dtype)
            return candidate if _same(again, value) else None
        place = self.operands.index(None)
        other = self.operands[1 - place]
        if name == "mul":
            # A scale that is not static, such as a parameter, is taken to be positive and finite, as in quantisation.
            scale = np.asarray(other if is_static(other) else 1, value.dtype)
            return next((zero for zero in (value, -value) if zero == 0 and _same(zero * scale, value)), None)
        if not is_static(other) or np.size(other) != 1:
            return None
        other = np.asarray(other, value.dtype).reshape(())
        if name == "add":
            candidate, again = value - other, (value - other) + other
        elif place == 0:
            candidate, again = value + other, (value + other) - other
        else:
            candidate, again = other - value, other - (other - value)
        return candidate if _same(again, value) else None


def _same(values: Any, value: np.ndarray) -> bool:
    """Return True if all values equal a number, also in the sign of 0."""
    return np.asarray(values, value.dtype).tobytes() == np.full(np.shape(values), value).tobytes()


@dataclasses.dataclass(frozen=True)
class WideOrigin:
    """A chunk of a narrow type, and the equations that compute a wider chunk of the same frames."""

    chunk: Chunk
    steps: tuple[_Step, ...]

    def widened(self, frames: Any, axis: int) -> Any:
        """Compute the wider frames from narrow frames."""
        for step in self.steps:
            frames = step(frames, axis)
        return frames

    def before(self, value: Any) -> np.ndarray | None:
        """Return the static element that becomes exactly `value`, or None."""
        found = (
            np.asarray(value, type_of(self.steps[-1].equation.outvars[0])).reshape(()) if _is_number(value) else None
        )
        for step in reversed(self.steps):
            with np.errstate(all="ignore"):
                found = None if found is None else step.before(found)
        return found

    def moved(self, rule: Callable[[Any], Any]) -> WideOrigin | None:
        """Move the elements of each frame by a rule; return None if a constant does not move with the elements."""
        steps = []
        for step in self.steps:
            if any(np.size(each) > 1 for each in step.operands if each is not None and not isinstance(each, Chunk)):
                return None
            operands = tuple(rule(each) if isinstance(each, Chunk) else each for each in step.operands)
            steps.append(dataclasses.replace(step, operands=operands))
        return WideOrigin(rule(self.chunk), tuple(steps))


def _is_number(value: Any) -> bool:
    """Return True for a static number."""
    return is_static(value) and not is_length(value) and np.size(value) == 1


def origin_of(
    equation: JaxprEqn, operands: Sequence[Any], result: Chunk, before: WideOrigin | None, rule: Callable[[Any], Any]
) -> WideOrigin | None:
    """Return the narrow origin of the result of an equation, or None.

    Args:
        equation: the equation.
        operands: the operands of the equation.
        result: the result of the equation.
        before: the origin of the streamed operand.
        rule: applies the equation to a given streamed operand.
    """
    chunk, name = streamed_operand(operands), equation.primitive.name
    if chunk is None or result.outer != 1 or chunk.outer != 1 or chunk.growth:
        return None
    if (result.delay, str(result.timeline.size)) != (chunk.delay, str(chunk.timeline.size)):
        return None
    if any(isinstance(each, FinalValue) or is_length(each) for each in operands):
        return None
    if name in _MOVES:
        return None if before is None else before.moved(rule)
    if name not in _CHEAP and not (name == "onnx_operator" and equation.params["name"] == "DequantizeLinear"):
        return None
    step = _Step(equation, tuple(None if each is chunk else each for each in operands))
    first = WideOrigin(chunk, (step,)) if before is None else WideOrigin(before.chunk, (*before.steps, step))
    narrow, wide = (each.array.dtype for each in (first.chunk, result))
    if jnp.issubdtype(wide, jax.dtypes.extended) or not narrow.itemsize < wide.itemsize:
        return None
    return first


def streamed_operand(operands: Sequence[Any]) -> Chunk | None:
    """Return the only operand with separate frames, or None."""
    chunks = [each for each in operands if isinstance(each, Chunk) and (each.delay is not None or each.late)]
    return chunks[0] if len(chunks) == 1 and chunks[0].late is None else None
