"""Comparison of an imported model with another engine, by output and by node."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from jaxrnn._files.messages import short_repr
from jaxrnn._jax.context import exact_types
from jaxrnn.errors import InputError, StaticValueError
from jaxrnn.model import Model
from jaxrnn.model.loading import load
from jaxrnn.onnx.evaluate import BoundNode
from jaxrnn.onnx.interface import bind_inputs, spec_of
from jaxrnn.onnx.reading import Source
from jaxrnn.verification.comparison import Comparison, compare
from jaxrnn.verification.peers import Peer, PeerError, candidates, complete_proto, expose, feed
from jaxrnn.verification.sampling import Sample, random_inputs, restore_types


@short_repr
@dataclass(frozen=True)
class Mismatch:
    """The first node in order of evaluation with a value that differs from the peer."""

    node: str
    operator: str
    comparison: Comparison


@short_repr
@dataclass(frozen=True)
class Case:
    """The comparison on one set of inputs.

    Attributes:
        dims: sizes of the symbolic dimensions of the inputs.
        random: names of the random inputs.
        outputs: comparison of each output.
        values: number of compared intermediate values.
        first: first node that differs; None if all nodes agree or nodes were not compared.
    """

    dims: dict[str, int]
    random: tuple[str, ...]
    outputs: tuple[Comparison, ...]
    values: int
    first: Mismatch | None

    @property
    def ok(self) -> bool:
        """True if all outputs and all compared intermediate values agree."""
        return self.first is None and all(output.ok for output in self.outputs)


@short_repr
@dataclass(frozen=True)
class Report:
    """The result of `verify`.

    Attributes:
        label: name of the model.
        engine: name and version of the peer.
        notes: errors of the engines that were tried before.
        atol: absolute tolerance; None for the defaults of `jaxrnn.verification.compare`.
        rtol: relative tolerance; None for the defaults.
        seed: seed of the random inputs.
        cases: a comparison for each set of inputs.
    """

    label: str
    engine: str
    notes: tuple[str, ...]
    atol: float | None
    rtol: float | None
    seed: int
    cases: tuple[Case, ...]

    @property
    def ok(self) -> bool:
        """True if all cases agree."""
        return all(case.ok for case in self.cases)


def verify(
    source: Source,
    inputs: Mapping[str, Any] | None = None,
    *,
    static: Mapping[str, Any] | None = None,
    dims: Mapping[str, int | Sequence[int]] | None = None,
    seed: int = 0,
    atol: float | None = None,
    rtol: float | None = None,
    engine: str = "auto",
    nodes: bool = False,
) -> Report:
    """Run a model in jaxrnn and in another engine on equal inputs, and compare the outputs.

    jaxrnn compiles the model, with matrix products at full precision and the element types of the file.

    Example::

        report = verify("denoiser.onnx", dims={"time": [1, 50]})
        assert report.ok, report

    Args:
        source: path, bytes or ``onnx.ModelProto``.
        inputs: arrays by name; missing inputs come from `jaxrnn.verification.random_inputs`.
        static: fixed inputs as in `jaxrnn.load`, also for the other engine.
        dims: sizes of symbolic dimensions, each a number or several numbers. Each combination is a case.
        seed: seed of the random inputs.
        atol: absolute tolerance in ``|here - peer| <= atol + rtol * |peer|``. The default is 1e-5, more for types with
            fewer digits than float32, and 0 for integers.
        rtol: relative tolerance. The default is 1e-4, with the same exceptions.
        engine: ``"ort"`` for ONNX Runtime, ``"reference"`` for the reference evaluator of ONNX, or ``"auto"``: ONNX
            Runtime if it is installed and supports the model, else the reference evaluator.
        nodes: also compare the values of all nodes of the outer graph, and report the first difference. For values with
            a largest magnitude above 1, ``atol`` is multiplied by that magnitude.

    Raises:
        ModelError: the model cannot be loaded.
        UnsupportedError: jaxrnn does not support an operator of the model.
        InputError: the inputs or dimensions do not fit the model.
        NodeError: a node fails on these inputs.
        PeerError: no engine supports the model.
        MissingPackageError: ``engine="ort"`` without ONNX Runtime.
    """
    openers = candidates(engine)
    model = load(source, static=static)
    proto = complete_proto(source)
    if nodes:
        expose(proto, [name for node in proto.graph.node for name in node.output if name])
    given = restore_types(model.inputs, inputs or {})
    samples = [random_inputs(model, given, dims=sizes, seed=seed) for sizes in _combinations(dims or {})]

    failures: list[str] = []
    for opener in openers:
        try:
            peer = opener(proto)
            cases = tuple(_check(model, peer, sample, static or {}, atol, rtol, nodes) for sample in samples)
        except PeerError as error:
            failures.append(str(error))
            failures.append(str(error))
            continue
        return Report(model.label, peer.name, tuple(failures), atol, rtol, seed, cases)
    with samples[0].naming_assumptions():
        raise PeerError(f"{model.label}: nothing to compare with: {'; '.join(failures)}")


def _combinations(dims: Mapping[str, int | Sequence[int]]) -> Iterator[dict[str, int]]:
    choices = [(size,) if isinstance(size, (int, np.integer)) else tuple(size) for size in dims.values()]
    for name, choice in zip(dims, choices, strict=True):
        if not choice:
            raise InputError(f"the dimension {name!r} needs at least one size")
    for sizes in itertools.product(*choices):
        yield dict(zip(dims, map(int, sizes), strict=True))


def _check(
    model: Model,
    peer: Peer,
    sample: Sample,
    static: Mapping[str, Any],
    atol: float | None,
    rtol: float | None,
    nodes: bool,
) -> Case:
    with jax.default_matmul_precision("highest"), sample.naming_assumptions():
        here = model(sample.inputs)
        values = _intermediates(model, sample.inputs) if nodes else {}
    infos = [spec_of(value) for value in model.program.block.inputs]
    with exact_types():
        bound = bind_inputs(infos, {**sample.inputs, **static})
    there = peer.run({info.name: feed(info, bound[info.name]) for info in infos})
    names = [info.name for info in model.outputs]
    outputs = tuple(compare(name, here[name], there[name], atol=atol, rtol=rtol) for name in names)
    shared = {name: pair for name, pair in values.items() if name in there}
    first = None
    for name, (node, value) in shared.items():
        comparison = compare(name, value, there[name], atol=atol, rtol=rtol, scaled=True)
        if not comparison.ok:
            first = Mismatch(node.name, str(node.operator), comparison)
            break
    return Case(sample.dims, sample.random, outputs, len(shared), first)


def _intermediates(model: Model, inputs: Mapping[str, Any]) -> dict[str, tuple[BoundNode, Any]]:
    """Compute `Model.intermediates` in one compiled function if possible, which is faster than node by node."""
    seen: dict[str, tuple[BoundNode, Any]] = {}

    def traced_values(params: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        seen.update(model.intermediates(params, inputs))
        traced = {name: value for name, (_, value) in seen.items()}
        return {name: x for name, x in traced.items() if any(isinstance(y, Tracer) for y in jax.tree.leaves(x))}

    with exact_types():
        bound = bind_inputs(model.inputs, inputs)
        try:
            values = jax.jit(traced_values)(model.params, bound)
        except StaticValueError:
            return model.intermediates(model.params, bound)
    return {name: (node, values.get(name, value)) for name, (node, value) in seen.items()}
