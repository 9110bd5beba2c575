"""Timing: contenders take turns in one process, round after round, after a check of their outputs."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxrnn.comparison import agree, compare

Call = Callable[[], Any]
Outputs = Mapping[str, Any]

#: The largest difference between float32 outputs of two engines, relative to the largest magnitude of an output (at
#: least 1): sums of about 10^3 products, carried through about 10^3 steps.
AGREEMENT = 1e-4

_trials = [True]

#: The largest number of calls in a sample.
MOST_CALLS = 1000


class DisagreementError(RuntimeError):
    """An error for contenders with different outputs, which are not timed."""


@dataclass(frozen=True)
class Timing:
    """Microseconds a call: the median, and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Timing:
        """Return the timing of samples in microseconds; a single sample is its own median and quartiles."""
        if len(samples) == 1:
            return cls(samples[0], samples[0], samples[0])
        low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(statistics.median(samples), low, high)


@dataclass(frozen=True)
class Effort:
    """The number of rounds, and the least seconds of a turn; the mean of the calls in a turn is one sample."""

    rounds: int
    seconds: float


def largest_difference(outputs: Mapping[str, Outputs], agreement: float = math.inf) -> float:
    """Return the largest difference between a contender's outputs and the first outputs, relative as in `AGREEMENT`.

    ``outputs`` are arrays by contender and name. A DisagreementError names a missing output, a different shape, a
    difference above ``agreement``, or an output of which no finite number was compared.
    """
    (first, expected), *others = outputs.items()
    worst = 0.0
    for contender, values in others:
        if missing := [name for name in expected if name not in values]:
            raise DisagreementError(f"{contender} has none for output {missing[0]!r}, {first} has a value")
        found = [
            compare(name, _wide(values[name]), _wide(value), atol=agreement, rtol=0.0, scaled=True)
            for name, value in expected.items()
        ]
        apart = [math.inf if each.max_abs is None else each.max_abs / max(1.0, each.scale or 0.0) for each in found]
        if not agree(found):
            reasons = "; ".join(f"{each.name!r}: {each.reason}" for each in found if not each.ok)
            raise DisagreementError(
                f"{contender} differs from {first} by {max(apart, default=0.0):.3g}, but at most {agreement:g} is "
                f"expected; nothing is timed that is not the same ({reasons or 'there is no output'})"
            )
        worst = max(worst, *apart)
    return worst


def check(what: str, outputs: Mapping[str, Outputs], agreement: float = AGREEMENT) -> float | None:
    """Check that all contenders have equal outputs, and return the largest difference; None for a single contender.

    A DisagreementError names the contender that differs, or of which nothing was compared.
    """
    if len(outputs) < 2:
        return None
    try:
        return largest_difference(outputs, agreement)
    except DisagreementError as error:
        raise DisagreementError(f"{what}: {error}") from error


def _wide(value: Any) -> np.ndarray:
    return np.asarray(value).astype(np.float64)


def interleaved(calls: Mapping[str, Call], effort: Effort) -> dict[str, list[float]]:
    """Time the contenders in turns, so that a slow moment of the machine affects all contenders.

    Returns microseconds per call by contender, one sample per round; equal indices are of the same round.
    """
    counts = {name: _warm(call, effort.seconds) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(effort.rounds):
        # Every second round is reversed, so that no contender always follows the same contender.
        for name in list(calls)[:: -1 if turn % 2 else 1]:
            if counts[name] > 1:
                calls[name]()  # fetches code and weights into the caches again
            samples[name].append(_sample(calls[name], counts[name]))
    return samples


def _warm(call: Call, seconds: float) -> int:
    """Warm up, and return the number of calls that fill a turn."""
    call()
    count = max(1, min(MOST_CALLS, round(seconds * 1e6 / max(_sample(call, 1), 0.1))))
    _sample(call, min(count, 100))
    return count


def _sample(call: Call, count: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(count):
        call()
    return (time.perf_counter_ns() - start) / count / 1000


def fastest(makers: Sequence[Callable[[], Any]], argument: Any) -> Any:
    """Return the fastest of several forms of one contender in a short trial.

    Each maker creates a form, the simplest first; ``argument`` is the argument of the call.
    """
    if len(makers) == 1 or not _trials[-1]:
        return makers[0]()
    forms = [make() for make in makers]
    calls = {str(index): (lambda form=form: form(argument)) for index, form in enumerate(forms)}
    samples = interleaved(calls, Effort(rounds=7, seconds=0.003))
    return forms[int(min(samples, key=lambda name: statistics.median(samples[name])))]


@contextlib.contextmanager
def no_trials() -> Iterator[None]:
    """Let `fastest` take the first form without a trial inside the context, in which the start is timed."""
    _trials.append(False)
    try:
        yield
    finally:
        _trials.pop()
