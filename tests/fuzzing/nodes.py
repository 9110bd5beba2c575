"""Random nodes, and files that are odd in one way."""

from __future__ import annotations

import functools
import inspect
import os
import tempfile
import warnings
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.defs import OpSchema

from fuzzing.seeds import tensor, unknown, value
from fuzzing.structure import FLOATS, NUMBERS
from jaxrnn.onnx.operators import operator_table
from jaxrnn.onnx.registry import operator

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
#: What graph inputs there are: name, type, shape.
_INPUTS = (
    ("a", FLOAT, (2, 3)),
    ("b", FLOAT, (2, 3, 4)),
    ("c", FLOAT, (1, 2, 4, 4)),
    ("d", FLOAT, ()),
    ("e", FLOAT, ("N", 3)),
    ("f", TensorProto.FLOAT16, (2, 3)),
    ("g", INT64, (3,)),
    ("h", INT64, ("N",)),
    ("i", TensorProto.INT32, (2, 3)),
    ("j", BOOL, (2, 3)),
    ("k", TensorProto.DOUBLE, (3, 3)),
    ("l", TensorProto.UINT8, (2, 3)),
    ("m", FLOAT, (0, 3)),
)
_DEFAULTS = {
    onnx.AttributeProto.INT: lambda rng: rng.choice(NUMBERS) if rng.random() < 0.4 else rng.randrange(-2, 4),
    onnx.AttributeProto.INTS: lambda rng: [
        rng.choice(NUMBERS) if rng.random() < 0.3 else rng.randrange(0, 4) for _ in range(rng.randrange(5))
    ],
    onnx.AttributeProto.FLOAT: lambda rng: rng.choice(FLOATS) if rng.random() < 0.5 else rng.random(),
    onnx.AttributeProto.FLOATS: lambda rng: [rng.choice(FLOATS) for _ in range(rng.randrange(4))],
    onnx.AttributeProto.STRING: lambda rng: rng.choice(
        ("", "x", "linear", "constant", "SAME_UPPER", "forward", "mean")
    ),
    onnx.AttributeProto.STRINGS: lambda rng: [rng.choice(("Tanh", "Relu", "a")) for _ in range(rng.randrange(4))],
    onnx.AttributeProto.TENSOR: lambda rng: tensor("", np.arange(rng.randrange(4), dtype=rng.choice("fiq"))),
}
#: Operators that exist to have graphs inside, which `structure` and the hostile files look after.
_CONTROL = {"If", "Loop", "Scan", "SequenceMap"}


def random_node(rng, opset=None):
    """A model of one to three random nodes, each on what came before."""
    names = sorted(key for key in operator_table() if key[1] not in _CONTROL)
    newest = onnx.defs.onnx_opset_version()
    opset = rng.randrange(11, newest + 1) if opset is None else opset
    nodes, tensors, ready = [], [], {name: kind for name, kind, _ in _INPUTS}
    domains = {"": opset}
    for index in range(rng.choice((1, 1, 2, 3))):
        domain, name = rng.choice(names)
        versions = operator_table()[domain, name]
        known = [version for version in versions if version <= opset or domain]
        if not known:
            continue
        domains.setdefault(domain, max(known))
        found = operator(name, domain, max(known), versions)
        schema = _schema(found)
        slots = [*found.slots, *[found.variadic] * (rng.randrange(4) if found.variadic is not None else 0)]
        bound = {}
        inputs = [_input(rng, slot, ready, tensors, _kinds(schema, place, bound)) for place, slot in enumerate(slots)]
        least, most = (schema.min_output, schema.max_output) if schema is not None else (1, 1)
        count = rng.randrange(max(least, 1), min(max(most, 1), 4) + 1) if rng.random() < 0.97 else 3
        outputs = [f"y{index}_{number}" for number in range(count)]
        attributes = _attributes(rng, found)
        nodes.append(helper.make_node(name, inputs, outputs, domain=domain, name=f"n{index}", **attributes))
        ready |= dict.fromkeys(outputs)
    results = [name for node in nodes for name in node.output] or ["a"]
    used = {name for node in nodes for name in node.input} | set(results)
    inputs = [value(name, *shape, kind=kind) for name, kind, shape in _INPUTS if name in used]
    graph = helper.make_graph(nodes, "nodes", inputs, [unknown(name) for name in results], tensors)
    for output in graph.output:
        output.ClearField("type")
    imports = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=min(10, onnx.IR_VERSION))


