"""Programs in the operations of LiteRT: one list of rewrites, each with the operation that LiteRT lacks.

A rewrite is a rule of a primitive, a function of JAX arrays. Equations without a rule stay as they are. Equations of
known operands are computed now, and NumPy arrays are known.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn

from jaxrnn._jax.context import highest, lowest
from jaxrnn.export.small import PAIRS, SMALL
from jaxrnn.export.small.control import chosen_branch, layer_in_steps, outlined, unrolled
from jaxrnn.export.small.convolutions import without_zeros
from jaxrnn.export.small.functions import is_known, rounded_away
from jaxrnn.export.translator import Rule, Translator, of_arrays
from jaxrnn.export.writer import Made
from jaxrnn.jaxprs.equations import bind, free_axes, type_of, walk
from jaxrnn.jaxprs.own import computed
from jaxrnn.jaxprs.primitives import Rules, entry_of
from jaxrnn.streaming.diagnostics import scope_of

#: The bytes of an operation in a file. Loops are unrolled up to `_FEW` bytes, and then as long as the operations take
#: less space than the rest of the file.
_OPERATION, _FEW = 200, 2**15
#: A part of the names of functions that are bodies of loops. The converter must not inline these functions.
LOOP = "jaxrnn_loop"

#: Rules ``(forms, equation, *operands)`` of equations on real numbers, and of equations with complex numbers.
RULES: Rules[Rule] = Rules(SMALL)
COMPLEX: Rules[Rule] = Rules(PAIRS)

#: Scopes of operations in the file: products with arrays that depend on no parameter, which stay float, and recurrent
#: layers.
EXACT, LAYER = "jaxrnn.exact", "jaxrnn.layer"

#: The types in which LiteRT computes with other numbers.
_WIDE = {
    "int8": "int32",
    "uint8": "int32",
    "int16": "int32",
    "uint16": "int32",
    "uint32": "int64",
    "float16": "float32",
}


#: Kinds of equations that are evaluated as other equations, or refused.
_SEVERAL = ("call", "checkpoint", "custom rule", "identity", "loop", "own", "random", "spelling")


def _typical(equation: JaxprEqn) -> Any:
    """Return the operand, or without operands the result, whose type is the type of an equation."""
    first = (entry_of(equation).moved or slice(1)).start or 0
    return equation.invars[first] if equation.invars else equation.outvars[0]


#: Products, whose operands are bytes in a wider type if an operator on bytes has subtracted zero points.
_OF_BYTES = ("conv_general_dilated", "dot_general")


class Forms(Translator):
    """A translator that traces a program again, in operations of LiteRT."""

    engine, rules, of_complex = "LiteRT", RULES, COMPLEX

    def __init__(self, label: str = "program") -> None:
        super().__init__(Made())
        #: A name for the functions of this program, which share a file with those of other programs.
        self.label = label
        #: True inside of an operator on integers of 8 bits.
        self.in_bytes = False
        #: The bytes that unrolled loops may still take in the file.
        self.room = _FEW

    def whole(self, closed: ClosedJaxpr, operands: Sequence[Any]) -> list[Any]:
        """Evaluate a whole program."""
        known = sum(each.nbytes for each in (*operands, *closed.consts) if isinstance(each, np.ndarray))
        self.room = max(_FEW, known + _OPERATION * sum(1 for _ in walk(closed.jaxpr)))
        return super().whole(closed, operands)

    def placeholder(self, shape: Sequence[int], dtype: np.dtype) -> Any:
        """Return zeros that count as unknown."""
        return lax.optimization_barrier(jnp.zeros(shape, dtype))

    def rule_of(self, equation: JaxprEqn) -> Any:
        """Return the rule of an equation that LiteRT is known to compute."""
        if entry_of(equation).kind not in _SEVERAL:
            of_bytes = self.in_bytes and equation.primitive.name in _OF_BYTES
            self.check_type(np.uint8 if of_bytes else type_of(_typical(equation)))
        return super().rule_of(equation) or _unchanged

    def compute(self, function: Callable[..., Any], equation: JaxprEqn, *operands: Any) -> Any:
        """Compute in types of LiteRT."""
        return super().compute(function, equation, *map(_wide, operands)).astype(type_of(equation.outvars[0]))

    def scope(self, *operands: Any) -> contextlib.AbstractContextManager[Any]:
        """Return the scope of a product."""
        exact = any(isinstance(each, np.ndarray) and each in self.made for each in operands)
        return jax.named_scope(EXACT) if exact else contextlib.nullcontext()

    def check_type(self, dtype: Any) -> None:
        """Refuse the current equation if LiteRT is not known to compute its primitive in a type."""
        known, name = entry_of(self.path[-1]).litert.split(), np.dtype(dtype).name
        if name in known:
            return
        if np.dtype(dtype).kind == "c":
            self.refuse_complex()
        reason = f"LiteRT is not known to compute it in {name}"
        if known:
            reason = (
                f"{reason}, only in {', '.join(known)}: convert to {'float32' if 'float32' in known else known[-1]}"
            )
        self.refuse(f"{reason}; or write it with other functions, or export for ONNX engines")


def _unchanged(forms: Forms, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """Keep an equation."""
    return bind(equation, list(map(jnp.asarray, operands)))


@RULES.add("recurrent_layer")
def _layer(forms: Forms, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """Recurrent layers: their steps."""
    with jax.named_scope(LAYER):
        return layer_in_steps(forms, equation, *operands)


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
    if (known := chosen_branch(equation, which)) is not None:
        return forms.evaluate(known, operands)
    branches = equation.params["branches"]
    index = jnp.clip(which.astype(jnp.int32), 0, len(branches) - 1)
    chosen, *others = (forms.evaluate(branch, operands) for branch in branches)
    for number, results in enumerate(others, 1):
        pairs = zip(results, chosen, equation.outvars, strict=True)
        chosen = [_chosen(np.dtype(type_of(each)), index == number, old, new) for new, old, each in pairs]
    return chosen


@RULES.add("scan")
def _loop(forms: Forms, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """``While`` with a body in the graph: the loop is unrolled if the file has room, or the body is a function."""
    length = equation.params["length"]
    size = _OPERATION * length * sum(1 for _ in walk(equation.params["jaxpr"].jaxpr))
    if length > 1 and size > forms.room:
        scope = [LAYER] if any(each.primitive.name == "recurrent_layer" for each in forms.path) else []
        return outlined(forms, equation, operands, f"{forms.label}_{LOOP}", "/".join([scope_of(forms.path), *scope]))
    forms.room -= size
    return unrolled(forms, equation, *operands)


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
    """Convolutions of dilated inputs, or of few frames with much padding: products, shifted and summed."""
    if (program := without_zeros(equation, transposes=False)) is not None:
        return forms.evaluate(program, [x, kernel])[0]
    numbers = equation.params["dimension_numbers"]

    def convolve(x: Any, kernel: Any) -> Any:
        return bind(equation, [jnp.asarray(x), jnp.asarray(kernel)], preferred_element_type=None)[0]

    taps = math.prod(kernel.shape[axis] for axis in numbers.rhs_spec[2:])
    left, right = (x, numbers.lhs_spec[1]), (kernel, numbers.rhs_spec[1])
    if np.dtype(type_of(equation.outvars[0])).kind != "f" and x.shape[left[1]] != kernel.shape[right[1]]:
        forms.refuse("LiteRT has no convolution of integers in groups: compute it in float32")
    with forms.scope(x, kernel):
        return _in_floats(forms, equation, left, right, taps, convolve)


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
        return product(*(each.astype(_WIDE.get(dtype.name, dtype)) for each in (x, y))).astype(dtype)
    if not (forms.in_bytes or all(each.dtype.itemsize == 1 for each in (x, y))):
        forms.refuse(f"LiteRT has no products of {dtype.name}: compute it in float32")
    largest = 255 * (int(np.abs(y.astype(np.int64)).max(initial=1)) if isinstance(y, np.ndarray) else 255)
    size, each = x.shape[axis_x], _WHOLE // (largest * taps)
    if each == 0:
        forms.refuse(f"float32 does not represent sums of {taps:,} products of integers")
    total: Any = np.int32(0)
    for start in range(0, size, each):
        part = slice(start, start + each)
        factors = (a[(slice(None),) * axis + (part,)].astype(np.float32) for a, axis in ((x, axis_x), (y, axis_y)))
        total = total + product(*factors).astype(np.int32)
    return total.astype(dtype)


def _wide(x: Any) -> Any:
    """Cast to a type that LiteRT computes in."""
    return x.astype(_WIDE.get(x.dtype.name, x.dtype))


@RULES.add("convert_element_type")
def _converted(forms: Forms, equation: JaxprEqn, x: Any) -> Any:
    """Conversions of NaN to integers, which are 0."""
    to = np.dtype(equation.params["new_dtype"])
    forms.check_type(to)
    x = _wide(x) if x.dtype.kind == "f" or to.kind == "b" else x
    return jnp.where(x == x, x, 0).astype(to) if x.dtype.kind == "f" and to.kind in "iu" else x.astype(to)


def _in_wide(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule of a function ``(equation, *operands)`` that computes in types of LiteRT."""

    @functools.wraps(function)
    def rule(forms: Forms, equation: JaxprEqn, *operands: Any) -> Any:
        return function(equation, *map(_wide, operands)).astype(type_of(equation.outvars[0]))

    return rule


