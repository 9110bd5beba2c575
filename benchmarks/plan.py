"""The options of a run, and the timing of a case: compare the outputs of all contenders, then time the contenders."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.results import Row, row_of
from benchmarks.timing import AGREEMENT, Call, Effort, Outputs, check, interleaved

#: Functions that time a case, by name. A case has one row, or a few rows that must be timed together.
Cases = dict[str, Callable[[], Iterable[Row]]]


@dataclass(frozen=True)
class Plan:
    """The options of a run.

    Attributes:
        quick: fewer rounds and fewer cases, for seconds instead of minutes.
        threads: the number of threads that an engine may use.
        only: patterns of `fnmatch`; the name of a case must contain a match. Empty for all cases.
        platform: the platform of JAX in fresh processes; None to use JAX's default.
        rounds: the largest number of rounds; None to use the number that the benchmark sets.
        minutes: no case begins after so many minutes; None for no limit.
    """

    quick: bool = False
    threads: int = 1
    only: tuple[str, ...] = ()
    platform: str | None = "cpu"
    rounds: int | None = None
    minutes: float | None = None

    def effort(self, rounds: int) -> Effort:
        """Return the effort for these rounds, reduced by the options of the run."""
        if self.quick:
            return Effort(min(rounds, 3), 0.002)
        return Effort(rounds if self.rounds is None else min(rounds, self.rounds), 0.02)

    def wants(self, name: str) -> bool:
        """Return True if the options select a case."""
        return not self.only or any(fnmatch.fnmatch(name.lower(), f"*{pattern.lower()}*") for pattern in self.only)

    def chosen(self, cases: Cases) -> Cases:
        """Return the selected cases."""
        return {name: make for name, make in cases.items() if self.wants(name)}


def timed(
    name: str,
    group: str,
    calls: Mapping[str, Call],
    effort: Effort,
    *,
    outputs: Mapping[str, Outputs] | None = None,
    agreement: float = AGREEMENT,
    each: Mapping[str, float] | float = 1.0,
    refused: Mapping[str, str] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Row:
    """Check that all contenders return equal outputs, and time the contenders.

    Args:
        name: as `Row.name`.
        group: as `Row.group`.
        calls: by contender.
        effort: the number of rounds and the length of a turn.
        outputs: the outputs of each contender; by default the results of one call.
        agreement: the largest difference between outputs.
        each: the number of steps or streams in a call, to show the time of each; for all contenders, or by contender.
        refused: as `Row.refused`.
        facts: as `Row.facts`.

    Raises:
        DisagreementError: two contenders give different outputs.
    """
    given = outputs if outputs is not None else {contender: call() for contender, call in calls.items()}
    apart = check(name, given, agreement)
    parts = each if isinstance(each, Mapping) else dict.fromkeys(calls, each)
    samples = {
        contender: [time / parts.get(contender, 1.0) for time in times]
        for contender, times in interleaved(calls, effort).items()
    }
    return row_of(name, group, samples, difference=apart, refused=dict(refused or {}), facts=dict(facts or {}))
