"""The HTML page of an ONNX file: graph, state, streams and parameters."""

from __future__ import annotations

from jaxrnn.inspection.page import write_page

__all__ = ["write_page"]
__dir__ = __all__.copy