of_arrays(RULES, "atanh")(lambda x: jnp.sign(x) * jnp.log1p(2 * jnp.abs(x) / (1 - jnp.abs(x))) / 2)


@of_arrays(RULES, "log1p")
def _log1p(x: Any) -> Any:
    """Sum a series for small numbers: LiteRT's logarithm of a number close to 1 has few digits."""
    small = jnp.abs(x) < 0.5
    part = jnp.where(small, x / (2 + x), 0)
    square = part * part
    series = 2 * part * (1 + square * (1 / 3 + square * (1 / 5 + square * (1 / 7 + square * (1 / 9 + square / 11)))))
    return jnp.where(small, series, jnp.log(1 + x))


@of_arrays(RULES, "expm1")
def _expm1(x: Any) -> Any:
    """Write ``tanh(x / 2) * (exp(x) + 1)``, which keeps the digits of small numbers."""
    return jnp.tanh(x / 2) * (jnp.exp(x) + 1)


@of_arrays(RULES, "sinh")
def _sinh(x: Any) -> Any:
    """Keep the digits of small numbers."""
    size = jnp.abs(x)
    low = jnp.expm1(jnp.where(size < 1, size, 0))
    high = jnp.exp(size - math.log(2)) - jnp.exp(-size - math.log(2))
    return jnp.sign(x) * jnp.where(size < 1, (low + low / (1 + low)) / 2, high)


