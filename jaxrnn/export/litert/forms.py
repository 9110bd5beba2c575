"""Programs in the operations of LiteRT: one list of rewrites, each with the operation that LiteRT lacks.

A rewrite is a rule of a primitive, a function of JAX arrays. Equations without a rule stay as they are. Equations of
known operands are computed now, and NumPy arrays are known.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.extend.core import JaxprEqn

from jaxrnn._jax.versions import Scan
from jaxrnn.errors import UnsupportedError
from jaxrnn.export.lowering import array_of, is_complex, known_results
from jaxrnn.export.rules.control import call, linear_solve, platform
from jaxrnn.export.rules.layers import steps_of
from jaxrnn.export.rules.systems import cholesky, permuted, substituted, triangles
from jaxrnn.export.writer import Made
from jaxrnn.jaxprs.equations import bind, evaluate, free_axes, is_key, needed, shape_of, type_of, walk
from jaxrnn.jaxprs.own import computed, platforms_of
from jaxrnn.jaxprs.primitives import Rules
from jaxrnn.streaming.diagnostics import Path, describe_equation

#: Loops are unrolled up to this number of trips, and up to this number of equations.
TRIPS, EQUATIONS = 256, 20_000

#: Rules ``(forms, equation, *operands)`` of equations on real numbers, and of equations with complex numbers.
RULES: Rules[Callable[..., Any]] = Rules()
COMPLEX: Rules[Callable[..., Any]] = Rules()

#: Scopes of operations in the file: products with arrays that depend on no parameter, which stay float, and recurrent
#: layers.
EXACT, LAYER = "jaxrnn.exact", "jaxrnn.layer"

#: Types that LiteRT moves and computes with, and the types in which it computes with other integers.
_TYPES = frozenset(map(np.dtype, ("bool", "int32", "int64", "float16", "float32")))
_WIDE = {"int8": "int32", "uint8": "int32", "int16": "int32", "uint16": "int32", "uint32": "int64"}


class Forms:
    """An evaluator that traces a program again, in operations of LiteRT. ``path`` is the stack of equations."""

    def __init__(self) -> None:
        self.path: Path = ()
        #: True inside of an operator on integers of 8 bits.
        self.in_bytes = False
        self.made = Made()

    def evaluate(self, jaxpr: Any, operands: Sequence[Any]) -> list[Any]:
        """Evaluate a jaxpr."""
        inner = getattr(jaxpr, "jaxpr", jaxpr)
        live = inner.replace(eqns=needed(inner.eqns, inner.outvars, effects=True))
        return evaluate(jaxpr.replace(jaxpr=live) if inner is not jaxpr else live, operands, self.apply)

    def trace(self, function: Callable[..., Any], *operands: Any) -> list[Any]:
        """Trace a function of the operands, and evaluate it."""
        return self.evaluate(jax.make_jaxpr(function)(*operands), operands)

    def apply(self, equation: JaxprEqn, operands: list[Any]) -> Sequence[Any]:
        """Evaluate an equation."""
        pairs = zip(equation.invars, operands, strict=True)
        operands = [
            value if isinstance(value, Tracer) or is_key(type_of(atom)) else array_of(atom, value)
            for atom, value in pairs
        ]
        known = known_results(equation, operands, small=False)
        if known is not None:
            self.made.follow(equation.invars, operands, known)
            return known
        outer, self.path = self.path, (*self.path, equation)
        try:
            rule = RULES.of(equation) or _unchanged
            if any(map(is_complex, (*equation.invars, *equation.outvars))):
                rule = COMPLEX.of(equation) or _without_complex
            results = rule(self, equation, *operands)
            return [*results] if isinstance(results, list | tuple) else [results]
        finally:
            self.path = outer

    def scope(self, *operands: Any) -> contextlib.AbstractContextManager[Any]:
        """Return the scope of a product."""
        exact = any(isinstance(each, np.ndarray) and each in self.made for each in operands)
        return jax.named_scope(EXACT) if exact else contextlib.nullcontext()

    def refuse(self, reason: str) -> Any:
        """Refuse the current equation."""
        raise UnsupportedError(f"{describe_equation(self.path)}: {reason}")


def _unchanged(forms: Forms, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """Keep an equation."""
    for variable in equation.outvars:
        dtype = np.dtype(type_of(variable))
        if dtype not in _TYPES and dtype.name not in _WIDE:
            forms.refuse(f"LiteRT does not compute in {dtype.name}: compute it in float32, or in int32")
    return bind(equation, list(map(jnp.asarray, operands)))


def _without_complex(forms: Forms, equation: JaxprEqn, *operands: Any) -> Any:
    return forms.refuse("LiteRT has no such operation for complex numbers: use real and imaginary parts")


RULES.add(kind="call")(call)
RULES.add(kind="checkpoint")(call)
RULES.add(kind="custom rule")(call)
RULES.add("custom_linear_solve")(linear_solve)
RULES.add("platform_index")(platform)
# LiteRT has no decompositions; small ones are written out.
RULES.add("cholesky")(cholesky)
RULES.add("lu")(triangles)
RULES.add("lu_pivots_to_permutation")(permuted)
RULES.add("triangular_solve")(substituted)


@RULES.add("recurrent_layer")
def _layer(forms: Forms, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """Recurrent layers: their steps."""
    with jax.named_scope(LAYER):
        return forms.evaluate(steps_of(equation), operands)


@RULES.add("onnx_operator")
def _operator(forms: Forms, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """Operators of a file: their functions."""
    outer = forms.in_bytes
    forms.in_bytes = sum(np.dtype(type_of(each)).itemsize == 1 for each in equation.invars) > 1
    try:
        return forms.trace(lambda *arrays: computed(*arrays, **equation.params), *operands)
    finally:
        forms.in_bytes = outer


@RULES.add("cond")
def _branch(forms: Forms, equation: JaxprEqn, which: Any, *operands: Any) -> list[Any]:
    """``If`` with a body in the graph: all branches are evaluated, and their results chosen."""
    branches, platforms = equation.params["branches"], platforms_of(equation)
    if platforms is not None:
        return forms.evaluate(branches[platforms.index(None)], operands)
    if isinstance(which, np.ndarray):
        return forms.evaluate(branches[int(np.clip(which, 0, len(branches) - 1))], operands)
    index = jnp.clip(which.astype(jnp.int32), 0, len(branches) - 1)
    chosen, *others = (forms.evaluate(branch, operands) for branch in branches)
    for number, results in enumerate(others, 1):
        pairs = zip(results, chosen, equation.outvars, strict=True)
        chosen = [_chosen(np.dtype(type_of(each)), index == number, old, new) for new, old, each in pairs]
    return chosen


@RULES.add("scan")
def _loop(forms: Forms, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """``While`` with a body in the graph: the loop is unrolled."""
    params = equation.params
    fixed, carry, xs = Scan.of(equation).split(operands)
    length, body = params["length"], params["jaxpr"]
    size = length * sum(1 for _ in walk(body.jaxpr))
    if length > TRIPS or size > EQUATIONS:
        forms.refuse(
            f"the loop would be unrolled to {length:,} trips and {size:,} operations, and the limits are {TRIPS:,} and "
            f"{EQUATIONS:,}: choose a smaller pulse"
        )
    carries, collected = len(carry), []
    for trip in reversed(range(length)) if params["reverse"] else range(length):
        frames = [x[trip] if isinstance(x, np.ndarray) else lax.index_in_dim(x, trip, keepdims=False) for x in xs]
        results = forms.evaluate(body, [*fixed, *carry, *frames])
        carry = results[:carries]
        collected.append(results[carries:])
    if params["reverse"]:
        collected.reverse()
    if not collected:
        return [*carry, *(np.zeros(shape_of(each), type_of(each)) for each in equation.outvars[carries:])]
    return [*carry, *(jnp.stack(ys) for ys in zip(*collected, strict=True))]


@RULES.add("while")
def _repeat(forms: Forms, equation: JaxprEqn, *operands: Any) -> list[Any]:
    return forms.refuse("LiteRT runs no loop whose number of trips depends on data; ONNX engines do")


@RULES.add("dot_general")
def _product(forms: Forms, equation: JaxprEqn, x: Any, y: Any) -> Any:
    """Products with several free or batch axes, or in another order than ``[B, M, K] @ [B, K, N]``."""
    (contract_x, contract_y), (batch_x, batch_y) = equation.params["dimension_numbers"]
    rows, columns = free_axes(equation)
    sizes = [[each.shape[axis] for axis in axes] for each, axes in ((x, batch_x), (x, rows), (y, columns))]
    inner = math.prod(x.shape[axis] for axis in contract_x)
    lead = [math.prod(sizes[0])] if batch_x else []
    left = _arranged(x, (*batch_x, *rows, *contract_x), (*lead, math.prod(sizes[1]), inner))
    right = _arranged(y, (*batch_y, *contract_y, *columns), (*lead, inner, math.prod(sizes[2])))
    number = len(lead)
    numbers = (([number + 1], [number]), ([*range(number)], [*range(number)]))

    def product(left: Any, right: Any) -> Any:
        factors = (left, right)
        if not lead:
            # The converter moves reshapes of operands behind a product, and then refuses the rank that it made. A known
            # operand stays visible, so that the product becomes FullyConnected.
            factors = tuple(x if isinstance(x, np.ndarray) else lax.optimization_barrier(x) for x in factors)
        return lax.dot_general(factors[0], factors[1], numbers)

    with forms.scope(x, y):
        result = _in_floats(forms, equation, (left, number + 1), (right, number), 1, product)
    return result.reshape(*sizes[0], *sizes[1], *sizes[2])


def _arranged(x: Any, axes: Sequence[int], shape: Sequence[int]) -> Any:
    """Transpose and reshape; known arrays stay known."""
    return (np if isinstance(x, np.ndarray) else jnp).transpose(x, axes).reshape(shape)


@RULES.add("conv_general_dilated")
def _convolution(forms: Forms, equation: JaxprEqn, x: Any, kernel: Any) -> Any:
    """Convolutions of dilated inputs: the zeros between frames are written."""
    params, numbers = equation.params, equation.params["dimension_numbers"]
    for axis, spacing in zip(numbers.lhs_spec[2:], params["lhs_dilation"], strict=True):
        x = _spread(x, axis, spacing)

    def convolve(x: Any, kernel: Any) -> Any:
        changed = {"lhs_dilation": (1,) * len(params["lhs_dilation"]), "preferred_element_type": None}
        return bind(equation, [jnp.asarray(x), jnp.asarray(kernel)], **changed)[0]

    taps = math.prod(kernel.shape[axis] for axis in numbers.rhs_spec[2:])
    left, right = (x, numbers.lhs_spec[1]), (kernel, numbers.rhs_spec[1])
    if np.dtype(type_of(equation.outvars[0])).kind != "f" and x.shape[left[1]] != kernel.shape[right[1]]:
        forms.refuse("LiteRT has no convolution of integers in groups: compute it in float32")
    with forms.scope(x, kernel):
        return _in_floats(forms, equation, left, right, taps, convolve)


def _spread(x: Any, axis: int, spacing: int) -> Any:
    """Insert zeros between elements along an axis."""
    count = x.shape[axis]
    if spacing == 1 or count < 2:
        return x
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    pads = [(0, spacing - 1 if each == axis + 1 else 0) for each in range(x.ndim + 1)]
    spread = jnp.pad(x.reshape(*before, count, 1, *after), pads).reshape(*before, count * spacing, *after)
    return lax.slice_in_dim(spread, 0, (count - 1) * spacing + 1, axis=axis)


#: Float32 represents all integers up to this number.
_WHOLE = 2**24


def _in_floats(
    forms: Forms,
    equation: JaxprEqn,
    left: tuple[Any, int],
    right: tuple[Any, int],
    taps: int,
    product: Callable[[Any, Any], Any],
) -> Any:
    """Products of integers: in float32, in parts along the contracted axes whose sums float32 represents."""
    dtype = np.dtype(type_of(equation.outvars[0]))
    (x, axis_x), (y, axis_y) = left, right
    if dtype.kind == "f":
        if dtype not in _TYPES:
            forms.refuse(f"LiteRT does not compute in {dtype.name}: compute it in float32")
        return product(*(each if each.dtype == dtype else each.astype(dtype) for each in (x, y)))
    if not (forms.in_bytes or all(each.dtype.itemsize == 1 for each in (x, y))):
        forms.refuse(f"LiteRT has no products of {dtype.name}: compute it in float32")
    largest = 255 * (int(np.abs(y.astype(np.int64)).max(initial=1)) if isinstance(y, np.ndarray) else 255)
    size, each = x.shape[axis_x], _WHOLE // (largest * taps)
    if each == 0:
        forms.refuse(f"float32 does not represent sums of {taps:,} products of integers")
    total: Any = 0
    for start in range(0, size, each):
        part = slice(start, start + each)
        factors = (a[(slice(None),) * axis + (part,)].astype(np.float32) for a, axis in ((x, axis_x), (y, axis_y)))
        total = total + product(*factors).astype(dtype)
    return total


RULES.add("convert_element_type")(_unchanged)


@RULES.add(kind="elementwise")
def _elementwise(forms: Forms, equation: JaxprEqn, *operands: Any) -> Any:
    """Arithmetic of integers of 8 and 16 bits, and unsigned integers: in wide integers."""
    narrow = {np.dtype(type_of(each)).name for each in equation.invars} & _WIDE.keys()
    if not narrow:
        return _unchanged(forms, equation, *operands)
    wide = [x.astype(_WIDE.get(x.dtype.name, x.dtype)) for x in operands]
    return bind(equation, list(map(jnp.asarray, wide)))[0].astype(type_of(equation.outvars[0]))


@RULES.add("select_n")
def _select(forms: Forms, equation: JaxprEqn, which: Any, *cases: Any) -> Any:
    """Choices of narrow integers, and of more than two cases."""
    chosen = cases[0]
    for number, case in enumerate(cases[1:], 1):
        condition = which if which.dtype == bool else which == number
        chosen = _chosen(np.dtype(type_of(equation.outvars[0])), condition, chosen, case)
    return chosen


def _chosen(dtype: np.dtype, condition: Any, otherwise: Any, then: Any) -> Any:
    wide = _WIDE.get(dtype.name, dtype)
    return jnp.where(condition, jnp.asarray(then).astype(wide), jnp.asarray(otherwise).astype(wide)).astype(dtype)


@RULES.add("abs")
def _absolute(forms: Forms, equation: JaxprEqn, x: Any) -> Any:
    """Write absolute values of integers of 64 bits."""
    return _size(x.astype(_WIDE.get(x.dtype.name, x.dtype))).astype(x.dtype)


def _size(x: Any) -> Any:
    return jnp.abs(x) if x.dtype.kind == "f" else jnp.where(x < 0, -x, x)


@RULES.add("rem")
def _remainder(forms: Forms, equation: JaxprEqn, x: Any, y: Any) -> Any:
    """Remainders with the sign of the dividend: LiteRT's have the sign of the divisor."""
    wide = [each.astype(_WIDE.get(each.dtype.name, each.dtype)) for each in (x, y)]
    rest = bind(equation, [_size(each) for each in wide])[0]
    return jnp.where(wide[0] < 0, -rest, rest).astype(type_of(equation.outvars[0]))


