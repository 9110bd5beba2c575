"""Comparison of an imported model with a second engine and with recorded arrays, by output and by node."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import numpy as np
import onnx

from jaxrnn._files.messages import near, short_repr
from jaxrnn._jax.context import exact_types
from jaxrnn.comparison import Check, Comparison, Verdict, agree, compare
from jaxrnn.errors import InputError
from jaxrnn.model import Model
from jaxrnn.model.loading import load
from jaxrnn.onnx.graph import bind_inputs, spec_of
from jaxrnn.onnx.reading import Source
from jaxrnn.verification.arbiter import Arbiter
from jaxrnn.verification.inside import intermediates, precisions
from jaxrnn.verification.peers import OpenPeer, Peer, PeerError, candidates, complete_proto, expose, feed, first_to_run
from jaxrnn.verification.sampling import Sample, restore_types, verifiable_inputs


@short_repr
@dataclass(frozen=True)
class Mismatch:
    """The first node in order of evaluation with a value that differs from the peer."""

    node: str
    operator: str
    comparison: Comparison


@short_repr
@dataclass(frozen=True)
class Recorded:
    """The comparison of a recorded array with the value that both engines compute from the file.

    Attributes:
        name: name of the output, or of the value inside the graph.
        node: label of the node that computes the value, or None if no node computes a graph output.
        operator: operator of that node.
        here: jaxrnn against the recording.
        peer: the other engine against the recording.
    """

    name: str
    node: str | None
    operator: str | None
    here: Comparison
    peer: Comparison


@short_repr
@dataclass(frozen=True)
class Case(Check):
    """The comparison of a model on a set of inputs.

    Attributes:
        dims: sizes of the symbolic dimensions of the inputs.
        outputs: comparison of each output.
        drawn: for each random input, the way in which it is drawn: ``"standard normal"``, ``"positive"``, ``"between 0
            and 1"`` or ``"above 1"`` for floats, and a range such as ``"0 to 6"`` for integers.
        values: number of intermediate values with a compared element.
        first: first node that differs; None if all nodes agree or nodes were not compared.
        recorded: comparison of each recorded array with both engines, in order of evaluation.
    """

    drawn: Mapping[str, str] = field(default_factory=dict)
    values: int = 0
    first: Mismatch | None = None
    recorded: tuple[Recorded, ...] = ()

    @property
    def ok(self) -> bool:
        """True if all outputs, all compared intermediate values and all recorded arrays agree."""
        return self.engines_agree and self._here_agrees

    @property
    def differs(self) -> bool:
        """True if an output, an intermediate value or a recorded array differs."""
        return super().differs or self.first is not None or any(each.here.differs for each in self.recorded)

    @property
    def _here_agrees(self) -> bool:
        return not self.recorded or agree(each.here for each in self.recorded)

    @property
    def engines_agree(self) -> bool:
        """True if both engines agree on all outputs and all compared intermediate values."""
        return self.first is None and agree(self.outputs)

    @property
    def fault(self) -> str | None:
        """The part that differs from the recording: ``"file"``, ``"jaxrnn"`` or ``"engine"``.

        ``"file"`` if both engines agree with each other and differ from the recording. ``"unknown"`` if all three
        differ; None without a recording, and if both engines agree with the recording.
        """
        here, peer = (not any(getattr(each, side).differs for each in self.recorded) for side in ("here", "peer"))
        if here and peer:
            return None
        return "engine" if here else "jaxrnn" if peer else "file" if self.engines_agree else "unknown"

    def to_json(self) -> dict[str, Any]:
        """Return the comparison in JSON's types."""
        return {**super().to_json(), "fault": self.fault}

    @property
    def first_recorded(self) -> Recorded | None:
        """The first recorded array in order of evaluation that differs from the value of jaxrnn."""
        return next((each for each in self.recorded if each.here.differs), None)


