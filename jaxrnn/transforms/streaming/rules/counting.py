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

from jaxrnn.transforms.streaming.access import avals
from jaxrnn.transforms.streaming.values import Affine, Chunk, is_known, is_length

_COMPARISONS = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}


def affine_of(name: str, equation: JaxprEqn, operands: Sequence[Any]) -> Affine | None:
    """Scale and offsets of the result of an operation on each element; None where it does not count frames."""
    terms = [_term(value) for value in operands]
    if not any(isinstance(value, Chunk) for value in operands) or any(term is None for term in terms):
        return None
    known = [term for term in terms if term is not None]
    if name in ("convert_element_type", "copy", "stop_gradient"):
        return known[0] if jnp.issubdtype(avals(equation.outvars)[0].dtype, np.integer) else None
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
    if name in _COMPARISONS:
        return _decided(name, scale - other_scale, offsets - other_offsets)
    return None


def _term(value: Any) -> Affine | None:
    """What an operand contributes: a known number is the same in every frame."""
    if isinstance(value, Chunk):
        return value.affine
    if is_known(value) and not is_length(value) and np.asarray(value).dtype.kind in "iub":
        return 0, np.asarray(value)
    return None


def _decided(name: str, scale: int, offsets: np.ndarray) -> Affine | None:
    """A comparison with 0 that has one outcome in every frame from the first on."""
    compare = _COMPARISONS[name]
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
