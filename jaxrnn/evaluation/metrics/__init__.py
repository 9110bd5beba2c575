"""Metrics by name, each over recordings of any length."""

from __future__ import annotations

from jaxrnn.evaluation.metrics.labels import Segments, open_reference
from jaxrnn.evaluation.metrics.named import METRICS, build_metric
from jaxrnn.evaluation.metrics.protocol import Accumulator, Column, Metric, NoValueError, Pool
from jaxrnn.evaluation.metrics.sums import si_sdr
from jaxrnn.evaluation.metrics.system import check_metrics, frame_rate, latency, output_of
from jaxrnn.evaluation.metrics.whole import over_whole

__all__ = [
    "METRICS",
    "Accumulator",
    "Column",
    "Metric",
    "NoValueError",
    "Pool",
    "Segments",
    "build_metric",
    "check_metrics",
    "frame_rate",
    "latency",
    "open_reference",
    "output_of",
    "over_whole",
    "si_sdr",
]


def __dir__() -> list[str]:
    return sorted(__all__)
