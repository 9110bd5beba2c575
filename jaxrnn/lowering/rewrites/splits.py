"""Slices that lie one after another along an axis, all of it, as one ``Split``."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxrnn.lowering.rewrites.arrangement import span_of
from jaxrnn.lowering.writer import Writer, constant_of, dtype_of, shape_of


def split_slices(graph: ir.Graph, writer: Writer) -> None:
    """Replace the slices of each value that are all of it.

    Args:
        graph: the graph, with its subgraphs.
        writer: of the graph.
    """
    groups: dict[Any, list[tuple[int, int, ir.Node]]] = defaultdict(list)
    for node in graph.all_nodes():
        axes = constant_of(node.inputs[3]) if node.op_type == "Slice" and len(node.inputs) == 4 else None
        if axes is None or axes.size != 1 or not (node.outputs[0].uses() or node.outputs[0].is_graph_output()):
            continue
        axis = int(axes[0])
        if (span := span_of(node.outputs[0], axis)) is not None:
            source, start, end = span
            groups[source, axis, node.graph].append((start, end, node))
    for (source, axis, _), slices in groups.items():
        ends = [0, *(end for _, end, _ in sorted(slices, key=lambda each: each[0]))]
        starts = sorted(start for start, _, _ in slices)
        if len(slices) > 1 and [*starts, shape_of(source)[axis]] == ends:
            _split(writer.inside(), source, axis, slices)


def _split(writer: Writer, source: ir.Value, axis: int, slices: list[tuple[int, int, ir.Node]]) -> None:
    first = slices[0][2]
    writer.scope = first.meta.get("scope", "")
    in_order = sorted(slices, key=lambda each: each[0])
    sizes = np.array([end - start for start, end, _ in in_order], np.int64)
    kinds = [(shape_of(node.outputs[0]), dtype_of(source)) for _, _, node in in_order]
    parts = writer.nodes_of("Split", [source, sizes], kinds, axis=axis)
    assert first.graph is not None
    first.graph.insert_before(first, writer.nodes)
    for part, (_, _, node) in zip(parts, in_order, strict=True):
        node.outputs[0].replace_all_uses_with(part, replace_graph_outputs=True)
        assert node.graph is not None
        node.graph.remove(node, safe=True)
