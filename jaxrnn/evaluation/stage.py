"""One network of a chain: what it is given of a frame, and what its output is."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxrnn.errors import InputError

if TYPE_CHECKING:
    from jaxrnn.model import Model

#: What a network can be given of a frame, and what its output can be.
TAKES = ("samples", "magnitude", "spectrum")
GIVES = ("samples", "spectrum", "mask", "result")


@dataclass(frozen=True)
class Stage:
    """One network of a chain.

    Attributes:
        model: it takes one frame a step.
        takes: ``"samples"`` of the frame, the ``"magnitude"`` of its spectrum, or the ``"spectrum"`` itself, with real
            and imaginary part last.
        gives: ``"samples"`` or a ``"spectrum"`` in place of the frame's, a ``"mask"`` to multiply the spectrum with
            (real or complex), or a ``"result"``, which is an output of the chain and changes nothing.
        input: the model's input; by default its only one.
        output: the model's output; by default its only one.
    """

    model: Model
    takes: str = "samples"
    gives: str = "result"
    input: str | None = None
    output: str | None = None

    def __post_init__(self) -> None:
        for value, known, what in ((self.takes, TAKES, "takes"), (self.gives, GIVES, "gives")):
            if value not in known:
                raise InputError(f"{self.model.label}: {what} must be one of {', '.join(known)}, not {value!r}")
        self.names  # noqa: B018 - refuses what does not fit

    @functools.cached_property
    def names(self) -> tuple[str, str]:
        """The model's input and output."""
        return (
            _only(self.model, "input", self.input, self.model.spec.inputs),
            _only(self.model, "output", self.output, self.model.spec.outputs),
        )


def _only(model: Model, what: str, name: str | None, infos: Sequence[Any]) -> str:
    names = [info.name for info in infos]
    if name is None and len(names) == 1:
        return names[0]
    if name is None or name not in names:
        asked = f"has no {what} {name!r}" if name is not None else f"has {len(names)} {what}s besides its state"
        raise InputError(f"{model.label} {asked}: name one of {', '.join(names)} as {what}")
    if what == "input" and len(names) > 1:
        others = ", ".join(other for other in names if other != name)
        raise InputError(f"{model.label} also takes {others}: bind it with static")
    return name
