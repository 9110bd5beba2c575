"""The files that are mutated: small ones of every kind of node, and the real ones where there are some."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from small_models import layers_model, make_model

ROOT = Path(__file__).parent.parent.parent
MODELS = Path(os.environ.get("JAXRNN_MODELS", ROOT.parent / "shared" / "models"))
#: Larger files spend the time on copying weights.
_LARGEST = 4_000_000


def value(name, *shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, list(shape))


def unknown(name, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, None)


def tensor(name, array):
    return numpy_helper.from_array(np.asarray(array), name)


def _shapes():
    """Arithmetic on shapes, static values, and everything that makes arrays out of numbers."""
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["rows"]),
        node("Unsqueeze", ["rows", "axes"], ["rows1"]),
        node("Concat", ["rows1", "three"], ["wanted"], axis=0),
        node("ConstantOfShape", ["wanted"], ["filled"], value=tensor("", np.ones(1, np.float32))),
        node("Expand", ["small", "wanted"], ["expanded"]),
        node("Tile", ["small", "repeats"], ["tiled"]),
        node("Range", ["zero", "rows", "one"], ["range"]),
        node("Cast", ["range"], ["steps"], to=TensorProto.FLOAT),
        node("OneHot", ["range", "depth", "values"], ["hot"], axis=-1),
        node("Pad", ["hot", "pads"], ["padded"], mode="constant"),
        node("Add", ["filled", "expanded"], ["sum"]),
        node("Reshape", ["x", "flat"], ["flattened"]),
        node("Slice", ["flattened", "zeros", "threes"], ["sliced"]),
        node("Split", ["x"], ["left", "right"], axis=1, num_outputs=2),
        node("Transpose", ["x"], ["turned"], perm=[1, 0]),
    ]
    numbers = {
        "zero": 0,
        "one": 1,
        "axes": [0],
        "three": [3],
        "repeats": [2, 1],
        "depth": 4,
        "pads": [0, 1, 0, 1],
        "flat": [-1],
        "zeros": [0],
        "threes": [3],
    }
    tensors = [tensor(name, np.asarray(number, np.int64)) for name, number in numbers.items()]
    tensors += [tensor("small", np.ones((1, 3), np.float32)), tensor("values", np.array([0, 1], np.float32))]
    outputs = ("sum", "tiled", "steps", "padded", "sliced", "left", "turned")
    return make_model(
        helper.make_graph(nodes, "shapes", [value("x", "N", 4)], [unknown(name) for name in outputs], tensors), opset=18
    )


def _control():
    """If, Loop and Scan, one in the other, with values of the outer graphs."""
    node = helper.make_node
    step = helper.make_graph(
        [node("Add", ["h", "frame"], ["sum"]), node("Tanh", ["sum"], ["next"]), node("Identity", ["next"], ["seen"])],
        "step",
        [value("h", 3), value("frame", 3)],
        [value("next", 3), value("seen", 3)],
    )
    trip = helper.make_graph(
        [node("Mul", ["a", "w"], ["b"]), node("Identity", ["go"], ["on"])],
        "trip",
        [value("i", kind=TensorProto.INT64), value("go", kind=TensorProto.BOOL), value("a", 3)],
        [value("on", kind=TensorProto.BOOL), value("b", 3)],
    )
    branches = [
        helper.make_graph(nodes, name, [], [value(output, 3)])
        for name, output, nodes in (
            ("then", "p", [node("Loop", ["trips", "", "last"], ["p"], name="inner", body=trip)]),
            ("else", "q", [node("Neg", ["last"], ["q"])]),
        )
    ]
    nodes = [
        node("Scan", ["h0", "x"], ["last", "all"], name="scan", body=step, num_scan_inputs=1),
        node("ReduceSum", ["last"], ["total"], keepdims=0),
        node("Greater", ["total", "zero"], ["positive"]),
        node("If", ["positive"], ["y"], name="choice", then_branch=branches[0], else_branch=branches[1]),
    ]
    tensors = [
        tensor("zero", np.float32(0)),
        tensor("trips", np.int64(3)),
        tensor("w", np.array([0.5, 1, 2], np.float32)),
    ]
    inputs = [value("h0", 3), value("x", "T", 3)]
    return make_model(helper.make_graph(nodes, "control", inputs, [value("y", 3), unknown("all")], tensors))


def _functions():
    """Local functions that call each other, with an attribute handed on."""
    node = helper.make_node
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    inner = node("Elu", ["a"], ["b"])
    inner.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    bend = helper.make_function("own", "Bend", ["a"], ["b"], [inner], opsets, ["slope"])
    twice = helper.make_function(
        "own",
        "Twice",
        ["a"],
        ["c"],
        [node("Bend", ["a"], ["b"], domain="own", slope=0.5), node("Bend", ["b"], ["c"], domain="own", slope=2.0)],
        opsets,
    )
    graph = helper.make_graph(
        [node("Twice", ["x"], ["t"], domain="own"), node("Twice", ["t"], ["y"], domain="own")],
        "functions",
        [value("x", 2, 3)],
        [value("y", 2, 3)],
    )
    return helper.make_model(graph, opset_imports=opsets, functions=[bend, twice], ir_version=10)


def _sequences():
    """Sequences and optionals."""
    node = helper.make_node
    nodes = [
        node("SequenceConstruct", ["x", "x"], ["s"]),
        node("SequenceInsert", ["s", "x", "one"], ["longer"]),
        node("SequenceErase", ["longer", "one"], ["shorter"]),
        node("SequenceAt", ["shorter", "one"], ["item"]),
        node("ConcatFromSequence", ["longer"], ["joined"], axis=0),
        node("SplitToSequence", ["joined"], ["parts"], axis=0),
        node("SequenceLength", ["parts"], ["count"]),
        node("Optional", ["item"], ["maybe"]),
        node("OptionalGetElement", ["maybe"], ["got"]),
        node("OptionalHasElement", ["maybe"], ["has"]),
    ]
    outputs = [
        unknown("joined"),
        unknown("got"),
        unknown("count", TensorProto.INT64),
        unknown("has", TensorProto.BOOL),
    ]
    return make_model(
        helper.make_graph(nodes, "sequences", [value("x", "N", 3)], outputs, [tensor("one", np.int64(1))]), opset=18
    )


def _convolutions():
    """Convolution, pooling, resizing and normalization over time, and a GRU whose state goes in and out."""
    node = helper.make_node
    rng = np.random.default_rng(0)
    weight = lambda name, *shape: tensor(name, rng.normal(size=shape).astype(np.float32))  # noqa: E731
    nodes = [
        node("Conv", ["x", "kernel", "bias"], ["c"], kernel_shape=[3], pads=[2, 0], strides=[1]),
        node("BatchNormalization", ["c", "scale", "bias", "mean", "var"], ["n"]),
        node("Relu", ["n"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[2], strides=[2]),
        node("ConvTranspose", ["p", "back"], ["u"], strides=[2]),
        node("Transpose", ["u"], ["t"], perm=[2, 0, 1]),
        node("GRU", ["t", "W", "R", "B", "", "h"], ["Y", "h_out"], hidden_size=3, linear_before_reset=1, name="gru"),
        node("LayerNormalization", ["Y", "gain"], ["y"], axis=-1),
        node("Softmax", ["y"], ["soft"], axis=-1),
    ]
    tensors = [
        weight("kernel", 4, 2, 3),
        weight("bias", 4),
        weight("scale", 4),
        weight("mean", 4),
        tensor("var", np.ones(4, np.float32)),
        weight("back", 4, 2, 2),
        weight("W", 1, 9, 2),
        weight("R", 1, 9, 3),
        weight("B", 1, 18),
        weight("gain", 3),
    ]
    inputs = [value("x", 1, 2, "T"), value("h", 1, 1, 3)]
    outputs = [unknown("soft"), value("h_out", 1, 1, 3)]
    return make_model(helper.make_graph(nodes, "convolutions", inputs, outputs, tensors), opset=18)


def _quantized():
    """Quantized products."""
    node = helper.make_node
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        node("MatMulInteger", ["q", "w", "z", "wz"], ["product"]),
        node("Cast", ["product"], ["float"], to=TensorProto.FLOAT),
        node("Mul", ["float", "s"], ["scaled"]),
        node("QuantizeLinear", ["scaled", "scale", "wz"], ["again"]),
        node("DequantizeLinear", ["again", "scale", "wz"], ["y"]),
    ]
    tensors = [
        tensor("w", np.arange(12, dtype=np.uint8).reshape(4, 3)),
        tensor("wz", np.uint8(3)),
        tensor("scale", np.float32(0.1)),
    ]
    return make_model(helper.make_graph(nodes, "quantized", [value("x", "N", 4)], [value("y", "N", 3)], tensors))


def small_seeds():
    """Small models by name."""
    return {
        "layers": layers_model(),
        "shapes": _shapes(),
        "control": _control(),
        "functions": _functions(),
        "sequences": _sequences(),
        "convolutions": _convolutions(),
        "quantized": _quantized(),
    }


def real_seeds():
    """The real files that are there, as bytes by name."""
    if not MODELS.is_dir():
        return {}
    return {path.stem: path.read_bytes() for path in sorted(MODELS.glob("*.onnx")) if path.stat().st_size < _LARGEST}
