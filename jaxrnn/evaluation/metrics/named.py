"""Metrics by name, with options: those that are here, and functions of the caller's own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxrnn.errors import InputError
from jaxrnn.evaluation.metrics.classification import class_accuracy
from jaxrnn.evaluation.metrics.collected import over_whole
from jaxrnn.evaluation.metrics.detection import accuracy, auc, detection, f1, precision, recall
from jaxrnn.evaluation.metrics.distortion import sdr
from jaxrnn.evaluation.metrics.protocol import Metric
from jaxrnn.evaluation.metrics.speech import estoi, pesq, stoi
from jaxrnn.evaluation.metrics.sums import level, peak, si_sdr, si_sdr_improvement, snr
from jaxrnn.settings.functions import lookup

#: Every metric by its name.
METRICS: dict[str, Callable[..., Metric]] = {
    "si_sdr": si_sdr,
    "si_sdr_improvement": si_sdr_improvement,
    "snr": snr,
    "sdr": sdr,
    "stoi": stoi,
    "estoi": estoi,
    "pesq": pesq,
    "level": level,
    "peak": peak,
    "detection": detection,
    "accuracy": accuracy,
    "precision": precision,
    "recall": recall,
    "f1": f1,
    "auc": auc,
    "class_accuracy": class_accuracy,
}


def build_metric(kind: str, options: Mapping[str, Any] | None = None, folder: Path | None = None) -> Metric:
    """A metric by its name.

    Args:
        kind: a name of `METRICS`; or ``package.module:function`` or ``file.py:function``. Such a function takes
            ``(output, reference, rate)`` of a whole recording and options, and gives a number or numbers by name; or it
            takes options only, and gives a `Metric`.
        options: keywords of the metric; ``called`` is the name of its column. A function of the caller's own has
            besides its own ``called``, ``output``, ``limit``, ``needs_reference``, ``unit`` and ``higher_is_better``,
            as `over_whole` takes them.
        folder: what the path of a file is relative to.

    Raises:
        InputError: there is no such metric, function or option; names the nearest.
        MissingPackageError: the metric's package is not installed.
    """
    from jaxrnn.settings.options import check_options

    options = dict(options or {})
    function = lookup("metric", kind, METRICS, folder)
    if kind in METRICS:
        return function(**check_options(function, options, folder=folder))
    if _is_factory(function):
        return _gives_metric(kind, function, check_options(function, options, folder=folder))
    return _judges(kind, function, options, folder)


def _is_factory(function: Callable[..., Any]) -> bool:
    """Whether a function asks for nothing by position, as one of ``(output, reference, rate)`` does."""
    parameters = list(inspect.signature(function).parameters.values())[:3]
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(parameter.kind in by_place and parameter.default is parameter.empty for parameter in parameters) < 3


def _gives_metric(kind: str, function: Callable[..., Any], options: dict[str, Any]) -> Metric:
    metric = function(**options)
    if not isinstance(metric, Metric):
        raise InputError(
            f"the metric {kind} must take (output, reference, rate) and give a number, or take options only and give a "
            f"jaxrnn.evaluation.Metric, not a {type(metric).__name__}"
        )
    return metric


def _judges(kind: str, function: Callable[..., Any], options: dict[str, Any], folder: Path | None) -> Metric:
    from jaxrnn.settings.options import check_options

    own = list(inspect.signature(function).parameters)[3:]
    keywords = inspect.signature(over_whole).parameters.keys() - {"function", "options", *own}
    ours = {key: options.pop(key) for key in list(options) if key in keywords}
    checked = check_options(function, options, skipped=3, folder=folder)
    ours.setdefault("called", kind.rpartition(":")[2].rpartition(".")[2])
    judge = functools.partial(function, **checked) if checked else function
    return over_whole(judge, **ours, options={"kind": kind, **options})
