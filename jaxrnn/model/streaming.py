"""Streaming of models: inputs that move in time, their shapes in the trace, and facts about the result."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax

from jaxrnn._files.arguments import SIZE, argument, called, either
from jaxrnn._files.messages import short_repr
from jaxrnn._jax.context import exact_types
from jaxrnn.errors import InputError, JaxrnnError, LimitError, NodeError, StateError, StreamError, is_count
from jaxrnn.model.graph_facts import GraphInfo, NodeInfo, ValueInfo, paths_of
from jaxrnn.onnx.evaluate import Block
from jaxrnn.onnx.operators import operator_table
from jaxrnn.onnx.reading import labelled
from jaxrnn.steps.specs import Dimension
from jaxrnn.streaming import Streamed, stream
from jaxrnn.streaming.diagnostics import error_in_words_of_file, of_file
from jaxrnn.streaming.dimensions import SYMBOL
from jaxrnn.streaming.interpreter import Observed, StreamedValue, observe

if TYPE_CHECKING:
    from jaxrnn.model import Model


@dataclasses.dataclass(frozen=True)
class Graph:
    """The whole graph of a model as a function of parameters and inputs."""

    model: Model

    @property
    def __name__(self) -> str:
        return self.model.label

    @property
    def operators(self) -> dict[str, str]:
        """The operators of the model by scope."""
        return operators_by_scope(self.model)

    def __call__(self, params: Any, inputs: Any) -> dict[str, Any]:
        """Apply the model."""
        return self.model.apply(params, inputs)


def open_dimensions(model: Model) -> list[str]:
    """Return the names of the open dimensions of the inputs."""
    sizes = (size for info in model.inputs for size in info.shape or ())
    return list(dict.fromkeys(size for size in sizes if isinstance(size, str)))


def check_symbol(model: Model, symbol: str) -> list[str]:
    """Return the names of all open dimensions; raise InputError if the symbol is not among them."""
    names = open_dimensions(model)
    if not isinstance(symbol, str) or not any(_times(name, symbol) for name in names):
        listed = ", ".join(names) or "none"
        raise InputError(f"no input has a dimension {symbol!r}; dimensions left open: {listed}")
    return names


def tied_dimensions(model: Model) -> Mapping[str, Dimension]:
    """Return the class of each open dimension by the equations; empty if they cannot be solved."""
    try:
        return model.dimensions
    except (StateError, LimitError):
        return {}


def stream_model(
    model: Model,
    symbol: str,
    pulse: int | None,
    *,
    dims: Mapping[str, int | str],
    multiple: int,
    constraints: Sequence[str],
    past: int | None,
) -> Streamed:
    """Implement `Model.stream`."""
    with labelled(model.label):
        names = check_symbol(model, symbol)
    for name, size in dims.items():
        if name not in names or _times(name, symbol):
            raise InputError(
                f"{model.label}: {called('dims')} gives {name!r}; dimensions left open: {', '.join(names)}"
            )
        if not is_count(size, 1) and not _times(size, symbol):
            raise InputError(
                f"{model.label}: {called('dims')} must give {name!r} a size from 1 on, or a multiple of {symbol} "
                f"such as {f'4*{symbol}'!r}, not {size!r}"
            )
    tied = tied_dimensions(model)
    if not isinstance(tied.get(symbol, symbol), str):
        tied = {}  # a constant length: tracing says which node has it
    time = str(tied.get(symbol, symbol))
    given = {
        tied.get(name, name): f"{times}*{time}" if (times := _times(size, symbol)) else size
        for name, size in dims.items()
    }
    example, axes = {}, {}
    for info in (info.sized(tied) for info in model.inputs):
        if info.shape is None or info.dtype is None:
            raise InputError(f"{model.label}: {info.as_input} has no declared rank, so its time axis is not known")
        sizes = [given.get(size, size) if isinstance(size, str) else size for size in info.shape]
        times = {axis: _times(size, time) for axis, size in enumerate(sizes)}
        places = [axis for axis, count in times.items() if count]
        if len(places) > 1:
            raise InputError(
                f"{model.label}: {info.as_input} has {symbol} on {len(places)} axes; only one axis can be time"
            )
        axes[info.name] = places[0] if places else None
        shape = [times[axis] or (1 if isinstance(size, str) else int(size)) for axis, size in enumerate(sizes)]
        example[info.name] = jax.ShapeDtypeStruct(shape, info.dtype)

    options = {"axes": axes, "pulse": pulse, "multiple": multiple, "constraints": constraints, "past": past}
    try:
        with exact_types(), of_file(operators_by_scope(model)):
            return stream(Graph(model), example, params=model.params, **options)
    except (NodeError, StreamError) as error:
        others = [name for name in names if name != symbol and name not in dims]
        cause = error if isinstance(error, NodeError) else error.__cause__
        is_undecided = isinstance(cause, NodeError) and "can be streamed" not in str(error)
        if is_undecided and (relation := _relation(model, symbol, names, str(cause))):
            where = _in_terms_of(symbol, getattr(cause, "place", "") or str(cause))
            raise StreamError(f"{model.label}: {where}: two inputs have a time axis; {relation}") from error
        if isinstance(error, StreamError):
            raise StreamError(_in_terms_of(symbol, f"{model.label}: {error}")) from error
        said = f"{model.label} cannot be traced for every length of {symbol}: {error_in_words_of_file(error)}"
        if others:
            said += f". Assumed size 1: {', '.join(others)}; {argument('dims', {others[0]: SIZE})} sets another size"
        raise StreamError(_in_terms_of(symbol, said)) from error


def _relation(model: Model, symbol: str, others: Sequence[str], problem: str) -> str:
    """Return advice that relates another dimension to time so that the graph can be traced, or an empty string."""
    shapes = [info.shape or () for info in model.inputs]
    own = {size: axis for shape in shapes if symbol in shape for axis, size in enumerate(shape)}
    places = {size: axis for shape in shapes for axis, size in enumerate(shape)}
    others = sorted((name for name in others if name not in own), key=lambda name: places[name] != own.get(symbol))
    rates = sorted({int(number) for number in re.findall(r"\d+", problem)} & set(range(2, 65)))[:8]
    for other in others:
        for times in (1, *rates):
            for time, faster in ((symbol, other), (other, symbol)):
                size = time if times == 1 else f"{times}*{time}"
                if size == faster:
                    return either(f"stream over the slower one: model.stream({time!r})", f"give --symbol {time}")
                if _fits(model, {time: SYMBOL, faster: f"{times}*{SYMBOL}"}):
                    said = argument("dims", {faster: size}, f"model.stream({time!r})")
                    return f"{either('', f'with --symbol {time}, ')}{said} says that {faster} is {size}"
    return ""


def _fits(model: Model, sizes: Mapping[str, str]) -> bool:
    """Return True if the graph can be traced with these dimensions and 1 for all others."""
    scope = jax.export.SymbolicScope()
    inputs = {}
    for info in model.inputs:
        spelled = [sizes.get(size, "1") if isinstance(size, str) else str(size) for size in info.shape or ()]
        shape = jax.export.symbolic_shape(f"({', '.join(spelled)},)" if spelled else "", scope=scope)
        inputs[info.name] = jax.ShapeDtypeStruct(shape, info.dtype)
    try:
        with exact_types():
            jax.eval_shape(model.apply, model.params, inputs)
    except Exception:  # whatever an operator raises on sizes that do not fit
        return False
    return True


def operators_by_scope(model: Model) -> dict[str, str]:
    """Return the operators of a model's nodes by the scopes that the nodes are traced in."""
    return _operators(model.program.block)


