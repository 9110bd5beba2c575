"""`stream`: a function over all of time becomes one over a pulse of frames, exactly."""

from __future__ import annotations

from jaxrnn.transforms.streaming.facts import StreamInput, StreamState
from jaxrnn.transforms.streaming.streamed import Flushed, Streamed
from jaxrnn.transforms.streaming.transform import stream

__all__ = ["Flushed", "StreamInput", "StreamState", "Streamed", "stream"]
