"""Functions of JAX functions: cutting a step into stages, running it at sequence speed, and streaming."""

from __future__ import annotations

from jaxrnn.transforms.hoist import scan
from jaxrnn.transforms.stages import Stages, cut
from jaxrnn.transforms.streaming import Flushed, Streamed, StreamInput, StreamState, stream

__all__ = ["Flushed", "Stages", "StreamInput", "StreamState", "Streamed", "cut", "scan", "stream"]
