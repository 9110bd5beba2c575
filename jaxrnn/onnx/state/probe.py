"""Following the elements of a graph with open dimensions: which sizes fit, and what grows with which dimension."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxrnn.errors import LimitError
from jaxrnn.onnx.interface import is_batch_name, spec_of
from jaxrnn.onnx.program import Program
from jaxrnn.onnx.state.dataflow import follow
from jaxrnn.onnx.state.flows import DataFlow, NotFollowedError
from jaxrnn.specs import ArraySpec, Dimension

#: Sizes to try for open dimensions until the graph accepts them; the first one is long enough for loops to be loops.
_SIZES = (16, 64, 256, 512, 1024, 4096)
_BATCH_SIZE = 2


class Probe:
    """A graph, followed with sizes that fit it.

    Attributes:
        symbols: the open dimensions of the inputs.
        sizes: their sizes.
        flow: the flow with these sizes; where none fit, as much of it as can be followed.
    """

    def __init__(
        self, program: Program, inputs: Sequence[ArraySpec], static: Mapping[str, np.ndarray], sources: Sequence[str]
    ):
        self._program, self._static = program, static
        self.symbols = list(dict.fromkeys(s for info in inputs for s in info.shape or () if isinstance(s, str)))
        #: The sizes that bound inputs have where a file leaves a dimension open.
        self._bound: dict[str, int] = {}
        for info in map(spec_of, program.block.inputs):
            if info.name in static:
                sizes = zip(info.shape or (), static[info.name].shape, strict=False)
                self._bound.update({name: size for name, size in sizes if name in self.symbols})
        self.sizes, self.flow = self._fit(sources)
        self._longer: dict[frozenset[str], DataFlow | None] = {}

    def _fit(self, sources: Sequence[str]) -> tuple[dict[str, int], DataFlow]:
        trials = []
        for size in _SIZES if self.symbols else _SIZES[:1]:
            trials.append({name: _BATCH_SIZE if is_batch_name(name) else size for name in self.symbols})
            trials.append(dict.fromkeys(self.symbols, size))
        if self._bound:
            trials = [*({**sizes, **self._bound} for sizes in trials), *trials]
        for sizes in trials:
            try:
                return sizes, follow(self._program, sizes, self._static, sources, strict=True)
            except NotFollowedError:
                continue
            except LimitError:
                if sizes == trials[0]:
                    raise
                break  # larger sizes exceed the limits too
        return trials[0], follow(self._program, trials[0], self._static, sources, strict=False)

    def longer(self, symbol: str) -> DataFlow | None:
        """The flow with the class of a dimension twice as long, or None if that does not fit."""
        first = self.dimensions[symbol]
        return self._doubled(frozenset(name for name, other in self.dimensions.items() if other == first))

    def _doubled(self, names: frozenset[str]) -> DataFlow | None:
        if names not in self._longer:
            sizes = {name: size * 2 if name in names else size for name, size in self.sizes.items()}
            try:
                self._longer[names] = follow(self._program, sizes, self._static, (), strict=True)
            except (NotFollowedError, LimitError):
                self._longer[names] = None
        return self._longer[names]

    @functools.cached_property
    def dimensions(self) -> dict[str, str]:
        """By open dimension, the first name in its class: the nodes need all dimensions of a class to be equal.

        Some exporters name the batch of each input differently. One of them alone cannot grow; all of them can.
        """
        first = {symbol: symbol for symbol in self.symbols}
        tied = [symbol for symbol in self.symbols if self._doubled(frozenset((symbol,))) is None]
        while tied:
            name, *others = tied
            # A dimension with a single valid size cannot grow in any set.
            trials = [set(tied), *({*tied} - {other} for other in others), *({name, other} for other in others)]
            equal = next((names for names in trials if self._doubled(frozenset(names)) is not None), {name})
            for other in others:
                if other in equal and self._doubled(frozenset(equal - {other})) is not None:
                    equal.remove(other)
            first.update(dict.fromkeys(equal, name))
            tied = [symbol for symbol in tied if symbol not in equal]
        return first

    @functools.cached_property
    def time(self) -> tuple[str, ...]:
        """The open dimensions that a recurrence or a window slides along."""
        flows = {symbol: self.longer(symbol) for symbol in self.symbols}
        return tuple(s for s, flow in flows.items() if flow is not None and flow.lengths != self.flow.lengths)

    def grows_with_time(self, index: int) -> bool:
        """Whether the site with this number has more steps where time is longer."""
        flows = map(self.longer, self.time)
        return any(flow is not None and flow.sites[index].length != self.flow.sites[index].length for flow in flows)

    def carry_shape(self, index: int) -> tuple[Dimension, ...]:
        """The shape of what the site with this number carries, with open dimensions by name."""
        sizes = self.flow.sites[index].final.shape or ()
        shape: list[Any] = list(sizes)
        for symbol in dict.fromkeys(self.dimensions.values()):
            longer = self.longer(symbol)
            others = sizes if longer is None else longer.sites[index].final.shape or ()
            for axis, (size, other) in enumerate(zip(sizes, others, strict=True)):
                if other != size:
                    factor = (other - size) / self.sizes[symbol]
                    shape[axis] = symbol if factor == 1 else f"{factor:g}*{symbol}"
        return tuple(shape)
