"""Sizes for the open dimensions of a graph, from equations between dimensions, and the data flow with these sizes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from jaxrnn._files.messages import first_line
from jaxrnn.answers import Answer, Unknown, any_of
from jaxrnn.cells.forms import plain_forms
from jaxrnn.errors import JaxrnnError, LimitError, NodeError
from jaxrnn.jaxprs.equations import trace
from jaxrnn.jaxprs.flows import DataFlow, Flow, Lost, union
from jaxrnn.jaxprs.following import Following
from jaxrnn.jaxprs.own import visible_recurrences
from jaxrnn.onnx.binding import BoundGraph
from jaxrnn.onnx.evaluate import BoundNode, Scope, call, evaluate, reads_of
from jaxrnn.onnx.graph import is_batch_name, spec_of
from jaxrnn.onnx.limits import current, spending
from jaxrnn.onnx.operators.arithmetic import broadcast_sizes, shapes_of
from jaxrnn.onnx.values import Value, is_known, is_text
from jaxrnn.steps.specs import ArraySpec, Dimension


class NotFollowedError(Exception):
    """The error for sizes of open dimensions that do not fit the graph.

    ``node`` is the node that the sizes do not fit, or None; ``operands`` are the known arrays or the shapes of its
    inputs. ``emptied`` is the name of the node that results in an empty axis, or None.
    """

    def __init__(self, error: Exception, emptied: str | None = None):
        super().__init__(str(error))
        self.emptied = emptied
        self.node: BoundNode | None = getattr(error, "node", None)
        self.operands: Sequence[Any] = getattr(error, "operands", ())


class _Lost:
    """A value that cannot be traced: the reason, and the values from which it is computed, traced or lost."""

    def __init__(self, origins: Iterable[Any], why: str = ""):
        self.origins, self.why = list(origins), why


def follow(
    program: BoundGraph,
    sizes: Mapping[str, int],
    known: Mapping[str, np.ndarray],
    sources: Collection[str] | None,
    strict: bool,
    hollow: Collection[str] = (),
) -> DataFlow:
    """Follow elements from the inputs to the outputs. The nodes ``hollow`` may return values without elements."""
    with spending(program.block.limits, loading=True) as budget:
        nodes = list(program.block.all_nodes())
        operators = {node.name: node.operator.name for node in nodes}
        written = {node.name for node in nodes if node.operator.own and node.operator.traits.carries is None}
        following = Following(operators, written, budget.keep, elements=sources is not None)
        return _SizeTrace(program, strict, following, hollow).run(sizes, known, sources or ())


class _SizeTrace:
    def __init__(self, program: BoundGraph, strict: bool, following: Following, hollow: Collection[str]):
        self.program, self.strict, self.following, self.hollow = program, strict, following, hollow
        self.result = following.result
        self.emptied: str | None = None
        #: the recurrences that cannot be followed, the reasons, and the initial values of their carries if known
        self.lost: list[tuple[str, str, list[Value] | None]] = []

    def run(self, sizes: Mapping[str, int], known: Mapping[str, np.ndarray], sources: Collection[str]) -> DataFlow:
        block, following, flows = self.program.block, self.following, self.result.inputs
        places: dict[str, Any] = {}
        for info in map(spec_of, block.inputs):
            if info.name in known:
                flows[info.name] = Flow(known[info.name].shape, known[info.name].dtype, known[info.name])
            elif info.shape is None or info.dtype is None or info.dtype.kind == "T":
                flows[info.name] = Flow(None, info.dtype, deps=frozenset({info.name}))
            else:
                shape = tuple(sizes[size] if isinstance(size, str) else size for size in info.shape)
                flows[info.name] = following.source(info.name, shape, info.dtype, followed=info.name in sources)
                places[info.name] = jax.ShapeDtypeStruct(shape, info.dtype)
        parameters = self.program.parameters
        outputs: list[Value] = []

        def traced(params: Mapping[str, Any], arrays: Mapping[str, Any]) -> list[Any]:
            values = [
                arrays[name] if name in arrays else _Lost([name]) if flow.value is None else flow.value
                for name, flow in flows.items()
            ]
            outputs[:] = evaluate(block, values, Scope(params, caller=self._call))
            starts = [start for _, _, each in self.lost for start in each or ()]
            return [read for value in (*outputs, *starts) for read in _reads(value) if isinstance(read, Tracer)]

        structs = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in parameters.items()}
        try:
            with plain_forms(), visible_recurrences():
                closed, _ = trace(traced, structs, places)
        except LimitError:
            raise
        except JaxrnnError as error:
            raise NotFollowedError(error, self.emptied) from error
        arguments = [Flow(array.shape, array.dtype) for _, array in sorted(parameters.items())]
        arguments += [flows[name] for name in sorted(places)]
        followed = iter(following.follow(closed, arguments))
        for key, value in zip(block.outputs, outputs, strict=True):
            self.result.outputs[str(key.name)] = self._output(value, followed)
        for label, why, starts in self.lost:
            flows_of = None if starts is None else tuple(self._output(start, followed) for start in starts)
            self.result.lost.append(Lost(label, why, flows_of))
        return self.result

    def _output(self, value: Value, followed: Iterator[Flow]) -> Flow:
        if isinstance(value, np.ndarray):
            return Flow(value.shape, value.dtype, value)
        if not isinstance(value, Tracer):
            inputs = self.result.inputs
            return union([inputs[read] if isinstance(read, str) else next(followed) for read in _reads(value)])
        flow = next(followed)
        if flow.deps or flow.ids is not None:
            return flow
        return dataclasses.replace(flow, ids=np.zeros(flow.shape or (), np.int64))  # depends only on parameters

    def _call(self, node: BoundNode, inputs: Sequence[Value], scope: Scope) -> tuple[Value, ...]:
        before = len(self.lost)
        try:
            outputs = self._outputs(node, inputs, scope)
            is_empty = bool(outputs) and all(map(_is_traced_without_elements, outputs))
            if is_empty and node.name not in self.hollow and not any(map(_is_traced_without_elements, inputs)):
                self.emptied = node.name
                raise ValueError("nothing is left of an axis")
            return outputs
        except LimitError:
            raise
        except Exception as error:
            if self.strict:
                raise
            # The bodies of a node may read lost values: the reason is theirs, and not the error on a lost value.
            read = [*inputs, *(scope.find(key) for key in (reads_of(node) if node.blocks else ()))]
            whys = [value.why for value in read if isinstance(value, _Lost)]
            whys += [why for _, why, _ in self.lost[before:]]
            own = f"node {node.name!r} fails: {first_line(error).partition('. ')[0].rstrip('.')}"
            why = next(filter(None, whys), own)
        # The values of a graph in this node are lost with the node, and so are its recurrences.
        del self.lost[before:]
        self.lost += [(node.name, why, _starts(node, inputs, scope))] if _may_carry(node) else []
        self.lost += [(each.name, why, None) for each in _inside(node) if _may_carry(each)]
        origins = [x for x in jax.tree.leaves(read) if isinstance(x, (str, Tracer, _Lost))]
        return tuple(_Lost(origins, why) for _ in node.outputs)

    def _outputs(self, node: BoundNode, inputs: Sequence[Value], scope: Scope) -> tuple[Value, ...]:
        if any(isinstance(value, _Lost) for value in inputs):
            error = NodeError("an input is unknown")
            error.located = True  # the node is not known
            raise error
        if not node.blocks and all(map(is_known, jax.tree.leaves(list(inputs)))):
            with jax.ensure_compile_time_eval():
                return tuple(jax.tree.map(_settled, each) for each in call(node, inputs, scope))
        before = len(self.lost)
        try:
            return call(node, inputs, scope)
        except LimitError:
            raise
        except Exception:  # a shape may depend on computed values, and computing compiles a program for each operation
            del self.lost[before:]
            with _computing():
                return call(node, inputs, scope)


def _settled(value: Any) -> Any:
    return value if is_text(value) else np.asarray(value)


def _is_traced_without_elements(value: Value) -> bool:
    return not isinstance(value, np.ndarray) and 0 in (getattr(value, "shape", None) or ())


def _reads(value: Any) -> list[Any]:
    """Return the traced values, and the names of inputs that are not traced, from which a value is computed."""
    seen: dict[int, Any] = {}
    pending = jax.tree.leaves(value)
    while pending:
        origin = pending.pop()
        if id(origin) not in seen:
            seen[id(origin)] = origin
            pending += origin.origins if isinstance(origin, _Lost) else []
    return [origin for origin in seen.values() if isinstance(origin, (str, Tracer))]


def _inside(node: BoundNode) -> Iterator[BoundNode]:
    return itertools.chain.from_iterable(block.all_nodes() for block in node.blocks)


def _starts(node: BoundNode, inputs: Sequence[Value], scope: Scope) -> list[Value] | None:
    """Return the initial values of all carries of a node, or None if a carry has none that a later call could give."""
    carries = node.operator.traits.carries
    places = [start for start, _ in carries.states.values()] if carries is not None else []
    # The values of a subgraph may belong to a trace of its own.
    if not places or node.attributes.get("direction", "forward") != "forward" or scope.outer is not None:
        return None
    starts = [inputs[place] if place < len(inputs) else None for place in places]
    return None if any(start is None for start in starts) else starts


def _may_carry(node: BoundNode) -> bool:
    """Return True for a recurrence, and for an operator of the caller, whose function may hold a recurrence."""
    return node.operator.traits.carries is not None or node.operator.own


@contextlib.contextmanager
def _computing() -> Iterator[None]:
    """Let JAX compute constants while it traces."""
    budget = current()
    around, budget.computing = budget.computing, True
    try:
        with jax.ensure_compile_time_eval():
            yield
    finally:
        budget.computing = around


#: The first sizes of batches, and factors of other sizes, which are unlikely constants of a graph.
_FACTORS = (7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)


class Sizes:
    """Open dimensions in classes: all dimensions of a class are equal, and some are constants."""

    def __init__(self, symbols: Iterable[str]):
        #: For each open dimension the first name of its class, or the constant that it must be.
        self.value: dict[str, Dimension] = {symbol: symbol for symbol in symbols}
        named = {name: name.partition("*") for name in self.value}
        #: The declared multiples of other dimensions: ``4*U`` is 4 times ``U``.
        self._multiples = {
            name: (int(factor), base.strip())
            for name, (factor, _, base) in named.items()
            if factor.strip().isdecimal() and base.strip() in self.value
        }

    @property
    def classes(self) -> list[str]:
        """Return the first names of the classes that are neither constants nor multiples of other classes."""
        return [name for name, value in self.value.items() if name == value and name not in self._multiples]

    def unify(self, first: Dimension, second: Dimension) -> bool:
        """Merge two classes, or set a class to a constant; return False for multiples of one dimension."""
        if isinstance(first, str) and isinstance(second, str) and self.base(first) == self.base(second):
            return False
        if not isinstance(first, str):
            first, second = second, first
        elif isinstance(second, str):  # a multiple stays, else the name that comes first in the file
            names = list(self.value)
            second, first = sorted((first, second), key=lambda name: (name not in self._multiples, names.index(name)))
        for name, value in self.value.items():
            if value == first:
                self.value[name] = second
        return True

    def base(self, name: str) -> Dimension:
        """Return the class of a dimension, or for a multiple the class of the other dimension."""
        value = self.value[name]
        return self.base(self._multiples[value][1]) if value in self._multiples else value

    def numbers(self, of_class: Mapping[str, int]) -> dict[str, int]:
        """Return a number for each open dimension."""
        return {name: self._number(name, of_class) for name in self.value}

    def _number(self, name: str, of_class: Mapping[str, int]) -> int:
        value = self.value[name]
        if value in self._multiples:
            factor, other = self._multiples[value]
            return factor * self._number(other, of_class)
        return of_class[value] if isinstance(value, str) else value

    def distinct(self, base: int, spread: bool) -> dict[str, int]:
        """Return a number for each class, and for each multiple, that differs from other classes and from constants."""
        factors = itertools.chain(_FACTORS, itertools.count(101, 2))
        lengths = (factor * base for factor in factors) if spread else itertools.count(base + 1)
        batches = itertools.chain(_FACTORS, itertools.count(101, 2))
        taken: dict[str, int] = {}
        for name in self.classes:
            numbers = batches if is_batch_name(name) else lengths
            taken[name] = next(number for number in numbers if number not in taken.values())
        multiples = {name: self._number(name, taken) for name in self._multiples if self.value[name] == name}
        return taken | multiples


def _equal_sizes(
    of_class: Mapping[str, int], node: BoundNode, operands: Sequence[Any]
) -> Iterable[tuple[int | str, int | str]]:
    """Return pairs of sizes that a node needs to be equal."""
    class_of = {number: name for name, number in of_class.items()}
    rule = node.operator.traits.equal_sizes
    return broadcast_sizes(shapes_of(operands)) if rule is None else rule(node.attributes, operands, class_of)


def _unify_at(sizes: Sizes, of_class: Mapping[str, int], node: BoundNode, operands: Sequence[Any]) -> bool:
    """Unify the sizes that a node needs to be equal; return False if all are equal."""
    class_of = {number: name for name, number in of_class.items()}
    changed = False
    for pair in _equal_sizes(of_class, node, operands):
        first, second = (sizes.value[class_of[size]] if size in class_of else size for size in pair)
        if first != second and (isinstance(first, str) or isinstance(second, str)):
            changed |= sizes.unify(first, second)
    return changed


@dataclasses.dataclass(frozen=True)
class _Total:
    """A size that a node needs two classes of open dimensions to have together."""

    parts: tuple[str, str]
    size: int

    def with_part(self, part: str, number: int) -> dict[str, int]:
        """Return the numbers of both classes from the number of a class."""
        return {name: number if name == part else self.size - number for name in self.parts}


def _totals_at(of_class: Mapping[str, int], node: BoundNode, operands: Sequence[Any]) -> list[_Total]:
    """Return the sums that a node may need: two classes whose numbers add up to a size, and the size that is needed."""
    return [
        _Total(pair, size)
        for sizes in _equal_sizes(of_class, node, operands)
        for number, size in (sizes, sizes[::-1])
        for pair in itertools.combinations(of_class, 2)
        if sum(map(of_class.__getitem__, pair)) == number and isinstance(size, int) and size not in of_class.values()
    ]


#: Sizes to try for open dimensions, in order; the first size is long enough for loops of several trips, and most block
#: sizes divide one of the sizes.
_SIZES = (16, 64, 256, 512, 1024, 4096, 5040)
_BATCH_SIZE = 2
#: The difference between the numbers of the first and a second trial.
_APART = 37
#: The factor of the numbers of a trial that no window is longer than.
_LARGER = 720
_OF_DATA = "the number of steps depends on data"
#: The times by which an open dimension is longer in a trial, in order.
_TIMES = (2, 3, 4)


class Probe:
    """A graph that is followed with sizes that fit: its open dimensions, their numbers, and the flow."""

    def __init__(
        self,
        program: BoundGraph,
        inputs: Sequence[ArraySpec],
        static: Mapping[str, np.ndarray],
        sources: Sequence[str],
        said: Sequence[tuple[str, str]],
    ):
        self._program, self._static = program, static
        self._shapes = {info.name: info.shape for info in inputs}
        self.symbols = list(dict.fromkeys(s for info in inputs for s in info.shape or () if isinstance(s, str)))
        #: The sizes of bound inputs along open dimensions of the file.
        self._bound: dict[str, int] = {}
        self.equations = Sizes(self.symbols)
        #: The nodes that leave nothing of an axis whatever the open dimensions are, such as a pad of no frames.
        self._hollow: set[str] = set()
        self._solved: tuple[DataFlow, dict[int, str]] | None = None
        for info in map(spec_of, program.block.inputs):
            if info.name in static:
                sizes = zip(info.shape or (), static[info.name].shape, strict=False)
                self._bound.update({name: size for name, size in sizes if name in self.symbols})
        self._strict = True
        self.sizes, self.flow = self._fit(sources, said)
        self._longer: dict[frozenset[str], tuple[DataFlow, int] | Unknown] = {}

    def _fit(self, sources: Sequence[str], said: Sequence[tuple[str, str]]) -> tuple[dict[str, int], DataFlow]:
        """Solve the equations with distinct numbers, and follow the graph with small numbers."""
        size = self._solve(said)
        self._tie(said)
        for of_class in ({name: _BATCH_SIZE if is_batch_name(name) else size for name in self.equations.classes}, {}):
            sizes = self.equations.numbers(dict.fromkeys(self.equations.classes, size) | of_class)
            with contextlib.suppress(NotFollowedError):
                return sizes, self._follow(sizes, sources)
        self._strict = False
        return sizes, self._follow(sizes, sources)

    def _follow(self, sizes: Mapping[str, int], sources: Collection[str] | None) -> DataFlow:
        if sources is not None and not sources:
            # Without a recurrence, the elements of a graph in which no input can be state tell nothing.
            flow = self._follow(sizes, None)
            if not flow.sites and not flow.lost:
                return flow
        return follow(self._program, sizes, self._static, sources, self._strict, self._hollow)

    def follow_also(self, sources: Collection[str]) -> None:
        """Follow the graph again, with the elements of further inputs."""
        self.flow = self._follow(self.sizes, sources)

    def _solve(self, said: Sequence[tuple[str, str]]) -> int:
        """Solve the equations, and return a size that all dimensions can have together."""
        if not self.symbols or self._solves(_SIZES[0], False, said):
            return _SIZES[0]
        # Windows and loops need some length, and some graphs a multiple.
        accepted = next((size for size in _SIZES if self._accepts(dict.fromkeys(self.symbols, size))), None)
        for size, spread in itertools.product(_SIZES[::2] if accepted is None else (accepted,), (False, True)):
            if self._solves(size, spread, said):
                return size
        return accepted or _SIZES[0]

    def _solves(self, size: int, spread: bool, said: Sequence[tuple[str, str]]) -> bool:
        """Unify the sizes that operators need to be equal, until the graph can be followed with distinct numbers.

        Return False if no equation helps a failing operator, or if the graph cannot be followed with other numbers.
        If two sizes must have a sum, as those of data and state in front of a matrix, every pair of numbers fits.
        The shape of the next value, which names say, then tells the size of the state.
        """
        found = self._settles(size, spread, {})
        if isinstance(found, bool):
            return found
        for total, (name, updated) in itertools.product(found, said):
            before = self._shapes[name] or ()
            axes = [axis for axis, each in enumerate(before) if each in total.parts]
            if len(axes) != 1:
                continue
            part = str(before[axes[0]])
            if self._settles(size, spread, total.with_part(part, 1)) is not True or self._solved is None:
                continue
            flow, class_of = self._solved
            after = flow.outputs[updated].shape or ()
            own = after[axes[0]] if len(after) == len(before) else 0
            if own in class_of or not 0 < own < total.size:
                continue
            if self._settles(size, spread, total.with_part(part, own)) is True and self.are_equal(name, updated):
                return True
        self.equations, self._solved = self._unsolved(), None
        return False

    def _settles(self, size: int, spread: bool, given: Mapping[str, int]) -> bool | list[_Total]:
        """Unify sizes, beside given numbers; return True if all fit, or the sums that a node may need, or False."""
        sizes, self._solved, of_class = self._unsolved(), None, dict[str, int]()
        for name, number in given.items():
            sizes.unify(name, number)
        self.equations = sizes
        totals: list[_Total] = []
        for _ in range(len(sizes.value) + len(self._program.block.nodes) + 1):
            of_class = sizes.distinct(size, spread)
            try:
                flow = self._follow(sizes.numbers(of_class), None)
                self._solved = flow, {number: name for name, number in of_class.items()}
                break
            except NotFollowedError as error:
                if self._is_hollow(sizes, of_class, error.emptied):
                    continue
                if error.node is None or not _unify_at(sizes, of_class, error.node, error.operands):
                    totals = _totals_at(of_class, error.node, error.operands) if error.node is not None else []
                    break
            except LimitError:
                break
        # A size that equalled a constant by accident, such as four times another size, differs with other numbers.
        again = sizes.numbers(sizes.distinct(2 * size if spread else size + _APART, spread))
        if self._solved is not None and (again == sizes.numbers(of_class) or self._accepts(again)):
            return True
        self.equations, self._solved = self._unsolved(), None
        return totals or False

    def _is_hollow(self, sizes: Sizes, of_class: Mapping[str, int], emptied: str | None) -> bool:
        """Add a node that results in an empty axis also with much larger sizes; return True if it is added."""
        if emptied is None or emptied in self._hollow:
            return False
        again: str | None = emptied
        if of_class:
            try:
                self._follow(sizes.numbers({name: number * _LARGER for name, number in of_class.items()}), None)
                again = None
            except (NotFollowedError, LimitError) as error:
                again = getattr(error, "emptied", None)
        self._hollow |= {emptied} & {again}
        return emptied in self._hollow

    def _unsolved(self) -> Sizes:
        sizes = Sizes(self.symbols)
        for name, bound in self._bound.items():
            sizes.unify(name, bound)
        return sizes

    def _tie(self, said: Sequence[tuple[str, str]]) -> None:
        """Set open dimensions of state to 1 if the next value has size 1, because the exporter fixed the batch."""
        if self._solved is None:
            return
        flow, class_of = self._solved
        for name, updated in said:
            shapes = [flow.inputs[name].shape, flow.outputs[updated].shape]
            if None in shapes or len(shapes[0] or ()) != len(shapes[1] or ()):
                continue
            ones = [{axis for axis, size in enumerate(shape or ()) if size == 1} for shape in shapes]
            if ones[0] - ones[1] and ones[1] - ones[0]:  # an axis that moves
                continue
            for pair in zip(*shapes, strict=True):
                first, second = (self.equations.value[class_of[size]] if size in class_of else size for size in pair)
                if first != second and 1 in (first, second):
                    self.equations.unify(first, second)

    def are_equal(self, name: str, updated: str) -> bool:
        """Return True if an input and an output have equal types, and equal shapes for all sizes of open dimensions."""
        flow, class_of = self._solved or (self.flow, {})
        before, after = flow.inputs[name], flow.outputs[updated]
        shapes = [
            None if shape is None else [self.equations.value[class_of[n]] if n in class_of else n for n in shape]
            for shape in (before.shape, after.shape)
        ]
        return before.dtype == after.dtype and shapes[0] == shapes[1]

    def _accepts(self, sizes: Mapping[str, int]) -> bool:
        try:
            self._follow({**sizes, **self._bound}, None)
        except (NotFollowedError, LimitError):
            return False
        return True

    def longer(self, symbol: str) -> tuple[DataFlow, int] | Unknown:
        """Return the flow with a class of dimensions some times as long; unknown if no size that was tried fits."""
        first = self.equations.base(symbol)
        names = frozenset(name for name in self.symbols if self.equations.base(name) == first)
        if names not in self._longer:
            self._longer[names] = self._grown(symbol, names)
        return self._longer[names]

    @functools.cached_property
    def _all_longer(self) -> tuple[DataFlow, int] | Unknown:
        return self._grown(self.symbols[0], self.symbols)

    def _grown(self, symbol: str, names: Collection[str]) -> tuple[DataFlow, int] | Unknown:
        sites = [(site.label, site.slot) for site in self.flow.sites]
        why = ""
        for times in _TIMES:
            sizes = {name: size * times if name in names else size for name, size in self.sizes.items()}
            try:
                flow = self._follow(sizes, None)
            except (NotFollowedError, LimitError) as error:
                why = why or f"with {symbol!r} of {sizes[symbol]}, {first_line(error)}"
                continue
            if [(site.label, site.slot) for site in flow.sites] == sites:
                return flow, times
        return Unknown(why or f"with a longer {symbol!r}, the graph has other recurrences")

    @property
    def dimensions(self) -> dict[str, Dimension]:
        """Return for each open dimension the first name of its class, or the constant that nodes need."""
        return self.equations.value

    @property
    def are_solved(self) -> bool:
        """Return True if the equations are known; otherwise dimensions with several names may be equal."""
        return len(self.symbols) < 2 or self._solved is not None

    def _changes(self, symbol: str, facts: Callable[[DataFlow], Iterable[Any]], unknown: str) -> Answer:
        """Return True if facts about the flow differ for a longer class of dimensions; None is an unknown fact."""
        longer = self.longer(symbol)
        if isinstance(longer, Unknown):
            return longer
        pairs = itertools.zip_longest(facts(self.flow), facts(longer[0]))
        return any_of(Unknown(unknown) if None in pair else pair[0] != pair[1] for pair in pairs)

    @functools.cached_property
    def _open(self) -> list[str]:
        return [symbol for symbol in self.symbols if isinstance(self.dimensions[symbol], str)]

    def slides_along(self, size: Dimension) -> Answer:
        """Return True if a size is an open dimension along which a recurrence or a window slides."""
        if size not in self._open:
            return False
        return self._changes(str(size), lambda flow: [size for _, sizes in flow.lengths for size in sizes], _OF_DATA)

    def has_time(self) -> Answer:
        """Return True if a recurrence or a window slides along an open dimension."""
        return any_of(map(self.slides_along, self.symbols))

    def reaches(self, size: str, output: str) -> Answer:
        """Return True if an output is longer when an open dimension is longer."""
        return self._changes(size, lambda flow: [flow.outputs[output].shape], f"the shape of {output!r} is unknown")

    def is_window(self, size: Dimension, source: str, output: str, axis: int) -> Answer:
        """Return True if the elements that an output has more than an input along an axis depend on the open size."""
        longer = self.longer(str(size))
        if isinstance(longer, Unknown):  # dimensions may be equal, although no equation says so
            longer = self._all_longer
        if isinstance(longer, Unknown):
            return longer
        shapes = [(flow.inputs[source].shape, flow.outputs[output].shape) for flow in (self.flow, longer[0])]
        more = [new[axis] - old[axis] for old, new in shapes if old is not None and new is not None]
        return more[0] != more[1] if len(more) == 2 else Unknown(f"the shape of {output!r} is unknown")

    def grows_with_time(self, index: int) -> Answer:
        """Return True if this site has more steps when an open dimension is longer."""
        if self.flow.sites[index].length is None:
            return Unknown(_OF_DATA)
        return any_of(self._changes(symbol, lambda flow: [flow.sites[index].length], _OF_DATA) for symbol in self._open)

    def carry_shape(self, index: int) -> tuple[Dimension, ...]:
        """Return the shape of the carry of a site, with names of open dimensions; ``?`` is a size that may be open."""
        sizes = self.flow.sites[index].final.shape or ()
        return tuple(self._named(size, self._growth(index, axis)) for axis, size in enumerate(sizes))

    def open_in_carry(self, index: int) -> tuple[set[str], set[str]]:
        """Return the classes of dimensions on which the shape of a carry depends, and classes that are undecided."""
        growth = [self._growth(index, axis) for axis in range(len(self.flow.sites[index].final.shape or ()))]
        found = {symbol for each in growth for symbol, more in each.items() if not isinstance(more, Unknown)}
        return found, {symbol for each in growth for symbol in each} - found

    def _growth(self, index: int, axis: int) -> dict[str, int | Unknown]:
        """Return the growth of an axis of a carry for each class of dimensions that it depends on, if doubled."""
        size = (self.flow.sites[index].final.shape or ())[axis]
        growth: dict[str, int | Unknown] = {}
        for symbol in self.equations.classes:
            longer = self.longer(symbol)
            if isinstance(longer, Unknown):
                growth[symbol] = longer
                continue
            flow, times = longer
            other = (flow.sites[index].final.shape or ())[axis]
            if other != size:
                growth[symbol] = (other - size) // (times - 1)
        return growth

    def _named(self, size: int, growth: Mapping[str, int | Unknown]) -> Dimension:
        known = {symbol: more for symbol, more in growth.items() if not isinstance(more, Unknown)}
        if not known:
            return "?" if growth else size
        factor = next(iter(known.values())) / math.prod(self.sizes[symbol] for symbol in known)
        return "*".join([*([] if factor == 1 else [f"{factor:g}"]), *known])
