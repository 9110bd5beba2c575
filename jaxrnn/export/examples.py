"""A folder with an exported stream, and programs that run it in Python, in C++ and in a browser."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxrnn._files.messages import without_folders
from jaxrnn._files.stores import check_writable
from jaxrnn.errors import InputError
from jaxrnn.export.files import Exported, ExportedGraph

#: The programs: each reads stream.json, or the metadata of the ONNX files.
TEMPLATES = Path(__file__).parent / "templates"


def write_example(exported: Exported, folder: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Write a folder with an exported stream or step and programs that run it, to start from.

    The folder gets copies of the ONNX files, ``stream.json`` (the arrays with their types, shapes and places in time,
    the pulse, the delay and the rate), ``state.bin`` (the first state, little-endian), ``run.py`` (NumPy and ONNX
    Runtime), ``main.cpp`` with ``CMakeLists.txt``, and ``index.html`` for onnxruntime-web.

    Args:
        exported: the result of `jaxrnn.export_onnx` for a stream or a step.
        folder: the folder, which is created if the parent exists.

    Returns:
        The paths of the written files.

    Raises:
        InputError: the export is a function without steps, has a batch, or has two files with the same name.
    """
    step, flush, folder = exported.step, exported.flush, Path(folder)
    facts, spec = step.facts, step.facts.spec
    if facts.kind != "step" or facts.batch is not None:
        raise InputError("an example is for a stream or a step of one stream: export without a batch")
    if flush is not None and flush.path.name.casefold() == step.path.name.casefold():
        raise InputError(
            f"{step.path} and {flush.path} have the same name, and an example is a single folder: give other names"
        )
    check_writable(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, and an example is a folder: give another name")
    folder.mkdir(exist_ok=True)
    paths = [path for path in exported.files if path.suffix != ".npz"]
    for path in paths:
        if not (folder / path.name).exists() or not os.path.samefile(path, folder / path.name):
            shutil.copyfile(path, folder / path.name)
    first, blob, state = facts.first_inputs, b"", []
    types = {value.name: value for value in ir.load(step.path).graph.inputs}
    for names in facts.state.values():
        array = np.asarray(first[names.input])
        data = array.astype(array.dtype.newbyteorder("<")).tobytes()
        entry = {**_described(types[names.input]), "input": names.input, "output": names.output}
        del entry["name"]
        state.append({**entry, "offset": len(blob), "bytes": len(data)})
        blob += data
    described = {
        "label": without_folders(spec.label),
        "step": step.path.name,
        "flush": None if flush is None else flush.path.name,
        "pulse": spec.pulse,
        "shortest": spec.shortest,
        "longest": spec.longest,
        "rate": facts.frame_rate,
        "inputs": [{**_described(types[facts.inputs[each.name]]), "time_axis": each.time_axis} for each in spec.inputs],
        "outputs": list(_outputs(step, flush)),
        "state": state,
        "valid": None if flush is None else flush.facts.valid,
    }
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(TEMPLATES.iterdir()) if path.is_file()}
    for mark, name in (("@STEP@", described["step"]), ("@FLUSH@", described["flush"] or "")):
        texts["main.cpp"] = texts["main.cpp"].replace(mark, name)
    texts["stream.json"] = json.dumps(described, indent=1) + "\n"
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "state.bin").write_bytes(blob)
    return tuple(folder / name for name in (*(path.name for path in paths), "state.bin", *sorted(texts)))


def _described(value: Any) -> dict[str, Any]:
    """Return name, type and shape of an input or an output of a file."""
    return {"name": value.name, "type": value.dtype.numpy().name, "shape": list(value.shape.numpy())}


def _outputs(step: ExportedGraph, flush: ExportedGraph | None) -> Iterator[dict[str, Any]]:
    """Yield facts about each output: name, type, shape, timing, and the files that return the output."""
    graphs = [each for each in (step, flush) if each is not None]
    values = {value.name: value for graph in reversed(graphs) for value in ir.load(graph.path).graph.outputs}
    for each in step.facts.spec.outputs:
        names = [graph.facts.outputs[each.name] for graph in graphs if each.name in graph.facts.outputs]
        if names:
            yield {
                **_described(values[names[0]]),
                "time_axis": each.time_axis,
                "delay": each.delay,
                "count": None if flush is None else flush.facts.counts.get(each.name),
                "in_step": each.name in step.facts.outputs,
            }