@of_arrays(RULES, "asinh")
def _asinh(x: Any) -> Any:
    """Keep the digits of small numbers, and do not square large numbers."""
    size = jnp.abs(x)
    large = size > 2**24
    low = jnp.where(large, 1, size)
    low = jnp.log1p(low + low * low / (1 + jnp.sqrt(low * low + 1)))
    return jnp.sign(x) * jnp.where(large, jnp.log(size) + math.log(2), low)


@of_arrays(RULES, "acosh")
def _acosh(x: Any) -> Any:
    """Keep the digits of numbers close to 1, and do not square large numbers."""
    large = x > 2**24
    low = jnp.where(large, 1, x) - 1
    found = jnp.where(large, jnp.log(x) + math.log(2), jnp.log1p(low + jnp.sqrt(low * (low + 2))))
    return jnp.where(x < 1, jnp.nan, found)


@RULES.add(kind="elementwise")
@_in_wide
def _elementwise(equation: JaxprEqn, *operands: Any) -> Any:
    return bind(equation, list(map(jnp.asarray, operands)))[0]


@RULES.add("select_n")
def _select(forms: Forms, equation: JaxprEqn, which: Any, *cases: Any) -> Any:
    """Choices of narrow numbers, and of more than two cases."""
    chosen = cases[0]
    for number, case in enumerate(cases[1:], 1):
        condition = which if which.dtype == bool else which == number
        chosen = _chosen(np.dtype(type_of(equation.outvars[0])), condition, chosen, case)
    return chosen


def _chosen(dtype: np.dtype, condition: Any, otherwise: Any, then: Any) -> Any:
    return jnp.where(condition, *(_wide(jnp.asarray(each).astype(dtype)) for each in (then, otherwise))).astype(dtype)


@RULES.add("clamp")
@_in_wide
def _clamped(equation: JaxprEqn, low: Any, x: Any, high: Any) -> Any:
    """Limit from below, then from above; LiteRT does the reverse, and so differs if the limits are exchanged."""
    return jnp.minimum(jnp.maximum(x, low), high)


@RULES.add("abs")
@_in_wide
def _size(equation: JaxprEqn, x: Any) -> Any:
    """Write absolute values of integers of 64 bits."""
    return jnp.abs(x) if x.dtype.kind == "f" else jnp.where(x < 0, -x, x)


@RULES.add("div")
@_in_wide
def _quotient(equation: JaxprEqn, x: Any, y: Any) -> Any:
    """Quotients of integers: LiteRT stops at a division by 0, and the processor at one of the lowest number by -1."""
    if x.dtype.kind == "f" or is_known(y, 0, -1):
        return lax.div(*jnp.broadcast_arrays(x, y))
    quotient = lax.div(*jnp.broadcast_arrays(x, jnp.where((y == 0) | (y == -1), 1, y)))
    return jnp.where(y == 0, -1, jnp.where(y == -1, -x, quotient))


