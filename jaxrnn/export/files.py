"""Export of models, streams, steps and functions as ONNX files with metadata."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from jaxrnn._files.messages import first_line, short_repr
from jaxrnn._files.stores import check_writable, local_path
from jaxrnn._files.writing import replace_all, scratch
from jaxrnn.errors import InputError, ModelError, UnsupportedError, check_count, check_kind
from jaxrnn.export.batches import NUMBERS, opened
from jaxrnn.export.calibration import Calibration
from jaxrnn.export.conversions import LARGEST, WIDE_KINDS, Conversion, Quantization
from jaxrnn.export.exportable import Exportable
from jaxrnn.export.graphs import Graph, Names, flush_graph, function_graph, step_graph
from jaxrnn.export.quantized import BLOCKS_SINCE
from jaxrnn.model import Model
from jaxrnn.model.loading import write_graph
from jaxrnn.onnx.stepfile import FLUSH, FUNCTION, METADATA, STEP, TARGETS, StepFile, is_rate
from jaxrnn.steps.specs import ArraySpec
from jaxrnn.steps.stepper import Notes, Stepper, missing_parts
from jaxrnn.steps.stepspec import OutputSpec, StateSpec, said_past
from jaxrnn.verification.litert import QUANTIZED
from jaxrnn.version import __version__

#: The default opset, which all current engines support.
OPSET = 17

File = str | os.PathLike[str]


def export_onnx(
    stepper: Model | Stepper | Callable[..., Any],
    params: Any,
    path: File,
    *,
    step: bool = False,
    flush: File | None = None,
    example: Any = None,
    batch: int | str | None = None,
    dims: Mapping[str, int] | None = None,
    opset: int | None = None,
    label: str | None = None,
    frame_rate: float | None = None,
    dtype: str | np.dtype | None = None,
    io_dtype: str | np.dtype | None = None,
    quantize: str | Quantization | None = None,
    target: str | None = None,
    join_state: bool = False,
    metadata: Mapping[str, str] | None = None,
    names: Mapping[str, str] | None = None,
    shared_weights: bool = False,
    guard: bool = False,
) -> Exported | None:
    """Write a model, a stream, a step or a function as an ONNX file.

    - A model is written as the file that it was loaded from, with new parameters. All other bytes stay the same
      (`jaxrnn.model.loading.write_graph`).
    - A model with ``step=True`` is written as a single step. State inputs and outputs keep the names of the model's
      file.
    - A streamed function, or your own `Stepper`, is written as a step on a pulse. A state entry ``NAME`` has the input
      ``NAME`` and the output ``NAME_next``. With ``flush``, a second file returns the frames that are left at the end
      of a recording.
    - A function ``function(params, x)``, or ``function(x)`` if params is None, is written unchanged. Modules of Flax
      NNX and Equinox count as functions, as in `jaxrnn.stream`.

    Parameters are stored as numbers. The metadata entry ``jaxrnn`` describes the file as JSON for programs
    (`jaxrnn.onnx.stepfile.StepFile`); the doc strings of graph, inputs and outputs describe the file in sentences. The
    state before the first frame is written beside a step ``NAME.onnx`` as ``NAME.first_state.npz``, under the names of
    the inputs. `jaxrnn.load` reads such a file with state and first state.

    All files appear together, after ONNX's checks have passed, or no file appears. Tensors of a model above 2 GB are
    written to ``NAME.onnx.data``. Complex arrays become pairs along a last axis, the real part first.

    Example::

        jaxrnn.export_onnx(model, params, "tuned.onnx")
        jaxrnn.export_onnx(offline.stream(pulse=4), offline.params, "streaming.onnx", flush="flush.onnx")

    Args:
        stepper: the model, streamed function, stepper or function.
        params: the parameters; by default the parameters of the stepper.
        path: the file to write. An existing file is replaced.
        step: write the step of a model instead of the whole graph.
        flush: the file for the flush, in any folder.
        example: the input of a function: an array, which is named ``x``, or a dict of arrays. Shapes suffice.
        batch: the number of streams of a step. Each array gets a leading axis of this size, or the model's batch
            dimension gets this size. A name leaves the number open, ``batch="N"``: one file serves any number of
            streams, and the first state has a batch of 1, to be repeated for each stream. By default, one stream
            without this axis.
        dims: sizes of the open dimensions of a step, other than the batch.
        opset: the version of ONNX's operators; by default 17, or 21 for weights of 4 bits or with scales of blocks.
        label: the name of a step or function in the file; by default the name in Python.
        frame_rate: input frames per second of a stream (samples per second, if a frame is a sample). The metadata then
            contain delay and look-ahead in milliseconds.
        dtype: ``"float16"``, or ``"bfloat16"`` from opset 22 on: the type of float32 weights, state and arithmetic.
            Totals over time, positions and loops stay float32.
        io_dtype: with `dtype`, the type of float32 inputs and outputs other than the state; by default they stay
            float32.
        quantize: ``"dynamic"``: ONNX Runtime's quantizer stores weights as 8-bit integers; each call quantises the
            inputs of products, convolutions and LSTMs. `jaxrnn.export.Quantization` has more options, such as ranges
            from recordings. Fourier matrices and other arrays that depend on no parameter stay float32, and so does the
            state.
        target: ``"tract"`` writes recurrent layers in the form that tract runs: frame by frame where some frames of a
            pulse may not exist, and without attributes that tract ignores. All engines run such a file, ONNX Runtime
            more slowly.
        join_state: write the state of a step or stream as a vector for each element type, so that a program passes
            fewer arrays from call to call. The metadata list the entries of each vector. With `dtype`, totals over time
            are a separate vector.
        metadata: further entries of the metadata of a step or stream, as text by key. The metadata and doc strings of
            the model's file are kept.
        names: names of inputs and outputs in the file of a step or stream, by the names that they have otherwise.
        shared_weights: write the arrays of more than 1 KB of the step and the flush once, to ``NAME.onnx.data``, the
            external data of both files. The three files must stay in the same folder.
        guard: let a step, a flush or a function take NaN and infinities of float inputs for zeros. An overflow inside
            of the network is not caught.

    Returns:
        The written files, or None after writing a model's whole graph.

    Raises:
        InputError: an argument does not fit; the message names the argument and the fix.
        StateError: the model has no steps, because it forgets its state after each call; or the state grows.
        UnsupportedError: ONNX has no counterpart, or only in a newer opset; the message names the node or line.
        ModelError: ONNX rejects the graph.
    """
    options = {"flush": flush, "example": example, "batch": batch, "dims": dims, "opset": opset, "label": label}
    options |= {"frame_rate": frame_rate, "target": target, "join_state": join_state or None}
    options |= {"metadata": checked_metadata(metadata), "names": dict(names or {}) or None}
    options |= {"shared_weights": shared_weights or None, "guard": guard or None}
    if target not in (None, *TARGETS):
        raise InputError(f"target must be None, for all engines, or {' or '.join(map(repr, TARGETS))}, not {target!r}")
    conversion = Conversion.of(dtype, io_dtype, quantize)
    recordings = None if conversion is None or conversion.quantize is None else conversion.quantize.recordings
    if isinstance(stepper, Model) and not step:
        of_steps = {**options, "static quantisation": recordings}
        if given := [name for name, value in of_steps.items() if value is not None]:
            raise InputError(
                f"{given[0]} applies to a step, and a model is written as a whole graph: give `step=True` for its step"
            )
        arrays = stepper.params if params is None else params
        if conversion is None:
            write_graph(stepper, arrays, path)
        else:
            _write_converted(stepper, arrays, local_path(path), conversion)
        return None
    paths = [local_path(path), *([] if flush is None else [local_path(flush)])]
    check_targets(paths)
    if shared_weights and (flush is None or paths[0].parent.resolve() != paths[1].parent.resolve()):
        raise InputError("shared_weights is for a step and a flush in the same folder: give `flush`, beside the step")
    version = None if opset is None else _known_opset(opset)
    apart = WIDE_KINDS if join_state and dtype is not None else ()
    symbol = _batch_name(stepper, dims or {}, batch) if isinstance(batch, str) else None
    counts = (batch,) if symbol is None else NUMBERS
    groups = [*zip(*(graphs_of(stepper, params, {**options, "batch": each}, apart) for each in counts), strict=True)]
    ones = [group[0] for group in groups]
    if version is None:
        version = BLOCKS_SINCE if any(each.stores_blocks for each in ones) else OPSET
    if symbol is None:
        lowered = [(each.lowered(version), each.facts) for each in ones]
    else:
        lowered = [opened(group, version, symbol) for group in groups]
    notes = ones[0].notes
    notes = notes._replace(metadata={**notes.metadata, **(options["metadata"] or {})})
    if conversion is None:
        return _write(lowered, paths, notes, shared_weights)
    if conversion.quantize is not None:
        notes = notes._replace(metadata={**notes.metadata, f"{METADATA}.{QUANTIZED}": conversion.quantize.kind})
    conversion.check([model for model, _ in lowered])
    with tempfile.TemporaryDirectory() as folder:
        trial, calibration, errors = [Path(folder, f"{number}.onnx") for number, _ in enumerate(paths)], None, {}
        if recordings is not None:
            _write(lowered, trial, notes)
            calibration = Calibration.of(stepper, recordings, *trial)
        lowered = [conversion.apply(*each, calibration and calibration.calls) for each in lowered]
        if calibration is not None:
            _write(lowered, trial, notes)
            errors = calibration.errors(*trial)
    return dataclasses.replace(_write(lowered, paths, notes, shared_weights), errors=errors)


def _batch_name(stepper: Any, dims: Mapping[str, int], name: str) -> str:
    """Check the name of an open batch, and return it."""
    if not name.isidentifier():
        raise InputError(f"batch must be the number of streams, or a name for an open number, not {name!r}")
    if not missing_parts(stepper) and {name, stepper.spec.batch_symbol} & {*dims}:
        raise InputError(f"`batch={name!r}` leaves the batch open, and `dims={dict(dims)}` gives a size")
    return name


def checked_metadata(metadata: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return metadata as a dict, or None without entries; raise InputError for other values than text."""
    check_kind("metadata", metadata, Mapping | None, "a dict of text by key")
    for key, text in (metadata or {}).items():
        if not isinstance(key, str) or not isinstance(text, str) or key.partition(".")[0] == METADATA:
            raise InputError(
                f"metadata: {key!r}: {text!r} is no text by a key; keys that begin with {METADATA!r} are those of the "
                "file itself"
            )
    return dict(metadata or {}) or None


