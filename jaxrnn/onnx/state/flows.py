"""What is known of a value whose elements are followed through a graph, and how operators pass it on."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxrnn.onnx.blocks import Block, BoundNode
from jaxrnn.onnx.state import provenance


class NotFollowedError(Exception):
    """The sizes given to the open dimensions do not fit the graph."""


@dataclass
class Flow:
    """What is known of a value.

    Attributes:
        shape: with sizes for open dimensions; None if it could not be found out.
        dtype: its element type.
        value: the array itself, if it is known while tracing.
        ids: the identity of every element: equal where elements were only moved; 0 for constants.
        codes: by source, where every element comes from; see `provenance`.
        depth: by source, the least number of contractions on the way.
        deps: the graph inputs whose values it depends on.
        made: as bits, the numbers of the nodes that it was computed from.
        sequence: whether it is a sequence, its elements along the first axis of the shape.
    """

    shape: tuple[int, ...] | None
    dtype: Any
    value: Any = None
    ids: np.ndarray | None = None
    codes: dict[str, np.ndarray] = field(default_factory=dict)
    depth: dict[str, int] = field(default_factory=dict)
    deps: frozenset[str] = frozenset()
    made: int = 0
    sequence: bool = False


@dataclass(frozen=True)
class Site:
    """One carry of a recurrence: where it starts, and whether a later call could continue it."""

    label: str
    operator: str
    slot: str
    length: int | None
    forward: bool
    initial: Flow | None
    final: Flow


@dataclass
class DataFlow:
    """The result of `follow`.

    Attributes:
        inputs: every graph input.
        outputs: every graph output.
        sites: the carries of recurrences.
        joins: labels and outputs of the nodes that concatenate.
        lengths: by node, the sizes of the axes that a window or a recurrence slides along.
        makers: the first identity of the elements that each node made, in order, and the node's label.
        lost: labels of recurrent nodes that could not be followed, and why.
    """

    inputs: dict[str, Flow] = field(default_factory=dict)
    outputs: dict[str, Flow] = field(default_factory=dict)
    sites: list[Site] = field(default_factory=list)
    joins: list[tuple[str, Flow]] = field(default_factory=list)
    lengths: dict[int, tuple[int, ...]] = field(default_factory=dict)
    makers: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    lost: list[tuple[str, str]] = field(default_factory=list)

    def makers_of(self, ids: np.ndarray) -> list[int]:
        """The numbers of the `makers` of the elements with these identities."""
        starts = np.array([start for start, _ in self.makers])
        return sorted(set((np.searchsorted(starts, np.unique(ids[ids > 0]), side="right") - 1).tolist()))

    def labels_of(self, ids: np.ndarray) -> list[str]:
        """The labels of the nodes that made the elements with these identities."""
        found = itertools.chain.from_iterable(self.makers[index][1] for index in self.makers_of(ids))
        return list(dict.fromkeys(found))

    def derived(self, later: str, earlier: str) -> bool:
        """Whether one output is computed from elements that another one holds."""
        last, first = self.outputs[later], self.outputs[earlier]
        ends, starts = (set() if item.ids is None else set(self.makers_of(item.ids)) for item in (last, first))
        return any(last.made >> maker & 1 for maker in starts - ends)


def constant(value: Any) -> Flow:
    """A value that is known while tracing, an array or a sequence."""
    if isinstance(value, tuple):
        return Flow((len(value),), None, value, sequence=True)
    value = np.asarray(value)
    return Flow(value.shape, value.dtype, value)


def union(flows: Iterable[Flow]) -> Flow:
    """A value of which nothing is known but what it was computed from."""
    flow = Flow(None, None)
    for item in flows:
        flow.deps, flow.made = flow.deps | item.deps, flow.made | item.made
    return flow


def deeper(flow: Flow, contractions: int) -> Flow:
    """The same flow, some contractions later."""
    flow.depth = {name: depth + contractions for name, depth in flow.depth.items()}
    return flow


def halves(flow: Flow | None, axis: int) -> list[Any]:
    """The two directions of what a bidirectional cell carries."""
    if flow is None:
        return [None, None]
    assert flow.shape is not None
    shape = tuple(1 if index == axis else size for index, size in enumerate(flow.shape))

    def half(place: int) -> Flow:
        def cut(array: np.ndarray) -> np.ndarray:
            return np.take(array, [place], axis)

        return dataclasses.replace(
            flow,
            shape=shape,
            value=None if flow.value is None else cut(flow.value),
            ids=None if flow.ids is None else cut(flow.ids),
            codes={name: cut(codes) for name, codes in flow.codes.items()},
        )

    return [half(0), half(1)]


def carry(final: Flow, start: Flow | None) -> None:
    """Let the elements of an initial value come out as those of the final one."""
    for name, codes in (start.codes if start is not None else {}).items():
        final.codes[name] = np.where(codes >= provenance.STEP, provenance.carried(codes), final.codes[name])


def combined(
    kind: str, shape: tuple[int, ...], operands: Sequence[Flow], conditions: Sequence[Flow]
) -> dict[str, np.ndarray]:
    """The codes of element-wise arithmetic; what a condition depends on, the result depends on densely."""
    result = {}
    for name in dict.fromkeys(name for flow in (*operands, *conditions) for name in flow.codes):
        having = [flow for flow in operands if name in flow.codes]
        planes = [np.broadcast_to(flow.codes[name], shape) for flow in having]
        # Less its own mean, or plus a function of itself alone, a source is normalised or transformed, not carried on.
        alone = any(flow.deps == {name} and (flow.codes[name] < provenance.STEP).all() for flow in having)
        chosen = "other" if alone and kind in ("add", "count") else kind
        codes = planes[0] if planes else np.zeros(shape, np.int64)
        if len(planes) == 1:
            free = all(not flow.deps for flow in operands if name not in flow.codes)
            codes = provenance.alone(chosen, codes, free)
        for plane in planes[1:]:
            codes = provenance.combine(chosen, codes, plane)
        for flow in conditions:
            if name in flow.codes:
                mask = np.broadcast_to(provenance.dense(flow.codes[name]), shape)
                codes = np.maximum(codes, mask)
        result[name] = codes
    return result


def is_all(flow: Flow, number: int) -> bool:
    """Whether every element is known to be this number."""
    return isinstance(flow.value, np.ndarray) and flow.value.dtype.kind in "iuf" and bool(np.all(flow.value == number))


def without_neutral(name: str, operands: Sequence[Flow]) -> Sequence[Flow]:
    """The operands less those that change nothing: added zeros and factors of one."""
    neutral = {"Add": 0, "Sum": 0, "Sub": 0, "Mul": 1, "Div": 1}.get(name)
    if neutral is None:
        return operands
    kept = operands[:1] if name in ("Sub", "Div") else []
    return [*kept, *(flow for flow in operands[len(kept) :] if not is_all(flow, neutral))]


def scan_facts(node: BoundNode, inputs: Sequence[Flow | None]) -> tuple[int, int | None, bool]:
    """How many inputs of a Scan come before the carries, how many steps there are, and whether they go forward."""
    old = node.operator.since < 9
    axes = node.attributes.get("scan_input_axes")
    axis = 1 if old else axes[-1] if axes else 0
    backwards = node.attributes.get("directions" if old else "scan_input_directions") or ()
    last = inputs[-1]
    assert last is not None
    assert last.shape is not None
    return int(old), last.shape[axis], not any(backwards)


def origin(value: ir.Value, block: Block) -> ir.Value:
    """The value that Identity nodes of a block hand on."""
    handed = {node.outputs[0]: node.inputs[0] for node in block.nodes if node.operator.name == "Identity"}
    while handed.get(value) is not None:
        value = handed[value]  # type: ignore[assignment]
    return value
