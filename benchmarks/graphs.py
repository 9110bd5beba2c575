"""ONNX graphs written node by node, with random weights of the scale that training begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

#: A size, or the name of an open dimension.
Size = int | str


class Graph:
    """A graph that grows: every method adds a node and returns the name of its output.

    Args:
        seed: of the weights.
    """

    def __init__(self, seed: int = 0):
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._tensors: list[onnx.TensorProto] = []

    def op(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node, and return the name of its output, or the list of names of several outputs."""
        place = len(self._nodes)
        names = [f"{operator.lower()}_{place}" + (f"_{index}" if index else "") for index in range(outputs)]
        self._nodes.append(helper.make_node(operator, inputs, names, f"{operator}_{place}", **attributes))
        return names[0] if outputs == 1 else names

    def tensor(self, array: Any) -> str:
        """Add an initializer."""
        name = f"tensor_{len(self._tensors)}"
        self._tensors.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def integers(self, *values: int) -> str:
        """Add an initializer of 64-bit integers: a shape, axes or pads."""
        return self.tensor(np.array(values, np.int64))

    def number(self, value: float) -> str:
        """Add an initializer of one float."""
        return self.tensor(np.float32(value))

    def weight(self, *shape: int, fan_in: int) -> str:
        """Add uniform numbers up to the inverse square root of ``fan_in``, the number of terms in a sum."""
        return self.tensor(self._rng.uniform(-1, 1, shape).astype(np.float32) * np.float32(fan_in**-0.5))

    # -- layers

    def convolution(
        self,
        x: str,
        channels: tuple[int, int],
        kernel: tuple[int, int],
        *,
        stride: int = 1,
        group: int = 1,
        front: int | None = None,
    ) -> str:
        """Add a convolution over time and frequency ``[1, channels, time, frequency]`` that keeps the lengths.

        ``kernel`` is the size over time and frequency, ``stride`` the stride over frequency, and ``group`` the number
        of groups of channels. ``front`` is the number of zero frames before the first frame; the default makes the
        convolution causal. The remaining padding follows the last frame.
        """
        fan_in = channels[0] // group * kernel[0] * kernel[1]
        weight = self.weight(channels[1], channels[0] // group, *kernel, fan_in=fan_in)
        past = kernel[0] - 1 if front is None else front
        if kernel[0] > 1:
            # Time is padded by a node of its own, as exporters write a padding layer.
            x = self.op("Pad", x, self.integers(0, 0, past, 0, 0, 0, kernel[0] - 1 - past, 0))
        side = kernel[1] // 2
        bias = self.weight(channels[1], fan_in=fan_in)
        attributes = {"kernel_shape": kernel, "strides": [1, stride], "pads": [0, side, 0, side], "group": group}
        return self.op("Conv", x, weight, bias, **attributes)

    def transposed(self, x: str, channels: tuple[int, int], kernel: int, *, group: int = 1, more: int = 0) -> str:
        """Add a transposed convolution that doubles the frequency axis, up to an odd end."""
        fan_in = channels[0] // group * kernel
        weight = self.weight(channels[0], channels[1] // group, 1, kernel, fan_in=fan_in)
        side = kernel // 2
        attributes = {"strides": [1, 2], "pads": [0, side, 0, side], "output_padding": [0, more], "group": group}
        return self.op("ConvTranspose", x, weight, self.weight(channels[1], fan_in=fan_in), **attributes)

    def separable(self, x: str, channels: tuple[int, int], kernel: tuple[int, int], *, stride: int = 1) -> str:
        """Add a grouped convolution, a pointwise convolution and a ReLU."""
        group = int(np.gcd(*channels))
        grouped = self.convolution(x, channels, kernel, stride=stride, group=group)
        return self.op("Relu", self.convolution(grouped, (channels[1], channels[1]), (1, 1)))

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        """Add a product over the last axis, and a bias."""
        product = self.op("MatMul", x, self.weight(inputs, outputs, fan_in=inputs))
        return self.op("Add", product, self.weight(outputs, fan_in=inputs))

    def grouped_linear(self, x: str, inputs: int, outputs: int, groups: int) -> str:
        """Add a product over the last axis of ``[1, time, inputs]``, in groups."""
        split = self.op("Reshape", x, self.integers(0, 0, groups, inputs // groups))
        weight = self.weight(groups, inputs // groups, outputs // groups, fan_in=inputs // groups)
        product = self.op("Einsum", split, weight, equation="btgi,gih->btgh")
        return self.op("Reshape", product, self.integers(0, 0, outputs))

    def recurrent(self, kind: str, x: str, inputs: int, hidden: int, *, both: bool = False) -> str:
        """Add a layer over the first axis of ``[length, batch, inputs]``.

        The output is ``[length, batch, hidden]``, or ``[length, batch, 2 * hidden]`` for two directions.
        """
        gates, directions = {"LSTM": 4, "GRU": 3}[kind], 1 + both
        weights = [
            self.weight(directions, gates * hidden, inputs, fan_in=hidden),
            self.weight(directions, gates * hidden, hidden, fan_in=hidden),
            self.weight(directions, 2 * gates * hidden, fan_in=hidden),
        ]
        # The state before the first frame is written out, as exporters do for a batch whose size is open.
        batch = self.op("Gather", self.op("Shape", x), self.integers(1), axis=0)
        shape = self.op("Concat", self.integers(directions), batch, self.integers(hidden), axis=0)
        start = self.op("Expand", self.tensor(np.zeros((1, 1, 1), np.float32)), shape)
        states = [start, start] if kind == "LSTM" else [start]
        attributes: dict[str, Any] = {"hidden_size": hidden, "direction": "bidirectional" if both else "forward"}
        if kind == "GRU":
            attributes["linear_before_reset"] = 1
        y = self.op(kind, x, *weights, "", *states, **attributes)
        moved = self.op("Transpose", y, perm=[0, 2, 1, 3])
        return self.op("Reshape", moved, self.integers(0, 0, directions * hidden))

    def normalized(self, x: str, size: int) -> str:
        """Add a layer normalisation over the last axis, in the plain operators that exporters write."""
        centred = self.op("Sub", x, self.op("ReduceMean", x, axes=[-1], keepdims=1))
        variance = self.op("ReduceMean", self.op("Pow", centred, self.number(2.0)), axes=[-1], keepdims=1)
        deviation = self.op("Sqrt", self.op("Add", variance, self.number(1e-5)))
        scaled = self.op("Mul", self.op("Div", centred, deviation), self.weight(size, fan_in=1))
        return self.op("Add", scaled, self.weight(size, fan_in=1))

    def frames(self, x: str, first: int, like: str, *, axis: int) -> str:
        """Add the slice ``x[first : first + t]`` along an axis, with ``t`` the size of that axis in ``like``."""
        count = self.op("Gather", self.op("Shape", like), self.tensor(axis), axis=0)
        end = self.op("Unsqueeze", self.op("Add", count, self.tensor(first)), self.integers(0))
        return self.op("Slice", x, self.integers(first), end, self.integers(axis))

    # -- the whole

    def model(self, inputs: Mapping[str, Sequence[Size]], outputs: Mapping[str, tuple[str, Sequence[Size]]]) -> Any:
        """Return the file, with shapes of inputs by name, and shapes and values of outputs by name."""
        nodes = [*self._nodes, *(helper.make_node("Identity", [value], [name]) for name, (value, _) in outputs.items())]
        infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)) for name, shape in inputs.items()]
        ends = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)) for name, (_, shape) in outputs.items()
        ]
        graph = helper.make_graph(nodes, "network", infos, ends, self._tensors)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(made, full_check=True)
        return made
