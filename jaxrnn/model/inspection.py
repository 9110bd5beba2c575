"""Inspection of ONNX files, including files that cannot be loaded."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jaxrnn._files.messages import short_repr
from jaxrnn._jax.context import exact_types
from jaxrnn.errors import InputError, JaxrnnError, LimitError, StateError, UnsupportedError
from jaxrnn.model import Model
from jaxrnn.model.graph_facts import GraphInfo, GraphStream, StreamInfo, graph_facts, step_facts, stream_facts
from jaxrnn.model.loading import model_of, opened_axes, read_model
from jaxrnn.model.streaming import check_symbol, time_symbols
from jaxrnn.onnx import ir
from jaxrnn.onnx.binding import read_constant
from jaxrnn.onnx.graph import inputs_of, node_label, normal_domain, spec_of
from jaxrnn.onnx.inference import infer_shapes
from jaxrnn.onnx.limits import Limits
from jaxrnn.onnx.operators import OwnOperators, operator_of, own_operators
from jaxrnn.onnx.parameters import choose_parameters
from jaxrnn.onnx.reading import Source, label_of, labelled
from jaxrnn.onnx.recurrences import RecurrentInfo, recurrent_nodes, walk
from jaxrnn.onnx.registry import InputSlot, Operator
from jaxrnn.onnx.state import StateVar
from jaxrnn.onnx.stepfile import STEP
from jaxrnn.steps.specs import ArraySpec


@dataclass(frozen=True)
class ParameterInfo:
    """A parameter: name, element type, shape, number of elements, and bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    nbytes: int


