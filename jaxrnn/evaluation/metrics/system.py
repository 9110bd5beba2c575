"""Metrics and the outputs of a system: which each judges, at which rate, how late, and whether they fit."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from jaxrnn._files.messages import near
from jaxrnn.errors import InputError
from jaxrnn.evaluation.corpus import Item, columns_of
from jaxrnn.evaluation.journal import COLUMNS
from jaxrnn.evaluation.metrics.protocol import Metric
from jaxrnn.evaluation.systems import System


def output_of(metric: Metric, system: System) -> str:
    """The output that a metric judges: the one it names, or the system's first."""
    return metric.output or next(iter(system.delay))


def frame_rate(system: System, output: str) -> int | float:
    """Frames a second of an output; an integer where it is whole."""
    # A hop of 1/3 as a float is meant as a third.
    rate = system.rate * Fraction(system.per_frame[output]).limit_denominator(1_000_000)
    return int(rate) if rate.denominator == 1 else float(rate)


def latency(system: System) -> dict[str, dict[str, Any]]:
    """The latency of each output, however fast the machine.

    Returns:
        By output: ``delay_frames``, the frames of the output before its frame 0; ``delay_milliseconds``, the same as
        time; and ``block_milliseconds``, the least that the system takes at once. A live stream waits for the sum of
        both.
    """
    return {
        output: {
            "delay_frames": int(delay),
            "delay_milliseconds": 1000 * int(delay) / frame_rate(system, output),
            "block_milliseconds": 1000 * system.multiple / system.rate,
        }
        for output, delay in system.delay.items()
    }


def check_metrics(metrics: Sequence[Metric], system: System, corpus: Sequence[Item]) -> None:
    """Check that the metrics fit the outputs of a system and the references of a corpus.

    Raises:
        InputError: a metric's output does not exist, its rate does not fit, two columns have one name, or a metric
            needs references and there are none.
    """
    taken: dict[str, str] = dict.fromkeys(COLUMNS, "the table of results")
    for column in columns_of(corpus):
        if taken.setdefault(column, "the manifest") != "the manifest":
            raise InputError(f"the manifest's column {column!r} has a name that the results need: rename it")
    names = [metric.name for metric in metrics]
    for metric in metrics:
        if names.count(metric.name) > 1:
            raise InputError(f"two metrics are called {metric.name!r}: give one of them another name with 'called'")
        output = output_of(metric, system)
        if output not in system.delay:
            raise InputError(
                f"the metric {metric.name} judges the output {output!r}, which the system does not have"
                f"{near(output, system.delay)}; there are: {', '.join(system.delay)}"
            )
        if metric.needs_reference and not any(item.reference for item in corpus):
            raise InputError(
                f"the metric {metric.name} needs references, but no recording has one: give a folder of them, or a "
                "manifest with a column 'reference'"
            )
        if metric.needs_source and system.per_frame[output] != 1:
            raise InputError(f"the metric {metric.name} needs an output with a frame for each of the recording's")
        metric.start(frame_rate(system, output))
        keys = [column.name for column in metric.columns] + ([metric.pool.key] if metric.pool else [])
        for key in dict.fromkeys([metric.name, *keys]):
            owner = taken.setdefault(key, f"the metric {metric.name}")
            if owner != f"the metric {metric.name}" or keys.count(key) > 1:
                raise InputError(
                    f"the metric {metric.name} gives a column {key!r}, and so does {owner}: give it another name with "
                    "'called'"
                )
    by_key = {f"the metric {metric.name}": f"{metric.name}_" for metric in metrics if metric.by_key}
    for metric, prefix in by_key.items():
        for key, owner in taken.items():
            if key.startswith(prefix) and owner in {"the manifest", *by_key}:
                raise InputError(
                    f"{metric} may give columns {prefix}*, and {owner} has {key!r}: give it another name with 'called'"
                )
