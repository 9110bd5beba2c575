"""Comparison of the trace for all lengths with traces at single lengths.

A function can depend on the length in ways that a symbolic trace does not show, such as ``isinstance(n, int)``, or a
comparison of sizes in a library. So the values of traces are numbered at a single length: calls are inlined, arithmetic
on sizes and other known arrays is carried out, and movements of elements become views of NumPy, so that all spellings
of a view are equal. JAX may choose other primitives for a symbolic size, so different numbers of values decide nothing:
then both traces are evaluated on random inputs, and the results decide.

A narrow type does not hold the numbers of all frames: int8 wraps around at 128, and bfloat16 rounds 257. A function
that casts a position or a length to such a type does something else in longer recordings, so lengths just past the
range are compared too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jax.extend.core.primitives import convert_element_type_p

from jaxrnn._files.messages import describe, first_line
from jaxrnn._jax.context import own_arithmetic
from jaxrnn._jax.versions import Scan
from jaxrnn.answers import Unknown
from jaxrnn.comparison import FLOATS, NORMAL, Comparison, compare
from jaxrnn.errors import StreamError
from jaxrnn.jaxprs.casts import converted
from jaxrnn.jaxprs.equations import (
    bind,
    called,
    dependents,
    evaluate,
    inner_jaxprs,
    is_key,
    shape_of,
    type_of,
    variables,
    walk,
)
from jaxrnn.jaxprs.moves import move, moved_operands
from jaxrnn.jaxprs.numbering import Number, Numbering, digest, typed
from jaxrnn.jaxprs.primitives import Rules, entry_of
from jaxrnn.streaming.dimensions import counted_size, is_symbolic, symbolic_axes, value_of
from jaxrnn.streaming.lengths import Lengths, remedy_of
from jaxrnn.streaming.rewriting import at_length

#: Known arrays with more elements are not computed.
_SMALL = 1 << 14

#: Lengths at which a function is traced, counted from the smallest allowed length: small and large, of all remainders
#: by 2 to 5. The later lengths replace lengths at which the function raises an error.
_LENGTHS = (1, 2, 13, 24, 100, 3, 8, 50, 64, 240, 1001)
#: Compared lengths, and the least number of them; lengths at which numbers are compared.
_COMPARED, _LEAST, _WITH_NUMBERS = 5, 2, 2
#: The largest number of lengths at which JAX took two equal sizes to be unequal.
_TAKEN = 6
#: The largest length at which JAX took two equal sizes to be unequal and that is compared. Masks of a trace at a single
#: length have an element for each pair of frames.
_LARGEST = 4096

#: Ranges from this number on hold the numbers of frames in recordings that anyone compares.
_WIDE = 1 << 20
#: The largest number of elements of an array in a trace that is compared. The memory of the elements is never read.
_LARGEST_ARRAY = 1 << 30

#: A trace: a closed jaxpr, and the tree of its outputs.
Traced = tuple[Any, Any]


class TraceComparison:
    """Compares the trace of a function for all lengths with traces at single lengths.

    Attributes:
        symbolic: the trace for all lengths.
        at: returns the trace for a length, or raises any error of the function.
        arguments: the arguments of the traces, with None for arrays to draw.
        examples: values of drawn arguments inside of the domain of the function, for any length; None if unknown.
        multiple: the number of input frames for each frame of the trace, for messages.
    """

    def __init__(
        self,
        symbolic: Traced,
        at: Callable[[int], Traced],
        arguments: Sequence[Any],
        examples: Sequence[Any],
        multiple: int,
    ):
        self.symbolic, self.at, self.multiple = symbolic, at, multiple
        self.arguments, self.examples = arguments, examples
        self._numbering = NumberingAtLength()

    def run(self, lengths: Lengths, taken: Iterable[Any]) -> tuple[str, ...]:
        """Compare several lengths; raise StreamError if a length differs, or if too few lengths can be compared.

        `taken` contains differences of sizes that JAX took to be unequal in the trace for all lengths.

        Returns:
            The outputs of which no length has a finite number on any drawn inputs. Their numbers are not compared.
        """
        equal = (lengths.zero_of(each) for each in taken)
        doubtful = list(dict.fromkeys(each for each in equal if each is not None and each <= _LARGEST))[:_TAKEN]
        doubtful += _lengths_past_ranges(self.symbolic[0].jaxpr, lengths)
        found: dict[int, str] = {}  # the difference at each length; empty if the traces agree
        undecided: dict[int, Traced] = {}
        error: Exception | None = None
        for length in dict.fromkeys((*doubtful, *lengths.spread(_LENGTHS))):
            if length not in doubtful and len(found) + len(undecided) >= _COMPARED + len(doubtful):
                break
            try:
                traced = self.at(length)
            except Exception as raised:  # the function may raise any error for a length that does not fit
                error = raised
                continue
            said = self._by_computation(traced, length)
            if isinstance(said, Unknown):
                undecided[length] = traced
            else:
                found[length] = said
        names = _names_of(self.symbolic[1])
        compared = set(names if "" in found.values() else ())
        # Numbers take a compilation for each length: first the longest and the shortest, and others if necessary.
        asked = 0
        for length in dict.fromkeys((*sorted(undecided)[-1:], *undecided)):
            agreed = [each for each, said in found.items() if not said]
            if length not in doubtful and asked >= _WITH_NUMBERS and len(agreed) >= _LEAST:
                continue
            try:
                found[length], here = self._by_results(undecided[length], length)
            except Exception as raised:  # a primitive without a lowering, for example
                error = raised
                continue
            asked += length not in doubtful
            compared |= here
        agreed = [each for each, said in found.items() if not said]
        if len(agreed) < len(found):
            raise StreamError(_said_of(found, self.multiple))
        if len(agreed) < _LEAST:
            raise StreamError(
                "the function can be traced for every length, but not compared at single lengths"
                + ("" if error is None else f": {type(error).__name__}: {first_line(error)}")
            ) from error
        return tuple(name for name in names if name not in compared)

    def _by_computation(self, traced: Traced, length: int) -> str | Unknown:
        """Compare value numbers: return a difference, an empty text if all are equal, or Unknown."""
        (symbolic, tree), (single, own_tree) = self.symbolic, traced
        if tree != own_tree:
            return f"the output is {own_tree}, and not {tree}"
        inputs = self._numbering.unknown("input", single.jaxpr.invars)
        expected, found = (self._numbering.of(each, inputs, length) for each in (symbolic, single))
        for name, each, other in zip(_names_of(tree), expected, found, strict=True):
            if tuple(each.shape) != tuple(other.shape) or each.dtype != other.dtype:
                return f"{name} is {describe(other)}, and not {describe(each)}"
        pairs = zip(expected, found, strict=True)
        key_of = self._numbering.key_of
        return "" if all(key_of(a) == key_of(b) for a, b in pairs) else Unknown("other computations")

    def _by_results(self, traced: Traced, length: int) -> tuple[str, set[str]]:
        """Compare results on drawn inputs: return a difference or an empty text, and the outputs that were compared."""
        (symbolic, tree), (single, _) = self.symbolic, traced
        variables, names = single.jaxpr.invars, _names_of(tree)
        stand_ins: dict[int, Any] = {}

        def concrete(closed: Any) -> list[Any]:
            """Return the constants, with numbers in place of tracers."""
            return [
                stand_ins.setdefault(id(each), _drawn(np.shape(each), each.dtype, len(stand_ins), NORMAL))
                if isinstance(each, Tracer)
                else each
                for each in closed.consts
            ]

        consts = concrete(symbolic), concrete(single)

        @jax.jit
        def both(consts: Any, arguments: Any) -> Any:
            first, second = (
                ClosedJaxpr(each.jaxpr, known) for each, known in zip((symbolic, single), consts, strict=True)
            )
            return at_length(first, arguments, length), evaluate(second, arguments)

        def arguments(way: str) -> list[Any]:
            """Return drawn arrays in place of unknown arguments; in the last way, the values of the caller."""
            drawn = []
            for place, (variable, each, value) in enumerate(zip(variables, self.arguments, self.examples, strict=True)):
                shape = shape_of(variable)
                if each is None and (way or value is None):
                    each = _drawn(shape, type_of(variable), place, way or "positive")
                drawn.append(_repeated(value, shape) if each is None else each)
            return drawn

        compared: set[str] = set()
        for way in (*FLOATS, *([""] if any(each is not None for each in self.examples) else [])):
            with jax.ensure_compile_time_eval(), own_arithmetic():
                results = jax.device_get(both(consts, arguments(way)))
            comparisons = list(map(_compared, names, *results))
            if wrong := next((each for each in comparisons if each.differs), None):
                return f"{wrong.name} differs by {wrong.max_abs:.3g}", compared
            compared |= {each.name for each in comparisons if each.compared or not math.prod(each.shape)}
            if len(compared) == len(names):
                break
        return "", compared


def _lengths_past_ranges(jaxpr: Any, lengths: Lengths) -> list[int]:
    """Return allowed lengths at which all positions and lengths exceed the types to which a canonical jaxpr casts them.

    Lengths with more pairs of frames than memory holds are left out: nobody runs the function on such a recording.

    Raises:
        StreamError: an array is too large for a comparison at such a length.
    """
    if not any(map(_lasts, walk(jaxpr))):
        return []
    counted = {equation: size for equation in jaxpr.eqns if is_symbolic(size := counted_size(equation))}
    counting = dependents(jaxpr.eqns, [each for equation in counted for each in equation.outvars])
    lasts = {
        last: type_of(each.outvars[0]).name
        for equation in jaxpr.eqns
        if equation in counted or not counting.isdisjoint(variables(equation.invars))
        for each in (equation, *(inner for part in inner_jaxprs(equation) for inner in walk(part)))
        for last in _lasts(each)
    }
    places, found = np.arange(1, _WIDE), []
    places = places[lengths.allow(places)]
    shapes = [shape_of(each) for equation in walk(jaxpr) for each in equation.outvars]
    for last, name in lasts.items():
        longer = [places[np.broadcast_to(value_of(size, places) > last + 1, places.shape)] for size in counted.values()]
        if (length := max((int(each[0]) for each in longer if len(each)), default=0)) == 0:
            continue
        largest, pairs = max(
            (math.prod(value_of(n, length) for n in shape), symbolic_axes(shape)[1:]) for shape in shapes
        )
        if largest <= _LARGEST_ARRAY:
            found.append(length)
        elif not pairs:
            raise StreamError(
                f"it casts positions in time or a length to {name}, which does not hold the numbers of {length} "
                f"frames, and an array of {largest} elements is too large to compare the function at this length: cast "
                f"to int32, or give `constraints=['S <= {length - 1}']` if recordings are shorter"
            )
    return found


def _lasts(equation: JaxprEqn) -> list[int]:
    """Return the numbers after which an equation that casts integers, or counts, wraps around, rounds or overflows."""
    casts = equation.primitive is convert_element_type_p and jnp.issubdtype(type_of(equation.invars[0]), jnp.integer)
    if not casts and entry_of(equation).kind != "constant":
        return []
    if (dtype := type_of(equation.outvars[0])) == np.bool_:
        return []
    if jnp.issubdtype(dtype, jnp.integer):
        lasts = [int(jnp.iinfo(dtype).max)]
    else:
        lasts = [2 ** (jnp.finfo(dtype).nmant + 1), 2 ** int(jnp.finfo(dtype).maxexp)]
    return [each for each in lasts if each < _WIDE]


def _names_of(tree: Any) -> list[str]:
    """Return names for the outputs, for messages."""
    paths = jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(tree, range(tree.num_leaves)))[0]
    return [f"output{jax.tree_util.keystr(path)}" for path, _ in paths]


def _drawn(shape: Sequence[int], dtype: Any, seed: int, way: str) -> Any:
    """Return random numbers, drawn in one of the ways of `FLOATS`."""
    if is_key(dtype):
        return jax.random.key(seed) if not shape else jax.random.split(jax.random.key(seed), tuple(shape))
    rng = np.random.default_rng(seed)
    if not jnp.issubdtype(dtype, jnp.inexact):
        # Few numbers would hide a difference behind a bound; only 0 and 1 are inside of each table.
        is_small = way != NORMAL or dtype == np.bool_
        least = -4 if jnp.issubdtype(dtype, jnp.signedinteger) else 0
        return rng.integers(*((0, 2) if is_small else (least, 8)), shape).astype(dtype)
    numbers = FLOATS[way](rng, shape)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        numbers = numbers + 1j * rng.uniform(0.5, 1.5, shape)
    return numbers.astype(dtype)


def _repeated(value: Any, shape: Sequence[int]) -> Any:
    """Repeat or cut a recording to a shape."""
    value = np.asarray(value)
    return value[np.ix_(*(np.arange(size) % have for size, have in zip(shape, value.shape, strict=True)))]


def _compared(name: str, expected: Any, found: Any) -> Comparison:
    """Compare numbers of two traces."""
    if is_key(expected.dtype):
        expected, found = map(jax.random.key_data, (expected, found))
    # Half of the digits: other orders of sums round differently, and a wrong branch computes other numbers.
    atol = float(jnp.finfo(expected.dtype).eps) ** 0.5 if jnp.issubdtype(expected.dtype, jnp.inexact) else 0.0
    return compare(name, found, expected, atol=atol, rtol=0.0, scaled=True)


def _said_of(found: Mapping[int, str], multiple: int) -> str:
    """Return the message about lengths that differ."""
    agreed, wrong = ([each for each in sorted(found) if bool(found[each]) is differs] for differs in (False, True))
    same = f" and agrees at {_listed(agreed, multiple)}" if agreed else ""
    remedy = "; pad outside of the function, or select frames with jnp.where"
    if agreed and max(wrong) < min(agreed):
        remedy = f"; {remedy_of(1, max(wrong) + 1, multiple)}"
    elif agreed:
        divisors = (k for k in range(2, 17) if not any(n % k for n in agreed) and all(n % k for n in wrong))
        remedy = next((f"; {remedy_of(times, 1, multiple)}" for times in divisors), remedy)
    return (
        f"the function depends on the length in a way that its trace for all lengths does not show, such as a branch "
        f"on a size: at {wrong[0] * multiple} frames, {found[wrong[0]]}. It differs at {_listed(wrong, multiple)}"
        f"{same} frames{remedy}"
    )


def _listed(lengths: Iterable[int], multiple: int) -> str:
    return ", ".join(str(each * multiple) for each in sorted(lengths))


#: Rules ``(numbering, equation, operands) -> values``. A rule may return None to leave an equation to the general rule.
_RULES = Rules()


@dataclass(frozen=True, eq=False)
class NumberedArray(Number):
    """A number with the elements of an array.

    Attributes:
        elements: memory that nobody reads, with a byte for each element. Movements of the array move these bytes.
        whole: the memory of the array of which this array is a view; None if it has its own.
    """

    elements: np.ndarray
    dtype: Any
    whole: NumberedArray | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape at the compared length."""
        return self.elements.shape


