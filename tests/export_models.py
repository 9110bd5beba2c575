"""Small models with one weight of three elements each, stored in every way that ONNX has; and exporting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import jaxrnn

#: Bits of 16-bit floats in them take one, two and three bytes as varints.
VALUES = (2.0**-24, 0.5, -1.5)
#: Of other lengths as varints than the old ones, and a zero with a sign.
NEW = (-1.5, -0.0, 0.25)
TYPES = {
    TensorProto.FLOAT: "float_data",
    TensorProto.DOUBLE: "double_data",
    TensorProto.FLOAT16: "int32_data",
    TensorProto.BFLOAT16: "int32_data",
}


def put(message: Any, array: np.ndarray) -> None:
    """Set the elements of a TensorProto, or the floats of an attribute, where it has them now."""
    if isinstance(message, onnx.AttributeProto):
        message.floats[:] = array.tolist()
    elif message.HasField("raw_data"):
        message.raw_data = array.tobytes()
    else:
        typed = getattr(message, TYPES[message.data_type])
        typed[:] = (array.view(np.uint16) if array.dtype.itemsize == 2 else array).tolist()


def tensor(values=VALUES, kind: int = TensorProto.FLOAT, name: str = "w", raw: bool = True) -> onnx.TensorProto:
    """A tensor with raw data, or its elements in the field of its type."""
    array = np.asarray(values, helper.tensor_dtype_to_np_dtype(kind))
    made = TensorProto(name=name, data_type=kind, dims=array.shape)
    if raw:
        made.raw_data = array.tobytes()
    else:
        put(made, array)
    return made


def info(name: str, shape=(None, 3), kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def constant(name: str = "w", **value: Any) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], name=f"make_{name}", **value)


def reference(name: str, to: str, kind: int) -> onnx.AttributeProto:
    """An attribute of a function's node that is an attribute of the call."""
    return onnx.AttributeProto(name=name, ref_attr_name=to, type=kind)


def model_of(nodes, initializers=(), kind: int = TensorProto.FLOAT, functions=(), inputs=()) -> onnx.ModelProto:
    """``y`` of ``x``, both ``[batch, 3]``, and further inputs."""
    graph = helper.make_graph(nodes, "g", [info("x", kind=kind), *inputs], [info("y", kind=kind)], list(initializers))
    domains = [helper.make_opsetid(domain, 1) for domain in sorted({function.domain for function in functions})]
    opset = 22 if kind == TensorProto.BFLOAT16 else 17
    opsets = [helper.make_opsetid("", opset), *domains]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=list(functions))


def function_of(nodes, name: str = "Scale", domain: str = "local", **attributes: Any) -> onnx.FunctionProto:
    """``y`` of ``x``, with attributes by name that have defaults, or None for those without."""
    required = [key for key, value in attributes.items() if value is None]
    defaults = [helper.make_attribute(key, value) for key, value in attributes.items() if value is not None]
    imports = [helper.make_opsetid("", 17)]
    return helper.make_function(domain, name, ["x"], ["y"], nodes, imports, required, defaults)


def call(to: str = "y", given: str = "x", name: str = "Scale", domain: str = "local", **attributes) -> onnx.NodeProto:
    return helper.make_node(name, [given], [to], domain=domain, **attributes)


TIMES = helper.make_node("Mul", ["x", "w"], ["y"])


def in_loop(weight: onnx.TensorProto) -> onnx.ModelProto:
    """Twice ``x * w`` in a Loop, with the weight in a branch of an If: a Constant there, and an initializer."""
    other = tensor((3.0, 4.0, 5.0), weight.data_type, "v")
    then = helper.make_graph([constant("w", value=weight), helper.make_node("Mul", ["h", "w"], ["a"])], "then", [], [])
    orelse = helper.make_graph([helper.make_node("Mul", ["h", "v"], ["b"])], "else", [], [], [other])
    then.output.append(info("a", None, weight.data_type))
    orelse.output.append(info("b", None, weight.data_type))
    choose = helper.make_node("If", ["go"], ["out"], name="if", then_branch=then, else_branch=orelse)
    same = helper.make_node("Identity", ["go"], ["still"])
    scalars = [info("i", [], TensorProto.INT64), info("go", [], TensorProto.BOOL)]
    ends = [info("still", [], TensorProto.BOOL), info("out", None, weight.data_type)]
    body = helper.make_graph([choose, same], "body", [*scalars, info("h", None, weight.data_type)], ends)
    loop = helper.make_node("Loop", ["trips", "", "x"], ["y"], name="loop", body=body)
    return model_of([loop], [numpy_helper.from_array(np.array(2), "trips")])


def _initializer(proto: onnx.ModelProto) -> Any:
    return proto.graph.initializer[0]


def _of_constant(proto: onnx.ModelProto) -> Any:
    return proto.graph.node[0].attribute[0].t


def _with_initializer(kind: int, raw: bool) -> tuple[onnx.ModelProto, Callable[[onnx.ModelProto], Any]]:
    return model_of([TIMES], [tensor(kind=kind, raw=raw)], kind), _initializer


_FUNCTION = function_of([constant(value=tensor(name="")), TIMES])
_GIVEN = onnx.NodeProto(
    op_type="Constant", output=["w"], attribute=[reference("value", "t", onnx.AttributeProto.TENSOR)]
)

#: A model, and where in it the weight is.
STORAGES = {
    "raw": _with_initializer(TensorProto.FLOAT, raw=True),
    "float_data": _with_initializer(TensorProto.FLOAT, raw=False),
    "double_data": _with_initializer(TensorProto.DOUBLE, raw=False),
    "raw doubles": _with_initializer(TensorProto.DOUBLE, raw=True),
    "float16 in int32_data": _with_initializer(TensorProto.FLOAT16, raw=False),
    "raw float16": _with_initializer(TensorProto.FLOAT16, raw=True),
    "bfloat16 in int32_data": _with_initializer(TensorProto.BFLOAT16, raw=False),
    "raw bfloat16": _with_initializer(TensorProto.BFLOAT16, raw=True),
    "a Constant": (model_of([constant(value=tensor()), TIMES]), _of_constant),
    "a Constant with float_data": (model_of([constant(value=tensor(raw=False)), TIMES]), _of_constant),
    "value_floats": (model_of([constant(value_floats=VALUES), TIMES]), lambda proto: proto.graph.node[0].attribute[0]),
    "a branch inside a loop": (
        in_loop(tensor(raw=False)),
        lambda proto: proto.graph.node[0].attribute[0].g.node[0].attribute[1].g.node[0].attribute[0].t,
    ),
    "a function called twice": (
        model_of([call("t"), call(given="t")], functions=[_FUNCTION]),
        lambda proto: proto.functions[0].node[0].attribute[0].t,
    ),
    "an attribute of a call": (
        model_of([call(t=tensor())], functions=[function_of([_GIVEN, TIMES], t=None)]),
        _of_constant,
    ),
    "a default of a function": (
        model_of([call()], functions=[function_of([_GIVEN, TIMES], t=tensor())]),
        lambda proto: proto.functions[0].attribute_proto[0].t,
    ),
}


def exported(model, params, path):
    jaxrnn.export_onnx(model, params, path)
    return path.read_bytes()


def check_reads_back(path, params, **options):
    """The file has these parameters, bit by bit."""
    loaded = jaxrnn.load(path, **options)
    assert list(loaded.params) == list(params)
    for name, value in params.items():
        assert loaded.program.parameters[name].dtype == value.dtype
        assert loaded.program.parameters[name].tobytes() == np.asarray(value).tobytes(), name
    return loaded
