"""Which engine runs which exported file: ``python -m benchmarks engines``.

Steps, streams and flushes are exported from models of several families. Each file runs once in each engine, on inputs
and a state from the middle of a recording, and all outputs are compared with jaxrnn's own evaluation of the file. Every
engine runs in a separate process, so that a crash costs one cell.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import jaxrnn
from benchmarks import multiplications
from benchmarks.engines_child import decoded, encoded
from benchmarks.machine import versions
from benchmarks.networks import path_of
from benchmarks.peers import ENGINES as PACKAGES
from benchmarks.peers import is_installed
from benchmarks.report import markdown
from benchmarks.results import ENGINES as ENGINES_FILE
from jaxrnn._files.writing import in_place_of
from jaxrnn.comparison import agree, compare
from jaxrnn.errors import JaxrnnError
from jaxrnn.export import ExportedGraph
from jaxrnn.onnx.stepfile import FLUSH, StepFile
from tools.browser import programs

#: The largest error of an output, as a share of its largest number or of 1.
AGREEMENT = 1e-4
#: The same for quantised files: engines round a value between two integers to either.
QUANTISED = 0.05
#: Steps before the step that is compared, and pulses as multiples of the smallest.
BEFORE, PULSES = 3, 4

#: Engines by name: a module of `benchmarks.peers` for `engines_child`, or the name for the script in JavaScript.
PYTHON = {"ONNX Runtime": "ONNX Runtime", "OpenVINO": "OpenVINO", "tract": "tract", "tract, --target tract": "tract"}
NODE, WEB, LITE = "onnxruntime-node", "onnxruntime-web", multiplications.LITE
GPU = "onnxruntime-web, WebGPU"
#: Environment variables with the places of engines that are not Python packages of this environment.
PLACES = {NODE: "JAXRNN_ONNXRUNTIME_NODE", WEB: "JAXRNN_ONNXRUNTIME_WEB", GPU: "JAXRNN_ONNXRUNTIME_WEB"}
NEEDED = {
    NODE: "the folder of the package, after 'npm install onnxruntime-node'",
    WEB: "package/dist of 'npm pack onnxruntime-web'",
    GPU: "package/dist of 'npm pack onnxruntime-web'",
}
#: The packages that write LiteRT files and run them.
LITE_PACKAGES = ("litert_converter", "ai_edge_litert")
ENGINES = ("ONNX Runtime", NODE, WEB, GPU, "OpenVINO", "tract", "tract, --target tract", LITE)
TARGET = "tract, --target tract"


@dataclass(frozen=True)
class Source:
    """A model to export: a stream along ``symbol`` with its flush, or without a symbol a step."""

    name: str
    family: str
    symbol: str | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    static: Mapping[str, Any] = field(default_factory=dict)


def _of(family: str, symbol: str | None, *names: str, folder: str = "") -> list[Source]:
    return [Source(folder + name, family, symbol) for name in names]


STEPS, NETS, LAYERS, QUANTISED_NETS, WINDOWS = (
    "models in steps",
    "networks",
    "recurrent layers",
    "quantised",
    "windows, means, attention",
)
SOURCES = (
    *_of(STEPS, None, "dtln_1", "dtln_2", "gtcrn", "predictor_net"),
    Source("silero_vad_16k_op15", STEPS, None, {"sequence": 576}, {"sr": np.asarray(16000)}),
    *_of(STEPS, None, "lstm_given_state_script", "step_many_symbols_script", "step_packed_script", folder="exports/"),
    *_of(STEPS, None, "step_ring_script", "step_wkv_script", "step_packed_dynamo", folder="exports/"),
    Source("exports/step_attend_script", STEPS, None, {"S": 20}),
    Source("speech/keras_state_input", STEPS, None, {"unk__8282": 1, "unk__8283": 1}),
    Source("speech/keras_two_inputs_state", STEPS, None, {"unk__167": 1, "unk__168": 1}),
    *_of(NETS, "S", "filter_net", "keyword_net", "dual_path_net", "wave_net"),
    *_of(NETS, "T", "rnnoise_script", "asr_stride_script", "frequency_gru_script", folder="speech/"),
    Source("speech/keras_frequency_bigru", NETS, "unk__954", {"unk__953": 1}),
    Source("speech/tworates_dynamo", NETS, "U"),
    Source("exports/gru_no_state_script", LAYERS, "T", {"b": 1}),
    Source("exports/lstm_no_state_script", LAYERS, "T", {"b": 1}),
    Source("exports/rnn_no_state_script", LAYERS, "T", {"b": 1}),
    Source("exports/conv_gru_script", LAYERS, "T"),
    Source("exports/keras_lstm", LAYERS, "unk__45"),
    Source("exports/loop_smooth", LAYERS, "T"),
    *_of(QUANTISED_NETS, "T", "asr_stride_qdq_script", "crn_gru_qdq_script", "crn_lstm_qop_script", folder="speech/"),
    *_of(WINDOWS, "T", "band_script", "causal_tcn_chomp_script", "pcen_script", "unet_script", folder="speech/"),
    *_of(WINDOWS, "T", "cumulative_norm_script", folder="exports/"),
)


@dataclass
class Cell:
    """The result of a file in an engine: the largest error, or the reason for a refusal."""

    error: float | None = None
    agrees: bool = False
    refused: str | None = None


@dataclass
class Table:
    """All results.

    ``files`` are family, nodes and size by file, ``cells`` results by file and engine, and ``absent`` the engines that
    are not installed, with the packages or variables that an engine needs. ``steps`` are the costs of steps
    (`benchmarks.multiplications`).
    """

    environment: dict[str, str]
    absent: dict[str, str]
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    cells: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)


def table(only: Sequence[str] = ()) -> Table:
    """Export the models that match a text of ``only``, run all files in all engines, and return the results."""
    commands, absent = _commands()
    found = Table(_environment(commands), absent)
    with tempfile.TemporaryDirectory() as folder:
        cases: dict[str, Case] = {}
        for source in SOURCES:
            if not only or any(each in source.name for each in only):
                cases |= {case.name: case for case in _cases(source, Path(folder))}
        for case in cases.values():
            found.files[case.name] = {"family": case.family, "nodes": case.nodes, "bytes": case.bytes}
            found.cells[case.name] = {}
        for engine, command in commands.items():
            for name, cell in run_all(engine, command, cases, Path(folder)).items():
                found.cells[name][engine] = vars(cell)
    engines = [engine for engine in ("ONNX Runtime", LITE) if engine in commands]
    found.steps = multiplications.table(path_of(SOURCES[0].name).parent, only, engines)
    return found


@dataclass(frozen=True)
class Case:
    """A file with inputs and expected outputs: by name, the array, the axis of frames and the number of frames.

    ``paths`` are the files by target, or the reason why a target has no file.
    """

    name: str
    family: str
    paths: Mapping[str | None, Path | str]
    signature: str
    feeds: Mapping[str, np.ndarray]
    expected: Mapping[str, np.ndarray]
    frames: Mapping[str, tuple[int, int]]
    nodes: int
    bytes: int


def _cases(source: Source, folder: Path) -> Iterator[Case]:
    """Export a model for all engines and for tract, and run some steps before the inputs that are compared."""
    model = jaxrnn.load(path_of(source.name), static=source.static)
    short, rng = source.name.rpartition("/")[2], np.random.default_rng(0)
    exported = {}
    for target in (None, "tract"):
        end = f"{short}.{target or 'all'}.onnx"
        options: dict[str, Any] = {"target": target, "label": short}
        if source.symbol is None:
            options |= {"step": True, "dims": source.dims}
            stepper: Any = model
        else:
            smallest = model.stream(source.symbol, dims=source.dims or None)
            stepper = model.stream(source.symbol, dims=source.dims or None, pulse=PULSES * smallest.pulse)
            options["flush"] = folder / f"flush.{end}"
        exported[target] = jaxrnn.export_onnx(stepper, model.params, folder / f"step.{end}", **options)
    lite = _lite(stepper, model.params, folder / f"{short}.tflite", short, source.dims if stepper is model else None)
    graphs = exported[None]
    facts = graphs.step.facts
    step = jaxrnn.load(graphs.step.path)
    state = {name: np.asarray(array) for name, array in facts.first_inputs.items()}
    for _ in range(BEFORE):
        outputs = step.apply(step.params, {**_random(facts, rng), **state})
        state = {each.input: np.asarray(outputs[str(each.output)]) for each in facts.state.values()}
    paths = {LITE: lite, **{target: each.step.path for target, each in exported.items()}}
    yield _case(f"{short}, step", source.family, graphs.step, paths, {**_random(facts, rng), **state})
    if graphs.flush is not None:
        flush = graphs.flush.facts
        feeds = {**state}
        if flush.valid is not None:
            feeds |= {**_random(flush, rng), flush.valid: np.asarray(facts.spec.pulse - facts.spec.multiple, np.int32)}
        paths = {LITE: lite, **{target: each.flush.path for target, each in exported.items()}}
        yield _case(f"{short}, flush", source.family, graphs.flush, paths, feeds)


def _lite(stepper: Any, params: Any, path: Path, label: str, dims: Mapping[str, int] | None) -> Path | str:
    """Export for LiteRT; return the file, or the reason of a refusal."""
    if not all(map(importlib.util.find_spec, LITE_PACKAGES)):
        return "not installed"
    try:
        return jaxrnn.export.export_litert(stepper, params, path, dims=dims, label=label).step.path
    except JaxrnnError as error:
        return str(error)


def _random(facts: StepFile, rng: np.random.Generator) -> dict[str, np.ndarray]:
    arrays = {}
    for each in facts.spec.inputs:
        values = 0.3 * rng.standard_normal(each.sizes) if np.dtype(each.dtype).kind == "f" else np.ones(each.sizes)
        arrays[facts.inputs[each.name]] = values.astype(each.dtype)
    return arrays


def _case(
    name: str,
    family: str,
    graph: ExportedGraph,
    paths: Mapping[str | None, Path | str],
    feeds: Mapping[str, np.ndarray],
) -> Case:
    names = [each.name for each in onnx.load(graph.path).graph.input]
    feeds = {key: np.asarray(feeds[key]) for key in names}
    model = jaxrnn.load(graph.path)
    expected = {key: np.asarray(value) for key, value in model.apply(model.params, feeds).items()}
    facts, frames = graph.facts, {}
    if facts.kind == FLUSH:
        for each in facts.spec.outputs:
            if each.name in facts.counts:
                axis, count = each.time_axis or 0, int(expected[facts.counts[each.name]].max())
                frames[facts.outputs[each.name]] = (axis, count)
    return Case(name, family, paths, facts.kind, feeds, expected, frames, graph.nodes, graph.path.stat().st_size)


def run_all(engine: str, command: Sequence[str], cases: Mapping[str, Case], folder: Path) -> dict[str, Cell]:
    """Run all files in child processes. If a process ends early, a new process runs the remaining files."""
    place = folder / engine.replace(" ", "_").replace(",", "")
    place.mkdir()
    waiting, cells = dict(enumerate(cases)), {}
    for index, name in list(waiting.items()):
        case = cases[name]
        path = case.paths[{TARGET: "tract", LITE: LITE}.get(engine)]
        if isinstance(path, str):
            cells[waiting.pop(index)] = Cell(refused=path)
            continue
        entry = {
            "path": str(path),
            "signature": case.signature,
            "feeds": encoded(case.feeds),
            "outputs": list(case.expected),
        }
        (place / f"{index}.json").write_text(json.dumps(entry))
    while waiting:
        process = subprocess.run(
            [*command, str(place), *map(str, waiting)], capture_output=True, text=True, check=False, timeout=3600
        )
        for index in [index for index in waiting if (place / f"{index}.out.json").exists()]:
            answer = json.loads((place / f"{index}.out.json").read_text())
            cells[waiting[index]] = compared(cases[waiting[index]], answer)
            del waiting[index]
        if waiting:
            index = next(iter(waiting))
            last = (process.stderr.strip().splitlines() or ["without a message"])[-1]
            cells[waiting.pop(index)] = Cell(refused=f"the process ended with {process.returncode}: {last[:160]}")
    return cells


def compared(case: Case, answer: Mapping[str, Any]) -> Cell:
    """Compare the outputs of an engine, up to the frames that exist."""
    if "refused" in answer:
        return Cell(refused=answer["refused"])
    limit = QUANTISED if case.family == QUANTISED_NETS else AGREEMENT
    comparisons, found = [], decoded(answer["outputs"])
    for key, expected in case.expected.items():
        value = found[key]
        if value.size != expected.size:
            return Cell(refused=f"{key!r} has the shape {list(value.shape)}, not {list(expected.shape)}")
        value = value.reshape(expected.shape)
        if key in case.frames:
            axis, count = case.frames[key]
            part = (slice(None),) * axis + (slice(count),)
            value, expected = value[part], expected[part]
        wide = (each.astype(np.float64) for each in (value, expected))
        if expected.size:  # a flush may have no frame of an output
            comparisons.append(compare(key, *wide, atol=limit, rtol=0.0, scaled=True))
    errors = [(each.max_abs or 0.0) / max(1.0, each.scale or 0.0) for each in comparisons]
    return Cell(error=min(max(errors, default=0.0), 1e300), agrees=agree(comparisons))


def _commands() -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return the command of each installed engine, and hints to install missing engines."""
    here, commands, absent = Path(__file__).parent, {}, {}
    for engine in ENGINES:
        if engine in PYTHON:
            if is_installed(PYTHON[engine]):
                commands[engine] = [sys.executable, "-m", "benchmarks.engines_child", PYTHON[engine]]
            else:
                absent[engine] = f"pip install {PACKAGES[PYTHON[engine]][1]}"
        elif engine == LITE:
            if all(map(importlib.util.find_spec, LITE_PACKAGES)):
                commands[engine] = [sys.executable, "-m", "benchmarks.engines_child", LITE]
            else:
                absent[engine] = "pip install 'jaxrnn[litert]'"
        elif (place := os.environ.get(PLACES[engine])) is None:
            absent[engine] = f"set {PLACES[engine]} to {NEEDED[engine]}"
        elif engine == GPU:
            if programs() is None or importlib.util.find_spec("selenium") is None:
                absent[engine] = "apt-get install chromium chromium-driver; pip install selenium"
            else:
                script = os.path.join(place, "ort.webgpu.min.js")
                commands[engine] = [sys.executable, "-m", "benchmarks.engines_browser", script]
        else:
            script = os.path.join(place, "ort.wasm.min.js") if engine == WEB else place
            commands[engine] = ["node", str(here / "engines.js"), script]
    return commands, absent


