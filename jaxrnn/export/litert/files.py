"""Export of steps, streams and functions as LiteRT files, with the step and the flush as signatures of one file."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn._files.messages import first_line
from jaxrnn._files.stores import check_writable, local_path
from jaxrnn._files.writing import replace_all, scratch
from jaxrnn._jax.context import exact_types
from jaxrnn.errors import InputError, MissingPackageError, ModelError, UnsupportedError
from jaxrnn.export.files import Exported, ExportedGraph, checked_metadata, digest_of, flat_facts, graphs_of, json_text
from jaxrnn.export.graphs import Graph
from jaxrnn.export.litert.forms import Forms
from jaxrnn.jaxprs.equations import shape_of, type_of
from jaxrnn.model import Model
from jaxrnn.onnx.stepfile import FLUSH, METADATA, StepFile, is_rate

File = str | os.PathLike[str]

LITERT = "litert"
#: What `quantize` can be: weights of 16 bits, or of 8 bits with products of 8 bits.
QUANTIZE = ("float16", "dynamic")
_INSTALL = "pip install 'jaxrnn[litert]'"


def export_litert(
    stepper: Any,
    params: Any,
    path: File,
    *,
    flush: bool = True,
    example: Any = None,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    label: str | None = None,
    frame_rate: float | None = None,
    quantize: str | None = None,
    metadata: Mapping[str, str] | None = None,
    names: Mapping[str, str] | None = None,
) -> Exported:
    """Write the step of a model, a stream or a function as a LiteRT file (``.tflite``).

    The file has the signature ``step`` and, for a stream, the signature ``flush``, which share their weights; a
    function has the signature ``function``. Inputs and outputs have the names that `jaxrnn.export_onnx` gives them. The
    metadata ``jaxrnn.step`` and ``jaxrnn.flush`` describe the signatures as JSON, with pulse, delay, rate and the state
    before the first frame (`jaxrnn.onnx.stepfile.StepFile`).

    The program is converted by Google's ``litert-converter``. Before that, operations that LiteRT lacks are written in
    operations that it has (`jaxrnn.export.litert.forms`): loops over frames are unrolled. The file is opened and run in
    LiteRT before it appears.

    Args:
        stepper: the model, whose step is written, the streamed function, stepper or function.
        params: the parameters; by default the parameters of the stepper.
        path: the file to write. An existing file is replaced.
        flush: write the flush of a stream too.
        example: the input of a function, as in `jaxrnn.export_onnx`.
        batch: the number of streams of a step, as in `jaxrnn.export_onnx`.
        dims: sizes of the open dimensions of a step, other than the batch.
        label: the name of the step or function; by default the name in Python.
        frame_rate: input frames per second of a stream.
        quantize: ``"float16"`` stores weights in 16 bits and computes in float32; ``"dynamic"`` stores the weights of
            products and convolutions as 8-bit integers, and each call quantises their inputs. By default float32.
        metadata: further entries of the metadata, as text by key.
        names: names of inputs and outputs, by the names that they have otherwise.

    Returns:
        The written file. ``step`` and ``flush`` have the same path.

    Raises:
        InputError, StateError: as in `jaxrnn.export_onnx`.
        UnsupportedError: LiteRT has no counterpart; the message names the node, line or operation.
        MissingPackageError: the converter or LiteRT is not installed.
    """
    if quantize not in (None, *QUANTIZE):
        raise InputError(f"quantize must be None or {' or '.join(map(repr, QUANTIZE))}, not {quantize!r}")
    if frame_rate is not None and not is_rate(frame_rate):
        raise InputError(f"frame_rate must be a number of frames a second, not {frame_rate!r}")
    path = local_path(path)
    check_writable(path)
    texts = checked_metadata(metadata) or {}
    streams = not isinstance(stepper, Model) and getattr(getattr(stepper, "spec", None), "streams", False)
    options = {"example": example, "batch": batch, "dims": dims, "label": label, "frame_rate": frame_rate}
    options |= {"flush": path if flush and streams else None, "join_state": None, "metadata": texts or None}
    graphs = graphs_of(stepper, params, options | {"names": dict(names or {}) or None})
    files = {graph.facts.kind: path.name for graph in graphs}
    stated = {"frame_rate": None if frame_rate is None else float(frame_rate), "target": LITERT, "files": files}
    graphs = [dataclasses.replace(each, facts=dataclasses.replace(each.facts, **stated)) for each in graphs]
    written = _converted(graphs)
    if quantize is not None:
        written = _quantized(written, quantize)
    for graph in graphs:
        flat = {f"{METADATA}.{graph.facts.kind}.{key}": text for key, text in flat_facts(graph.facts).items()}
        texts = {**texts, f"{METADATA}.{graph.facts.kind}": json_text(graph.facts.to_json()), **flat}
    written = _with_metadata(written, {**graphs[0].notes.metadata, **texts})
    _run_once(written, graphs)
    with scratch(path) as folder:
        (folder / path.name).write_bytes(written)
        digest = digest_of(folder / path.name)
        replace_all({path: folder / path.name})
    each = [ExportedGraph(path, graph.facts, len(graph.closed.jaxpr.eqns)) for graph in graphs]
    return Exported(each[0], each[1] if len(each) > 1 else None, {path: digest})


def _package(name: str) -> Any:
    """Import a module of LiteRT's packages, which otherwise write to standard error."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        with _quiet():
            return importlib.import_module(name)
    except ImportError as error:
        raise MissingPackageError(f"LiteRT's packages are not installed ({first_line(error)}): {_INSTALL}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what C++ code writes to standard error out of the terminal."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        before = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)


