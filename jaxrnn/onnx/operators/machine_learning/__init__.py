"""Operators of the domain ``ai.onnx.ml``."""

from __future__ import annotations

from jaxrnn.onnx.operators.machine_learning import features, trees, vectors

OPERATORS = features.OPERATORS | trees.OPERATORS | vectors.OPERATORS
