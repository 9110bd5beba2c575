"""Python loops over frames, which an exporter has unrolled for the frames of an example, as Scan nodes of a file.

The *level* of a value is the last frame on which the value depends. The nodes of a level are a turn of the loop. If the
turns are equal up to the number of the frame, the last turn is the body of a Scan, and values of earlier turns are
its states. Turns at the start that differ stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from jaxrnn.frameworks.weights import read_for
from jaxrnn.onnx.operators import operator_table
from jaxrnn.onnx.tensors import graphs_below, graphs_in

#: The fewest equal turns of a loop.
_FEWEST = 4
#: An end beyond all frames.
_END = np.iinfo(np.int64).max
#: The middle of the name of a frame of which only the shape is read.
_FRAME = ".frame_of_"
#: A value of a turn: the place of the node among the nodes of the turn, and the place of the output.
Place = tuple[int, int]


def _is_random(node: onnx.NodeProto) -> bool:
    """Return True if a node may return other values for equal inputs; an unknown operator may."""
    versions = operator_table().get((node.domain, node.op_type))
    return versions is None or versions.traits.random


def roll_loops(proto: onnx.ModelProto) -> None:
    """Write the loops over frames of an unrolled graph as Scan nodes.

    The result is the same function for the number of frames of the example; a caller compares other numbers. A graph
    without such a loop does not change.
    """
    count, inferred = 0, onnx.shape_inference.infer_shapes(proto).graph
    known = [*inferred.value_info, *inferred.input, *inferred.output]
    types = {entry.name: entry.type.tensor_type for entry in known if entry.type.HasField("tensor_type")}
    while _roll_one(proto.graph, f"loop_{count}", types):
        count += 1
    del proto.graph.value_info[:]


def _roll_one(graph: onnx.GraphProto, label: str, types: Mapping[str, Any]) -> bool:
    nodes = _merged(_with_frames(graph.node), {entry.name for entry in graph.output})
    for families in _families(graph, nodes):
        for backwards in (False, True):
            unrolled = _Unrolled([*nodes], families, backwards, label, types)
            if unrolled.find() and (found := unrolled.written([entry.name for entry in graph.output])):
                del graph.node[:]
                graph.node.extend(found)
                needed = read_for(graph, [entry.name for entry in graph.output])
                kept = [node for node in graph.node if needed.intersection(node.output)]
                del graph.node[:]
                graph.node.extend(kept)
                return True
    return False


@dataclass(frozen=True)
class _Family:
    """The frames that a graph reads of a value: the names of the read frames by number."""

    data: str
    axis: int
    frames: Mapping[int, str]


@dataclass
class _Operand:
    """An operand of a node in a turn: a value of this turn, of an earlier turn, from outside, or a counted number."""

    place: Place | None = None
    turns_before: int = 0
    outside: str = ""
    base: Any = None
    step: Any = None


@dataclass
class _Unrolled:
    """A loop over the frames of families in a graph: the nodes by level, and the operands of a turn."""

    nodes: list[onnx.NodeProto]
    families: Sequence[_Family]
    backwards: bool
    label: str
    types: Mapping[str, Any]
    first: int = 0
    states: dict[tuple[Place, int], str] = field(default_factory=dict)

    def find(self) -> bool:
        """Return True if the last turns are equal."""
        self.last = max(self.families[0].frames)
        self.constants = {node.output[0]: node for node in self.nodes if node.op_type == "Constant"}
        self.reads = {
            name: (self.last - number if self.backwards else number)
            for family in self.families
            for number, name in family.frames.items()
        }
        self.moved: dict[str, int] = {}
        # The model of all turns, after which a few more turns read its states.
        self.model = max(2, self.last - 3)
        while True:
            self._divide()
            operands = self._operands()
            if not operands:
                return False
            self.operands = operands
            firsts = range(self.last + 2 - _FEWEST)
            first = next((each for each in firsts if self._begins(each, self.model)), None)
            if first is None:
                return False
            if not self._move_to_later_turn():
                break
        for turn in range(self.model + 1, self.last):
            chosen = self._completed(turn, first)
            if chosen is not None and {*map(id, self.turns[turn])} <= {*map(id, chosen)}:
                self._replace(turn, chosen)
        chosen = self._completed(self.last, first)
        if chosen is None:
            return False
        # What follows the loop depends on the last frame, too.
        inner = {id(node) for node in chosen}
        self.after = [node for node in self.turns[-1] if id(node) not in inner]
        self._replace(self.last, chosen)
        return self._begins(first, self.last)

    def _replace(self, turn: int, nodes: list[onnx.NodeProto]) -> None:
        """Write the nodes of a turn."""
        self.turns[turn] = nodes
        self.places = {name: found for name, found in self.places.items() if found[0] != turn}
        for at, node in enumerate(nodes):
            self.places |= {name: (turn, (at, index)) for index, name in enumerate(node.output)}

    def _divide(self) -> None:
        """Divide the nodes into turns."""
        order = {name: at for at, family in enumerate(self.families) for name in family.frames.values()}
        self.levels: dict[str, int] = {}
        self.turns: list[list[onnx.NodeProto]] = [[] for _ in range(self.last + 1)]
        for node in self.nodes:
            level = self.reads.get(node.output[0], self.moved.get(node.output[0]))
            if level is None:
                level = max((self.levels.get(name, -1) for name in _read_by(node)), default=-1)
            self.levels.update(dict.fromkeys(node.output, level))
            if 0 <= level <= self.last:
                self.turns[level].append(node)
        # An equal read before the loop may come earlier.
        for turn in self.turns:
            turn.sort(key=lambda node: order.get(node.output[0], len(order)))
        self.places = {
            name: (turn, (at, index))
            for turn, nodes in enumerate(self.turns)
            for at, node in enumerate(nodes)
            for index, name in enumerate(node.output)
        }

    def _move_to_later_turn(self) -> bool:
        """Move a node of states only, such as a product with weights, to the turn that reads the node.

        The level of the node is that of the states. The last turn lacks the node, and an equal node of the initial
        states comes before the first turn.
        """
        makers = {name: node for node in self.nodes for name in node.output}
        there = self._aligned(self.last, gaps=True)
        for at in dict.fromkeys(at for (at, _), _ in self.states):
            if there is None or there[at] is not None:
                continue
            uses = [
                (user, each)
                for user, row in enumerate(self.operands)
                for each in row
                if each.place is not None and each.place[0] == at
            ]
            depth, model, row = uses[0][1].turns_before, self.turns[self.model][at], self.operands[at]
            if any(each.turns_before != depth for _, each in uses) or not row or model.output[0] in self.reads:
                continue
            found: list[onnx.NodeProto] = []
            for turns in range(1, depth + 1):
                starts = {each.place: self.states[each.place, turns] for _, each in uses if each.place is not None}
                maker = makers.get(next(iter(starts.values())))
                if maker is None or not self._is_initial(maker, model, row):
                    break
                if any(maker.output[place[1] : place[1] + 1] != [name] for place, name in starts.items()):
                    break
                found.append(maker)
            if len(found) < depth:
                continue
            for turns, maker in enumerate(found, 1):
                # The maker of several initial states is written for each.
                turn = self.first + depth - turns
                names = {name: f"{name}.{self.label}_{at}_{turns}" for name in maker.output}
                copy = _again(maker, names)
                readers = self.chosen if turn == self.first else self.turns[turn]
                neighbour = maker if turn == self.first else readers[min(user for user, _ in uses)]
                place = next(i for i, node in enumerate(self.nodes) if node is neighbour)
                self.nodes.insert(place + (turn == self.first), copy)
                self.moved[copy.output[0]] = turn
                for user in {user for user, _ in uses}:
                    place = next(i for i, node in enumerate(self.nodes) if node is readers[user])
                    self.nodes[place] = _renamed(_copy(readers[user]), names)
            for turn in range(self.first, self.last + 1):
                nodes = self.chosen if turn == self.first else self._aligned(turn, gaps=True)
                if nodes is not None and nodes[at] is not None:
                    self.moved[nodes[at].output[0]] = turn + depth
            return True
        return False

    def _is_initial(self, maker: onnx.NodeProto, model: onnx.NodeProto, row: Sequence[_Operand]) -> bool:
        """Return True if a node computes the same from an initial state as a turn computes from the state."""
        return (
            maker.output[0] not in self.reads
            and maker.output[0] not in self.moved
            and _is_alike(maker, model)
            and all(
                each.place is not None or (each.step is None and each.outside == name)
                for each, name in zip(row, maker.input, strict=True)
            )
        )

    def _operands(self) -> list[list[_Operand]] | None:
        """Compare the model with the turn before; return the operands of its nodes."""
        turn = self.model
        found: list[list[_Operand]] = []
        if len(self.turns[turn - 1]) != len(self.turns[turn]):
            return None
        for node, before in zip(self.turns[turn], self.turns[turn - 1], strict=True):
            if not _is_alike(node, before):
                return None
            found.append([])
            for name, earlier in zip(node.input, before.input, strict=True):
                at, place = self.places.get(name, (-1, None))
                there, other = self.places.get(earlier, (-1, None))
                if at == turn and there == turn - 1 and place == other:
                    found[-1].append(_Operand(place))
                elif name == earlier:
                    found[-1].append(_Operand(outside=name))
                elif name in self.constants and earlier in self.constants:
                    value, old = (_number(self.constants[each]) for each in (name, earlier))
                    if value is None or old is None or (value.shape, value.dtype) != (old.shape, old.dtype):
                        return None
                    found[-1].append(
                        _Operand(base=np.asarray(value - turn * (value - old)), step=np.asarray(value - old))
                    )
                elif place is not None and place == other and at < turn and at - there == 1:
                    found[-1].append(_Operand(place, turn - at))
                else:
                    return None
        return found

    def _begins(self, first: int, last: int) -> bool:
        """Return True if all turns from one to another are equal; keep the initial states."""
        chosen = self._aligned(first)
        if chosen is None:
            return False
        states: dict[tuple[Place, int], str] = {}
        for turn in range(first, last + 1):
            nodes = chosen if turn == first else self.turns[turn]
            if len(nodes) != len(self.operands):
                return False
            names = [node.output for node in nodes]
            for node, model, operands in zip(nodes, self.turns[self.model], self.operands, strict=True):
                if not _is_alike(node, model):
                    return False
                for name, operand in zip(node.input, operands, strict=True):
                    if not self._fits(name, operand, turn, first, names, chosen, states):
                        return False
        self.first, self.states, self.chosen = first, states, chosen
        return True

    def _aligned(self, turn: int, gaps: bool = False) -> list[Any] | None:
        """Return the nodes of a turn, without others of its level: those of an initial value, or after the loop.

        A turn without a node of the model is None, or has None in place of the node.
        """
        chosen: list[Any] = []
        model = self.turns[self.model]
        for node in self.turns[turn]:
            for at in range(len(chosen), len(model) if gaps else min(len(chosen) + 1, len(model))):
                if _is_alike(node, model[at]) and self._is_at(node, at, chosen):
                    chosen += [None] * (at - len(chosen)) + [node]
                    break
        if gaps:
            chosen += [None] * (len(model) - len(chosen))
        return chosen if len(chosen) == len(model) else None

    def _completed(self, turn: int, first: int) -> list[onnx.NodeProto] | None:
        """Return the nodes of a turn, and with these the nodes whose results only turns behind the end would read."""
        if (chosen := self._aligned(turn)) is not None:
            return chosen
        chosen = self._aligned(turn, gaps=True) or []
        for at, node in enumerate(chosen):
            if node is not None:
                continue
            copy = _again(
                model := self.turns[self.model][at], {name: f"{name}.{self.label}_{turn}" for name in model.output}
            )
            for index, each in enumerate(self.operands[at]):
                source = turn - each.turns_before
                if each.step is not None:
                    name = f"{copy.output[0]}.{index}"
                    self.constants[name] = _constant(name, each.base + turn * each.step, each.step.dtype)
                    copy.input[index] = name
                    continue
                if source < first:
                    return None
                if each.place is not None:
                    there = self.turns[source] if each.turns_before else chosen
                    if each.place[0] >= len(there):
                        return None
                    copy.input[index] = there[each.place[0]].output[each.place[1]]
            chosen[at] = copy
        return chosen or None

    def _is_at(self, node: onnx.NodeProto, at: int, chosen: Sequence[Any]) -> bool:
        """Return True if a node and a node of the model have equal operands from outside and from the turn."""
        for name, each in zip(node.input, self.operands[at], strict=True):
            if each.step is not None or each.turns_before:
                continue
            if each.place is None:
                if name != each.outside:
                    return False
            else:
                found = chosen[each.place[0]] if each.place[0] < len(chosen) else None  # None in a gap
                if found is None or name != found.output[each.place[1]]:
                    return False
        return True

    def _fits(
        self,
        name: str,
        operand: _Operand,
        turn: int,
        first: int,
        names: Sequence[Sequence[str]],
        chosen: Sequence[onnx.NodeProto],
        states: dict[tuple[Place, int], str],
    ) -> bool:
        """Return True if `operand` describes an operand of a turn."""
        if operand.place is None:
            if operand.step is None:
                return name == operand.outside and self._is_before(name, first, chosen)
            value = _number(self.constants[name]) if name in self.constants else None
            return value is not None and np.array_equal(value, operand.base + turn * operand.step)
        at, index = operand.place
        if not operand.turns_before:
            return name == names[at][index]
        source = turn - operand.turns_before
        if source >= first:
            there = chosen if source == first else self.turns[source]
            return name == there[at].output[index]
        return name == states.setdefault((operand.place, first - source), name) and self._is_before(name, first, chosen)

    def _is_before(self, name: str, first: int, chosen: Sequence[onnx.NodeProto]) -> bool:
        """Return True if a value does not depend on a turn of the loop."""
        level = self.levels.get(name, -1)
        return level < first or (
            level == first and (name in self.reads or all(name not in node.output for node in chosen))
        )

    def written(self, outputs: Sequence[str]) -> list[onnx.NodeProto]:
        """Return the nodes of the graph with the loop as a Scan; an empty list if a value of a turn is read after."""
        first, chosen = self.first, self.chosen
        where = {name: each for name, each in self.places.items() if each[0] > first}
        where |= {name: (first, (at, i)) for at, node in enumerate(chosen) for i, name in enumerate(node.output)}
        names = [list(node.output) for node in chosen]
        scans: dict[tuple[Place, int | None, int], str] = {}
        after: list[onnx.NodeProto] = []
        renamed: dict[str, str] = {}

        def collected(place: Place, axis: int | None, direction: int) -> str:
            return scans.setdefault((place, axis, direction), f"{self.label}.frames_{len(scans)}")

        def ended(name: str) -> bool:
            """Take the value of the last turn from the loop."""
            turn, place = where[name]
            if turn != self.last:
                return False
            if (place, 1) in self.states:
                renamed[name] = f"{self.label}.last_{place[0]}_{place[1]}"
            elif name not in renamed:
                end = f"{name}.end"
                after.insert(0, _constant(end, -1))
                after.insert(1, helper.make_node("Gather", [collected(place, None, 0), end], [f"{name}.last"], axis=0))
                renamed[name] = f"{name}.last"
            return True

        for node in self.after:
            node = _copy(node)
            if node.op_type == "Concat":
                for direction in (0, 1):
                    self._collect(node, where, direction, collected)
            if not all(ended(name) for name in _read_by(node) if name in where and name not in renamed):
                return []
            after.append(_renamed(node, renamed))
        for name in outputs:
            if name in where:
                if not ended(name):
                    return []
                after.append(helper.make_node("Identity", [renamed[name]], [name]))
        # A frame that is also read before the loop is read there a second time.
        again = {
            family.frames[number]: f"{family.frames[number]}.{self.label}"
            for family in self.families
            for number in family.frames
            if self.reads[family.frames[number]] == first
        }
        inner = {id(node) for node in chosen}
        before = [node for node in self.nodes if self.levels.get(node.output[0], -1) < first]
        extra = [node for node in self.turns[first] if id(node) not in inner]
        doubled = [node for node in self.turns[first] if node.output[0] in again]
        before += [_again(node, again) for node in doubled] + [_renamed(_copy(node), again) for node in extra]
        for family in self.families:
            # A loop must read the same number of frames of each value.
            if {self.reads[name] for name in family.frames.values()} < set(range(first, self.last + 1)):
                return []
        found = [*before, *self._scan(names, scans, again), *after]
        made = {name for node in found for name in node.output}
        lost = {name for node in self.nodes for name in node.output} - made
        is_whole = not any(lost.intersection(_read_by(node)) for node in after) and not lost.intersection(outputs)
        return found if is_whole else []

    def _collect(self, node: onnx.NodeProto, where: Mapping[str, tuple[int, Place]], direction: int, collected: Any):
        """Replace the values of all turns among the inputs of a Concat by an output of the Scan."""
        inputs, axis = list(node.input), next(each.i for each in node.attribute if each.name == "axis")
        turns = range(self.first, self.last + 1)
        order = [*turns] if not direction else [*reversed(turns)]
        for start in range(len(inputs) - len(order) + 1):
            found = [where.get(name, (-1, None)) for name in inputs[start : start + len(order)]]
            place = found[0][1]
            if place is not None and found == [(turn, place) for turn in order]:
                inputs[start : start + len(order)] = [collected(place, axis, direction)]
                break
        node.input[:] = inputs

    def _scan(
        self, names: list[list[str]], scans: Mapping[tuple[Place, int | None, int], str], again: Mapping[str, str]
    ) -> Iterator[onnx.NodeProto]:
        """Yield the Scan, after nodes that cut its inputs."""
        body: list[onnx.NodeProto] = []
        entries, ends, starts, lasts, kinds = [], [], [], [], []
        depths: dict[Place, int] = {}
        for place, depth in self.states:
            depths[place] = max(depths.get(place, 0), depth)

        def state(place: Place, depth: int) -> str:
            return f"{self.label}.state_{place[0]}_{place[1]}_{depth}"

        for place, depth in depths.items():
            for each in range(1, depth + 1):
                start = self.states[place, each]
                starts.append(again.get(start, start))
                entries.append(state(place, each))
                ends.append(f"{state(place, each)}.next")
                lasts.append(f"{self.label}.last_{place[0]}_{place[1]}" if each == 1 else f"{state(place, each)}.last")
                kinds.append(names[place[0]][place[1]])
        cut, read = [], {}
        for family in self.families:
            source = f"{self.label}.{len(cut)}.from"
            low, high = (0, -self.first or _END) if self.backwards else (self.first, _END)
            limits = {"low": [low], "high": [high], "axis": [family.axis]}
            yield from (_constant(f"{source}.{key}", value) for key, value in limits.items())
            yield helper.make_node("Slice", [family.data, *(f"{source}.{key}" for key in limits)], [source])
            read |= dict.fromkeys(family.frames.values(), f"{source}.frame")
            cut.append((source, family.axis, int(self.backwards), f"{source}.frame", family.data))
        counter = f"{self.label}.turn"
        if any(
            each.step is not None for at, row in enumerate(self.operands) if names[at][0] not in read for each in row
        ):
            data, axis = self.families[0].data, self.families[0].axis
            limits = {"first": self.first, "one": 1, "axis": axis}
            yield from (_constant(f"{counter}.{key}", value) for key, value in limits.items())
            yield helper.make_node("Shape", [data], [f"{counter}.shape"])
            yield helper.make_node("Gather", [f"{counter}.shape", f"{counter}.axis"], [f"{counter}.count"], axis=0)
            parts = [f"{counter}.{key}" for key in ("first", "count", "one")]
            yield helper.make_node("Range", parts, [f"{counter}s"])
            cut.append((f"{counter}s", 0, 0, counter, ""))
        for at, node in enumerate(self.chosen):
            if names[at][0] in read:
                index = _number(self.constants[node.input[1]])
                name = read[names[at][0]]
                if index is not None and index.ndim:
                    body.append(_constant(f"{name}.{at}.axis", [self._axis_of(node)]))
                    body.append(helper.make_node("Unsqueeze", [name, f"{name}.{at}.axis"], names[at]))
                else:
                    body.append(helper.make_node("Identity", [name], names[at]))
                continue
            node, inputs = _copy(node), []
            for index, operand in enumerate(self.operands[at]):
                if operand.step is not None:
                    name = f"{names[at][0]}.{index}"
                    kind = operand.step.dtype
                    parts = {"step": operand.step, "base": operand.base}
                    body += [_constant(f"{name}.{key}", value, kind) for key, value in parts.items()]
                    cast = helper.np_dtype_to_tensor_dtype(kind)
                    body.append(helper.make_node("Cast", [counter], [f"{name}.turn"], to=cast))
                    body.append(helper.make_node("Mul", [f"{name}.turn", f"{name}.step"], [f"{name}.moved"]))
                    body.append(helper.make_node("Add", [f"{name}.moved", f"{name}.base"], [name]))
                    inputs.append(name)
                elif operand.place is None:
                    inputs.append(again.get(operand.outside, operand.outside))
                elif operand.turns_before:
                    inputs.append(state(operand.place, operand.turns_before))
                else:
                    inputs.append(names[operand.place[0]][operand.place[1]])
            node.input[:] = inputs
            body.append(node)
        for place, depth in depths.items():
            for each in range(1, depth + 1):
                source = names[place[0]][place[1]] if each == 1 else state(place, each - 1)
                body.append(helper.make_node("Identity", [source], [f"{state(place, each)}.next"]))
        frames = []
        for ((at, index), axis, _), name in scans.items():
            frames.append(f"{name}.frame")
            if axis is None:
                body.append(helper.make_node("Identity", [names[at][index]], frames[-1:]))
            else:
                body.append(_constant(f"{name}.axis", [axis]))
                body.append(helper.make_node("Squeeze", [names[at][index], f"{name}.axis"], frames[-1:]))
        graph = helper.make_graph(
            body,
            self.label,
            [*map(self._declared, entries, kinds), *(self._declared(each[3], each[4], 1) for each in cut)],
            [
                *map(self._declared, ends, kinds),
                *(
                    self._declared(name, names[at][index], int(axis is not None))
                    for name, ((at, index), axis, _) in zip(frames, scans, strict=True)
                ),
            ],
        )
        collecting: dict[str, Any] = {}
        if scans:
            collecting["scan_output_axes"] = [axis or 0 for _, axis, _ in scans]
            collecting["scan_output_directions"] = [direction for *_, direction in scans]
        yield helper.make_node(
            "Scan",
            [*starts, *(each[0] for each in cut)],
            [*lasts, *scans.values()],
            name=self.label,
            body=graph,
            num_scan_inputs=len(cut),
            scan_input_axes=[each[1] for each in cut],
            scan_input_directions=[each[2] for each in cut],
            **collecting,
        )

    def _declared(self, name: str, like: str, dropped: int = 0) -> onnx.ValueInfoProto:
        """Return the declaration of a value with the type of another value, and with fewer axes."""
        if like not in self.types:
            return (
                helper.make_tensor_value_info(name, onnx.TensorProto.INT64, [])
                if not like
                else onnx.ValueInfoProto(name=name)
            )
        known = self.types[like]
        return helper.make_tensor_value_info(name, known.elem_type, [None] * (len(known.shape.dim) - dropped))

    def _axis_of(self, node: onnx.NodeProto) -> int:
        return next(family.axis for family in self.families if node.output[0] in family.frames.values())


def _with_frames(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes in which a single frame is read by a Gather, also where a Split or a Slice reads the frame."""
    constants: dict[str, onnx.NodeProto] = {}
    for node in nodes:
        if node.op_type == "Constant":
            constants[node.output[0]] = node
        values = [_number(constants[name]) if name in constants else None for name in node.input[1:]]
        sizes = values[0] if values else None
        if node.op_type == "Split" and len(node.output) >= _FEWEST and sizes is not None and (sizes == 1).all():
            axis = next((each.i for each in node.attribute if each.name == "axis"), 0)
            for number, name in enumerate(node.output):
                yield _constant(f"{name}.number", [number])
                yield helper.make_node("Gather", [node.input[0], f"{name}.number"], [name], axis=axis)
            continue
        single = [value for value in values if value is not None and value.size == 1 and node.op_type == "Slice"]
        limits = [int(value.ravel()[0]) for value in single]
        if len(limits) == len(values) >= 3:
            start, end, axis, *step = limits
            if 0 <= start == end - 1 and step in ([], [1]):
                yield _constant(f"{node.output[0]}.number", [start])
                yield helper.make_node("Gather", [node.input[0], f"{node.output[0]}.number"], node.output, axis=axis)
                continue
        yield node


