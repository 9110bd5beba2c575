"""The interpreter of `stream`: evaluates a jaxpr of a whole recording on the chunks of a step.

Time is the only symbolic dimension of the jaxpr. Each pass (the warm-up before the first step, a step, the flush)
applies the same rule to each primitive. `register` adds a rule.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn, Literal, Primitive
from jax.extend.core.primitives import gather_p

from jaxrnn.errors import InputError
from jaxrnn.jaxprs import equations
from jaxrnn.jaxprs.equations import Atom, bind, shape_of, type_of
from jaxrnn.jaxprs.moves import move, moved_operands
from jaxrnn.jaxprs.primitives import ADDED, KINDS, Entry, Rules, entry_of
from jaxrnn.streaming.diagnostics import Path, node_scope_of
from jaxrnn.streaming.dimensions import (
    Clock,
    constant_value,
    has_symbols,
    is_symbolic,
    out_shape,
    own_sizes,
    symbolic_axes,
)
from jaxrnn.streaming.index_rules import operation_of
from jaxrnn.streaming.passes import Pass, listed
from jaxrnn.streaming.reach import Spans
from jaxrnn.streaming.values import (
    Awaiting,
    Chunk,
    Deferred,
    FinalValue,
    Late,
    Pairs,
    Postponed,
    index_after,
    is_awaited,
    is_length,
    is_static,
    known_since,
    reach_of,
)

#: A rule, ``(run, equation, *operands) -> results``: applies an equation to the chunks of a pass.
Rule = Callable[..., Any]


class StreamRules(Rules[Rule]):
    """Rules for chunks, final values and arrays. Some rules also take values of other classes.

    A rule that takes `Deferred` values may choose another operand, or raise a clearer error. A rule that takes `Pairs`
    evaluates an inner function. Other rules get chunks without `Late` frames.
    """

    def __init__(self) -> None:
        super().__init__()
        self._taken: dict[Rule, tuple[type, ...]] = {}

    def add(self, *names: str, kind: str = "", takes: tuple[type, ...] = ()) -> Callable[[Rule], Rule]:
        """Decorate the rule of primitives with these names, or of all primitives of a kind."""

        def decorate(rule: Rule) -> Rule:
            self._taken[rule] = takes
            return Rules.add(self, *names, kind=kind)(rule)

        return decorate

    def takes(self, equation: JaxprEqn, value: type) -> bool:
        """Return True if the rule of an equation takes values of this class."""
        return value in self._taken.get(self.of(equation), ())


RULES = StreamRules()

#: Export rules that callers add, keyed by primitive: ``(lowering, equation, *operands) -> results``.
EXPORTS: dict[str, Rule] = {}

#: Rules for values with time on two axes, keyed by operation. A rule may return None to leave an equation to `RULES`.
PAIR_RULES = Rules[Rule]()

#: Rules for values that only the end of the stream decides. A rule may return None, as above.
AWAITING_RULES = Rules[Rule]()

#: Rules for `Postponed` values. A rule may return None: the result is an error if it is used.
POSTPONED_RULES = Rules[Rule]()

#: Primitives whose rule also applies to equations without streamed operands.
ALWAYS: set[str] = set()


def interpret(run: Pass, inner: Any, arguments: Sequence[Any], *, late: bool = False) -> list[Any]:
    """Return the outputs of a jaxpr: chunks, final values and arrays. With `late`, chunks may keep late frames."""
    results = equations.evaluate(inner, arguments, functools.partial(apply, run))
    results = _typed(getattr(inner, "jaxpr", inner).outvars, results)
    return results if late else list(map(run.on_time, results))


def apply(run: Pass, equation: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    """Return the results of an equation."""
    with run.at(equation):
        results = _apply(run, equation, _typed(equation.invars, operands))
        _record(run.path, equation, results, run.clock)
        return results


def _typed(atoms: Iterable[Atom], values: Iterable[Any]) -> list[Any]:
    """Convert literals to NumPy arrays of their dtype."""
    pairs = zip(atoms, values, strict=True)
    return [np.asarray(value, type_of(atom)) if isinstance(atom, Literal) else value for atom, value in pairs]


class _Operands(NamedTuple):
    """Which values are among the operands of an equation, which the functions of `_CONTEXTS` read."""

    deferred: Deferred | None  # an operand that cannot be used in a step
    awaits: bool  # an operand is known only when the stream has ended
    streamed: bool  # an operand or a size of the equation grows with the stream
    inside: bool  # only sizes inside of the equation do


def _apply(run: Pass, equation: JaxprEqn, operands: list[Any]) -> list[Any]:
    shapes = [shape_of(variable) for variable in equation.outvars]
    streamed = any(isinstance(value, Chunk) for value in operands) or any(map(symbolic_axes, shapes))
    streamed = streamed or bool(own_sizes(equation))
    kinds = _Operands(
        next((value for value in operands if isinstance(value, Deferred)), None),
        any(isinstance(value, Awaiting) for value in operands),
        streamed,
        not streamed and has_symbols(equation),
    )
    if any(isinstance(value, Postponed) for value in operands):
        rule = POSTPONED_RULES.of(operation_of(equation))
        if rule is not None and (result := rule(run, equation, *operands)) is not None:
            return listed(result)
    if kinds.deferred is not None and not kinds.awaits and not RULES.takes(equation, Deferred):
        return [kinds.deferred] * len(equation.outvars)
    for context in _CONTEXTS:
        if (results := context(run, equation, operands, kinds)) is not None:
            return results
    raise AssertionError("the last context takes all equations")


def _on_pairs(run: Pass, equation: JaxprEqn, operands: list[Any], kinds: _Operands) -> list[Any] | None:
    """Apply an equation to values with time on two axes."""
    many = any(len(symbolic_axes(shape_of(variable))) > 1 for variable in equation.outvars)
    if not many and not any(isinstance(value, Pairs) for value in operands):
        return None
    contains = RULES.takes(equation, Pairs)
    if kinds.deferred is not None and not contains:
        return [Deferred(kinds.deferred.error)] * len(equation.outvars)
    rule = PAIR_RULES.of(operation_of(equation))
    if rule is not None and (result := rule(run, equation, *operands)) is not None:
        return [result.made_by(equation, operands) if isinstance(result, Pairs) and not result.shape else result]
    if not contains:
        run.refuse(
            "its operand or result has time on two axes, one element for each pair of frames",
            "mask scores by position and reduce them, as attention does, or let each frame depend on a fixed number of "
            "past frames",
        )
    return None


def _on_awaited(run: Pass, equation: JaxprEqn, operands: list[Any], kinds: _Operands) -> list[Any] | None:
    """Apply an equation to values that only the end of the stream decides."""
    if (kinds.streamed or kinds.awaits) and any(map(is_awaited, operands)):
        rule = AWAITING_RULES.of(equation)
        if rule is not None and (result := rule(run, equation, *map(run.on_time, operands))) is not None:
            return listed(result)
    if kinds.awaits and kinds.deferred is not None and not RULES.takes(equation, Pairs):
        return [Deferred(kinds.deferred.error)] * len(equation.outvars)
    return None


def _on_numbers(run: Pass, equation: JaxprEqn, operands: list[Any], kinds: _Operands) -> list[Any] | None:
    """Apply an equation to static values now, while the step is traced."""
    fixed = not kinds.streamed and not kinds.inside and all(map(is_static, operands))
    return fold_static(equation, operands) if fixed else None


def _on_frames(run: Pass, equation: JaxprEqn, operands: list[Any], kinds: _Operands) -> list[Any] | None:
    """Apply an equation to the frames of chunks."""
    name, entry = equation.primitive.name, entry_of(equation)
    applies = kinds.streamed or kinds.inside or name in ALWAYS or entry.kind in ("call", "checkpoint", "size")
    rule = (RULES.get(name) if entry.why else RULES.of(name)) if applies else None
    if rule is None:
        if kinds.streamed:
            run.refuse(
                entry.why or "jaxrnn has no streaming rule for it",
                "use other operations, move this part out of the function that is streamed, or add a rule with "
                "jaxrnn.streaming.register",
            )
        return None
    if any(isinstance(value, Chunk) and value.late for value in operands):
        fronts = _fronts(equation, operands)
        if fronts is not None:
            return _with_fronts(run, equation, operands, fronts)
        if not RULES.takes(equation, Late):
            operands = list(map(run.on_time, operands))
    if entry.kind == "elementwise":
        operands = _constant_lengths(equation, operands)
    index = index_after(equation, operands)
    with run.growing_by(index.growth):
        results = listed(rule(run, equation, *operands))
    if len(results) != len(equation.outvars):
        run.refuse(
            f"its rule returns {len(results)} results, and the primitive has {len(equation.outvars)}",
            "return one chunk or array for each result, in order",
        )
    run.note_origin(equation, operands, results)
    if index.has_numbers and isinstance(results[0], Chunk):
        results[0] = results[0].noting(index)
    return results


def _constant_lengths(equation: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    """Replace a length by a number if the length is constant for all recordings in which the result has frames."""
    size = next(filter(is_symbolic, out_shape(equation)))

    def of(value: Any, atom: Any) -> Any:
        number = constant_value(value.flat[0], size) if is_length(value) and np.size(value) == 1 else None
        return value if number is None else np.full(np.shape(value), number, type_of(atom))

    return list(map(of, operands, equation.invars))


def _on_values(run: Pass, equation: JaxprEqn, operands: list[Any], kinds: _Operands) -> list[Any]:
    """Apply an equation to values that are the same in each frame, or known when the stream ends."""
    if kinds.deferred is not None:
        return [kinds.deferred] * len(equation.outvars)
    if entry_of(equation).arithmetic == "convert" and is_length(operands[0]):
        results = [run.now.length(operands[0], type_of(equation.outvars[0]))]
    else:
        numbers = [
            run.now.length(value, type_of(atom)) if is_length(value) else run.unstreamed(value)
            for atom, value in zip(equation.invars, operands, strict=True)
        ]
        results = run.bind(equation, numbers)
    if not any(isinstance(value, FinalValue) or is_length(value) for value in operands):
        return results
    lineage = run.lineage(equation, operands[0])
    return [FinalValue(result, known_since(operands), reach_of(operands), lineage) for result in results]


#: The contexts in the order in which they are asked for the results of an equation; each may leave it to the next.
_CONTEXTS = (_on_pairs, _on_awaited, _on_numbers, _on_frames, _on_values)


def _fronts(equation: JaxprEqn, operands: Sequence[Any]) -> list[Any] | None:
    """Return operands with the late frames only, as if all frames were equal; None if that is impossible."""
    chunks = [value for value in operands if isinstance(value, Chunk)]
    late = [chunk for chunk in chunks if chunk.late is not None]
    alike = {
        (each.timeline, each.delay, each.late.since, each.late.array.shape[each.axis]) for each in late if each.late
    }
    sizes = {str(size) for variable in equation.outvars for size in shape_of(variable) if is_symbolic(size)}
    entry, is_gather = entry_of(equation), equation.primitive is gather_p
    possible = (
        ((entry.kind == "elementwise" and entry.harmless is None) or entry.ordered or is_gather)
        and (not is_gather or _is_inside_frames(equation, *operands))
        and len(alike) == 1
        and sizes == {str(late[0].timeline.size)}
        and all(chunk.late is not None or chunk.delay is None for chunk in chunks)
        and not any(isinstance(value, FinalValue) for value in operands)
        # Sizes of a movement may be lengths.
        and not any(map(is_length, operands[entry.moved] if entry.ordered and entry.moved else operands))
    )
    if not possible:
        return None
    return [
        dataclasses.replace(value, array=value.late.array, delay=None, late=None)
        if isinstance(value, Chunk) and value.late is not None
        else value
        for value in operands
    ]


def _is_inside_frames(equation: JaxprEqn, x: Any, indices: Any) -> bool:
    """Return True for a gather that takes the same part of each frame."""
    numbers = equation.params["dimension_numbers"]
    touched = {*numbers.start_index_map, *numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    return isinstance(x, Chunk) and x.axis not in touched and not isinstance(indices, Chunk)


def _with_fronts(run: Pass, equation: JaxprEqn, operands: Sequence[Any], fronts: Sequence[Any]) -> list[Any]:
    """Apply a rule to the frames and to the late frames separately."""
    rule = RULES.of(equation)
    since = next(value.late.since for value in operands if isinstance(value, Chunk) and value.late is not None)
    on_time = [dataclasses.replace(value, late=None) if isinstance(value, Chunk) else value for value in operands]
    pairs = zip(listed(rule(run, equation, *on_time)), listed(rule(run, equation, *fronts)), strict=True)
    return [
        # An empty result has no late frames.
        result if result.delay is None else dataclasses.replace(result, late=Late(front.array, since))
        for result, front in pairs
    ]


def register(
    primitive: str | Primitive,
    rule: Rule | None = None,
    *,
    entry: Entry | None = None,
    export: Rule | None = None,
    replace: bool = False,
    always: bool = False,
) -> Any:
    """Register the facts about a primitive, its streaming rule, or both.

    Example::

        @jaxrnn.streaming.register("double")
        def double(run, equation, x):
            (array,) = run.bind(equation, [x.array])
            return run.make(array, x.axis, x.timeline, x.delay, x.reach)

        # An operation on elements needs an entry, and no rule.
        jaxrnn.streaming.register("own_root", entry=jaxrnn.streaming.Entry(kind="elementwise", harmless=0.5))

    Args:
        primitive: the primitive or its name.
        rule: ``(run, equation, *operands) -> results``, called in each pass: the warm-up, which creates the state, each
            step, and the flush. ``run`` is the `Pass`. An operand is a `Chunk`, a `FinalValue`, which is known when the
            stream ends, or an array that is the same in each step (a NumPy array if the value is static). The rule
            returns such a value for each result, or the value itself for a single result. Rules create chunks with
            `Pass.make` only, and keep past frames or totals with `Pass.window` or `Pass.carry`. Without a rule and
            an entry, `register` is a decorator.
        entry: the facts about the primitive. All rules for primitives of this kind then apply: in streams, for pairs of
            frames, for values that the end decides, and in exported files.
        export: ``(lowering, equation, *operands) -> results``, which writes the primitive to an ONNX file. Operands and
            results are NumPy arrays, which become constants, or values of the graph. ``lowering.writer.node(operator,
            *operands)`` writes a node, and ``lowering.trace(function, *operands)`` writes a JAX function.
        replace: True to replace an existing rule or entry.
        always: True to also use the rule for equations without streamed operands. By default, such an equation is
            applied unchanged.

    Returns:
        The rule, or the decorator.

    Raises:
        InputError: `primitive` is not a primitive or a name, the primitive already has a rule or an entry, or the kind
            of `entry` is not known or has no rule.
    """
    name = primitive.name if isinstance(primitive, Primitive) else primitive
    if not isinstance(name, str) or not name:
        raise InputError(f"register takes a JAX primitive or its name, not {primitive!r}")
    if entry is not None:
        if not isinstance(entry, Entry) or entry.kind not in KINDS:
            found = repr(entry.kind) if isinstance(entry, Entry) else repr(entry)
            raise InputError(f"the entry of {name!r} must be an Entry of a kind in {', '.join(KINDS)}, not {found}")
        rule = RULES.of_kind.get(entry.kind) if rule is None else rule
        if rule is None:
            raise InputError(
                f"primitives of the kind {entry.kind!r} differ, so {name!r} needs a rule: register(..., rule)"
            )
    if rule is None:
        return lambda function: register(name, function, export=export, replace=replace, always=always)
    if not callable(rule):
        raise InputError(f"the rule of {name!r} must be a function (run, equation, *operands), not {rule!r}")
    if not callable(export) and export is not None:
        raise InputError(
            f"the export rule of {name!r} must be a function (lowering, equation, *operands), not {export!r}"
        )
    if (old := RULES.of(name)) is not None and not replace:
        raise InputError(
            f"the primitive {name!r} has a rule already, {getattr(old, '__qualname__', old)} of "
            f"{old.__module__}; register(..., replace=True) replaces this rule"
        )
    if entry is not None:
        ADDED[name] = entry
    RULES[name] = rule
    if export is not None:
        EXPORTS[name] = export
    (ALWAYS.add if always else ALWAYS.discard)(name)
    return rule


@dataclass(frozen=True)
class StreamedValue:
    """The knowledge of `stream` about a value of a streamed function."""

    shape: tuple[int | str, ...]  # the shape for a whole recording; a size that depends on the length is a string
    axis: int | None = None  # the time axis; None if the value is known when the stream ends
    #: number of frames before frame 0; None if all frames are equal, or for a value known at the end
    delay: int | None = None
    rate: Fraction | None = None  # frames for each input frame; None if the value is known at the end
    #: the earliest input frame that a frame depends on, relative to the frame; None if unbounded
    first: int | None = None
    last: int = 0  # the latest input frame that a frame depends on, relative to the frame
    varies: bool = True  # True if the value depends on the input


class Observed(dict[str, list[StreamedValue]]):
    """Streamed values in the order of computation, keyed by the scope of their trace."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: Spans = {}


