"""Operators of the domain ``com.microsoft``: fused and quantised forms that ONNX Runtime writes."""

from __future__ import annotations

from jaxrnn.onnx.operators.microsoft import fused, quantized

OPERATORS = fused.OPERATORS | quantized.OPERATORS
