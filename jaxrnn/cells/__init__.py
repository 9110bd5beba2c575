"""Recurrent mathematics without ONNX: LSTM, GRU and RNN cells, layers, derivatives, and matrix products."""

from jaxrnn.cells.bodies import GRU, LSTM, RNN
from jaxrnn.cells.cell import Activation, Cell, Weights, parse_activations
from jaxrnn.cells.chunks import in_blocks, in_chunks, recomputing
from jaxrnn.cells.convolution import convolve
from jaxrnn.cells.products import by_platform, is_plain, matrix_products_in, plain_forms, product, product_operands
from jaxrnn.cells.recurrence import run, run_direction, run_layer

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "Activation",
    "Cell",
    "Weights",
    "by_platform",
    "convolve",
    "in_blocks",
    "in_chunks",
    "is_plain",
    "matrix_products_in",
    "parse_activations",
    "plain_forms",
    "product",
    "product_operands",
    "recomputing",
    "run",
    "run_direction",
    "run_layer",
]
