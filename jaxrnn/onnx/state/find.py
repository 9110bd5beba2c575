"""The state of a model: the values that a caller carries from call to call, and the values that each call forgets."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from jaxrnn._files.messages import short_repr
from jaxrnn._jax.context import exact_types
from jaxrnn.answers import Answer, Unknown, any_of
from jaxrnn.errors import InputError, ModelError, StateError
from jaxrnn.jaxprs import flows
from jaxrnn.jaxprs.flows import DataFlow, Flow, Site
from jaxrnn.onnx.binding import BoundGraph
from jaxrnn.onnx.graph import spec_of
from jaxrnn.onnx.state.dresses import Dress, are_alike, find_dress, held_apart, joins_of, split
from jaxrnn.onnx.state.names import affinity, says_data
from jaxrnn.onnx.state.pairing import (
    BUFFER,
    CARRIED,
    CELL,
    GATED,
    GROWN,
    KEPT,
    LAST_OUTPUT,
    POSSIBLE,
    PRODUCT,
    SUSPECT,
    Edge,
    Pairing,
    find_edge,
)
from jaxrnn.onnx.state.sizes import Probe
from jaxrnn.onnx.stepfile import FUNCTION, METADATA, STEP, StepFile
from jaxrnn.steps.specs import ArraySpec, Dimension

EXTERNAL, INTERNAL = "external", "internal"


@short_repr
@dataclass(frozen=True)
class StateVar:
    """A state variable of a model.

    Attributes:
        name: the name of the input; for internal state the node and its carry, such as ``node.h``.
        kind: ``"external"`` if the caller passes the variable in and gets it back, ``"internal"`` if each call resets
            and forgets the variable.
        input: the graph input of the old value, or None if internal.
        output: the graph output of the updated value, or several outputs with commas between them that hold its parts;
            None if internal.
        node: the label of the node with this variable, or several labels separated by commas.
        shape: sizes, and names of open dimensions.
        dtype: the element type.
        reason: the evidence for this classification.
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
    """Return the name of the batch dimension (None if fixed), and the other open dimensions.

    All arrays of the state have the batch dimension. Scalars and vectors without open dimensions, such as a counter,
    may be shared by all streams.
    """
    sizes = [{size for size in variable.shape if isinstance(size, str)} for variable in variables]
    arrays = [each for each, variable in zip(sizes, variables, strict=True) if each or len(variable.shape) > 1]
    common = sorted(set.intersection(*arrays).difference(growing)) if arrays else []
    batch = common[0] if len(common) == 1 else None
    return batch, sorted(set[str]().union(*sizes) - {batch})


@dataclass(frozen=True)
class FoundState:
    """The state of a graph."""

    variables: tuple[StateVar, ...]  # the external variables in the order of the inputs, then the internal variables
    #: for each open dimension of the inputs the name of its class, or the constant that it must be. Nodes need
    #: all dimensions of a class to be equal.
    dimensions: Mapping[str, Dimension]
    growing: frozenset[str]  # the classes of dimensions along which a variable becomes longer with each step
    #: the carries of recurrences inside a step that are reset in each step, such as a GRU over frequency
    of_frame: tuple[str, ...] = ()
    undeclared: tuple[tuple[str, str], ...] = ()  # pairs that could be state, and that a declaration makes data
    #: for each state input whose next value leaves in another shape or type, how outputs hold the value
    dresses: Mapping[str, Dress] = dataclasses.field(default_factory=dict)


