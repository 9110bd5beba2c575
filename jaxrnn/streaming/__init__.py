"""The stream transform: turns a function over a whole recording into an exact function over pulses of frames."""

from __future__ import annotations

from jaxrnn.jaxprs.primitives import Entry
from jaxrnn.steps.stepper import Flushed
from jaxrnn.streaming import rules as _rules  # noqa: F401  (registers them)
from jaxrnn.streaming.checking import check
from jaxrnn.streaming.futures import Bounded, BoundedPlace, bounded
from jaxrnn.streaming.interpreter import register
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.streamed import Streamed
from jaxrnn.streaming.transform import stream
from jaxrnn.streaming.values import Chunk, FinalValue

__all__ = [
    "Bounded",
    "BoundedPlace",
    "Chunk",
    "Entry",
    "FinalValue",
    "Flushed",
    "Pass",
    "Streamed",
    "bounded",
    "check",
    "register",
    "stream",
]
__dir__ = __all__.copy
