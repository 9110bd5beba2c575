"""A folder with an exported stream, and programs that run it, to start from."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxrnn._files.messages import first_line, without_folders
from jaxrnn._files.stores import check_replaceable, check_writable
from jaxrnn._files.writing import replace_all, scratch
from jaxrnn.errors import InputError
from jaxrnn.export.files import Exported, data_path, digest_of, start_path
from jaxrnn.onnx.stepfile import LITERT, StepFile
from jaxrnn.steps.specs import ArraySpec, dtype_named
from jaxrnn.verification.litert import SUFFIX

#: The programs by engine: each reads stream.json or the metadata of the ONNX file, or is written with the facts.
TEMPLATES = Path(__file__).parent / "templates"
PROGRAMS = {
    LITERT: ("Stream.kt", "Stream.swift", "main.c", "run.py"),
    None: ("CMakeLists.txt", "config.pbtxt", "index.html", "main.cpp", "run.py"),
}
#: Triton's names of types that are not those of NumPy in capitals.
_TRITON = {"float16": "FP16", "float32": "FP32", "float64": "FP64", "bfloat16": "BF16"}
#: The facts of an example, and the state before the first frame.
FACTS, STATE = "stream.json", "state.bin"


def write_example(exported: Exported, folder: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Write a folder with an exported stream or step and programs that run it, to start from.

    The folder gets copies of the files of the export, ``stream.json`` (the arrays with their types, shapes and places
    in time, the pulse, the delay and the rate), ``state.bin`` (the first state, little-endian), and programs:
    ``run.py`` (NumPy and the engine); for ONNX also ``main.cpp`` with ``CMakeLists.txt``, ``index.html`` for
    onnxruntime-web, and ``config.pbtxt`` for Triton Inference Server unless an array of the state has no axes (export
    with ``join_state``); for LiteRT also ``main.c``, ``Stream.kt`` and ``Stream.swift``.

    The files of an earlier example in the folder are replaced, all or none. If the process is killed in between, files
    are missing, but files of two exports are never mixed. Programs that were edited since, or whose origin is unknown,
    are kept.

    Args:
        exported: the result of `jaxrnn.export_onnx` or `jaxrnn.export.export_litert` for a stream or a step.
        folder: the folder, which is created if the parent exists.

    Returns:
        The paths of the written files.

    Raises:
        InputError: the export is a function without steps, has a batch, is in the folder, or has two files with the
            same name; or the folder has other files with the names of the example, or an example for another engine;
            or a file of the export was replaced since.

    Warns:
        UserWarning: programs were kept.
    """
    step, flush, folder = exported.step, exported.flush, Path(folder)
    facts = step.facts
    if facts.kind != "step":
        raise InputError("an example is for a stream or a step of one stream, not for a function")
    earlier = check_example(
        folder, step.path, None if flush is None or flush.path == step.path else flush.path, facts.batch
    )
    described, state = _facts_of(exported)
    texts = _programs(facts.target, described)
    kept = [name for name, text in texts.items() if _is_edited(folder / name, text, earlier.get(name))]
    with scratch(folder / FACTS if folder.exists() else folder) as beside:
        new = beside / "new"
        new.mkdir()
        for path, digest in exported.digests.items():
            if digest_of(Path(shutil.copyfile(path, new / path.name))) != digest:
                raise InputError(f"{path} was replaced after the export, so {folder} was not written: export again")
        described["programs"] = {name: _digest(text) for name, text in texts.items()} | {
            name: earlier[name] for name in kept if name in earlier
        }
        for name, text in texts.items():
            if name not in kept:
                (new / name).write_text(text, encoding="utf-8")
        (new / STATE).write_bytes(state)
        (new / FACTS).write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
        names = sorted((path.name for path in new.iterdir()), key=lambda name: (name == FACTS, name))
        try:
            os.replace(new, folder)
        except OSError:
            if not folder.is_dir():
                raise
            replace_all({folder / name: new / name for name in names})
    if kept:
        warnings.warn(
            f"{folder}: {', '.join(kept)} {'was' if len(kept) == 1 else 'were'} edited, or written by another version, "
            "and stay as before; delete or rename a program, and export again, to get the new one",
            stacklevel=2,
        )
    return tuple(folder / name for name in names)