class StateSearch:
    """The search for the state variables of a graph. The equations between dimensions hold whatever the state is."""

    def __init__(
        self,
        program: BoundGraph,
        declared: Mapping[str, str] | None,
        static: Mapping[str, np.ndarray],
        first: Collection[str] = (),
    ):
        """Follow the graph; ``first`` are inputs with values in the file, most of which are weights in some files."""
        self.declared = dict(declared or {})
        self.is_complete, self.growing = declared is not None, set[str]()
        self.of_frame: list[str] = []
        self.undeclared: list[tuple[str, str]] = []
        infos = map(spec_of, program.block.inputs)
        self.inputs = {info.name: info for info in infos if info.name not in static}
        self.outputs = {info.name: info for info in map(spec_of, program.block.outputs)}
        self.candidates = [
            (name, updated)
            for name, source in self.inputs.items()
            for updated, target in self.outputs.items()
            if (self.declared or not self.is_complete) and agree(source, target)
        ]
        said = [pair for pair in self.candidates if affinity(*pair) == 2] if declared is None else []
        said += [pair for pair in self.declared.items() if pair in self.candidates]
        with exact_types():
            weights = set(first) - {name for name, _ in said}
            sources = [name for name in self._sources() if name not in weights]
            self.probe = Probe(program, list(self.inputs.values()), static, sources, said)
            self.candidates = [pair for pair in self.candidates if pair[0] not in weights or self._fit(*pair)]
            # An output may have a type and a shape of which the file says nothing, or something else.
            more = [pair for pair in itertools.product(self.inputs, self.outputs) if self._are_alike(*pair)]
            if self.declared or not self.is_complete:
                self.candidates = list(dict.fromkeys([*self.candidates, *more]))
                dressed = filter(self._may_be_dressed, self.inputs)
            else:
                dressed = iter(())
            followed = [*self._sources(), *dressed]
            if not {*followed} <= {*sources}:
                self.probe.follow_also(list(dict.fromkeys(followed)))
            self.dresses = self._declared_dresses()

    @property
    def flow(self) -> DataFlow:
        """Return the data flow of the graph."""
        return self.probe.flow

    def _sources(self) -> list[str]:
        return list(dict.fromkeys(source for source, _ in self.candidates))

    def _fit(self, name: str, updated: str) -> bool:
        """Return True if an output has the fixed sizes of an input, or if its sizes are unknown."""
        fixed, after = self.inputs[name].shape or (), self.flow.outputs[updated].shape
        return after is None or all(
            isinstance(size, str) or size == new for size, new in zip(fixed, after, strict=False)
        )

    def _are_alike(self, name: str, updated: str) -> bool:
        before, after = self.flow.inputs[name], self.flow.outputs[updated]
        return before.shape is not None and (before.shape, before.dtype) == (after.shape, after.dtype)

    def _may_be_dressed(self, name: str) -> bool:
        """Return True if a recurrence may start from an input, or an output may be the input in another dress."""
        before = self.flow.inputs[name]
        starts = (site.initial.deps for site in self.flow.sites if site.initial is not None)
        made = (after for after in self.flow.outputs.values() if name in after.deps)
        own = before.shape, before.dtype
        dressed = (are_alike(before, after) and own != (after.shape, after.dtype) for after in made)
        may_be = name in self.declared or any(name in deps for deps in starts) or any(dressed)
        return may_be and len(self.inputs) > 1 and before.shape is not None

    @functools.cached_property
    def _open_axes(self) -> dict[str, list[bool]]:
        """Return for each input and output which axes have a size that neither the file nor an equation fixes."""
        ranks = {name: len(after.shape or ()) for name, after in self.flow.outputs.items()}
        shapes = {name: self.outputs[name].shape or ("",) * rank for name, rank in ranks.items()}
        made = {name: [not isinstance(size, int) for size in shape] for name, shape in shapes.items()}
        return made | {name: self._open(name) for name in self.inputs}

    def _dress(self, name: str, updated: str) -> tuple[Edge, Dress | None] | None:
        """Return the evidence that outputs are the next value of an input in another shape or type, and the dress."""
        if updated in self.outputs and self.probe.are_equal(name, updated):
            return None
        return find_dress(self.flow, name, updated, self._open_axes)

    def _declared_dresses(self) -> dict[str, Dress]:
        """Return the dresses of declared state, or raise an InputError for outputs that cannot be the next value."""
        dresses: dict[str, Dress] = {}
        for name, updated in self.declared.items():
            found = self._dress(name, updated)
            if found is not None and found[1] is not None:
                dresses[name] = found[1]
            elif (name, updated) not in self.candidates and self.outputs[updated].dtype is not None:
                kind = "dtype" if self.inputs[name].dtype != self.outputs[updated].dtype else "shape"
                raise InputError(
                    f"state: {self.inputs[name]} and {self.outputs[updated]} differ in {kind}, and the flow of data "
                    "does not tell where the elements of the input return"
                )
        for one, other in itertools.combinations(self.declared, 2):
            shared = {*split(self.declared[one], self.outputs)} & {*split(self.declared[other], self.outputs)}
            if shared and not (one in dresses and other in dresses and held_apart(dresses[one], dresses[other])):
                raise InputError(f"`state={self.declared}`: one output cannot be the updated value of two inputs")
        return dresses

    def find(self) -> FoundState:
        """Return the state, or raise a StateError that asks for a declaration."""
        with exact_types():
            variables = self._find()
        growing, of_frame = frozenset(self.growing), tuple(self.of_frame)
        undeclared = tuple(self.undeclared)
        return FoundState(variables, self.probe.dimensions, growing, of_frame, undeclared, self.dresses)

    def paired(self, names: Collection[str], chosen: bool) -> set[str]:
        """Return the inputs among these, with values in the file, that are state or may be state.

        The flow proves or doubts a pair, or names say a pair. If the exporter chose which values are inputs, so that no
        input is a weight, weaker evidence is enough to look or to ask, and so is a next value in another shape or type.
        """
        with exact_types():
            edges = [edge for edge in self._edges() if edge.source in names and not edge.unchanged]
            dressed = {edge.source for edge, _ in self._dressed_pairs({})} if chosen else set()
        sure = [edge for edge in edges if edge.is_proved or edge.rank == SUSPECT or edge.is_named]
        weak = [edge for edge in edges if edge.evidence > 0 and (edge.rank != GATED or edge.is_nameless)]
        return {edge.source for edge in (*sure, *(weak if chosen else ()))} | dressed.intersection(names)

    def _edges(self) -> Iterator[Edge]:
        found = (find_edge(self.flow, *pair, self._open(pair[0]), self._is_window) for pair in self.candidates)
        return self._in_a_step(edge for edge in found if edge is not None)

    def _find(self) -> tuple[StateVar, ...]:
        declared = {name: Edge(name, updated, CARRIED) for name, updated in self.declared.items()}
        pairing = Pairing(self._edges(), self.flow, declared, self.inputs, self.outputs)
        if not self.is_complete:
            pairs = pairing.find()
            self._check_dressed(pairs, pairing)  # a closer question than one about other outputs
            pairing.check_complete()
            for lost in self.flow.lost:
                # If its carries start from state, the pair of a later call carries on what this node forgets.
                if lost.starts is None or not all(any(_comes_from(s, name) for name in pairs) for s in lost.starts):
                    raise self._unknown(pairing, lost.label, lost.why)
        else:
            pairs = pairing.take_proved()
            self.undeclared += [(edge.source, edge.output) for edge in pairing.left_out()]
            labels = dict.fromkeys(each.label for each in self.flow.lost)
            self.of_frame += [f"node {label!r}, which cannot be followed" for label in labels]
        for edge in (edge for name, edge in pairs.items() if name not in self.dresses):
            before, after = self.flow.inputs[edge.source].shape, self.flow.outputs[edge.output].shape
            symbols = self.inputs[edge.source].shape or ()
            if after is None:  # a size may grow, unless the file gives the sizes one name
                before, after = symbols, self.outputs[edge.output].shape or ("",) * len(symbols)
            for symbol, old, new in zip(symbols, before or (), after, strict=False):
                if old != new and isinstance(symbol, str):
                    self.growing.add(str(self.probe.dimensions[symbol]))
        external = [self._external(pairs[name]) for name in self.inputs if name in pairs]
        return (*external, *self._internal(pairs, pairing))

    def _check_dressed(self, pairs: Mapping[str, Edge], pairing: Pairing) -> None:
        """Ask about inputs whose next value leaves in another shape or type."""
        found = list(self._dressed_pairs(pairs))
        if not found:
            return
        listed = [
            f"{edge.source!r} -> {edge.output!r} ({self.inputs[edge.source]} leaves as {self._spelled(edge.output)})"
            for edge, _ in found
        ]
        chosen: list[tuple[Edge, Dress]] = []
        for edge, dress in sorted(found, key=lambda each: (-each[0].rank, -each[0].affinity)):
            if dress is not None and all(held_apart(dress, other) for _, other in chosen):
                chosen.append((edge, dress))
        how = "Export the model with new values in the shapes of the inputs, because their order is not known"
        if chosen:
            declaration = pairing.declaration(edge for edge, _ in chosen)
            how = f"Name all pairs that are state, for instance: {declaration}, and each step converts the new values"
        raise StateError(
            "the model's state may be incomplete: new values of inputs leave in another shape or type: "
            f"{', '.join(listed)}. {how}; `state={{}}` declares that there is no state"
        )

    def _spelled(self, updated: str) -> str:
        return " and ".join(str(self.outputs[name]) for name in split(updated, self.outputs))

    def _dressed_pairs(self, pairs: Mapping[str, Edge]) -> Iterator[tuple[Edge, Dress | None]]:
        """Yield the best evidence for each input that is not state as it is, but may be in another shape or type."""
        taken = {edge.output for edge in pairs.values()}
        for name in self.inputs:
            own = pairs.get(name)
            updates = [output for output in self.outputs if output not in taken] if own is None else [own.output]
            if own is None and len(parts := joins_of(self.flow, name, self._open_axes)) > 1 and taken.isdisjoint(parts):
                updates.append(", ".join(parts))
            ways = [way for updated in updates if (way := self._dress(name, updated)) is not None]
            ways = [way for way in ways if self._is_state(way[0], pairs)]
            if ways:
                yield max(ways, key=lambda way: (way[0].rank, way[0].affinity))

    def _is_state(self, edge: Edge, pairs: Mapping[str, Edge]) -> bool:
        """Return True if outputs in another dress may be the next value of an input: by flow or by names."""
        named = edge.affinity == 2 and not says_data(edge.source) and not edge.unchanged
        if named and (edge.source, edge.output) not in self.candidates and {*self.inputs} - {*pairs, edge.source}:
            return True
        if edge.rank in (CARRIED, LAST_OUTPUT):  # over an open number of frames, the first state may be data
            sites = [(n, site) for n, site in enumerate(self.flow.sites) if _goes_on(site, edge.source)]
            sites = [each for each in sites if not any(_starts_from(each[1], name) for name in pairs)]
            last = edge.rank == LAST_OUTPUT
            ends = [self._is_internal(*each, pairs) if last else self.probe.grows_with_time(each[0]) for each in sites]
            return any(isinstance(end, Unknown) or not end for end in ends)
        is_data = says_data(edge.source)
        names_all = any(each.affinity == 2 for each in pairs.values())  # a file that names a pair names all pairs
        if is_data and names_all:
            return False
        least = CELL if is_data or names_all else KEPT
        return any(each.rank >= least or each.counts for each in self._in_a_step([edge]))

    def _unknown(self, pairing: Pairing, label: str, why: str) -> StateError:
        """Return the error for a node that may have state which cannot be found."""
        related, bound = "`jaxrnn.load(path, dims={'T': '4*U'})`", "`jaxrnn.load(path, static={NAME: VALUE})`"
        return StateError(
            f"the state of node {label!r} cannot be found: {why}. Relate or fix open dimensions with {related}, bind "
            f"inputs on which shapes depend with {bound}, or {pairing.all_that_may_be()}"
        )

    def _open(self, source: str) -> list[bool]:
        return [isinstance(self.probe.dimensions.get(str(size)), str) for size in self.inputs[source].shape or ()]

    def _is_window(self, source: str, output: str, axis: int) -> Answer:
        return self.probe.is_window((self.inputs[source].shape or ())[axis], source, output, axis)

    def _in_a_step(self, edges: Iterable[Edge]) -> Iterator[Edge]:
        """Drop edges without evidence, because the input has a time axis, as data does.

        Models without state also move and combine data along time; only the final value of a recurrence counts. If
        an axis may or may not be time, arithmetic and movement do not decide either.
        """
        for edge in edges:
            over_time = edge.rank < CARRIED and self._over_time(edge)
            if isinstance(over_time, Unknown):
                yield edge if edge.affinity == 2 else dataclasses.replace(edge, rank=POSSIBLE, why="")
            elif not over_time:
                yield edge

    def _over_time(self, edge: Edge) -> Answer:
        """Return True if the input of a pair has a time axis.

        A step may also slide along other axes, such as the weights of an attention over a memory. If names
        suggest the pair, an axis is time only if an output with a name unlike the inputs' also grows along this axis.
        """
        sliding = {str(size): self.probe.slides_along(size) for size in self.inputs[edge.source].shape or ()}
        if edge.affinity < 2:
            return any_of(sliding.values())
        pairs = itertools.product(sliding.items(), self._outputs_unlike_inputs)
        return any_of(
            slides if isinstance(slides, Unknown) else slides and self.probe.reaches(size, name)
            for (size, slides), name in pairs
        )

    @functools.cached_property
    def _outputs_unlike_inputs(self) -> list[str]:
        """Return the outputs with names unlike the name of any input."""
        return [output for output in self.outputs if not any(affinity(name, output) == 2 for name in self.inputs)]

    def _external(self, edge: Edge) -> StateVar:
        info = self.inputs[edge.source]
        targets = [self.flow.outputs[name].ids for name in split(edge.output, self.outputs)]
        assert info.dtype is not None
        if info.shape is None:
            raise StateError(
                f"the input {info.name!r} is state, which {edge.output!r} updates, but the file does not declare its "
                "shape, so that jaxrnn cannot create the first state: write the shape of the input into the file, or "
                "fix the value of the input with `jaxrnn.load(path, static={NAME: VALUE})`"
            )
        sites = [site for site in self.flow.sites if _starts_from(site, edge.source)]
        producers = [label for ids in targets if ids is not None for label in self.flow.labels_of(ids)]
        sites = [site for site in sites if site.label in producers] or sites
        labels = list(dict.fromkeys(site.label for site in sites)) if edge.rank in (CARRIED, LAST_OUTPUT) else []
        if edge.source in self.declared:
            reason = f"declared: `state={ {edge.source: edge.output} }`"
            if edge.source in self.dresses:
                reason = f"{reason}; each step converts {self._spelled(edge.output)}"
        else:
            reason = external_reason(edge, sites)
        node = ", ".join(labels or edge.joins or producers)
        shape = tuple(self.probe.dimensions.get(str(size), size) for size in info.shape)
        return StateVar(edge.source, EXTERNAL, edge.source, edge.output, node, shape, np.dtype(info.dtype), reason)

    def _internal(self, pairs: Mapping[str, Edge], pairing: Pairing) -> list[StateVar]:
        variables: list[StateVar] = []
        taken = {*self.inputs}
        for index, site in enumerate(self.flow.sites):
            carry = f"{site.slot} of {site.operator} {site.label!r}"
            if any(_starts_from(site, source) for source in pairs):
                # A later call goes on from the final value, unless the recurrence runs backwards over a recording.
                if self.is_complete or site.forward or site.length == 1:
                    continue
                forgets = self.probe.grows_with_time(index)
                if not isinstance(forgets, Unknown) and not forgets:
                    continue
            else:
                if not self.is_complete:
                    self._check_returned(site, carry, pairs, pairing)
                forgets = self._is_internal(index, site, pairs)
            if isinstance(forgets, Unknown):
                if not self.is_complete:
                    why = f"it is not known whether {carry} runs along time: {forgets.why.rstrip('.')}"
                    raise self._unknown(pairing, site.label, why)
                forgets = False
            if not forgets:
                if self.is_complete or site.length != 1:
                    self.of_frame.append(carry)
                continue
            name = f"{site.label}.{site.slot}"
            while name in taken:
                name += "'"
            taken.add(name)
            shape, dtype = self.probe.carry_shape(index), np.dtype(site.final.dtype).newbyteorder("=")
            reason = internal_reason(site, self.flow)
            variables.append(StateVar(name, INTERNAL, None, None, site.label, shape, dtype, reason))
        return variables

    def _check_returned(self, site: Site, carry: str, pairs: Mapping[str, Edge], pairing: Pairing) -> None:
        """Ask about a carry that starts from an input and does not return, although it is likely state.

        Either a second carry of the node is state, or the recurrence takes a single frame.
        """
        source = next((name for name in self.inputs if name not in pairs and _starts_from(site, name)), None)
        if source is None:
            return
        beside = [other for other in self.flow.sites if other.label == site.label and other.slot != site.slot]
        of_state = dict.fromkeys(o.slot for o in beside if any(_starts_from(o, name) for name in pairs))
        alone = site.length == 1 and _goes_on(site, source)
        if not of_state and not (alone and {*self.inputs} - {*pairs, source}):
            return
        why = f"although {' and '.join(of_state)} of the same node is state" if of_state else "after a single frame"
        raise StateError(
            f"{carry} starts from the input {source!r}, and no output has its new value, {why}: export the "
            f"model with the new value, or say that {source!r} is data, with {pairing.declaration()}"
        )

    def _is_internal(self, index: int, site: Site, pairs: Mapping[str, Edge]) -> Answer:
        """Return True if each call forgets a recurrence that starts from no state variable: it runs along time."""
        if site.length == 1:  # one step from an initial value that the caller determines forgets nothing
            return not self.is_complete and (site.initial is None or not site.initial.deps)
        has_time = self.probe.has_time()
        if pairs or self.is_complete or isinstance(has_time, Unknown) or has_time:
            return self.probe.grows_with_time(index)
        # Without pairs and open time dimensions, the input is a recording of fixed length. But if the batch of the
        # recurrence has two open dimensions, one dimension is time, and the recurrence runs inside each frame.
        known, possible = self.probe.open_in_carry(index)
        if len(known) < 2 <= len(known | possible):
            return Unknown("it is not known which dimensions are its batch")
        return len(known) < 2


