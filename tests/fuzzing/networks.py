"""Valid networks with recurrent layers, loops and branches, drawn at random, that ONNX Runtime runs as well."""

from __future__ import annotations

import random

import numpy as np
import onnx
from onnx import TensorProto, helper

from fuzzing.seeds import tensor, value

#: Gates of each recurrent operator, and its inputs behind X, W, R.
_CELLS = {"LSTM": 4, "GRU": 3, "RNN": 1}
_LAYERS = (
    "LSTM",
    "GRU",
    "RNN",
    "Scan",
    "Loop",
    "Branch",
    "MatMul",
    "Gemm",
    "Slice",
    "Concat",
    "Split",
    "Transpose",
    "Conv",
)
_LAYERS += ("Pad", "Softmax", "Activation", "Gather", "Sum")


class Network:
    """A chain of layers over ``[time, batch, features]``, each keeping the three axes."""

    def __init__(self, rng):
        self.rng, self.numbers = rng, np.random.default_rng(rng.getrandbits(32))
        self.nodes, self.tensors, self.count = [], [], 0
        self.time, self.batch, self.features = rng.randrange(1, 6), rng.randrange(1, 4), rng.randrange(1, 5)

    def name(self, stem="v"):
        self.count += 1
        return f"{stem}{self.count}"

    def node(self, kind, *inputs, outputs=1, **attributes):
        names = [self.name() for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, name=self.name("n"), **attributes))
        return names[0] if outputs == 1 else names

    def weight(self, *shape, scale=0.7):
        return self.constant((scale * self.numbers.normal(size=shape)).astype(np.float32))

    def constant(self, array):
        name = self.name("w")
        self.tensors.append(tensor(name, np.asarray(array)))
        return name

    def layer(self, x):
        kind = self.rng.choice(_LAYERS)
        return self.cell(kind, x) if kind in _CELLS else getattr(self, kind.lower())(x)

    def cell(self, kind, x):
        rng, gates, hidden = self.rng, _CELLS[kind], self.rng.randrange(1, 5)
        direction = rng.choice(("forward", "reverse", "bidirectional"))
        directions = 2 if direction == "bidirectional" else 1
        inputs = [
            x,
            self.weight(directions, gates * hidden, self.features),
            self.weight(directions, gates * hidden, hidden),
        ]
        optional = [
            self.weight(directions, 2 * gates * hidden),
            # Engines disagree on rows without any frame.
            self.constant(self.numbers.integers(1, self.time + 1, self.batch).astype(np.int32)),
            *(self.weight(directions, self.batch, hidden) for _ in range(2 if kind == "LSTM" else 1)),
            *([self.weight(directions, 3 * hidden)] if kind == "LSTM" else []),
        ]
        inputs += [name if rng.random() < 0.5 else "" for name in optional]
        attributes = {"hidden_size": hidden, "direction": direction}
        if kind == "GRU" and rng.random() < 0.5:
            attributes["linear_before_reset"] = 1
        if kind == "LSTM" and rng.random() < 0.3:
            attributes["input_forget"] = 1
        if kind == "RNN" and rng.random() < 0.5:
            attributes["activations"] = [rng.choice(("Relu", "Tanh", "Sigmoid")) for _ in range(directions)]
        y = self.node(kind, *inputs, outputs=3 if kind == "LSTM" else 2, **attributes)[0]
        turned = self.node("Transpose", y, perm=[0, 2, 1, 3])
        self.features = directions * hidden
        return self.node("Reshape", turned, self.constant(np.array([0, 0, -1])))

    def scan(self, x):
        """A running mix of the frames, forwards or backwards."""
        back, keep = self.rng.randrange(2), self.constant(np.float32(0.5))
        shape = (self.batch, self.features)
        body = helper.make_graph(
            [
                helper.make_node("Mul", ["h", keep], ["kept"]),
                helper.make_node("Add", ["kept", "frame"], ["sum"]),
                helper.make_node("Tanh", ["sum"], ["next"]),
                helper.make_node("Identity", ["next"], ["seen"]),
            ],
            "body",
            [value("h", *shape), value("frame", *shape)],
            [value("next", *shape), value("seen", *shape)],
        )
        directions = {"scan_input_directions": [back], "scan_output_directions": [back]}
        return self.node("Scan", self.weight(*shape), x, outputs=2, body=body, num_scan_inputs=1, **directions)[1]

    def loop(self, x):
        """So many trips of arithmetic on all frames, ending early where a sum gets large."""
        trips, limit = self.constant(np.int64(self.rng.randrange(4))), self.constant(np.float32(50))
        shape, early = (None, self.batch, self.features), self.rng.random() < 0.4
        factor = self.weight(self.features)
        last = (
            [
                helper.make_node("ReduceSum", ["after"], ["total"], keepdims=0),
                helper.make_node("Less", ["total", limit], ["on"]),
            ]
            if early
            else [helper.make_node("Identity", ["go"], ["on"])]
        )
        body = helper.make_graph(
            [helper.make_node("Mul", ["before", factor], ["after"]), *last],
            "body",
            [value("trip", kind=TensorProto.INT64), value("go", kind=TensorProto.BOOL), value("before", *shape)],
            [value("on", kind=TensorProto.BOOL), value("after", *shape)],
        )
        return self.node("Loop", trips, "", x, body=body)

    def branch(self, x):
        """A branch on data, or on a size."""
        if self.rng.random() < 0.5:
            size = self.node("Gather", self.node("Shape", x), self.constant(np.int64(0)))
            condition = self.node("Greater", size, self.constant(np.int64(self.rng.randrange(5))))
        else:
            total = self.node("ReduceSum", x, keepdims=0)
            condition = self.node("Greater", total, self.constant(np.float32(0)))
        weight = self.weight(self.features)
        branches = [
            helper.make_graph(
                [helper.make_node(kind, [x, weight] if kind == "Add" else [x], [name])],
                name,
                [],
                [value(name, None, self.batch, self.features)],
            )
            for kind, name in (("Add", self.name("then")), ("Neg", self.name("else")))
        ]
        return self.node("If", condition, then_branch=branches[0], else_branch=branches[1])

    def matmul(self, x):
        before, self.features = self.features, self.rng.randrange(1, 5)
        return self.node("MatMul", x, self.weight(before, self.features))

    def gemm(self, x):
        before, self.features = self.features, self.rng.randrange(1, 5)
        flat = self.node("Reshape", x, self.constant(np.array([-1, before])))
        weight, turned = self.weight(self.features, before), {"transB": 1, "alpha": 0.5}
        product = self.node("Gemm", flat, weight, self.weight(self.features), **turned)
        return self.node("Reshape", product, self.constant(np.array([-1, self.batch, self.features])))

    def slice(self, x):
        start, step = self.rng.randrange(-2, 2), self.rng.choice((1, 1, 2, -1))
        ends = -(2**31) if step < 0 else 2**31
        start = -1 if step < 0 else start
        bounds = [self.constant(np.array([number])) for number in (start, ends, 2, step)]
        low = max(start + self.features, 0) if start < 0 else min(start, self.features)
        self.features = self.features if step < 0 else -(-(self.features - low) // step)
        return self.node("Slice", x, *bounds) if self.features else self._none(x, bounds)

    def _none(self, x, bounds):
        """Nothing would be left: keep all instead."""
        self.features = 1
        return self.node("ReduceMean", x, axes=[2], keepdims=1)

    def concat(self, x):
        other = self.node(self.rng.choice(("Tanh", "Neg", "Sigmoid")), x)
        self.features *= 2
        return self.node("Concat", *self.rng.sample((x, other), 2), axis=self.rng.choice((2, -1)))

    def split(self, x):
        if self.features < 2:
            return self.node("Abs", x)
        first = self.rng.randrange(1, self.features)
        parts = self.node("Split", x, self.constant(np.array([first, self.features - first])), outputs=2, axis=2)
        return self.node("Concat", *reversed(parts), axis=2)

    def transpose(self, x):
        order = self.rng.sample(range(3), 3)
        turned = self.node("Relu", self.node("Transpose", x, perm=order))
        return self.node("Transpose", turned, perm=[order.index(axis) for axis in range(3)])

    def conv(self, x):
        """Over time, of the same length."""
        before, self.features = self.features, self.rng.randrange(1, 5)
        kernel, dilation = self.rng.randrange(1, 4), self.rng.randrange(1, 3)
        extent = (kernel - 1) * dilation
        front = self.rng.randrange(extent + 1)
        turned = self.node("Transpose", x, perm=[1, 2, 0])
        pads = {"pads": [front, extent - front], "dilations": [dilation]}
        y = self.node("Conv", turned, self.weight(self.features, before, kernel), self.weight(self.features), **pads)
        return self.node("Transpose", y, perm=[2, 0, 1])

    def pad(self, x):
        front, behind = self.rng.randrange(3), self.rng.randrange(3)
        self.features += front + behind
        pads = self.constant(np.array([0, 0, front, 0, 0, behind]))
        return self.node("Pad", x, pads, self.constant(np.float32(self.rng.choice((0.0, 0.5)))))

    def softmax(self, x):
        return self.node("Softmax", x, axis=self.rng.randrange(-3, 3))

    def activation(self, x):
        return self.node(self.rng.choice(("Tanh", "Sigmoid", "Elu", "Softplus", "Erf", "HardSigmoid", "LeakyRelu")), x)

    def gather(self, x):
        before, self.features = self.features, self.rng.randrange(1, 5)
        places = self.numbers.integers(-before, before, self.features)
        return self.node("Gather", x, self.constant(places), axis=2)

    def sum(self, x):
        return self.node("CumSum", x, self.constant(np.int64(0)), reverse=self.rng.randrange(2))


def random_network(seed):
    """A model of two to six layers, its input, and how large its numbers may get."""
    rng = random.Random(f"network {seed}")
    network = Network(rng)
    shape = (network.time, network.batch, network.features)
    x = "x"
    for _ in range(rng.randrange(2, 7)):
        x = network.layer(x)
    declared = ["T" if rng.random() < 0.5 else network.time, *shape[1:]]
    network.nodes.append(helper.make_node("Identity", [x], ["y"]))
    graph = helper.make_graph(
        network.nodes, "network", [value("x", *declared)], [value("y", None, None, None)], network.tensors
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(proto)
    return proto, {"x": network.numbers.normal(size=shape).astype(np.float32)}
