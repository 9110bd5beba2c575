"""The state before the first frame: nearly all of it is known, and what is not is a small program."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr

from jaxrnn.jaxprs.equations import evaluate
from jaxrnn.jaxprs.moves import split
from jaxrnn.steps.stepspec import Layout, State


class Initial:
    """How the state before the first frame is made.

    Args:
        layout: of the state.
        closed: computes its entries, in the order of the layout, from leaves of the parameters and from the inputs that
            are constant in time.
    """

    def __init__(self, layout: Layout, closed: ClosedJaxpr):
        self.layout, self.closed = layout, closed

    @functools.cached_property
    def _split(self) -> tuple[list[np.ndarray | None], ClosedJaxpr, list[bool]]:
        return split(self.closed)

    @property
    def depends(self) -> list[bool]:
        """For each argument, whether the state depends on it."""
        return self._split[2]

    @functools.cached_property
    def known(self) -> State | None:
        """The state as NumPy arrays, if all of it is known."""
        values, *_ = self._split
        if any(value is None for value in values):
            return None
        return self.layout.pack(dict(zip(self.layout.places, values, strict=True)))

    def __call__(self, arguments: Sequence[Any]) -> State:
        """The state."""
        values, rest, _ = self._split
        computed = iter(evaluate(rest, arguments))
        entries = [next(computed) if value is None else value for value in values]
        return self.layout.pack(dict(zip(self.layout.places, entries, strict=True)))