def _starts_from(site: Site, source: str) -> bool:
    return site.initial is not None and _comes_from(site.initial, source)


def _goes_on(site: Site, source: str) -> bool:
    """Return True if the final value of a recurrence is the next value of an input, and not a function of the value."""
    codes = site.final.codes.get(source)
    return codes is not None and bool((flows.grades(codes) == flows.UPDATED).any())


def _comes_from(value: Flow, source: str) -> bool:
    """Return True if elements of a value come from single elements of a source."""
    codes = value.codes.get(source)
    return codes is not None and bool((codes >= flows.STEP).any())


_EXTERNAL = {
    BUFFER: "{output!r} holds {input!r} moved along, with new elements at its end: a buffer of past frames",
    LAST_OUTPUT: "{output!r} is the last output of {sites}, which {start} from {input!r}",
    KEPT: "every element of {output!r} keeps a part of the same element of {input!r} and adds to it, as an average, a "
    "counter or the cell of an LSTM does",
    PRODUCT: "{output!r} has the shape of {input!r} and follows from it through one product with weights, as in a "
    "recurrent cell made of single operators",
    CELL: "{output!r} follows from {input!r} as the state of an LSTM made of single operators does",
    GROWN: "{output!r} is {input!r} with new elements joined to it: a cache that grows with every step",
    CARRIED: "{sites} {start} from {input!r} and {end} in {output!r}, at the same places",
}
_SAID = "{output!r} has the shape of {input!r} and a name that pairs with it by convention"


