"""The facts about a streaming function, for programs and for people."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import jax

from jaxrnn.messages import describe
from jaxrnn.stepspec import StepSpec
from jaxrnn.streaming.plan import Plan
from jaxrnn.streaming.values import Chunk


def _streams(plan: Plan) -> list[Chunk]:
    return [output for output in plan.outputs if isinstance(output, Chunk) and output.reach is not None]


def look_ahead_of(plan: Plan, multiple: int) -> int:
    """Input frames after its own place that an output frame depends on, at most."""
    return max((_latest(output, multiple) for output in _streams(plan)), default=0)


def _latest(output: Chunk, multiple: int) -> int:
    assert output.reach is not None
    rate, last = output.timeline.rate / multiple, output.reach.last * multiple
    places = [Fraction(frame) / rate for frame in range(rate.numerator)]
    return max(0, *(math.floor(place + last) - math.floor(place) for place in places))


def receptive_field_of(plan: Plan, multiple: int) -> int | None:
    """Input frames that an output frame depends on, at most; None if all of the past."""
    spans = []
    for output in _streams(plan):
        assert output.reach is not None
        if output.reach.first is None:
            return None
        spans.append(math.floor((output.reach.last - output.reach.first) * multiple) + 1)
    return max(spans, default=0)


def table_of(spec: StepSpec, delay: Any, rate: Any) -> str:
    """The facts as lines of text.

    Args:
        spec: the facts.
        delay: the delay of every output, in the tree of the outputs.
        rate: the rate of every output, likewise.
    """
    names = [jax.tree_util.keystr(path) or "output" for path, _ in _paths(delay)]
    delays = [value for _, value in _paths(delay)]
    rates = [value for _, value in _paths(rate)]
    field = spec.receptive_field
    lines = [
        f"pulse            {spec.pulse} input frame(s); the smallest that fits: {spec.smallest_pulse}",
        f"look-ahead       {spec.look_ahead} input frame(s)",
        f"receptive field  {'all of the past' if field is None else f'{field} input frame(s)'}",
        "",
        f"{'output':<24} {'frames a pulse':>14} {'rate':>8} {'delay':>8}",
    ]
    for name, delayed, frames in zip(names, delays, rates, strict=True):
        if delayed is None:
            lines.append(f"{name:<24} {'at the end':>14} {'':>8} {'':>8}")
        else:
            lines.append(f"{name:<24} {frames * spec.pulse!s:>14} {frames!s:>8} {delayed:>8}")
    state = spec.state
    total = sum(entry.nbytes for entry in state)
    width = max((len(entry.name) for entry in state), default=5)
    lines += ["", f"{'state':<{width}}  {'kind':<10} {'dtype':<8} {'shape':<20} {'bytes':>8}"]
    for entry in state:
        dtype, _, shape = describe(entry).partition("[")
        lines.append(f"{entry.name:<{width}}  {entry.kind:<10} {dtype:<8} {'[' + shape:<20} {entry.nbytes:>8,}")
    lines.append(f"{len(state)} arrays, {total:,} bytes")
    return "\n".join(line.rstrip() for line in lines)


def _paths(tree: Any) -> list[tuple[Any, Any]]:
    return jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda item: item is None)[0]
