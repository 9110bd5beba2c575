"""The model card of a file: what the network is, as Markdown with the front matter of Hugging Face's README.md."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrnn._files.messages import bytes_of
from jaxrnn._files.stores import local_path
from jaxrnn._files.writing import in_place_of
from jaxrnn.errors import InputError
from jaxrnn.model.graph_facts import StreamInfo
from jaxrnn.model.inspection import Inspection, inspect_model
from jaxrnn.onnx.reading import Source
from jaxrnn.onnx.stepfile import is_rate
from jaxrnn.steps.specs import ArraySpec
from jaxrnn.steps.stepspec import milliseconds, said_past
from jaxrnn.version import __version__

_UNKNOWN = "not known"
_ARRAYS = ("inputs", "outputs")


def write_card(
    source: Source,
    path: Path | str,
    *,
    symbol: str | None = None,
    rate: float | None = None,
    license: str | None = None,
    task: str | None = None,
    evaluations: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Write the model card of an ONNX file: kind, size, operations, state, delays and metrics, as Markdown.

    The card begins with the metadata of Hugging Face's model cards, so that the file can be published as README.md.
    What is not known is said: delays are in milliseconds only with a frame rate.

    Args:
        source: path, bytes or ``onnx.ModelProto``.
        path: the file to write, such as README.md.
        symbol: the dimension that is time; by default each dimension that the model can be streamed over.
        rate: frames per second of the inputs; by default the rate in the metadata of an exported step.
        license: the licence, as an identifier of Hugging Face such as ``"apache-2.0"``.
        task: the task, as a pipeline tag of Hugging Face such as ``"audio-to-audio"``; the metadata of metrics need it.
        evaluations: by the name of a data set, the ``document`` of the results of `jaxrnn.evaluation.evaluate`.

    Raises:
        InputError: no input has the dimension ``symbol``, or the rate does not fit.
        ModelError: the file is malformed, inconsistent or unsafe.
        UnsupportedError: the format of the file is not supported.
    """
    inspection = inspect_model(source, streams=symbol or True)
    write_text(local_path(path), card_of(inspection, evaluations or {}, rate, license, task)["text"])


def write_text(path: Path, text: str) -> None:
    """Write a text whole or not at all."""
    with in_place_of(path) as written:
        written.write_text(text, encoding="utf-8", newline="\n")


def card_of(
    inspection: Inspection,
    evaluations: Mapping[str, Mapping[str, Any]],
    rate: float | None = None,
    license: str | None = None,
    task: str | None = None,
) -> dict[str, Any]:
    """Return the ``text`` of a card, and its facts beside those of the inspection; arguments as in `write_card`."""
    label, stated = inspection.label, inspection.frame_rate
    streams = [each for each in (*inspection.streams, inspection.exported) if each is not None and each.problem is None]
    if rate is not None and (not is_rate(rate) or stated not in (None, rate)):
        wanted = "a number of frames a second" if stated is None else f"{stated:g} as in the metadata of {label}"
        raise InputError(f"the frame rate must be {wanted}, not {rate!r}")
    if rate is not None and len(streams) > 1:
        listed = ", ".join(str(each.symbol) for each in streams)
        raise InputError(f"{label}: the frame rate is of one of the dimensions {listed}: choose with `symbol=NAME`")
    rate = stated if rate is None else rate
    metrics = [row for name, document in evaluations.items() for row in _metrics(name, document)]
    own = [row for row in metrics if row["mean"] is not None and not row["unprocessed"]]
    metadata = {
        "license": license,
        "library_name": "onnx",
        "pipeline_tag": task,
        "tags": ["onnx", "jaxrnn", *sorted({node.operator.lower() for node in inspection.recurrent})],
        "metrics": list(dict.fromkeys(row["metric"] for row in own)),
        "model-index": [{"name": Path(label).name, "results": [_result(task, **row) for row in own]}]
        if task and own
        else None,
    }
    facts = {
        "rate": rate,
        "delay_ms": {each.symbol or "": _delay_ms(each, rate) for each in streams},
        "metrics": metrics,
    }
    facts["metadata"] = {key: value for key, value in metadata.items() if value}
    # JSON is YAML.
    head = (f"{key}: {_clean(json.dumps(value, ensure_ascii=False))}" for key, value in facts["metadata"].items())
    parts = ["\n".join(["---", *head, "---"]), *_sections(inspection, streams, **facts)]
    return {**facts, "text": "\n\n".join(parts) + "\n"}


def _result(task: str, dataset: str, metric: str, unit: str, mean: float, **others: Any) -> dict[str, Any]:
    """Return an entry of Hugging Face's index of results."""
    values = {"type": metric, "value": mean, "name": f"mean {metric} {unit}".strip()}
    return {"task": {"type": task}, "dataset": {"name": dataset, "type": dataset}, "metrics": [values]}


def _delay_ms(stream: StreamInfo, rate: float | None) -> dict[str, float | None]:
    known = {name: (frames, (stream.rate or {}).get(name)) for name, frames in (stream.delay or {}).items()}
    return {
        name: None if rate is None or frames is None or speed is None else milliseconds(frames, rate, speed)
        for name, (frames, speed) in known.items()
    }