@RULES.add("round")
def _rounded(forms: Forms, equation: JaxprEqn, x: Any) -> Any:
    """Round halves away from zero."""
    if equation.params["rounding_method"] == lax.RoundingMethod.TO_NEAREST_EVEN:
        return _unchanged(forms, equation, x)[0]
    size = jnp.abs(x)
    whole = jnp.floor(size)
    return jnp.where(jnp.isinf(x), x, jnp.sign(x) * (whole + (size - whole >= 0.5).astype(x.dtype)))


@RULES.add("xor")
def _differ(forms: Forms, equation: JaxprEqn, x: Any, y: Any) -> Any:
    """Exclusive or of conditions."""
    return x != y if x.dtype == bool else _elementwise(forms, equation, x, y)


@RULES.add("shift_left")
def _shifted(forms: Forms, equation: JaxprEqn, x: Any, places: Any) -> Any:
    """Shifts to the left by known numbers."""
    if not isinstance(places, np.ndarray):
        return forms.refuse("LiteRT shifts to the left by a constant only: multiply by a power of two")
    return x * np.left_shift(np.ones((), x.dtype), places)


@RULES.add("reduce_xor", "reduce_or", "reduce_and")
def _reduced(forms: Forms, equation: JaxprEqn, x: Any) -> Any:
    if x.dtype != bool:
        return forms.refuse("LiteRT has no reduction by bits")
    return _unchanged(forms, equation, x)[0]


