"""One step of exported files in ONNX Runtime, beside the offline graph on one pulse.

`jaxrnn.export_onnx` writes the files from streamed networks, and from networks in steps, whose offline graph is the
step. Outputs of streams are compared with the offline model. Nodes are counted in both files, and after ONNX Runtime's
basic optimisation, which folds arithmetic on shapes.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx

import jaxrnn
from benchmarks.networks import OFFLINE, SPEECH, Entry, Offline, describe, load, offline_file, random_frames
from benchmarks.peers import Arrays, Network, engine_module, open_all, outputs_over
from benchmarks.plan import Cases, Plan, timed
from benchmarks.pulses import Engine, compared, pulse_of, recordings
from benchmarks.results import SUBJECT, Row
from benchmarks.step import COMPARED
from benchmarks.timing import Outputs
from jaxrnn.onnx.tensors import graphs_below

TITLE = "a step of an exported file in ONNX Runtime, NumPy in and out"
UNIT = "us"

#: The group of all rows.
GROUP = "exported"

OFFLINE_GRAPH = "offline graph"
IN_JAX = f"{SUBJECT}, in JAX"

#: Engines that run the exported file; all others are compared with the first.
READERS = {"ONNX Runtime": SUBJECT, "tract": "tract, same file", "OpenVINO": "OpenVINO, same file"}

#: Facts: nodes of both graphs, and their ratio in the files and after optimisation.
OFFLINE_NODES, STEP_NODES, RATIO, OPTIMISED = "nodes, offline", "nodes, step", "times the nodes", "optimised"


def cases(plan: Plan) -> Cases:
    """Return a case for each network."""
    found: Cases = {network.name: functools.partial(_stream_rows, plan, network) for network in OFFLINE}
    found |= {entry.file: functools.partial(_step_rows, plan, entry) for entry in SPEECH}
    return found


def exported(stepper: Any, params: Any, frame: Arrays, path: Path, **options: Any) -> Network:
    """Export a stepper, and describe the file for the engines.

    ``frame`` has the inputs of a step by the names in the stepper, which the file keeps. ``options`` are passed to
    `jaxrnn.export_onnx`.
    """
    written = jaxrnn.export_onnx(stepper, params, path, **options)
    assert written is not None, "a step has facts"
    facts = written.step.facts
    return Network(
        path=path,
        frame=frame,
        declared=tuple(value.name for value in onnx.load(path).graph.output),
        outputs=tuple(facts.outputs.values()),
        state=tuple((names.input, str(names.output)) for names in facts.state.values()),
        start=facts.first_inputs,
    )


def _stream_rows(plan: Plan, network: Offline) -> Iterator[Row]:
    with offline_file(network) as path, tempfile.TemporaryDirectory() as folder:
        model = jaxrnn.load(path)
        streamed = model.stream(pulse=network.pulse)
        frame = pulse_of(model, recordings(model, network.pulse), 0, network.pulse)
        outputs = tuple(info.name for info in model.outputs)
        offline = Network(path, frame, outputs, outputs)
        step = exported(streamed, model.params, frame, Path(folder) / "step.onnx")

        def results(runs: Mapping[str, Any]) -> dict[str, Outputs]:
            engines = {name: Engine(run, streamed.delay) for name, run in runs.items()}
            return compared(model, streamed.axes, network.pulse, engines)

        runner = jaxrnn.Runner(streamed, model.params)
        yield _row(plan, network.name, offline, step, runner, results)


def _step_rows(plan: Plan, entry: Entry) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        model = load(entry)
        offline = describe(entry, model)
        dims = {name: size for name, size in entry.dims.items() if name != model.spec.batch_symbol}
        step = exported(model, model.params, offline.frame, Path(folder) / "step.onnx", step=True, dims=dims)
        frames = [random_frames(model, entry.dims, seed=seed) for seed in range(COMPARED)]

        def results(runs: Mapping[str, Any]) -> dict[str, Outputs]:
            return {name: outputs_over(run, frames) for name, run in runs.items()}

        yield _row(plan, entry.file, offline, step, jaxrnn.Runner(model, model.params), results)


def _row(
    plan: Plan,
    name: str,
    offline: Network,
    step: Network,
    runner: jaxrnn.Runner,
    results: Callable[[Mapping[str, Any]], dict[str, Outputs]],
) -> Row:
    engine = engine_module("ONNX Runtime")
    opened, refused = open_all(step, plan.threads, tuple(READERS))
    runs = {READERS[reader]: run for reader, run in opened.items()} | {IN_JAX: runner}
    outputs = results(runs)
    calls = {contender: functools.partial(run, step.frame) for contender, run in runs.items()}
    calls[OFFLINE_GRAPH] = functools.partial(engine.open_network(offline, plan.threads), offline.frame)
    facts: dict[str, Any] = {OFFLINE_NODES: _nodes(onnx.load(offline.path)), STEP_NODES: _nodes(onnx.load(step.path))}
    facts[RATIO] = facts[STEP_NODES] / facts[OFFLINE_NODES]
    facts[OPTIMISED] = _nodes(engine.optimised(step.path)) / _nodes(engine.optimised(offline.path))
    refused = {READERS[reader]: why for reader, why in refused.items()}
    return timed(name, GROUP, calls, plan.effort(41), outputs=outputs, refused=refused, facts=facts)


def _nodes(model: onnx.ModelProto) -> int:
    """Return the number of nodes of a model, with subgraphs."""
    return sum(len(graph.node) for graph in graphs_below(model.graph))
