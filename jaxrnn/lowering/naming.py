"""Names of nodes, after all of them are known: the scope that each comes from, which is the name of a file's node."""

from __future__ import annotations

import onnx_ir as ir


def name_nodes(graph: ir.Graph) -> None:
    """Name nodes by their scopes, in order, and their results by the nodes; inputs and outputs keep their names."""
    taken: set[str] = set()

    def unused(name: str) -> str:
        candidate, count = name, 0
        while candidate in taken:
            count += 1
            candidate = f"{name}_{count}"
        taken.add(candidate)
        return candidate

    nodes = list(graph.all_nodes())
    kept = {id(value): value for each in (graph, *graph.subgraphs()) for value in (*each.inputs, *each.outputs)}
    kept |= {id(value): value for each in (graph, *graph.subgraphs()) for value in each.initializers.values()}
    taken.update(str(value.name) for value in kept.values())
    for node in nodes:
        scope = node.meta.get("scope", "")
        node.name = unused(scope if scope.endswith(node.op_type) else f"{scope}/{node.op_type}")
        for index, value in enumerate(node.outputs):
            if id(value) not in kept:
                value.name = unused(f"{node.name}_output{f'_{index}' if len(node.outputs) > 1 else ''}")
