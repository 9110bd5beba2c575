"""Recurrent mathematics, free of ONNX: the LSTM, GRU and RNN cells, and the sequence skeleton that they share."""

from jaxrnn.cells.activations import Activation, parse_activations
from jaxrnn.cells.gru import GRU
from jaxrnn.cells.lstm import LSTM
from jaxrnn.cells.recurrence import Cell, Weights, run, run_direction
from jaxrnn.cells.rnn import RNN

__all__ = ["GRU", "LSTM", "RNN", "Activation", "Cell", "Weights", "parse_activations", "run", "run_direction"]
