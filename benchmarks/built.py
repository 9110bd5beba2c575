"""Offline speech networks with random weights, in the layers and sizes of papers; ``S`` is the number of frames.

`Graph` writes ONNX graphs node by node, like exporters, with random weights of the usual initial scale.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

#: A size, or the name of an open dimension.
Size = int | str


class Graph:
    """A builder of an ONNX graph. Methods add nodes and return the name of an output.

    Args:
        seed: the seed of the weights.
    """

    def __init__(self, seed: int = 0):
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._tensors: list[onnx.TensorProto] = []

    def op(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node, and return the name of the output, or a list of names for several outputs."""
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
        """Add an initializer with a float."""
        return self.tensor(np.float32(value))

    def weight(self, *shape: int, fan_in: int) -> str:
        """Add uniform numbers up to the inverse square root of ``fan_in``, the number of terms in a sum."""
        return self.tensor(self._rng.uniform(-1, 1, shape).astype(np.float32) * np.float32(fan_in**-0.5))

    # -- layers

    def convolution(
        self, x: str, channels: tuple[int, int], kernel: tuple[int, int], *, stride: int = 1, group: int = 1
    ) -> str:
        """Add a convolution over time and frequency ``[1, channels, time, frequency]``, causal in time.

        The output has as many frames. ``kernel`` is the size over time and frequency, ``stride`` the stride over
        frequency, and ``group`` the number of groups of channels.
        """
        fan_in = channels[0] // group * kernel[0] * kernel[1]
        weight = self.weight(channels[1], channels[0] // group, *kernel, fan_in=fan_in)
        if kernel[0] > 1:
            # A separate node pads time, as exporters write a padding layer.
            x = self.op("Pad", x, self.integers(0, 0, kernel[0] - 1, 0, 0, 0, 0, 0))
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


def convolutional_recurrent() -> Any:
    """Build a convolutional recurrent network: an encoder and a decoder over frequency, and an LSTM over time.

    After K. Tan and D. Wang, "A convolutional recurrent neural network for real-time speech enhancement", Interspeech
    2018, with fewer channels. The input ``x`` and the output ``y`` have shape ``[1, 1, S, 161]``.
    """
    graph = Graph()
    channels, width = [1, 16, 32, 32, 64], [161, 81, 41, 21, 11]
    skips, x = [], "x"
    for pair in itertools.pairwise(channels):
        x = graph.op("Elu", graph.convolution(x, pair, (2, 3), stride=2))
        skips.append(x)
    features, hidden = channels[-1] * width[-1], 128
    x = _over_time(graph, x, lambda x: _layers(graph, "LSTM", x, features, hidden, 2), features)
    x = graph.linear(x, hidden, features)
    x = graph.op("Reshape", x, graph.integers(0, 0, channels[-1], width[-1]))
    x = graph.op("Transpose", x, perm=[0, 2, 1, 3])
    for layer in reversed(range(4)):
        joined = graph.op("Concat", x, skips[layer], axis=1)
        x = graph.transposed(joined, (2 * channels[layer + 1], channels[layer]), 3)
        x = graph.op("Elu" if layer else "Sigmoid", x)
    y = graph.op("Mul", x, "x")
    return graph.model({"x": [1, 1, "S", 161]}, {"y": (y, [1, 1, "S", 161])})


def deep_filter() -> Any:
    """Build a network like DeepFilterNet3: separable convolutions, grouped products, GRUs and two decoders.

    The look-ahead is two frames. After H. Schroeter et al., "DeepFilterNet: perceptually motivated real-time speech
    enhancement", Interspeech 2023. Inputs: the features ``bands`` ``[1, 1, S, 32]`` and ``bins`` ``[1, 2, S, 96]``, and
    ``spectrum`` ``[1, 1, S, 481, 2]`` with real and imaginary parts on the last axis. Outputs: the spectrum
    ``enhanced``, and ``level`` ``[1, S, 1]``.
    """
    graph = Graph()
    bands, first_bin, code = _encoder(graph, lambda x, width: x)
    return _decoders(graph, bands, first_bin, code)


def dual_path() -> Any:
    """Build a network like DPDFNet-2: `deep_filter` with two dual-path blocks after each branch of the encoder.

    Each block runs a bidirectional GRU over the frequencies of a frame, and a GRU over the frames of each frequency (Y.
    Luo et al., "Dual-path RNN", ICASSP 2020).
    """
    graph = Graph()
    bands, first_bin, code = _encoder(graph, lambda x, width: _block(graph, _block(graph, x, width), width))
    return _decoders(graph, bands, first_bin, code)


#: Functions that build a network, by name.
NETWORKS: dict[str, Callable[[], Any]] = {
    "convolutional_recurrent": convolutional_recurrent,
    "deep_filter": deep_filter,
    "dual_path": dual_path,
}

CHANNELS, BANDS, BINS, HIDDEN = 64, 32, 96, 256

#: Bins of a spectrum, frames of a filter, and frames of look-ahead among these.
SPECTRUM, ORDER, AHEAD = 481, 5, 2


def _over_time(graph: Graph, x: str, layers: Callable[[str], str], features: int) -> str:
    """Add recurrent layers over the frames of ``[1, channels, time, frequency]``, giving ``[1, time, hidden]``."""
    return _batch_first(graph, layers(_batch_first(graph, _flat(graph, x, features))))


def _batch_first(graph: Graph, x: str) -> str:
    return graph.op("Transpose", x, perm=[1, 0, 2])


def _layers(graph: Graph, kind: str, x: str, inputs: int, hidden: int, count: int) -> str:
    for layer in range(count):
        x = graph.recurrent(kind, x, hidden if layer else inputs, hidden)
    return x


def _encoder(graph: Graph, blocks: Callable[[str, int], str]) -> tuple[list[str], str, str]:
    """Add the convolutions over bands and bins, with blocks after each, and their common code ``[1, time, 512]``."""
    x = graph.op("Relu", graph.convolution(_ahead(graph, "bands"), (1, CHANNELS), (3, 3)))
    bands = [x]
    for stride in (2, 2, 1):
        x = graph.separable(x, (CHANNELS, CHANNELS), (1, 3), stride=stride)
        bands.append(x)
    bands[-1] = x = blocks(x, BANDS // 4)
    grouped = graph.convolution(_ahead(graph, "bins"), (2, CHANNELS), (3, 3), group=2)
    first_bin = graph.op("Relu", graph.convolution(grouped, (CHANNELS, CHANNELS), (1, 1)))
    second = blocks(graph.separable(first_bin, (CHANNELS, CHANNELS), (1, 3), stride=2), BINS // 2)
    flat = [_flat(graph, value, CHANNELS * width) for value, width in ((x, BANDS // 4), (second, BINS // 2))]
    features = CHANNELS * BANDS // 4
    narrow = graph.op("Relu", graph.grouped_linear(flat[1], CHANNELS * BINS // 2, features, 32))
    return bands, first_bin, _squeezed(graph, graph.op("Add", flat[0], narrow), features, 1, features)


def _ahead(graph: Graph, x: str) -> str:
    """Shift frames of ``[1, channels, time, frequency]`` by the look-ahead; zeros follow the last frame."""
    return graph.op("Pad", x, graph.integers(0, 0, -AHEAD, 0, 0, 0, AHEAD, 0))


def _flat(graph: Graph, x: str, features: int) -> str:
    return graph.op("Reshape", graph.op("Transpose", x, perm=[0, 2, 1, 3]), graph.integers(0, 0, features))


def _squeezed(graph: Graph, x: str, inputs: int, layers: int, outputs: int | None = None) -> str:
    """Add a grouped product, GRUs over time and, with ``outputs``, a second grouped product."""
    x = _batch_first(graph, graph.op("Relu", graph.grouped_linear(x, inputs, HIDDEN, 16)))
    x = _batch_first(graph, _layers(graph, "GRU", x, HIDDEN, HIDDEN, layers))
    return x if outputs is None else graph.op("Relu", graph.grouped_linear(x, HIDDEN, outputs, 16))


def _decoders(graph: Graph, bands: list[str], first_bin: str, code: str) -> Any:
    """Add the decoders: gains of the bands and taps of the bins from the code, and the enhanced spectrum."""
    features = CHANNELS * BANDS // 4
    x = _squeezed(graph, code, features, 1, features)
    x = graph.op("Reshape", x, graph.integers(0, 0, CHANNELS, BANDS // 4))
    x = graph.op("Transpose", x, perm=[0, 2, 1, 3])
    for layer in (3, 2, 1):
        skip = graph.op("Relu", graph.convolution(bands[layer], (CHANNELS, CHANNELS), (1, 1)))
        joined = graph.op("Add", x, skip)
        if layer == 3:
            x = graph.separable(joined, (CHANNELS, CHANNELS), (1, 3))
        else:
            up = graph.transposed(joined, (CHANNELS, CHANNELS), 3, group=CHANNELS, more=1)
            x = graph.op("Relu", graph.convolution(up, (CHANNELS, CHANNELS), (1, 1)))
    skip = graph.op("Relu", graph.convolution(bands[0], (CHANNELS, CHANNELS), (1, 1)))
    gains = graph.op("Sigmoid", graph.convolution(graph.op("Add", x, skip), (CHANNELS, 1), (1, 3)))

    skipped = graph.grouped_linear(code, features, HIDDEN, 16)
    taps = graph.op("Add", _squeezed(graph, code, features, 2), skipped)
    taps = graph.op("Tanh", graph.grouped_linear(taps, HIDDEN, BINS * 10, 16))
    taps = graph.op("Reshape", taps, graph.integers(0, 0, BINS, 10))
    path = graph.op("Relu", graph.convolution(first_bin, (CHANNELS, 10), (5, 1), group=2))
    path = graph.op("Relu", graph.convolution(path, (10, 10), (1, 1)))
    taps = graph.op("Add", taps, graph.op("Transpose", path, perm=[0, 2, 3, 1]))
    level = graph.op("Sigmoid", graph.linear(code, features, 1))
    enhanced = _enhanced(graph, gains, taps)
    return graph.model(
        {"bands": [1, 1, "S", BANDS], "bins": [1, 2, "S", BINS], "spectrum": [1, 1, "S", SPECTRUM, 2]},
        {"enhanced": (enhanced, [1, 1, "S", SPECTRUM, 2]), "level": (level, [1, "S", 1])},
    )


def _enhanced(graph: Graph, gains: str, taps: str) -> str:
    """Add the enhanced spectrum: the first bins are filtered over time, and band gains scale the other bins.

    Shapes: ``gains`` ``[1, 1, time, bands]`` and ``taps`` ``[1, time, bins, 2 * order]``.
    """
    bands = np.arange(BANDS)[:, None] == np.arange(SPECTRUM) * BANDS // SPECTRUM
    wide = graph.op("MatMul", gains, graph.tensor(bands.astype(np.float32)))
    scaled = graph.op("Mul", "spectrum", graph.op("Unsqueeze", wide, graph.integers(-1)))
    low = graph.op("Slice", "spectrum", *(graph.integers(value) for value in (0, BINS, 3)))
    padded = graph.op("Pad", low, graph.integers(0, 0, ORDER - 1 - AHEAD, 0, 0, 0, 0, AHEAD, 0, 0))
    frames = graph.op("Concat", *(graph.frames(padded, first, "spectrum", axis=2) for first in range(ORDER)), axis=1)
    taps = graph.op("Reshape", taps, graph.integers(0, 0, BINS, ORDER, 2))
    taps = graph.op("Transpose", taps, perm=[0, 3, 1, 2, 4])
    filtered = graph.op("ReduceSum", _complex_product(graph, frames, taps), graph.integers(1), keepdims=1)
    high = graph.op("Slice", scaled, *(graph.integers(value) for value in (BINS, SPECTRUM, 3)))
    return graph.op("Concat", filtered, high, axis=3)


def _complex_product(graph: Graph, x: str, y: str) -> str:
    """Add the product of complex numbers with real and imaginary parts on the last axis."""
    (a, b), (c, d) = ([graph.op("Gather", z, graph.tensor(part), axis=-1) for part in range(2)] for z in (x, y))

    def both(operator: str, first: tuple[str, str], second: tuple[str, str]) -> str:
        part = graph.op(operator, graph.op("Mul", *first), graph.op("Mul", *second))
        return graph.op("Unsqueeze", part, graph.integers(-1))

    return graph.op("Concat", both("Sub", (a, c), (b, d)), both("Add", (a, d), (b, c)), axis=-1)


def _block(graph: Graph, x: str, width: int) -> str:
    """Add a dual-path block on ``[1, channels, time, frequency]``: first over frequency, then over time."""
    inside = graph.op("Transpose", x, perm=[0, 2, 3, 1])
    y = _path(graph, inside, [-1, width, CHANNELS], [1, -1, width, CHANNELS], both=True)
    x = graph.op("Add", x, graph.op("Transpose", y, perm=[0, 3, 1, 2]))
    across = graph.op("Transpose", x, perm=[0, 3, 2, 1])
    y = _path(graph, across, [width, -1, CHANNELS], [1, width, -1, CHANNELS], both=False)
    return graph.op("Add", x, graph.op("Transpose", y, perm=[0, 3, 2, 1]))


def _path(graph: Graph, x: str, rows: list[int], shape: list[int], *, both: bool) -> str:
    """Add a GRU over the second axis of ``x`` as ``rows``, a product and a normalisation, in the shape of ``x``."""
    units = CHANNELS // 2 if both else CHANNELS
    y = _batch_first(graph, graph.op("Reshape", x, graph.integers(*rows)))
    y = _batch_first(graph, graph.recurrent("GRU", y, CHANNELS, units, both=both))
    y = graph.linear(y, CHANNELS, CHANNELS)
    return graph.op("Reshape", graph.normalized(y, CHANNELS), graph.integers(*shape))
