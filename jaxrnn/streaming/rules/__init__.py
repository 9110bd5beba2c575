"""Streaming rules: functions that run primitives on the frames of a step.

`jaxrnn.streaming.register` adds a rule.
"""

from __future__ import annotations

from jaxrnn.jaxprs.primitives import named
from jaxrnn.streaming.interpreter import RULES, register
from jaxrnn.streaming.rules import (
    awaiting,  # noqa: F401 - these families add their rules
    control,
    elementwise,
    movement,
    pairs,  # noqa: F401
    recurrence,
    reductions,
    time,
    windows,
)

__all__ = ["RULES"]

#: Primitives whose rule also runs without streamed operands.
_ALWAYS = {*named("call"), *named("checkpoint"), "dim_as_value"}

for _family in (elementwise, movement, time, windows, reductions, recurrence, control):
    for _name, _rule in _family.RULES.items():
        register(_name, _rule, always=_name in _ALWAYS)
