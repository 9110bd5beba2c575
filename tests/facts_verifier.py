"""The verifier of a stream's facts, against facts measured from outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxrnn.streaming import Streamed
from jaxrnn.streaming.measuring import WholeFunction, measured


def check_facts(
    function: Callable[..., Any],
    streamed: Streamed,
    *,
    larger: bool,
    total: int | None = None,
    nan: bool = True,
    compile: bool = True,
    something: bool = True,
) -> None:
    """Hold the facts of a stream against what is measured.

    Args:
        function: on whole recordings.
        streamed: the same as a stream.
        larger: whether the facts may be larger.
        total: the least number of input frames of a recording; None for some 36, or ten of the smallest pulses.
        nan: whether frames become NaN, too.
        compile: False for a function that is not JAX's.
        something: False for outputs that no frame changes.
    """
    found = measured(WholeFunction(function, streamed, compile=compile), total, nan=nan)
    field = max(each.receptive_field for each in found)
    if something:
        assert field, "nothing is measured: no output changes with a frame"
    ahead = max(each.look_ahead for each in found)
    delays = [getattr(kind, "delay", None) for kind in streamed._plan.facts.outputs]
    least = [each.delay for each in found]
    said = streamed.look_ahead, streamed.receptive_field, delays
    # None stands for all of the past: a recurrence may forget it before its first frame is reached.
    seen = ahead, (None if streamed.receptive_field is None and field > 4 else field), least
    if larger:
        assert said[0] >= ahead, (said, seen)
        assert said[1] is None or said[1] >= field, (said, seen)
        assert all(delay is None or delay >= each for delay, each in zip(delays, least, strict=True)), (said, seen)
    else:
        assert said == seen, f"said {said}, measured {seen}"