def _write_converted(model: Model, params: Any, path: Path, conversion: Conversion) -> None:
    """Write the whole graph of a model in other types."""
    check_writable(path)
    with scratch(path) as folder:
        written = folder / path.name
        write_graph(model, params, written)
        proto = onnx.shape_inference.infer_shapes(onnx.load(written), data_prop=True)
        graph = ir.from_proto(proto)
        conversion.check([graph])
        converted, _ = conversion.apply(graph, None)
        write_files({path: converted}, {})


def graphs_of(stepper: Any, params: Any, options: Mapping[str, Any], apart: Collection[str] = ()) -> list[Graph]:
    """Trace a step, with its flush if `options` name one, or a function."""
    rate = options["frame_rate"]
    if rate is not None and not is_rate(rate):
        raise InputError(f"frame_rate must be a number of frames a second, not {rate!r}")
    stated = {"frame_rate": None if rate is None else float(rate), "target": options["target"]}
    graphs = _traced(stepper, params, options, apart)
    return [dataclasses.replace(each, facts=dataclasses.replace(each.facts, **stated)) for each in graphs]


def _traced(stepper: Any, params: Any, options: Mapping[str, Any], apart: Collection[str]) -> list[Graph]:
    example, batch, dims = options["example"], options["batch"], options["dims"] or {}
    if not missing_parts(stepper):
        if example is not None:
            raise InputError(f"leave out example: the inputs of a {type(stepper).__name__} are known")
        if batch is not None:
            batch = check_count("batch, the number of streams,", batch)
        if isinstance(stepper, Model):
            dims, batch = _sizes_of(stepper, dims, batch)
        given = {"join_state": bool(options["join_state"]), "apart": apart, "guard": bool(options["guard"])}
        exportable = Exportable(stepper, params, batch, dims, options["label"], **given)
        names = Names(exportable.spec, exportable.state, exportable.state_names, options["names"], options["target"])
        return [
            step_graph(exportable, names),
            *([flush_graph(exportable, names)] if options["flush"] is not None else []),
        ]
    if not callable(stepper):
        raise InputError(
            f"expected a model, a streamed function, a Stepper or a function, not {type(stepper).__name__}"
        )
    if example is None:
        raise InputError("a function is traced on an example: give example=x, an array or a dict of arrays by name")
    of_steps = ("flush", "batch", "dims", "frame_rate", "join_state", "metadata", "names")
    if given := [name for name in of_steps if options[name] is not None]:
        raise InputError(f"leave out {given[0]}: a function has no state, and its sizes come from its example")
    return [function_graph(stepper, params, example, options["label"], options["target"], bool(options["guard"]))]


