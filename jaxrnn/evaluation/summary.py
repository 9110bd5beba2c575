"""What a table of results says as a whole and by slices; a column at a time is in memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrnn.evaluation.journal import Row
from jaxrnn.evaluation.metrics import Pool
from jaxrnn.evaluation.slices import slice_by
from jaxrnn.evaluation.statistics import Sums, pooled, summarise
from jaxrnn.evaluation.tables import BLOCK, load_polars, plain_text

if TYPE_CHECKING:
    import polars


def summary_of(
    scan: polars.LazyFrame,
    rows: Iterable[Row],
    measured: Sequence[str],
    pools: Mapping[str, Pool],
    slices: Sequence[str],
) -> dict[str, Any]:
    """The parts of the document of `Results` that are made of its rows.

    Args:
        scan: the table.
        rows: the same with the counts of metrics, in any order.
        measured: the columns of metrics.
        pools: of the metrics that count, by name.
        slices: columns to group by.
    """
    count = scan.select("id").collect().height
    parts = [(None, None, np.arange(count))]
    parts += [(name, label, places) for name in slices for label, places in slice_by(_column(scan, name)).items()]
    summaries: list[dict[str, Any]] = [{"recordings": {"all": len(places)}, "summary": {}} for *_, places in parts]
    for key, name in (("failed", "error"), ("noted", "notes")):
        has = _column(scan, name).is_not_null().to_numpy()
        for summary, (*_, places) in zip(summaries, parts, strict=True):
            summary["recordings"][key] = int(has[places].sum())
    seconds = _column(scan, "seconds").fill_null(0.0).to_numpy()
    for summary, (*_, places) in zip(summaries, parts, strict=True):
        summary["recordings"]["seconds"] = float(seconds[places].sum())
    for name in measured:
        values = _column(scan, name).to_numpy()
        for summary, (*_, places) in zip(summaries, parts, strict=True):
            summary["summary"][name] = summarise(values[places])
    corpora = [_corpora(scan, rows, pool, [places for *_, places in parts]) for pool in pools.values()]
    for number, summary in enumerate(summaries):
        summary["corpus"] = {name: corpus[number] for name, corpus in zip(pools, corpora, strict=True)}
    whole, *sliced = summaries
    whole["slices"] = {
        name: [
            {"label": label, **summary}
            for summary, (column, label, _) in zip(sliced, parts[1:], strict=True)
            if column == name
        ]
        for name in slices
    }
    return whole


def _column(scan: polars.LazyFrame, name: str) -> polars.Series:
    return scan.select(name).collect()[name]


def _corpora(
    scan: polars.LazyFrame, rows: Iterable[Row], pool: Pool, parts: Sequence[np.ndarray]
) -> list[dict[str, Any]]:
    """The values of all rows of each part together; the first, which is the whole, has its curve."""

    def counts() -> Iterator[tuple[int, Any]]:
        """The places of recordings that are counted in the table, with their counts."""
        counted = (row for row in rows if row.get(pool.key) is not None)
        while block := list(itertools.islice(counted, BLOCK)):
            places = ids.search_sorted(pl.Series([plain_text(row["id"]) for row in block])).to_list()
            yield from zip(places, (row[pool.key] for row in block), strict=True)

    pl, ids = load_polars(), _column(scan, "id")
    is_counted = np.zeros(len(ids), bool)
    for place, _ in counts():
        is_counted[place] = True
    sums, numbers = [], np.full((len(parts), len(ids)), -1, np.int32)
    for number, part in enumerate(parts):
        counted = part[is_counted[part]]
        numbers[number, counted] = np.arange(len(counted))
        sums.append(Sums(pool, len(counted)))
    for place, each in counts():
        for number in np.flatnonzero(numbers[:, place] >= 0):
            sums[number].add(int(numbers[number, place]), each)
    corpora: list[dict[str, Any]] = [{"values": pooled(pool, each.groups)} for each in sums]
    corpora[0]["curve"] = {} if pool.curve is None else pool.curve(sums[0].groups.sum(0))
    return corpora
