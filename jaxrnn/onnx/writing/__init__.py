"""From new weights back to a file: the tensors of an ONNX file replaced, and every other byte as it was."""

from __future__ import annotations

from jaxrnn.onnx.writing.files import write_model

__all__ = ["write_model"]