@RULES.add("sort")
def _sorted(forms: Forms, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """Sorts: by the order of the first operand, which TopK gives."""
    params = equation.params
    key, axis = jnp.asarray(operands[0]), params["dimension"]
    if params["num_keys"] > 1 or key.dtype not in _TYPES or key.dtype == bool:
        return forms.refuse("LiteRT sorts by one array of float32 or int32")
    # Downwards, equal elements stay in order. `-1 - x` is exact for all integers.
    down = -1 - key if key.dtype.kind == "i" else -key
    last = key.ndim - 1
    _, order = lax.top_k(jnp.moveaxis(down, axis, last), key.shape[axis])
    return [jnp.moveaxis(_taken(jnp.moveaxis(jnp.asarray(each), axis, last), order), last, axis) for each in operands]


@RULES.add("top_k", "approx_top_k")
def _largest(forms: Forms, equation: JaxprEqn, x: Any) -> list[Any]:
    """Values of TopK without positions: the converter finds the pattern by its positions."""
    params = equation.params
    axis = params.get("axis", params.get("reduction_dimension", -1)) % x.ndim
    if not params.get("is_max_k", True):
        return forms.refuse("LiteRT finds the largest elements only: negate the array")
    moved = jnp.moveaxis(x, axis, -1)
    _, order = lax.top_k(moved, params["k"])
    return [jnp.moveaxis(each, -1, axis) for each in (_taken(moved, order), order)]


def _taken(x: Any, order: Any) -> Any:
    """Take elements along the last axis."""
    rows = x.reshape(-1, x.shape[-1])
    places = order.reshape(rows.shape[0], -1)
    starts = np.arange(rows.shape[0], dtype=np.int32)[:, None] * x.shape[-1]
    return rows.reshape(-1).at[places + starts].get(mode="promise_in_bounds").reshape(order.shape)


@RULES.add("gather")
def _gathered(forms: Forms, equation: JaxprEqn, x: Any, places: Any) -> Any:
    """Positions outside of the array, where LiteRT stops: they are clipped, and their elements filled."""
    params = equation.params
    numbers, mode = params["dimension_numbers"], params["mode"]
    sizes = [params["slice_sizes"][axis] for axis in numbers.start_index_map]
    last = np.array([x.shape[axis] for axis in numbers.start_index_map]) - sizes
    places = places.astype(jnp.int32)
    inside = (np if isinstance(places, np.ndarray) else jnp).clip(places, 0, last.astype(np.int32))
    promised = lax.GatherScatterMode.PROMISE_IN_BOUNDS
    result = bind(equation, [jnp.asarray(x), jnp.asarray(inside)], mode=promised)[0]
    if mode != lax.GatherScatterMode.FILL_OR_DROP or (
        isinstance(places, np.ndarray) and np.array_equal(places, inside)
    ):
        return result
    dtype = np.dtype(result.dtype)
    fill = params["fill_value"]
    if fill is None:
        fill = np.nan if dtype.kind in "fc" else dtype.type(1) if dtype.kind == "b" else np.iinfo(dtype).min
        fill = np.iinfo(dtype).max if dtype.kind == "u" else fill
    exists = jnp.all(places == inside, -1)
    kept = [axis for axis in range(result.ndim) if axis not in numbers.offset_dims]
    return _chosen(dtype, lax.broadcast_in_dim(exists, result.shape, kept), jnp.full((), fill, dtype), result)


@RULES.add("dynamic_slice")
def _cut(forms: Forms, equation: JaxprEqn, x: Any, *starts: Any) -> Any:
    """Slices that would end outside of the array: their starts are moved."""
    room = np.subtract(x.shape, equation.params["slice_sizes"])
    return bind(equation, [jnp.asarray(x), *_starts(starts, room)])[0]


@RULES.add("dynamic_update_slice")
def _updated(forms: Forms, equation: JaxprEqn, x: Any, update: Any, *starts: Any) -> Any:
    return bind(equation, [jnp.asarray(x), jnp.asarray(update), *_starts(starts, np.subtract(x.shape, update.shape))])[
        0
    ]


def _starts(starts: Sequence[Any], room: np.ndarray) -> list[Any]:
    return [jnp.clip(start.astype(jnp.int32), 0, np.int32(most)) for start, most in zip(starts, room, strict=True)]


@RULES.add(kind="scatter")
def _at_places(forms: Forms, equation: JaxprEqn, *operands: Any) -> Any:
    name = equation.primitive.name
    return forms.refuse(f"LiteRT has no {name}: write `jnp.where`, or a product with `jax.nn.one_hot`")


RULES.add("scatter")(_unchanged)

#: Elements that fall on one place, at most.
_TOGETHER = 64


def _combined(combine: Callable[[Any, Any], Any], neutral: Callable[[np.dtype], Any]) -> Callable[..., Any]:
    """Return the rule that combines elements at known places: gathers put each element where it belongs."""

    def rule(forms: Forms, equation: JaxprEqn, x: Any, places: Any, updates: Any) -> Any:
        size = math.prod(x.shape)
        if not isinstance(places, np.ndarray) or not size or not updates.size:
            return _at_places(forms, equation)
        target = _targets(equation, x.shape, places, updates.shape)
        order = np.argsort(target, kind="stable")
        first = np.searchsorted(target[order], target[order])
        turn = np.empty_like(order)  # elements on one place take turns
        turn[order] = np.arange(len(order)) - first
        if (turns := int(turn[target > 0].max(initial=-1)) + 1) > _TOGETHER:
            return _at_places(forms, equation)
        dtype = np.dtype(x.dtype)
        elements = jnp.concatenate([updates.reshape(-1), jnp.full(1, neutral(dtype), dtype)])
        for number in range(turns):
            source = np.full(size, len(target), np.int32)
            chosen = np.flatnonzero((turn == number) & (target > 0))
            source[target[chosen] - 1] = chosen
            x = combine(x, elements.at[source].get(mode="promise_in_bounds").reshape(x.shape))
        return x

    return rule


def _targets(equation: JaxprEqn, shape: Sequence[int], places: np.ndarray, updates: Sequence[int]) -> np.ndarray:
    """Return the place of each element in the array, counted from 1, or 0 if the element is dropped."""
    numbers = np.arange(1, math.prod(shape) + 1, dtype=np.float64).reshape(shape)
    with jax.ensure_compile_time_eval(), jax.enable_x64(True):

        def add(updates: Any) -> Any:
            params = {key: equation.params[key] for key in ("dimension_numbers", "mode")}
            return lax.scatter_add(jnp.zeros(shape), jnp.asarray(places), updates, **params)

        (found,) = jax.vjp(add, jnp.zeros(updates))[1](jnp.asarray(numbers))
    return np.asarray(found).astype(np.int64).reshape(-1)


def _limit(sign: int) -> Callable[[np.dtype], Any]:
    """Return the lowest number of a type for -1, the highest for 1."""

    def neutral(dtype: np.dtype) -> Any:
        if dtype.kind == "f":
            return sign * np.inf
        return np.iinfo(dtype).max if sign > 0 else np.iinfo(dtype).min

    return neutral


RULES.add("scatter-add")(_combined(jnp.add, lambda dtype: 0))
RULES.add("scatter-mul")(_combined(jnp.multiply, lambda dtype: 1))
RULES.add("scatter-max")(_combined(jnp.maximum, _limit(-1)))
RULES.add("scatter-min")(_combined(jnp.minimum, _limit(1)))


@COMPLEX.add(kind="random")
@RULES.add(kind="random")
def _random(forms: Forms, equation: JaxprEqn, *operands: Any) -> Any:
    return forms.refuse("LiteRT does not draw the numbers of JAX's keys: draw them outside, and pass them as an input")