def _sizes_of(model: Model, dims: Mapping[str, int], batch: int | None) -> tuple[dict[str, int], int | None]:
    """Return sizes by the first names of equal dimensions, and the batch, which ``dims`` may contain."""
    sizes: dict[str, int] = {}
    for name, size in dims.items():
        first = model.dimensions.get(name, name)
        if sizes.setdefault(first if isinstance(first, str) else name, size) != size:
            equal = ", ".join(each for each, other in model.dimensions.items() if other == first)
            raise InputError(
                f"{model.label}: `dims` gives {size} for {name!r} and {sizes[str(first)]} for another "
                f"dimension, and the nodes need {equal} to be equal: give one size"
            )
    own = sizes.pop(model.spec.batch_symbol or "", None)
    if own is not None and batch not in (None, own):
        raise InputError(
            f"{model.label}: `dims` gives {own} for the batch, {model.spec.batch_symbol!r}, and "
            f"`batch` gives {batch}: leave out one"
        )
    # An open dimension of the state that only begins inputs is a number of streams, also if some state has none.
    state = {size for each in model.spec.state for size in each.symbols} - {*sizes, model.spec.batch_symbol}
    for name in sorted(state.difference(model.growing_dimensions)):
        places = {axis for each in model.spec.inputs for axis, size in enumerate(each.shape or ()) if size == name}
        if places == {0}:
            sizes[name] = 1
            warnings.warn(f"{model.label}: {name!r} has the size 1; `dims={ {name: 8} }` gives another", stacklevel=4)
    return sizes, batch if own is None else check_count(f"the size of the batch, {model.spec.batch_symbol!r},", own)