_OBSERVED: contextvars.ContextVar[Observed | None] = contextvars.ContextVar("observed", default=None)


def is_observed() -> bool:
    """Return True inside `observe`."""
    return _OBSERVED.get() is not None


@contextlib.contextmanager
def observe() -> Iterator[Observed]:
    """Collect the facts about values that are streamed inside the context, even if an error ends the stream."""
    values = Observed()
    token = _OBSERVED.set(values)
    try:
        yield values
    finally:
        _OBSERVED.reset(token)
        values.spans.clear()


def _record(path: Path, equation: JaxprEqn, results: Sequence[object], clock: Clock) -> None:
    """Record the results of an equation inside `observe`."""
    values = _OBSERVED.get()
    if values is None:
        return
    scope = node_scope_of(path)
    for variable, result in zip(equation.outvars, results, strict=True):
        shape = tuple(size if isinstance(size, int) else str(size) for size in shape_of(variable))
        if isinstance(result, Chunk):
            timeline, reach = result.timeline, result.reach
            known = StreamedValue(shape, result.axis, result.delay, timeline.rate, varies=reach is not None)
            if reach is not None:
                extent = reach.extent(timeline, clock, values.spans)
                known = dataclasses.replace(known, first=extent.first, last=extent.last)
            values.setdefault(scope, []).append(known)
        elif isinstance(result, FinalValue):
            values.setdefault(scope, []).append(StreamedValue(shape))


