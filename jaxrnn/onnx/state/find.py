"""The state of a model: what a caller must carry from one call to the next, and what every call forgets."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxrnn._files.arguments import argument, static_argument
from jaxrnn._files.messages import brief
from jaxrnn._jax.context import exact_types
from jaxrnn.errors import StateError
from jaxrnn.jaxprs.origins.codes import STEP
from jaxrnn.jaxprs.origins.flows import Site
from jaxrnn.onnx.interface import spec_of
from jaxrnn.onnx.program import Program
from jaxrnn.onnx.state import names
from jaxrnn.onnx.state.declared import agree
from jaxrnn.onnx.state.evidence import CARRIED, LAST_OUTPUT, POSSIBLE, Edge, find_edge
from jaxrnn.onnx.state.pairing import Pairing
from jaxrnn.onnx.state.probe import Probe
from jaxrnn.onnx.state.reasons import external_reason, internal_reason
from jaxrnn.steps.specs import Dimension

EXTERNAL, INTERNAL = "external", "internal"


@brief
@dataclass(frozen=True)
class StateVar:
    """One state variable of a model.

    Attributes:
        name: the name of the input; for internal state the node and its carry, such as ``node.h``.
        kind: ``"external"`` if the caller passes it in and gets it back, ``"internal"`` if every call starts it anew
            and forgets it.
        input: the graph input of its old value; None for internal state.
        output: the graph output of its updated value; None for internal state.
        node: the label of the node that it belongs to, or several separated by commas.
        shape: sizes, and names of open dimensions.
        dtype: its element type.
        reason: why it is classified so, in words.
    """

    name: str
    kind: str
    input: str | None
    output: str | None
    node: str
    shape: tuple[Dimension, ...]
    dtype: np.dtype
    reason: str


def open_sizes(variables: Sequence[StateVar], growing: Collection[str]) -> tuple[str | None, list[str]]:
    """The name of the batch dimension, None where the file fixes it, and the other open dimensions.

    The batch dimension is the one that every array of the state has. Scalars and vectors without open dimensions, such
    as a counter, may be shared by all streams.

    Args:
        variables: the state.
        growing: the dimensions along which a variable becomes longer with every step.
    """
    sizes = [{size for size in variable.shape if isinstance(size, str)} for variable in variables]
    arrays = [each for each, variable in zip(sizes, variables, strict=True) if each or len(variable.shape) > 1]
    common = sorted(set.intersection(*arrays).difference(growing)) if arrays else []
    batch = common[0] if len(common) == 1 else None
    return batch, sorted(set[str]().union(*sizes) - {batch})


@dataclass(frozen=True)
class Findings:
    """The state of a graph.

    Attributes:
        variables: the external variables in the order of the inputs, then the internal ones.
        dimensions: by open dimension of the inputs, the name of its class, or the constant that it has to be: the nodes
            need all dimensions of a class to be equal.
        growing: the classes of dimensions along which a variable becomes longer with every step.
        of_frame: recurrences inside a step that start anew in every step, such as one over frequency: their carries.
    """

    variables: tuple[StateVar, ...]
    dimensions: Mapping[str, Dimension]
    growing: frozenset[str]
    of_frame: tuple[str, ...] = ()


def find_state(
    program: Program, declared: Mapping[str, str] | None = None, static: Mapping[str, np.ndarray] | None = None
) -> Findings:
    """Every state variable of a graph.

    Args:
        program: the bound graph.
        declared: pairs of an input and the output with its updated value that a caller declares. An empty mapping
            declares that there is no external state; None declares nothing.
        static: the values of bound inputs.

    Raises:
        StateError: it is ambiguous which output carries the updated value of which input, or the carries of a
            recurrent node cannot be followed. The message shows what to declare.
    """
    with exact_types():
        finder = _Finder(program, declared, dict(static or {}))
        variables = finder.find()
        return Findings(variables, finder.probe.dimensions, frozenset(finder.growing), tuple(finder.of_frame))


class _Finder:
    def __init__(self, program: Program, declared: Mapping[str, str] | None, static: dict[str, np.ndarray]):
        self.program, self.static, self.declared = program, static, dict(declared or {})
        self.is_complete, self.growing = declared is not None, set[str]()
        self.of_frame: list[str] = []
        infos = map(spec_of, program.block.inputs)
        self.inputs = {info.name: info for info in infos if info.name not in static}
        self.outputs = {info.name: info for info in map(spec_of, program.block.outputs)}
        self.candidates = [
            (name, updated)
            for name, source in self.inputs.items()
            for updated, target in self.outputs.items()
            if (self.declared or not self.is_complete) and agree(source, target)
        ]
        sources = list(dict.fromkeys(source for source, _ in self.candidates))
        said = [pair for pair in self.candidates if names.affinity(*pair) == 2] if declared is None else []
        said += self.declared.items()
        self.probe = Probe(program, list(self.inputs.values()), static, sources, said)
        self.flow = self.probe.flow

    def find(self) -> tuple[StateVar, ...]:
        declared = {name: Edge(name, updated, CARRIED) for name, updated in self.declared.items()}
        edges = [edge for pair in self.candidates if (edge := find_edge(self.flow, *pair, self._open(pair[0])))]
        pairing = Pairing(edges, self.flow, declared, self._over_time, self.inputs, self.outputs)
        pairs = pairing.take_proved() if self.is_complete else pairing.find()
        if self.flow.lost and not pairs:
            label, why = self.flow.lost[0]
            raise StateError(
                f"the state of node {label!r} cannot be found, because its shapes depend on data ({why}). Bind the "
                f"inputs that they depend on with {static_argument()}, or say which of these pairs are state: "
                f"{pairing.all_that_may_be()}"
            )
        for edge in pairs.values():
            self._note_growth(edge)
        external = [self._external(pairs[name]) for name in self.inputs if name in pairs]
        return (*external, *self._internal(pairs))

    def _open(self, source: str) -> list[bool]:
        return [isinstance(self.probe.dimensions.get(str(size)), str) for size in self.inputs[source].shape or ()]

    def _note_growth(self, edge: Edge) -> None:
        before, after = self.flow.inputs[edge.source].shape, self.flow.outputs[edge.output].shape
        for symbol, old, new in zip(self.inputs[edge.source].shape or (), before or (), after or (), strict=False):
            if old != new and isinstance(symbol, str):
                self.growing.add(str(self.probe.dimensions[symbol]))

    def _over_time(self, edge: Edge) -> bool:
        """Whether the input of a pair has a time axis, as data does.

        A step may also slide along another axis, such as the weights of an attention over a memory. Where names make
        the pair, an axis is time only if an output that has no name like an input grows along it too.
        """
        symbols = [size for size in self.inputs[edge.source].shape or () if size in self.probe.time]
        if edge.affinity < 2 or not symbols:
            return bool(symbols)
        return any(self._grows(name, symbol) for symbol in symbols for name in self._outputs_unlike_inputs)

    @functools.cached_property
    def _outputs_unlike_inputs(self) -> list[str]:
        """The outputs whose name is like that of no input."""
        return [
            output
            for output in self.outputs
            if not any(Edge(name, output, POSSIBLE).affinity == 2 for name in self.inputs)
        ]

    def _grows(self, output: str, symbol: str) -> bool:
        longer = self.probe.longer(symbol)
        return longer is not None and longer.outputs[output].shape != self.flow.outputs[output].shape

    def _external(self, edge: Edge) -> StateVar:
        info, target = self.inputs[edge.source], self.flow.outputs[edge.output]
        assert info.dtype is not None
        sites = [site for site in self.flow.sites if _starts_from(site, edge.source)]
        producers = self.flow.labels_of(target.ids) if target.ids is not None else []
        sites = [site for site in sites if site.label in producers] or sites
        labels = list(dict.fromkeys(site.label for site in sites)) if edge.rank in (CARRIED, LAST_OUTPUT) else []
        if edge.source in self.declared:
            reason = f"declared: {argument('state', {edge.source: edge.output})}"
        else:
            reason = external_reason(edge, sites)
        node = ", ".join(labels or edge.joins or producers)
        shape = tuple(self.probe.dimensions.get(str(size), size) for size in info.shape or ())
        return StateVar(edge.source, EXTERNAL, edge.source, edge.output, node, shape, np.dtype(info.dtype), reason)

    def _internal(self, pairs: Mapping[str, Edge]) -> list[StateVar]:
        variables: list[StateVar] = []
        taken = {*self.inputs}
        for index, site in enumerate(self.flow.sites):
            if any(_starts_from(site, source) for source in pairs):
                continue
            if not self._is_internal(index, site, pairs):
                if self.is_complete or site.length != 1:
                    self.of_frame.append(f"{site.slot} of {site.operator} {site.label!r}")
                continue
            name = f"{site.label}.{site.slot}"
            while name in taken:
                name += "'"
            taken.add(name)
            shape, dtype = self.probe.carry_shape(index), np.dtype(site.final.dtype).newbyteorder("=")
            reason = internal_reason(site, self.flow)
            variables.append(StateVar(name, INTERNAL, None, None, site.label, shape, dtype, reason))
        return variables

    def _is_internal(self, index: int, site: Site, pairs: Mapping[str, Edge]) -> bool:
        """Return True if each call forgets a recurrence that starts from no state variable: it runs along time."""
        if site.length == 1:  # one step from an initial value that the caller determines forgets nothing
            return not (pairs or self.is_complete) and (site.initial is None or not site.initial.deps)
        if self.probe.time or pairs or self.is_complete:
            return self.probe.grows_with_time(index)
        return True  # nothing is open, and nothing carried: a whole recording of fixed length


def _starts_from(site: Site, source: str) -> bool:
    codes = site.initial.codes.get(source) if site.initial is not None else None
    return codes is not None and bool((codes >= STEP).any())
