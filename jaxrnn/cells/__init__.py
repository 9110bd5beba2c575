"""Recurrent mathematics, free of ONNX: the LSTM, GRU and RNN cells, the skeleton that they share, and derivatives."""

from jaxrnn.cells.activations import Activation, parse_activations
from jaxrnn.cells.chunks import in_chunks, recomputing
from jaxrnn.cells.gru import GRU
from jaxrnn.cells.lstm import LSTM
from jaxrnn.cells.products import matrix_products_in, narrowed, product
from jaxrnn.cells.recurrence import Cell, Weights, run, run_direction
from jaxrnn.cells.rnn import RNN

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "Activation",
    "Cell",
    "Weights",
    "in_chunks",
    "matrix_products_in",
    "narrowed",
    "parse_activations",
    "product",
    "recomputing",
    "run",
    "run_direction",
]
