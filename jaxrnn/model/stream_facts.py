"""Whether a model can be streamed over one of its dimensions, and what is known of every value of its graph then."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jaxrnn._files.messages import brief
from jaxrnn.errors import JaxrnnError
from jaxrnn.model import Model
from jaxrnn.model.graph_facts import GraphInfo, NodeInfo, ValueInfo, paths_of
from jaxrnn.onnx.operators import operator_table
from jaxrnn.streaming.dimensions import SYMBOL
from jaxrnn.streaming.watching import StreamedValue, Watched, watched


@dataclass(frozen=True)
class StreamInfo:
    """Whether a model can be streamed with one of its open dimensions as time.

    Attributes:
        symbol: the dimension.
        smallest_pulse: in input frames; its multiples fit too. None where the model cannot be streamed.
        delay: by output, the frames that come before its frame 0; None for an output known only at the end.
        look_ahead: input frames after its own place that an output frame depends on.
        receptive_field: input frames that an output frame depends on; None for all of the past.
        state_bytes: size of the state of one stream.
        problem: why the model cannot be streamed, and what to do, or None.
    """

    symbol: str
    smallest_pulse: int | None = None
    delay: dict[str, int | None] | None = None
    look_ahead: int | None = None
    receptive_field: int | None = None
    state_bytes: int | None = None
    problem: str | None = None


@dataclass(frozen=True)
class KeptState:
    """An entry of the state of a stream: its name, what it is for, its shape and its bytes."""

    name: str
    kind: str
    shape: tuple[int | str, ...]
    nbytes: int


@brief
@dataclass(frozen=True)
class GraphStream:
    """A graph in pulses.

    Attributes:
        symbol: the dimension that is time.
        values: what is known of values, by their numbers in the graph.
        kept: the state that is kept at nodes, by their numbers.
        refused: the number of the node that cannot be streamed; None where all can, or where no single one is to blame.
    """

    symbol: str
    values: dict[int, StreamedValue]
    kept: dict[int, list[KeptState]]
    refused: int | None = None


def stream_facts(model: Model, symbol: str) -> StreamInfo:
    """Whether the model can be streamed over a dimension."""
    return _tried(model, symbol)[0]


def graph_stream(model: Model, symbol: str, graph: GraphInfo) -> tuple[StreamInfo, GraphStream]:
    """The same, and what is known of the values of its graph, until the first that cannot be streamed."""
    with watched() as values:
        info, state = _tried(model, symbol)
    paths = paths_of(graph)
    refused = None if info.problem is None else _refused(info.problem, paths)
    known = dict(_values(graph, paths, values, symbol))
    if info.problem is None:
        _handed_on(graph, known)
    for output in () if refused is None else graph.nodes[refused].outputs:
        known.pop(output, None)
    return info, GraphStream(symbol, known, _kept(state, paths), refused)


def _tried(model: Model, symbol: str) -> tuple[StreamInfo, list[KeptState]]:
    try:
        streamed = model.stream(symbol)
        state = [KeptState(each.name, each.kind, tuple(each.shape or ()), each.nbytes) for each in streamed.state]
        return StreamInfo(
            symbol,
            streamed.smallest_pulse,
            {info.name: streamed.delay[info.name] for info in model.outputs},
            streamed.look_ahead,
            streamed.receptive_field,
            sum(entry.nbytes for entry in streamed.state),
        ), state
    except JaxrnnError as error:
        return StreamInfo(symbol, problem=str(error).removeprefix(f"{model.label}: ")), []
    except Exception as error:  # a file is to be looked at whatever its operators do under a symbolic length
        return StreamInfo(symbol, problem=f"{type(error).__name__}: {error}"), []


def _node_at(scope: str, paths: Mapping[str, int]) -> int | None:
    """The innermost node of a scope."""
    while scope and scope not in paths:
        scope = scope.rpartition("/")[0]
    return paths.get(scope)


def _refused(problem: str, paths: Mapping[str, int]) -> int | None:
    """The node that an error is about."""
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
    graph: GraphInfo, paths: Mapping[str, int], found: Watched, symbol: str
) -> Iterator[tuple[int, StreamedValue]]:
    """What is known of the outputs of nodes: of each the last value with its shape that its node computed."""
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
    """What leaves a node as it came, such as that of an Identity, is known too: no equation is traced for it."""
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
    """With the length by the name that the file has for it."""
    shape = tuple(
        size if isinstance(size, int) else re.sub(rf"\b{SYMBOL}\b", lambda _: symbol, size) for size in value.shape
    )
    return dataclasses.replace(value, shape=shape)


def _may_be(value: StreamedValue, declared: ValueInfo) -> bool:
    if declared.shape is None or len(declared.shape) != len(value.shape):
        return False
    pairs = zip(declared.shape, value.shape, strict=True)
    return all(not isinstance(a, int) or not isinstance(b, int) or a == b for a, b in pairs)
