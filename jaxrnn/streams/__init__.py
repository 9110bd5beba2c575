"""Live streams, one or many, through one function: a model in steps, or anything streamed."""

from __future__ import annotations

from jaxrnn.streams.pool import Streams
from jaxrnn.streams.runner import Runner

__all__ = ["Runner", "Streams"]