def _write(
    lowered: list[tuple[ir.Model, StepFile]], paths: list[Path], notes: Notes, shared_weights: bool = False
) -> Exported:
    beside = {start_path(paths[0]): first} if (first := lowered[0][1].first_inputs) else {}
    names = [("step", paths[0]), *(("flush", path) for path in paths[1:]), *(("first_state", path) for path in beside)]
    models, facts = {}, []
    for (model, known), path in zip(lowered, paths, strict=True):
        files = {kind: Path(os.path.relpath(other, path.parent)).as_posix() for kind, other in names}
        facts.append(dataclasses.replace(known, files=files))
        describe_file(model, facts[-1], notes)
        models[path] = model
    shared = data_path(paths[0]) if shared_weights else None
    written = write_files(dict(reversed(models.items())), beside, shared)
    exported = [
        ExportedGraph(path, each, sum(1 for _ in model.graph.all_nodes()))
        for (path, model), each in zip(models.items(), facts, strict=True)
    ]
    return Exported(exported[0], exported[1] if len(exported) > 1 else None, written)


def _known_opset(opset: Any) -> int:
    newest = onnx.defs.onnx_opset_version()
    if check_count("opset", opset) > newest:
        raise UnsupportedError(
            f"opset {opset} is newer than the {newest} that the installed onnx {onnx.__version__} knows; upgrade onnx"
        )
    return int(opset)


@short_repr
@dataclass(frozen=True)
class ExportedGraph:
    """A file of an export.

    Attributes:
        path: the path of the file.
        facts: the facts in the metadata; `jaxrnn.load` reads the same.
        nodes: the number of nodes, including subgraphs.
    """

    path: Path
    facts: StepFile
    nodes: int