def _merged(nodes: Iterator[onnx.NodeProto], outputs: set[str]) -> list[onnx.NodeProto]:
    """Return nodes without those that compute what an earlier node computes; all frames of a value have one shape."""
    seen: dict[Any, onnx.NodeProto] = {}
    names: dict[str, str] = {}
    found: list[onnx.NodeProto] = []
    frames: dict[str, onnx.NodeProto] = {}
    for node in nodes:
        node = _renamed(_copy(node), names)
        if node.op_type == "Shape" and node.input[0] in frames:
            read = frames[node.input[0]]
            shaped = f"{read.input[0]}{_FRAME}{read.attribute[0].i}_{len(_shape_of(seen, read))}"
            index = f"{shaped}.number"
            if all(shaped not in each.output for each in found):
                found.append(_constant(index, np.zeros(_shape_of(seen, read), np.int64)))
                found.append(helper.make_node("Gather", [read.input[0], index], [shaped], axis=read.attribute[0].i))
            node.input[0] = shaped
        parts = sorted((each.name, each.SerializeToString()) for each in node.attribute)
        key = node.op_type, node.domain, tuple(node.input), tuple(parts), len(node.output)
        is_plain = not _is_random(node) and not outputs.intersection(node.output)
        if is_plain and key in seen:
            names.update(zip(node.output, seen[key].output, strict=True))
            continue
        if is_plain:
            seen[key] = node
        if node.op_type == "Constant":
            seen[node.output[0]] = node
        if node.op_type == "Gather" and node.input[1] in seen:
            frames[node.output[0]] = node
        found.append(node)
    return found


