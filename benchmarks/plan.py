"""What a run was asked for, and how one row comes about: opened peers, outputs compared, contenders timed."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.results import Row, row_of
from benchmarks.timing import AGREEMENT, Call, Effort, Outputs, check, interleaved

#: By the name of a case, what times it. A case is one thing to time, or a few that must be timed together.
Cases = dict[str, Callable[[], Iterable[Row]]]


@dataclass(frozen=True)
class Plan:
    """What a run was asked for.

    Attributes:
        quick: fewer rounds and fewer cases, for seconds instead of minutes.
        threads: how many an engine may use.
        only: patterns, one of which the name of a case must contain; none for all cases. They are those of `fnmatch`.
        platform: on which JAX runs in fresh processes; None for its own choice.
        rounds: how often each contender has its turn at most; None for as often as each benchmark takes it.
    """

    quick: bool = False
    threads: int = 1
    only: tuple[str, ...] = ()
    platform: str | None = "cpu"
    rounds: int | None = None

    def effort(self, rounds: int, seconds: float = 0.02) -> Effort:
        """How long to time, where this is what a result that counts takes."""
        if self.quick:
            return Effort(min(rounds, 3), min(seconds, 0.002))
        return Effort(rounds if self.rounds is None else min(rounds, self.rounds), seconds)

    def wants(self, name: str) -> bool:
        """Whether the case is among those asked for."""
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
    """See that all contenders give the same, and time them.

    Args:
        name: as `Row.name`.
        group: as `Row.group`.
        calls: by contender.
        effort: how long to time.
        outputs: what each contender gives; by default, what a call returns.
        agreement: what outputs may differ by.
        each: of how many things, steps or streams, a call is made, where the time of one is wanted; for all, or by
            contender.
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
