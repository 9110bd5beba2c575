"""Writing a model's file and data files atomically: a reader sees the old model or the new one."""

from __future__ import annotations

import filecmp
import itertools
import math
import os
import shutil
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import Message

from jaxrnn._files.writing import deferred_interrupts, scratch
from jaxrnn.errors import InputError, ModelError, UnsupportedError
from jaxrnn.onnx.graph import Address, Origin
from jaxrnn.onnx.reading import SourceFile
from jaxrnn.onnx.tensors import check_tensor

VARINT, FIXED64, BYTES, GROUP, GROUP_END, FIXED32 = range(6)


def write_model(
    source: SourceFile,
    arrays: Mapping[str, np.ndarray],
    changed: frozenset[str],
    origins: Mapping[str, Origin],
    path: Path,
) -> None:
    """Write a model with new numbers in some tensors, and all other bytes unchanged."""
    if source.data is None:
        raise UnsupportedError("the model is larger than the 2 GB of a protobuf message; load it with external data")
    with scratch(path) as folder:
        created: list[Path] = []
        written = folder / "model"
        written.touch()
        try:
            edits: dict[Address, Edit] = {}
            external: set[Address] = set()
            if source.folder is not None:
                tensors = list(stored_tensors(onnx.ModelProto.FromString(source.data), source.folder))
                external = {tensor.address for tensor in tensors}
                # Including unchanged parameters, because the data file may have changed since the model was read.
                named = {origins[name].address: name for name in arrays if origins[name].address in external}
                edits = write_data(tensors, arrays, named, source.folder, path, folder, created)
            for name in changed:
                address, kind, _ = origins[name]
                if address not in external:
                    edits[address] = (in_tensor if kind is onnx.TensorProto else in_attribute)(arrays[name])
            with written.open("wb") as file:
                file.writelines(edited(memoryview(source.data), edits) if edits else [source.data])
                file.flush()
                os.fsync(file.fileno())
            os.replace(written, path)
        except BaseException:
            # After the model was moved into place, the data files are in use.
            if written.exists():
                for each in created:
                    each.unlink(missing_ok=True)
            raise


class Stored(NamedTuple):
    """A tensor in external data: the bytes ``start`` to ``end`` of a file."""

    tensor: onnx.TensorProto  # the message in the model
    address: Address  # the address of that message
    label: str  # the label in error messages
    location: str  # the file, relative to the model's folder
    start: int  # the offset of the first byte
    end: int  # the offset after the last byte


def stored_tensors(message: Message, folder: Path, address: Address = ()) -> Iterator[Stored]:
    """Yield the tensors of a model in external data."""
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
    arrays: Mapping[str, np.ndarray],
    names: Mapping[Address, str],
    folder: Path,
    target: Path,
    scratch: Path,
    created: list[Path],
) -> dict[Address, Edit]:
    """Write the data files of a model for ``target``, in the same folder, completely or not at all.

    A file keeps its name unless a different file has this name. Tensors in ``names`` get the array of their name, and
    all other data is copied. Returns the edits of the model: new locations of renamed data files.
    """
    files: dict[str, list[Stored]] = {}
    for tensor in tensors:
        files.setdefault(tensor.location, []).append(tensor)
    edits: dict[Address, Edit] = {}
    for number, (location, inside) in enumerate(files.items()):
        original, written = folder / location, scratch / f"data{number}"
        if target.exists() and os.path.samefile(original, target):
            raise InputError(f"{target} contains the model's external data; write the model under a different name")
        new = {each.address: little_endian(arrays[names[each.address]]) for each in inside if each.address in names}
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
    """Refuse tensors that share bytes and need different bytes."""
    ordered = sorted((each for each in inside if each.end > each.start), key=lambda each: each.start)
    for index, first in enumerate(ordered):
        for second in itertools.takewhile(lambda each, end=first.end: each.start < end, ordered[index + 1 :]):
            if first.address not in new and second.address not in new:
                continue
            start, end = second.start, min(first.end, second.end)
            if _bytes_of(first, new, file, start, end) != _bytes_of(second, new, file, start, end):
                labels = [f"params[{names[e.address]!r}]" if e.address in new else e.label for e in (first, second)]
                raise InputError(
                    f"{labels[0]} and {labels[1]} share bytes {start} to {end} of {file.name}, but need different "
                    "values; give both equal values, or save the model with separate data for each"
                )


