"""Metrics checked against what they are to judge, before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence

from jaxrnn.errors import InputError
from jaxrnn.evaluation.corpus import Item
from jaxrnn.evaluation.metrics.latency import frame_rate
from jaxrnn.evaluation.metrics.protocol import Metric
from jaxrnn.evaluation.systems import System
from jaxrnn.settings.functions import near

#: Columns that every table of results begins with.
RESERVED = ("id", "path", "reference", "seconds", "status", "error", "notes")


def output_of(metric: Metric, system: System) -> str:
    """The output that a metric judges: the one it names, or the system's first."""
    return metric.output or next(iter(system.delay))


def check_metrics(metrics: Sequence[Metric], system: System, corpus: Sequence[Item]) -> None:
    """See that every metric can judge what it is to judge.

    Raises:
        InputError: a metric's output does not exist, its rate does not fit, two things of a table have one name, or
            references are needed and there are none.
    """
    taken: dict[str, str] = dict.fromkeys(RESERVED, "the table of results")
    for item in corpus:
        for column in item.columns:
            if taken.setdefault(column, "the manifest") != "the manifest":
                raise InputError(f"the manifest's column {column!r} has a name that results need: call it otherwise")
    for metric in metrics:
        output = output_of(metric, system)
        if output not in system.delay:
            raise InputError(
                f"the metric {metric.name} judges the output {output!r}, which there is not"
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
        keys = [column.name for column in metric.known_columns] + ([metric.counts] if metric.counts else [])
        for key in dict.fromkeys([metric.name, *keys]):
            owner = taken.setdefault(key, f"the metric {metric.name}")
            if owner != f"the metric {metric.name}" or keys.count(key) > 1:
                raise InputError(
                    f"the metric {metric.name} gives a column {key!r}, and so does {owner}: set its option called"
                )
    names = [metric.name for metric in metrics]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two metrics are called {name!r}: set the option called of one")