def _schema(found):
    try:
        return onnx.defs.get_schema(found.name, found.since, found.domain)
    except onnx.defs.SchemaError:
        return None


def _kinds(schema, place, bound):
    """The names of the types that an input may have, once its type is bound just that; None where nothing is known."""
    if schema is None or not schema.inputs:
        return None
    name = schema.inputs[min(place, len(schema.inputs) - 1)].type_str
    allowed = next(
        (set(each.allowed_type_strs) for each in schema.type_constraints if each.type_param_str == name), {name}
    )
    return bound, name, allowed


def _type_name(kind):
    return f"tensor({TensorProto.DataType.Name(kind).lower()})" if kind is not None else None


def _input(rng, slot, ready, tensors, kinds):
    if not slot.required and rng.random() < 0.4:
        return ""
    if not slot.static and rng.random() < 0.85:
        names = list(ready)
        bound, variable, allowed = kinds or ({}, "", set())
        if kinds is not None and rng.random() < 0.93:
            fits = [n for n, k in ready.items() if k is None or _type_name(k) in bound.get(variable, allowed)]
            names = fits or names
        chosen = rng.choice(names)
        if ready[chosen] is not None:
            bound.setdefault(variable, {_type_name(ready[chosen])})
        return chosen
    return _number(rng, tensors)


def _number(rng, tensors):
    name = f"t{len(tensors)}"
    size = rng.randrange(5)
    huge = rng.random() < 0.4
    array = np.array([rng.choice(NUMBERS) if huge else rng.randrange(-1, 4) for _ in range(size)], np.int64)
    if rng.random() < 0.1:
        array = array.astype(np.float32)
    if rng.random() < 0.4 and size:
        array = array[0]
    tensors.append(tensor(name, array))
    return name


def _attributes(rng, found):
    schema = _schema(found)
    defined = {} if schema is None else schema.attributes
    kinds = {name: int(getattr(entry.type, "value", entry.type)) for name, entry in defined.items()}
    result = {}
    for name, default in found.attributes.items():
        required = default is inspect.Parameter.empty
        if rng.random() < (0.95 if required else 0.5):
            kind = kinds.get(name, onnx.AttributeProto.INT)
            if rng.random() < 0.03:
                kind = rng.choice(list(_DEFAULTS))
            if kind in _DEFAULTS:
                made = _DEFAULTS[kind](rng)
                result[name] = helper.make_attribute(name, made, attr_type=kind) if made == [] else made
    return {name: each for name, each in result.items() if not isinstance(each, onnx.AttributeProto)}


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
    for stored in proto.graph.initializer:
        if not stored.HasField("raw_data") or rng.random() < 0.3:
            continue
        entries = {"location": "data.bin", "offset": str(len(data)), "length": str(len(stored.raw_data))}
        data += stored.raw_data
        if rng.random() < 0.5:
            key = rng.choice(("location", "offset", "length"))
            entries[key] = rng.choice(LOCATIONS if key == "location" else ODD_NUMBERS)
        if rng.random() < 0.2:
            del entries[rng.choice(("offset", "length"))]
        stored.ClearField("raw_data")
        stored.data_location = onnx.TensorProto.EXTERNAL
        for key, text in entries.items():
            stored.external_data.add(key=key, value=text)
        if rng.random() < 0.1:
            stored.external_data.add(key=rng.choice((*entries, "checksum", "basepath")), value=rng.choice(ODD_NUMBERS))
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
