"""A pure step as an ONNX file: its state in and out by name, its flush, its first state, and what they are."""

from __future__ import annotations

from jaxrnn.exporting.export import export_onnx
from jaxrnn.exporting.exported import Exported, ExportedGraph

__all__ = ["Exported", "ExportedGraph", "export_onnx"]


def __dir__() -> list[str]:
    return sorted(__all__)