def external_reason(edge: Edge, sites: Sequence[Site]) -> str:
    """Explain why an output carries the updated value of an input; ``sites`` are the carries that start there."""
    start, end = ("starts", "ends") if len(sites) == 1 else ("start", "end")
    if edge.why:
        return f"{edge.output!r} has the shape of {edge.source!r} and {edge.why}"
    words = {"input": edge.source, "output": edge.output, "sites": _listed(sites), "start": start, "end": end}
    return _EXTERNAL.get(edge.rank, _SAID).format(**words)


def internal_reason(site: Site, flow: DataFlow) -> str:
    """Explain why each call forgets the carry of a recurrence."""
    deps = sorted(site.initial.deps) if site.initial is not None else []
    if site.initial is None:
        start = "has no initial value, so it starts from zeros"
    elif deps:
        start = f"starts from what is computed from {', '.join(map(repr, deps))}"
    else:
        value = site.initial.value
        start = f"starts from a constant{' that is not zero' if value is not None and np.any(value) else ''}"
    carry = f"{site.slot} of {site.operator} {site.label!r}"
    if not site.forward:
        return (
            f"{carry} {start} at every call and runs backwards from the last frame, so that no later call can go on "
            "from it"
        )
    ids = site.final.ids
    outputs = [
        name
        for name, output in flow.outputs.items()
        if ids is not None and output.ids is not None and bool(np.isin(output.ids, ids).any())
    ]
    end = f"becomes only the output {outputs[0]!r}, which no input takes back" if outputs else "becomes no output"
    return f"{carry} {start} at every call, and its final value {end}"


