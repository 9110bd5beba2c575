"""Damage to bytes: flipped, cut, inserted and spliced anywhere, or just where protobuf keeps numbers and lengths."""

from __future__ import annotations

import onnx
from google.protobuf.descriptor import FieldDescriptor

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
#: Numbers that programs stumble over.
EXTREMES = (0, 1, 2, 3, 7, 127, 128, 255, 2**15, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


def damaged(rng, data, other):
    """One to four changes of the bytes; ``other`` is what pieces may be taken from."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        if not data:
            break
        data = rng.choice((_flipped, _cut, _inserted, _spliced, _field, _field, _field))(rng, data, other)
    return data


def _place(rng, data):
    """Anywhere, the front more often: that is where a small graph's nodes are, behind the weights of a large one."""
    return rng.randrange(len(data)) if rng.random() < 0.6 else min(int(rng.expovariate(0.01)), len(data) - 1)


def _flipped(rng, data, other):
    result = bytearray(data)
    for _ in range(rng.choice((1, 1, 3, 20))):
        result[_place(rng, data)] ^= 1 << rng.randrange(8)
    return bytes(result)


def _cut(rng, data, other):
    start = _place(rng, data)
    return data[:start] if rng.random() < 0.3 else data[:start] + data[start + rng.choice((1, 2, 8, 100)) :]


def _inserted(rng, data, other):
    start = _place(rng, data)
    return data[:start] + rng.randbytes(rng.choice((1, 2, 8, 100))) + data[start:]


def _spliced(rng, data, other):
    here, there, size = _place(rng, data), _place(rng, other), rng.choice((4, 30, 300, 3000))
    return data[:here] + other[there : there + size] + data[here + rng.choice((0, size)) :]


def _field(rng, data, other):
    """One field that is found by walking the messages: its number, its length, its key, or all of it."""
    spots = fields_of(data, onnx.ModelProto.DESCRIPTOR)
    if not spots:
        return data
    key, start, end, kind = rng.choice(spots)
    number = rng.choice(EXTREMES) if rng.random() < 0.7 else rng.getrandbits(rng.choice((3, 8, 33)))
    change = rng.choice(("number", "number", "drop", "twice", "key"))
    if change == "drop":
        return data[:key] + data[end:]
    if change == "twice":
        return data[:end] + data[key:end] + data[end:]
    if change == "key":
        return data[:key] + bytes([rng.randrange(256)]) + data[key + 1 :]
    if kind == VARINT:
        return data[:start] + varint(number) + data[end:]
    if kind == DELIMITED:  # the length, which then does not fit the content
        _, after = read_varint(data, key)
        return data[:after] + varint(number) + data[start:]
    return data[:start] + rng.randbytes(end - start) + data[end:]


def fields_of(data, descriptor, start=0, end=None, depth=0):
    """Every field of a message and of those in it: where its key, its content and its end are, and its wire type."""
    end = len(data) if end is None else end
    found, place = [], start
    while place < end and len(found) < 20_000 and depth < 40:
        key = place
        tag, place = read_varint(data, place)
        kind, number = tag & 7, tag >> 3
        if kind == VARINT:
            content, place = place, read_varint(data, place)[1]
        elif kind == DELIMITED:
            size, content = read_varint(data, place)
            place = content + size
        elif kind in (FIXED32, FIXED64):
            content, place = place, place + (4 if kind == FIXED32 else 8)
        else:
            return found
        if place > end:
            return found
        found.append((key, content, place, kind))
        field = descriptor.fields_by_number.get(number)
        if kind == DELIMITED and field is not None and field.type == FieldDescriptor.TYPE_MESSAGE:
            found += fields_of(data, field.message_type, content, place, depth + 1)
    return found


def read_varint(data, place):
    number = shift = 0
    while place < len(data) and shift < 70:
        byte = data[place]
        place += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    return number, place


def varint(number):
    result = bytearray()
    while number > 127:
        result.append(number & 127 | 128)
        number >>= 7
    return bytes([*result, number])
