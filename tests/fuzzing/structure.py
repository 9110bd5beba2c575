"""Changes to a model that keep it a protobuf: any number, name, type, attribute, node or graph in another's place."""

from __future__ import annotations

import onnx
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
