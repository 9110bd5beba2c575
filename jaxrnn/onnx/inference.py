"""ONNX's own inference of shapes and types, which names early the node whose operands do not fit.

It is written in C++ and trusts the file: an axis of 2**31, a batch of negative rank or a shape of 2**62 dimensions
crashes the process, or takes all time and memory. The numbers that do so cannot be recognised in the file, since
inference also computes them: two reshapes and a product make any size. So it runs in processes of its own with limited
memory and time (`inference_process.py`, `inference_server.py`). Where that crashes, gives up or cannot be started,
evaluation reports the error instead.
"""

from __future__ import annotations

import re

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError

from jaxrnn.errors import ModelError
from jaxrnn.onnx import inference_process
from jaxrnn.onnx.graph import graphs_of
from jaxrnn.onnx.inference_server import InferenceServer

#: Constants up to this size are passed to inference, which reads shapes and axes from them.
_SMALL = 256

_SERVER = InferenceServer()


def check_shapes(proto: onnx.ModelProto) -> None:
    """ONNX's own inference over a sorted copy without the weights' data.

    Raises:
        ModelError: names the node whose operands do not fit.
    """
    model = ir.serde.deserialize_model(_without_weights(proto))
    for graph in (*graphs_of(model.graph), *model.functions.values()):
        graph.sort()
    kind, answer = _inferred(ir.serde.serialize_model(model), check_type=True, strict_mode=True)
    if kind != inference_process.MISFIT:
        return
    message = answer.decode(errors="replace")
    places = re.findall(r"\(op_type:(\w+)", message)
    if len(places) > 1 and places[0] not in {function.name for function in proto.functions}:
        return  # an error in ONNX's own function body of an operator, and not in the file
    raise ModelError(f"inconsistent shapes or types: {_plain(message)}; correct the file or export it again")


def infer_shapes(model: ir.Model) -> None:
    """Set the shapes and types of values that inference finds."""
    proto = _without_weights(ir.serde.serialize_model(model))
    kind, answer = _inferred(proto, data_prop=True)
    if kind != inference_process.RESULT:
        return
    try:
        inferred_model = ir.serde.deserialize_model(onnx.ModelProto.FromString(answer))
    except (DecodeError, ir.serde.SerdeError):
        return
    for graph, inferred in zip(graphs_of(model.graph), graphs_of(inferred_model.graph), strict=False):
        values = {value.name: value for node in inferred for value in node.outputs}
        for value in (value for node in graph for value in node.outputs):
            known = values.get(value.name)
            if known is not None and known.shape is not None and known.dtype is not None:
                value.shape, value.dtype = known.shape, known.dtype


def _inferred(
    proto: onnx.ModelProto, *, check_type: bool = False, strict_mode: bool = False, data_prop: bool = False
) -> tuple[bytes, bytes]:
    """The answer of inference: its kind and its content."""
    try:
        data = proto.SerializeToString()
    except (EncodeError, ValueError):
        data = b""
    too_large = not 0 < len(data) <= inference_process.MEMORY
    answer = b"" if too_large else _SERVER.ask(data, check_type, strict_mode, data_prop)
    return (answer[:1], answer[1:]) if answer else (inference_process.FAILURE, b"")


def _plain(message: str) -> str:
    """``node 'mm' (MatMul): Incompatible dimensions`` out of the several lines that inference writes."""
    text = re.sub(r"\[\w+\]\s*|Inference error\(s\):\s*", "", message)
    text = re.sub(r"\(op_type:(\w+), node name: ([^)]*)\)", r"node '\2' (\1)", text)
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())[:500]


def _without_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which large constants of the outer graph are inputs of their types and shapes."""
    copy = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    graph = copy.graph
    graph.name = proto.graph.name
    graph.input.extend(proto.graph.input)
    graph.output.extend(proto.graph.output)
    inputs = {value.name for value in proto.graph.input}

    def is_left_out(name: str, tensor: onnx.TensorProto) -> bool:
        if sum(tensor.dims) <= _SMALL and tensor.data_location != onnx.TensorProto.EXTERNAL:
            return False
        if name not in inputs:
            graph.input.append(onnx.helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
        return True

    graph.initializer.extend(each for each in proto.graph.initializer if not is_left_out(each.name, each))
    for node in proto.graph.node:
        tensors = [attribute.t for attribute in node.attribute if attribute.name == "value" and attribute.HasField("t")]
        if node.op_type != "Constant" or not tensors or not is_left_out(node.output[0], tensors[0]):
            graph.node.append(node)
    return copy
