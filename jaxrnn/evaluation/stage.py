"""One network of a chain: what it takes of a frame, and what its output is."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import jax

from jaxrnn._files.messages import brief
from jaxrnn.errors import InputError
from jaxrnn.evaluation.networks import Network
from jaxrnn.steps.stepper import Stepper
from jaxrnn.steps.stepspec import OutputSpec

#: What a network can take of a frame, and what its output can be.
TAKES = ("samples", "magnitude", "spectrum")
GIVES = ("samples", "spectrum", "mask", "result")


@brief
@dataclass(frozen=True)
class Stage:
    """One network of a chain.

    Attributes:
        stepper: a model in steps, a streamed function without look-ahead, a compiled file, or one's own `Stepper`: it
            takes one frame and gives one.
        params: its parameters; None for the stepper's own.
        takes: ``"samples"`` of the frame, the ``"magnitude"`` of its spectrum, or the ``"spectrum"`` itself, with real
            and imaginary part last.
        gives: ``"samples"`` or a ``"spectrum"`` in place of the frame's, a ``"mask"`` to multiply the spectrum with
            (real or complex), or a ``"result"``, which is an output of the chain and changes nothing.
        input: the stepper's input; by default its only one.
        output: the stepper's output; by default its only one.

    Raises:
        StateError: the model forgets its state, so it has no steps; `Model.stream` turns it into a streamed function.
        InputError: the object is no stepper, it needs parameters, or it does not give a frame for every frame at once.
    """

    stepper: Stepper
    params: Any = field(default=None, repr=False, compare=False)
    _: KW_ONLY
    takes: str = "samples"
    gives: str = "result"
    input: str | None = None
    output: str | None = None

    def __post_init__(self) -> None:
        label = self.network.spec.label
        for value, known, what in ((self.takes, TAKES, "takes"), (self.gives, GIVES, "gives")):
            if value not in known:
                raise InputError(f"{label}: {what} must be one of {', '.join(known)}, not {value!r}")
        output = next(each for each in self.network.spec.outputs if each.name == self.names[1])
        if self.network.spec.streams and (output.delay != 0 or output.rate != 1):
            raise InputError(
                f"{label}: a stage gives a frame for every frame at once, but {_lateness(output)}; run it alone, as "
                "Offline(stepper, params)"
            )

    @functools.cached_property
    def network(self) -> Network:
        """The stepper with its parameters."""
        return Network(self.stepper, self.params)

    @functools.cached_property
    def names(self) -> tuple[str, str]:
        """The stepper's input and output."""
        spec = self.network.spec
        return (
            _only(spec.label, "input", self.input, [each.name for each in spec.inputs]),
            _only(spec.label, "output", self.output, [each.name for each in spec.outputs]),
        )

    @property
    def identity(self) -> dict[str, Any]:
        """The stepper and its parameters, and its place in the chain."""
        return {"takes": self.takes, "gives": self.gives, "names": self.names, **self.network.identity}

    def check(self, size: int) -> dict[str, int]:
        """Hold frames of so many samples against the input: the sizes of the dimensions that it leaves open.

        Raises:
            InputError: they do not fit.
        """
        bins = size // 2 + 1
        elements = {"samples": size, "magnitude": bins, "spectrum": 2 * bins}[self.takes]
        (each,) = self.network.spec.inputs
        sizes = self.network.fitted(each, elements).sizes
        return {name: size for name, size in zip(each.shape or (), sizes, strict=True) if isinstance(name, str)}

    def packed(self, size: int) -> Any:
        """The parameters as `advance` takes them, for frames of so many samples."""
        return self.network.packed(self.check(size))

    def advance(
        self, params: Any, state: Any, features: jax.Array, counts: jax.Array, *, ending: bool
    ) -> tuple[jax.Array, Any]:
        """Features ``[batch, time, ...]``, as `Network.advance` takes them: the output ``[batch, time, ...]``."""
        name, output = self.names
        pieces, state = self.network.advance(params, state, {name: features}, counts, ending=ending)
        return pieces[output].values[:, : features.shape[1]], state


def _lateness(output: OutputSpec) -> str:
    if output.rate is None:
        return f"{output.name!r} has no frames of time"
    return f"{output.name!r} comes {output.delay} frame(s) late, {output.rate} of them for each input frame"


def _only(label: str, what: str, name: str | None, names: Sequence[str]) -> str:
    if name is None and len(names) == 1:
        return names[0]
    if name is None or name not in names:
        asked = f"has no {what} {name!r}" if name is not None else f"has {len(names)} {what}s besides its state"
        raise InputError(f"{label} {asked}: name one of {', '.join(names)} as {what}")
    if what == "input" and len(names) > 1:
        others = ", ".join(other for other in names if other != name)
        raise InputError(f"{label} also takes {others}: bind it with static")
    return name
