"""Replacing parts of a protobuf message in its wire format, with every other byte kept.

What is not replaced is copied without being interpreted, so that unknown fields, unusual orders of fields and numbers
in overlong encodings are kept. The format: https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from jaxrnn.errors import ModelError
from jaxrnn.onnx.origins import Address

#: The concatenated parts of a message.
Pieces = list[bytes | memoryview]
#: From the old content of a field to the new.
Edit = Callable[[memoryview], Pieces]

VARINT, FIXED64, BYTES, GROUP, GROUP_END, FIXED32 = range(6)
_SIZES = {FIXED64: 8, FIXED32: 4}


class Field(NamedTuple):
    """One entry of a field: ``message[start:end]`` with its tag, ``message[content:end]`` without tag and length."""

    number: int
    wire_type: int
    start: int
    content: int
    end: int


def fields_of(message: memoryview) -> Iterator[Field]:
    """The entries of the fields of a message, in the order of the message.

    Raises:
        ModelError: it is not a message.
    """
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
    """A number of seven bits a byte, the lowest first, and where it ends."""
    value = shift = 0
    while place < len(message):
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
    raise ModelError(f"not a protobuf message: the number at byte {place} has no end")


def varint(value: int) -> bytes:
    """A number that is not negative, of seven bits a byte, the lowest first."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def with_content(message: memoryview, field: Field, content: Pieces) -> Pieces:
    """An entry of type `BYTES` with other content; its tag is kept unless the length changes."""
    length = sum(map(len, content))
    if length == field.end - field.content:
        return [message[field.start : field.content], *content]
    return [varint(field.number << 3 | BYTES), varint(length), *content]


def edited(message: memoryview, edits: Mapping[Address, Edit]) -> Pieces:
    """A message with the content at some addresses replaced, and with the lengths of the enclosing messages updated.

    Raises:
        ModelError: there is nothing at an address, or its field is split into several entries.
    """
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
                f"field {field.number} of a message comes in several parts, which protobuf allows but nobody writes; "
                "save the model anew with onnx.save and load that"
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
