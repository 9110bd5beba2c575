"""What outputs are judged by: metrics by name, each over recordings of any length."""

from __future__ import annotations

from jaxrnn.evaluation.metrics.checking import check_metrics
from jaxrnn.evaluation.metrics.classification import class_accuracy
from jaxrnn.evaluation.metrics.collected import over_whole
from jaxrnn.evaluation.metrics.detection import accuracy, auc, detection, f1, precision, recall
from jaxrnn.evaluation.metrics.distortion import sdr
from jaxrnn.evaluation.metrics.labels import Segments, open_reference
from jaxrnn.evaluation.metrics.latency import latency
from jaxrnn.evaluation.metrics.named import METRICS, build_metric
from jaxrnn.evaluation.metrics.protocol import Accumulator, Column, Counts, Metric, NoValueError, Pool
from jaxrnn.evaluation.metrics.speech import estoi, pesq, stoi
from jaxrnn.evaluation.metrics.sums import level, peak, si_sdr, si_sdr_improvement, snr

__all__ = [
    "METRICS",
    "Accumulator",
    "Column",
    "Counts",
    "Metric",
    "NoValueError",
    "Pool",
    "Segments",
    "accuracy",
    "auc",
    "build_metric",
    "check_metrics",
    "class_accuracy",
    "detection",
    "estoi",
    "f1",
    "latency",
    "level",
    "open_reference",
    "over_whole",
    "peak",
    "pesq",
    "precision",
    "recall",
    "sdr",
    "si_sdr",
    "si_sdr_improvement",
    "snr",
    "stoi",
]
