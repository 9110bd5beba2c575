"""Recurrent mathematics without ONNX: LSTM, GRU and RNN cells, layers, derivatives, and matrix products."""
