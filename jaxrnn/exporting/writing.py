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

from jaxrnn.errors import InputError, ModelError
from jaxrnn.files import check_writable
from jaxrnn.messages import first_line

#: The largest message of protobuf, less some room: the tensors of larger models lie in a file of their own.
LARGEST = 2**31 - 2**24


def check_targets(paths: Sequence[Path]) -> None:
    """Refuse files that cannot be written, or are the same, before any work is done.

    Raises:
        InputError: names them.
    """
    for path in paths:
        check_writable(path)
    places = [os.path.realpath(path).casefold() for path in paths]
    for index, place in enumerate(places):
        if place in places[:index]:
            raise InputError(f"{paths[places.index(place)]} and {paths[index]} are one file: give each its own name")


def data_path(path: Path) -> Path:
    """Where the tensors of a model lie that is too large for one file."""
    return path.with_name(f"{path.name}.data")


def write_files(
    graphs: Mapping[Path, ir.Model], arrays: Mapping[Path, Mapping[str, np.ndarray]], largest: int = LARGEST
) -> tuple[Path, ...]:
    """Write models and arrays by their paths: all of them appear, the models last, or none does.

    Args:
        graphs: models, the last of which refers to the others.
        arrays: arrays by name for files of NumPy.
        largest: the most bytes of tensors that a model holds itself.

    Returns:
        Every file in the order in which it appeared.

    Raises:
        ModelError: ONNX refuses a model.
        InputError: a file cannot be written.
    """
    with contextlib.ExitStack() as stack:
        scratch = {
            folder: Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".jaxrnn.", dir=folder)))
            for folder in dict.fromkeys(path.parent for path in (*graphs, *arrays))
        }
        data: list[Path] = []
        for path, model in graphs.items():
            data += _write_model(model, path, scratch[path.parent], largest)
        for path, entries in arrays.items():
            _write_arrays(entries, scratch[path.parent] / path.name)
        paths = (*data, *arrays, *graphs)
        _replace({path: scratch[path.parent] / path.name for path in paths})
    return paths


def _write_model(model: ir.Model, path: Path, folder: Path, largest: int) -> list[Path]:
    """Write a model into a folder, and have ONNX check it; the files beside it that it needs.

    Raises:
        ModelError: ONNX refuses it.
    """
    tensors = [value.const_value for value in model.graph.initializers.values()]
    is_large = sum(0 if tensor is None else tensor.nbytes for tensor in tensors) > largest
    data, written = data_path(path), folder / path.name
    ir.save(model, written, format="protobuf", external_data=data.name if is_large else None)
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
