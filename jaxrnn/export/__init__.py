"""Export of models, streams, steps and functions as ONNX and LiteRT files, and verification of these files."""

from __future__ import annotations

from jaxrnn.export import rules as _rules  # noqa: F401  (registers them)
from jaxrnn.export.conversions import Quantization
from jaxrnn.export.engines import FileRunner
from jaxrnn.export.examples import write_example
from jaxrnn.export.files import Exported, ExportedGraph, export_onnx
from jaxrnn.export.litert.files import export_litert
from jaxrnn.export.verification import ExportReport, verify_export

__all__ = [
    "ExportReport",
    "Exported",
    "ExportedGraph",
    "FileRunner",
    "Quantization",
    "export_litert",
    "export_onnx",
    "verify_export",
    "write_example",
]
__dir__ = __all__.copy
