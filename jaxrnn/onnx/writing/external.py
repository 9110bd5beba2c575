"""New numbers in copies of external data files; the original files are only read."""

from __future__ import annotations

import filecmp
import itertools
import math
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import Message

from jaxrnn.errors import InputError
from jaxrnn.onnx.origins import Address
from jaxrnn.onnx.tensors import check_tensor
from jaxrnn.onnx.writing.numbers import little_endian
from jaxrnn.onnx.writing.wire import Edit


class Stored(NamedTuple):
    """A tensor whose elements are the bytes ``start`` to ``end`` of a file.

    Attributes:
        tensor: its message in the model.
        address: the address of that message.
        label: its label in error messages.
        location: the file, relative to the model's folder.
        start: the offset of its first byte.
        end: the offset after its last byte.
    """

    tensor: onnx.TensorProto
    address: Address
    label: str
    location: str
    start: int
    end: int


def stored_tensors(message: Message, folder: Path, address: Address = ()) -> Iterator[Stored]:
    """All tensors of a model that are external data.

    Raises:
        ModelError: the data is missing, or not in the model's folder.
    """
    if isinstance(message, onnx.TensorProto):
        if message.data_location == onnx.TensorProto.EXTERNAL:
            label = f"tensor {message.name!r}"
            check_tensor(message, label, folder)
            entries = {entry.key: entry.value for entry in message.external_data}
            start = int(entries.get("offset", 0))
            size = -(-math.prod(message.dims) * ir.DataType(message.data_type).bitwidth // 8)
            location = os.path.normpath(entries["location"])
            yield Stored(message, address, label, location, start, start + size)
        return
    for field, value in message.ListFields():
        if isinstance(value, Message):
            yield from stored_tensors(value, folder, (*address, (field.number, None)))
        elif field.message_type is not None:
            for index, inner in enumerate(value):
                yield from stored_tensors(inner, folder, (*address, (field.number, index)))


def write_data(
    tensors: Iterable[Stored],
    arrays: Mapping[Address, np.ndarray],
    names: Mapping[Address, str],
    folder: Path,
    target: Path,
    scratch: Path,
    created: list[Path],
) -> dict[Address, Edit]:
    """Write the data files of a model that will be written to ``target``, in its folder, whole or not at all.

    A file keeps its name unless another file with different content has it. Everything but ``arrays`` is copied.

    Args:
        tensors: all tensors of the model that are external data.
        arrays: new elements by the addresses of their tensors.
        names: the names of those parameters for messages.
        folder: the folder that the model was read from.
        target: the model to write.
        scratch: an empty folder on the same file system.
        created: receives the path of every file as soon as it is created.

    Returns:
        The edits of the model: new locations of data files that could not keep their names.

    Raises:
        InputError: two tensors share bytes, but would need different ones.
    """
    files: dict[str, list[Stored]] = {}
    for tensor in tensors:
        files.setdefault(tensor.location, []).append(tensor)
    edits: dict[Address, Edit] = {}
    for number, (location, inside) in enumerate(files.items()):
        original, written = folder / location, scratch / f"data{number}"
        if target.exists() and os.path.samefile(original, target):
            raise InputError(f"{target} holds the model's external data; write the model to another name")
        new = {each.address: little_endian(arrays[each.address]) for each in inside if each.address in arrays}
        _check_shared(inside, new, names, original)
        shutil.copyfile(original, written)
        with written.open("r+b") as file:
            for each in inside:
                if each.address in new:
                    file.seek(each.start)
                    file.write(new[each.address])
            file.flush()
            os.fsync(file.fileno())
        other = f"{target.name}.data" if len(files) == 1 else f"{target.name}.{location.replace(os.sep, '_')}"
        name = _place(written, original, location, other, target, created)
        if name != location:
            edits |= {place: edit for each in inside for place, edit in _relocated(each, name)}
    return edits


def _relocated(stored: Stored, name: str) -> Iterator[tuple[Address, Edit]]:
    for index, entry in enumerate(stored.tensor.external_data):
        if entry.key == "location":
            steps = (
                (onnx.TensorProto.EXTERNAL_DATA_FIELD_NUMBER, index),
                (onnx.StringStringEntryProto.VALUE_FIELD_NUMBER, None),
            )
            yield (*stored.address, *steps), lambda _: [name.encode()]


def _check_shared(inside: list[Stored], new: Mapping[Address, bytes], names: Mapping[Address, str], file: Path) -> None:
    """Refuse tensors that share bytes and would need different ones."""
    ordered = sorted((each for each in inside if each.end > each.start), key=lambda each: each.start)
    for index, first in enumerate(ordered):
        for second in itertools.takewhile(lambda each, end=first.end: each.start < end, ordered[index + 1 :]):
            if first.address not in new and second.address not in new:
                continue
            start, end = second.start, min(first.end, second.end)
            if _bytes_of(first, new, file, start, end) != _bytes_of(second, new, file, start, end):
                labels = [f"params[{names[e.address]!r}]" if e.address in new else e.label for e in (first, second)]
                raise InputError(
                    f"{labels[0]} and {labels[1]} share bytes {start} to {end} of {file.name}, and would need "
                    "different ones; give both the same values, or save the model with a copy of its own for each"
                )


def _bytes_of(stored: Stored, new: Mapping[Address, bytes], path: Path, start: int, end: int) -> bytes:
    if stored.address in new:
        return new[stored.address][start - stored.start : end - stored.start]
    with path.open("rb") as file:
        file.seek(start)
        return file.read(end - start)


def _place(written: Path, original: Path, location: str, other: str, target: Path, created: list[Path]) -> str:
    """Move a data file to an unused name, or keep the file that equals it; returns the name."""
    folder = target.parent
    numbered = (f"{other}.{number}" for number in itertools.count(1))
    for name in itertools.chain((location, other), numbered):
        path = folder / name
        if not _may_lie_at(path, target):
            continue
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            if _is_equal(path, written, original):
                return name
            continue
        created.append(path)
        os.replace(written, path)
        return name
    raise AssertionError("there is always another number")


def _may_lie_at(path: Path, target: Path) -> bool:
    """Whether a data file may have this path: inside the model's folder, and not the model. Creates its folder."""
    inside = Path(os.path.realpath(path.parent)).is_relative_to(os.path.realpath(target.parent))
    if not inside or str(path).casefold() == str(target).casefold():
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        return False
    return True


def _is_equal(path: Path, written: Path, original: Path) -> bool:
    """Whether an existing file has equal content and is no link, unless it is the original itself."""
    status = path.lstat()
    plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
    is_original = path.exists() and path.samefile(original)
    return (plain or is_original) and filecmp.cmp(written, path, shallow=False)