def check_example(folder: Path, step: Path, flush: Path | None, batch: int | str | None) -> dict[str, str]:
    """Check before an export that an example can be written; return the digests of the programs of an earlier example.

    Raises:
        InputError: see `write_example`.
    """
    if batch is not None:
        raise InputError("an example is for a stream or a step of one stream: export without a batch")
    if flush is not None and flush.name.casefold() == step.name.casefold():
        raise InputError(f"{step} and {flush} have the same name, and an example is a single folder: give other names")
    paths = [step, *([] if flush is None else [flush])]
    if inside := [path for path in paths if os.path.realpath(path.parent) == os.path.realpath(folder)]:
        raise InputError(f"{folder} gets a copy of {inside[0]}: export to another folder")
    if not folder.is_dir():
        check_writable(folder)
        if folder.exists():
            raise InputError(f"{folder} is a file, and an example is a folder: give another name")
        return {}
    data = {STATE, *(name for path in paths for name in _names_beside(path))}
    earlier = _earlier(folder)
    if earlier is not None and str(earlier["step"]).endswith(SUFFIX) != (step.suffix == SUFFIX):
        raise InputError(
            f"{folder} has an example with {earlier['step']}, whose programs do not run {step.name}: choose another "
            "folder"
        )
    own = {FACTS, STATE}
    if earlier is not None:
        named = (earlier[key] for key in ("step", "flush") if isinstance(earlier[key], str))
        own |= {name for each in named for name in _names_beside(Path(each))}
    if foreign := sorted(name for name in data if (folder / name).exists() and (earlier is None or name not in own)):
        raise InputError(
            f"{folder / foreign[0]} does not belong to an example, and would be replaced: choose another folder, or "
            "move the file"
        )
    for name in (*data, FACTS):
        check_replaceable(folder / name)
    programs = (earlier or {}).get("programs")
    return programs if isinstance(programs, dict) else {}


def _names_beside(path: Path) -> set[str]:
    """Return the names of the files that an export of a file can write."""
    return {each.name for each in (path, data_path(path), start_path(path))}


def _earlier(folder: Path) -> dict[str, Any] | None:
    """Return the facts of the example in a folder; None without an example."""
    path = folder / FACTS
    if not path.exists():
        return None
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(facts, dict) and {"label", "step", "flush", "state"} <= facts.keys():
            return facts
        reason = "it does not have the facts of a stream"
    except (OSError, ValueError) as error:
        reason = first_line(error)
    raise InputError(
        f"{path} is not of an example of jaxrnn, and would be replaced: {reason}. Choose another folder, or move the "
        "file"
    )


def _is_edited(path: Path, text: str, digest: str | None) -> bool:
    """Return True for an existing program that is neither the new one nor as it was written."""
    if not path.exists():
        return False
    try:
        found = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return True
    return found != text and _digest(found) != digest


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _programs(target: str | None, described: dict[str, Any]) -> dict[str, str]:
    """Return the texts of the programs for an engine, keyed by file name."""
    names = PROGRAMS.get(target, PROGRAMS[None])
    if not all(each["shape"] for each in (*described["inputs"], *described["state"])):
        names = [name for name in names if name != "config.pbtxt"]  # Triton has no arrays without axes
    return {name: "".join(_lines(name, (TEMPLATES / name).read_text(encoding="utf-8"), described)) for name in names}


