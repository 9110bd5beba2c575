"""`export_onnx`: models, streams, steps and functions as ONNX files. All files of an export appear, or none."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from jaxrnn._files.arguments import argument
from jaxrnn._files.files import check_writable
from jaxrnn._files.messages import brief, first_line
from jaxrnn.errors import InputError, ModelError, UnsupportedError, check_count
from jaxrnn.export.describing import describe_file
from jaxrnn.export.graphs import Graph, file_names, flush_graph, function_graph, step_graph
from jaxrnn.export.sources import Source, is_stepper
from jaxrnn.model import Model
from jaxrnn.model.exporting import write_graph
from jaxrnn.onnx.stepfile import StepFile, is_rate
from jaxrnn.steps.stepper import Stepper

#: The opset of files that ask for no other: what every engine of the last years runs.
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
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    opset: int | None = None,
    label: str | None = None,
    frame_rate: float | None = None,
) -> Exported | None:
    """Write a model, a stream, a step or a function as an ONNX file.

    - Of a model, the file that it was loaded from, with these parameters in it: `jaxrnn.model.exporting.write_graph`
      says how. Every other byte stays as it was.
    - Of a model with ``step=True``, its step: the state goes in and out by the names of its file.
    - Of a streamed function, or one's own `Stepper`, a step on a pulse. An entry ``NAME`` of the state goes in under
      its name, and comes out as ``NAME_next``; with ``flush``, a second file gives what is left when a recording has
      ended.
    - Of a function of arrays, ``function(params, x)``, or ``function(x)`` where params is None: the function. A module
      of Flax NNX or Equinox is one, as in `jaxrnn.stream`.

    Parameters are in the file as numbers. Its metadata say what a program must know to run it, under the key
    ``jaxrnn`` as JSON (`jaxrnn.onnx.stepfile.StepFile`), and the descriptions of graph, inputs and outputs say it in
    sentences. Beside a step ``NAME.onnx`` lies ``NAME.first_state.npz``, its state before the first frame by the names
    of its inputs. `jaxrnn.load` takes such a file with its state and first state.

    The files appear when all of them are complete and ONNX's own checks have passed, or not at all. Tensors of more
    than 2 GB go to ``NAME.onnx.data``. Complex numbers are pairs along a last axis, the real part first.

    Example::

        jaxrnn.export_onnx(model, params, "tuned.onnx")
        jaxrnn.export_onnx(offline.stream(pulse=4), offline.params, "streaming.onnx", flush="flush.onnx")

    Args:
        stepper: what is written.
        params: its parameters; None for those that it has itself.
        path: the file to write; it may replace another.
        step: of a model, whether its step is written, as a graph of its own.
        flush: the file for the flush, in the same folder or another.
        example: of a function, its input: an array, which is then called ``x``, or arrays by name; shapes will do.
        batch: streams that a step is for: every array has an axis in front, or its own batch dimension, of that size.
            None for one stream.
        dims: sizes of the dimensions that a step leaves open, other than the batch.
        opset: the version of ONNX's operators; 17 by default.
        label: what a step or function calls itself; by default its own name.
        frame_rate: of a stream, input frames a second (samples, where a frame is one): the metadata then say delay and
            look-ahead in milliseconds, too.

    Returns:
        What was written; None of a model's whole graph.

    Raises:
        InputError: an argument does not fit; names it, and the mend.
        StateError: the model forgets its state after every call, so it has no steps; or its state grows.
        UnsupportedError: something has no counterpart in ONNX, or needs a newer opset; names its node or line.
        ModelError: ONNX refuses the graph.
    """
    options = {"flush": flush, "example": example, "batch": batch, "dims": dims, "opset": opset, "label": label}
    options |= {"frame_rate": frame_rate}
    if frame_rate is not None and not is_rate(frame_rate):
        raise InputError(f"frame_rate must be a number of frames a second, not {frame_rate!r}")
    if isinstance(stepper, Model) and not step:
        if given := [name for name, value in options.items() if value is not None]:
            raise InputError(
                f"{given[0]} is for a step, and a model is written as the graph that it was: give "
                f"{argument('step', True)} for its step"
            )
        write_graph(stepper, stepper.params if params is None else params, path)
        return None
    paths = [Path(path), *([] if flush is None else [Path(flush)])]
    check_targets(paths)
    version = _known_opset(OPSET if opset is None else opset)
    graphs = _graphs(stepper, params, options)
    if frame_rate is not None:
        known = float(frame_rate)
        graphs = [dataclasses.replace(each, facts=dataclasses.replace(each.facts, frame_rate=known)) for each in graphs]
    return _write(graphs, paths, version)


def _graphs(stepper: Any, params: Any, options: Mapping[str, Any]) -> list[Graph]:
    """The step, and the flush if it is asked for; or the function."""
    example, batch = options["example"], options["batch"]
    if is_stepper(stepper):
        if example is not None:
            raise InputError(f"example is for a function; a {type(stepper).__name__} knows its inputs")
        if batch is not None:
            check_count("batch, the number of streams,", batch)
        source = Source(stepper, params, batch, options["dims"] or {}, options["label"])
        names = file_names(source)
        return [step_graph(source, names), *([flush_graph(source, names)] if options["flush"] is not None else [])]
    if not callable(stepper):
        raise InputError(
            f"expected a model, a streamed function, another stepper or a function, not {type(stepper).__name__}"
        )
    if example is None:
        raise InputError("a function is traced on an example: give example=x, an array or a dict of arrays by name")
    if given := [name for name in ("flush", "batch", "dims", "frame_rate") if options[name] is not None]:
        raise InputError(f"{given[0]} is for a step with a state; a function is written as its example is")
    return [function_graph(stepper, params, example, options["label"])]


def _write(graphs: list[Graph], paths: list[Path], opset: int) -> Exported:
    """Lower, describe and write the graphs."""
    beside = {start_path(paths[0]): first} if (first := graphs[0].facts.first_inputs) else {}
    names = [("step", paths[0]), *(("flush", path) for path in paths[1:]), *(("first_state", path) for path in beside)]
    models, facts = {}, []
    for graph, path in zip(graphs, paths, strict=True):
        model = graph.lowered(opset)
        files = {kind: Path(os.path.relpath(other, path.parent)).as_posix() for kind, other in names}
        facts.append(dataclasses.replace(graph.facts, files=files))
        describe_file(model, facts[-1])
        models[path] = model
    written = write_files(dict(reversed(models.items())), beside)
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


@brief
@dataclass(frozen=True)
class ExportedGraph:
    """One file of an export.

    Attributes:
        path: where it is.
        facts: what its metadata says; `jaxrnn.load` reads the same.
        nodes: how many nodes its graph has, those inside of others included.
    """

    path: Path
    facts: StepFile
    nodes: int


@brief
@dataclass(frozen=True)
class Exported:
    """The files that an export wrote.

    Attributes:
        step: the step, or the function.
        flush: the flush; None where none was asked for.
        files: every file, in the order in which they appeared: external data, the first state, the flush, the step.
    """

    step: ExportedGraph
    flush: ExportedGraph | None
    files: tuple[Path, ...]


#: The largest message of protobuf, less some room: the tensors of larger models lie in a file of their own.
LARGEST = 2**31 - 2**24
#: Of these, tensors up to so many bytes stay in the model, such as shapes, which ONNX's inference reads.
SMALL = 1024


def check_targets(paths: Sequence[Path]) -> None:
    """Refuse files that cannot be written, or would be the same as others beside them, before any work is done.

    Args:
        paths: of the step or function, and of the flush.

    Raises:
        InputError: names them.
    """
    for path in paths:
        check_writable(path)
    beside = [*map(data_path, paths), start_path(paths[0])]
    for path in beside:
        check_writable(path)
    paths = [*paths, *beside]
    places = [os.path.realpath(path).casefold() for path in paths]
    for index, place in enumerate(places):
        if place in places[:index]:
            raise InputError(f"{paths[places.index(place)]} and {paths[index]} are one file: give each its own name")


def start_path(path: Path) -> Path:
    """Where the state before the first frame of a step lies."""
    return path.with_name(f"{path.stem}.first_state.npz")


def data_path(path: Path) -> Path:
    """Where the tensors of a model lie that is too large for one file."""
    return path.with_name(f"{path.name}.data")


def write_files(graphs: Mapping[Path, ir.Model], arrays: Mapping[Path, Mapping[str, np.ndarray]]) -> tuple[Path, ...]:
    """Write models and arrays by their paths: all of them appear, the models last, or none does.

    Args:
        graphs: models, the last of which refers to the others.
        arrays: arrays by name for files of NumPy.

    Returns:
        Every file in the order in which it appeared.

    Raises:
        ModelError: ONNX refuses a model.
    """
    with contextlib.ExitStack() as stack:
        scratch = {
            folder: Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".jaxrnn.", dir=folder)))
            for folder in dict.fromkeys(path.parent for path in (*graphs, *arrays))
        }
        data: list[Path] = []
        for path, model in graphs.items():
            data += _write_model(model, path, scratch[path.parent])
        for path, entries in arrays.items():
            _write_arrays(entries, scratch[path.parent] / path.name)
        paths = (*data, *arrays, *graphs)
        _replace({path: scratch[path.parent] / path.name for path in paths})
    return paths


def _write_model(model: ir.Model, path: Path, folder: Path) -> list[Path]:
    """Write a model into a folder, and have ONNX check it; the files beside it that it needs.

    Raises:
        ModelError: ONNX refuses it.
    """
    tensors = [value.const_value for value in model.graph.initializers.values()]
    is_large = sum(0 if tensor is None else tensor.nbytes for tensor in tensors) > LARGEST
    data, written = data_path(path), folder / path.name
    ir.save(
        model, written, format="protobuf", external_data=data.name if is_large else None, size_threshold_bytes=SMALL
    )
    try:
        _check(written, is_large, folder / f"{path.name}.inferred")
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ModelError(
            f"ONNX refuses the graph that jaxrnn made for {path}, which is a defect of jaxrnn; nothing was written: "
            f"{first_line(error, 2000)}"
        ) from error
    return [data] if (folder / data.name).exists() else []


def _check(written: Path, is_large: bool, inferred: Path) -> None:
    """ONNX's checker in full mode, and its inference of shapes and types in strict mode."""
    options = {"check_type": True, "strict_mode": True, "data_prop": True}
    if is_large:
        onnx.checker.check_model(os.fspath(written), full_check=True)
        onnx.shape_inference.infer_shapes_path(os.fspath(written), os.fspath(inferred), **options)
        return
    data = written.read_bytes()
    onnx.checker.check_model(data, full_check=True)
    onnx.shape_inference.infer_shapes(data, **options)


def _write_arrays(arrays: Mapping[str, np.ndarray], written: Path) -> None:
    """As ``numpy.savez``, which cannot have every name."""
    with zipfile.ZipFile(written, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)


def _replace(files: Mapping[Path, Path]) -> None:
    """Move files to their places, in order; where one cannot be moved, what was there before is there again."""
    moved: list[tuple[Path, Path | None]] = []
    try:
        for index, (path, written) in enumerate(files.items()):
            before = written.with_name(f"{index}.before") if os.path.lexists(path) else None
            if before is not None:
                _keep(path, before)
            moved.append((path, before))
            os.replace(written, path)
    except BaseException:
        for path, before in reversed(moved):
            if before is not None:
                os.replace(before, path)
            else:
                path.unlink(missing_ok=True)
        raise


def _keep(path: Path, before: Path) -> None:
    """Give a file a second name, or copy it where a file system has no such thing."""
    try:
        os.link(path, before, follow_symlinks=False)
    except (OSError, NotImplementedError):
        shutil.copy2(path, before, follow_symlinks=False)
