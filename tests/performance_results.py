"""Results of benchmarks that nobody measured."""

from __future__ import annotations

from typing import Any

from benchmarks.results import Result, Row


def made_up(benchmark: str, rows: list[Row], processor: str = "P", **more: Any) -> Result:
    """A result of a processor with the AVX2 of its time."""
    around = {"processor": processor, "vectors": "AVX2", "jax": "9.9", "threads": 1}
    more = {"cores": "one", "quick": False, "failures": {}, **more}
    return Result(
        benchmark, "a title", "us", command="python -m benchmarks x", environment=around, absent={}, rows=rows, **more
    )
