"""Places: numbers in the operands of nodes that may follow from the length of an opened axis."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxrnn.model.opening.formulas import SizeFormulas
from jaxrnn.onnx import ir
from jaxrnn.onnx.evaluate import Block, BoundNode, Scope, reads_of
from jaxrnn.onnx.values import Value, dtype_of, is_static, is_symbolic
from jaxrnn.streaming.dimensions import is_symbolic as is_formula

#: From this number on, the end of a slice means all that is left.
_ALL, _LEAST = 2**31 - 1, -(2**63)
#: The largest known operands that may hold sizes, and the largest constants that may have equal slices, in elements.
_SMALL, _LARGE = 4096, 2**22
#: The most ways of a reshape that are tried.
_LAYOUTS = 16
#: The operands that hold sizes or numbers of trips.
_SIZES = frozenset(
    ("shape", "repeats", "limit", "max_trip_count", "dft_length", "frame_length", "k", "depth", "pads", "output_shape")
)

#: The chosen reading of each place as text, by key; None for the number.
Choice = dict[tuple[Any, ...], str | None]


@dataclass(frozen=True)
class BandFormula:
    """The formula of a mask from frames to frames: elements follow from the number of the column minus that of the row.

    Attributes:
        axes: the axes of rows and columns.
        steps: the distances from which on the elements have the next value, one or two.
        values: the value below the first step, and from each step on.
    """

    axes: tuple[int, int]
    steps: tuple[int, ...]
    values: tuple[np.generic, ...]

    def __str__(self) -> str:
        later = [f"{value} from {step} on" for step, value in zip(self.steps, self.values[1:], strict=True)]
        return f"{self.values[0]}, {', '.join(later)}"


@dataclass(frozen=True)
class BakedPlace:
    """A number in an operand of a node that may follow from the length."""

    node: BoundNode
    operand: int  # the number of the input
    #: "element" of an operand of sizes, "layout" of a reshape, "axis" of a constant, "range", "count" or "reversed"
    #: for a constant that counts frames (`_order`), "band" for a mask, "limit" of a loop's condition, "number" of
    #: arithmetic, or "window"
    kind: str
    index: int  # the element, the axis, or 0
    number: float  # the value in the file
    readings: tuple[Any, ...]  # formulas of the length; for a layout tuples of sizes
    is_open: bool = False  # whether the first reading is taken unless an equation needs another one
    doubt: str = ""  # why the number cannot be taken for granted if no equation decides
    band: BandFormula | None = None  # the formula of a mask

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes of a constant that have the length."""
        return (self.index,) if self.band is None else self.band.axes

    @property
    def key(self) -> tuple[Any, ...]:
        """The same in each evaluation."""
        return (self.node.outputs[0], self.operand, self.kind, self.index)

    @property
    def value(self) -> ir.Value:
        """The operand in the graph."""
        value = self.node.inputs[self.operand]
        assert value is not None, "a place is in an operand"
        return value

    @property
    def name(self) -> str:
        """The name of the operand in the file, or for a window of the result."""
        return str(self.node.outputs[0].name if self.kind == "window" else self.value.name)

    def chosen(self, choice: Choice) -> Any:
        """Return the chosen formula, or None for the number."""
        text = choice.get(self.key)
        return next((each for each in self.readings if str(each) == text), None)


