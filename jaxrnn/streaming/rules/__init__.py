"""One rule for each primitive, in families: how it runs on the frames of one step (`jaxrnn.streaming.register`)."""

from __future__ import annotations

from jaxrnn.streaming.registry import RULES, register
from jaxrnn.streaming.rules import (
    accumulation,
    branches,
    calls,
    contraction,
    convolution,
    elementwise,
    indexing,
    layers,
    loops,
    movement,
    pooling,
    positions,
    time,
)

__all__ = ["RULES"]

_FAMILIES = (
    elementwise,
    movement,
    time,
    indexing,
    convolution,
    pooling,
    contraction,
    accumulation,
    positions,
    loops,
    layers,
    branches,
    calls,
)

#: Calls are inlined, and lengths counted, whether or not a stream enters.
_ALWAYS = {*calls.INLINED, "dim_as_value"}

for _family in _FAMILIES:
    for _name, _rule in _family.RULES.items():
        register(_name, _rule, always=_name in _ALWAYS)
