"""`stream`: a function over all of time becomes one over a pulse of frames, exactly."""

from __future__ import annotations

from jaxrnn.streaming import rules as _rules  # noqa: F401  (registers them)
from jaxrnn.streaming.facts import StreamInput, StreamState
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.registry import register
from jaxrnn.streaming.streamed import Flushed, Streamed
from jaxrnn.streaming.transform import stream
from jaxrnn.streaming.values import Chunk, FinalValue

__all__ = ["Chunk", "FinalValue", "Flushed", "Pass", "StreamInput", "StreamState", "Streamed", "register", "stream"]