@dataclass(frozen=True)
class ConstantInfo:
    """A float tensor of rank 1 or more that is not a parameter, and the reason."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    reason: str


@dataclass(frozen=True)
class OperatorCount:
    """The number of nodes with an operator, including subgraphs. ``version`` is None if the operator cannot run."""

    name: str
    domain: str
    version: int | None
    count: int


@dataclass(frozen=True)
class UnsupportedNode:
    """A node without an implemented operator; ``reason`` names the nearest alternative."""

    name: str
    operator: str
    domain: str
    opset: int | None
    where: str
    reason: str


@short_repr
@dataclass(frozen=True)
class Inspection:
    """The facts about a file that `inspect_model` gathers.

    Attributes:
        label: the path, or a name of the model.
        producer: the exporter and version in the file's metadata.
        ir_version: version of the file format.
        opsets: opset version by domain (``""`` is ONNX's default domain).
        inputs: name, dtype and shape of each input, without initializers.
        outputs: name, dtype and shape of each output.
        parameters: the parameters, in the file's order.
        constants: the other float tensors of rank 1 or more, and the reasons why training does not change the values.
        operators: the number of uses of each operator, the most frequent first.
        recurrent: the nodes that carry a state over steps.
        state: the state variables; empty if the file cannot be loaded, or for a `state_problem`.
        growing: the open dimensions along which a state variable becomes longer in each step.
        frame_recurrences: recurrences that restart in each step, and that no state continues.
        undeclared_pairs: pairs of an input and an output that could be state, but are data by the declared state.
        state_problem: the ambiguity of the state, and how to resolve it, or None.
        unsupported: the nodes without an implemented operator.
        problem: the reason why the file cannot be loaded, or None.
        corrected: descriptions of outputs that the file declares with other shapes than the nodes give.
        opened: what was done and compared to open axes that the file fixes, as `Model.opened`.
        past: the most earlier frames that attention sees in an exported step, if this bound changed the model, or None.
        streams: the result of streaming over each open dimension that could be time; empty if not requested, if the
            file cannot be loaded, and for a model that already runs in steps.
        exported: delays and more of an exported step, from the metadata of the file, or None.
        frame_rate: the input frames per second in the metadata of an exported step, or None.
        graph: the nodes and values, if requested.
        graph_stream: facts about values in pulses, over the first dimension that can be streamed, or else over the
            first dimension that was tried.
    """

    label: str
    producer: str
    ir_version: int
    opsets: dict[str, int]
    inputs: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    parameters: tuple[ParameterInfo, ...]
    constants: tuple[ConstantInfo, ...]
    operators: tuple[OperatorCount, ...]
    recurrent: tuple[RecurrentInfo, ...]
    state: tuple[StateVar, ...]
    growing: tuple[str, ...]
    frame_recurrences: tuple[str, ...]
    undeclared_pairs: tuple[tuple[str, str], ...]
    state_problem: str | None
    unsupported: tuple[UnsupportedNode, ...]
    problem: str | None
    corrected: tuple[str, ...] = ()
    opened: tuple[str, ...] = ()
    past: int | None = None
    streams: tuple[StreamInfo, ...] = ()
    exported: StreamInfo | None = None
    frame_rate: float | None = None
    graph: GraphInfo | None = None
    graph_stream: GraphStream | None = None

    @property
    def parameter_count(self) -> int:
        """Return the number of elements of all parameters."""
        return sum(parameter.size for parameter in self.parameters)

    @property
    def parameter_bytes(self) -> int:
        """Return the bytes of all parameters."""
        return sum(parameter.nbytes for parameter in self.parameters)


def inspect_model(
    source: Source,
    *,
    static: Mapping[str, Any] | None = None,
    state: Mapping[str, str] | None = None,
    dims: Mapping[str, int | str | Mapping[Any, Any]] | None = None,
    limits: Limits | None = None,
    operators: OwnOperators | None = None,
    streams: bool | str = False,
    past: int | None = None,
    graph: bool = False,
) -> Inspection:
    """Gather the facts about an ONNX file, even if `jaxrnn.load` rejects some operators.

    The arguments are as in `jaxrnn.load`, and ``past`` as in `jaxrnn.stream`. ``streams`` tries to stream the model
    over each possible dimension, or over the dimension of this name. ``graph`` gathers nodes and values.
    """
    label, own = label_of(source), own_operators(operators)
    with labelled(label), exact_types():
        file, made = read_model(source, limits)
        options: dict[str, Any] = {"dims": dims, "max_trip_count": None, "limits": limits, "operators": own}
        file, made, opened = opened_axes(file, made, options, static)
        supported: dict[ir.Node, Operator] = {}
        unsupported: dict[ir.Node, UnsupportedNode] = {}
        for where, node in walk(made.graph):
            try:
                supported[node] = operator_of(node, own)
            except UnsupportedError as error:
                domain = normal_domain(node.domain)
                entry = UnsupportedNode(node_label(node), node.op_type, domain, node.version, where, str(error))
                unsupported[node] = entry
        model, found_state, problem, state_problem = None, (), None, None
        try:
            options["declared"] = "lenient"
            model = model_of(file, made, label, options, static=static, state=state)
        except InputError:
            raise
        except JaxrnnError as error:
            problem = str(error)
        try:
            found_state = () if model is None else model.state
        except (StateError, LimitError) as error:
            state_problem = str(error)
        # An unsupported operator is assumed to take any inputs.
        anything = InputSlot("input", static=False, foldable=False, required=False)

        def operator(node: ir.Node) -> Operator:
            unknown = Operator(node.op_type, node.domain, 0, operator_of, (), anything, {}, False, False)
            return supported.get(node, unknown)

        chosen = choose_parameters(made, operator, functools.cache(read_constant))
        recurrent = recurrent_nodes(made, own)
        found = None
        if graph:
            infer_shapes(made)
            reasons = {node: entry.reason for node, entry in unsupported.items()}
            found = graph_facts(made.graph, supported, reasons, chosen.names, found_state)
        tried, in_pulses = (), None
        if streams and model is not None and state_problem is None:
            tried, in_pulses = _streams(model, streams, past, found)
        step = None if model is None else model.step_file
        return Inspection(
            label=label,
            producer=f"{file.proto.producer_name} {file.proto.producer_version}".strip(),
            ir_version=file.proto.ir_version,
            opsets={normal_domain(entry.domain): entry.version for entry in file.proto.opset_import},
            inputs=tuple(spec_of(value) for value in inputs_of(made.graph) if value.name not in (static or {})),
            outputs=tuple(map(spec_of, made.graph.outputs)),
            parameters=tuple(_parameters(chosen.names)),
            constants=tuple(_others(chosen.constants)),
            operators=tuple(_counts(made.graph, supported)),
            recurrent=recurrent,
            state=found_state,
            past=None if step is None else step.spec.past,
            growing=tuple(sorted(model.growing_dimensions)) if model is not None and found_state else (),
            frame_recurrences=() if model is None or state_problem is not None else model.frame_recurrences,
            undeclared_pairs=() if model is None or state_problem is not None else model.undeclared_pairs,
            state_problem=state_problem,
            unsupported=tuple(unsupported.values()),
            problem=problem,
            corrected=() if model is None else model.corrected,
            opened=opened,
            streams=tried,
            exported=None if step is None or step.kind != STEP else step_facts(step.spec, None, step.outputs),
            frame_rate=None if step is None else step.frame_rate,
            graph=found,
            graph_stream=in_pulses,
        )


def _parameters(names: Mapping[ir.Value, str]) -> Iterator[ParameterInfo]:
    for name, value in {name: value for value, name in names.items()}.items():
        array = read_constant(value)
        if array is not None:
            yield ParameterInfo(name, array.dtype.name, array.shape, array.size, array.nbytes)


def _others(reasons: Mapping[ir.Value, str]) -> Iterator[ConstantInfo]:
    for value, reason in reasons.items():
        array = read_constant(value)
        assert array is not None, "only constants have reasons"
        yield ConstantInfo(str(value.name), array.dtype.name, array.shape, array.size, reason)


def _counts(graph: ir.Graph, supported: Mapping[ir.Node, Operator]) -> Iterator[OperatorCount]:
    counts: Counter[tuple[str, str, int | None]] = Counter()
    for node in graph.all_nodes():
        version = supported[node].since if node in supported else None
        counts[node.op_type, normal_domain(node.domain), version] += 1
    for (name, domain, version), count in sorted(counts.items(), key=lambda item: (-item[1], item[0][:2])):
        yield OperatorCount(name, domain, version, count)


def _streams(
    model: Model, streams: bool | str, past: int | None, graph: GraphInfo | None
) -> tuple[tuple[StreamInfo, ...], GraphStream | None]:
    """Return for each open dimension how the model can be streamed; empty for a model that runs in steps."""
    symbols: tuple[str, ...]
    if isinstance(streams, str):
        check_symbol(model, streams)
        symbols = (streams,)
    else:
        symbols = () if {variable.kind for variable in model.state} == {"external"} else time_symbols(model)
    tried = [stream_facts(model, symbol, past, graph) for symbol in symbols]
    able = [found for info, found in tried if info.problem is None]
    return tuple(info for info, _ in tried), next(iter([*able, *(found for _, found in tried)]), None)
