"""Records of the behaviour of jaxrnn, to check that a refactoring does not change behaviour.

``record`` writes a folder of text files. The files list state, streams, exported ONNX files and facts of compiled files
for each network, and also the output of commands, the help and the public names. ``compare`` lists the files that
differ; ``diff -r`` shows all differences. Records leave out times, paths and machine code. Networks are read from the
folder ``JAXRNN_MODELS``. The networks of the package, the benchmarks and the examples are always recorded.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import difflib
import enum
import functools
import hashlib
import importlib
import inspect
import json
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import jax
import numpy as np
import onnx
from click.testing import CliRunner
from jax.extend.core import jaxprs_in_params

import jaxrnn

ROOT = Path(__file__).parent.parent
MODELS = Path(os.environ.get("JAXRNN_MODELS", ROOT.parent / "shared" / "models"))

#: The arguments of `load` and the sizes of open dimensions of a step, by the name of the file.
ARGUMENTS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "silero_vad": ({"static": {"sr": 16000}}, {"input_dim_1": 576}),
    "silero_vad_16k_op15": ({}, {"sequence": 576}),
}
#: Networks that are not recorded, with the reason.
LEFT_OUT: dict[str, str] = {}
#: The time limit of an entry in seconds.
LIMIT = 240
#: The size of open dimensions in the trace of a whole graph.
FRAMES = 16

#: Command lines on networks of `MODELS`; ``DEMO`` is the packaged network.
COMMANDS = {
    "inspect_dtln_1": "inspect MODELS/dtln_1.onnx --params",
    "inspect_gtcrn": "inspect MODELS/gtcrn.onnx",
    "inspect_filter_net": "inspect MODELS/filter_net.onnx",
    "inspect_keyword_net": "inspect MODELS/keyword_net.onnx",
    "inspect_silero_vad": "inspect MODELS/silero_vad.onnx",
    "inspect_bidir": "inspect MODELS/speech/bidir_script.onnx",
    "inspect_two_inputs": "inspect MODELS/speech/keras_two_inputs.onnx",
    "inspect_demo": "inspect DEMO",
    "inspect_missing_file": "inspect MODELS/no_such_file.onnx",
    "run_dtln_1": "run MODELS/dtln_1.onnx --random --json",
    "run_keyword_net": "run MODELS/keyword_net.onnx --random --dim S=20 --json",
    "run_missing_input": "run MODELS/dtln_1.onnx --json",
    "verify_dtln_1": "verify MODELS/dtln_1.onnx --json",
    "verify_demo_nodes": "verify DEMO --nodes --json",
    "verify_keyword_net": "verify MODELS/keyword_net.onnx --dim S=20,31 --json",
    "stream_dtln_1": "stream MODELS/dtln_1.onnx --random --steps 8 --json",
    "stream_keyword_net": "stream MODELS/keyword_net.onnx --symbol S --random --frames 40 --verify --json",
    "stream_bidir": "stream MODELS/speech/bidir_script.onnx --symbol T --random --json",
    "stream_no_state": "stream MODELS/keyword_net.onnx --random --json",
    "profile_demo": "profile DEMO --json",
    "profile_keyword_net": "profile MODELS/keyword_net.onnx --symbol S --by region --json",
    "compile_demo": "compile DEMO -o OUT/demo.jaxrnn --dim time=1 --json",
    "export_keyword_net": "export MODELS/keyword_net.onnx --symbol S -o OUT/out.onnx --flush OUT/flush.onnx --json",
    "export_demo": "export DEMO -o OUT/demo.onnx --dim time=1 --json",
    "demo": "demo --seconds 1 --json",
}

Texts = dict[str, str]


# -- networks


def network(name: str, path: str) -> Texts:
    """Record the network in a file: state, operations of the whole graph, steps, streams, exports, compiled files."""
    arguments, sizes = ARGUMENTS.get(Path(path).stem, ({}, {}))
    return _model(lambda: jaxrnn.load(path, **arguments), sizes)


def packaged(name: str) -> Texts:
    """Record the packaged network."""
    return _model(lambda: jaxrnn.load(_demo()), {})


def built(name: str) -> Texts:
    """Record a network that the benchmarks build."""
    from benchmarks.built import NETWORKS

    return _model(lambda: jaxrnn.load(NETWORKS[name]()), {})


def example(name: str) -> Texts:
    """Record the function that an example streams."""
    from flax import nnx

    from tools.examples import import_example

    module = import_example(name)
    params = None
    if name == "stream_function":
        streamed = jaxrnn.stream(module.features, np.zeros(8192, np.float32), axes=0, pulse=256)
    elif name == "stream_flax_module":
        apply, params = module.functional(module.Detector(rngs=nnx.Rngs(0)))
        frames = np.zeros((101, module.FEATURES), np.float32)
        streamed = jaxrnn.stream(apply, frames, axes=0, params=params, pulse=4)
    else:
        denoiser = module.Denoiser(rngs=nnx.Rngs(0))
        streamed = jaxrnn.stream(denoiser, np.zeros((1, 64), np.float32), axes=1, pulse=4)
    texts: Texts = {}
    _streamed(texts, "stream", streamed, params)
    return texts


EXAMPLES = ("stream_function", "stream_flax_module", "stream_state_space_model")


def _model(load: Callable[[], jaxrnn.Model], sizes: Mapping[str, int]) -> Texts:
    """Record a model."""
    texts: Texts = {}
    try:
        model = load()
    except jaxrnn.JaxrnnError as error:
        return {"load.txt": _refusal(error)}
    facts = [
        repr(model),
        "",
        *(f"input {each}" for each in model.inputs),
        *(f"output {each}" for each in model.outputs),
    ]
    texts["model.txt"] = _lines([*facts, *_attempt(lambda: _operations(model))])
    texts["state.txt"] = _lines(_attempt(lambda: _fields(model.state or ())))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        options = {"dims": dict(sizes)} if sizes else {}
        spec = _attempt(lambda: _value(model.spec))
        export = _attempt(lambda: _exported(model, model.params, out, step=True, **options))
        texts["step.txt"] = _lines(["-- spec", *spec, "-- first state", *_attempt(lambda: _state(model, sizes))])
        texts["step.onnx.txt"] = _lines(export)
        texts["step.compiled.txt"] = _lines(_attempt(lambda: _compiled(model, None, out, **options)))
    for symbol in dict.fromkeys(size for info in model.inputs for size in info.shape or () if isinstance(size, str)):
        try:
            streamed = model.stream(symbol)
        except Exception as error:
            texts[f"stream_{symbol}.txt"] = _refusal(error)
            continue
        _streamed(texts, f"stream_{symbol}", streamed, model.params)
    return texts


def _streamed(texts: Texts, name: str, streamed: jaxrnn.Streamed, params: Any) -> None:
    """Record a streamed function."""
    names = ("pulse", "multiple", "smallest_pulse", "delay", "rate", "axes", "look_ahead", "receptive_field", "inputs")
    facts = [f"{each}: {getattr(streamed, each)}" for each in names]
    table = [repr(streamed), "", streamed.table(), "", *facts, "", *_fields(streamed.state or ())]
    texts[f"{name}.txt"] = _lines([*table, *_attempt(lambda: _step_operations(streamed, params))])
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        flush = {"flush": out / "flush.onnx"}
        texts[f"{name}.onnx.txt"] = _lines(_attempt(lambda: _exported(streamed, params, out, **flush)))
        texts[f"{name}.compiled.txt"] = _lines(_attempt(lambda: _compiled(streamed, params, out)))


def _operations(model: jaxrnn.Model) -> list[str]:
    """Count the primitives in the jaxpr of the whole graph, with all open dimensions of size `FRAMES`."""
    sized = {each.name: tuple(s if isinstance(s, int) else FRAMES for s in each.shape or ()) for each in model.inputs}
    inputs = {each.name: jax.ShapeDtypeStruct(sized[each.name], each.dtype) for each in model.inputs}
    return _primitives(jax.make_jaxpr(model.apply)(model.params, inputs))


def _step_operations(streamed: jaxrnn.Streamed, params: Any) -> list[str]:
    state = streamed.init(params=params)
    shapes = jax.tree.map(lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype), streamed.inputs)
    return _primitives(jax.make_jaxpr(streamed.step)(params, state, shapes))


def _primitives(closed: Any) -> list[str]:
    """Count the primitives of a jaxpr and of the jaxprs in it."""
    counts: collections.Counter[str] = collections.Counter()
    open_jaxprs = [closed.jaxpr]
    while open_jaxprs:
        for equation in open_jaxprs.pop().eqns:
            counts[equation.primitive.name] += 1
            open_jaxprs += jaxprs_in_params(equation.params)
    return ["", *(f"{name}: {counts[name]}" for name in sorted(counts))]


def _state(model: jaxrnn.Model, sizes: Mapping[str, int]) -> list[str]:
    state = model.init(dims=dict(sizes)) if sizes else model.init()
    return [f"{name}: {_array(value)}" for name, value in sorted(state.items())]


# -- files


def _exported(stepper: Any, params: Any, folder: Path, **options: Any) -> list[str]:
    """Export a step, and describe all files that the export writes."""
    exported = jaxrnn.export_onnx(stepper, params, folder / "out.onnx", **options)
    lines = [_without_paths(repr(exported), folder)]
    for path in sorted(folder.iterdir()):
        if path.suffix == ".npz":
            with np.load(path) as arrays:
                lines += ["", f"== {path.name}", *(f"{name}: {_array(arrays[name])}" for name in sorted(arrays))]
        else:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            lines += ["", f"== {path.name} {digest}", *_graph_file(path)]
        path.unlink()
    return lines


def _graph_file(path: Path) -> Iterator[str]:
    """List an ONNX file, a node a line."""
    model = onnx.load(path)
    yield f"ir {model.ir_version}, {[(each.domain, each.version) for each in model.opset_import]}"
    yield f"producer {model.producer_name}, doc {model.doc_string!r}"
    for entry in model.metadata_props:
        yield f"metadata {entry.key}: {entry.value}"
    yield from _graph(model.graph, "")
    for function in model.functions:
        yield f"function {function.domain}.{function.name} {[*function.input]} -> {[*function.output]}"
        yield from _nodes(function.node, "  ")


def _graph(graph: onnx.GraphProto, indent: str) -> Iterator[str]:
    yield f"{indent}graph {graph.name}, doc {graph.doc_string!r}"
    for kind, infos in (("input", graph.input), ("output", graph.output)):
        for info in infos:
            yield f"{indent}{kind} {info.name}: {_type(info.type)}, doc {info.doc_string!r}"
    for tensor in graph.initializer:
        yield f"{indent}initializer {tensor.name}: {_array(onnx.numpy_helper.to_array(tensor))}"
    yield from _nodes(graph.node, indent)


def _nodes(nodes: Iterable[onnx.NodeProto], indent: str) -> Iterator[str]:
    for node in nodes:
        plain = {each.name: _attribute(each) for each in node.attribute if not each.HasField("g")}
        operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        yield f"{indent}{', '.join(node.output)} = {operator}({', '.join(node.input)}) {plain or ''} # {node.name}"
        for each in node.attribute:
            if each.HasField("g"):
                yield f"{indent}  {each.name}:"
                yield from _graph(each.g, indent + "    ")


def _type(kind: onnx.TypeProto) -> str:
    if not kind.HasField("tensor_type"):
        return " ".join(str(kind).split())
    sizes = [each.dim_param or each.dim_value for each in kind.tensor_type.shape.dim]
    return f"{onnx.helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type)}{sizes}"


def _attribute(attribute: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    return _array(onnx.numpy_helper.to_array(value)) if isinstance(value, onnx.TensorProto) else value


def _compiled(stepper: Any, params: Any, folder: Path, **options: Any) -> list[str]:
    """Compile a step and show the manifest and the arrays of the file, without programs and machine code."""
    path = folder / "out.jaxrnn"
    jaxrnn.save_compiled(stepper, path, params=params, **options)
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        arrays = [name for name in archive.namelist() if name.endswith(".npy")]
        digests = [f"{name}: {hashlib.sha256(archive.read(name)).hexdigest()}" for name in sorted(arrays)]
    path.unlink()
    manifest.pop("native", None)
    return [*json.dumps(manifest, indent=1).splitlines(), *digests]


# -- commands and names


def command(name: str) -> Texts:
    """Record the output of a command line; for `inspect`, also the output with ``--json``."""
    lines = [COMMANDS[name]]
    if lines[0].startswith("inspect"):
        lines.append(lines[0] + " --json")
    texts: Texts = {}
    for line in lines:
        with tempfile.TemporaryDirectory() as folder:
            words = line.replace("MODELS", str(MODELS)).replace("DEMO", str(_demo())).replace("OUT/", f"{folder}/")
            result = CliRunner().invoke(_main(), ["--no-cache", *words.split()], env={"COLUMNS": "100"})
            output = _without_paths(result.output, folder)
            if "--json" in line:
                text = _lines([line, f"exit status {result.exit_code}", _without_times(output)])
                texts[f"{name}.json"] = text
            else:
                texts[f"{name}.txt"] = _lines([line, f"exit status {result.exit_code}", output])
    return texts


def helps(name: str) -> Texts:
    """Record the help of all commands."""
    texts: Texts = {}
    main = _main()
    for each in ("", *main.list_commands(click.Context(main))):
        result = CliRunner().invoke(main, [*each.split(), "--help"], env={"COLUMNS": "100"})
        texts[f"{each or 'jaxrnn'}.txt"] = result.output
    return texts


def names(name: str) -> Texts:
    """Record the signatures of all public names, from `__all__` and from the pages of the reference."""
    modules = [jaxrnn, *(getattr(jaxrnn, each) for each in dir(jaxrnn) if inspect.ismodule(getattr(jaxrnn, each)))]
    paths = {f"{module.__name__}.{each}" for module in modules for each in module.__all__}
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        paths |= set(re.findall(r"^::: (jaxrnn[\w.]*)$", page.read_text(), re.MULTILINE))
    lines = [line for path in sorted(paths) for line in _described(path, _resolved(path))]
    return {"names.txt": _lines(lines)}


def _resolved(path: str) -> Any:
    """Return the object at a dotted path."""
    module, _, rest = path, "", []
    while True:
        try:
            return functools.reduce(getattr, rest, importlib.import_module(module))
        except ModuleNotFoundError:
            module, _, last = module.rpartition(".")
            rest = [last, *rest]


def _described(path: str, item: Any) -> Iterator[str]:
    """List a name with the signature, and the public members of a class."""
    if inspect.ismodule(item):
        yield f"{path}: module {sorted(getattr(item, '__all__', ()))}"
        return
    yield f"{path}{_signature(item)}"
    if not isinstance(item, type):
        return
    fields = getattr(item, "__dataclass_fields__", {})
    for name in sorted({*dir(item), *fields}):
        if not name.startswith("_") and not hasattr(BaseException, name):
            member = inspect.getattr_static(item, name, None)
            if isinstance(member, property | functools.cached_property):
                yield f"{path}.{name}: property"
            else:
                member = getattr(item, name, None)
                yield f"{path}.{name}{_signature(member) if callable(member) else ': attribute'}"


def _signature(item: Any) -> str:
    try:
        signature = str(inspect.signature(item)) if callable(item) else f": {type(item).__name__}"
    except (TypeError, ValueError):
        signature = "(...)"
    # Annotations name classes by their modules, which a change of structure may move.
    return re.sub(r"\b(?:[a-z_]\w*\.)+([A-Z]\w*)", r"\1", _without_paths(signature))


# -- text


def _fields(entries: Iterable[Any]) -> list[str]:
    """List dataclasses, a field a line."""
    return [line for each in entries for line in ("-", *_value(each))]


def _value(value: Any) -> list[str]:
    """List the fields of a dataclass, with indented fields of inner dataclasses."""
    lines = []
    for field in dataclasses.fields(value):
        part = getattr(value, field.name)
        if isinstance(part, tuple) and part and dataclasses.is_dataclass(part[0]):
            lines += [f"{field.name}:", *(f"  {line}" for line in _fields(part))]
        else:
            lines.append(f"{field.name}: {_plain(part)}")
    return lines


def _plain(value: Any) -> str:
    return str(value.value) if isinstance(value, enum.Enum) else _without_paths(repr(value))


def _array(value: Any) -> str:
    """Describe an array: type, shape, and the elements or their digest."""
    array = np.asarray(value)
    elements = str(array.tolist()) if array.size <= 8 else hashlib.sha256(array.tobytes()).hexdigest()[:16]
    return f"{array.dtype}{list(array.shape)} {elements}"


def _attempt(describe: Callable[[], Iterable[str]]) -> list[str]:
    """Return the lines, or the error."""
    try:
        return [*describe()]
    except Exception as error:
        return [_refusal(error)]


def _refusal(error: Exception) -> str:
    return f"{type(error).__name__}: {_without_paths(str(error))}\n"


def _without_paths(text: str, folder: str | Path | None = None) -> str:
    for path, name in ((folder, "OUT"), (MODELS, "MODELS"), (_demo().parent, "DEMO"), (ROOT, "ROOT")):
        text = text if path is None else text.replace(str(path), name)
    text = re.sub(r"dtype\('([<>|]\w+)'\)", lambda match: f"dtype('{np.dtype(match[1]).name}')", text)
    text = re.sub(re.escape(tempfile.gettempdir()) + r"/tmp\w+", "OUT", text)
    return re.sub(r"\b0x[0-9a-f]{6,}\b", "0x", text)


#: Keys of JSON whose numbers depend on the machine or its load.
_MEASURED = re.compile(r"second|time|_us|_ms|per_s|peak|share|bound|fastest|slowest|rest|in_regions|calls|notes")


def _without_times(text: str) -> str:
    """Replace measured numbers in JSON by a mark; return any other text unchanged."""
    try:
        return json.dumps(_masked(json.loads(text), measured=False), indent=1)
    except ValueError:
        return text


def _masked(value: Any, *, measured: bool) -> Any:
    """Replace measured values, and sort the rows of a profile, and the regions in a row, by name."""
    if isinstance(value, dict):
        related = {"related": sorted(value["related"])} if "related" in value else {}
        entries = {**value, **related}.items()
        return {key: _masked(each, measured=measured or bool(_MEASURED.search(key))) for key, each in entries}
    if isinstance(value, list):
        entries = [_masked(each, measured=measured) for each in value]
        is_profile = all(isinstance(each, dict) and "related" in each for each in entries)
        return sorted(entries, key=lambda each: each["name"]) if is_profile else entries
    if not measured and (value is None or isinstance(value, bool)):
        return value
    rounded = not isinstance(value, float) or value.is_integer() or float(f"{value:.6g}") == value
    return "measured" if measured or not rounded else value


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"


def _demo() -> Path:
    from jaxrnn.demo import PACKAGED

    return Path(PACKAGED)


def _main() -> Any:
    from jaxrnn.cli import main

    return main


# -- recording


def _entries() -> dict[str, tuple[Callable[..., Texts], tuple[str, ...]]]:
    """Return the function that makes the texts of each folder, and the arguments of the function."""
    entries: dict[str, tuple[Callable[..., Texts], tuple[str, ...]]] = {}
    files = (path for path in MODELS.rglob("*.onnx") if path.parent.name != "damaged")
    for path in sorted(files, key=lambda path: -path.stat().st_size):
        name = str(path.relative_to(MODELS).with_suffix(""))
        entries[f"networks/{name}"] = (network, (name, str(path)))
    entries["networks/packaged"] = (packaged, ("packaged",))
    entries |= {f"networks/built/{name}": (built, (name,)) for name in _built()}
    entries |= {f"examples/{name}": (example, (name,)) for name in EXAMPLES}
    entries |= {f"commands/{name}": (command, (name,)) for name, line in COMMANDS.items() if _possible(line)}
    return entries | {"help": (helps, ("help",)), "names": (names, ("names",))}


def _built() -> Iterable[str]:
    from benchmarks.built import NETWORKS

    return NETWORKS


def _possible(line: str) -> bool:
    return "MODELS" not in line or MODELS.is_dir()


def _made(folder: str, make: Callable[..., Texts], arguments: tuple[str, ...]) -> tuple[Texts, float]:
    """Return the texts of an entry and the seconds to make the texts."""

    def give_up(*_: Any) -> None:
        raise TimeoutError

    began = time.monotonic()
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(LIMIT)
    try:
        texts = make(*arguments)
    except TimeoutError:
        texts = {"left_out.txt": f"longer than {LIMIT} seconds\n"}
    except Exception:
        texts = {"failed.txt": traceback.format_exc()}
    finally:
        signal.alarm(0)
    jax.clear_caches()
    return texts, time.monotonic() - began


@click.group()
def main() -> None:
    """Record what jaxrnn does on every network, and compare two such records."""


@main.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--only", default="", help="Record only the entries whose names contain this text.")
@click.option("--processes", default=2, show_default=True, type=click.IntRange(1), help="Worker processes.")
@click.option("--times", is_flag=True, help="Show the seconds that each entry took.")
def record(folder: Path, only: str, processes: int, times: bool) -> None:
    """Write the records to FOLDER, which must be empty or missing."""
    if folder.exists() and any(folder.iterdir()):
        raise click.ClickException(f"{folder} is not empty: name a new folder")
    entries = {name: entry for name, entry in _entries().items() if only in name}
    failed = []
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=context) as executor:
        running = {
            executor.submit(_made, name, *entry): name for name, entry in entries.items() if name not in LEFT_OUT
        }
        for done in concurrent.futures.as_completed(running):
            name, (texts, seconds) = running[done], done.result()
            failed += [name] if "failed.txt" in texts or "left_out.txt" in texts else []
            for file, text in texts.items():
                path = folder / name / re.sub(r"[^\w.]", "_", file)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            if times:
                click.echo(f"{seconds:6.1f} s  {name}")
    for name, reason in LEFT_OUT.items():
        click.echo(f"left out: {name}, {reason}")
    click.echo(f"{len(entries)} entries in {folder}")
    if failed:
        raise click.ClickException(f"not recorded: {', '.join(sorted(failed))}")


@main.command()
@click.argument("first", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("second", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--lines", default=3, show_default=True, type=click.IntRange(0), help="Changed lines to show of each file."
)
def compare(first: Path, second: Path, lines: int) -> None:
    """List the files that differ between two records; the exit status is 1 if there are any."""
    files = [{str(p.relative_to(folder)): p for p in folder.rglob("*") if p.is_file()} for folder in (first, second)]
    differing = 0
    for name in sorted({*files[0], *files[1]}):
        texts = [side[name].read_text().splitlines() if name in side else [] for side in files]
        if texts[0] == texts[1]:
            continue
        differing += 1
        changed = [line for line in difflib.ndiff(texts[0], texts[1]) if line[:2] in ("+ ", "- ")]
        missing = [f" (only in {folder})" for folder, other in ((first, 1), (second, 0)) if name not in files[other]]
        click.echo(f"{name}: {len(changed)} lines{''.join(missing)}")
        for line in changed[:lines]:
            click.echo(f"  {line[:200]}")
    click.echo(f"{differing} of {len({*files[0], *files[1]})} files differ")
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
