"""`stream`: traces a function over a whole recording with a symbolic length, and returns the streaming form.

Functions may be Flax NNX modules, Equinox modules, or ``apply`` of a linen module. Flax is looked up among the loaded
modules only, because an object of a package exists only if the package is loaded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
import pickle
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.extend.core import InconclusiveDimensionOperation

from jaxrnn._files.messages import first_line, whole_message
from jaxrnn._jax.context import without_collector
from jaxrnn._jax.sizes import deciding
from jaxrnn.answers import Unknown
from jaxrnn.cells.forms import Types, plain_forms
from jaxrnn.errors import InputError, JaxrnnError, NodeError, StreamError, is_count
from jaxrnn.jaxprs.equations import is_key, trace, walk
from jaxrnn.jaxprs.held import Held, with_copies
from jaxrnn.jaxprs.numbering import fingerprint
from jaxrnn.streaming.blocks import without_blocks
from jaxrnn.streaming.comparison import TraceComparison
from jaxrnn.streaming.diagnostics import (
    Path,
    error_in_words_of_file,
    hint_for_tracing,
    is_of_numpy,
    location_of_error,
)
from jaxrnn.streaming.dimensions import SYMBOL, UndecidedError, is_symbolic, parts_of, sizes_in, symbolic_axes
from jaxrnn.streaming.histories import Placeholder
from jaxrnn.streaming.indexed import by_frames
from jaxrnn.streaming.interpreter import RULES, is_observed
from jaxrnn.streaming.lengths import Lengths, advice, fixed_length, identities, implied, obstacle
from jaxrnn.streaming.plan import Leaf, Plan, as_struct
from jaxrnn.streaming.streamed import Streamed
from jaxrnn.streaming.substitution import substituted
from jaxrnn.streaming.values import Band

#: The largest `past`.
LONGEST_PAST = 1_000_000
#: The band of the attention at a path.
Bands = Callable[[Path], Band]
#: Values in frames that do not exist.
PLACEHOLDER = Placeholder()


def stream(
    function: Callable[..., Any],
    example: Any,
    *,
    axes: Any,
    params: Any = None,
    pulse: int | None = None,
    multiple: int = 1,
    constraints: Sequence[str] = (),
    past: int | None = None,
    substitute: bool = False,
) -> Streamed:
    """Turn a function over a whole recording into an exact streaming function over pulses of frames.

    For any length and any division into pulses, concatenate the outputs of `Streamed.step` and `Streamed.flush` and
    drop the first `Streamed.delay` frames: the result equals the output of the function on the whole recording.

    Example::

        def smooth(x):  # float32[time, channels]
            count = jnp.arange(1, x.shape[0] + 1).astype(x.dtype)
            return jnp.cumsum(x, axis=0) / count[:, None]

        streamed = jaxrnn.stream(smooth, jax.ShapeDtypeStruct((100, 2), jnp.float32), axes=0, pulse=4)
        state = streamed.init()
        y, state = jax.jit(streamed.step)(None, state, frames)  # float32[4, 2]

    Args:
        function: a pure ``function(x)``, or ``function(params, x)`` with `params`, of pytrees of arrays. Flax NNX and
            Equinox modules are accepted: their arrays become constants, and changes of a module during a call are
            lost.
        example: an example of x: arrays, or ``jax.ShapeDtypeStruct``. Leaves may have different numbers of frames if
            each number is a multiple of the smallest: one second may be 100 frames of features and 16,000 samples. Only
            the ratios matter. The trace is compared with traces at single lengths on random inputs, and on the arrays
            of the example if an output has no finite number on random inputs.
        axes: the time axis of each leaf of x, as an integer or a pytree of integers (a prefix of x); None for leaves
            that are constant in time.
        params: an example of the parameters.
        pulse: input frames in each step, counted in the leaf with the fewest frames. Default: the smallest pulse that
            fits.
        multiple: all lengths are multiples of this number. Required for functions that only accept such lengths.
        constraints: assumptions about the number S of input frames (in units of ``multiple``), such as ``"S >= 3"``,
            ``"S <= 500"`` or ``"mod(S, 2) == 0"``; an error suggests the constraints that a function needs. Other
            lengths are refused by `Streamed.run`, by `Streamed.flush`, and by a step beyond the largest length.
            Compiled functions cannot raise errors and return NaN (0 for integers) instead.
        past: for causal attention without a bound: the largest number of earlier frames that a frame sees. **It changes
            the function**: keys that are more than ``past`` frames older than their query are masked, and the result
            equals `Streamed.offline`, the function with this band. Other attention does not change. Without an
            attention that needs a bound, the argument is an error.
        substitute: True for a function that calls `jax.lax.associative_scan`, `jax.numpy.convolve`,
            `jax.numpy.correlate`, `jax.scipy.signal.convolve` or `jax.scipy.signal.correlate` in a package: while the
            function is traced, in this thread, jaxrnn's functions of these names take their place for symbolic sizes.
            Functions of `jax.numpy` take the place of ``numpy.arange`` of integers, ``eye``, ``full``, ``ones``,
            ``tri``, ``tril``, ``triu`` and ``zeros``.

    Positions in time and lengths that the function uses as values are 64-bit integers if ``jax_enable_x64`` is set
    during this call, otherwise 32-bit integers.

    Raises:
        StreamError: part of the function needs the unbounded future, or has no rule; the error names this part and a
            remedy. Or the pulse does not fit the strides; the error names pulses that fit.
    """
    options = {"axes": axes, "params": params, "multiple": multiple, "constraints": constraints, "past": past}
    return stream_in_types(function, example, **options, types=Types.here(), pulse=pulse, substitute=substitute)


def stream_in_types(
    function: Callable[..., Any],
    example: Any,
    *,
    axes: Any,
    params: Any,
    multiple: int,
    constraints: Sequence[str],
    past: int | None,
    types: Types,
    pulse: int | None,
    compares: bool = True,
    placeholder: Placeholder | None = None,
    substitute: bool = False,
) -> Streamed:
    """Implement `stream`; if `compares`, compare the trace with traces at single lengths."""
    placeholder = PLACEHOLDER if placeholder is None else placeholder
    offline = _Offline(function, example, axes, params, multiple, placeholder, substitute)
    lengths, past = Lengths(constraints), _checked_past(past)
    if compares and not is_observed():  # those who observe see the work of a new plan
        offline.known = _plans_of(function)
    # The types are the types during this call, not the types when the result is called. Without programs, a loop over
    # frames would run as Python, and need a number of frames.
    with types.in_force(), explained(), without_collector(), jax.disable_jit(False):
        plan = offline.planned(lengths, past)
        # Outputs that were not compared are tried again, because this example may have values that compare them.
        if compares and (plan.uncompared or all(plan is not each.plan for each in offline.known)):
            plan.uncompared = offline.compare(plan)
            offline.keep(plan)
    arguments = {
        "function": function,
        "example": offline.example,
        "axes": axes,
        "params": offline.params_example,
        "multiple": offline.multiple,
        "constraints": lengths.constraints,
        "past": past,
        "substitute": substitute,
    }
    return Streamed(plan, offline.structure, pulse=pulse, recipe=Recipe(arguments, types))


@dataclass(frozen=True)
class _Known:
    """A plan that was compared, with a key of the call, the rules of primitives, and the traced function."""

    key: str
    rules: Mapping[str, Any]
    closed: Any
    plan: Plan

    @functools.cached_property
    def digest(self) -> str:
        """The fingerprint of the traced function; empty if a donation has deleted an array of the function."""
        try:
            return fingerprint(self.closed)
        except RuntimeError:
            return ""


#: Plans by function. A function that was streamed before is traced once, to see that the function is the same.
_plans: weakref.WeakKeyDictionary[Any, list[_Known]] = weakref.WeakKeyDictionary()
#: The largest number of plans of a function.
_MOST_PLANS = 4


def _plans_of(function: Any) -> list[_Known]:
    """Return the list of known plans of a function; a new list for a function without identity."""
    try:
        return _plans.setdefault(function, [])
    except TypeError:  # without a hash, or without weak references
        return []


def _number_or_struct(leaf: Any) -> Any:
    """Return the shape and type of a parameter; a single number, which may scale quantised frames, keeps its value."""
    is_known = not isinstance(leaf, (Tracer, jax.ShapeDtypeStruct)) and hasattr(leaf, "dtype")
    is_number = is_known and leaf.size == 1 and jnp.issubdtype(leaf.dtype, jnp.floating)
    return np.asarray(leaf) if is_number else as_struct(leaf)


def _checked_past(past: int | None) -> int | None:
    """Check the argument `past`, and return an integer or None."""
    if past is None:
        return None
    if not is_count(past, 1) or past > LONGEST_PAST:
        raise StreamError(f"past must be a number of frames from 1 to {LONGEST_PAST:,}, not {past!r}")
    return int(past)


class _Offline:
    """A function over whole recordings with example arguments, ready to be traced for any length."""

    def __init__(
        self,
        function: Any,
        example: Any,
        axes: Any,
        params: Any,
        multiple: int,
        placeholder: Placeholder,
        substitute: bool,
    ):
        callee, held = as_function(function), Held({_name_of(function): function})

        def pure(params: Any, x: Any) -> Any:
            """Call the function; no trace may read the caches of earlier traces."""
            try:
                with substituted() if substitute else contextlib.nullcontext():
                    return callee(x) if without_params else callee(params, x)
            finally:
                held.drop_traces()

        self.function, without_params = pure, params is None
        check_params(params)
        self.placeholder = placeholder
        self.params, self.label = params, f"the stream of {_name_of(function)}"
        paths, self.structure = jax.tree_util.tree_flatten_with_path(example)
        self.names = ["x" + jax.tree_util.keystr(path) for path, _ in paths]
        self.axes = _axes_of(axes, example)
        pairs = zip(paths, self.axes, strict=True)
        frames = [None if axis is None else np.shape(leaf)[axis] for (_, leaf), axis in pairs]
        lengths = [length for length in frames if length is not None]
        if not lengths:
            raise StreamError("no leaf of the example has a time axis; give axes, such as axes=0 or axes={'x': 1}")
        shortest = min(lengths)
        if shortest < 1 or any(length % shortest for length in lengths):
            raise StreamError(
                f"the leaves of the example have {lengths} frames; each number must be a multiple of the smallest"
            )
        if not is_count(multiple, 1):
            raise StreamError(f"multiple must be a positive number of frames, not {multiple!r}")
        self.multiple = operator.index(multiple)
        self.times = [1 if length is None else length // shortest for length in frames]  # for each input frame
        self.given = [None if isinstance(leaf, (Tracer, jax.ShapeDtypeStruct)) else leaf for _, leaf in paths]
        self.example, self.params_example = jax.tree.map(as_struct, example), jax.tree.map(_number_or_struct, params)
        #: Plans from earlier calls, and the key, the rules and the trace of the last plan.
        self.known: list[_Known] = []
        self._last: tuple[str, Mapping[str, Any], Any] | None = None

    def keep(self, plan: Plan) -> None:
        """Keep a plan for the next call with the same function."""
        if self._last is not None and all(plan is not each.plan for each in self.known):
            self.known[:] = [*self.known[1 - _MOST_PLANS :], _Known(*self._last, plan)]

    def _found(self, closed: Any, outputs: Any, *key: Any) -> Plan | None:
        """Return the known plan of this trace, or None."""
        values = [*closed.consts, *jax.tree.leaves((self.params_example, self.example))]
        self._last = None
        if any(isinstance(each, Tracer) for each in values):  # a tracer must not outlive its trace
            return None
        precision = jax.config.jax_default_matmul_precision  # pyright: ignore[reportAttributeAccessIssue]
        settings = Types.here(), precision, self.placeholder
        key = (*key, str(outputs), self.multiple, self.times, self.axes, settings, str(self.structure))
        digest = fingerprint(*key, self.params_example, self.example)
        rules = {equation.primitive.name: RULES.of(equation) for equation in walk(closed.jaxpr)}
        self._last = digest, rules, closed
        same = [each for each in self.known if (each.key, each.rules) == (digest, rules)]
        traced = fingerprint(closed) if same else ""
        return next((each.plan for each in same if each.digest == traced), None)

    def planned(self, lengths: Lengths, past: int | None, bands: Bands | None = None) -> Plan:
        """Return the plan for these lengths, or raise an error with a remedy."""
        attempt = functools.partial(self._plan, lengths, past, bands)
        try:
            return attempt()
        except UndecidedError as error:
            cause = error.__cause__
            if hint := advice(error, attempt, self.multiple, lengths.most):
                # JAX's text about JAX functions does not help the reader of a file.
                place = getattr(cause, "place", "")
                said = f"{place}: it does not work for every length; {hint}"
                conditional = StreamError(said if place else whole_message(error, f"; {hint}"))
                conditional.has_condition = True
                raise conditional from cause or error
            fixed = None if cause is None else fixed_length(error, self._works)
            if fixed is None and isinstance(cause, NodeError):
                error = obstacle(error, attempt, lengths.most)
                cause = error.__cause__
            if fixed is not None:
                hint = _about_fixed(fixed, is_file=isinstance(cause, NodeError))
            hint = hint or hint_for_error(error, self.function, self.params_example, self.example)
            if isinstance(cause, NodeError):
                error = UndecidedError(error_in_words_of_file(error))
            raise StreamError(whole_message(error, f"; {hint}" if hint else "")) from cause or error

    def _plan(
        self, allowed: Lengths, past: int | None, bands: Bands | None, times: int = 1, more: tuple[str, ...] = ()
    ) -> Plan:
        """Return the plan for lengths that are multiples of `times`, under more constraints."""
        try:
            lengths = Lengths((*allowed.constraints, *more)) if more else allowed
        except StreamError as error:
            raise UndecidedError(str(error)) from error
        known = lengths.constraints
        while True:  # until JAX knows all implied equalities of sizes
            leaves = self._leaves(known, times)
            inputs, closed = jax.tree.unflatten(self.structure, [leaf.struct for leaf in leaves]), None
            try:
                with deciding(lengths.is_zero, _length_in(leaves)):
                    closed, outputs = trace_over_time(self.function, self.params, inputs)
                    found = self._found(closed, outputs, known, past, times)
                    if found is not None:
                        return found
                    closed = by_frames(closed)
                closed = without_blocks(closed, _stream_part)
                equalities = [each for each in implied(closed.jaxpr, lengths) if each not in known]
                if not equalities:
                    about = self.label, lengths, self.multiple, self._shapes_when_empty, past, bands
                    return Plan(closed, outputs, self.params_example, leaves, self.placeholder, *about)
            except StreamError as error:
                sizes = [] if closed is None else [*sizes_in(closed.jaxpr)]
                sizes += error.parts if isinstance(error, UndecidedError) else []
                equalities = [each for each in identities(parts_of(" ".join(sizes)), lengths) if each not in known]
                if not equalities:
                    raise
            known = (*known, *equalities)

    def _leaves(self, constraints: Sequence[str], times: int = 1) -> list[Leaf]:
        """Return the leaves of the input, for lengths that are multiples of `times`."""
        scope, shapes = _scope_of(constraints), jax.tree.leaves(self.example)
        return [
            _leaf(x.shape, x.dtype, axis, 1 if axis is None else ratio * self.multiple * times, name, scope)
            for x, axis, ratio, name in zip(shapes, self.axes, self.times, self.names, strict=True)
        ]

    def traced(self, lengths: Lengths) -> TracedProgram:
        """Return the trace for any length."""
        leaves = self._leaves(lengths.constraints)
        inputs, length = jax.tree.unflatten(self.structure, [leaf.struct for leaf in leaves]), _length_in(leaves)
        with deciding(lengths.is_zero, length):
            closed, outputs = trace_over_time(self.function, self.params_example, inputs)
            return TracedProgram(by_frames(closed), outputs, leaves, lengths, length)

    @functools.cached_property
    def _shapes_when_empty(self) -> list[tuple[int, ...]] | Unknown:
        """The shapes of the outputs for an empty recording; unknown if the function raises an error."""
        try:
            outputs = jax.eval_shape(self.function, self.params_example, self._example_of(0))
        except Exception as error:  # the function may raise any error for an empty recording
            return Unknown(first_line(error))
        return [each.shape for each in jax.tree.leaves(outputs)]

    def _works(self, count: int) -> bool:
        """Return True if the function can be traced for this number of frames."""
        try:
            jax.eval_shape(self.function, self.params_example, self._example_of(count))
        except Exception:  # the function may raise any error for a wrong length
            return False
        return True

    def _example_of(self, count: int) -> Any:
        """Return the shapes and dtypes of the input for this number of frames."""
        inputs = []
        for x, axis, ratio in zip(jax.tree.leaves(self.example), self.axes, self.times, strict=True):
            shape = [ratio * count if place == axis else size for place, size in enumerate(x.shape)]
            inputs.append(jax.ShapeDtypeStruct(tuple(shape), x.dtype))
        return jax.tree.unflatten(self.structure, inputs)

    def compare(self, plan: Plan | TracedProgram) -> tuple[str, ...]:
        """Compare the trace for all lengths with traces at single lengths; return the outputs without finite numbers.

        The traces have plain forms, because forms that are fast in XLA depend on sizes.
        """
        inputs = jax.tree.unflatten(self.structure, [leaf.struct for leaf in plan.leaves])

        def at(length: int) -> Any:
            return trace(self.function, self.params, self._example_of(length * self.multiple))

        leaves = jax.tree.leaves(self.params)
        known = [None if isinstance(leaf, (Tracer, jax.ShapeDtypeStruct)) else leaf for leaf in leaves]
        with plain_forms():
            with deciding(plan.lengths.is_zero, _length_in(plan.leaves)) as taken:
                closed, outputs = trace_over_time(self.function, self.params, inputs)
                symbolic = by_frames(closed), outputs
            arguments = [*known, *[None] * len(self.given)]
            comparison = TraceComparison(symbolic, at, arguments, [*[None] * len(known), *self.given], self.multiple)
            return comparison.run(plan.lengths, taken.values())


class TracedProgram(NamedTuple):
    """A traced function over whole recordings.

    Attributes:
        closed: the canonical jaxpr, of the parameters and the leaves of the input.
        outputs: the pytree of the outputs.
        leaves: the leaves of the input.
        lengths: the allowed lengths.
        length: the symbolic number of frames.
    """

    closed: Any
    outputs: Any
    leaves: Sequence[Leaf]
    lengths: Lengths
    length: Any


def offline_program(
    function: Callable[..., Any],
    example: Any,
    *,
    axes: Any,
    params: Any,
    multiple: int,
    constraints: Sequence[str],
    substitute: bool,
) -> TracedProgram:
    """Trace a function for any length."""
    offline, lengths = (
        _Offline(function, example, axes, params, multiple, PLACEHOLDER, substitute),
        Lengths(constraints),
    )
    with explained(), without_collector(), jax.disable_jit(False):
        program = offline.traced(lengths)
        offline.compare(program)
        return program


def bounded_plan(
    function: Callable[..., Any],
    example: Any,
    *,
    axes: Any,
    params: Any,
    multiple: int,
    constraints: Sequence[str],
    bands: Bands,
) -> Plan:
    """Return the plan of a function in which attention to all frames gets bands."""
    offline = _Offline(function, example, axes, params, multiple, PLACEHOLDER, substitute=False)
    with explained(), without_collector(), jax.disable_jit(False):
        return offline.planned(Lengths(constraints), None, bands)


def _length_in(leaves: Sequence[Leaf]) -> Any:
    """Return a symbolic number of frames."""
    return next(size for leaf in leaves for size in leaf.struct.shape if is_symbolic(size))


def _stream_part(function: Callable[..., Any], example: Any, params: Any) -> Streamed:
    """Stream a part of a traced function."""
    options = {"axes": 0, "params": params, "multiple": 1, "constraints": (), "past": None, "pulse": None}
    return stream_in_types(function, example, **options, types=Types.here(), compares=False)


def _leaf(shape: Sequence[int], dtype: Any, axis: int | None, times: int, name: str, scope: Any) -> Leaf:
    """Return a leaf with a symbolic number of frames; refuse random keys."""
    sizes: list[Any] = list(shape)
    if is_key(dtype):
        raise StreamError(
            f"{name} contains random keys: pass jax.random.key_data(key), and restore the key in the "
            "function with jax.random.wrap_key_data"
        )
    if axis is not None:
        spelling = SYMBOL if times == 1 else f"{times}*{SYMBOL}"
        (sizes[axis],) = jax.export.symbolic_shape(spelling, scope=scope)
    assert len(symbolic_axes(sizes)) == (axis is not None)
    return Leaf(tuple(sizes), np.dtype(dtype), axis, times, name)


def _about_fixed(frames: int, *, is_file: bool) -> str:
    """Return a hint for a length that is fixed in a function or file."""
    if is_file:
        return (
            f"the exporter fixed the length {frames}: export the model with an open (dynamic) time axis, and sizes in "
            "it taken from the shape of the input"
        )
    return f"the function works on {frames} frames only: take sizes from x.shape"


def with_dtype(streamed: Streamed, dtype: np.dtype) -> Streamed:
    """Return the stream of a model, traced again with a compute dtype; refuse a function without products."""
    low = streamed._recipe.in_types(products=dtype)(streamed.pulse)
    if low.fingerprint == streamed.fingerprint:
        raise InputError(f"{streamed.spec.label} has no float32 product that could compute in {dtype.name}")
    return low


def _scope_of(constraints: Sequence[str]) -> Any:
    try:
        return jax.export.SymbolicScope(constraints)
    except ValueError as error:
        raise StreamError(f"constraints must look like 'S >= 3': {first_line(error)}") from error


@dataclass(frozen=True)
class Recipe:
    """The arguments of `stream` and the types of the trace; a pickled `Streamed` contains a recipe."""

    arguments: Mapping[str, Any]  # all arguments except for the pulse
    types: Types

    def __call__(self, pulse: int) -> Streamed:
        """Stream the function again, with this pulse."""
        return stream_in_types(**self.arguments, types=self.types, pulse=pulse, compares=False)

    @property
    def plain_function(self) -> Callable[..., Any]:
        """The function, callable on arrays."""
        return as_function(self.arguments["function"])

    def in_types(self, **types: Any) -> Recipe:
        """Return the recipe with other types or forms."""
        return dataclasses.replace(self, types=dataclasses.replace(self.types, **types))

    def __getstate__(self) -> dict[str, Any]:
        function = self.arguments["function"]
        try:
            pickle.dumps(function)
        except JaxrnnError:
            raise
        except Exception as error:
            raise InputError(
                f"the stream of {_name_of(function)} cannot be pickled, because the function cannot: {error}; "
                "stream a function that a module defines, or create the stream where it is needed"
            ) from error
        return vars(self)


def _name_of(function: Any) -> str:
    if isinstance(function, functools.partial):
        return _name_of(function.func)
    return getattr(function, "__name__", type(function).__name__)


def _axes_of(axes: Any, example: Any) -> list[int | None]:
    """Return the time axis of each leaf, counted from the front. None in the example is not a leaf."""

    def is_none(item: Any) -> bool:
        return item is None

    try:
        axes_of_leaves = jax.tree.broadcast(axes, example, is_leaf=is_none)
    except ValueError:
        form = jax.tree.map(lambda _: 0, example)
        raise StreamError(
            f"axes must be an integer, or a tree of integers like the example, such as {form}, and not {axes}"
        ) from None
    result: list[int | None] = []
    for (path, leaf), axis in zip(
        jax.tree_util.tree_flatten_with_path(example, is_leaf=is_none)[0],
        jax.tree.leaves(axes_of_leaves, is_leaf=is_none),
        strict=True,
    ):
        if leaf is None:
            continue
        rank = len(np.shape(leaf))
        if axis is not None and not (isinstance(axis, int) and -rank <= axis < rank):
            raise StreamError(
                f"axes gives {axis!r} as the time axis of x{jax.tree_util.keystr(path)}, which has {rank} axes"
            )
        result.append(None if axis is None else axis % rank)
    return result


#: Errors that tracing raises if a function cannot work on traced arrays.
_UNTRACEABLE = (TypeError, AssertionError, NotImplementedError, jax.errors.JAXTypeError, jax.errors.JAXIndexError)


def trace_over_time(function: Callable[..., Any], params: Any, inputs: Any) -> tuple[Any, Any]:
    """Trace a function of arrays with a symbolic dimension; return the jaxpr and the pytree of the outputs.

    If the function cannot be traced for all lengths, raise `UndecidedError` with JAX's error as the cause. Errors
    of jaxrnn pass through, except for `NodeError`.
    """
    try:
        closed, outputs = trace(function, params, inputs)
        for each in closed.consts:
            if isinstance(each, Tracer):
                lax.optimization_barrier(each)  # an error if the trace of the tracer has ended
        return closed, outputs
    except jax.errors.UnexpectedTracerError:
        raise
    except JaxrnnError as error:
        if type(error) is not NodeError:
            raise
        raise UndecidedError(str(error)) from error
    except Exception as error:
        raise UndecidedError(_said_of(error, "cannot be traced for every length of its time axis")) from error


def hint_for_error(error: UndecidedError, function: Callable[..., Any], params: Any, example: Any) -> str:
    """Return a hint for an error of tracing that does not depend on the length.

    If the function also fails on the example, or a node of a model fails, raise that error instead.
    """
    cause = error.__cause__
    if cause is None:
        return ""
    if isinstance(cause, JaxrnnError):
        raise cause
    try:
        jax.eval_shape(function, params, example)
    except Exception as same:
        if isinstance(same, JaxrnnError) or not isinstance(same, _UNTRACEABLE):
            raise same from None
        hint = hint_for_tracing(same)
        what = _said_of(same, "cannot be traced: jax.jit of it fails, too")
        raise StreamError(f"{what}; {hint}" if hint else what) from same
    return hint_for_tracing(cause) or (
        "use the length x.shape[0] only in shapes and in jax.numpy: Python does not know it as a number, as in len(), "
        "range(), float() or a condition"
    )


def _said_of(error: Exception, what: str) -> str:
    location = location_of_error(error)
    place = str(location)
    kind = "" if isinstance(error, InconclusiveDimensionOperation) else f"{type(error).__name__}: "
    at = f" ({place})" if place else ""
    if is_of_numpy(location):
        return f"the function {what}{at}: NumPy needs the length as a number"
    # Errors about tracers and sizes continue with equations of the trace, and with links to JAX's pages.
    is_of_trace = isinstance(error, (InconclusiveDimensionOperation, jax.errors.JAXTypeError, jax.errors.JAXIndexError))
    first, *rest = (first_line(error) if is_of_trace else whole_message(error)).splitlines()
    return "\n".join([f"the function {what}{at}: {kind}{first.rstrip('.')}", *rest])


#: Code that separates the parameters of an NNX module from the other variables.
_MERGED = (
    "graph, params, rest = nnx.split(module, nnx.Param, ...) and "
    "jaxrnn.stream(lambda params, x: nnx.merge(graph, params, rest, copy=True)(x), ..., params=params)"
)


def as_function(function: Any) -> Callable[..., Any]:
    """Return the function that is traced for a function or module; refuse a linen module, which contains no parameters.

    A call of an NNX module may change variables, such as random counters and running statistics. Flax allows changes
    only in the trace that created the variables. So each trace calls a copy of the module, or of the modules and
    variables that the function closes over, and changes are lost.
    """
    if isinstance(function, functools.partial):
        return functools.partial(as_function(function.func), *function.args, **function.keywords)
    nnx, linen = sys.modules.get("flax.nnx"), sys.modules.get("flax.linen")
    if linen is not None and isinstance(function, linen.Module) and function.scope is None:
        raise StreamError(
            f"a linen module such as {type(function).__name__} has no parameters: write "
            "`jaxrnn.stream(module.apply, ..., params=variables)`, with `variables = module.init(key, x)`"
        )
    module = getattr(function, "__self__", function)
    if nnx is not None and isinstance(function, types.FunctionType):
        return with_copies(function, (nnx.Pytree, nnx.State, nnx.Variable), nnx.clone)
    if nnx is None or not isinstance(module, nnx.Module):
        return function
    method = getattr(function, "__func__", type(module).__call__)

    @functools.wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        return method(nnx.clone(module), *arguments, **named)

    return call


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turn errors about values that outlive their trace into an error with a remedy."""
    try:
        yield
    except jax.errors.UnexpectedTracerError as error:
        raise StreamError(
            f"the function keeps a value from one call for the next, as in a cache: {first_line(error)} Compute the "
            "value in each call, or before `stream` and outside of the function"
        ) from error
    except Exception as error:
        flax = sys.modules.get("flax.errors")
        if flax is None or not isinstance(error, flax.TraceContextError):
            raise
        reason = str(error).partition(" (https://")[0]
        raise StreamError(
            f"the function changes an NNX module that was made outside of it ({reason}). Pass the module itself, "
            f"jaxrnn.stream(module, ...), or its parameters, too: {_MERGED}"
        ) from error


def check_params(params: Any) -> None:
    """Check that all parameters are arrays; the error shows how to partition an Equinox module."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        if not hasattr(leaf, "dtype") and not isinstance(leaf, (bool, int, float, complex, np.generic)):
            raise StreamError(
                f"params must be a pytree of arrays, but params{jax.tree_util.keystr(path)} is a "
                f"{type(leaf).__name__}. Pass only the arrays of an Equinox module: arrays, static = "
                "eqx.partition(module, eqx.is_array) and jaxrnn.stream(lambda arrays, x: eqx.combine(arrays, "
                "static)(x), ..., params=arrays)"
            )