def _shape_of(seen: Mapping[Any, onnx.NodeProto], read: onnx.NodeProto) -> tuple[int, ...]:
    value = _number(seen[read.input[1]])
    return () if value is None else value.shape


def _families(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> Iterator[list[_Family]]:
    """Yield values of which a graph reads consecutive frames up to the same number, and that need no other frames."""
    constants = {node.output[0]: node for node in nodes if node.op_type == "Constant"}
    weights = {tensor.name for tensor in graph.initializer}
    moving = {entry.name for entry in graph.input} - weights  # values that depend on an input
    reads: dict[tuple[str, int], dict[int, str]] = {}
    for node in nodes:
        if moving.intersection(_read_by(node)):
            moving.update(node.output)
        if node.op_type != "Gather" or node.input[1] not in constants or node.input[0] not in moving:
            continue
        if _FRAME in node.output[0]:
            continue
        number, axis = _number(constants[node.input[1]]), next((each.i for each in node.attribute), 0)
        if number is not None and number.size == 1 and number >= 0 and axis >= 0 and number.ndim <= 1:
            reads.setdefault((node.input[0], axis), {})[int(number.ravel()[0])] = node.output[0]
    found = [
        _Family(data, axis, frames)
        for (data, axis), frames in reads.items()
        if len(frames) >= _FEWEST and sorted(frames) == [*range(min(frames), max(frames) + 1)]
    ]
    tainted: dict[str, set[int]] = {}
    own = {name: index for index, family in enumerate(found) for name in family.frames.values()}
    for node in nodes:
        parts = set[int]().union(*(tainted.get(name, set()) for name in _read_by(node)))
        for name in node.output:
            tainted[name] = parts | ({own[name]} if name in own else set())
    free = [family for family in found if not tainted.get(family.data)]
    for last in dict.fromkeys(max(family.frames) for family in free):
        yield [family for family in free if max(family.frames) == last]


def _is_alike(one: onnx.NodeProto, other: onnx.NodeProto) -> bool:
    """Return True if nodes differ in names only."""
    shapes = len(one.input) == len(other.input) and len(one.output) == len(other.output)
    return shapes and (one.op_type, one.domain) == (other.op_type, other.domain) and _parts(one) == _parts(other)


def _parts(node: onnx.NodeProto) -> list[bytes]:
    return sorted(each.SerializeToString() for each in node.attribute)


def _number(node: onnx.NodeProto) -> np.ndarray | None:
    """Return the numbers of a Constant; other nodes return None."""
    value = numpy_helper.to_array(node.attribute[0].t) if node.attribute[0].name == "value" else None
    return value if value is not None and value.dtype in (np.int64, np.int32, np.float32, np.float64) else None


def _constant(name: str, value: Any, dtype: Any = np.int64) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value, dtype)))


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy


def _again(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    copy = _copy(node)
    copy.output[:] = [names.get(name, name) for name in node.output]
    return copy


def _below(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    for attribute in node.attribute:
        for graph in graphs_in(attribute):
            for each in graphs_below(graph):
                yield from each.node


def _read_by(node: onnx.NodeProto) -> list[str]:
    """Return the names that a node reads, and nodes in its subgraphs."""
    inner = [name for each in _below(node) for name in each.input]
    ends = [entry.name for attribute in node.attribute for graph in graphs_in(attribute) for entry in graph.output]
    return [*node.input, *inner, *ends]


def _renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """Rename the inputs of a node and of its subgraphs, in place."""
    for each in (node, *_below(node)):
        each.input[:] = [names.get(name, name) for name in each.input]
    return node