def _listed(sites: Sequence[Site]) -> str:
    """List the carries of recurrences: ``h and c of LSTM 'a', h of GRU 'b'``."""
    slots: dict[str, list[str]] = {}
    for site in sites:
        slots.setdefault(f"{site.operator} {site.label!r}", []).append(site.slot)
    parts = [f"{' and '.join(dict.fromkeys(names))} of {label}" for label, names in slots.items()]
    return ", ".join(parts if len(parts) <= 4 else [*parts[:3], f"and {len(parts) - 3} more"])


def agree(source: ArraySpec, target: ArraySpec) -> bool:
    """Return True if an output may be the updated value of an input: equal dtypes, and compatible dimensions."""
    if source.dtype is None or source.dtype != target.dtype:
        return False
    if source.shape is None or target.shape is None:
        return True
    return len(source.shape) == len(target.shape) and all(
        first == second or isinstance(first, str) or isinstance(second, str)
        for first, second in zip(source.shape, target.shape, strict=True)
    )


def check_pairs(inputs: Sequence[ArraySpec], outputs: Sequence[ArraySpec], state: Mapping[str, str]) -> dict[str, str]:
    """Check the pairs of state input and updated output that a caller declares."""
    ins, outs = {info.name: info for info in inputs}, {info.name: info for info in outputs}
    for name, updated in state.items():
        if name not in ins or not isinstance(updated, str) or not outs.keys() >= {*split(updated, outs)}:
            raise InputError(
                f"`state={ {name: updated} }`: pairs go from an input ({', '.join(ins)}) "
                f"to an output ({', '.join(outs)})"
            )
    return dict(state)


