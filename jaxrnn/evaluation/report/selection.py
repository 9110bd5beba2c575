"""The rows that a page holds: all of a corpus, or of a large one errors, the worst and the best, and some at random."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from jaxrnn.evaluation.journal import OK, Row
from jaxrnn.evaluation.metrics import Column
from jaxrnn.evaluation.results import Results

#: Recordings in the table of files, and those in the plots.
ROWS, DRAWN = 10_000, 10_000

#: The seed of the recordings in the plots.
SEED = 0


def select(results: Results, main: Column | None, examples: int) -> tuple[list[Row], list[bool]]:
    """Rows in the order of ids, and whether each is in the plots.

    Args:
        results: of the system.
        main: the column that ranks recordings.
        examples: recordings to listen to, of the worst and of the best each.
    """
    count = results.document["recordings"]["all"]
    if count <= max(ROWS, DRAWN):
        rows = results.table.to_dicts()
        return rows, [True] * len(rows)
    is_good = (results.column("status") == OK).to_numpy()
    failed = np.flatnonzero(~is_good)[:ROWS]
    order = np.flatnonzero(is_good)
    if main is not None:
        order = order[ranking(results.column(main.name).to_numpy()[order], main)]
    drawn = np.random.default_rng(SEED).choice(count, DRAWN, replace=False)
    places = np.unique(np.concatenate([failed, order[:ROWS], order[len(order) - min(len(order), examples) :], drawn]))
    rows = rows_at(results, "place", places.tolist())
    chosen = set(drawn.tolist())
    return rows, [row.pop("place") in chosen for row in rows]


def ranking(values: np.ndarray, main: Column) -> np.ndarray:
    """The places of values that are numbers, worst first; lowest first where neither direction is better."""
    worse = -values if main.higher_is_better is False else values
    order = np.argsort(worse, kind="stable")
    return order[: len(order) - int(np.isnan(values).sum())]


def rows_at(results: Results, key: str, values: Collection[Any]) -> list[Row]:
    """Rows by their ``place`` in the table or by another column."""
    return results.scan.with_row_index("place").filter(_is_in(key, values)).collect().to_dicts()


def _is_in(key: str, values: Collection[Any]) -> Any:
    import polars

    return polars.col(key).is_in(list(values))
