"""Writing new weights: the tensors of an ONNX file are replaced, and every other byte is kept."""

from __future__ import annotations

from jaxrnn.onnx.writing.files import write_model

__all__ = ["write_model"]
