"""Imported models as Flax NNX modules, which can be trained, frozen, saved and nested like other modules.

`Module` is a whole model, `Cell` is a step of a model for ``flax.nnx.RNN``, and `named` filters imported parameters.
"""

from __future__ import annotations

from jaxrnn.nnx.cell import Cell
from jaxrnn.nnx.module import Module, RecurrentState, named

__all__ = ["Cell", "Module", "RecurrentState", "named"]
__dir__ = __all__.copy
