"""The driver of an evaluation of very many recordings without sound: units, then table, summary and page.

``python -m benchmarks.driver --rows 10_000_000`` prints the time, the peak memory and the sizes of files of each part.
Workers return rows of empty units at once, so that only the driver is measured.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl

from jaxrnn.audio.corpus import from_manifest
from jaxrnn.evaluation.cluster import WorkerPool, Workers
from jaxrnn.evaluation.evaluator import Evaluator, Unit, Units
from jaxrnn.evaluation.metrics import build_metric
from jaxrnn.evaluation.parts import Parts, Row, frame_of, row_of
from jaxrnn.evaluation.report import write_report
from jaxrnn.evaluation.results import TABLE, results_of, write_results

RATE, BATCH, SECONDS = 16_000, 16, 360


def write_manifest(path: Path, count: int) -> Path:
    """Write a table of recordings that do not exist."""
    number = pl.int_range(count)
    name = pl.format("speaker{}/{}", number // 1000, number.cast(pl.String).str.zfill(8))
    columns = {
        "id": name,
        "path": pl.format("/corpus/noisy/{}.flac", name),
        "reference": pl.format("/corpus/clean/{}.flac", name),
        "snr": number % 21 - 5,
        "noise": pl.lit(pl.Series(["street", "babble", "car", "rain"])).gather(number % 4),
    }
    pl.DataFrame().select(**columns).write_parquet(path)
    return path


class Empty(Evaluator):
    """An evaluator without computation."""

    environment: Mapping[str, Any] = {"device": "none"}  # pyright: ignore[reportIncompatibleMethodOverride]

    def __init__(self):
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def rows(self, unit: Unit) -> list[Row]:
        """Return rows of realistic size."""
        values = np.random.default_rng(unit.index).normal(10, 5, (len(unit.items), 3)).tolist()
        return [
            row_of(item, length / unit.rate, None) | {"si_sdr": one, "si_sdr_improvement": two, "level": three}
            for item, length, (one, two, three) in zip(unit.items, unit.lengths, values, strict=True)
        ]

    def compute(self, units: Any) -> Iterator[tuple[Unit, list[Row]]]:
        """Compute the units in this process."""
        return ((unit, self.rows(unit)) for unit in units)


def main() -> None:
    """Measure all parts, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--through-workers", type=int, default=10_000, help="units that go through workers")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as made:
        _measure(Path(made, "out"), options)


def _measure(out: Path, options: argparse.Namespace) -> None:
    parts, done = Parts(out, {}), 0
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as other:  # keeps its memory out of the figures
        manifest = other.submit(write_manifest, out.with_suffix(".parquet"), options.rows).result()
    before, began = resident(), time.perf_counter()

    def said(what: str, *files: Path) -> None:
        nonlocal began
        sizes = {file.name: sum(part.stat().st_size for part in _parts(file)) / 1e6 for file in files}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        print(f"{what}: {time.perf_counter() - began:.1f} s, peak {peak:.0f} MB", sizes or "", flush=True)
        began = time.perf_counter()

    def kept(computing: Any, some: Any) -> None:
        nonlocal done
        for unit, rows in computing.compute(some):
            parts.finish(unit.index, frame_of(rows, unit.places))
            done += 1

    corpus = from_manifest(manifest)
    said("the list of recordings", manifest)
    print(f"it holds {(resident() - before) / len(corpus):.0f} bytes for each")
    units = Units(corpus, np.full(len(corpus), RATE * SECONDS), RATE, BATCH)
    with parts.writing():
        with WorkerPool(Workers(options.workers), Empty) as pool:
            parts.begin(pool.environment)
            said("workers are ready")
            first = time.perf_counter()
            kept(pool, (units[index] for index in range(min(len(units), options.through_workers))))
            print(f"through workers: {done / (time.perf_counter() - first):.0f} units a second")
        said(f"{done} units through workers")
        kept(Empty(), (units[index] for index in range(done, len(units))))
        said(f"{done} units in parts", out / "parts")
    again = Parts(out, {})
    assert len(again.finished()) == len(units)
    said("the parts read again")
    metrics = [build_metric(name) for name in ("si_sdr", "si_sdr_improvement", "level")]
    results = results_of("scale", again.scan(), corpus, metrics, slices=["snr", "noise"])
    write_results(results, out)
    said("table and summary", out / TABLE, out / "results.json")
    write_report(results, out / "report.html")
    said("page", out / "report.html")


def resident() -> int:
    """Return the bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _parts(path: Path) -> Iterator[Path]:
    return path.iterdir() if path.is_dir() else iter([path])


if __name__ == "__main__":
    main()
