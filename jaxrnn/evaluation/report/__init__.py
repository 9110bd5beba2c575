"""The report of an evaluation: figures, plots and sounds in one HTML file that opens anywhere."""

from __future__ import annotations

from jaxrnn.evaluation.report.content import Limits, Results
from jaxrnn.evaluation.report.page import write_report

__all__ = ["Limits", "Results", "write_report"]