def _program(graph: Graph) -> tuple[Callable[..., Any], list[jax.ShapeDtypeStruct], list[str]]:
    """Return a graph as a function of its inputs in forms of LiteRT, with their shapes and names."""
    pairs = list(zip(graph.arguments, graph.closed.jaxpr.invars, strict=True))

    def program(*arrays: Any) -> list[Any]:
        given = iter(arrays)
        values = [next(given) if each.value is None else np.asarray(each.value) for each, _ in pairs]
        return [jnp.asarray(each) for each in Forms().evaluate(graph.closed, values)]

    free = [(each.name, atom) for each, atom in pairs if each.value is None]
    return program, [jax.ShapeDtypeStruct(shape_of(atom), type_of(atom)) for _, atom in free], [n for n, _ in free]


def _converted(graphs: Sequence[Graph]) -> bytes:
    """Convert graphs to signatures of one file."""
    programs = []
    for graph in graphs:
        function, structs, names = _program(graph)
        with exact_types():
            text = jax.jit(function, keep_unused=True).lower(*structs).as_text(debug_info=True)
        programs.append((graph.facts.kind, text, names, list(graph.results)))
    api, mlir = _package("litert_converter.converter_api_ext"), _package("litert_converter.mlir")
    ir, passes = _package(f"{mlir.__name__}.ir"), _package(f"{mlir.__name__}.passmanager")
    context = ir.Context()
    api.prepare_mlir_context(context)
    settings = api.ConvertToTFLConfig()
    # An infinity is no largest number: a mask of -inf must stay one.
    settings.canonicalizing_inf_as_min_max_float = False
    modules = []
    with context:
        for kind, text, names, results in programs:
            module = ir.Module.parse(text)
            main = next(each for each in module.body.operations if each.attributes["sym_name"].value == "main")
            api.set_signature(main, kind, names, results)
            try:
                with _quiet():
                    api.run_convert_to_tfl_passes(module, passes.PassManager(), settings)
            except ValueError as error:
                raise UnsupportedError(f"{_without_counterpart(str(error))}") from error
            modules.append(module)
        try:
            with _quiet():
                merged = modules[0] if len(modules) == 1 else api.merge_modules(modules)
                return api.export_flatbuffer_to_bytes(merged.operation)
        except ValueError as error:
            raise UnsupportedError(f"LiteRT's converter cannot write the file: {first_line(error, 400)}") from error


def _without_counterpart(message: str) -> str:
    """Return a message of the converter as a sentence about an operation."""
    refused = re.search(r"failed to legalize operation '([\w.]+)'", message)
    where = re.search(r'"jit\(program\)/([^"]+)"', message)
    at = f"{where[1]}: " if where else ""
    if refused is None:
        return f"{at}LiteRT's converter refuses the program: {first_line(message, 400)}"
    return f"{at}LiteRT has no counterpart of {refused[1]}, or not for these types: export for ONNX engines instead"