def _environment(commands: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the date and the versions of all engines."""
    known = {"date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"), **versions()}
    for engine in (NODE, WEB):
        for folder in Path(commands[engine][-1], "x").parents if engine in commands else ():
            if (folder / "package.json").is_file():
                known[engine] = json.loads((folder / "package.json").read_text())["version"]
                break
    if GPU in commands and (found := programs()) is not None:
        said = subprocess.run([found[0], "--version"], capture_output=True, text=True, check=True).stdout
        known["Chromium"] = said.split()[1]
    if LITE in commands:
        known |= {name: importlib.metadata.version(name) for name in ("litert-converter", "ai-edge-litert")}
    return known


def save(found: Table, folder: Path, page: Path) -> None:
    """Write the results as JSON, and the page; each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in ((folder / ENGINES_FILE, json.dumps(vars(found), indent=1) + "\n"), (page, written(found))):
        with in_place_of(path) as temporary:
            temporary.write_text(text, encoding="utf-8")


def read(path: Path) -> Table:
    """Read a file that `save` wrote."""
    return Table(**json.loads(path.read_text(encoding="utf-8")))


HEAD = """# Engines

This table says which engine runs which exported file. Files are steps, streams of {pulses} times the smallest pulse,
and flushes of {models} models. Each file ran once in each engine, with inputs and a state from the middle of a
recording, and every output was compared with jaxrnn. A cell is the number of files with equal outputs.

"""

NOTES = """
`python -m benchmarks engines` makes this page and [engines.json](../benchmarks/results/engines.json), which has the
largest error of each file in each engine. Outputs are equal if the error is at most {agreement:g} of the largest
value, or {quantised:g} for quantised files, where engines round a value between two integers to either. onnxruntime-web
ran as WebAssembly in node.js, and with WebGPU in Chromium, where SwiftShader computes on the processor; nodes without a
kernel for WebGPU ran as WebAssembly. For LiteRT, the same steps and streams are exported as LiteRT files.

"""

COSTS = """
## Costs of a step

For each network, the smallest step or pulse: the multiplications of the equation, and for each engine the
multiplications of the file relative to these, the size of the file without the flush, the median time of a step called
from Python, and the largest error over recordings. Files differ by more than a few percent in
multiplications if a layer has rows of zeros, or if attention sees a band of all frames.

"""

REFUSED = """
## Refused files, and files with other outputs

"""

#: What to do about refused files and other outputs, by engine.
REMEDIES = {
    GPU: """With 6, 9, 42 or 129 input channels and a multiple of 4 output channels, convolutions of more than one tap
are wrong, also alone in a graph; with 1 to 5, 7, 8, 12, 13 and 16 input channels these convolutions are right. gtcrn,
silero_vad and rnnoise have such layers, and [a report](https://github.com/microsoft/onnxruntime/issues/29651) describes
the same. Use WebAssembly (`executionProviders: ['wasm']`), as the page of `--example` does, or compare all outputs with
WebAssembly before you ship a file for WebGPU.""",
    "OpenVINO": """OpenVINO refuses the offline file of this quantised network, too. Export the float network, and
quantise the step (`--quantize dynamic` or `static`).""",
    "tract": """Export with `--target tract`: layers of a computed number of frames are then written frame by frame, and
activations that tract ignores in a node as operators.""",
    TARGET: "tract stops in this GRU over frequency with any pulse. Use another engine.",
}


def written(found: Table) -> str:
    """Return the page."""
    engines = [engine for engine in ENGINES if engine not in found.absent]
    families = dict.fromkeys(each["family"] for each in found.files.values())
    rows = []
    for family in (*families, "all"):
        files = [name for name, each in found.files.items() if family in (each["family"], "all")]
        counts = [sum(found.cells[name][engine]["agrees"] for name in files) for engine in engines]
        rows.append([family, *map(str, (len(files), *counts))])
    environment = found.environment
    models = len({name.rpartition(", ")[0] for name in found.files})
    text = HEAD.format(pulses=PULSES, models=models) + markdown(["files", "number", *engines], rows) + "\n"
    text += "\nVersions: " + ", ".join(f"{name} {each}" for name, each in environment.items() if name != "date") + ".\n"
    text += NOTES.format(agreement=AGREEMENT, quantised=QUANTISED).rstrip() + "\n"
    text += COSTS + multiplications.written(found.steps) + "\n" if found.steps else ""
    text += REFUSED
    pieces = []
    for engine in engines:
        reasons: dict[str, list[str]] = {}
        for name, cells in found.cells.items():
            cell = cells[engine]
            if not cell["agrees"]:
                known = cell["refused"] is None
                reason = "other outputs" if known else f"`{_plain(cell['refused'])}`"
                reasons.setdefault(reason, []).append(f"{name} (error {cell['error']:.1g})" if known else name)
        if reasons:
            lines = [f"- {reason}: {'; '.join(names)}" for reason, names in reasons.items()]
            remedy = f"\n{REMEDIES[engine]}\n" if engine in REMEDIES else ""
            pieces.append(f"**{engine}**\n\n" + "\n".join(lines) + "\n" + remedy)
    return text + "\n".join(pieces)


def _plain(reason: str) -> str:
    """Return the cause of a refusal, without names and numbers of nodes."""
    cause = reason.rpartition("Caused by: ")[2].replace("`", "'")
    return re.sub(r"_\d+\b|\"[^\"]*\"|'[^']*'", "...", cause)[:120].strip()