@short_repr
@dataclass(frozen=True)
class Exported:
    """The files of an export.

    Attributes:
        step: the step, or the function.
        flush: the flush, or None.
        digests: the SHA-256 of each written file: external data, first state, flush, step.
        errors: by how many decibels the error of static quantisation is below each output, over the recordings that
            gave the ranges; empty for other files.
    """

    step: ExportedGraph
    flush: ExportedGraph | None
    digests: Mapping[Path, str]
    errors: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def files(self) -> tuple[Path, ...]:
        """All files: external data, first state, flush, step."""
        return tuple(self.digests)


#: Tensors up to this many bytes stay in the model: ONNX's inference reads shapes.
SMALL = 1024
#: The alignment in bytes of tensors in a shared file.
_ALIGNED = 64


def check_targets(paths: Sequence[Path]) -> None:
    """Refuse paths that cannot be written, or that coincide with a second file of the export."""
    for path in paths:
        check_writable(path)
    beside = [*map(data_path, paths), start_path(paths[0])]
    for path in beside:
        check_writable(path)
    paths = [*paths, *beside]
    places = [os.path.realpath(path).casefold() for path in paths]
    for index, place in enumerate(places):
        if place in places[:index]:
            raise InputError(
                f"{paths[places.index(place)]} and {paths[index]} are the same file: choose different names"
            )


def start_path(path: Path) -> Path:
    """Return the path of the state before the first frame."""
    return path.with_name(f"{path.stem}.first_state.npz")


def data_path(path: Path) -> Path:
    """Return the path of the tensors of a model that is too large for one file."""
    return path.with_name(f"{path.name}.data")


def write_files(
    graphs: Mapping[Path, ir.Model], arrays: Mapping[Path, Mapping[str, np.ndarray]], shared: Path | None = None
) -> dict[Path, str]:
    """Write models and arrays by path. All files appear, or no file appears.

    ``shared`` is the file of the large tensors of all models. The last model refers to the previous files. Returns the
    SHA-256 of each file.
    """
    with contextlib.ExitStack() as stack:
        first = {path.parent: path for path in reversed((*graphs, *arrays))}
        beside = {folder: stack.enter_context(scratch(path)) for folder, path in first.items()}
        data: list[Path] = []
        if shared is not None and _share(graphs.values(), beside[shared.parent] / shared.name):
            data.append(shared)
        for path, model in graphs.items():
            data += _write_model(model, path, beside[path.parent])
        for path, entries in arrays.items():
            _write_arrays(entries, beside[path.parent] / path.name)
        written = {path: beside[path.parent] / path.name for path in (*data, *arrays, *graphs)}
        digests = {path: digest_of(unfinished) for path, unfinished in written.items()}
        replace_all(written)
    return digests


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_model(model: ir.Model, path: Path, folder: Path) -> list[Path]:
    """Write a model to a folder, check the file with ONNX, and return the files of external data."""
    tensors = [value.const_value for value in model.graph.initializers.values()]
    is_shared = any(isinstance(tensor, ir.ExternalTensor) for tensor in tensors)
    is_large = not is_shared and sum(0 if tensor is None else tensor.nbytes for tensor in tensors) > LARGEST
    data, written = data_path(path), folder / path.name
    if is_large:
        _share([model], folder / data.name)
    ir.save(model, written, format="protobuf")
    try:
        _check(written, is_large or is_shared, folder / f"{path.name}.inferred")
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ModelError(
            f"ONNX refuses the graph that jaxrnn made for {path}, which is a bug in jaxrnn; nothing was written: "
            f"{first_line(error, 2000)}"
        ) from error
    return [data] if is_large else []


def _share(models: Iterable[ir.Model], written: Path) -> bool:
    """Move the large tensors of models to a file, equal tensors once; return False if there are none."""
    places: dict[bytes, int] = {}
    with written.open("wb") as file:
        for model in models:
            for value in model.graph.initializers.values():
                tensor = value.const_value
                # ONNX's inference reads vectors of integers, which may be sizes or indices, only in the model.
                if (
                    tensor is None
                    or tensor.nbytes <= SMALL
                    or (len(tensor.shape) < 2 and not tensor.dtype.is_floating_point())
                ):
                    continue
                data = tensor.tobytes()
                if data not in places:
                    file.write(bytes(-file.tell() % _ALIGNED))
                    places[data] = file.tell()
                    file.write(data)
                value.const_value = ir.ExternalTensor(
                    written.name,
                    places[data],
                    len(data),
                    tensor.dtype,
                    shape=ir.Shape(tensor.shape.numpy()),
                    name=str(value.name),
                    base_dir=written.parent,
                )
    if not places:
        written.unlink()
    return bool(places)