def _run_once(written: bytes, graphs: Sequence[Graph]) -> None:
    """Run each signature on zeros: LiteRT finds operators without a kernel only then."""
    litert = _package("ai_edge_litert.interpreter")
    for graph in graphs:
        _, structs, names = _program(graph)
        try:
            with _quiet():
                runner = litert.Interpreter(model_content=written).get_signature_runner(graph.facts.kind)
                runner(**{name: np.zeros(each.shape, each.dtype) for name, each in zip(names, structs, strict=True)})
        except (RuntimeError, ValueError) as error:
            raise UnsupportedError(
                f"{graph.facts.spec.label}, {graph.facts.kind}: LiteRT cannot run the converted program: "
                f"{first_line(error, 400)}"
            ) from error


def _quantized(written: bytes, quantize: str) -> bytes:
    """Quantise weights with ai-edge-quantizer."""
    quantizer, kinds = _package("ai_edge_quantizer.quantizer"), _package("ai_edge_quantizer.qtyping")
    recipes = _package("ai_edge_quantizer.recipe")
    with tempfile.TemporaryDirectory() as folder, _quiet(), contextlib.redirect_stdout(None):
        file = Path(folder, "model.tflite")
        file.write_bytes(written)
        work = quantizer.Quantizer(str(file))
        if quantize == "dynamic":
            work.load_quantization_recipe(recipes.dynamic_wi8_afp32())
        else:
            half = kinds.TensorQuantizationConfig(num_bits=16, dtype=kinds.TensorDataType.FLOAT)
            work.update_quantization_recipe(
                regex=".*",
                operation_name=kinds.TFLOperationName.ALL_SUPPORTED,
                op_config=kinds.OpQuantizationConfig(
                    weight_tensor_config=half,
                    compute_precision=kinds.ComputePrecision.FLOAT,
                    explicit_dequantize=True,
                ),
                algorithm_key=recipes.AlgorithmName.FLOAT_CASTING,
            )
        return bytes(work.quantize(enable_progress_report=False).quantized_model)


def _with_metadata(written: bytes, texts: Mapping[str, str]) -> bytes:
    """Add entries to the metadata of a file."""
    schema, flatbuffers = _package("ai_edge_litert.schema_py_generated"), _package("flatbuffers")
    model = schema.ModelT.InitFromPackedBuf(written)
    for each in model.buffers:
        if each.offset > 1:  # the quantizer stores large buffers behind the tables
            each.data = np.frombuffer(written, np.uint8, each.size, each.offset)
            each.offset = each.size = 0
    model.metadata = model.metadata or []
    for name, text in texts.items():
        buffer, entry = schema.BufferT(), schema.MetadataT()
        buffer.data = np.frombuffer(text.encode(), np.uint8)
        entry.name, entry.buffer = name, len(model.buffers)
        model.buffers.append(buffer)
        model.metadata.append(entry)
    builder = flatbuffers.Builder(len(written) + 1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def read_metadata(path: Path) -> dict[str, str]:
    """Return the entries of the metadata that are text."""
    schema = _package("ai_edge_litert.schema_py_generated")
    data = path.read_bytes()
    if data[4:8] != b"TFL3":
        raise ModelError(f"{path} is not a LiteRT file")
    model = schema.Model.GetRootAs(data)
    texts = {}
    for index in range(model.MetadataLength()):
        entry = model.Metadata(index)
        buffer = model.Buffers(entry.Buffer())
        with contextlib.suppress(UnicodeDecodeError):
            texts[entry.Name().decode()] = buffer.DataAsNumpy().tobytes().decode() if buffer.DataLength() else ""
    return texts


def read_signature(path: Path, kind: str) -> StepFile | None:
    """Return the facts of a signature that jaxrnn wrote into a file, or None."""
    text = read_metadata(path).get(f"{METADATA}.{kind}")
    try:
        return None if text is None else StepFile.from_json(json.loads(text))
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise ModelError(
            f"{path}: the metadata {METADATA}.{kind!r} are damaged ({error}): export the file again"
        ) from error


__all__ = ["FLUSH", "LITERT", "export_litert", "read_signature"]
