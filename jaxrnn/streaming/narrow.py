"""Wide frames that are computed again from narrow frames, so that histories keep narrow frames.

Example: a quantised model dequantises uint8 frames before each convolution. The history of the convolution keeps the
uint8 frames, and the step dequantises the whole window. The results are bit-identical, because the equations in between
compute each element separately. The state takes a quarter of the memory, and an inference engine finds the
DequantizeLinear directly before the convolution.

`widened_last` brings a function into this order: movements of elements first, and then the equations that widen the
elements, as inference engines do.

Frames that do not exist, such as padding, are narrow frames that become exactly the value. A narrow zero becomes 0 only
if its factor is positive and finite, so `positive_factors` checks the factors that parameters determine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import JaxprEqn, Var

from jaxrnn.jaxprs.casts import converted
from jaxrnn.jaxprs.equations import bind, dependents, needed, run, shape_of, type_of, variables
from jaxrnn.jaxprs.primitives import Rules, entry_of, on_elements
from jaxrnn.streaming.dimensions import has_symbols, symbolic_axes
from jaxrnn.streaming.values import Chunk, FinalValue, is_fixed, is_length, is_static


@dataclasses.dataclass(frozen=True)
class _Step:
    """An equation with a single streamed operand; the other operands are the same in each frame."""

    equation: JaxprEqn
    operands: tuple[Any, ...]  # None for the streamed operand
    keeps_zero: bool  # True if the factor, if any, is positive and finite, so that zero remains zero

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

    @property
    def other(self) -> Any:
        """The operand of two that is not streamed."""
        return self.operands[1 - self.operands.index(None)]

    def before(self, value: np.ndarray) -> np.ndarray | None:
        """Return a static operand for which the result is `value`, or None."""
        return _BEFORE.of(self.equation)(self, value, type_of(self.equation.invars[self.operands.index(None)]))


#: Rules ``(step, value, dtype) -> operand`` of the steps that cost less than a wider value in the state: a static
#: operand of this type for which the result is exactly `value`, or None.
_BEFORE = Rules[Callable[[_Step, np.ndarray, np.dtype], np.ndarray | None]]()


@_BEFORE.add("onnx_operator")
def _before_scaling(step: _Step, value: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    """Return the zero point of a DequantizeLinear."""
    zero_point = step.operands[2] if len(step.operands) > 2 else np.zeros((), dtype)
    is_zero = step.keeps_zero and _same(np.zeros(()), value) and is_static(zero_point) and np.size(zero_point) == 1
    return np.asarray(zero_point, dtype).reshape(()) if is_zero else None


@_BEFORE.add("convert_element_type", "neg", "stop_gradient")
def _before_casting(step: _Step, value: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    change = np.negative if entry_of(step.equation).signs else np.asarray
    known = np.real(value) if np.iscomplexobj(value) and dtype.kind != "c" else value
    candidate = converted(np.asarray(change(known)), dtype)
    return candidate if _same(converted(np.asarray(change(candidate)), value.dtype), value) else None


@_BEFORE.add("mul")
def _before_product(step: _Step, value: np.ndarray, _: np.dtype) -> np.ndarray | None:
    if not is_static(step.other) and not step.keeps_zero:
        return None
    scale = np.asarray(step.other if is_static(step.other) else 1, value.dtype)
    return next((zero for zero in (value, -value) if zero == 0 and _same(zero * scale, value)), None)


@_BEFORE.add("add", "sub")
def _before_sum(step: _Step, value: np.ndarray, _: np.dtype) -> np.ndarray | None:
    place, signs = step.operands.index(None), entry_of(step.equation).signs
    if not is_static(step.other) or np.size(step.other) != 1:
        return None
    other = np.asarray(step.other, value.dtype).reshape(())
    addend = other if signs[1 - place] > 0 else -other
    candidate = value - addend if signs[place] > 0 else addend - value
    return candidate if _same((candidate if signs[place] > 0 else -candidate) + addend, value) else None


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


def _is_number(value: Any) -> bool:
    """Return True for a static number."""
    return is_fixed(value) and np.size(value) == 1


def origin_of(
    equation: JaxprEqn,
    operands: Sequence[Any],
    result: Chunk,
    before: WideOrigin | None,
    positive: Collection[Var],
) -> WideOrigin | None:
    """Return the narrow origin of the result of an equation, or None.

    `before` is the origin of the streamed operand, and `positive` are variables that are known to be positive and
    finite.
    """
    chunk = streamed_operand(operands)
    if chunk is None or result.outer != 1 or chunk.outer != 1 or chunk.index.growth:
        return None
    if (result.delay, str(result.timeline.size)) != (chunk.delay, str(chunk.timeline.size)):
        return None
    if any(isinstance(each, FinalValue) or is_length(each) for each in operands):
        return None
    if _BEFORE.of(equation) is None or equation.params.get("name", "DequantizeLinear") != "DequantizeLinear":
        return None
    factors = [
        bool(_is_positive(each)) if is_static(each) else atom in positive
        for atom, each in zip(equation.invars, operands, strict=True)
        if each is not chunk
    ]
    step = _Step(equation, tuple(None if each is chunk else each for each in operands), all(factors[:1]))
    first = WideOrigin(chunk, (step,)) if before is None else WideOrigin(before.chunk, (*before.steps, step))
    narrow, wide = (each.array.dtype for each in (first.chunk, result))
    if jnp.issubdtype(wide, jax.dtypes.extended) or not narrow.itemsize < wide.itemsize:
        return None
    return first


def streamed_operand(operands: Sequence[Any]) -> Chunk | None:
    """Return the only operand with separate frames, or None."""
    chunks = [each for each in operands if isinstance(each, Chunk) and (each.delay is not None or each.late)]
    return chunks[0] if len(chunks) == 1 and chunks[0].late is None else None


def positive_factors(closed: Any, params: Sequence[Any]) -> frozenset[Var]:
    """Return the factors of wide values that follow from the parameters, and that are positive and finite.

    `closed` has the inputs after the parameters. Factors that follow from shapes in place of parameters are unknown.
    """
    jaxpr = closed.jaxpr
    values = [*zip(jaxpr.constvars, closed.consts, strict=True), *zip(jaxpr.invars, params, strict=False)]
    known = {variable: value for variable, value in values if not isinstance(value, (Tracer, jax.ShapeDtypeStruct))}
    lengths = {each for equation in jaxpr.eqns if _depends_on_length(equation) for each in equation.outvars}
    unknown = dependents(jaxpr.eqns, lengths.union(jaxpr.invars).difference(known))
    wide: set[Any] = set()
    factors: set[Var] = set()
    for equation in jaxpr.eqns:
        operands = set(variables(equation.invars))
        if (rule := _BEFORE.of(equation)) is None or not (_is_wider(equation) or wide & operands):
            continue
        wide.update(equation.outvars)
        if rule in (_before_scaling, _before_product):
            factors |= {each for each in operands - unknown if jnp.issubdtype(type_of(each), jnp.floating)}
    with jax.ensure_compile_time_eval():
        run(needed(jaxpr.eqns, factors, known), known, _known)
    return frozenset(each for each in factors if _is_positive(known[each]))


def _known(equation: JaxprEqn, operands: list[Any]) -> list[Any]:
    """Compute an equation in NumPy, which compiles nothing, if the entry of its primitive has such a function."""
    function = on_elements(equation)
    if function is None:
        return bind(equation, operands)
    with np.errstate(all="ignore"):
        return [np.asarray(function(*map(np.asarray, operands)), type_of(equation.outvars[0]))]


def _depends_on_length(equation: JaxprEqn) -> bool:
    is_size = entry_of(equation).kind == "size" or has_symbols(equation)
    return is_size or any(symbolic_axes(shape_of(each)) for each in equation.outvars)


def _is_wider(equation: JaxprEqn) -> bool:
    """Return True if the elements of the result have more bytes than the elements of the first operand."""
    old, new = (type_of(each) for each in (equation.invars[0], equation.outvars[0]))
    return not jnp.issubdtype(new, jax.dtypes.extended) and old.itemsize < new.itemsize


def _is_positive(value: Any) -> bool:
    array = np.asarray(value)
    return not np.iscomplexobj(array) and bool(np.all((array > 0) & np.isfinite(array)))


def widened_last(jaxpr: Any) -> Any:
    """Return a jaxpr that moves narrow elements and then widens the result, in place of movements of wide elements."""
    widened: dict[Any, tuple[Var, tuple[JaxprEqn, ...]]] = {}  # the narrow variable, and the equations that widen it
    equations: list[JaxprEqn] = []
    for equation in jaxpr.eqns:
        streamed = [atom for atom in equation.invars if symbolic_axes(shape_of(atom))]
        x: Any = streamed[0] if len(streamed) == 1 else None
        narrow, steps = widened.get(x, (x, ()))
        if steps and len(equation.invars) == 1 and entry_of(equation).ordered:
            equations += _behind(steps, equation, narrow)
            continue
        equations.append(equation)
        others = [atom for atom in equation.invars if atom not in streamed]
        alike = x is not None and _BEFORE.of(equation) is not None and all(shape_of(atom) == () for atom in others)
        if alike and (steps or _is_wider(equation)):
            widened[equation.outvars[0]] = narrow, (*steps, equation)
    return jaxpr.replace(eqns=equations)


def _behind(steps: Sequence[JaxprEqn], movement: JaxprEqn, narrow: Var) -> Iterator[JaxprEqn]:
    """Yield the equations that move the narrow elements, and then apply the steps."""
    (result,) = movement.outvars
    moved = [Var(each.aval.update(shape=shape_of(result))) for each in (narrow, *(step.outvars[0] for step in steps))]
    moved[-1] = result
    yield movement.replace(invars=[narrow], outvars=moved[:1])
    for step, old, new in zip(steps, moved[:-1], moved[1:], strict=True):
        invars = [old if symbolic_axes(shape_of(atom)) else atom for atom in step.invars]
        yield step.replace(invars=invars, outvars=[new])
