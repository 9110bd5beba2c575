"""The report of an evaluation: figures, plots and sounds in one HTML file that opens anywhere."""

from __future__ import annotations

from jaxrnn.evaluation.report.content import EXAMPLES
from jaxrnn.evaluation.report.report import write_report

__all__ = ["EXAMPLES", "write_report"]
