"""Outputs that hold the next value of an input in another dress: another shape, another type, or as a part.

A dress is read from the flow of elements: the places to which the final values of a recurrence went, or the places at
which the output would be a pair with the input, if it had the shape of the input.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.jaxprs.flows import SCALED, SHOWN, UPDATED, DataFlow, Flow, grades, positions
from jaxrnn.onnx.state.pairing import CARRIED, LAST_OUTPUT, Edge, find_edge

#: An axis, and the places along the axis; a negative first place counts from the end, where the part then ends.
Part = tuple[int, int, int | None]
#: More axes have too many orders.
_MAX_AXES = 5


@dataclasses.dataclass(frozen=True)
class HeldElements:
    """The elements of an input in an output.

    Attributes:
        output: the name of the output.
        order: the axes of the input in the order of the output.
        held: the part of the output with these elements; None for the whole output.
        place: the part of the input with these elements; None for the whole input.
        is_shown: the output is the sequence of a recurrence, whose last frame is the final value.
    """

    output: str
    order: tuple[int, ...]
    held: Part | None = None
    place: Part | None = None
    is_shown: bool = False

    def undressed(self, value: Any, before: Sequence[int]) -> Any:
        """Return the elements of an array of the output in the order of axes of the input with shape ``before``."""
        if self.held is not None:
            axis, start, stop = self.held
            value = value[(*[slice(None)] * axis, slice(start, stop))]
        sizes = list(before)
        if self.place is not None:
            axis, start, stop = self.place
            sizes[axis] = (sizes[axis] if stop is None else stop) - start
        turned = value.reshape([sizes[axis] for axis in self.order])
        return turned.transpose([self.order.index(axis) for axis in range(len(sizes))])


@dataclasses.dataclass(frozen=True)
class Dress:
    """The outputs that hold the next value of an input in another shape or type, in the order of its elements."""

    pieces: tuple[HeldElements, ...]

    @property
    def replaced(self) -> list[str]:
        """Return the outputs that hold only this state; other outputs stay outputs of a step."""
        return [piece.output for piece in self.pieces if piece.held is None and not piece.is_shown]

    def updated(self, results: Mapping[str, jax.Array], before: jax.Array) -> jax.Array:
        """Return the next value in the shape and type of the value before."""
        values = (piece.undressed(results[piece.output], before.shape) for piece in self.pieces)
        parts = [value.astype(before.dtype) for value in values]
        axis = 0 if self.pieces[0].place is None else self.pieces[0].place[0]
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis)


def split(updated: str, outputs: Collection[str]) -> list[str]:
    """Return the outputs of a declared pair: one, or several with commas between them."""
    return [updated] if updated in outputs else [name.strip() for name in updated.split(",")]


def find_dress(
    flow: DataFlow, source: str, updated: str, is_open: Mapping[str, Sequence[bool]]
) -> tuple[Edge, Dress | None] | None:
    """Return the evidence that outputs hold the next value of an input, and how; None without such outputs.

    ``is_open`` tells for each input and output which axes have an open size. The dress is None if the order is not
    known.
    """
    names = split(updated, flow.outputs)
    pieces = [piece for name in names if (piece := piece_of(flow, source, name, is_open)) is not None]
    if len(pieces) == len(names) and (dress := _joined(pieces, flow.inputs[source].shape or ())) is not None:
        return Edge(source, updated, LAST_OUTPUT if pieces[0].is_shown else CARRIED), dress
    if len(names) > 1:
        return None
    fixed = [False] * len(flow.inputs[source].shape or ()), lambda *_: False  # undressed, the output cannot grow
    ways = [(find_edge(plain, source, updated, *fixed), dress) for dress, plain in _undressed(flow, source, updated)]
    ranked = [(edge, dress) for edge, dress in ways if edge is not None]
    best = [way for way in ranked if way[0].rank == max(edge.rank for edge, _ in ranked)]
    return None if not best else (best[0][0], best[0][1] if len(best) == 1 else None)


def _joined(pieces: Sequence[HeldElements], shape: Sequence[int]) -> Dress | None:
    """Return the dress of pieces that are a whole input together, in the order of its elements."""
    parts = sorted((piece for piece in pieces if piece.place is not None), key=lambda piece: piece.place or ())
    if not parts:
        return Dress((pieces[0],)) if len(pieces) == 1 else None
    places = [piece.place for piece in parts if piece.place is not None]
    ends = [0, *(stop for _, _, stop in places)]
    starts = [*(start for _, start, _ in places), shape[places[0][0]]]
    return Dress(tuple(parts)) if len({axis for axis, _, _ in places}) == 1 and ends == starts else None


def joins_of(flow: DataFlow, source: str, is_open: Mapping[str, Sequence[bool]]) -> list[str]:
    """Return outputs that hold different parts of the final values of recurrences which an input starts."""
    pieces = [piece for name in flow.outputs if (piece := piece_of(flow, source, name, is_open)) is not None]
    # A sequence holds the final value, too.
    parts = sorted((piece.place, piece.is_shown, piece.output) for piece in pieces if piece.place is not None)
    return [next(group)[2] for _, group in itertools.groupby(parts, key=lambda part: part[0])]


def held_apart(one: Dress, other: Dress) -> bool:
    """Return True if two dresses take parts of outputs that do not overlap."""
    for first, second in itertools.product(one.pieces, other.pieces):
        if first.output == second.output:
            held = sorted((part for part in (first.held, second.held) if part is not None), key=lambda part: part[1])
            if len(held) < 2 or held[0][0] != held[1][0] or held[0][2] is None or held[0][2] > held[1][1]:
                return False
    return True


def piece_of(flow: DataFlow, source: str, output: str, is_open: Mapping[str, Sequence[bool]]) -> HeldElements | None:
    """Return the final values of the recurrence that an input starts, as an output holds them, or None."""
    before, codes = flow.inputs[source].shape, flow.outputs[output].codes.get(source)
    if codes is None or before is None or not _are_of_one_kind(flow.inputs[source], flow.outputs[output]):
        return None
    held = np.isin(grades(codes), (UPDATED, SHOWN))
    box = _box(held)
    if box is None:
        return None
    place = positions(codes[_slices(box)])
    whole = np.arange(math.prod(before)).reshape(before)
    region = _box(np.isin(whole, place))
    assert region is not None
    parts, inside = _cuts(box, held.shape), _cuts(region, before)
    order = next((each for each in _orders(before) if _is_in_order(whole[_slices(region)], each, place)), None)
    if len(parts) > 1 or len(inside) > 1 or order is None:
        return None
    part, place = next(iter(parts), None), next(iter(inside), None)
    if place is not None and is_open[source][place[0]]:
        return None
    if part is not None and is_open[output][part[0]]:
        # Along an open axis, only the last frame is at a known place.
        if part[1:] != (held.shape[part[0]] - 1, held.shape[part[0]]):
            return None
        part = (part[0], -1, None)
    return HeldElements(output, order, part, place, bool((grades(codes[held]) == SHOWN).any()))


def _undressed(flow: DataFlow, source: str, output: str) -> Iterator[tuple[Dress, DataFlow]]:
    """Yield ways to read a whole output as the input, and the flow with the output in the shape and type of the input.

    If the flow does not tell the order of the axes, an order must follow from the sizes.
    """
    before, target = flow.inputs[source], flow.outputs[output]
    if not are_alike(before, target):
        return
    assert before.shape is not None
    assert target.shape is not None
    codes = target.codes.get(source, np.zeros(target.shape, np.int64))
    whole, place = np.arange(codes.size).reshape(before.shape), positions(codes).ravel()
    wide = [size for size in target.shape if size > 1]
    orders = [each for each in _orders(before.shape) if (place >= 0).any() and _is_in_order(whole, each, place)]
    fitting = [each for each in _orders(before.shape) if [before.shape[a] for a in each if before.shape[a] > 1] == wide]
    if np.isin(grades(codes), (UPDATED, SHOWN, SCALED)).any():
        fitting = []  # the order of final values is known, and is no order of axes
    for order in orders or fitting:
        piece = HeldElements(output, order)
        arrays = {name: piece.undressed(array, before.shape) for name, array in target.codes.items()}
        ids = None if target.ids is None else piece.undressed(target.ids, before.shape)
        plain = dataclasses.replace(target, shape=before.shape, dtype=before.dtype, ids=ids, codes=arrays)
        yield Dress((piece,)), dataclasses.replace(flow, outputs={**flow.outputs, output: plain})


def are_alike(before: Flow, after: Flow) -> bool:
    """Return True if two values have equal numbers of elements, and both have floats or both integers."""
    counts = [None if each.shape is None else math.prod(each.shape) for each in (before, after)]
    return counts[0] is not None and counts[0] == counts[1] and _are_of_one_kind(before, after)


def _are_of_one_kind(before: Flow, after: Flow) -> bool:
    kinds = (jnp.floating, jnp.integer)
    return before.dtype == after.dtype or any(
        all(each.dtype is not None and jnp.issubdtype(each.dtype, kind) for each in (before, after)) for kind in kinds
    )


def _orders(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield orders of the axes, first the order of the file; axes of size 1 come first, because any place will do."""
    ones = [axis for axis, size in enumerate(shape) if size == 1]
    wide = [axis for axis, size in enumerate(shape) if size != 1]
    count = None if len(wide) <= _MAX_AXES else 1
    yield from ((*ones, *order) for order in itertools.islice(itertools.permutations(wide), count))


def _is_in_order(places: np.ndarray, order: Sequence[int], found: np.ndarray) -> bool:
    """Return True if the places, in this order of axes, are the places found; a negative number may be any place."""
    turned, found = places.transpose(order).ravel(), found.ravel()
    return turned.size == found.size and bool(((turned == found) | (found < 0)).all())


def _box(mask: np.ndarray) -> list[tuple[int, int]] | None:
    """Return the first place and the place behind the last, for each axis, or None if the places do not fill a box."""
    places = np.argwhere(mask)
    if not len(places):
        return None
    box = [(int(low), int(high) + 1) for low, high in zip(places.min(0), places.max(0), strict=True)]
    return box if math.prod(stop - start for start, stop in box) == len(places) else None


def _slices(box: Sequence[tuple[int, int]]) -> tuple[slice, ...]:
    return tuple(slice(*bounds) for bounds in box)


def _cuts(box: Sequence[tuple[int, int]], shape: Sequence[int]) -> list[Part]:
    """Return the axes along which a box is not whole, and its bounds there."""
    bounds = enumerate(zip(box, shape, strict=True))
    return [(axis, start, stop) for axis, ((start, stop), size) in bounds if (start, stop) != (0, size)]
