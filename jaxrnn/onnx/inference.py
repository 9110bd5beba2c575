"""ONNX's own inference of shapes and types, which tells early and well which node's operands do not fit."""

from __future__ import annotations

import re

import onnx
import onnx_ir as ir

from jaxrnn.errors import ModelError
from jaxrnn.onnx.graph import graphs_of, normal_domain

#: Constants up to this size go along to shape inference, which reads shapes and axes from them.
_SMALL = 256

#: Operators whose inference in onnx reads types that may not be there, which ends the process (seen in onnx 1.23).
_CRASHES = frozenset({
    ("", "EyeLike"),
    ("", "RegexFullMatch"),
    ("ai.onnx.ml", "DictVectorizer"),
    ("ai.onnx.ml", "LabelEncoder"),
    ("ai.onnx.ml", "TreeEnsemble"),
    ("ai.onnx.preview.training", "Adagrad"),
    ("ai.onnx.preview.training", "Adam"),
    ("ai.onnx.preview.training", "Momentum"),
})  # fmt: skip


def can_be_inferred(model: ir.Model) -> bool:
    """Whether onnx's inference is known to take every node of a graph, functions included, without crashing."""
    graphs = (model.graph, *model.functions.values())
    return all(map(_is_safe, (node for graph in graphs for node in graph.all_nodes())))


def _is_safe(node: ir.Node) -> bool:
    domain = normal_domain(node.domain)
    if (domain, node.op_type) in _CRASHES:
        return False
    if domain:
        return True
    if node.op_type == "GatherND":
        return _integer(node, "batch_dims", 0) >= 0
    if node.op_type == "Split":
        return _integer(node, "num_outputs", len(node.outputs)) == len(node.outputs)
    return True


def _integer(node: ir.Node, name: str, default: int) -> int:
    """An attribute; -1 where it is no integer."""
    attribute = node.attributes.get(name)
    if attribute is None:
        return default
    return int(attribute.value) if attribute.type == ir.AttributeType.INT and not attribute.is_ref() else -1


def check_shapes(proto: onnx.ModelProto) -> None:
    """ONNX's own inference over a sorted copy without the weights' data.

    Raises:
        ModelError: names the node whose operands do not fit.
    """
    model = ir.serde.deserialize_model(_without_weights(proto))
    if not can_be_inferred(model):
        return  # evaluation will tell
    for graph in (*graphs_of(model.graph), *model.functions.values()):
        graph.sort()
    try:
        onnx.shape_inference.infer_shapes(ir.serde.serialize_model(model), check_type=True, strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        places = re.findall(r"\(op_type:(\w+)", str(error))
        if len(places) > 1 and places[0] not in {function.name for function in proto.functions}:
            return  # inside ONNX's own body of an operator, which says nothing about the file
        message = _plain(str(error))
        raise ModelError(f"inconsistent shapes or types: {message}; correct the file or export it again") from error
    except (RuntimeError, ValueError, MemoryError, IndexError, OverflowError):
        # Inference itself gave up (an operator that onnx does not define, for one); evaluation will tell.
        return


def _plain(message: str) -> str:
    """``node 'mm' (MatMul): Incompatible dimensions`` out of the several lines that inference writes."""
    text = re.sub(r"\[\w+\]\s*|Inference error\(s\):\s*", "", message)
    text = re.sub(r"\(op_type:(\w+), node name: ([^)]*)\)", r"node '\2' (\1)", text)
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())[:500]


def _without_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    graph = copy.graph
    graph.name = proto.graph.name
    graph.node.extend(proto.graph.node)
    graph.input.extend(proto.graph.input)
    graph.output.extend(proto.graph.output)
    inputs = {value.name for value in proto.graph.input}
    for tensor in proto.graph.initializer:
        if sum(tensor.dims) <= _SMALL and tensor.data_location != onnx.TensorProto.EXTERNAL:
            graph.initializer.append(tensor)
        elif tensor.name not in inputs:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    return copy