def _lines(name: str, text: str, described: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a program. A line after ``@INPUTS@`` is repeated for each input, as for outputs and state."""
    for line in text.splitlines(keepends=True):
        repeated = re.match("@(INPUTS|OUTPUTS|STATE)@", line)
        if repeated is None:
            yield filled(name, line, described)
            continue
        for each in described[repeated[1].lower()]:
            if name == "config.pbtxt" and not each.get("in_step", True):  # an output of the flush
                continue
            yield filled(name, line[repeated.end() :], {**each, **_sizes(each)})


def filled(name: str, line: str, values: dict[str, Any]) -> str:
    """Replace marks such as ``@DELAY@`` by values. Texts are escaped for literals; None is an empty text."""

    def value(mark: re.Match[str]) -> str:
        found = values[mark[1].lower()]
        return _ESCAPES[Path(name).suffix](found) if isinstance(found, str) else "" if found is None else str(found)

    return re.sub("@([A-Z_]+)@", value, line)


def _escaped(form: str, encoding: str, size: int) -> Callable[[str], str]:
    """Return a function that writes all but letters, digits and a few signs by the numbers of their code units.

    No language then sees trigraphs, interpolations, ends of lines or of literals.
    """

    def escaped(character: re.Match[str]) -> str:
        data = character[0].encode(encoding)
        return "".join(form % int.from_bytes(data[at : at + size]) for at in range(0, len(data), size))

    return lambda text: re.sub("[^A-Za-z0-9 _./-]", escaped, text)


#: Texts in literals, by the ending of a program: octal bytes of UTF-8, UTF-16, or code points.
_ESCAPES: dict[str, Callable[[str], str]] = {
    ".c": (_of_c := _escaped(r"\%03o", "utf-8", 1)),
    ".cpp": _of_c,
    ".pbtxt": _of_c,
    ".kt": _escaped(r"\u%04x", "utf-16-be", 2),
    ".swift": _escaped(r"\u{%x}", "utf-32-be", 4),
}


def _sizes(each: dict[str, Any]) -> dict[str, Any]:
    """Return facts about an array of ``stream.json``: bytes, frames, blocks of memory with frames, Triton's words."""
    axis, kind = each.get("time_axis"), each["type"]
    own = {"triton": f"TYPE_{_TRITON.get(kind, kind.upper())}", "start": each.get("offset", 0) + 1}
    sizes = own | {
        "bytes": math.prod(each["shape"]) * dtype_named(each["type"]).itemsize,
        "delay": each.get("delay") or 0,
    }
    if axis is None:
        return sizes | {"frames": 1, "blocks": 1}
    return sizes | {"frames": each["shape"][axis], "blocks": math.prod(each["shape"][:axis])}


def _facts_of(exported: Exported) -> tuple[dict[str, Any], bytes]:
    """Return the facts for the programs, and the bytes of the first state."""
    step, flush = exported.step, exported.flush
    facts, spec = step.facts, step.facts.spec
    blob, state = b"", []
    for each in spec.state:
        array, names = np.asarray(facts.first[each.name]), facts.state[each.name]
        data = array.astype(array.dtype.newbyteorder("<")).tobytes()
        entry = {**_typed(each), "input": names.input, "output": names.output}
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
        "look_ahead_ms": facts.look_ahead_ms,
        "inputs": [
            {"name": facts.inputs[each.name], **_typed(each), "time_axis": each.time_axis} for each in spec.inputs
        ],
        "outputs": list(_outputs(facts, None if flush is None else flush.facts)),
        "state": state,
        "valid": None if flush is None else flush.facts.valid,
    }
    return described, blob


def _typed(each: ArraySpec) -> dict[str, Any]:
    """Return type and shape of an input or an output of a file."""
    assert each.dtype is not None
    return {"type": each.dtype.name, "shape": list(each.sizes)}


def _outputs(step: StepFile, flush: StepFile | None) -> Iterator[dict[str, Any]]:
    """Yield facts about each output: name, type, shape, timing, and the files that return the output."""
    for each in step.spec.outputs:
        names = [facts.outputs[each.name] for facts in (step, flush) if facts and each.name in facts.outputs]
        if names:
            yield {
                "name": names[0],
                **_typed(each),
                "time_axis": each.time_axis,
                "delay": each.delay,
                "delay_ms": step.delay_ms(each),
                "count": None if flush is None else flush.counts.get(each.name),
                "in_step": each.name in step.outputs,
            }
