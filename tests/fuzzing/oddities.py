"""Damage that reads well: one number, reference or place of data in a valid file that nobody would write.

What `structure` and `nodes` change at random seldom meets these: an operator needs inputs that fit before anyone looks
at its axis, and a tensor data before anyone finds other data beside it.
"""

from __future__ import annotations

import functools
import os
import tempfile
import warnings
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.defs import OpSchema

#: Numbers around the ends of the types that axes, sizes and counts are kept in, and small ones out of range.
EXTREMES = (2**31, 2**31 - 1, -(2**31), -(2**31) - 1, 2**32, 2**40, 2**62, 2**63 - 1, -(2**63), 10**6, -5, -1, 0, 7)
#: Offsets and lengths as text: what one program takes for a number, another does not.
ODD_NUMBERS = ("0", "1_0", " 8", "8\n", "+8", "-8", "\uff18", "0x8", "8.0", "1e3", "", "9" * 30, str(2**63), str(2**64))
#: Places of external data: the file itself, and what is none.
LOCATIONS = (
    "data.bin",
    "./data.bin",
    "pipe",
    "zero",
    "..",
    ".",
    "",
    "../data.bin",
    "no.bin",
    "data.bin\0",
    "/dev/zero",
)
_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")


@functools.cache
def _definitions():
    """Onnx's own example of every operator, its small whole-numbered inputs as constants."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    found = []
    for case in cases:
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        inputs = case.data_sets[0][0] if case.data_sets else []
        for declared, array in zip(model.graph.input, inputs, strict=False):
            if isinstance(array, np.ndarray) and array.dtype in (np.int32, np.int64, np.bool_) and array.size <= 16:
                model.graph.initializer.append(numpy_helper.from_array(array, declared.name))
        found.append(model)
    return found


@functools.cache
def _folder():
    """A folder with data and with what is no file; it goes when the process does."""
    held = tempfile.TemporaryDirectory(prefix="fuzzing-")
    folder = Path(held.name)
    os.mkfifo(folder / "pipe")
    (folder / "zero").symlink_to("/dev/zero")
    return folder, held


def odd(rng, name, seeds):
    """A model, or the path of one, with one oddity in it; ``name`` is the case's own."""
    kind = rng.choice(("attribute", "attribute", "constant", "size", "reference", "doubled", "external"))
    examples = kind in ("attribute", "constant", "size") and rng.random() < 0.8
    proto = onnx.ModelProto()
    proto.CopyFrom(rng.choice(_definitions()) if examples else rng.choice(seeds))
    if rng.random() < 0.2:  # an older definition of the same operator
        for entry in proto.opset_import:
            entry.version = max(1, entry.version - rng.randrange(12))
    if kind == "external":
        return _external(rng, proto, name)
    _CHANGES[kind](rng, proto)
    return proto


def _nodes(graph):
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                yield from _nodes(inner)


def _tensors(graph):
    yield from graph.initializer
    for node in _nodes(graph):
        yield from (attribute.t for attribute in node.attribute if attribute.HasField("t"))


def _attribute(rng, proto):
    """An extreme in a whole-numbered attribute that an operator has, given or not."""
    places = []
    versions = {entry.domain: entry.version for entry in proto.opset_import}
    for node in _nodes(proto.graph):
        if onnx.defs.has(node.op_type, node.domain):
            try:
                schema = onnx.defs.get_schema(node.op_type, versions.get(node.domain, 1), node.domain)
            except onnx.defs.SchemaError:
                continue
            kinds = (OpSchema.AttrType.INT, OpSchema.AttrType.INTS)
            places += [(node, name, each.type) for name, each in schema.attributes.items() if each.type in kinds]
    if not places:
        return
    node, name, kind = rng.choice(places)
    given = next((each for each in node.attribute if each.name == name), None)
    if given is None:
        given = node.attribute.add(name=name, type=int(kind.value))
    if kind == OpSchema.AttrType.INT:
        given.i = rng.choice(EXTREMES)
    elif given.ints and rng.random() < 0.7:
        given.ints[rng.randrange(len(given.ints))] = rng.choice(EXTREMES)
    else:
        given.ints[:] = [rng.choice(EXTREMES)] * rng.choice((1, 2, 4))


def _constant(rng, proto):
    """An extreme in a constant that operators read as shape, axis or count."""
    whole = [each for each in _tensors(proto.graph) if each.data_type in (6, 7) and np.prod(each.dims, dtype=int)]
    if whole:
        chosen = rng.choice(whole)
        array = numpy_helper.to_array(chosen).copy()
        limits = np.iinfo(array.dtype)
        array.reshape(-1)[rng.randrange(array.size)] = max(limits.min, min(rng.choice(EXTREMES), limits.max))
        chosen.CopyFrom(numpy_helper.from_array(array, chosen.name))


def _size(rng, proto):
    """An extreme in the declared shape of an input; those of outputs are left open."""
    for output in proto.graph.output:
        output.ClearField("type")
    sizes = [size for each in proto.graph.input for size in each.type.tensor_type.shape.dim]
    if sizes:
        rng.choice(sizes).dim_value = rng.choice(EXTREMES)


def _reference(rng, proto):
    """An attribute that refers to one of a function, wherever it stands."""
    nodes = [*_nodes(proto.graph), *(node for function in proto.functions for node in function.node)]
    attributes = [attribute for node in nodes for attribute in node.attribute]
    if attributes:
        chosen = rng.choice(attributes)
        chosen.ref_attr_name = rng.choice((chosen.name, "alpha", "nothing", "\0"))
        if rng.random() < 0.5:
            for field in ("i", "f", "s", "t", "g", "ints", "floats", "strings"):
                chosen.ClearField(field)


def _doubled(rng, proto):
    """Data of a tensor in a second place."""
    tensors = list(_tensors(proto.graph))
    if not tensors:
        return
    chosen, place = rng.choice(tensors), rng.choice((*_FIELDS, "raw_data", "external_data", "data_location"))
    count = int(np.prod(chosen.dims, dtype=int))
    if place == "raw_data":
        chosen.raw_data = rng.randbytes(rng.choice((0, 1, 4, 8)) * count)
    elif place == "data_location":
        chosen.data_location = onnx.TensorProto.EXTERNAL
    elif place == "external_data":
        chosen.external_data.add(key="location", value="data.bin")
    else:
        getattr(chosen, place).extend([b"a" if place == "string_data" else 1] * rng.choice((1, count)))


def _external(rng, proto, name):
    """The path of a model whose tensors lie in a file beside it, or are said to."""
    folder, _ = _folder()
    data = b""
    for tensor in proto.graph.initializer:
        if not tensor.HasField("raw_data") or rng.random() < 0.3:
            continue
        entries = {"location": "data.bin", "offset": str(len(data)), "length": str(len(tensor.raw_data))}
        data += tensor.raw_data
        if rng.random() < 0.5:
            key = rng.choice(("location", "offset", "length"))
            entries[key] = rng.choice(LOCATIONS if key == "location" else ODD_NUMBERS)
        if rng.random() < 0.2:
            del entries[rng.choice(("offset", "length"))]
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)
        if rng.random() < 0.1:
            tensor.external_data.add(key=rng.choice((*entries, "checksum", "basepath")), value=rng.choice(ODD_NUMBERS))
    (folder / "data.bin").write_bytes(data)
    path = folder / f"{name}.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


_CHANGES = {
    "attribute": _attribute,
    "constant": _constant,
    "size": _size,
    "reference": _reference,
    "doubled": _doubled,
}
