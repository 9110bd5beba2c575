"""Metrics by name, over recordings of any length."""

from __future__ import annotations

from jaxrnn.evaluation.metrics.counts import Segments as Segments
from jaxrnn.evaluation.metrics.counts import open_reference as open_reference
from jaxrnn.evaluation.metrics.named import METRICS, build_metric, latency
from jaxrnn.evaluation.metrics.named import check_metrics as check_metrics
from jaxrnn.evaluation.metrics.named import frame_rate as frame_rate
from jaxrnn.evaluation.metrics.named import output_of as output_of
from jaxrnn.evaluation.metrics.protocol import Accumulator, Column, Metric, NoValueError, Pool, over_whole
from jaxrnn.evaluation.metrics.sound import si_sdr

#: Public names; the evaluation uses more of this package.
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
