"""Complex numbers of TensorFlow as pairs of real values, in a file of tf2onnx."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from jaxrnn.onnx.tensors import graphs_below

#: Operators that move elements of their first input, so act on the real and the imaginary part alike.
_BY_PARTS = {"Concat", "Expand", "Flatten", "Gather", "Identity", "Neg", "Pad", "ReduceMean", "ReduceSum", "Reshape"}
_BY_PARTS |= {"Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze"}
_COMPLEX = {onnx.TensorProto.COMPLEX64: np.complex64, onnx.TensorProto.COMPLEX128: np.complex128}
#: The names of the real and of the imaginary part; without a second name, the number is real.
_Pair = tuple[str, str]


def write_real_forms(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Replace operators on complex numbers, which TensorFlow has and ONNX has not, by operators on their parts.

    Return the nodes on complex numbers that have no such form here.
    """
    parts = _Parts(proto)
    return [node for graph in parts.graphs for node in parts.rewrite(graph)]


class _Parts:
    """The parts of the complex values of a file."""

    def __init__(self, proto: onnx.ModelProto):
        self.graph, self.pairs, self.nodes, self.count = proto.graph, dict[str, _Pair](), list[onnx.NodeProto](), 0
        self.graphs = [each for each in graphs_below(proto.graph) if isinstance(each, onnx.GraphProto)]
        self.constants = {each.name: each for graph in self.graphs for each in graph.initializer}
        for name, tensor in self.constants.items():
            if tensor.data_type in _COMPLEX:
                array = numpy_helper.to_array(tensor)
                self.pairs[name] = self.constant(np.real(array)), self.constant(np.imag(array))

    def rewrite(self, graph: onnx.GraphProto) -> list[onnx.NodeProto]:
        """Write the nodes of a graph anew, where a value is complex; return those that stay."""
        self.nodes, left = [], []
        for node in graph.node:
            try:
                self.write(node)
            except (KeyError, ValueError):
                left.append(node)
        del graph.node[:]
        graph.node.extend([*self.nodes, *left])
        real = [each for each in graph.value_info if each.name not in self.pairs]
        del graph.value_info[:]
        graph.value_info.extend(real)
        return left

    def write(self, node: onnx.NodeProto) -> None:
        """Write a node, or the nodes for the parts of its value."""
        kind, inputs, out = node.op_type, node.input, node.output[0] if node.output else ""
        is_cast = kind == "Cast" and node.attribute[0].i in _COMPLEX
        if kind == "RFFT":
            size, _ = self.sizes(node)
            rows = _sinusoids(size)
            self.pairs[out] = self.node("MatMul", inputs[0], rows[0]), self.node("MatMul", inputs[0], rows[1])
        elif kind == "Complex" or is_cast:
            self.pairs[out] = self.pairs.get(inputs[0], (inputs[0], inputs[1] if kind == "Complex" else ""))
        elif not any(name in self.pairs for name in inputs):
            self.nodes.append(node)
        elif kind == "IRFFT":
            size, bins = self.sizes(node)
            twice = np.where((np.arange(bins) % size == 0) | (2 * np.arange(bins) == size), 1, 2) / size
            rows = [(row * twice).T for row in _sinusoids(size)]
            real, imag = (self.node("MatMul", part, row) for part, row in zip(self.pairs[inputs[0]], rows, strict=True))
            self.node("Add", real, imag, to=out)
        elif kind in ("Real", "Imag", "Shape"):
            self.node("Shape" if kind == "Shape" else "Identity", self.pairs[inputs[0]][kind == "Imag"], to=out)
        elif kind == "ComplexAbs":
            squares = [self.node("Mul", part, part) for part in self.pairs[inputs[0]] if part]
            self.node("Sqrt", self.sum(*squares), to=out)
        elif kind == "Conj":
            real, imag = self.pairs[inputs[0]]
            self.pairs[out] = real, imag and self.node("Neg", imag)
        elif kind in ("Mul", "Div", "Add", "Sub"):
            self.pairs[out] = self.arithmetic(kind, *(self.pairs.get(name, (name, "")) for name in inputs))
        elif kind in _BY_PARTS:
            self.pairs[out] = self.moved(node, 0), self.moved(node, 1)
        else:
            raise ValueError(kind)

    def arithmetic(self, kind: str, one: _Pair, other: _Pair) -> _Pair:
        """Return the parts of a product, quotient, sum or difference."""
        (a, b), (c, d) = one, other
        if kind in ("Add", "Sub"):
            imag = self.node(kind, b, d) if b and d else b or (d and (d if kind == "Add" else self.node("Neg", d)))
            return self.node(kind, a, c), imag
        if not d:
            return self.node(kind, a, c), b and self.node(kind, b, c)
        if kind == "Div":
            size = self.sum(self.node("Mul", c, c), self.node("Mul", d, d))
            real, imag = self.arithmetic("Mul", one, (c, self.node("Neg", d)))
            return self.node("Div", real, size), self.node("Div", imag, size)
        if not b:
            return self.node("Mul", a, c), self.node("Mul", a, d)
        real = self.node("Sub", self.node("Mul", a, c), self.node("Mul", b, d))
        return real, self.sum(self.node("Mul", a, d), self.node("Mul", b, c))

    def moved(self, node: onnx.NodeProto, part: int) -> str:
        """Write a node that acts on each part alike, and return the name of one part of its value."""
        moved = onnx.NodeProto()
        moved.CopyFrom(node)
        count = len(node.input) if node.op_type == "Concat" else 1
        for index, name in enumerate(node.input[:count]):
            moved.input[index] = self.pairs[name][part]
            if not moved.input[index]:
                raise ValueError(name)
        moved.output[0], moved.name = f"{node.output[0]}/{('real', 'imag')[part]}", f"{node.name}/{part}"
        self.nodes.append(moved)
        return moved.output[0]

    def sizes(self, node: onnx.NodeProto) -> tuple[int, int]:
        """Return the number of samples of a frame, and of frequencies."""
        size = int(numpy_helper.to_array(self.constants[node.input[1]]).reshape(-1)[0])
        return size, size // 2 + 1

    def sum(self, *terms: str) -> str:
        return terms[0] if len(terms) == 1 else self.node("Add", *terms)

    def node(self, kind: str, *inputs: str | np.ndarray, to: str = "") -> str:
        """Write a node, and return the name of its value; an array becomes a constant."""
        names: Sequence[str] = [each if isinstance(each, str) else self.constant(each) for each in inputs]
        if not all(names):
            raise ValueError(kind)
        self.count += 1
        name = to or f"{names[0]}/{kind.lower()}_{self.count}"
        self.nodes.append(helper.make_node(kind, names, [name], name=name))
        return name

    def constant(self, array: np.ndarray) -> str:
        """Write an array in the precision of complex64."""
        self.count += 1
        name = f"parts/constant_{self.count}"
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(array, np.float32, order="C"), name))
        return name


def _sinusoids(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the real and the imaginary part of a Fourier transform of frames: two of ``float64[size, bins]``."""
    turns = np.outer(np.arange(size), np.arange(size // 2 + 1)) % size * (2 * np.pi / size)
    return np.cos(turns), -np.sin(turns)