@short_repr
@dataclass(frozen=True)
class Report(Verdict):
    """The result of `verify`.

    Attributes:
        label: name of the model.
        engine: name and version of the peer.
        notes: errors of the engines that were tried before.
        cases: a comparison for each set of inputs.
        atol: absolute tolerance, or None if the defaults of `jaxrnn.verification.compare` apply.
        rtol: relative tolerance, or None if the defaults apply.
        seed: seed of the random inputs.
    """

    cases: tuple[Case, ...]
    atol: float | None
    rtol: float | None
    seed: int

    @property
    def ok(self) -> bool:
        """True if no case differs, and each output and recorded array was compared in at least one case."""
        return super().ok and all(case._here_agrees for case in self.cases)

    @property
    def conclusion(self) -> str | None:
        """A description of the part that differs from the recording, file or engine, and of the place, or None."""
        case = next((case for case in self.cases if case.fault is not None), None)
        return None if case is None else _conclusion(case, self.engine)

    def to_json(self) -> dict[str, Any]:
        """Return the report in JSON's types."""
        return {**super().to_json(), "conclusion": self.conclusion}


def verify(
    source: Source,
    inputs: Mapping[str, Any] | None = None,
    *,
    static: Mapping[str, Any] | None = None,
    dims: Mapping[str, int | Sequence[int]] | None = None,
    seed: int = 0,
    atol: float | None = None,
    rtol: float | None = None,
    engine: Literal["auto", "ort", "reference"] = "auto",
    nodes: bool = False,
    outputs: Mapping[str, Any] | None = None,
) -> Report:
    """Run a model in jaxrnn and in a second engine on equal inputs, and compare the outputs.

    With `outputs`, also compare with arrays that the framework of the model recorded for these inputs. If the engines
    agree with each other and differ from the recording, the file is at fault: the exporter wrote a different function.

    jaxrnn compiles the model, with matrix products at full precision and the element types of the file. Tolerances
    follow the float type with the fewest digits on the way to an output. An output without a finite element is a
    failure, because no element was compared.

    If floats differ by more than the tolerance, the same graph in float64 decides, in jaxrnn and in a second engine. If
    these two agree, the difference is rounding, and the output passes if jaxrnn is within the tolerance of float64, or
    at most twice as far from float64 as the peer and within 1 % of the largest value. The reason gives both distances.
    In all other cases the output differs; `Comparison.arbiter` is the nearer engine, or ``"unknown"``.

    Example::

        report = verify("denoiser.onnx", dims={"time": [1, 50]})
        assert report.ok, report

    Args:
        source: path, bytes or ``onnx.ModelProto``.
        inputs: a dict of arrays; missing inputs are random, as in `jaxrnn.verification.random_inputs`. Floats are
            standard normal if the outputs are then finite, and otherwise positive, between 0 and 1, or above 1.
        static: fixed inputs as in `jaxrnn.load`, for both engines.
        dims: sizes of symbolic dimensions, each a number or several numbers. Each combination is a case.
        seed: seed of the random inputs.
        atol: absolute tolerance in ``|here - peer| <= atol + rtol * |peer|``. The default is 1e-5, more for values that
            are computed in a type with fewer digits than float32, and 0 for integers.
        rtol: relative tolerance. The default is 1e-4, with the same exceptions.
        engine: ``"ort"`` for ONNX Runtime, ``"reference"`` for the reference evaluator of ONNX, or ``"auto"``: ONNX
            Runtime if installed and able to run the model, else the reference evaluator.
        nodes: also compare the values of all nodes of the outer graph, and report the first difference. For values with
            a largest magnitude above 1, ``atol`` is multiplied by that magnitude.
        outputs: a dict of recorded arrays, with names of outputs or of values inside the graph as keys. An array with
            the name of an input is used as that input. All inputs must be given.

    Raises:
        ModelError: the model cannot be loaded.
        UnsupportedError: jaxrnn does not support an operator of the model.
        InputError: the inputs, the dimensions or the recorded outputs do not fit the model.
        NodeError: a node fails on these inputs.
        PeerError: no engine supports the model.
        MissingPackageError: ``engine="ort"`` without ONNX Runtime.
    """
    openers = candidates(engine)
    model = load(source, static=static)
    proto = complete_proto(source)
    own = {info.name for info in model.inputs}
    given = {name: array for name, array in (outputs or {}).items() if name in own} | dict(inputs or {})
    given = restore_types(model.inputs, given)
    recorded = {name: array for name, array in (outputs or {}).items() if name not in own}
    recorded = restore_types(model.outputs, recorded)
    with jax.default_matmul_precision("highest"):
        samples = [verifiable_inputs(model, given, dims=sizes, seed=seed) for sizes in _combinations(dims or {})]
    inside = [name for node in proto.graph.node for name in node.output if name]
    if outputs is not None:
        _check_recording(model, recorded, samples, inside)
    expose(proto, [name for name in inside if nodes or name in recorded])

    def use(opener: OpenPeer) -> tuple[str, tuple[Case, ...]]:
        peer = opener(proto)
        options = static or {}, atol, rtol, nodes, recorded
        return peer.name, tuple(_check(model, proto, peer, sample, *options) for sample in samples)

    try:
        (name, cases), notes = first_to_run(openers, use, f"{model.label}: nothing to compare with")
    except PeerError:
        with samples[0].naming_assumptions():
            raise
    return Report(model.label, name, notes, cases, atol, rtol, seed)


