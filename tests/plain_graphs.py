"""Files of a node or two over ``x`` and ``weight``, for tests of what is wrong with a file or a call."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

X = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
Y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
RELU = helper.make_node("Relu", ["x"], ["y"], name="r")
WEIGHT = numpy_helper.from_array(np.ones((2, 3), np.float32), "weight")
ADD = helper.make_node("Add", ["x", "weight"], ["y"], name="n")


def model(*nodes, inputs=(X,), outputs=(Y,), initializers=(), opset=17, ir_version=8):
    """A file of these nodes, as it is: nothing is checked or inferred."""
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def node(operator, inputs, outputs=("y",), name="n", **attributes):
    """A node with a name."""
    return helper.make_node(operator, inputs, outputs, name=name, **attributes)