def _metrics(dataset: str, document: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(document, Mapping) or not {"metrics", "summary"} <= document.keys():
        raise InputError(f"evaluations: {dataset!r} must be the `document` of results, not {type(document).__name__}")
    for metric in document["metrics"]:
        about = {"dataset": dataset, "kind": metric.get("kind"), "unprocessed": metric.get("of") == "recording"}
        for column in metric["columns"]:
            found = document["summary"][column["name"]]
            row = {key: found[key] for key in ("n", "mean", "low", "high")} | about
            change = (found.get("improvement") or {}).get("mean")
            yield {**row, "metric": column["name"], "unit": column["unit"], "improvement": change}


def _sections(
    inspection: Inspection, streams: Sequence[StreamInfo], *, rate: Any, delay_ms: Any, metrics: Any, metadata: Any
) -> Iterator[str]:
    """Yield the parts of the card after the metadata."""
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in inspection.opsets.items())
    layers = Counter(node.operator for node in inspection.recurrent)
    counts = ", ".join(f"{each.count:,} {_code(each.name)}" for each in inspection.operators)
    kinds, problem = {each.kind for each in inspection.state}, inspection.problem or inspection.state_problem
    state = "none" if not kinds else "carried by the caller" if kinds == {"external"} else "forgotten after each call"
    state = state if problem is None else f"{_UNKNOWN}: {_code(problem.partition(chr(10))[0])}"
    yield from _items(
        f"# {_code(Path(inspection.label).name)}",
        {
            "licence": _code(metadata["license"]) if "license" in metadata else "not stated",
            "format": f"ONNX, opset {_code(opsets)}, written by {_code(inspection.producer or 'an unknown exporter')}",
            "size": f"{inspection.parameter_count:,} parameters, {bytes_of(inspection.parameter_bytes)}",
            "recurrence": ", ".join(f"{count} {_code(name)}" for name, count in layers.items()) or "none",
            "operations": f"{sum(each.count for each in inspection.operators):,} nodes: {counts}",
            "state": state,
        },
    )
    kept = {name for each in inspection.state for name in (each.input, each.output)}
    arrays = {kind: [each for each in getattr(inspection, kind) if each.name not in kept] for kind in _ARRAYS}
    arrays["state"] = [ArraySpec(each.name, each.dtype, each.shape) for each in inspection.state]
    listed = {kind: ", ".join(_code(str(each)) for each in those) for kind, those in arrays.items()}
    yield from _items("## Arrays", listed)
    speed = {"input frames per second": _UNKNOWN if rate is None else f"{rate:g}"}
    for each in streams:
        ahead = "" if rate is None else f", {milliseconds(each.look_ahead or 0, rate):g} ms"
        yield from _items(
            "## Delay" if each.symbol is None else f"## Delay in pulses of {_code(each.symbol)}",
            {
                _code(name): _delay(frames, delay_ms[each.symbol or ""][name])
                for name, frames in (each.delay or {}).items()
            }
            | {
                "look-ahead": f"{each.look_ahead} input frames{ahead}",
                "receptive field": f"{each.receptive_field or 'all past'} input frames",
                "pulse": f"{each.smallest_pulse} input frames",
                "state": bytes_of(each.state_bytes or 0),
                "attention": "" if each.past is None else said_past(each.past),
            }
            | speed,
        )
    if not streams:
        steps = kinds == {"external"} and problem is None
        at_once = "a step returns its outputs at once; whether the network itself delays them is not known"
        failed = {_code(str(each.symbol)): _code(str(each.problem).partition("\n")[0]) for each in inspection.streams}
        yield from _items("## Delay", {"outputs": at_once if steps else _UNKNOWN, **failed, **speed})
    if metrics:
        columns = ("dataset", "metric", "unit", "n", "mean", "low", "high", "improvement")
        lines = [columns, ["---"] * len(columns), *([_cell(row[key]) for key in columns] for row in metrics)]
        yield from ("## Metrics", "\n".join(f"| {' | '.join(line)} |" for line in lines))
        yield "Means over n recordings with intervals of 95 %; improvements are over the unprocessed recordings."
        if any(str(row["kind"]).startswith("si_sdr") for row in metrics):
            yield "SI-SDR compares signals after the means of both are subtracted."
    yield f"Written by jaxrnn {__version__}."


def _delay(frames: int | None, time: float | None) -> str:
    if frames is None:
        return "known at the end of a recording"
    return f"{frames} output frames, {f'in milliseconds {_UNKNOWN}' if time is None else f'{time:g} ms'}"


def _items(heading: str, values: Mapping[str, str]) -> Iterator[str]:
    yield heading
    yield "\n".join(f"- {name}: {value}" for name, value in values.items() if value)


def _cell(value: Any) -> str:
    return "\N{EN DASH}" if value in (None, "") else _code(value if isinstance(value, str) else f"{value:.4g}")


def _clean(text: str) -> str:
    """Replace characters that neither YAML nor a line of Markdown can hold."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def _code(text: str) -> str:
    """Return a foreign text as code of Markdown, in which nothing has a meaning."""
    return f"`{_clean(text).replace('`', chr(39)).replace('|', chr(92) + '|')}`"