def _check(written: Path, is_large: bool, inferred: Path) -> None:
    options = {"check_type": True, "strict_mode": True, "data_prop": True}
    if is_large:
        onnx.checker.check_model(os.fspath(written), full_check=True)
        onnx.shape_inference.infer_shapes_path(os.fspath(written), os.fspath(inferred), **options)
        return
    data = written.read_bytes()
    onnx.checker.check_model(data, full_check=True)
    onnx.shape_inference.infer_shapes(data, **options)


def _write_arrays(arrays: Mapping[str, np.ndarray], written: Path) -> None:
    """Write arrays like ``numpy.savez``, which does not accept all names."""
    with zipfile.ZipFile(written, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)


def describe_file(model: ir.Model, facts: StepFile, notes: Notes) -> None:
    """Write the facts into the metadata and doc strings of a model, and the texts of the file that it comes from."""
    model.metadata_props.update(notes.metadata)
    model.producer_name, model.producer_version = "jaxrnn", __version__
    model.metadata_props[METADATA] = json_text(facts.to_json())
    for key, text in flat_facts(facts).items():
        model.metadata_props[f"{METADATA}.{key}"] = text
    docs = [" ".join(_sentences(facts)), notes.docs.get("")]
    model.graph.doc_string = model.doc_string = "\n".join(filter(None, docs))
    texts = _texts(facts.of_streams(1))
    own = {given: notes.docs.get(name) for names in (facts.inputs, facts.outputs) for name, given in names.items()}
    own |= {each.input: notes.docs.get(each.input) for each in facts.state.values()}
    for value in (*model.graph.inputs, *model.graph.outputs):
        name = str(value.name)
        value.doc_string = "\n".join(filter(None, (texts.get(name), own.get(name))))


def json_text(facts: Mapping[str, Any]) -> str:
    """Return JSON with a line for each fact, and a line for each array of the graph."""

    def written(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)

    lines = []
    for key, value in facts.items():
        if isinstance(value, list) and value:
            listed = ",\n".join(f"  {written(each)}" for each in value)
            lines.append(f" {written(key)}: [\n{listed}\n ]")
        else:
            lines.append(f" {written(key)}: {written(value)}")
    return "{\n" + ",\n".join(lines) + "\n}"


def flat_facts(facts: StepFile) -> dict[str, str]:
    """Return the facts for programs without a JSON parser, as texts or lines ``NAME=VALUE``."""
    spec = facts.spec
    result = {"kind": facts.kind, **({"guard": "zeros"} if facts.guard else {})}
    if facts.kind == STEP:
        result["pulse"] = str(spec.pulse)
        result["delay"] = _lines({facts.outputs[each.name]: each.delay or 0 for each in _frames(facts)})
        if spec.past is not None:
            result["past"] = str(spec.past)
    if facts.kind == STEP and facts.frame_rate is not None:
        # 15 digits: :g alone has 6, too few for 44,100 samples a second in frames of 512.
        result["frame_rate"], result["look_ahead_ms"] = f"{facts.frame_rate:.15g}", f"{facts.look_ahead_ms:.15g}"
        delays = {facts.outputs[each.name]: facts.delay_ms(each) for each in _frames(facts)}
        result["delay_ms"] = _lines({name: f"{delay:.15g}" for name, delay in delays.items() if delay is not None})
    if facts.state and facts.kind == STEP:
        result["state"] = _lines({each.input: each.output for each in facts.state.values()})
    if facts.counts:
        result["counts"] = _lines({facts.outputs[name]: count for name, count in facts.counts.items()})
    return result | {key: name for key, name in facts.files.items() if key != facts.kind}


def _lines(values: Mapping[str, Any]) -> str:
    return "\n".join(f"{name}={value}" for name, value in values.items())


def _frames(facts: StepFile) -> list[OutputSpec]:
    return [each for each in facts.spec.outputs if each.time_axis is not None and each.name in facts.outputs]