def _combinations(dims: Mapping[str, int | Sequence[int]]) -> Iterator[dict[str, int]]:
    choices = [tuple(size) if isinstance(size, Iterable) else (size,) for size in dims.values()]
    for name, choice in zip(dims, choices, strict=True):
        if not choice:
            raise InputError(f"the dimension {name!r} needs at least one size")
    for sizes in itertools.product(*choices):
        yield dict(zip(dims, sizes, strict=True))


def _check(
    model: Model,
    proto: onnx.ModelProto,
    peer: Peer,
    sample: Sample,
    static: Mapping[str, Any],
    atol: float | None,
    rtol: float | None,
    nodes: bool,
    recorded: Mapping[str, Any],
) -> Case:
    names = [info.name for info in model.outputs]
    with jax.default_matmul_precision("highest"), sample.naming_assumptions():
        here = model(sample.inputs)
        values = intermediates(model, sample.inputs) if nodes or not {*recorded} <= {*names} else {}
        narrow = precisions(model, sample.inputs)
    computed = {name: value for name, (_, value) in values.items()} | here
    _check_shapes({name: computed[name] for name in recorded}, recorded)
    infos = [spec_of(value) for value in model.program.block.inputs]
    with exact_types():
        bound = bind_inputs(infos, {**sample.inputs, **static})
    there = peer.run({info.name: feed(info, bound[info.name]) for info in infos})

    arbiter = Arbiter(lambda: proto, sample.inputs, static)

    def compared(name: str, value: Any, scaled: bool = False) -> Comparison:
        limits = {"atol": atol, "rtol": rtol, "scaled": scaled, "precision": narrow.get(name)}
        return arbiter.judge(compare(name, value, there[name], **limits), value, there[name], **limits)

    outputs = tuple(compared(name, here[name]) for name in names)
    first, count = None, 0
    for name, (node, value) in values.items() if nodes else ():
        if name not in there:
            continue
        found = compared(name, value, scaled=True)
        count += found.compared > 0
        if found.differs and first is None:
            first = Mismatch(node.name, str(node.operator), found)
    makers = _makers(model)
    order = [*(name for name in makers if name in recorded), *(name for name in recorded if name not in makers)]
    against = []
    for name in order:
        limits = {"atol": atol, "rtol": rtol, "precision": narrow.get(name)}
        sides = (compare(name, side[name], recorded[name], **limits) for side in (computed, there))
        against.append(Recorded(name, *makers.get(name, (None, None)), *sides))
    options = {"drawn": sample.drawn, "values": count, "first": first, "recorded": tuple(against)}
    return Case(sample.dims, outputs, peer.name, **options)


def _makers(model: Model) -> dict[str, tuple[str, str]]:
    """Return the label and the operator of the node that computes each value of the outer graph, in order."""
    nodes = model.program.block.nodes
    return {str(value.name): (node.name, str(node.operator)) for node in nodes for value in node.outputs if value.name}


