"""Evaluation of models over corpora: batches of recordings, chunk by chunk, with metrics, tables and a report."""

from __future__ import annotations

from jaxrnn.audio.corpus import Item, from_folder, from_manifest
from jaxrnn.evaluation.cluster import Workers
from jaxrnn.evaluation.compare import PairedComparison, compare
from jaxrnn.evaluation.evaluation import Evaluation, evaluate
from jaxrnn.evaluation.framed import Framed
from jaxrnn.evaluation.metrics import (
    METRICS,
    Accumulator,
    Column,
    Metric,
    NoValueError,
    Pool,
    build_metric,
    over_whole,
)
from jaxrnn.evaluation.report import write_report
from jaxrnn.evaluation.results import Results, read_results, write_results
from jaxrnn.evaluation.systems import Offline, Piece, System
from jaxrnn.evaluation.tables import evaluate_table

__all__ = [
    "METRICS",
    "Accumulator",
    "Column",
    "Evaluation",
    "Framed",
    "Item",
    "Metric",
    "NoValueError",
    "Offline",
    "PairedComparison",
    "Piece",
    "Pool",
    "Results",
    "System",
    "Workers",
    "build_metric",
    "compare",
    "evaluate",
    "evaluate_table",
    "from_folder",
    "from_manifest",
    "over_whole",
    "read_results",
    "write_report",
    "write_results",
]
__dir__ = __all__.copy
