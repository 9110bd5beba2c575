"""Named metrics over recordings of any length, and the checks that metrics fit a system and a corpus."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from jaxrnn._files.messages import near
from jaxrnn.audio.corpus import COLUMNS, PLACE, Item, columns_of
from jaxrnn.errors import InputError
from jaxrnn.evaluation.metrics.counts import accuracy, auc, class_accuracy, detection, eer, f1, precision, recall
from jaxrnn.evaluation.metrics.protocol import Accumulator, Column, Metric, NoValueError, Pool, of_recording, over_whole
from jaxrnn.evaluation.metrics.sound import estoi, level, peak, pesq, sdr, si_sdr, si_sdr_improvement, snr, stoi
from jaxrnn.evaluation.metrics.texts import cer, wer
from jaxrnn.evaluation.systems import System
from jaxrnn.settings.functions import check_options, lookup

__all__ = ["METRICS", "Accumulator", "Column", "Metric", "NoValueError", "Pool", "build_metric", "over_whole"]
__dir__ = __all__.copy


_BUILT_IN = (
    si_sdr, si_sdr_improvement, snr, sdr, stoi, estoi, pesq, level, peak,
    detection, accuracy, precision, recall, f1, auc, eer, class_accuracy, wer, cer,
)  # fmt: skip

#: Metrics that also judge the columns of a table, or only these.
OF_TABLES = tuple(metric.__name__ for metric in (detection, accuracy, precision, recall, f1, auc, eer, wer, cer))

METRICS: dict[str, Callable[..., Metric]] = {metric.__name__: metric for metric in _BUILT_IN}
"""The named metrics of jaxrnn: functions of options that make a `Metric`."""


def built(metrics: Iterable[Metric | str]) -> tuple[Metric, ...]:
    """Return metrics, of which some are given by name."""
    return tuple(build_metric(each) if isinstance(each, str) else each for each in metrics)


def build_metric(kind: str, options: Mapping[str, Any] | None = None, *, folder: Path | None = None) -> Metric:
    """Make a named metric.

    Args:
        kind: a name in `METRICS`, ``package.module:function`` or ``file.py:function``. A function takes ``(output,
            reference, rate)`` of a whole recording and options, and returns a number or a dict of numbers; or a
            function takes only options, and returns a `Metric`.
        options: keyword arguments of the metric; ``called`` is the name of the column. A function of your own also
            takes the options of `over_whole`: ``called``, ``output``, ``limit``, ``needs_reference``, ``unit`` and
            ``higher_is_better``.
        folder: the folder of relative file paths.

    Raises:
        InputError: the metric, the function or an option does not exist; the message names the nearest.
        MissingPackageError: the package of the metric is not installed.
    """
    options = dict(options or {})
    function = lookup("metric", kind, METRICS, folder)
    if kind in METRICS:
        return function(**check_options(function, options, folder=folder))
    parameters = list(inspect.signature(function).parameters.values())
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each for each in parameters[:3] if each.kind in by_position and each.default is each.empty]
    if len(needed) < 3:
        metric = function(**check_options(function, options, folder=folder))
        if not isinstance(metric, Metric):
            raise InputError(
                f"the metric {kind} must take (output, reference, rate) and return a number, or take options only and "
                f"return a jaxrnn.evaluation.Metric, not a {type(metric).__name__}"
            )
        return dataclasses.replace(metric, options={**metric.options, "made by": {"kind": kind, **options}})
    own = {each.name for each in parameters[3:]}
    keywords = inspect.signature(over_whole).parameters.keys() - {"function", "options"} - own
    of_metric = {key: options.pop(key) for key in list(options) if key in keywords}
    checked = check_options(function, options, skipped=3, folder=folder)
    of_metric.setdefault("called", kind.rpartition(":")[2].rpartition(".")[2])
    judge = functools.partial(function, **checked) if checked else function
    return over_whole(judge, **of_metric, options={"kind": kind, **options})


def with_unprocessed(metrics: Sequence[Metric]) -> tuple[Metric, ...]:
    """Return metrics, and metrics that compare sound with a reference once more for the recordings themselves."""
    fitting = (metric for metric in metrics if metric.needs_reference and not metric.needs_source and not metric.pool)
    return (*metrics, *map(of_recording, fitting))


def output_of(metric: Metric, system: System) -> str:
    """Return the judged output: the named output, or the first output of the system."""
    return metric.output or next(iter(system.delay))


def frame_rate(system: System, output: str) -> int | float:
    """Return the frames per second of an output, as an integer if possible."""
    # The float 1/3 means a third.
    rate = system.rate * Fraction(system.per_frame[output]).limit_denominator(1_000_000)
    return int(rate) if rate.denominator == 1 else float(rate)


def latencies(system: System) -> dict[str, dict[str, Any]]:
    """Return the delay and the shortest input of a step by output: a live stream waits for the sum of both times."""
    return {
        output: {
            "delay_frames": int(delay),
            "delay_milliseconds": 1000 * int(delay) / frame_rate(system, output),
            "block_milliseconds": 1000 * system.multiple / system.rate,
        }
        for output, delay in system.delay.items()
    }


def check_metrics(metrics: Sequence[Metric], system: System, corpus: Sequence[Item]) -> None:
    """Check that metrics fit the outputs of a system and the references of a corpus."""
    taken: dict[str, str] = dict.fromkeys([*COLUMNS, PLACE], "the table of results")
    for column in columns_of(corpus):
        if taken.setdefault(column, "the manifest") != "the manifest":
            raise InputError(f"the manifest's column {column!r} has a name that the results need: rename it")
    names = [metric.name for metric in metrics]
    for metric in metrics:
        if names.count(metric.name) > 1:
            raise InputError(f"two metrics are called {metric.name!r}: give one of them another name with 'called'")
        output = output_of(metric, system)
        if output not in system.delay:
            raise InputError(
                f"the metric {metric.name} judges the output {output!r}, which the system does not have"
                f"{near(output, system.delay)}; there are: {', '.join(system.delay)}"
            )
        if metric.needs_reference and not any(item.reference for item in corpus):
            raise InputError(
                f"the metric {metric.name} needs references, but no recording has one: give a folder of them, or a "
                "manifest with a column 'reference'"
            )
        if metric.needs_source and system.per_frame[output] != 1:
            raise InputError(f"the metric {metric.name} needs an output with a frame for each of the recording's")
        metric.start(frame_rate(system, output))
        keys = [column.name for column in metric.columns] + ([metric.pool.key] if metric.pool else [])
        for key in dict.fromkeys([metric.name, *keys]):
            owner = taken.setdefault(key, f"the metric {metric.name}")
            if owner != f"the metric {metric.name}" or keys.count(key) > 1:
                raise InputError(
                    f"the metric {metric.name} gives a column {key!r}, and so does {owner}: give it another name with "
                    "'called'"
                )
    by_key = {f"the metric {metric.name}": f"{metric.name}_" for metric in metrics if metric.by_key}
    for metric, prefix in by_key.items():
        for key, owner in taken.items():
            if key.startswith(prefix) and owner in {"the manifest", *by_key}:
                raise InputError(
                    f"{metric} may give columns {prefix}*, and {owner} has {key!r}: give it another name with 'called'"
                )
