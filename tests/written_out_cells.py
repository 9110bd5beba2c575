"""LSTM, GRU and RNN cells as exporters and people write them out in the body of a Scan, drawn by Hypothesis."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from small_models import make_model

FEATURES = 3


class Writer:
    """A graph's nodes and weights, as someone writes a cell out: operands of sums and products in any order."""

    def __init__(self, choices):
        self.choices, self.nodes, self.weights = choices, [], []
        self.random = random.Random(choices["seed"])
        self.numbers = np.random.default_rng(choices["seed"])

    def node(self, kind, *inputs, outputs=1, **attributes):
        names = [f"v{len(self.nodes)}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def either_way(self, kind, a, b):
        return self.node(kind, *self.random.sample([a, b], 2))

    def number(self, value):
        return self.node("Constant", value=numpy_helper.from_array(np.asarray(value, np.float32)))

    def weight(self, *shape):
        name = f"w{len(self.weights)}"
        values = self.numbers.uniform(-0.7, 0.7, shape).astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def product(self, x, rows, columns):
        if not self.choices["transposed"]:
            return self.node("MatMul", x, self.weight(rows, columns))
        return self.node("Gemm", x, self.weight(columns, rows), transB=1)

    def biased(self, x, size):
        return self.either_way("Add", x, self.weight(size)) if self.random.random() < 0.7 else x

    def sigmoid(self, x):
        form = self.choices["sigmoid"]
        if form == "operator":
            return self.node("Sigmoid", x)
        if form == "tanh":
            half = self.number(0.5)
            inner = self.node("Tanh", self.either_way("Mul", x, half))
            return self.either_way("Add", self.either_way("Mul", inner, half), half)
        one = self.number(1.0)
        return self.node("Div", one, self.either_way("Add", one, self.node("Exp", self.node("Neg", x))))

    def gates(self, names, x, h, features, hidden):
        """What enters each gate: products of x and h, one for each gate or one for all, or of both joined."""
        if self.choices["products"] == "each":
            return {
                name: self.biased(
                    self.either_way(
                        "Add", self.biased(self.product(x, features, hidden), hidden), self.product(h, hidden, hidden)
                    ),
                    hidden,
                )
                for name in names
            }
        order, size = self.random.sample(names, len(names)), len(names) * hidden
        if self.choices["products"] == "joined":
            both = self.node("Concat", *self.random.sample([x, h], 2), axis=1)
            total = self.biased(self.product(both, features + hidden, size), size)
        else:
            products = (self.biased(self.product(x, features, size), size), self.product(h, hidden, size))
            total = self.biased(self.either_way("Add", *products), size)
        if len(order) == 1:
            return {order[0]: total}
        return dict(zip(order, self.node("Split", total, outputs=len(order), axis=1), strict=True))

    def cell(self, kind, x, carry, features, hidden):
        """The carry behind a step, the hidden state first, and a gate."""
        h = carry[0]
        if kind == "rnn":
            name = self.choices["rnn"]
            return (self.node(name, self.gates("g", x, h, features, hidden)["g"]),), x
        if kind == "lstm":
            gates = self.gates("ifgo", x, h, features, hidden)
            i, f, o = (self.sigmoid(gates[name]) for name in "ifo")
            kept, new = self.either_way("Mul", f, carry[1]), self.either_way("Mul", i, self.node("Tanh", gates["g"]))
            c = self.either_way("Add", kept, new)
            return (self.either_way("Mul", o, self.node("Tanh", c)), c), f
        gates = self.gates("zr", x, h, features, hidden)
        z, r = (self.sigmoid(gates[name]) for name in "zr")
        if kind == "gru before":
            recurrent = self.product(self.either_way("Mul", r, h), hidden, hidden)
        else:
            recurrent = self.either_way("Mul", r, self.biased(self.product(h, hidden, hidden), hidden))
        entering = self.either_way("Add", self.biased(self.product(x, features, hidden), hidden), recurrent)
        g = self.node("Tanh", self.biased(entering, hidden))
        if self.choices["convention"] == "step":
            return (self.either_way("Add", h, self.either_way("Mul", z, self.node("Sub", g, h))),), z
        rest = self.node("Sub", self.number(1.0), z)
        old, new = (z, rest) if self.choices["convention"] == "keep" else (rest, z)
        return (self.either_way("Add", self.either_way("Mul", old, h), self.either_way("Mul", new, g)),), z


CARRIES = {"lstm": 2, "gru before": 1, "gru after": 1, "rnn": 1}
CHOICES = st.fixed_dictionaries({
    "kinds": st.lists(st.sampled_from(sorted(CARRIES)), min_size=1, max_size=2),
    "products": st.sampled_from(("each", "merged", "joined")),
    "transposed": st.booleans(),
    "sigmoid": st.sampled_from(("operator", "exp", "tanh")),
    "convention": st.sampled_from(("keep", "update", "step")),
    "rnn": st.sampled_from(("Tanh", "Relu")),
    "operator": st.sampled_from(("Scan", "Scan", "Loop")),
    "reverse": st.booleans(),
    "extra": st.booleans(),
    "time": st.sampled_from((2, 5)),
    "batch": st.sampled_from((1, 2)),
    "seed": st.integers(0, 1000),
})  # fmt: skip


def info(name, *shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def written_out(choices):
    """A model whose Scan or Loop holds written-out cells, one on the other, and inputs for it."""
    batch, time, hidden = choices["batch"], choices["time"], 4
    writer = Writer(choices)
    looped = choices["operator"] == "Loop"
    x, outputs, carry, new = "x", [], [], []
    if looped:
        x = writer.node("Gather", "xs", "trip")
    features = FEATURES
    for layer, kind in enumerate(choices["kinds"]):
        names = [f"carry{layer}_{index}" for index in range(CARRIES[kind])]
        after, gate = writer.cell(kind, x, names, features, hidden)
        carry += [(name, (batch, hidden)) for name in names]
        new += after
        x, features = after[0], hidden
        if choices["extra"]:  # what is seen of a step besides its hidden state: the cell's, and a gate
            shown = (batch, hidden) if kind != "rnn" else (batch, FEATURES if layer == 0 else hidden)
            outputs += [
                *((writer.node("Identity", name), (batch, hidden)) for name in after[1:]),
                (writer.node("Neg", gate), shown),
            ]
    outputs.append((writer.node("Identity", x), (batch, hidden)))
    if choices["extra"]:  # carries that are no cell's: one that nothing needs, one that follows the output
        carry += [("count", (1,)), ("peak", (batch, hidden))]
        new += [writer.node("Add", "count", writer.number([1.0])), writer.node("Max", "peak", x)]
    inputs = [info(name, *shape) for name, shape in carry]
    results = [info(name, *shape) for name, (_, shape) in zip(new, carry, strict=True)]
    results += [info(name, *shape) for name, shape in outputs]
    count = len(new)
    names = [f"y{index}" for index in range(len(results))]
    if looped:
        start = [info("trip", kind=TensorProto.INT64), info("going", kind=TensorProto.BOOL)]
        writer.nodes.append(helper.make_node("Identity", ["going"], ["go_on"]))
        ends = [info("go_on", kind=TensorProto.BOOL)]
        body = helper.make_graph(writer.nodes, "body", start + inputs, ends + results)
        node = helper.make_node("Loop", ["trips", "", *(name for name, _ in carry)], names, name="cells", body=body)
        writer.weights.append(numpy_helper.from_array(np.array(time), "trips"))
    else:
        body = helper.make_graph(writer.nodes, "body", [*inputs, info("x", batch, FEATURES)], results)
        back = int(choices["reverse"])
        node = helper.make_node(
            "Scan", [*(name for name, _ in carry), "xs"], names, name="cells", body=body, num_scan_inputs=1,
            scan_input_directions=[back], scan_output_directions=[back] * (len(results) - count),
        )  # fmt: skip
    shapes = {**dict(carry), "xs": (time, batch, FEATURES)}
    graph = helper.make_graph(
        [node],
        "cells",
        [info(n, *s) for n, s in shapes.items()],
        [
            info(
                n,
                *(["trips"] if place >= count else []),
                *(shape.dim_value for shape in result.type.tensor_type.shape.dim),
            )
            for place, (n, result) in enumerate(zip(names, results, strict=True))
        ],
        writer.weights,
    )
    rng = np.random.default_rng(choices["seed"] + 1)
    return make_model(graph), {n: rng.normal(size=shape).astype(np.float32) for n, shape in shapes.items()}
