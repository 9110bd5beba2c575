"""Bounds on the trips of loops whose number depends on data, given by the caller for each node."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from jaxrnn._files.messages import near
from jaxrnn.errors import InputError, check_count
from jaxrnn.onnx.blocks import Block
from jaxrnn.onnx.operators.loops import loop_with
from jaxrnn.onnx.program import Program


def bound_loops(program: Program, max_trip_count: int | Mapping[str, int] | None = None) -> None:
    """Bind every Loop of a program, in place, to its label and its bound.

    Args:
        program: the bound graph.
        max_trip_count: for every Loop; or for some, by node name; None for none.

    Raises:
        InputError: a bound is no whole number from 1 on, or there is no Loop of that name.
    """
    places = list(_loops(program.block))
    labels = list(dict.fromkeys(block.nodes[index].name for block, index in places))
    if isinstance(max_trip_count, Mapping):
        bounds = {
            _known(name, labels): check_count(f"max_trip_count of {name!r}", bound)
            for name, bound in max_trip_count.items()
        }
    else:
        bound = None if max_trip_count is None else check_count("max_trip_count", max_trip_count)
        bounds = dict.fromkeys(labels, bound)
    for block, index in places:
        node = block.nodes[index]
        function = loop_with(f"node {node.name!r} ({node.operator})", bounds.get(node.name))
        block.nodes[index] = dataclasses.replace(node, operator=dataclasses.replace(node.operator, function=function))


def _loops(block: Block) -> Iterator[tuple[Block, int]]:
    """The Loop nodes of a block and its subgraphs, as a block and an index."""
    for index, node in enumerate(block.nodes):
        if node.applies("Loop"):
            yield block, index
        for inner in node.blocks:
            yield from _loops(inner)


def _known(name: Any, labels: list[str]) -> str:
    if name in labels:
        return name
    listed = ", ".join(map(repr, labels)) or "none"
    raise InputError(f"max_trip_count: there is no Loop {name!r}{near(name, labels)}; the Loop nodes are: {listed}")