def _operators(block: Block, outer: str = "") -> dict[str, str]:
    """Return operators by the scope of their node: the names of the enclosing nodes, and of the node."""
    found: dict[str, str] = {}
    for node in block.nodes:
        path = f"{outer}{'/' if outer and not node.name.startswith('/') else ''}{node.name}"
        found[path] = str(node.operator)
        for inner in node.blocks:
            found |= {name: kind for name, kind in _operators(inner, path).items() if name not in found}
    return found


def _in_terms_of(symbol: str, message: str) -> str:
    """Replace S in a message by the file's name of the length, except in names and constraints."""
    parts = re.split(r"('[^']*'|constraints=\[[^]]*\])", message)
    return "".join(
        part if at % 2 else re.sub(rf"\b{SYMBOL}\b", lambda _: symbol, part) for at, part in enumerate(parts)
    )


def _times(size: Any, symbol: str) -> int:
    """Return the frames of an axis for each frame of the symbol: k for ``k*S``, 0 for other axes."""
    if not isinstance(size, str):
        return 0
    match = re.fullmatch(rf"(?:(\d+)\s*\*\s*)?{re.escape(symbol)}(?:\s*\*\s*(\d+))?", size.strip())
    return int(match[1] or 1) * int(match[2] or 1) if match else 0


@dataclass(frozen=True)
class StreamInfo:
    """The facts about a model that is streamed with an open dimension as time."""

    symbol: str
    smallest_pulse: int | None = None  # in input frames; multiples fit too. None if the model cannot be streamed.
    #: by output, the frames before its frame 0; None for an output known only at the end
    delay: dict[str, int | None] | None = None
    look_ahead: int | None = None  # later input frames that an output frame depends on
    receptive_field: int | None = None  # input frames that an output frame depends on; None for the whole past
    state_bytes: int | None = None  # size of the state of one stream
    past: int | None = None  # the most earlier frames of an attention without a bound, where that changes the model
    problem: str | None = None  # the reason why the model cannot be streamed, and a remedy, or None


@dataclass(frozen=True)
class KeptState:
    """An entry of the state of a stream: name, kind, shape and bytes."""

    name: str
    kind: str
    shape: tuple[int | str, ...]
    nbytes: int


@short_repr
@dataclass(frozen=True)
class GraphStream:
    """A graph in pulses."""

    symbol: str  # the dimension that is time
    values: dict[int, StreamedValue]  # the facts about values, by their numbers in the graph
    kept: dict[int, list[KeptState]]  # the state of nodes, by their numbers
    #: the number of the node that cannot be streamed; None if all nodes can, or for other reasons
    refused: int | None = None