def _bytes_of(stored: Stored, new: Mapping[Address, bytes], path: Path, start: int, end: int) -> bytes:
    if stored.address in new:
        return new[stored.address][start - stored.start : end - stored.start]
    with path.open("rb") as file:
        file.seek(start)
        return file.read(end - start)


def _place(written: Path, original: Path, location: str, other: str, target: Path, created: list[Path]) -> str:
    """Move a data file to an unused name, or keep an equal file; return the name."""
    folder = target.parent
    numbered = (f"{other}.{number}" for number in itertools.count(1))
    for name in itertools.chain((location, other), numbered):
        path = folder / name
        if not _may_lie_at(path, target):
            continue
        try:
            with deferred_interrupts():  # a file that this call creates is listed, or it would stay after an interrupt
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
                created.append(path)
        except FileExistsError:
            if _is_equal(path, written, original):
                return name
            continue
        os.replace(written, path)
        return name
    raise AssertionError("there is always another number")


def _may_lie_at(path: Path, target: Path) -> bool:
    """Return True if a data file may have this path: in the model's folder, and not the model. Create the folder."""
    inside = Path(os.path.realpath(path.parent)).is_relative_to(os.path.realpath(target.parent))
    if not inside or str(path).casefold() == str(target).casefold():
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        return False
    return True


def _is_equal(path: Path, written: Path, original: Path) -> bool:
    """Return True if an existing file has equal content and is not a link, unless it is the original itself."""
    status = path.lstat()
    plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
    is_original = path.exists() and path.samefile(original)
    return (plain or is_original) and filecmp.cmp(written, path, shallow=False)


class _Storage(NamedTuple):
    """A typed field: the number, the wire type of an element, and the encoding of elements."""

    field: int
    wire_type: int
    encode: Callable[[np.ndarray], bytes]


def little_endian(array: np.ndarray) -> bytes:
    """Return the elements of an array as in ``raw_data`` and files of external data."""
    bits = np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}")
    return bits.astype(bits.dtype.newbyteorder("<")).tobytes()


def _varints_of_bits(array: np.ndarray) -> bytes:
    """Encode the bits of 16-bit elements as protobuf varints of at most three bytes each."""
    bits = np.ascontiguousarray(array).view(np.uint16).astype(np.uint32)
    length = 1 + (bits >= 1 << 7) + (bits >= 1 << 14)
    place = np.arange(3)
    groups = (bits[:, None] >> 7 * place) & 0x7F
    groups |= np.where(place < length[:, None] - 1, 0x80, 0).astype(np.uint32)
    return groups.astype(np.uint8)[place < length[:, None]].tobytes()


_BITS = _Storage(onnx.TensorProto.INT32_DATA_FIELD_NUMBER, VARINT, _varints_of_bits)
_TYPED = {
    np.dtype(np.float16): _BITS,
    np.dtype(ml_dtypes.bfloat16): _BITS,
    np.dtype(np.float32): _Storage(onnx.TensorProto.FLOAT_DATA_FIELD_NUMBER, FIXED32, little_endian),
    np.dtype(np.float64): _Storage(onnx.TensorProto.DOUBLE_DATA_FIELD_NUMBER, FIXED64, little_endian),
}
_FLOATS = _Storage(onnx.AttributeProto.FLOATS_FIELD_NUMBER, FIXED32, little_endian)
_RAW = onnx.TensorProto.RAW_DATA_FIELD_NUMBER


def in_tensor(array: np.ndarray) -> Edit:
    """Return the edit that puts elements of the same type and shape into a TensorProto."""

    def edit(tensor: memoryview) -> Pieces:
        if any(field.number == _RAW for field in fields_of(tensor)):
            return edited(tensor, {((_RAW, None),): lambda _: [little_endian(array)]})
        return _with_elements(tensor, array.reshape(-1), _TYPED[array.dtype])

    return edit


def in_attribute(array: np.ndarray) -> Edit:
    """Return the edit that puts these ``floats`` into an AttributeProto."""
    return lambda attribute: _with_elements(attribute, array, _FLOATS)