class Places:
    """The places of nodes in one evaluation of a graph, which gives the nodes in order.

    Attributes:
        runs: the nodes that run along an opened axis by a recurrence, a window or a sum, and their operators.
        recurs: whether one of these nodes is a recurrence.
    """

    def __init__(
        self,
        sizes: SizeFormulas,
        constants: Mapping[ir.Value, np.ndarray],
        before: Mapping[ir.Value, Collection[Any]],
        producer: str,
    ):
        self.sizes, self.constants, self.before, self.producer = sizes, constants, before, producer
        self.runs: dict[str, str] = {}
        self.recurs = False
        self._live: dict[str, Any] = {}  # the formulas of sizes so far
        self._counts: set[ir.Value] = set()  # the values that depend on how many frames there are
        #: For each value the sizes that a reshape has joined, in order, by the product.
        self._joined: dict[ir.Value, dict[str, tuple[Any, ...]]] = {}

    def of(self, node: BoundNode, inputs: Sequence[Value], scope: Scope) -> Iterator[BakedPlace]:
        """Yield the places of a node. A copy has none, because the places are where the copy is read."""
        if node.applies("Identity"):
            return
        for operand, value in enumerate(inputs):
            slot = node.operator.slot(operand)
            if slot is None or not hasattr(value, "shape"):
                continue
            if is_static(value) and value.dtype.kind in "iuO" and value.size <= _SMALL:
                yield from self._of_integers(node, operand, slot.name, value, inputs, scope)
            key = node.inputs[operand]
            array = None if key is None else self.constants.get(key)  # not of computed values: their nodes have places
            if array is not None and not slot.static and 0 < array.size <= _LARGE:
                yield from self._of_constant(node, operand, array, inputs)
        for body in node.blocks if node.applies("Loop") else ():
            yield from self._of_conditions(node, body, scope)
        yield from self._of_numbers(node, inputs)
        yield from self._of_windows(node, inputs)

    def array_of(self, node: BoundNode, operand: int, value: Value) -> np.ndarray | None:
        """Return the array of an operand that is a constant, a parameter, or known."""
        key = node.inputs[operand]
        array = None if key is None else self.constants.get(key)
        if array is None and is_static(value) and value.dtype.kind in "fiub":
            array = value
        return array

    def _formulas(self, number: int, first: Sequence[Any] = ()) -> tuple[Any, ...]:
        """Return the sizes of earlier values that are this number in the file, short formulas first."""
        found = {str(each): each for each in first if self.sizes.number(each) == number}
        live = [each for each in self._live.values() if self.sizes.number(each) == number]
        found |= {str(each): each for each in sorted(live, key=lambda each: len(str(each)))}
        return tuple(found.values())

    def _of_integers(
        self, node: BoundNode, operand: int, slot: str, value: np.ndarray, inputs: Sequence[Value], scope: Scope
    ) -> Iterator[BakedPlace]:
        """Yield the elements of known integers that may be sizes."""
        make = functools.partial(BakedPlace, node, operand, "element")
        traits, first = node.operator.traits, inputs[0]
        literal = [(index, int(item)) for index, item in enumerate(value.flat) if is_size(item, whole=True)]
        if slot == "shape" and operand == 1 and node.applies("Reshape"):
            yield from self._of_reshape(node, value, first)
        elif traits.reads == "range" and slot in ("starts", "ends"):
            yield from self._of_slice(make, slot, literal, inputs)
        elif traits.reads == "indices" and operand == 1:
            yield from self._of_indices(make, node, value, literal, first)
        elif slot == "sequence_lens":
            axis = traits.carries.time_axis if traits.carries is not None else node.attributes.get("time_axis", 0)
            size = first.shape[(axis or 0) if not node.attributes.get("layout") else 1]
            for index, number in literal:
                if self.sizes.follows(size) and number == self.sizes.number(size):
                    yield make(index, number, (size,), True)
        elif slot == "split":
            size = first.shape[node.attributes.get("axis", 0)]
            if self.sizes.follows(size) and len(literal) == 1:
                yield make(0, literal[0][1], (size,), True)
        elif slot == "sizes":
            shift = len(first.shape) - value.size
            for index, number in literal:
                size = first.shape[index + shift] if shift == 0 else None
                own = []
                if size is not None and self.sizes.follows(size):
                    own = [size * (number // length) for length in [self.sizes.number(size)] if number % length == 0]
                readings = self._formulas(number, ()) or tuple(own)
                if own and all(str(each) != str(own[0]) for each in readings):
                    readings += tuple(own)
                if readings:
                    doubt = "may be a size of its own, or follow from the length" if own else ""
                    yield make(index, number, readings, False, doubt)
        elif slot in _SIZES:
            for index, number in literal:
                if number > 1 and (readings := self._formulas(number)):
                    yield make(index, number, readings, bool(node.blocks) and self._reads_open(node, scope, number))

    def _reads_open(self, node: BoundNode, scope: Scope, number: int) -> bool:
        """Return True if a loop reads values along an axis with this length."""
        shapes = (getattr(scope.find(key), "shape", ()) for key in reads_of(node))
        sizes = filter(self.sizes.follows, itertools.chain.from_iterable(shapes))
        return number in map(self.sizes.number, sizes)

    def _of_conditions(self, loop: BoundNode, body: Block, scope: Scope) -> Iterator[BakedPlace]:
        """Yield the numbers that the condition of a loop compares counters with."""
        for node in body.nodes:
            for operand, key in enumerate(node.inputs if node.operator.traits.compares else ()):
                if key is None or (array := self.constants.get(key)) is None:
                    continue
                if array.size != 1 or array.dtype.kind not in "iuf" or array.reshape(()) % 1:
                    continue
                number = int(array.reshape(()))
                readings = self._formulas(number) if number > 1 else ()
                reading = [each for each in body.nodes if key in reads_of(each)]
                if readings and all(each.operator.traits.compares for each in reading):
                    yield BakedPlace(node, operand, "limit", 0, number, readings, self._reads_open(loop, scope, number))
                elif readings:
                    doubt = "may end the loop, and is also used for something else"
                    yield BakedPlace(node, operand, "limit", 0, number, (), doubt=doubt)

    def _of_reshape(self, node: BoundNode, target: np.ndarray, data: Value) -> Iterator[BakedPlace]:
        """Yield the size that holds each axis that follows from the length.

        With the products A and C of the sizes before and after the axis, and A' and C' before and after a size of the
        result, the size holds the axis if A' divides A and C' divides C: it joins the axis with A/A' outer and C/C'
        inner elements.
        """
        known = self.before.get(node.outputs[0])
        if known is None or len(known) != 1:
            return
        result = next(iter(known))[0]
        joined = {} if node.inputs[0] is None else self._joined.get(node.inputs[0], {})
        whole = [self.sizes.number(size) for size in data.shape]
        if 0 in (*whole, *result):
            return
        held = [(math.prod(result[:index]), each, math.prod(result[index + 1 :])) for index, each in enumerate(result)]
        sizes: list[Any] = []
        for axis, size in enumerate(data.shape):
            before, after = math.prod(whole[:axis]), math.prod(whole[axis + 1 :])
            parts = joined.get(str(size), (size,))
            counts = list(map(self.sizes.number, parts))
            own = [
                (before * math.prod(counts[:part]), counts[part], math.prod(counts[part + 1 :]) * after)
                for part, each in enumerate(parts)
                if self.sizes.follows(each)
            ]
            # A joined axis stays joined, unless the result has an axis for the part that follows from the length.
            stays = (before, whole[axis], after) in held and not all(each in held for each in own)
            sizes += [size] if stays else parts
        numbers = [self.sizes.number(size) for size in sizes]
        literal = {index: int(item) for index, item in enumerate(target.flat) if is_size(item, whole=True)}
        fits: dict[int, list[int]] = {}
        for axis, size in enumerate(sizes):
            if self.sizes.follows(size):
                before, after = math.prod(numbers[:axis]), math.prod(numbers[axis + 1 :])
                places = [
                    index
                    for index, product in enumerate(result)
                    if product % numbers[axis] == 0
                    and before % math.prod(result[:index]) == 0
                    and after % math.prod(result[index + 1 :]) == 0
                ]
                # As few other elements as possible, and the axis of the same number.
                fits[axis] = sorted(places, key=lambda index: (result[index], abs(index - axis)))
        layouts = []
        for chosen in itertools.islice(itertools.product(*fits.values()), _LAYOUTS):
            vector = list(target.flat)
            for index in {index for index in chosen if literal.get(index, -1) > 0}:
                inside = [sizes[axis] for axis, held in zip(fits, chosen, strict=True) if held == index]
                rest, left = divmod(result[index], math.prod(map(self.sizes.number, inside)))
                vector[index] = math.prod(inside) * rest if not left else vector[index]
            layouts.append(tuple(vector))
        if any(str(layout) != str(tuple(target.flat)) for layout in layouts):
            yield BakedPlace(node, 1, "layout", 0, 0, tuple(layouts), True)

    def _of_slice(
        self, make: Any, slot: str, literal: Sequence[tuple[int, int]], inputs: Sequence[Value]
    ) -> Iterator[BakedPlace]:
        data = inputs[0]
        axes = inputs[3] if len(inputs) > 3 and inputs[3] is not None else np.arange(len(literal))
        steps = inputs[4] if len(inputs) > 4 and inputs[4] is not None else np.ones(np.size(axes), np.int64)
        for index, number in literal:
            axis, step = int(np.ravel(axes)[index]), int(np.ravel(steps)[index])
            size = data.shape[axis]
            if not self.sizes.follows(size):
                if number > 1 and not is_formula(size) and number < int(size) and (found := self._formulas(number)):
                    yield make(index, number, found)
                continue
            length = self.sizes.number(size)
            if slot == "ends" and step > 0 and number == length:
                yield make(index, number, (size,), True)
            elif slot == "starts" and step < 0 and number == length - 1:
                yield make(index, number, (-1,), True)
            elif slot == "ends" and step < 0 and number == -length - 1:
                yield make(index, number, (_LEAST,), True)
            elif 0 < number < _ALL and (number >= (length - 1) // 2 or self._formulas(number)):
                yield self._counted(make, index, number, size)

    def _counted(self, make: Any, index: int, number: int, size: Any) -> BakedPlace:
        """Return the place of a frame number, which may be counted from the first or from the last frame."""
        length = self.sizes.number(size)
        readings = self._formulas(number)
        if number <= length:
            readings += (size - (length - number),)
        doubt = f"is frame {number} of {length}, which may be counted from the end" if number <= length else ""
        return make(index, number, readings, False, doubt or f"is a frame after the {length} frames of the file")

    def _of_indices(
        self, make: Any, node: BoundNode, value: np.ndarray, literal: Sequence[tuple[int, int]], data: Value
    ) -> Iterator[BakedPlace]:
        size = data.shape[node.attributes.get("axis", 0)]
        if self.sizes.follows(size) and not _order(value):
            length = self.sizes.number(size)
            late = [(index, number) for index, number in literal if number >= (length - 1) // 2]
            if value.size > 1 and late:
                doubt = f"is one of {value.size} numbers of frames, which may depend on the {length} frames of the file"
                yield make(*late[0], (), doubt=doubt)
            elif late and (late[0][1] or length == 1):
                yield self._counted(make, *late[0], size)

    def _of_constant(
        self, node: BoundNode, operand: int, array: np.ndarray, inputs: Sequence[Value]
    ) -> Iterator[BakedPlace]:
        """Yield the axes of a constant with equal slices, and counts of frames, that may have the length."""
        if order := _order(array):
            if found := self._formulas(array.size):
                reads = node.operator.traits.reads == "indices" and operand == 1
                size = inputs[0].shape[node.attributes.get("axis", 0)] if reads else 0
                covers = order != "count" and self.sizes.follows(size) and self.sizes.number(size) == array.size
                yield BakedPlace(node, operand, order, 0, array.size, (size,) if covers else found, covers)
            return
        for axis, size in enumerate(array.shape):
            found = self._formulas(size) if size > 1 or self._has_length_one else ()
            if found and bool(np.all(array == np.take(array, [0], axis))):
                yield BakedPlace(node, operand, "axis", axis, size, found)
            elif found and (band := _band(array, axis)):
                yield BakedPlace(node, operand, "band", axis, size, found, band=band)

    @functools.cached_property
    def _has_length_one(self) -> bool:
        return any(self.sizes.numbers[symbol] == 1 for symbol in self.sizes.opened)

    def _of_numbers(self, node: BoundNode, inputs: Sequence[Value]) -> Iterator[BakedPlace]:
        """Yield numbers of arithmetic that look like a mean, variance or position over the length of the file.

        A sum over an open axis that is divided by the length of the file is a wrong mean for all other lengths.
        """
        if not node.operator.traits.elementwise or len(inputs) < 2:
            return
        if not any(key in self._counts for key in node.inputs if key is not None):
            return
        lengths = {self.sizes.number(each) for each in self._live.values()}
        for operand, value in enumerate(inputs):
            array = None if value is None else self.array_of(node, operand, value)
            if array is None or array.dtype.kind not in "fiu" or not array.size:
                continue
            number = float(array.reshape(-1)[0])
            if number in (0, 1, -1) or not np.all(array == array.reshape(-1)[0]):
                continue
            for length in lengths:
                if length > 1 and any(math.isclose(abs(number), each, rel_tol=1e-5) for each in _derived(length)):
                    doubt = (
                        f"may come from the length {length}, as in a mean, a variance or a position over "
                        f"{length} frames, which would be wrong for other lengths"
                    )
                    yield BakedPlace(node, operand, "number", 0, number, (), doubt=doubt)
                    break

    def _of_windows(self, node: BoundNode, inputs: Sequence[Value]) -> Iterator[BakedPlace]:
        """Yield windows of all frames of the file, and pads that depend on the length.

        TensorFlow's padding SAME makes ``ceil(length / stride)`` frames, and its pads differ for other lengths if the
        stride is not 1. Source: https://www.tensorflow.org/api_docs/python/tf/nn#notes_on_padding_2.
        """
        for axis, kernel in _windows(node, inputs):
            size, facts = inputs[0].shape[axis], self.before.get(node.outputs[0])
            if not self.sizes.follows(size) or not facts:
                continue
            length = self.sizes.number(size)
            if kernel > 1 and any(each[0][axis] == 1 for each in facts):
                doubt = f"is a window of all {length} frames, which may be as long as any recording"
                yield BakedPlace(node, 0, "window", axis, kernel, (), doubt=doubt)
            rank = len(inputs[0].shape) - 2
            pads = node.attributes.get("pads") or (0,) * 2 * rank
            stride, dilation = (
                (node.attributes.get(name) or (1,) * rank)[axis - 2] for name in ("strides", "dilations")
            )
            before, after = pads[axis - 2], pads[axis - 2 + rank]
            total = max((-(-length // stride) - 1) * stride + (kernel - 1) * dilation + 1 - length, 0)
            of_tensorflow = before != after or self.producer.startswith("tf")
            if stride > 1 and of_tensorflow and (before, after) == (total // 2, total - total // 2):
                doubt = f"has strides of {stride} and the pads {before} and {after}, which TensorFlow computes from "
                doubt += f"the length {length}; other lengths may need others"
                yield BakedPlace(node, 0, "window", axis, kernel, (), doubt=doubt)

    def see(self, shape: Iterable[Any]) -> None:
        """Take sizes as readings of later numbers."""
        for size in shape:
            if self.sizes.follows(size):
                self._live.setdefault(str(size), size)

    def note(self, node: BoundNode, inputs: Sequence[Value], outputs: Sequence[Value], scope: Scope) -> None:
        """Keep the facts from an evaluated node: sizes, numbers of frames, and the axis."""
        traits, follows = node.operator.traits, self.sizes.follows
        shapes = [getattr(value, "shape", ()) for value in inputs]
        made = [getattr(value, "shape", ()) for value in outputs]
        opened, left = ([sum(map(follows, shape)) for shape in each] for each in (shapes, made))
        if node.blocks:
            opened += [sum(map(follows, getattr(scope.find(key), "shape", ()))) for key in reads_of(node)]
        # The results without an axis that an operand has, such as sums over the axis.
        computes = traits.moves is None and not traits.of_shape
        lost = [key for key, count in zip(node.outputs, left, strict=False) if count < max(opened, default=0)]
        sums = computes and len(lost) == len(left)
        sized = [any(map(follows, value.flat)) if is_symbolic(value) else False for value in inputs]
        counted = any(sized) and (traits.elementwise or node.applies("Range")) and not all(map(_is_whole, outputs))
        read = (key for index, key in enumerate(node.inputs) if not getattr(node.operator.slot(index), "static", True))
        inner = (key for key in reads_of(node) if node.blocks)
        if counted or node.applies("CumSum") or any(key in self._counts for key in (*read, *inner)):
            self._counts.update(node.outputs)
        elif computes:
            self._counts.update(lost)
        windows = any(size > 1 and follows(inputs[0].shape[axis]) for axis, size in _windows(node, inputs))
        in_loop = bool(traits.compares) and any(sized) and scope.outer is not None
        if sums or windows or in_loop or node.applies("CumSum") or any(map(follows, _walked_axes(node, inputs))):
            self.runs.setdefault(node.name, str(node.operator.name))
            self.recurs |= not (sums or windows)
        for shape in made:
            self.see(shape)
        known: dict[str, tuple[Any, ...]] = {}
        for key in filter(None, node.inputs):
            known |= self._joined.get(key, {})
        for key, shape in zip(node.outputs, made, strict=False):
            own = dict(self._joins(inputs[0].shape, shape)) if node.applies("Reshape") else {}
            self._joined[key] = {name: order for name, order in (known | own).items() if name in map(str, shape)}

    def _joins(self, before: Sequence[Any], after: Sequence[Any]) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Yield the products of a reshape, and the sizes in them in order."""
        rest = list(before)
        for size in after:
            parts: list[Any] = []
            while rest and not self.sizes.are_equal(math.prod(parts), size):
                each = rest.pop(0)
                left = self.sizes.number(size) // math.prod(map(self.sizes.number, parts))
                if not is_formula(each) and each > left > 1 and each % left == 0:  # a part of a number
                    rest.insert(0, each // left)
                    each = left
                parts.append(each)
                if self.sizes.number(math.prod(parts)) > self.sizes.number(size):
                    return
            if not self.sizes.are_equal(math.prod(parts), size):
                return
            joined = tuple(each for each in parts if is_formula(each) or each != 1)
            if len(joined) > 1 and any(map(self.sizes.follows, joined)):
                yield str(size), joined


def is_size(item: Any, whole: bool = False) -> bool:
    """Return True for an integer, and unless `whole` for a formula of sizes."""
    return isinstance(item, (int, np.integer)) or (not whole and hasattr(item, "scope"))


def _is_whole(value: Value) -> bool:
    """Return True for known integers, such as sizes."""
    return is_static(value) and dtype_of(value).kind in "iu"


def agree(one: Any, other: Any) -> bool:
    """Return True if shapes are equal, and known integers too."""
    if one is None or other is None or one[0] != other[0]:
        return one is None or other is None
    pairs = zip(one[1] or (), other[1] or (), strict=False)
    return all(None in pair or pair[0] == pair[1] for pair in pairs)


def _order(array: np.ndarray) -> str:
    """Return how an array counts frames along one axis: "range" from 0, "count" from 1, "reversed" to 0, or ""."""
    if array.dtype.kind in "iuf" and array.size > 1 and max(array.shape) == array.size:
        first = np.arange(array.size)
        for order, whole in (("range", first), ("count", first + 1), ("reversed", first[::-1])):
            if np.array_equal(array.reshape(-1), whole):
                return order
    return ""


def _band(array: np.ndarray, row: int) -> BandFormula | None:
    """Return the formula of a mask with rows along an axis, such as a causal mask or a band, or None."""
    length = array.shape[row]
    for column in range(row + 1, array.ndim):
        matrix = np.moveaxis(array, (row, column), (0, 1)).reshape(length, array.shape[column], -1)
        if array.shape[column] != length or not np.all(matrix == matrix[..., :1]):
            continue
        matrix = matrix[..., 0]
        by_distance = np.concatenate([matrix[:0:-1, 0], matrix[0]])
        steps = np.flatnonzero(by_distance[1:] != by_distance[:-1]) + 1
        # A single element in a corner does not show that the mask goes on so.
        is_clear = 1 <= len(steps) <= 2 and steps[0] > 1 and steps[-1] < len(by_distance) - 1
        if is_clear and np.array_equal(matrix[1:, 1:], matrix[:-1, :-1]):
            return BandFormula((row, column), tuple(map(int, steps - (length - 1))), tuple(by_distance[[0, *steps]]))
    return None


def _walked_axes(node: BoundNode, inputs: Sequence[Value]) -> Iterator[Any]:
    """Yield the sizes of the axes of a recurrence or loop."""
    carries = node.operator.traits.carries
    if carries is not None and (carries.time_axis is not None or carries.hidden):
        yield inputs[0].shape[1 if node.attributes.get("layout") else carries.time_axis or 0]
    elif node.applies("Scan"):
        count = node.attributes["num_scan_inputs"]
        axes = node.attributes.get("scan_input_axes") or (0,) * count
        yield from (value.shape[axis] for value, axis in zip(inputs[-count:], axes, strict=True))
    elif node.applies("Loop") and is_symbolic(inputs[0]):
        yield from inputs[0].flat


def _derived(length: int) -> tuple[float, ...]:
    """Return the numbers that formulas over a length have in a file."""
    less = length - 1
    roots = (length**0.5, length**-0.5)
    return (length, less, 1 / length, 1 / max(less, 1), *roots, length / max(less, 1), less / length, math.log(length))


def _windows(node: BoundNode, inputs: Sequence[Value]) -> Iterator[tuple[int, int]]:
    """Yield the axes and lengths of the windows of a convolution or pooling."""
    kernel = node.attributes.get("kernel_shape")
    if kernel is None and node.applies("Conv") and len(inputs) > 1:
        kernel = inputs[1].shape[2:]
    for index, size in enumerate(kernel or ()):
        if isinstance(size, (int, np.integer)) and index + 2 < len(inputs[0].shape):
            yield index + 2, int(size)
