"""Streaming rules: functions that run primitives on the frames of a step, each registered where it is defined.

`jaxrnn.streaming.register` adds a rule.
"""

from __future__ import annotations

from jaxrnn.streaming.interpreter import RULES
from jaxrnn.streaming.rules import (  # noqa: F401
    awaiting,
    control,
    elementwise,
    keys,
    movement,
    pairs,
    postponed,
    recurrence,
    reductions,
    time,
    windows,
)

__all__ = ["RULES"]
