"""State in lists of tensors: an input list and an output list of the same length, as separate arrays.

Some files keep the state of all layers in a tensor sequence: they read items at known positions, and construct the list
of new items. `separate_lists` names such items, as ``states[0]``, so that each is a state variable.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from jaxrnn.onnx.graph import is_of_onnx
from jaxrnn.onnx.state.names import affinity


def separate_lists(graph: ir.Graph, state: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Replace lists that are state by their items, in place, and return the declared state with the items.

    A list is state if it is declared, or if the names of an input list and of an output list pair.
    """
    read = {str(value.name): (value, nodes) for value in graph.inputs if (nodes := _reads(value))}
    made = {str(value.name): (value, node) for value in graph.outputs if (node := _maker(value)) is not None}
    pairs = {
        name: output
        for name, (_, nodes) in read.items()
        for output, (_, maker) in made.items()
        if len(nodes) == len(maker.inputs)
        and (affinity(name, output) == 2 if state is None else _is_declared(state, name, output))
    }
    items: dict[str, str] = {}
    for name, output in pairs.items():
        items |= zip(_replace_input(graph, *read[name]), _replace_output(graph, *made[output]), strict=True)
    return state if state is None or not pairs else {**{k: v for k, v in state.items() if k not in pairs}, **items}


def _is_declared(state: Mapping[str, str], name: str, output: str) -> bool:
    """Return True if lists are declared as state, or their items, as in a model that was pickled."""
    return state.get(name) == output or state.get(f"{name}[0]") == f"{output}[0]"


def _replace_input(graph: ir.Graph, value: ir.Value, nodes: list[list[ir.Node]]) -> list[str]:
    """Replace a list by inputs for its items, and return the names of the inputs."""
    assert isinstance(value.type, ir.SequenceType)
    items = [
        ir.Value(name=f"{value.name}[{index}]", shape=value.shape, type=value.type.elem_type)
        for index in range(len(nodes))
    ]
    place = graph.inputs.index(value)
    graph.inputs[place : place + 1] = items
    for item, same in zip(items, nodes, strict=True):
        for node in same:
            ir.convenience.replace_all_uses_with(node.outputs[0], item)
        graph.remove(same, safe=True)
    return [str(item.name) for item in items]


def _replace_output(graph: ir.Graph, value: ir.Value, maker: ir.Node) -> list[str]:
    """Replace a list by outputs for its items, and return the names of the outputs."""
    assert isinstance(value.type, ir.SequenceType)
    items = []
    for index, item in enumerate(maker.inputs):
        copy = ir.node("Identity", [item], version=maker.version)
        (result,) = copy.outputs
        result.name, result.shape, result.type = f"{value.name}[{index}]", value.shape, value.type.elem_type
        graph.append(copy)
        items.append(result)
    place = graph.outputs.index(value)
    graph.outputs[place : place + 1] = items
    return [str(item.name) for item in items]


def _maker(value: ir.Value) -> ir.Node | None:
    """Return the node that constructs an output from its items, if no other node reads the output."""
    node = value.producer()
    if node is None or not is_of_onnx(node, "SequenceConstruct") or any(True for _ in value.uses()):
        return None
    return node if isinstance(value.type, ir.SequenceType) and None not in node.inputs else None


def _reads(value: ir.Value) -> list[list[ir.Node]]:
    """Return the nodes that read each item of an input; empty if a position is unknown, or for any other use."""
    if not isinstance(value.type, ir.SequenceType) or value.is_graph_output():
        return []
    found: dict[int, list[ir.Node]] = {}
    for node, place in value.uses():
        position = _position(node) if place == 0 and is_of_onnx(node, "SequenceAt") else -1
        if position < 0 or node.graph is not value.graph or node.outputs[0].is_graph_output():
            return []
        found.setdefault(position, []).append(node)
    return [found[index] for index in sorted(found)] if sorted(found) == list(range(len(found))) else []


def _position(node: ir.Node) -> int:
    """Return the position that a SequenceAt reads if the file states it, else -1."""
    value = node.inputs[1] if len(node.inputs) > 1 else None
    known = None if value is None else ir.convenience.get_const_tensor(value)
    return -1 if known is None or known.size != 1 else int(np.ravel(known.numpy())[0])
