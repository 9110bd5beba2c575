"""What is in an ONNX file, also in one that cannot be loaded: for looking before running."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from jaxrnn.errors import JaxrnnError, LimitError, StateError, UnsupportedError
from jaxrnn.guards import exact_types
from jaxrnn.model import Model
from jaxrnn.model.loading import load
from jaxrnn.onnx.batch_names import is_batch_name
from jaxrnn.onnx.checking import check_proto
from jaxrnn.onnx.graph import normal_domain, read_graph
from jaxrnn.onnx.inference import check_shapes
from jaxrnn.onnx.interface import spec_of
from jaxrnn.onnx.limits import Limits
from jaxrnn.onnx.own_operators import OwnOperators, operator_of, own_operators
from jaxrnn.onnx.parameters import name_parameters
from jaxrnn.onnx.program import Program, bind, node_label, read_constant
from jaxrnn.onnx.reading import Source, label_of, read_source
from jaxrnn.onnx.recurrences import RecurrentInfo, recurrent_nodes, walk
from jaxrnn.onnx.registry import InputSlot, Operator
from jaxrnn.onnx.state import StateVar, find_state
from jaxrnn.specs import ArraySpec

#: A size that is computed from a dimension, such as ``4*S``, is none itself.
_FORMULA = re.compile(r".*[*+/()].*")
Find = Callable[[ir.Node], Operator]


@dataclass(frozen=True)
class ParameterInfo:
    """One parameter: name, element type, shape, number of elements and of bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    nbytes: int


@dataclass(frozen=True)
class OperatorCount:
    """How many nodes use an operator, subgraphs included; ``version`` is None where it cannot be run."""

    name: str
    domain: str
    version: int | None
    count: int


@dataclass(frozen=True)
class UnsupportedNode:
    """A node without an operator here; ``reason`` names the nearest alternative."""

    name: str
    operator: str
    domain: str
    opset: int | None
    where: str
    reason: str


@dataclass(frozen=True)
class Inspection:
    """The facts about a file that `inspect_model` gathers.

    Attributes:
        label: the path, or what else to call the model.
        producer: the exporter and its version, as the file says.
        ir_version: version of the file format.
        opsets: opset version by domain (``""`` is ONNX's own).
        inputs: name, dtype and shape of every input; initializers are none.
        outputs: the same of every output.
        parameters: every parameter, in the file's order.
        operators: how often each operator is used, the most frequent first.
        recurrent: every node that carries a state over steps.
        state: every state variable; none where the file cannot be loaded, or where `state_problem` says why.
        state_problem: what is ambiguous about the state, and how to resolve it, or None.
        unsupported: every node that has no operator here.
        problem: why the file cannot be loaded, or None.
    """

    label: str
    producer: str
    ir_version: int
    opsets: dict[str, int]
    inputs: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    parameters: tuple[ParameterInfo, ...]
    operators: tuple[OperatorCount, ...]
    recurrent: tuple[RecurrentInfo, ...]
    state: tuple[StateVar, ...]
    state_problem: str | None
    unsupported: tuple[UnsupportedNode, ...]
    problem: str | None

    @property
    def parameter_count(self) -> int:
        """Number of elements of all parameters."""
        return sum(parameter.size for parameter in self.parameters)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all parameters."""
        return sum(parameter.nbytes for parameter in self.parameters)


def inspect_model(source: Source, *, limits: Limits | None = None, operators: OwnOperators | None = None) -> Inspection:
    """Gather the facts about an ONNX file, whether or not `jaxrnn.load` accepts its operators.

    Args:
        source: path, bytes or ``onnx.ModelProto``.
        limits: as in `jaxrnn.load`.
        operators: as in `jaxrnn.load`; they count as supported.

    Raises:
        ModelError: the file is malformed, inconsistent or unsafe, or its functions or tensors go beyond the limits.
        UnsupportedError: its format, not one of its operators, is not supported.
    """
    label, own = label_of(source), own_operators(operators)
    find = functools.partial(operator_of, own=own)
    try:
        with exact_types():
            proto, _, folder = read_source(source, limits)
            check_proto(proto, folder)
            model = read_graph(proto, limits)
            if folder is not None:
                ir.external_data.set_base_dir(model.graph, folder)
            unsupported = tuple(_unsupported(model.graph, find))
            program, problem = _bound(proto, model, limits, own)
            state, state_problem = _state(program)
            initialized = set(model.graph.initializers.values())
            return Inspection(
                label=label,
                producer=f"{proto.producer_name} {proto.producer_version}".strip(),
                ir_version=proto.ir_version,
                opsets={normal_domain(entry.domain): entry.version for entry in proto.opset_import},
                inputs=tuple(spec_of(value) for value in model.graph.inputs if value not in initialized),
                outputs=tuple(map(spec_of, model.graph.outputs)),
                parameters=tuple(_parameters(model.graph, find)),
                operators=tuple(_count_operators(model.graph, find)),
                recurrent=recurrent_nodes(model),
                state=state,
                state_problem=state_problem,
                unsupported=unsupported,
                problem=problem,
            )
    except JaxrnnError as error:
        raise type(error)(f"{label}: {error}") from error


@dataclass(frozen=True)
class StreamInfo:
    """Whether a model can be streamed with one of its open dimensions as time.

    Attributes:
        symbol: the dimension.
        smallest_pulse: in input frames; its multiples fit too. None where the model cannot be streamed.
        delay: by output, the frames that come before its frame 0; None for an output known only at the end.
        look_ahead: input frames behind its own place that an output frame depends on.
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


