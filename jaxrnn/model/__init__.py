"""Models as pure functions: loading, parameters, state, steps, scans, streams, and writing."""

from __future__ import annotations

from jaxrnn.model.model import Model

__all__ = ["Model"]
__dir__ = __all__.copy
