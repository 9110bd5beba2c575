"""Damage to bytes, anywhere or where protobuf keeps numbers and lengths, and changes of messages."""

from __future__ import annotations

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor import FieldDescriptor as Field

#: Numbers that shapes, axes, counts and types may be given.
NUMBERS = (
    -(2**63),
    -(2**31),
    -1000,
    -7,
    -3,
    -2,
    -1,
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    16,
    100,
    2**20,
    2**31,
    10**12,
    2**62,
    2**63 - 1,
)
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"))
_INTEGERS = {Field.TYPE_INT32: (31, True), Field.TYPE_INT64: (63, True), Field.TYPE_UINT64: (64, False)}
_REALS = (Field.TYPE_FLOAT, Field.TYPE_DOUBLE)
#: Data of tensors: changed less often than what is around it.
_DATA = {"raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "doc_string"}


def changed(rng, proto):
    """A copy with one to four changes."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for _ in range(rng.choice((1, 1, 2, 4))):
        _change(rng, copy)
    return copy


def _change(rng, proto):
    places = list(_places(proto))
    message, field = rng.choice(places)
    while field.name in _DATA and rng.random() < 0.8:
        message, field = rng.choice(places)
    if not field.is_repeated:
        _change_single(rng, proto, message, field, places)
        return
    items = getattr(message, field.name)
    what = rng.choice(("item", "item", "drop", "twice", "swap", "clear", "more"))
    if not len(items):
        what = "more"
    if what == "item" and field.type != Field.TYPE_MESSAGE:
        items[rng.randrange(len(items))] = _scalar(rng, proto, field)
    elif what == "item" or (what == "more" and field.type == Field.TYPE_MESSAGE):
        donors = [each for each in _messages(proto) if each.DESCRIPTOR is field.message_type]
        if donors:
            donor = type(donors[0])()
            donor.CopyFrom(rng.choice(donors))
            if what == "more":
                items.append(donor)
            else:
                items[rng.randrange(len(items))].CopyFrom(donor)
    elif what == "more":
        items.append(_scalar(rng, proto, field))
    elif what == "drop":
        del items[rng.randrange(len(items))]
    elif what == "clear":
        del items[:]
    elif what == "twice":
        items.append(items[rng.randrange(len(items))])
    else:
        order = list(items)
        rng.shuffle(order)
        del items[:]
        items.extend(order)


def _change_single(rng, proto, message, field, places):
    if field.type == Field.TYPE_MESSAGE:
        if rng.random() < 0.3:
            message.ClearField(field.name)
            return
        donors = [each for each in _messages(proto) if each.DESCRIPTOR is field.message_type]
        if donors:
            donor = type(donors[0])()
            donor.CopyFrom(rng.choice(donors))
            getattr(message, field.name).CopyFrom(donor)
    elif rng.random() < 0.1:
        message.ClearField(field.name)
    elif field.type == Field.TYPE_ENUM:
        setattr(message, field.name, rng.choice(field.enum_type.values).number)
    else:
        setattr(message, field.name, _scalar(rng, proto, field))


def _scalar(rng, proto, field):
    if field.type in _INTEGERS:
        bits, signed = _INTEGERS[field.type]
        number = rng.choice(NUMBERS) if rng.random() < 0.7 else rng.randrange(-10, 30)
        return max(-(2**bits) if signed else 0, min(number, 2**bits - 1))
    if field.type in _REALS:
        return rng.choice(FLOATS)
    if field.type == Field.TYPE_BYTES:
        return rng.randbytes(rng.choice((0, 1, 4, 8, 40)))
    strings = [
        getattr(message, each.name)
        for message in _messages(proto)
        for each in message.DESCRIPTOR.fields
        if each.type == Field.TYPE_STRING and not each.is_repeated
    ]
    names = [name for message in _messages(proto) if isinstance(message, onnx.NodeProto) for name in message.input]
    operators = ("Relu", "Shape", "Concat", "LSTM", "Loop", "If", "Scan", "Identity", "MatMul", "ConstantOfShape")
    return rng.choice(
        (rng.choice(strings or [""]), rng.choice(names or [""]), rng.choice(operators), "", "\0", "é" * 9)
    )


def _messages(message):
    yield message
    for field, value in message.ListFields():
        if field.type == Field.TYPE_MESSAGE:
            for each in value if field.is_repeated else [value]:
                yield from _messages(each)


def _places(message):
    """Every field of every message, set or not; those that are set three times as often."""
    for each in _messages(message):
        given = {field.name for field, _ in each.ListFields()}
        for field in each.DESCRIPTOR.fields:
            for _ in range(3 if field.name in given else 1):
                if field.name in given or field.name in _WORTH_SETTING:
                    yield each, field


#: Fields that are worth setting where they are not set.
_WORTH_SETTING = {
    "ints",
    "floats",
    "i",
    "f",
    "s",
    "t",
    "g",
    "type",
    "dims",
    "data_type",
    "dim",
    "input",
    "output",
    "domain",
}


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
