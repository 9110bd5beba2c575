"""Jaxprs as ONNX graphs: one rule for each primitive, through a writer that keeps graphs in their simplest form."""

from __future__ import annotations

from jaxrnn.lowering.lower import Argument, lower

__all__ = ["Argument", "lower"]


def __dir__() -> list[str]:
    return sorted(__all__)
