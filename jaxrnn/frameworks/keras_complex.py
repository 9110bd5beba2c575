"""Complex numbers of TensorFlow as pairs of real values, in a file of tf2onnx."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import helper, numpy_helper

from jaxrnn.onnx.tensors import graphs_below

#: Operators that move elements of their first input, so act on the real and the imaginary part alike.
_BY_PARTS = {"Concat", "Expand", "Flatten", "Gather", "Identity", "Neg", "Pad", "ReduceMean", "ReduceSum", "Reshape"}
_BY_PARTS |= {"Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze"}
_COMPLEX = {onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128}
#: The names of the real and of the imaginary part; without a second name, the number is real.
_Pair = tuple[str, str]


def write_real_forms(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Replace operators on complex numbers, which TensorFlow has and ONNX has not, by operators on their parts.

    Return the nodes on complex numbers that cannot be written in real numbers here.
    """
    parts = _Parts(proto)
    return [node for graph in parts.graphs for node in parts.rewrite(graph)]


class _Parts:
    """The parts of the complex values of a file."""

    def __init__(self, proto: onnx.ModelProto):
        self.graph, self.pairs, self.nodes, self.count = proto.graph, dict[str, _Pair](), list[onnx.NodeProto](), 0
        self.graphs = [each for each in graphs_below(proto.graph) if isinstance(each, onnx.GraphProto)]
        tensors = [each for graph in self.graphs for each in graph.initializer]
        self.constants = {each.name: numpy_helper.to_array(each) for each in tensors}
        for name, array in self.constants.items():
            if np.iscomplexobj(array):
                self.pairs[name] = self.constant(np.real(array)), self.constant(np.imag(array))

    def rewrite(self, graph: onnx.GraphProto) -> list[onnx.NodeProto]:
        """Rewrite the nodes of a graph with complex values; return the nodes that stay complex."""
        self.nodes, left = [], []
        for node in graph.node:
            try:
                self.write(node)
            except (KeyError, ValueError):
                left.append(node)
        del graph.node[:]
        graph.node.extend([*self.nodes, *left])
        return left

    def write(self, node: onnx.NodeProto) -> None:
        """Write a node, or the nodes for the parts of a complex value."""
        kind, inputs, out = node.op_type, node.input, node.output[0] if node.output else ""
        pair = self.pairs.get(inputs[0], (inputs[0], "")) if inputs else ("", "")
        if kind == "Complex":
            self.pairs[out] = inputs[0], inputs[1]
        elif kind == "Cast" and node.attribute[0].i in _COMPLEX:
            self.pairs[out] = pair
        elif kind == "RFFT":
            real, imag = (self.node("MatMul", inputs[0], self.constant(rows)) for rows in self.rows(inputs[1]))
            self.pairs[out] = real, imag
        elif not any(name in self.pairs for name in inputs):
            self.nodes.append(node)
        elif kind == "IRFFT":
            real, imag = self.rows(inputs[1])
            size, bins = real.shape
            twice = np.where((np.arange(bins) == 0) | (2 * np.arange(bins) == size), 1, 2)[:, None] / size
            back = [self.constant(twice * rows.T) for rows in (real, imag)]
            terms = [self.node("MatMul", *names) for names in zip(pair, back, strict=True)]
            self.node("Add", *terms, to=out)
        elif kind in ("Real", "Imag", "Shape"):
            self.node("Shape" if kind == "Shape" else "Identity", pair[kind == "Imag"], to=out)
        elif kind == "ComplexAbs":
            self.node("Sqrt", self.square(pair), to=out)
        elif kind == "Conj":
            self.pairs[out] = pair[0], self.node("Neg", pair[1])
        elif kind in ("Mul", "Div", "Add", "Sub"):
            self.pairs[out] = self.arithmetic(kind, *(self.pairs.get(name, (name, "")) for name in inputs))
        elif kind in _BY_PARTS:
            names = zip(*(self.pairs.get(name, (name, name)) for name in inputs), strict=True)
            real, imag = (self.node(kind, *each, attributes=node.attribute) for each in names)
            self.pairs[out] = real, imag
        else:
            raise ValueError(kind)

    def arithmetic(self, kind: str, one: _Pair, other: _Pair) -> _Pair:
        """Return the parts of a product, quotient, sum or difference."""
        (a, b), (c, d) = one, other
        if kind in ("Add", "Sub"):
            imag = self.node(kind, b, d) if b and d else b or (d if kind == "Add" else self.node("Neg", d))
            return self.node(kind, a, c), imag
        if not d:
            return self.node(kind, a, c), b and self.node(kind, b, c)
        if kind == "Div":
            real, imag = self.arithmetic("Mul", one, (c, self.node("Neg", d)))
            return self.node("Div", real, self.square(other)), self.node("Div", imag, self.square(other))
        if not b:
            return self.node("Mul", a, c), self.node("Mul", a, d)
        products = [self.node("Mul", *names) for names in ((a, c), (b, d), (a, d), (b, c))]
        return self.node("Sub", *products[:2]), self.node("Add", *products[2:])

    def square(self, pair: _Pair) -> str:
        """Return the squared magnitude."""
        return self.node("Add", *(self.node("Mul", part, part) for part in pair))

    def rows(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the parts of a Fourier transform of frames of a constant size: two of ``float64[size, bins]``."""
        size = int(self.constants[name].reshape(-1)[0])
        turns = np.outer(np.arange(size), np.arange(size // 2 + 1)) % size * (2 * np.pi / size)
        return np.cos(turns), -np.sin(turns)

    def node(self, kind: str, *names: str, to: str = "", attributes: Iterable[onnx.AttributeProto] = ()) -> str:
        """Write a node, and return the name of the value."""
        if not all(names):
            raise ValueError(f"{kind} of an imaginary part that is zero")
        self.count += 1
        name = to or f"{names[0]}/{kind.lower()}_{self.count}"
        self.nodes.append(helper.make_node(kind, names, [name], name=name))
        self.nodes[-1].attribute.extend(attributes)
        return name

    def constant(self, array: np.ndarray) -> str:
        """Write an array in the precision of complex64."""
        self.count += 1
        name = f"parts/constant_{self.count}"
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(array, np.float32, order="C"), name))
        return name