def stream_facts(model: Model, symbol: str, past: int | None) -> StreamInfo:
    """Return the facts about streaming the model over a dimension."""
    return _tried(model, symbol, past)[0]


def graph_stream(model: Model, symbol: str, past: int | None, graph: GraphInfo) -> tuple[StreamInfo, GraphStream]:
    """Return these facts, and the facts about values of the graph up to the first refused node."""
    with observe() as values:
        info, state = _tried(model, symbol, past)
    paths = paths_of(graph)
    refused = None if info.problem is None else _refused(info.problem, paths)
    known = dict(_values(graph, paths, values, symbol))
    if info.problem is None:
        _handed_on(graph, known)
    for output in () if refused is None else graph.nodes[refused].outputs:
        known.pop(output, None)
    return info, GraphStream(symbol, known, _kept(state, paths), refused)


def _tried(model: Model, symbol: str, past: int | None) -> tuple[StreamInfo, list[KeptState]]:
    try:
        streamed = model.stream(symbol, past=past)
        state = [KeptState(each.name, each.kind, tuple(each.shape or ()), each.nbytes) for each in streamed.state]
        return StreamInfo(
            symbol,
            streamed.smallest_pulse,
            {info.name: streamed.delay[info.name] for info in model.outputs},
            streamed.look_ahead,
            streamed.receptive_field,
            sum(entry.nbytes for entry in streamed.state),
            streamed.past,
        ), state
    except JaxrnnError as error:
        return StreamInfo(symbol, problem=str(error).removeprefix(f"{model.label}: ")), []
    except Exception as error:  # a file is to be looked at whatever its operators do under a symbolic length
        return StreamInfo(symbol, problem=f"{type(error).__name__}: {error}"), []


def _node_at(scope: str, paths: Mapping[str, int]) -> int | None:
    """Return the innermost node of a scope."""
    while scope and scope not in paths:
        scope = scope.rpartition("/")[0]
    return paths.get(scope)


def _refused(problem: str, paths: Mapping[str, int]) -> int | None:
    """Return the node in an error message."""
    named = (_node_at(scope, paths) for scope in re.findall(r"node '([^']*)'", problem))
    return next((node for node in named if node is not None), None)


def _kept(state: Sequence[KeptState], paths: Mapping[str, int]) -> dict[int, list[KeptState]]:
    kept: dict[int, list[KeptState]] = {}
    for entry in state:
        node = _node_at(entry.name.rpartition(".")[0], paths)
        node = _node_at(entry.name, paths) if node is None else node
        if node is not None:
            kept.setdefault(node, []).append(entry)
    return kept


def _values(
    graph: GraphInfo, paths: Mapping[str, int], found: Observed, symbol: str
) -> Iterator[tuple[int, StreamedValue]]:
    """Yield the facts about outputs of nodes: of each, the last value with its shape that the node computed."""
    opened = {size for value in graph.graphs[0].inputs for size in graph.values[value].shape or ()}
    by_node: dict[int, list[StreamedValue]] = {}
    for scope, values in found.items():
        node = _node_at(scope, paths)
        if node is not None:
            by_node.setdefault(node, []).extend(values)
    for number, values in by_node.items():
        named = [_named_after(symbol, value) for value in values]
        outputs = [output for output in graph.nodes[number].outputs if graph.values[output].name]
        for output in outputs:
            declared = graph.values[output]
            fitting = [value for value in named if _may_be(value, declared)]
            if fitting and declared.shape is not None:
                # A batch is one stream while it is traced, and has its name all the same.
                pairs = zip(declared.shape, fitting[-1].shape, strict=True)
                shape = tuple(name if name in opened and isinstance(size, int) else size for name, size in pairs)
                yield output, dataclasses.replace(fitting[-1], shape=shape)
            elif len(outputs) == 1:
                yield output, named[-1]


def _handed_on(graph: GraphInfo, known: dict[int, StreamedValue]) -> None:
    """Add outputs that nodes pass on unchanged, such as an Identity: no equation is traced for them."""
    for node in graph.nodes:
        taken = [known[value] for _, value in node.inputs[:1] if value in known]
        if taken and not _is_of_shape(node) and not any(output in known for output in node.outputs):
            for output in node.outputs[:1]:
                if _may_be(taken[0], graph.values[output]):
                    known[output] = taken[0]


def _is_of_shape(node: NodeInfo) -> bool:
    found = operator_table().get((node.domain, node.operator))
    return found is not None and found.traits.of_shape


def _named_after(symbol: str, value: StreamedValue) -> StreamedValue:
    """Rename the length in a shape to the file's name."""
    shape = tuple(
        size if isinstance(size, int) else re.sub(rf"\b{SYMBOL}\b", lambda _: symbol, size) for size in value.shape
    )
    return dataclasses.replace(value, shape=shape)


def _may_be(value: StreamedValue, declared: ValueInfo) -> bool:
    if declared.shape is None or len(declared.shape) != len(value.shape):
        return False
    pairs = zip(declared.shape, value.shape, strict=True)
    return all(not isinstance(a, int) or not isinstance(b, int) or a == b for a, b in pairs)