def _check_recording(
    model: Model, recorded: Mapping[str, Any], samples: Sequence[Sample], inside: Sequence[str]
) -> None:
    """Refuse a recording without arrays, with unknown names, or without the inputs of the recording."""
    expected = ", ".join(map(str, model.outputs))
    makers = _makers(model)
    known = [*(info.name for info in model.outputs), *(name for name in inside if name in makers)]
    if unknown := [name for name in recorded if name not in known]:
        listed = ", ".join(f"{name!r}{near(name, known)}" for name in unknown)
        raise InputError(
            f"the recorded outputs hold {listed}, but the file has no such output and no such value inside the graph; "
            f"the outputs are: {expected}"
        )
    if not recorded:
        raise InputError(f"the recorded outputs hold no output of the file; the outputs are: {expected}")
    missing = [info for info in model.inputs if info.name in samples[0].random]
    if missing:
        raise InputError(
            f"recorded outputs need the inputs that they were computed from: give {', '.join(map(str, missing))}"
        )
    if len(samples) > 1:
        raise InputError("recorded outputs belong to one set of inputs: give each dimension one size, or none")


def _check_shapes(computed: Mapping[str, Any], recorded: Mapping[str, Any]) -> None:
    """Refuse recorded arrays with other element types or shapes than the values of the file."""
    wrong = []
    for name, value in computed.items():
        if isinstance(value, tuple) or value is None:
            continue
        found, expected = (
            f"{getattr(each.dtype, 'name', each.dtype)}{list(each.shape)}"
            for each in (np.asarray(recorded[name]), np.asarray(value))
        )
        if found != expected and np.asarray(value).dtype.kind not in "OUS":
            wrong.append(f"{name!r} is {found}, and the file computes {expected}")
    if wrong:
        raise InputError(
            f"the recorded outputs do not fit the file: {'; '.join(wrong)}. Record the outputs for the given inputs, "
            "in the types of the file. If the inputs are right, the exporter wrote another function into the file"
        )


def _conclusion(case: Case, engine: str) -> str:
    """Name the part that differs from the recording, with the outputs and the first node that differ."""
    side = "peer" if case.fault == "engine" else "here"
    wrong = ((each.name, getattr(each, side)) for each in case.recorded)
    listed = ", ".join(f"{name!r} ({_error(found)})" for name, found in wrong if found.differs)
    if case.fault == "engine":
        return f"jaxrnn agrees with the recording, and {engine} differs in {listed}."
    if case.fault == "jaxrnn":
        return (
            f"{engine} agrees with the recording, and jaxrnn differs in {listed}. This is an error of jaxrnn; please "
            f"report it with the file.{_place(case)}"
        )
    if case.fault == "unknown":
        return f"jaxrnn, {engine} and the recording all differ, jaxrnn from the recording in {listed}.{_place(case)}"
    return (
        f"The file is at fault: jaxrnn and {engine} agree with each other, and differ from the recording in {listed}. "
        "Either the exporter wrote another function, or the recording belongs to other weights or inputs."
        f"{_place(case)}"
    )


def _error(comparison: Comparison) -> str:
    by = "" if comparison.max_abs is None else f", by up to {comparison.max_abs:.3g}"
    return f"{comparison.reason}{by}"


def _place(case: Case) -> str:
    """Name the first recorded value that differs, and the recorded value before, which agrees."""
    first = case.first_recorded
    outputs = {output.name for output in case.outputs}
    if first is None:
        return ""
    if all(each.name in outputs for each in case.recorded):
        return (
            " To find the node, also record values inside the module under the names that these have in the file; "
            "'jaxrnn inspect --html' shows the names."
        )
    before = case.recorded[: case.recorded.index(first)]
    after = f" {before[-1].name!r} of node {before[-1].node!r} still agrees." if before else ""
    return f" The first recorded value that differs is {first.name!r} of node {first.node!r} ({first.operator}).{after}"
