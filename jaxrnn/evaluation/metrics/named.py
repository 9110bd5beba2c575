"""Metrics by name, with options: the built-in ones, and functions of the caller's own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxrnn.errors import InputError
from jaxrnn.evaluation.metrics.counts import accuracy, auc, class_accuracy, detection, f1, precision, recall
from jaxrnn.evaluation.metrics.distortion import sdr
from jaxrnn.evaluation.metrics.protocol import Metric
from jaxrnn.evaluation.metrics.speech import estoi, pesq, stoi
from jaxrnn.evaluation.metrics.sums import level, peak, si_sdr, si_sdr_improvement, snr
from jaxrnn.evaluation.metrics.whole import over_whole
from jaxrnn.settings.functions import lookup

_BUILT_IN = (
    si_sdr, si_sdr_improvement, snr, sdr, stoi, estoi, pesq, level, peak,
    detection, accuracy, precision, recall, f1, auc, class_accuracy,
)  # fmt: skip

METRICS: dict[str, Callable[..., Metric]] = {metric.__name__: metric for metric in _BUILT_IN}
"""Every metric of jaxrnn by its name: a function of options that makes it."""


def build_metric(kind: str, options: Mapping[str, Any] | None = None, folder: Path | None = None) -> Metric:
    """A metric by its name.

    Args:
        kind: a name of `METRICS`; or ``package.module:function`` or ``file.py:function``. Such a function takes
            ``(output, reference, rate)`` of a whole recording and options, and returns a number or numbers by name; or
            it takes options only, and returns a `Metric`.
        options: keywords of the metric; ``called`` is the name of its column. A function of the caller's own also takes
            those of `over_whole`: ``called``, ``output``, ``limit``, ``needs_reference``, ``unit`` and
            ``higher_is_better``.
        folder: what the path of a file is relative to.

    Raises:
        InputError: there is no such metric, function or option; the message names the nearest.
        MissingPackageError: the metric's package is not installed.
    """
    from jaxrnn.settings.options import check_options

    options = dict(options or {})
    function = lookup("metric", kind, METRICS, folder)
    if kind in METRICS:
        return function(**check_options(function, options, folder=folder))
    if not _judges(function):
        metric = function(**check_options(function, options, folder=folder))
        if not isinstance(metric, Metric):
            raise InputError(
                f"the metric {kind} must take (output, reference, rate) and return a number, or take options only and "
                f"return a jaxrnn.evaluation.Metric, not a {type(metric).__name__}"
            )
        return metric
    own = list(inspect.signature(function).parameters)[3:]
    keywords = inspect.signature(over_whole).parameters.keys() - {"function", "options", *own}
    of_metric = {key: options.pop(key) for key in list(options) if key in keywords}
    checked = check_options(function, options, skipped=3, folder=folder)
    of_metric.setdefault("called", kind.rpartition(":")[2].rpartition(".")[2])
    judge = functools.partial(function, **checked) if checked else function
    return over_whole(judge, **of_metric, options={"kind": kind, **options})


def _judges(function: Callable[..., Any]) -> bool:
    """Whether a function needs three arguments by position, as one of ``(output, reference, rate)`` does."""
    parameters = list(inspect.signature(function).parameters.values())[:3]
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(parameter.kind in by_position and parameter.default is parameter.empty for parameter in parameters) == 3
