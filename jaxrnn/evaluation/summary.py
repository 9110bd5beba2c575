"""What the rows of an evaluation say together, and what the rows of each of its slices do."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxrnn.evaluation.journal import Row
from jaxrnn.evaluation.metrics.protocol import Column, Metric
from jaxrnn.evaluation.slices import check_slices, slice_by
from jaxrnn.evaluation.statistics import Resampling, pooled, summarise


def overview(
    rows: Sequence[Row],
    metrics: Sequence[Metric],
    columns: Sequence[Column],
    *,
    slices: Sequence[str] = (),
    resampling: Resampling | None = None,
) -> dict[str, Any]:
    """Everything of rows that is not in one of them.

    Args:
        rows: as `Evaluation.rows` gives them.
        metrics: by which they were judged.
        columns: those of the metrics.
        slices: columns by which results are told apart.
        resampling: how intervals are made.

    Returns:
        ``recordings``, a dictionary of counts (``all``, ``failed``, ``noted``) and ``seconds``; ``summary``, by column
        a `Summary` as a dictionary; ``corpus``, by metric that counts, ``values`` (by column value, low and high) and a
        ``curve``; and ``slices``, by column a list of slices, each with its ``label`` and the same, without curves.

    Raises:
        InputError: a slice is by a column that there is not.
    """
    how = resampling or Resampling()
    check_slices(slices, [key for row in rows for key in row])
    rows = sorted(rows, key=lambda row: row["id"])
    cut = {
        name: [
            {"label": label, **_said([rows[place] for place in places], metrics, columns, how, curves=False)}
            for label, places in slice_by([row.get(name) for row in rows]).items()
        ]
        for name in slices
    }
    return {**_said(rows, metrics, columns, how, curves=True), "slices": cut}


def _said(
    rows: Sequence[Row], metrics: Sequence[Metric], columns: Sequence[Column], how: Resampling, *, curves: bool
) -> dict[str, Any]:
    corpus = {}
    for metric in metrics:
        if metric.pool is None or metric.counts is None:
            continue
        counts = [row[metric.counts] for row in rows if row.get(metric.counts) is not None]
        values = pooled(metric.pool, counts, how)
        corpus[metric.name] = {"values": {column: dataclasses.asdict(value) for column, value in values.items()}}
        if curves:
            corpus[metric.name]["curve"] = metric.pool.curve(counts)
    return {
        "recordings": {
            "all": len(rows),
            "failed": sum(row.get("error") is not None for row in rows),
            "noted": sum(row.get("notes") is not None for row in rows),
            "seconds": sum(row.get("seconds") or 0.0 for row in rows),
        },
        "summary": {
            column.name: summarise([row.get(column.name) for row in rows], how).as_dict() for column in columns
        },
        "corpus": corpus,
    }
