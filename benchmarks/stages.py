"""The parts of a start, one after another in wall time, and what JAX did in them.

The calls are those of a user; what a call does inside is told apart by the events of JAX's monitoring.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

#: In the order in which they come. Python starts and packages are imported; the file is read; `stream` traces it; the
#: state is made; the step is traced and lowered; XLA compiles it; it runs.
STAGES = ("import", "load", "trace", "init", "lower", "compile", "first frame")

#: JAX's events by stage; reading from its persistent cache is a part of compiling.
EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "lower",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}

Interval = tuple[float, float]


class Stages:
    """Marks that a process sets after each of its stages, and the intervals in which JAX said that it was at work."""

    def __init__(self) -> None:
        self._marks: list[tuple[str, float]] = []
        self._heard: dict[str, list[Interval]] = {"lower": [], "compile": []}

    def listen(self) -> None:
        """From now on, hear JAX's events."""
        import jax

        def heard(event: str, duration_secs: float, **_: object) -> None:
            if event in EVENTS:
                now = time.monotonic()
                self._heard[EVENTS[event]].append((now - duration_secs, now))

        jax.monitoring.register_event_duration_secs_listener(heard)

    def done(self, stage: str) -> None:
        """Record the end of a stage."""
        self._marks.append((stage, time.monotonic()))

    def report(self, began: float) -> dict[str, float]:
        """Seconds of each stage, and of all.

        Tracing, lowering and compiling inside of the first frame are stages of their own; those of the other stages
        are parts of these.

        Args:
            began: when the process was started, by the monotonic clock, which is the same in all processes.
        """
        seconds: dict[str, float] = {}
        start = began
        for stage, end in self._marks:
            if stage == "first frame":
                compiling = covered(self._heard["compile"], start, end)
                either = covered((*self._heard["compile"], *self._heard["lower"]), start, end)
                seconds |= {"lower": either - compiling, "compile": compiling, stage: end - start - either}
            else:
                seconds[stage] = end - start
            start = end
        return seconds

    def compiling(self) -> float:
        """Seconds of compiling in all stages."""
        return covered(self._heard["compile"], float("-inf"), float("inf"))


def covered(intervals: Iterable[Interval], start: float, end: float) -> float:
    """How much of the time between start and end the intervals cover, which may overlap and hold each other."""
    total, reached = 0.0, start
    for first, last in sorted(intervals):
        first, last = max(first, reached), min(last, end)
        if last > first:
            total += last - first
            reached = last
    return total
