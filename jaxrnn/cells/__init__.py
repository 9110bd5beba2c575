"""Mathematics free of ONNX: the LSTM, GRU and RNN cells, the skeleton that they share, derivatives, fast products."""

from jaxrnn.cells.activations import Activation, parse_activations
from jaxrnn.cells.chunks import in_blocks, in_chunks, recomputing
from jaxrnn.cells.depthwise import depthwise, is_depthwise
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
    "depthwise",
    "in_blocks",
    "in_chunks",
    "is_depthwise",
    "matrix_products_in",
    "narrowed",
    "parse_activations",
    "product",
    "recomputing",
    "run",
    "run_direction",
]
