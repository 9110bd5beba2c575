"""Plots as Vega-Lite specifications; a mark names a file and links to it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import altair as alt
import numpy as np
import polars as pl
import vl_convert

from jaxrnn.evaluation.report.table import defined, labelled, number, text

#: Bins of a histogram at most, and files from which on points are small.
BINS, MANY = 25, 300

#: Colours are the page's own, light or dark.
COLOURS = ("var(--first)", "var(--second)")

#: The data of all plots of the page, a row for each file.
FILES = alt.NamedData("files")

#: The configuration of all plots.
CONFIG = {
    "font": "system-ui, sans-serif",
    "aria": False,  # the element around the drawing describes it
    "background": None,
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--ink)",
        "titleColor": "var(--ink)",
        "titleFontWeight": "normal",
        "domainColor": "var(--muted)",
        "tickColor": "var(--muted)",
        "gridColor": "var(--line)",
        "titleLimit": 280,
        "labelSeparation": 4,
    },
    "legend": {"orient": "top", "title": None, "labelColor": "var(--ink)", "labelLimit": 280},
    "numberFormat": ".5~g",
    "rule": {"color": "var(--muted)"},
}


@dataclass(frozen=True)
class Plot:
    """A plot for the page: a caption, a text description, and a Vega-Lite specification."""

    title: str
    alt: str
    spec: Mapping[str, Any]


class PlotData:
    """The data of all plots of a page, a row per file.

    ``columns`` are ``file``, the id; ``sound``, whether the page plays the file; and numbers, None unless finite. Only
    the ``drawn`` files have numbers, because other rows of the page were chosen by their values.
    """

    def __init__(self, rows: pl.DataFrame, drawn: pl.Expr, sounds: Sequence[bool]):
        self._rows, self._drawn, self._names = rows, drawn, dict[str, str]()
        self.columns: dict[str, Sequence[Any]] = {"file": list(map(text, rows["id"])), "sound": sounds}

    def numbers(self, *names: str) -> pl.DataFrame:
        """Return columns of numbers, a row per file, null unless finite; a column without numbers is null."""
        has = [self._rows.schema[name].is_numeric() and pl.col(name).is_finite() for name in names]
        return self._rows.select(pl.when(self._drawn & each).then(name) for name, each in zip(names, has, strict=True))

    def add(self, name: str) -> str:
        """Return the name of a column of numbers in the plots."""
        if name not in self._names:
            self._names[name] = f"v{len(self.columns)}"
            self.columns[self._names[name]] = self.numbers(name)[name].to_list()
        return self._names[name]


@cache
def library() -> str:
    """Return the script of Vega, Vega-Lite and vega-embed."""
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", alt.SCHEMA_VERSION.rpartition(".")[0])


def _plot(title: str, words: str, chart: Any) -> Plot:
    made = chart.properties(width=330, height=200, autosize=alt.AutoSizeParams(type="fit", contains="padding"))
    spec = made.to_dict()
    del spec["$schema"]  # an address: nothing leads out of the page
    return Plot(title, words, spec | {"config": CONFIG})


def _by_system(channel: Any, names: Sequence[str]) -> Any:
    """Return a colour for each system, with a legend for two systems."""
    scale = alt.Scale(domain=list(names), range=list(COLOURS[: len(names)]))
    legend = alt.Legend() if len(names) > 1 else None
    return channel("system:N", scale=scale, legend=legend)


def histogram(data: PlotData, label: str, unit: str, systems: Mapping[str, str], *, zero: bool = False) -> Plot | None:
    """Draw the distribution of a column of each system; return None without values. ``zero`` marks 0."""
    drawn = {name: data.numbers(column)[column].drop_nulls() for name, column in systems.items()}
    drawn = {name: values for name, values in drawn.items() if len(values)}
    if not drawn:
        return None
    names = {data.add(systems[name]): name for name in drawn}
    shown = labelled(label, unit)
    value = alt.X("value:Q", title=shown)
    chart = alt.Chart().encode(color=_by_system(alt.Color, list(names.values())))
    bins = alt.Bin(maxbins=BINS)
    bars = chart.mark_bar(fillOpacity=0.35, strokeWidth=1, binSpacing=0).encode(
        x=value.bin(bins),
        y=alt.Y("count():Q", stack=None, title="files", axis=alt.Axis(tickMinStep=1)),
        stroke=_by_system(alt.Stroke, list(names.values())),
        tooltip=[
            alt.Tooltip("value:Q", bin=bins, title=shown),
            alt.Tooltip("count():Q", title="files"),
            *([alt.Tooltip("system:N", title="system")] if len(drawn) > 1 else []),
        ],
    )
    median = alt.X("median(value):Q", title=shown)
    layers = [bars, chart.mark_rule(strokeDash=[4, 3], strokeWidth=1.5).encode(x=median)]
    if zero:
        layers.append(alt.Chart(alt.InlineData([{}])).mark_rule().encode(x=alt.datum(0)))
    drawing = (
        alt.layer(*layers, data=FILES)
        .transform_fold(list(names), as_=["key", "value"])
        .transform_filter("isValid(datum.value)")
        .transform_calculate(system=f"{json.dumps(names)}[datum.key]")
    )
    words = "; ".join(
        f"{name}: {len(values)} files from {number(values.min(), 2)} to {number(values.max(), 2)}, "
        f"median {number(values.median(), 2)}"
        for name, values in drawn.items()
    )
    return _plot(label, f"Histogram of {label}. {words}. Dashed: median.", drawing)


def scatter(
    data: PlotData, title: str, across: tuple[str, str], up: tuple[str, str], *, diagonal: bool = False
) -> Plot | None:
    """Draw two columns against each other, with a point per file; return None if fewer than two files have both values.

    ``across`` and ``up`` are a label and a column. ``diagonal`` makes the axes equal, with a line of equal values.
    """
    both = data.numbers(across[1], up[1]).drop_nulls()
    if both.height < 2:
        return None
    x, y = both.cast(pl.Float64).to_numpy().T
    low, high = float(min(x.min(), y.min())), float(max(x.max(), y.max()))
    equal = {"domain": [low, high], "nice": True} if diagonal and low < high else {}
    kind = "log" if not diagonal and x.min() > 0 and x.max() / x.min() > 100 else "linear"
    shown = [(label, f"{data.add(column)}:Q") for label, column in (across, up)]
    points = (
        alt.Chart(FILES)
        .mark_point(
            stroke=COLOURS[0], fill=COLOURS[0], strokeWidth=0.8, cursor="pointer", size=30 if len(x) < MANY else 14
        )
        .encode(
            x=alt.X(shown[0][1], title=across[0], scale=alt.Scale(zero=False, type=kind, **equal)),
            y=alt.Y(shown[1][1], title=up[0], scale=alt.Scale(zero=False, **equal)),
            fillOpacity=alt.when("datum.sound").then(alt.value(1)).otherwise(alt.value(0.2)),
            tooltip=["file:N", *(alt.Tooltip(column, title=label) for label, column in shown)],
        )
    )
    layers = [points]
    if diagonal:
        ends = alt.Chart(alt.InlineData([{"end": low}, {"end": high}]))
        layers.insert(0, ends.mark_line(color="var(--muted)", strokeDash=[4, 3]).encode(x="end:Q", y="end:Q"))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        related = float(np.corrcoef(x, y)[0, 1])
    words = f"{len(x)} files: {up[0]} against {across[0]}; correlation {number(related, 2)}."
    if diagonal:
        words += f" Above the dashed line, where both are equal: {int((y > x).sum())} files."
    return _plot(title, words, alt.layer(*layers))


def roc(title: str, curves: Sequence[tuple[str, Mapping[str, Sequence[float]]]]) -> Plot:
    """Draw receiver operating characteristics: true over false positive rates of each system."""
    rates = ("false_positive_rate", "true_positive_rate")
    points = [
        {"system": name, "threshold": threshold if defined([threshold]) else None, **dict(zip(rates, at, strict=True))}
        for name, curve in curves
        for threshold, *at in zip(curve["threshold"], *(curve[rate] for rate in rates), strict=True)
    ]
    chance = alt.Chart(alt.InlineData([{"end": 0}, {"end": 1}])).mark_line(color="var(--muted)", strokeDash=[4, 3])
    x, y = (alt.Axis(title=rate.replace("_", " ")) for rate in rates)
    lines = alt.Chart(alt.InlineData(points)).encode(
        x=alt.X(f"{rates[0]}:Q", axis=x),
        y=alt.Y(f"{rates[1]}:Q", axis=y),
        color=_by_system(alt.Color, [name for name, _ in curves]),
    )
    near = lines.mark_point(opacity=0, size=80).encode(
        tooltip=["system:N", "threshold:Q", *(f"{rate}:Q" for rate in rates)]
    )
    words = "; ".join(
        f"{name}: at a false positive rate of 0.1, "
        f"{number(float(np.interp(0.1, curve[rates[0]], curve[rates[1]])), 2)} of the positives are found"
        for name, curve in curves
    )
    layers = alt.layer(chance.encode(x="end:Q", y="end:Q"), lines.mark_line(order=False), near)
    return _plot(title, f"True positive rate against false positive rate. {words}.", layers)
