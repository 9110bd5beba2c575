"""The state of a model: what must be carried from one call to the next, and what one call forgets."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from jaxrnn.errors import StateError
from jaxrnn.guards import exact_types
from jaxrnn.onnx.interface import spec_of
from jaxrnn.onnx.program import Program
from jaxrnn.onnx.state import names
from jaxrnn.onnx.state.evidence import (
    BUFFER,
    CARRIED,
    CELL,
    GROWN,
    KEPT,
    LAST_OUTPUT,
    NAMED,
    Edge,
    find_edge,
    find_growth,
    may_be_state,
)
from jaxrnn.onnx.state.flows import Site
from jaxrnn.onnx.state.pairing import choose, incomplete
from jaxrnn.onnx.state.probe import Probe
from jaxrnn.onnx.state.provenance import STEP
from jaxrnn.specs import ArraySpec, Dimension

EXTERNAL, INTERNAL = "external", "internal"

_REASONS = {
    BUFFER: "{output!r} holds {input!r} moved along, with new elements at its end: a buffer of past frames",
    LAST_OUTPUT: "{output!r} is the last output of {sites}, which {start} from {input!r}",
    KEPT: "every element of {output!r} keeps a part of the same element of {input!r} and adds to it, as an average, a "
    "counter or the cell of an LSTM does",
    CELL: "{output!r} has the shape of {input!r} and follows from it through one product with weights, as in a "
    "recurrent cell made of single operators",
    GROWN: "{output!r} is {input!r} with new elements joined to it: a cache that grows with every step",
    NAMED: "{output!r} has the shape of {input!r} and is called like it: a value that every step replaces",
    CARRIED: "{sites} {start} from {input!r} and {end} in {output!r}, at the same places",
}


@dataclass(frozen=True)
class StateVar:
    """One state variable of a model.

    Attributes:
        name: what it is called: the input, or for internal state the node and what of it is carried (``node.h``).
        kind: ``"external"``: the caller passes it in and gets it back; ``"internal"``: every call starts it anew and
            forgets it at the end.
        input: the graph input that it enters by; None for internal state.
        output: the graph output that carries its updated value; None for internal state.
        node: the node that it belongs to; several are separated by commas.
        shape: ints and symbol names.
        dtype: its element type.
        reason: why it is what it is, in words.
    """

    name: str
    kind: str
    input: str | None
    output: str | None
    node: str
    shape: tuple[Dimension, ...]
    dtype: np.dtype
    reason: str


def open_sizes(variables: Sequence[StateVar], growing: frozenset[str] = frozenset()) -> tuple[str | None, list[str]]:
    """The name of the batch dimension, or None where the file froze it, and the other open dimensions.

    The batch is the one that every array of the state has; a counter or a position may be one for all streams.

    Args:
        variables: the state.
        growing: dimensions along which it becomes longer with every step.
    """
    sizes = [{size for size in variable.shape if isinstance(size, str)} for variable in variables]
    arrays = [own for own, variable in zip(sizes, variables, strict=True) if own or len(variable.shape) > 1]
    everywhere = sorted(set.intersection(*arrays) - growing) if arrays else []
    batch = everywhere[0] if len(everywhere) == 1 else None
    return batch, sorted(set[str]().union(*sizes) - {batch})


@dataclass(frozen=True)
class Findings:
    """What was found about the state of a graph.

    Attributes:
        variables: every state variable: the external ones in the order of the inputs, then the internal ones.
        dimensions: for every open dimension of the inputs, the first name of those that the nodes need to be equal to
            it, or its own.
        growing: the open dimensions along which a state becomes longer with every step.
    """

    variables: tuple[StateVar, ...]
    dimensions: Mapping[str, str]
    growing: frozenset[str]


def find_state(
    program: Program, declared: Mapping[str, str] | None = None, static: Mapping[str, np.ndarray] | None = None
) -> Findings:
    """Every state variable of a graph.

    Args:
        program: the bound graph.
        declared: pairs of an input and the output with its updated value that are certain. None of them says that the
            caller carries nothing.
        static: values of inputs that are bound.

    Raises:
        StateError: it is ambiguous which output carries which input's updated value, or a recurrent node's carries
            cannot be followed; says what to write.
    """
    with exact_types(), jax.ensure_compile_time_eval():
        finder = _Finder(program, declared, dict(static or {}))
        return Findings(finder.find(), finder.probe.dimensions, frozenset(finder.growing))


class _Finder:
    def __init__(self, program: Program, declared: Mapping[str, str] | None, static: dict[str, np.ndarray]):
        self.program, self.static, self.declared = program, static, dict(declared or {})
        self.asked, self.growing = declared is None, set[str]()
        infos = map(spec_of, program.block.inputs)
        self.inputs = {info.name: info for info in infos if info.name not in static}
        self.outputs = {info.name: info for info in map(spec_of, program.block.outputs)}
        self.candidates = [
            (given, updated)
            for given, source in self.inputs.items()
            for updated, target in self.outputs.items()
            if (self.asked or self.declared) and agree(source, target)
        ]
        self.probe = Probe(
            program, list(self.inputs.values()), static, list(dict.fromkeys(s for s, _ in self.candidates))
        )
        self.flow = self.probe.flow

    def find(self) -> tuple[StateVar, ...]:
        if self.flow.lost and not self.declared:
            label, why = self.flow.lost[0]
            raise StateError(
                f"the state of node {label!r} cannot be found, because its shapes depend on data ({why}). Bind the "
                "inputs that they depend on with jaxrnn.load(path, static={name: value}), or say which pairs are "
                "state: jaxrnn.load(path, state={input: output})"
            )
        taken = {given: Edge(given, updated, CARRIED) for given, updated in self.declared.items()}
        edges = [
            edge
            for given, updated in self.candidates
            if (edge := (find_edge if self._same_size(given, updated) else find_growth)(self.flow, given, updated))
            # What a caller leaves out is no state, unless a recurrence or a buffer says so.
            if self.asked or edge.rank >= BUFFER
        ]
        pairs = choose(edges, self.flow, taken, self._over_time, self.inputs)
        if self.asked:
            self._check_complete(pairs)
        for edge in pairs.values():
            self._note_growth(edge)
        external = [self._external(pairs[name]) for name in self.inputs if name in pairs]
        return (*external, *self._internal(pairs))

    def _same_size(self, given: str, updated: str) -> bool:
        shape = self.flow.inputs[given].shape
        return shape is not None and shape == self.flow.outputs[updated].shape

    def _note_growth(self, edge: Edge) -> None:
        before, after = self.flow.inputs[edge.source].shape, self.flow.outputs[edge.output].shape
        for symbol, old, new in zip(self.inputs[edge.source].shape or (), before or (), after or (), strict=False):
            if old != new and isinstance(symbol, str):
                self.growing.add(self.probe.dimensions[symbol])

    def _check_complete(self, pairs: Mapping[str, Edge]) -> None:
        """Refuse to leave an input and an output aside that may be state as well, where names do not say.

        Raises:
            StateError: there are such; lists them.
        """
        inputs = [name for name in self.inputs if name not in pairs]
        outputs = [name for name in self.outputs if name not in {edge.output for edge in pairs.values()}]
        if len(inputs) < 2:
            return  # some data must go in
        candidates = [
            edge
            for given, updated in self.candidates
            if given in inputs and updated in outputs and self._same_size(given, updated)
            if names.says_state(given) or names.says_nothing(given)
            if may_be_state(self.flow, edge := Edge(given, updated, NAMED))
        ]
        if not all(map(self._over_time, candidates)):
            raise incomplete(candidates, list(pairs.values()))

    def _over_time(self, edge: Edge) -> bool:
        """Whether the input of a pair runs along time, as data does.

        A step may slide along another axis, such as the weights of an attention over a memory. Where names make a pair,
        that is no time unless an output which no name makes the update of an input grows along it, too.
        """
        symbols = [size for size in self.inputs[edge.source].shape or () if size in self.probe.time]
        if edge.affinity < 2 or not symbols:
            return bool(symbols)
        return any(self._grows(name, symbol) for symbol in symbols for name in self._unlike_inputs)

    @functools.cached_property
    def _unlike_inputs(self) -> list[str]:
        """The outputs that are called like no input."""
        return [out for out in self.outputs if not any(Edge(name, out, NAMED).affinity == 2 for name in self.inputs)]

    def _grows(self, output: str, symbol: str) -> bool:
        longer = self.probe.longer(symbol)
        return longer is not None and longer.outputs[output].shape != self.flow.outputs[output].shape

    def _external(self, edge: Edge) -> StateVar:
        info, target = self.inputs[edge.source], self.flow.outputs[edge.output]
        assert info.dtype is not None
        sites = [site for site in self.flow.sites if _starts_from(site, edge.source)]
        made = self.flow.labels_of(target.ids) if target.ids is not None else []
        sites = [site for site in sites if site.label in made] or sites
        labels = list(dict.fromkeys(site.label for site in sites)) if edge.rank in (CARRIED, LAST_OUTPUT) else []
        if edge.source in self.declared:
            reason = f"declared: state={{{edge.source!r}: {edge.output!r}}}"
        else:
            start, end = ("starts", "ends") if len(sites) == 1 else ("start", "end")
            words = {"input": edge.source, "output": edge.output, "sites": _spelled(sites), "start": start, "end": end}
            reason = _REASONS[edge.rank].format(**words)
        node = ", ".join(labels or edge.joins or made)
        shape = tuple(self.probe.dimensions.get(str(size), size) for size in info.shape or ())
        return StateVar(edge.source, EXTERNAL, edge.source, edge.output, node, shape, np.dtype(info.dtype), reason)

    def _internal(self, pairs: Mapping[str, Edge]) -> list[StateVar]:
        found, names = [], set()
        for index, site in enumerate(self.flow.sites):
            why = self._why_internal(index, site, pairs)
            if why is None:
                continue
            name = f"{site.label}.{site.slot}"
            while name in names or name in self.inputs:
                name += "'"
            names.add(name)
            shape = self.probe.carry_shape(index)
            found.append(
                StateVar(
                    name, INTERNAL, None, None, site.label, shape, np.dtype(site.final.dtype).newbyteorder("="), why
                )
            )
        return found

    def _why_internal(self, index: int, site: Site, pairs: Mapping[str, Edge]) -> str | None:
        """Why every call forgets what a recurrence carries, or None where it does not."""
        if any(_starts_from(site, source) for source in pairs):
            return None
        if not site.forward and pairs and not self.probe.time:
            return None  # a step whose state is in its inputs runs backwards along another axis than time
        deps = sorted(site.initial.deps) if site.initial is not None else []
        if site.length != 1 and not self._may_be_time(index, site, pairs):
            return None
        if deps and site.length == 1:
            return None  # the caller says where it starts, and it takes one step
        if site.initial is None:
            start = "starts from zeros, having no initial value"
        elif deps:
            start = f"starts from what is computed from {', '.join(map(repr, deps))}"
        else:
            start = "starts from a constant"
        if not site.forward:
            return (
                f"{site.slot} of {site.operator} {site.label!r} {start} at every call and runs backwards from the last "
                "frame, so that no later call can go on from it"
            )
        ids = site.final.ids
        seen = [
            name
            for name, flow in self.flow.outputs.items()
            if ids is not None and flow.ids is not None and bool(np.isin(flow.ids, ids).any())
        ]
        end = f"becomes only the output {seen[0]!r}, which no input takes back" if seen else "becomes no output"
        return f"{site.slot} of {site.operator} {site.label!r} {start} at every call, and its final value {end}"

    def _may_be_time(self, index: int, site: Site, pairs: Mapping[str, Edge]) -> bool:
        """Whether the axis that a recurrence runs along can be time: it grows with what is open, if anything does."""
        if self.probe.time:
            return self.probe.grows_with_time(index)
        steps = {other.length for other in self.flow.sites if any(_starts_from(other, source) for source in pairs)}
        return not steps or site.length in steps


def agree(source: ArraySpec, target: ArraySpec) -> bool:
    """Whether an output may be the updated value of an input: one dtype, and no dimension that differs for sure."""
    if source.dtype is None or source.dtype != target.dtype:
        return False
    if source.shape is None or target.shape is None:
        return True
    return len(source.shape) == len(target.shape) and all(
        first == second or isinstance(first, str) or isinstance(second, str)
        for first, second in zip(source.shape, target.shape, strict=True)
    )


def _spelled(sites: Sequence[Site]) -> str:
    """The carries of some recurrences: ``h and c of LSTM 'a', h of GRU 'b'``."""
    slots: dict[str, list[str]] = {}
    for site in sites:
        slots.setdefault(f"{site.operator} {site.label!r}", []).append(site.slot)
    shown = [f"{' and '.join(dict.fromkeys(names))} of {where}" for where, names in slots.items()]
    return ", ".join(shown if len(shown) <= 4 else [*shown[:3], f"and {len(shown) - 3} more"])


def _starts_from(site: Site, source: str) -> bool:
    codes = site.initial.codes.get(source) if site.initial is not None else None
    return codes is not None and bool((codes >= STEP).any())
