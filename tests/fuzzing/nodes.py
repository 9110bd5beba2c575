"""Any operator on inputs of any shape and type, with any attributes: most do not fit, and some ask for the moon."""

from __future__ import annotations

import inspect

import numpy as np
import onnx
from onnx import TensorProto, helper

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
