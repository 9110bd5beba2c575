"""The HTML page of an ONNX file, and the model card: graph, state, streams and parameters."""

from __future__ import annotations

from jaxrnn.inspection.card import write_card
from jaxrnn.inspection.page import write_page

__all__ = ["write_card", "write_page"]
__dir__ = __all__.copy
