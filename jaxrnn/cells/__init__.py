"""Recurrent mathematics without ONNX: LSTM, GRU and RNN cells, their skeleton and derivatives, and matrix products."""

from jaxrnn.cells.activations import Activation, parse_activations
from jaxrnn.cells.cell import Cell, Weights
from jaxrnn.cells.chunks import in_blocks, in_chunks, recomputing
from jaxrnn.cells.convolution import convolve
from jaxrnn.cells.gru import GRU
from jaxrnn.cells.layers import run_layer
from jaxrnn.cells.lstm import LSTM
from jaxrnn.cells.platforms import by_platform, is_plain, plain_forms
from jaxrnn.cells.products import matrix_products_in, product, product_operands
from jaxrnn.cells.recurrence import run, run_direction
from jaxrnn.cells.rnn import RNN

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
