"""Many live streams through one function: a model in steps, or anything streamed."""

from __future__ import annotations

from jaxrnn.streams.pool import Streams

__all__ = ["Streams"]
