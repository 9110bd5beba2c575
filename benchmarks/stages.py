"""The stages of a start in wall time. Events of JAX's monitoring separate tracing, lowering and compiling."""

from __future__ import annotations

import time
from collections.abc import Iterable

#: The stages in order: imports; reading the file; tracing in `stream`; the initial state; tracing and lowering of the
#: step; compiling in XLA; and the first call.
STAGES = ("import", "load", "trace", "init", "lower", "compile", "first frame")

#: JAX's events by stage; reading from its persistent cache is a part of compiling.
EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "lower",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}

Interval = tuple[float, float]


class Stages:
    """The ends of the stages of a process, and the intervals in which JAX reported work."""

    def __init__(self) -> None:
        self._marks: list[tuple[str, float]] = []
        self._heard: dict[str, list[Interval]] = {"lower": [], "compile": []}

    def listen(self) -> None:
        """Record JAX's events from now on."""
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
        """Return the seconds of each stage.

        Tracing, lowering and compiling inside the first frame are separate stages; in other stages they are included.
        ``began`` is the start of the process on the monotonic clock, which all processes share.
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
        """Return the seconds of compiling in all stages."""
        return covered(self._heard["compile"], float("-inf"), float("inf"))


def covered(intervals: Iterable[Interval], start: float, end: float) -> float:
    """Return the length of the union of intervals between start and end."""
    total, reached = 0.0, start
    for first, last in sorted(intervals):
        first, last = max(first, reached), min(last, end)
        if last > first:
            total += last - first
            reached = last
    return total
