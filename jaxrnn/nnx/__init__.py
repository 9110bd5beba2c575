"""Imported models as Flax NNX modules: trained, frozen, saved and nested as any other.

`Module` is a whole model, `Cell` one step of it for ``flax.nnx.RNN``, `named` a filter of parameters by name.
"""

from __future__ import annotations

from jaxrnn.nnx.cell import Cell
from jaxrnn.nnx.filters import Named, named
from jaxrnn.nnx.module import Module, RecurrentState

__all__ = ["Cell", "Module", "Named", "RecurrentState", "named"]


def __dir__() -> list[str]:
    return sorted(__all__)
