"""Metrics by name, each over recordings of any length."""

from __future__ import annotations

from jaxrnn.evaluation.metrics.labels import Segments as Segments
from jaxrnn.evaluation.metrics.labels import open_reference as open_reference
from jaxrnn.evaluation.metrics.named import METRICS, build_metric
from jaxrnn.evaluation.metrics.protocol import Accumulator, Column, Metric, NoValueError, Pool
from jaxrnn.evaluation.metrics.sums import si_sdr
from jaxrnn.evaluation.metrics.system import check_metrics as check_metrics
from jaxrnn.evaluation.metrics.system import frame_rate as frame_rate
from jaxrnn.evaluation.metrics.system import latency
from jaxrnn.evaluation.metrics.system import output_of as output_of
from jaxrnn.evaluation.metrics.whole import over_whole

#: What users name; the evaluation itself takes more of this package.
__all__ = [
    "METRICS",
    "Accumulator",
    "Column",
    "Metric",
    "NoValueError",
    "Pool",
    "build_metric",
    "latency",
    "over_whole",
    "si_sdr",
]


def __dir__() -> list[str]:
    return sorted(__all__)