def inspect_streams(source: Source, *, operators: OwnOperators | None = None) -> tuple[StreamInfo, ...]:
    """Try to stream a model over each open dimension of its inputs that could be time.

    None for a file that cannot be loaded, and for a model that is a step already: all of its state is passed in and
    handed back. Nothing that goes wrong in a trial is raised; it is the `StreamInfo.problem`.
    """
    try:
        model = load(source, operators=operators)
        kinds = {variable.kind for variable in model.state}
    except JaxrnnError:
        return ()
    return () if kinds == {"external"} else tuple(_tried(model, symbol) for symbol in time_symbols(model))


def time_symbols(model: Model) -> tuple[str, ...]:
    """The open dimensions of a model's inputs that could be time: those whose names are not like a batch's."""
    sizes = (size for info in model.inputs for size in info.shape or () if isinstance(size, str))
    return tuple(dict.fromkeys(size for size in sizes if not is_batch_name(size) and not _FORMULA.match(size)))


def _tried(model: Model, symbol: str) -> StreamInfo:
    try:
        streamed = model.stream(symbol, None)
        return StreamInfo(
            symbol,
            streamed.smallest_pulse,
            {info.name: streamed.delay[info.name] for info in model.outputs},
            streamed.look_ahead,
            streamed.receptive_field,
            sum(entry.nbytes for entry in streamed.state),
        )
    except JaxrnnError as error:
        return StreamInfo(symbol, problem=str(error).removeprefix(f"{model.label}: "))
    except Exception as error:  # a file is to be looked at whatever its operators do under a symbolic length
        return StreamInfo(symbol, problem=f"{type(error).__name__}: {error}")


def _unsupported(graph: ir.Graph, find: Find) -> Iterator[UnsupportedNode]:
    for where, node in walk(graph):
        try:
            find(node)
        except UnsupportedError as error:
            domain = normal_domain(node.domain)
            yield UnsupportedNode(node_label(node), node.op_type, domain, node.version, where, str(error))


def _bound(
    proto: onnx.ModelProto, model: ir.Model, limits: Limits | None, own: OwnOperators
) -> tuple[Program | None, str | None]:
    """The program, or why there is none."""
    try:
        program = bind(model, limits, own)
        check_shapes(proto)
    except JaxrnnError as error:
        return None, str(error)
    return program, None


def _state(program: Program | None) -> tuple[tuple[StateVar, ...], str | None]:
    """The state, or why it cannot be known."""
    try:
        return (() if program is None else find_state(program).variables), None
    except (StateError, LimitError) as error:
        return (), str(error)


def _operator_or_stand_in(find: Find, node: ir.Node) -> Operator:
    """The node's operator, or one that takes any inputs: enough to tell which tensors are parameters."""
    try:
        return find(node)
    except UnsupportedError:
        anything = InputSlot("input", static=False, foldable=False, required=False)
        return Operator(node.op_type, node.domain, node.version or 0, find, (), anything, {}, False, False)


def _parameters(graph: ir.Graph, find: Find) -> Iterator[ParameterInfo]:
    read = functools.cache(read_constant)
    arrays: dict[str, np.ndarray | None] = {}
    operator = functools.cache(functools.partial(_operator_or_stand_in, find))
    for value, name in name_parameters(graph, operator, read).items():
        arrays[name] = read(value)
    for name, array in arrays.items():
        if array is not None:
            yield ParameterInfo(name, array.dtype.name, array.shape, array.size, array.nbytes)


def _count_operators(graph: ir.Graph, find: Find) -> Iterator[OperatorCount]:
    counts: Counter[tuple[str, str, int | None]] = Counter()
    for _, node in walk(graph):
        try:
            version = find(node).since
        except UnsupportedError:
            version = None
        counts[node.op_type, normal_domain(node.domain), version] += 1
    for (name, domain, version), count in sorted(counts.items(), key=lambda item: (-item[1], item[0][:2])):
        yield OperatorCount(name, domain, version, count)
