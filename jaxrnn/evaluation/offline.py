"""A stepper over whole recordings: chunk after chunk with its state, exact from the first frame to the last."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import jax

from jaxrnn._files.arguments import VALUE, argument
from jaxrnn.errors import InputError
from jaxrnn.evaluation.networks import Network
from jaxrnn.evaluation.recordings import SAMPLES
from jaxrnn.evaluation.systems import MAX_FRAMES, Piece, check_rate
from jaxrnn.steps.recordings import time_axis
from jaxrnn.steps.stepper import Stepper
from jaxrnn.steps.stepspec import OutputSpec


class Offline:
    """A stepper over recordings of any length, in chunks.

    What comes out is what it gives on the whole recording; of an offline model, ``Offline(model.stream(),
    model.params)``, what the model gives. A recording's arrays have time in front, and else the shape of the inputs
    without time and batch.

    Args:
        stepper: a streamed function, a compiled file, a model in steps, or one's own `Stepper`.
        params: its parameters; None for the stepper's own.
        rate: samples a second, where a recording is sound.

    Attributes:
        rate: as above.
        before: no frames of the past: the state holds them.

    Raises:
        StateError: the model forgets its state, so it has no steps; `Model.stream` turns it into a streamed function.
        InputError: the object is no stepper, it needs parameters, an input has no frames, or no output has.
    """

    before = 0

    def __init__(self, stepper: Stepper, params: Any = None, *, rate: int = 16_000):
        check_rate(rate, "rate")
        self.rate = rate
        self._network = network = Network(stepper, params)
        spec = network.spec
        if spec.pulse > MAX_FRAMES:
            raise InputError(f"a pulse has at most {MAX_FRAMES:,} frames, not {spec.pulse:,}")
        for each in spec.inputs:
            if time_axis(spec, each) is None:
                raise InputError(
                    f"{spec.label}: {each.as_input} has no time axis, and recordings have no such array; bind it, with "
                    f"{argument('static', {each.name: VALUE}, 'jaxrnn.load(path)')}, or in a function of your own"
                )
        if not self._outputs:
            raise InputError(f"{spec.label}: no output has a frame for every frame of time")

    @property
    def identity(self) -> dict[str, Any]:
        """The stepper, its parameters and the rate."""
        return {"rate": self.rate, **self._network.identity}

    @property
    def multiple(self) -> int:
        """A chunk holds whole pulses, the input frames of a step."""
        return self._network.spec.pulse

    @property
    def _outputs(self) -> list[OutputSpec]:
        spec = self._network.spec
        return [each for each in spec.outputs if not each.at_end and time_axis(spec, each) is not None]

    @property
    def delay(self) -> dict[str, int]:
        """As the stepper's spec has it."""
        return {each.name: each.delay or 0 for each in self._outputs}

    @property
    def per_frame(self) -> dict[str, Fraction]:
        """As the stepper's spec has it; of a model in steps, each step gives a frame."""
        return {each.name: Fraction(1) if each.rate is None else each.rate for each in self._outputs}

    def padded(self, frames: int) -> int:
        """Nothing is put after a recording: the stepper is flushed."""
        return frames

    def expected(self, output: str, frames: int) -> int | None:
        """All that comes is the recording's."""
        return None

    def start(self, batch: int) -> Any:
        """The state before the first frame, with the batch in front."""
        return self._network.start(batch)

    def run(
        self, carry: Any, parts: Mapping[str, jax.Array], frames: jax.Array, *, ending: bool
    ) -> tuple[dict[str, Piece], Any]:
        """One chunk; the streams that end in it are flushed."""
        spec, arrays = self._network.spec, {}
        for each in spec.inputs:
            name = SAMPLES if set(parts) == {SAMPLES} and len(spec.inputs) == 1 else each.name
            if name not in parts:
                raise InputError(f"{spec.label}: the recordings hold {', '.join(parts)}, but no {each.name!r}")
            arrays[each.name] = parts[name]
        with self._network.types():
            return self._advance(self._params, carry, arrays, frames, ending=ending)

    @functools.cached_property
    def _params(self) -> Any:
        return self._network.packed({})

    @functools.cached_property
    def _advance(self) -> Any:
        return jax.jit(self._network.advance, static_argnames="ending")