def are_plain(inputs: Sequence[ArraySpec], outputs: Sequence[ArraySpec], state: Mapping[str, str]) -> bool:
    """Return True if all declared pairs have equal dtypes and compatible shapes, each with an output of its own."""
    ins, outs = {info.name: info for info in inputs}, {info.name: info for info in outputs}
    pairs = ((ins[name], outs.get(updated)) for name, updated in state.items())
    known = all(out is not None and (out.dtype is None or agree(info, out)) for info, out in pairs)
    return known and len(set(state.values())) == len(state)


def read_facts(proto: onnx.ModelProto, graph: ir.Graph) -> StepFile | None:
    """Read the facts that jaxrnn wrote into the metadata of a file, or None."""
    texts = [entry.value for entry in proto.metadata_props if entry.key == METADATA]
    if not texts:
        return None
    try:
        facts = StepFile.from_json(json.loads(texts[-1]))
        inputs, outputs = ({str(v.name): spec_of(v) for v in values} for values in (graph.inputs, graph.outputs))
        spec = facts.spec
        expected: list[tuple[ArraySpec, str, dict[str, ArraySpec]]] = [
            *((each, facts.inputs[each.name], inputs) for each in spec.inputs),
            *((each, facts.outputs[each.name], outputs) for each in spec.outputs if each.name in facts.outputs),
            *((each, facts.state[each.name].input, inputs) for each in spec.state),
            *((each, str(facts.state[each.name].output), outputs) for each in spec.state if facts.kind == STEP),
        ]
        for each, name, there in expected:
            seen = there.get(name)
            if seen is None:
                raise ValueError(f"the graph has no {'input' if there is inputs else 'output'} {name!r}")
            if (seen.dtype, seen.shape) != (each.dtype, each.shape):
                raise ValueError(f"the graph has {seen}, which the metadata call {each}")
        for there in (inputs, outputs):
            names = [name for _, name, own in expected if own is there]
            if len({*names}) < len(names):
                raise ValueError("two arrays have one name")
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise ModelError(
            f"the metadata {METADATA!r}, which declare the state, are damaged or belong to a different graph: "
            f"{error}; export the file again, or delete the key from metadata_props, so that the state is found "
            "without the metadata"
        ) from error
    return facts


def stated_state(facts: StepFile, proto: onnx.ModelProto, static: Collection[str]) -> FoundState | None:
    """Return the state that a file declares, or None if the file is a function without state."""
    if facts.kind == FUNCTION:
        return None
    makers = {output: node.name for node in proto.graph.node for output in node.output}
    variables = [
        StateVar(
            names.input,
            EXTERNAL,
            names.input,
            names.output,
            makers.get(names.output, ""),
            each.shape or (),
            each.dtype,
            f"the file says so: {each.name!r} of the step that was exported, {each.kind}",
        )
        for each in facts.spec.state
        if (names := facts.state[each.name]).output is not None and names.input not in static and each.dtype is not None
    ]
    return FoundState(tuple(variables), {}, frozenset())