def _array_of(key: Any, elements: np.ndarray, dtype: Any, whole: NumberedArray | None = None) -> NumberedArray:
    key = key if elements.size else "empty"
    return NumberedArray(digest((key, elements.shape, str(dtype))), elements, dtype, whole)


class NumberingAtLength(Numbering):
    """A numbering in which other spellings of a computation at a single length also have equal numbers."""

    #: Parameters that do not affect values.
    ignored = frozenset({"weak_type", "sharding", "out_sharding", "name", "debug_info", "ctx_mesh", "_split_transpose"})

    def of(self, closed: Any, inputs: Sequence[Any], length: int) -> list[Any]:
        """Return the results of a jaxpr, with this length in place of the symbol."""
        self._size_of = functools.cache(lambda spelling: value_of(spelling, length))
        self._past = ""
        return self.run(closed, inputs)

    def run(self, program: Any, inputs: Sequence[Any]) -> list[Any]:
        """Return the results of a jaxpr on these values."""
        return evaluate(program, inputs, self.apply)

    def size(self, value: Any) -> Any:
        """Replace symbolic sizes in a parameter."""
        if jax.export.is_symbolic_dim(value):
            return self._size_of(str(value))
        if isinstance(value, tuple | list):
            parts = [self.size(part) for part in value]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        return value

    def make(self, key: Any, variable: Any) -> NumberedArray:
        """Return the value of a variable with this key."""
        return _array_of(key, np.empty(self.size(shape_of(variable)), bool), type_of(variable))

    def apply(self, equation: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
        """Return the results of an equation: known arrays, views, or computed arrays."""
        operands = [typed(atom, value) for atom, value in zip(equation.invars, operands, strict=True)]
        rule = _RULES.of(equation)
        if rule is not None and (results := rule(self, equation, operands)) is not None:
            return results
        equation = equation.replace(params={key: self.size(value) for key, value in equation.params.items()})
        results, moved = None, moved_operands(equation)
        if all(isinstance(value, np.ndarray) for value in operands):
            results = self._known(equation, operands)
        elif isinstance(x := operands[0], NumberedArray) and moved and moved[0] == 0:
            others = operands[1:]
            results = self._moved(equation, x, others) if all(isinstance(y, np.ndarray) for y in others) else None
        return super().apply(equation, operands) if results is None else results

    def _moved(self, equation: JaxprEqn, x: NumberedArray, others: Sequence[np.ndarray]) -> list[NumberedArray] | None:
        """Return the results of a movement, or None if these are not views of the elements."""
        # A view of copied elements is a view of the copy.
        copied = () if x.whole is None else (_array_of(("copy", x.digest), np.empty(x.shape, bool), x.dtype),)
        for each in (x, *copied):
            moved = move(equation, [each.elements, *others])
            views = [self._view(each, elements) for elements in moved or ()]
            found = [view for view in views if view is not None]
            if moved is not None and len(found) == len(moved):
                return found
        return None

    def _view(self, x: NumberedArray, elements: np.ndarray) -> NumberedArray | None:
        """Return the value of moved elements of `x`; None if NumPy has copied the elements."""
        whole = x.whole or x
        if elements.size and not np.may_share_memory(elements, whole.elements):
            return None
        start = elements.ctypes.data - whole.elements.ctypes.data
        if start == 0 and elements.shape == whole.shape and elements.flags.c_contiguous:
            return whole
        strides = tuple(
            stride if size > 1 else 0 for size, stride in zip(elements.shape, elements.strides, strict=True)
        )
        return _array_of(("view", whole.digest, start, strides), elements, x.dtype, whole)

    @_RULES.add(kind="call")
    @_RULES.add(kind="checkpoint")
    @_RULES.add(kind="custom rule")
    def _call(self, equation: JaxprEqn, operands: list[Any]) -> list[Any]:
        return self.run(called(equation), operands)

    @_RULES.add("scan")
    def _scan(self, equation: JaxprEqn, operands: list[Any]) -> list[NumberedArray]:
        # Constants of the loop keep their numbers inside of the body.
        params, body = equation.params, equation.params["jaxpr"]
        consts, carries = Scan.of(equation)
        inner = self.unknown("loop", body.jaxpr.invars[consts:])
        results = self.body(body, [*operands[:consts], *inner])
        options = self.size(params["length"]), params["reverse"], carries
        return self.made(equation, ("scan", options, results, self.key_of(operands[consts:])))

    @_RULES.add("while")
    def _while(self, equation: JaxprEqn, operands: list[Any]) -> list[NumberedArray]:
        params = equation.params
        first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        carry = self.unknown("loop", equation.outvars)
        cond = self.body(params["cond_jaxpr"], [*operands[:first], *carry])
        body = self.body(params["body_jaxpr"], [*operands[first:second], *carry])
        return self.made(equation, ("while", cond, body, self.key_of(operands[second:])))

    @_RULES.add("cond")
    def _cond(self, equation: JaxprEqn, operands: list[Any]) -> Sequence[Any]:
        index, *rest = operands
        branches = equation.params["branches"]
        if isinstance(index, np.ndarray):
            return self.run(branches[int(np.clip(index, 0, len(branches) - 1))], rest)
        results = tuple(self.body(branch, rest) for branch in branches)
        return self.made(equation, ("cond", self.key_of(index), results))

    @_RULES.add("select_n")
    def _selected(self, equation: JaxprEqn, operands: list[Any]) -> list[Any] | None:
        which, *cases = operands
        is_same = isinstance(which, np.ndarray) and len(np.unique(which)) == 1
        return [cases[int(which.flat[0])]] if is_same else None

    @_RULES.add("concatenate")
    def _joined(self, equation: JaxprEqn, operands: list[Any]) -> list[Any] | None:
        axis = equation.params["dimension"]
        parts = [part for part in operands if part.shape[axis]]
        if len(parts) == 1:
            return parts
        if all(isinstance(part, np.ndarray) for part in parts):
            return None
        return self.made(equation, ("concatenate", axis, self.key_of(parts)))

    def _known(self, equation: JaxprEqn, operands: list[Any]) -> list[np.ndarray] | None:
        """Return the numbers of small results of known operands, or None."""
        largest = max((math.prod(self.size(shape_of(each))) for each in equation.outvars), default=0)
        types = [type_of(each) for each in equation.outvars]
        if largest > _SMALL or equation.effects or any(map(is_key, types)):
            return None
        function, params = entry_of(equation).numpy, equation.params
        with np.errstate(all="ignore"):
            results = None if function is None else function(params, *operands)
            if results is not None:
                results = results if isinstance(results, list) else [results]
                return [converted(np.asarray(result), dtype) for result, dtype in zip(results, types, strict=True)]
        if any(isinstance(value, (ClosedJaxpr, Jaxpr)) for value in params.values()) or largest > 1:
            return None
        with jax.ensure_compile_time_eval():
            return list(map(np.asarray, bind(equation, list(map(jnp.asarray, operands)))))
