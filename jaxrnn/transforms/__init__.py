"""Functions of JAX functions: cutting a step into stages, and running it over time at sequence speed."""

from __future__ import annotations

from jaxrnn.transforms.hoist import scan
from jaxrnn.transforms.stages import Stages, cut

__all__ = ["Stages", "cut", "scan"]