def _with_elements(message: memoryview, elements: np.ndarray, storage: _Storage) -> Pieces:
    """Replace the elements of a repeated field with packed entries, single entries, or a mix."""
    pieces: Pieces = []
    copied = taken = 0
    for field in fields_of(message):
        if field.number != storage.field:
            continue
        old = message[field.content : field.end]
        count = _count(old, storage.wire_type) if field.wire_type == BYTES else 1
        new = storage.encode(elements[taken : taken + count])
        head = message[field.start : field.content]
        entry = with_content(message, field, [new]) if field.wire_type == BYTES else [head, new]
        pieces += [message[copied : field.start], *entry]
        copied, taken = field.end, taken + count
    assert taken == elements.size, "checked when the file was read"
    return [*pieces, message[copied:]]


def _count(packed: memoryview, wire_type: int) -> int:
    if wire_type == VARINT:
        return int(np.count_nonzero(np.frombuffer(packed, np.uint8) < 0x80))
    return len(packed) // (4 if wire_type == FIXED32 else 8)


#: The concatenated parts of a message.
Pieces = list[bytes | memoryview]
#: A function from the old content of a field to the new content.
Edit = Callable[[memoryview], Pieces]
_SIZES = {FIXED64: 8, FIXED32: 4}


class Field(NamedTuple):
    """An entry of a field: ``message[start:end]`` with tag, ``message[content:end]`` without tag and length."""

    number: int
    wire_type: int
    start: int
    content: int
    end: int


def fields_of(message: memoryview) -> Iterator[Field]:
    """Yield the entries of the fields of a message, in order."""
    place = 0
    while place < len(message):
        field = _field_at(message, place)
        yield field
        place = field.end


def _field_at(message: memoryview, start: int) -> Field:
    tag, place = _varint_at(message, start)
    number, wire_type = tag >> 3, tag & 7
    if wire_type == VARINT:
        _, end = _varint_at(message, place)
    elif wire_type == BYTES:
        length, place = _varint_at(message, place)
        end = place + length
    elif wire_type == GROUP:
        end = place
        while (inner := _field_at(message, end)).wire_type != GROUP_END:
            end = inner.end
        end = inner.end
    else:
        end = place + (0 if wire_type == GROUP_END else _SIZES.get(wire_type, len(message)))
    if end > len(message):
        raise ModelError(f"not a protobuf message: field {number} at byte {start} does not end inside it")
    return Field(number, wire_type, start, place, end)


def _varint_at(message: memoryview, place: int) -> tuple[int, int]:
    """Read a number of seven bits a byte, the lowest first; return the number and the place after it."""
    value = shift = 0
    while place < len(message):
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
    raise ModelError(f"not a protobuf message: the number at byte {place} has no end")


def varint(value: int) -> bytes:
    """Encode a non-negative number in seven bits a byte, the lowest first."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def with_content(message: memoryview, field: Field, content: Pieces) -> Pieces:
    """Return an entry of type `BYTES` with new content; the tag changes only with the length."""
    length = sum(map(len, content))
    if length == field.end - field.content:
        return [message[field.start : field.content], *content]
    return [varint(field.number << 3 | BYTES), varint(length), *content]


def edited(message: memoryview, edits: Mapping[Address, Edit]) -> Pieces:
    """Replace the content at some addresses of a message, and update the lengths of enclosing messages."""
    inside: dict[tuple[int, int | None], dict[Address, Edit]] = {}
    for address, edit in edits.items():
        inside.setdefault(address[0], {})[address[1:]] = edit
    pieces: Pieces = []
    seen: Counter[int] = Counter()
    copied = 0
    for field in fields_of(message):
        index = seen[field.number]
        seen[field.number] += 1
        if (field.number, None) in inside and index:
            raise ModelError(
                f"field {field.number} of a message is split into several parts, which is not supported; save the "
                "model with onnx.save and load the new file"
            )
        inner = inside.get((field.number, None)) or inside.get((field.number, index))
        if inner is None:
            continue
        content = message[field.content : field.end]
        new = inner[()](content) if () in inner else edited(content, inner)
        pieces += [message[copied : field.start], *with_content(message, field, new)]
        copied = field.end
    missing = [f"{number}[{index or 0}]" for number, index in inside if (index or 0) >= seen[number]]
    if missing:
        raise ModelError(f"the message has no field {', '.join(missing)}")
    return [*pieces, message[copied:]]