#: Larger static arrays are computed at run time.
LARGEST_STATIC = 1 << 16


def fold_static(equation: JaxprEqn, operands: list[Any]) -> list[Any] | None:
    """Return the results of an equation on static operands; None if the equation must run in the step."""
    if entry_of(equation).kind == "size" or entry_of(equation).why or equation.effects:
        return None
    for result in equation.outvars:
        dtype = type_of(result)
        count = int(np.prod(shape_of(result)))
        number = count == 1 and jnp.issubdtype(dtype, np.inexact) and not any(map(is_length, operands))
        is_index = jnp.issubdtype(dtype, np.integer) or jnp.issubdtype(dtype, np.bool_)
        if not (number or is_index) or count > LARGEST_STATIC:
            return None
    if any(map(is_length, operands)):
        return _fold_lengths(equation, operands)
    if moved := move(equation, list(map(np.asarray, operands))):
        return moved
    with jax.ensure_compile_time_eval():
        return [np.asarray(result) for result in bind(equation, operands)]


def _fold_lengths(equation: JaxprEqn, operands: list[Any]) -> list[Any] | None:
    """Return the results of an equation on static arrays of lengths; None if the equation must run in the step."""
    if (places := moved_operands(equation)) is None:
        result = index_after(equation, operands).elements
    elif any(is_length(value) for place, value in enumerate(operands) if place not in places):
        return None  # a choice, or a size, that depends on the length
    else:
        (result,) = move(equation, operands) or (None,)
        if entry_of(equation).kind == "movement" and result is not None and result.size > sum(map(np.size, operands)):
            return None  # a repetition runs in the step
    if result is None:
        return None
    boxed = np.empty(out_shape(equation), object)
    boxed[...] = result
    known = all(isinstance(item, (int, np.integer, np.bool_)) for item in boxed.flat)
    return [boxed.astype(type_of(equation.outvars[0])) if known else boxed]
