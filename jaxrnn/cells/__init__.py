"""Recurrent mathematics without ONNX: LSTM, GRU and RNN cells, layers, derivatives, and matrix products."""

from jaxrnn.cells.cell import GRU, LSTM, RNN, Activation, Cell, Weights, parse_activations
from jaxrnn.cells.convolution import convolve
from jaxrnn.cells.forms import (
    by_platform,
    in_blocks,
    in_chunks,
    is_plain,
    matrix_products_in,
    plain_forms,
    product,
    product_operands,
    recomputing,
)
from jaxrnn.cells.recurrence import existing, run_direction, run_layer

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "Activation",
    "Cell",
    "Weights",
    "by_platform",
    "convolve",
    "existing",
    "in_blocks",
    "in_chunks",
    "is_plain",
    "matrix_products_in",
    "parse_activations",
    "plain_forms",
    "product",
    "product_operands",
    "recomputing",
    "run_direction",
    "run_layer",
]
