"""The counts of recordings, read from the units in a folder of results: tables do not hold them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrnn.errors import InputError
from jaxrnn.evaluation.journal import Row
from jaxrnn.evaluation.metrics.classification import class_accuracy
from jaxrnn.evaluation.metrics.detection import detection
from jaxrnn.evaluation.metrics.protocol import Metric

#: The options of a detector's metric that are kept with its results.
_OPTIONS = ("threshold", "rates", "bins", "low", "high")


def counting_metrics(descriptions: Sequence[Mapping[str, Any]]) -> tuple[Metric, ...]:
    """The metrics that count, from the descriptions of metrics in ``results.json``."""
    metrics = []
    for entry in descriptions:
        if entry.get("kind") == "detection":
            options = {option: entry[option] for option in _OPTIONS}
            metrics.append(detection(entry["name"], entry.get("output"), **options))
        elif entry.get("kind") == "class_accuracy":
            metrics.append(class_accuracy(entry["name"], entry.get("output")))
    return tuple(metrics)


def with_counts(folder: Path, rows: Sequence[Row], metrics: Sequence[Metric]) -> list[Row]:
    """Rows of a table with the counts of their recordings, as far as the files of units are there.

    Raises:
        InputError: a file cannot be read.
    """
    keys = {metric.counts for metric in metrics if metric.counts}
    counts: dict[str, Row] = {}
    for path in sorted((folder / "units").glob("*.json")) if keys else ():
        try:
            for row in json.loads(path.read_text()):
                counts[row["id"]] = {key: row[key] for key in keys if key in row}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} cannot be read: {error}") from error
    return [row | counts.get(row["id"], {}) for row in rows]
