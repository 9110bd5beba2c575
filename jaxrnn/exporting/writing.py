"""The files of an export: checked by ONNX itself, and all of them there or none."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from jaxrnn._files.files import check_writable
from jaxrnn._files.messages import first_line
from jaxrnn.errors import InputError, ModelError

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