def _sentences(facts: StepFile) -> list[str]:
    spec, files = facts.spec, facts.files
    guard = ["NaN and infinities in the inputs count as zeros."] if facts.guard else []
    if facts.kind == FUNCTION:
        return [f"{spec.label}, written by jaxrnn {__version__}.", *guard]
    if facts.kind == FLUSH:
        result = [f"{spec.label}, flush, written by jaxrnn {__version__}.", "Run it once, after the last step."]
        if facts.valid:
            result.append("The inputs are the frames that did not fill a pulse, padded with any values.")
            result.append(f"{facts.valid} is the number of these frames, which may be 0.")
        if facts.counts:
            result.append("Every output starts with its existing frames; its count output is their number.")
        return result
    result = [f"{spec.label}, one step, written by jaxrnn {__version__}."]
    if spec.streams:
        result.append(f"A step takes {_count(spec.pulse, 'input frame')}.")
    result += guard
    if spec.past is not None:
        result.append(f"The model was {said_past(spec.past)}.")
    if facts.state:
        after = ", ".join(f"{each.output} as {each.input}" for each in list(facts.state.values())[:3])
        more = ", and so on" if len(facts.state) > 3 else ""
        where = f" and in {files['first_state']}" if "first_state" in files else ""
        repeat = f", for one stream: repeat it {facts.batch} times" if isinstance(facts.batch, str) else ""
        result.append(f"The state before the first step is in the metadata {METADATA!r}{where}{repeat}.")
        result.append(f"After every step, pass the state back: {after}{more}.")
    delays = [
        f"{each.delay} of {facts.outputs[each.name]}{_in_time(facts.delay_ms(each))}"
        for each in _frames(facts)
        if each.delay
    ]
    if delays:
        result.append(f"Drop the first output frames of a stream: {', '.join(delays)}.")
    if "flush" in files:
        result.append(f"After the last step, {files['flush']} returns the remaining frames.")
    elif any(each.delay or each.at_end for each in spec.outputs) or spec.pulse > spec.multiple:
        result.append("The frames after the last step need the flush, which was not exported.")
    if spec.look_ahead:
        after = f"{_count(spec.look_ahead, 'input frame')}{_in_time(facts.look_ahead_ms)}"
        result.append(f"An output frame depends on {after} after it.")
    return result


def _in_time(milliseconds: float | None) -> str:
    return "" if milliseconds is None else f" ({milliseconds:g} ms)"


def _texts(facts: StepFile) -> dict[str, str]:
    spec = facts.spec
    texts = {facts.inputs[each.name]: _frames_text(each) for each in spec.inputs}
    for each in spec.outputs:
        if each.name in facts.outputs:
            texts[facts.outputs[each.name]] = _output_text(each, facts)
    for each in spec.state:
        names = facts.state[each.name]
        texts[names.input] = f"State ({each.kind}{_parts_text(facts.parts.get(each.name, ()))})"
        if names.output is not None:
            texts[names.input] += f": {names.output} of the previous step"
            texts[names.output] = f"State ({each.kind}): {names.input} of the next step"
    for name, count in facts.counts.items():
        texts[count] = f"Number of existing frames of {facts.outputs[name]}"
    if facts.valid is not None:
        texts[facts.valid] = "Number of existing frames of the tail"
    return texts


def _parts_text(parts: Sequence[StateSpec]) -> str:
    """Return the entries of a joined state with the ranges of their elements."""
    texts, start = [], 0
    for part in parts:
        end = start + math.prod(part.sizes)
        texts.append(f"{part.name} {list(part.sizes)} at {start} to {end}")
        start = end
    return "".join(f"; {text}" for text in texts)


def _frames_text(each: ArraySpec) -> str:
    if each.time_axis is None:
        return ""
    return f"{_count(each.sizes[each.time_axis], 'frame')} along axis {each.time_axis}"


def _output_text(each: OutputSpec, facts: StepFile) -> str:
    if each.time_axis is None:
        return "Known at the end" if each.at_end else ""
    text = _frames_text(each)
    if facts.kind == STEP and each.delay:
        text += f"; drop the first {each.delay} of a stream, which precede frame 0"
    if each.name in facts.counts:
        text += f", of which the first {facts.counts[each.name]} exist"
    return text


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
