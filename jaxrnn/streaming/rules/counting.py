"""Integers that count frames: arithmetic on them is known for every frame, without knowing the frame.

Indexing is written with such numbers: ``x[::2]`` looks up ``2 * i``, overlapping frames are ``hop * i + arange(size)``.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from jaxrnn.jaxprs.equations import type_of
from jaxrnn.streaming.dimensions import settled
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.values import Affine, Chunk, along, is_known, is_length

_ORDER = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}
_COMPARISONS = {**_ORDER, "eq": operator.eq, "ne": operator.ne}


def affine_of(name: str, equation: JaxprEqn, operands: Sequence[Any]) -> Affine | None:
    """Scale and offsets of the result of an operation on each element; None where it does not count frames."""
    terms = [_term(value) for value in operands]
    if not any(isinstance(value, Chunk) for value in operands) or any(term is None for term in terms):
        return None
    known = [term for term in terms if term is not None]
    if name not in _ORDER and not is_wide(type_of(equation.outvars[0])):
        return None
    if name in ("convert_element_type", "copy", "stop_gradient"):
        return known[0]
    if len(known) != 2:
        return None
    (scale, offsets), (other_scale, other_offsets) = known
    if name == "add":
        return scale + other_scale, offsets + other_offsets
    if name == "sub":
        return scale - other_scale, offsets - other_offsets
    if name == "mul" and 0 in (scale, other_scale):
        (scale, offsets), (_, factor) = known if other_scale == 0 else known[::-1]
        return (scale * int(factor.reshape(-1)[0]), offsets * factor) if scale == 0 or factor.size == 1 else None
    if name in _ORDER:
        return _decided(name, scale - other_scale, offsets - other_offsets)
    return None


def against_the_length(run: Pass, name: str, operands: Sequence[Any]) -> Chunk | None:
    """A comparison of frames' numbers with the length, such as a mask of the last frames; None where it is another.

    It comes out the same for all frames but some last ones, so it waits until it is certain that a frame is not one.
    """
    compare = _COMPARISONS.get(name)
    places = [place for place, value in enumerate(operands) if isinstance(value, Chunk) and value.affine is not None]
    if compare is None or len(places) != 1 or not is_length(operands[1 - places[0]]):
        return None
    chunk, limit = operands[places[0]], operands[1 - places[0]]
    scale, offsets = chunk.affine
    size = chunk.timeline.size
    beyond = settled(scale * size - limit.reshape(-1)[0], size) if np.size(limit) == 1 and chunk.outer == 1 else None
    if scale == 0 or beyond is None:
        return None
    # Frame i is ``size - i`` frames before the end, and there its number is more than the length by this:
    surplus = offsets + beyond
    wait = max(0, *(int(each) // scale for each in surplus.flat))
    chunk = run.spread(chunk)
    timeline = chunk.timeline
    delay = max(chunk.delay or 0, timeline.certain + wait)
    run.facts.wait_for(timeline, delay)
    end, where = run.end(timeline), run.indices(timeline, delay)
    left = np.full(where.shape, wait + 1) if end is None else end - where
    difference = jnp.asarray(surplus, jnp.int32) - along(jnp.asarray(left, jnp.int32) * scale, chunk.axis, surplus.ndim)
    outcome = compare(difference, 0) if places[0] == 0 else compare(0, difference)
    shape = [run.frames_of(timeline) if axis == chunk.axis else size for axis, size in enumerate(chunk.array.shape)]
    return run.make(jnp.broadcast_to(outcome, shape), chunk.axis, timeline, delay, None)


def is_wide(dtype: Any) -> bool:
    """Whether a type counts without wrapping around, for as long as a stream may last, and below 0 too."""
    return np.issubdtype(dtype, np.signedinteger) and np.dtype(dtype).itemsize >= 4


def _term(value: Any) -> Affine | None:
    """What an operand contributes: a known number is the same in every frame."""
    if isinstance(value, Chunk):
        return value.affine
    if is_known(value) and not is_length(value) and np.asarray(value).dtype.kind in "iub":
        return 0, np.asarray(value)
    return None


def _decided(name: str, scale: int, offsets: np.ndarray) -> Affine | None:
    """A comparison with 0 that has one outcome in every frame from the first on."""
    compare = _ORDER[name]
    first = compare(offsets, 0)
    # Growing numbers keep what they are above 0, falling ones what they are below it.
    stays = (scale >= 0 and np.all(offsets >= 0)) or (scale <= 0 and np.all(offsets < 0))
    if not stays or (name in ("gt", "le") and scale != 0):
        return None
    return 0, first


def chosen(predicate: Any, cases: Sequence[Any]) -> Any:
    """The one of several streams that a choice takes in every frame; None where that is not known."""
    if not isinstance(predicate, Chunk) or predicate.affine is None or predicate.affine[0] != 0:
        return None
    outcomes = np.unique(predicate.affine[1])
    if len(outcomes) != 1:
        return None
    case = cases[int(outcomes[0])]
    return case if isinstance(case, Chunk) else None
