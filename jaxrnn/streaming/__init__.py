"""`stream`: a function over all of time becomes one over a pulse of frames, exactly."""

from __future__ import annotations

from jaxrnn.stepper import Flushed
from jaxrnn.streaming.streamed import Streamed
from jaxrnn.streaming.transform import stream

__all__ = ["Flushed", "Streamed", "stream"]


def __dir__() -> list[str]:
    return sorted(__all__)
