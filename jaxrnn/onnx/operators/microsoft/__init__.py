"""Operators of ONNX Runtime (domain ``com.microsoft``) that exported and optimized recurrent models carry.

Source of their definitions: ContribOperators.md of ONNX Runtime, and what it computes.
"""

from __future__ import annotations

from jaxrnn.onnx.operators.microsoft import (
    activations,
    normalization,
    products,
    quantized_elements,
    quantized_lstm,
    quantized_products,
)

OPERATORS = (
    activations.OPERATORS
    | normalization.OPERATORS
    | products.OPERATORS
    | quantized_elements.OPERATORS
    | quantized_lstm.OPERATORS
    | quantized_products.OPERATORS
)
