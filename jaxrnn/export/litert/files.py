"""Export of steps, streams and functions as LiteRT files, with the step and the flush as signatures of one file."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn._files.stores import check_writable, local_path
from jaxrnn._files.writing import replace_all, scratch
from jaxrnn._jax.context import exact_types
from jaxrnn.errors import InputError, UnsupportedError
from jaxrnn.export.calibration import Calibration, Calls
from jaxrnn.export.conversions import Quantization, check_excluded, quantization_of
from jaxrnn.export.engines import quantisation_steps
from jaxrnn.export.files import (
    OPSET,
    Exported,
    ExportedGraph,
    checked_metadata,
    digest_of,
    flat_facts,
    graphs_of,
    json_text,
)
from jaxrnn.export.graphs import Graph
from jaxrnn.export.litert import fourier as _fourier  # noqa: F401  (registers its rule)
from jaxrnn.export.litert.forms import EXACT, LAYER, LOOP, Forms
from jaxrnn.export.litert.tables import finished, in_float16, overflowing, product_names
from jaxrnn.jaxprs.equations import shape_of, type_of, walk
from jaxrnn.model import Model
from jaxrnn.onnx.stepfile import LITERT, METADATA
from jaxrnn.verification.litert import QUANTIZED, STEPS, SUFFIX, LiteRt, package, quiet
from jaxrnn.verification.peers import PeerError

File = str | os.PathLike[str]

#: What `quantize` can be: weights of 16 bits, or of 8 bits with products of 8 bits, in ranges of each call or of
#: recordings.
QUANTIZE = ("float16", "dynamic", "static")
#: The products of static quantisation. A state that other operations round at each step would drift.
_PRODUCTS = ("FULLY_CONNECTED", "CONV_2D", "DEPTHWISE_CONV_2D")

#: The products whose second operand is a weight.
_WEIGHTED = (*_PRODUCTS, "TRANSPOSE_CONV")


def export_litert(
    stepper: Any,
    params: Any,
    path: File,
    *,
    step: bool = True,
    flush: bool = True,
    example: Any = None,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    label: str | None = None,
    frame_rate: float | None = None,
    quantize: str | Quantization | None = None,
    metadata: Mapping[str, str] | None = None,
    names: Mapping[str, str] | None = None,
    guard: bool = False,
) -> Exported:
    """Write the step of a model, a stream or a function as a LiteRT file (``.tflite``).

    The file has the signature ``step`` and, for a stream, the signature ``flush``, which share their weights; a
    function has the signature ``function``. Inputs and outputs have the names that `jaxrnn.export_onnx` gives them. The
    metadata ``jaxrnn.step`` and ``jaxrnn.flush`` describe the signatures as JSON, with pulse, delay, rate and the state
    before the first frame (`jaxrnn.onnx.stepfile.StepFile`).

    The program is converted by Google's ``litert-converter``. Before that, operations that LiteRT lacks are written in
    operations that it has (`jaxrnn.export.litert.forms`). Loops are unrolled, or if this would double the file, their
    bodies are functions of the file. The file is opened and run in LiteRT before it appears.

    Args:
        stepper: the model, whose step is written, the streamed function, stepper or function.
        params: the parameters; by default the parameters of the stepper.
        path: the file to write. An existing file is replaced.
        step: True, or left out: of a model, a LiteRT file has the step, and not the whole graph.
        flush: write the flush of a stream too.
        example: the input of a function, as in `jaxrnn.export_onnx`.
        batch: the number of streams of a step, as in `jaxrnn.export_onnx`.
        dims: sizes of the open dimensions of a step, other than the batch.
        label: the name of the step or function; by default the name in Python.
        frame_rate: input frames per second of a stream.
        quantize: ``"float16"`` stores weights in 16 bits and computes in float32; ``"dynamic"`` stores the weights of
            products and convolutions as 8-bit integers, and each call quantises their inputs; ``"static"`` quantises
            their inputs and outputs in the ranges of recordings, which `jaxrnn.export.Quantization` has, and recurrent
            layers dynamically. Fourier matrices and other arrays that depend on no parameter stay float32. By default
            float32.
        metadata: further entries of the metadata, as text by key.
        names: names of inputs and outputs, by the names that they have otherwise.
        guard: take NaN and infinities of float inputs for zeros, as in `jaxrnn.export_onnx`.

    Returns:
        The written file. ``step`` and ``flush`` have the same path.

    Raises:
        InputError, StateError: as in `jaxrnn.export_onnx`.
        UnsupportedError: LiteRT has no counterpart; the message names the node, line or operation.
        MissingPackageError: the converter or LiteRT is not installed.
    """
    quantization = quantization_of(quantize, QUANTIZE)
    if not step:
        raise InputError(
            "a LiteRT file of a model has its step: leave out `step=False`, or export a function that calls "
            "`model.apply`"
        )
    path = local_path(path)
    if path.suffix != SUFFIX:
        raise InputError(f"{path.name!r} must end in {SUFFIX}, by which engines recognise a LiteRT file")
    check_writable(path)
    texts = checked_metadata(metadata) or {}
    streams = not isinstance(stepper, Model) and getattr(getattr(stepper, "spec", None), "streams", False)
    options = {"example": example, "batch": batch, "dims": dims, "label": label, "frame_rate": frame_rate}
    options |= {"flush": path if flush and streams else None, "join_state": None, "metadata": texts or None}
    options |= {"target": LITERT, "guard": guard or None}
    graphs = graphs_of(stepper, params, options | {"names": dict(names or {}) or None})
    files = {graph.facts.kind: path.name for graph in graphs}
    graphs = [dataclasses.replace(each, facts=dataclasses.replace(each.facts, files=files)) for each in graphs]
    written = _converted(graphs)
    for graph in graphs:
        flat = {f"{METADATA}.{graph.facts.kind}.{key}": text for key, text in flat_facts(graph.facts).items()}
        texts = {**texts, f"{METADATA}.{graph.facts.kind}": json_text(graph.facts.to_json()), **flat}
        if any(each.params.get("name") == "QuantizeLinear" for each in walk(graph.closed.jaxpr)):
            steps = quantisation_steps(graph.lowered(OPSET).graph, graph.facts)
            texts[f"{METADATA}.{graph.facts.kind}.{STEPS}"] = json.dumps(steps)
    texts, errors = {**graphs[0].notes.metadata, **texts}, {}
    if quantization is None:
        written = finished(written, texts)
    else:
        with tempfile.TemporaryDirectory() as folder:
            file, calibration = Path(folder, path.name), None
            if quantization.recordings is not None:
                file.write_bytes(finished(written, texts))
                calibration = Calibration.of(stepper, quantization.recordings, file)
            written = _quantized(written, quantization, calibration and calibration.calls)
            written = finished(written, {**texts, f"{METADATA}.{QUANTIZED}": quantization.kind})
            if calibration is not None:
                file.write_bytes(written)
                errors = calibration.errors(file)
    _run_once(written, graphs)
    with scratch(path) as folder:
        (folder / path.name).write_bytes(written)
        digest = digest_of(folder / path.name)
        replace_all({path: folder / path.name})
    each = [ExportedGraph(path, graph.facts, len(graph.closed.jaxpr.eqns)) for graph in graphs]
    return Exported(each[0], each[1] if len(each) > 1 else None, {path: digest}, errors)


def _program(graph: Graph) -> tuple[Callable[..., Any], list[jax.ShapeDtypeStruct], list[str]]:
    """Return a graph as a function of its inputs in forms of LiteRT, with their shapes and names."""
    pairs = list(zip(graph.arguments, graph.closed.jaxpr.invars, strict=True))

    def program(*arrays: Any) -> list[Any]:
        given = iter(arrays)
        values = [next(given) if each.value is None else np.asarray(each.value) for each, _ in pairs]
        return [jnp.asarray(each) for each in Forms(graph.facts.kind).whole(graph.closed, values)]

    program.__name__ = graph.facts.kind  # so that the tensors of all signatures have different names
    free = [(each.name, atom) for each, atom in pairs if each.value is None]
    return program, [jax.ShapeDtypeStruct(shape_of(atom), type_of(atom)) for _, atom in free], [n for n, _ in free]


def _converted(graphs: Sequence[Graph]) -> bytes:
    """Convert graphs to signatures of one file."""
    programs = [(graph, *_program(graph)) for graph in graphs]

    def signatures(*arguments: Any) -> list[Any]:
        return [jax.jit(function)(*each) for (_, function, *_), each in zip(programs, arguments, strict=True)]

    with exact_types():
        lowered = jax.jit(signatures, keep_unused=True).lower(*(structs for _, _, structs, _ in programs))
    api = package("litert_converter.converter_api_ext")
    ir, passes = package("litert_converter.mlir.ir"), package("litert_converter.mlir.passmanager")
    context = ir.Context()
    api.prepare_mlir_context(context)
    settings = api.ConvertToTFLConfig()
    # An infinity is no largest number: a mask of -inf must stay one.
    settings.canonicalizing_inf_as_min_max_float = False
    with context:
        # Scopes become names of tensors, without the files that traced them.
        text = re.sub(r'(?m)^(#loc\d+ = loc\("[^"]*")\(#loc\d+\)\)$', r"\1)", lowered.as_text(debug_info=True))
        module = ir.Module.parse(text)
        functions = {each.attributes["sym_name"].value: each for each in module.body.operations}
        functions.pop("main").operation.erase()
        for name in filter(lambda name: LOOP in name, functions):
            functions[name].attributes["no_inline"] = ir.UnitAttr.get()
        for graph, _, _, names in programs:
            function = functions[graph.facts.kind]
            function.attributes["sym_visibility"] = ir.StringAttr.get("public")
            api.set_signature(function, graph.facts.kind, names, list(graph.results))
        label = graphs[0].facts.spec.label
        try:
            with quiet():
                api.run_convert_to_tfl_passes(module, passes.PassManager(), settings)
        except ValueError as error:
            raise UnsupportedError(f"{label}: {_refusal(str(error))}") from error
        try:
            with quiet():
                return api.export_flatbuffer_to_bytes(module.operation)
        except ValueError as error:
            all_names = set(_operations(module.operation))
            others = sorted(each for each in all_names if not each.startswith(("tfl.", "func.", "builtin.", "arith.")))
            raise UnsupportedError(f"{label}: {_NO_COUNTERPART.format(', '.join(others) or 'the program')}") from error


def _operations(operation: Any) -> Iterator[str]:
    """Yield the names of all operations inside of an operation."""
    for region in operation.regions:
        for block in region:
            for each in block:
                yield each.operation.name
                yield from _operations(each.operation)


_NO_COUNTERPART = "LiteRT has no counterpart of {}, or not for these types: export for ONNX engines instead"


def _refusal(message: str) -> str:
    """Return a message of the converter as a sentence about an operation and its scope in the model."""
    refused = re.search(r"failed to legalize operation '([\w.]+)'", message)
    scope = re.search(r'loc\("(?:jit\(\w+\)/)*([^"]+)"', message)
    where = f"{scope[1]!r}: " if scope else ""
    if refused is None:
        return f"{where}LiteRT's converter refuses the program: {message.splitlines()[0][:400]}"
    return where + _NO_COUNTERPART.format(refused[1])


def _run_once(written: bytes, graphs: Sequence[Graph]) -> None:
    """Run each signature on drawn values: LiteRT finds operators without a kernel only then."""
    rng = np.random.default_rng(0)
    for graph in graphs:
        try:
            engine = LiteRt(written, graph.facts.kind)
            # Integers may be divisors, or numbers of frames.
            draws = {name: rng.uniform(1, 2, shape).astype(dtype) for name, (shape, dtype) in engine.inputs.items()}
            engine.run(draws)
        except PeerError as error:
            raise UnsupportedError(f"{graph.facts.spec.label}, {graph.facts.kind}: {error}") from error


def _quantized(written: bytes, quantization: Quantization, calls: Calls | None) -> bytes:
    """Store weights in 16 bits, or quantise weights, and with calls the results of products, with ai-edge-quantizer."""
    check_excluded(quantization.exclude, product_names(written, (*_WEIGHTED, "BATCH_MATMUL")))
    # A scope has the names of all results, such as `encoder/dot_general;encoder/add`.
    excluded = "|".join([re.escape(EXACT), *(f"(?:^|;){re.escape(each)}" for each in quantization.exclude)])
    if quantization.kind == "float16":
        return in_float16(written, excluded, _WEIGHTED)
    quantizer, kinds = package("ai_edge_quantizer.quantizer"), package("ai_edge_quantizer.qtyping")
    names, every = quantizer.AlgorithmName, kinds.TFLOperationName.ALL_SUPPORTED
    with quiet(), contextlib.redirect_stdout(None):
        work, ranges = quantizer.Quantizer(written), None
        work.add_dynamic_config(".*", every, 8)
        if calls is not None:
            for each in _PRODUCTS:
                work.add_static_config(".*", kinds.TFLOperationName[each], 8, 8)
            work.add_dynamic_config(re.escape(LAYER), every, 8)
            ranges = _ranges(written, calls)
            # The quantizer lets these numbers overflow; the products stay float32.
            excluded = "|".join(
                [excluded, *(f"^{re.escape(each)};?$" for each in overflowing(written, ranges, _PRODUCTS))]
            )
        work.update_quantization_recipe(excluded, every, algorithm_key=names.NO_QUANTIZE)
        return bytes(work.quantize(ranges, enable_progress_report=False).quantized_model)


def _ranges(written: bytes, calls: Calls) -> Any:
    """Return the range of each tensor over all calls; by default the quantizer would average the ranges of calls."""
    calibrator, ranges = package("ai_edge_quantizer.calibrator"), package("ai_edge_quantizer.utils.qsv_utils")
    mode = calibrator.CalibrationMode.CALIBRATION_PROFILER_BASED
    work = calibrator.Calibrator(written, num_threads=1, mode=mode, qsv_update_func=ranges.min_max_update)
    work.calibrate(calls, package("ai_edge_quantizer.recipe_manager").RecipeManager())
    return work.get_model_qsvs()
