"""The cost of bounded futures: the error of bounded outputs against the outputs of the offline network."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn._files.messages import short_repr
from jaxrnn.errors import InputError, is_count
from jaxrnn.onnx.reading import labelled
from jaxrnn.steps.specs import Arrays
from jaxrnn.steps.stepspec import milliseconds
from jaxrnn.streaming import Streamed

#: A future that is as long as the recording.
ALL = "all"


@short_repr
@dataclass(frozen=True)
class FutureLoss:
    """The error of an output with a bounded future, over recordings.

    The error of a recording is ``10 log10(sum |y|^2 / sum |y - z|^2)`` in decibels, where y is the output of the
    offline network, and z is the output with a bounded future: the number of decibels by which the error is below the
    output.

    Attributes:
        future: the later frames, or ``"all"`` for the offline limit, in which `future` and `past` are as long as the
            recording and only roundings differ.
        output: the name of the output.
        delay: the frames of the output before frame 0, for streams with the smallest pulse; None for ``"all"``, and for
            an output that is known only at the end.
        delay_ms: the delay in milliseconds; None without a rate.
        latency_ms: the pulse and the delay in milliseconds; None without a rate.
        mean: the mean in decibels over recordings in which the outputs differ; infinite if all outputs are equal.
        worst: the smallest number of decibels.
        worst_recording: the name of that recording.
        count: the number of compared recordings.
        equal: the number of compared recordings in which no element differs.
        silent: the number of recordings in which the output is zero or has no element, which are not compared.
    """

    future: int | str
    output: str
    delay: int | None
    delay_ms: float | None
    latency_ms: float | None
    mean: float
    worst: float
    worst_recording: str
    count: int
    equal: int
    silent: int


def compare_futures(
    model: Any,
    recordings: Mapping[str, Arrays] | Iterable[tuple[str, Arrays]],
    futures: Sequence[int | str],
    *,
    params: Any = None,
    against: Any = None,
    rate: float | None = None,
    symbol: str | None = None,
    past: int | None = None,
    block: int | None = None,
    **options: Any,
) -> tuple[FutureLoss, ...]:
    """Measure the loss of bounded futures against the offline network, for each future and output.

    Example::

        recordings = {"a": {"input": np.ones((4, 2), np.float32)}}
        losses = jaxrnn.verification.compare_futures(offline, recordings, [0, 5, "all"], rate=100)
        print({each.future: (each.delay_ms, each.mean) for each in losses})

    Args:
        model: the model, or a `jaxrnn.audio.Waveform`.
        recordings: dicts of the inputs of whole recordings, by the name of the recording, or pairs of name and dict.
        futures: frames, as in `Model.stream`, or ``"all"``.
        params: the parameters of the bounded networks, such as those of a tuned student; by default those of the model.
        against: the offline network, with its own parameters; by default the model.
        rate: frames of the inputs in a second, for delays in milliseconds.
        symbol: as in `Model.stream`.
        past: as in `Model.stream`.
        block: as in `Model.stream`.
        options: further options of `Model.stream`: ``dims``, ``multiple``, ``constraints``.

    Raises:
        InputError: an argument or a recording does not fit, a bounded output is not finite where the output of the
            offline network is, or nothing was compared.
        StreamError: the model cannot be bounded.
    """
    for future in futures:
        if future != ALL and not is_count(future):
            raise InputError(f"a future is a whole number of frames from 0 on or {ALL!r}, not {future!r}")
    if not futures:
        raise InputError("give at least one future")
    given = {**({} if symbol is None else {"symbol": symbol}), **options}
    streams: dict[tuple[bool, int], Streamed] = {}  # whether it is the limit, and frames
    reference, params = model if against is None else against, model.params if params is None else params
    measured: dict[tuple[int | str, str], _Measured] = collections.defaultdict(_Measured)
    pairs: Any = recordings.items() if isinstance(recordings, Mapping) else recordings
    with jax.default_matmul_precision("highest"):
        for recording, inputs in pairs:
            with labelled(recording) if recording else labelled(model.label):
                known = reference.apply(reference.params, dict(inputs))
                for future in futures:
                    key = (True, _limit(model, inputs)) if future == ALL else (False, int(future))
                    if key not in streams:
                        bounds = {"future": key[1], "past": past, "block": block}
                        if future == ALL:
                            bounds |= {"past": key[1], "block": None}
                        streams[key] = model.stream(**given, **bounds)
                    found = streams[key].offline(params, dict(inputs))
                    for name, value in known.items():
                        if jnp.issubdtype(value.dtype, jnp.inexact):
                            measured[future, name].add(recording, name, np.asarray(found[name]), np.asarray(value))
    if not measured:
        raise InputError("nothing was compared: there are no recordings, or no output has floats")
    if nothing := dict.fromkeys(name for (_, name), each in measured.items() if not each.errors):
        raise InputError(f"nothing was compared of {', '.join(nothing)}: the offline outputs have no energy")
    return tuple(
        each.loss(future, name, None if future == ALL else streams[False, int(future)], rate)
        for (future, name), each in measured.items()
    )


class _Measured:
    """The errors of an output, by recording, in decibels."""

    def __init__(self) -> None:
        self.errors: dict[str, float] = {}
        self.silent = 0

    def add(self, recording: str, name: str, found: np.ndarray, known: np.ndarray) -> None:
        """Compare the output of a recording; elements that are not finite offline do not count."""
        wide = np.complex128 if np.iscomplexobj(known) else np.float64
        if found.shape != known.shape:
            raise InputError(f"output {name!r} is {found.shape} with a bounded future, and {known.shape} offline")
        finite = np.isfinite(known.astype(wide))
        known, found = known.astype(wide)[finite], found.astype(wide)[finite]
        if not np.isfinite(found).all():
            raise InputError(f"output {name!r} with a bounded future is not finite where the offline output is")
        energy, error = (float(np.sum(np.abs(each) ** 2)) for each in (known, found - known))
        if energy == 0:
            self.silent += 1
        else:
            self.errors[recording] = math.inf if error == 0 else 10 * math.log10(energy / error)

    def loss(self, future: int | str, name: str, streamed: Streamed | None, rate: float | None) -> FutureLoss:
        """Return the loss over all recordings."""
        differing = [each for each in self.errors.values() if math.isfinite(each)]
        mean = math.fsum(differing) / len(differing) if differing else math.inf
        worst = min(self.errors, key=self.errors.__getitem__)
        delay = delay_ms = latency_ms = None
        if streamed is not None:
            output = next(each for each in streamed.spec.outputs if each.name == name)
            delay = output.delay
            if delay is not None and output.rate is not None and rate is not None:
                delay_ms = milliseconds(delay, rate, output.rate)
                latency_ms = round(milliseconds(streamed.pulse, rate) + delay_ms, 6)
        counts = {"count": len(self.errors), "equal": len(self.errors) - len(differing), "silent": self.silent}
        return FutureLoss(
            future, name, delay, delay_ms, latency_ms, mean, self.errors[worst], worst_recording=worst, **counts
        )


def _limit(model: Any, inputs: Arrays) -> int:
    """Return a power of two from the number of frames of a recording on, so that few functions are compiled."""
    sizes = [size for each in model.inputs if each.name in inputs for size in np.shape(inputs[each.name])]
    frames = max(sizes, default=1)
    if (hop := getattr(getattr(model, "frames", None), "hop", None)) is not None:  # the network runs over spectra
        frames = -(-frames // hop) + model.frames.size // hop
    return 1 << max(0, frames - 1).bit_length()
