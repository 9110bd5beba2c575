"""`stream`: a function over all of time becomes one over a pulse of frames, exactly."""

from __future__ import annotations

from jaxrnn.streaming.facts import StreamInput, StreamState
from jaxrnn.streaming.streamed import Flushed, Streamed
from jaxrnn.streaming.transform import stream

__all__ = ["Flushed", "StreamInput", "StreamState", "Streamed", "stream"]


def __dir__() -> list[str]:
    return sorted(__all__)