@RULES.add("rem")
@_in_wide
def _remainder(equation: JaxprEqn, x: Any, y: Any) -> Any:
    """Remainders with the sign of the dividend: LiteRT's have the sign of the divisor, so both become negative."""
    size, by = (-jnp.abs(x), -jnp.abs(y)) if x.dtype.kind == "f" else (jnp.minimum(x, -x), jnp.minimum(y, -y))
    if x.dtype.kind == "f" or is_known(y, 0, 1, -1):
        rest = lax.rem(*jnp.broadcast_arrays(size, by))
    else:
        rest = lax.rem(*jnp.broadcast_arrays(size, jnp.minimum(by, -2)))
        rest = jnp.where(by == 0, size, jnp.where(by == -1, 0, rest))
    return jnp.where(x < 0, rest, -rest)


@RULES.add("round")
@_in_wide
def _rounded(equation: JaxprEqn, x: Any) -> Any:
    """Round halves away from zero."""
    to_even = equation.params["rounding_method"] == lax.RoundingMethod.TO_NEAREST_EVEN
    return bind(equation, [x])[0] if to_even else rounded_away(x)


@RULES.add("xor")
@_in_wide
def _differ(equation: JaxprEqn, x: Any, y: Any) -> Any:
    """Exclusive or of conditions."""
    return x != y if x.dtype == bool else lax.bitwise_xor(x, y)


@RULES.add("shift_left")
def _shifted(forms: Forms, equation: JaxprEqn, x: Any, places: Any) -> Any:
    """Shifts to the left by known numbers."""
    if not isinstance(places, np.ndarray):
        return forms.refuse("LiteRT shifts to the left by a constant only: multiply by a power of two")
    return (_wide(x) * _wide(np.left_shift(np.ones((), x.dtype), places))).astype(x.dtype)


@RULES.add("shift_right_logical", "shift_right_arithmetic")
def _shifted_right(forms: Forms, equation: JaxprEqn, x: Any, places: Any) -> Any:
    """Shifts to the right: LiteRT's fill with the sign, and are defined for less places than bits."""
    own, bits = x.dtype, 8 * x.dtype.itemsize
    logical = equation.primitive.name == "shift_right_logical"
    x = _wide(x.astype(f"uint{bits}" if logical and bits < 32 else f"int{bits}"))
    places = _wide(places.astype(f"int{bits}"))
    places = jnp.where((places < 0) | (places > bits), bits, places)
    if logical and bits == 32:  # by one place, then by the others
        half = lax.shift_right_arithmetic(x, jnp.ones_like(x))
        x = jnp.where(places == 0, x, jnp.where(x < 0, half - np.iinfo(np.int32).min, half))
        places = jnp.maximum(places - 1, 0)
    return lax.shift_right_arithmetic(*jnp.broadcast_arrays(x, jnp.minimum(places, 31))).astype(own)


@RULES.add("sort")
def _sorted(forms: Forms, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """Sorts: by the order of the first operand, which TopK gives."""
    params = equation.params
    key, axis = jnp.asarray(operands[0]), params["dimension"]
    if params["num_keys"] > 1:
        return forms.refuse("LiteRT sorts by one array")
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
    exists = jnp.all(places == inside, -1)
    kept = [axis for axis in range(result.ndim) if axis not in numbers.offset_dims]
    return _chosen(
        dtype, lax.broadcast_in_dim(exists, result.shape, kept), jnp.full((), params["fill_value"], dtype), result
    )


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
        if not isinstance(places, np.ndarray) or not math.prod(x.shape) or not updates.size:
            return _at_places(forms, equation)
        # After the last element comes an element for places that get none. Elements on one place take turns.
        none, dtype = updates.size, np.dtype(x.dtype)
        elements = jnp.concatenate([updates.reshape(-1), jnp.full(1, neutral(dtype), dtype)])
        numbers = np.arange(none, dtype=np.int32).reshape(updates.shape)
        for _ in range(_TOGETHER + 1):
            source = _first(equation, x.shape, places, numbers)
            if (source == none).all():
                return x
            x = combine(x, elements.at[source].get(mode="promise_in_bounds"))
            numbers = np.where(np.isin(numbers, source), np.int32(none), numbers)
        return _at_places(forms, equation)

    return rule


def _first(equation: JaxprEqn, shape: Sequence[int], places: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return the lowest of the numbers on each place of an array."""
    params = {key: equation.params[key] for key in ("dimension_numbers", "mode")}
    with jax.ensure_compile_time_eval():
        start = jnp.full(shape, numbers.size, np.int32)
        return np.asarray(lax.scatter_min(start, jnp.asarray(places), jnp.asarray(numbers), **params))


RULES.add("scatter-add")(_combined(jnp.add, lambda dtype: 0))
RULES.add("scatter-mul")(_combined(jnp.multiply, lambda dtype: 1))
RULES.add("scatter-max")(_combined(jnp.maximum, lowest))
RULES.add("scatter-min")(_combined(jnp.minimum, highest))
