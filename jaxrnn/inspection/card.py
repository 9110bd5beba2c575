"""The model card of a file, as Markdown with the front matter of Hugging Face's README.md."""

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
    """Return the ``text`` of a card, and facts that the inspection lacks; arguments as in `write_card`."""
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
    index = [{"name": Path(label).name, "results": [_result(task, **row) for row in own]}] if task and own else None
    metadata = {
        "license": license,
        "library_name": "onnx",
        "pipeline_tag": task,
        "tags": ["onnx", "jaxrnn", *sorted({node.operator.lower() for node in inspection.recurrent})],
        "metrics": list(dict.fromkeys(row["metric"] for row in own)),
        "model-index": index,
    }
    metadata = {key: value for key, value in metadata.items() if value}
    delays = {each.symbol or "": _delay_ms(each, rate) for each in streams}
    sections = _about(inspection, license) | _delays(inspection, streams, rate, delays)
    head = [
        f"{key}: {_clean(json.dumps(value, ensure_ascii=False))}" for key, value in metadata.items()
    ]  # JSON is YAML
    parts = ["\n".join(["---", *head, "---"])]
    for heading, items in sections.items():
        parts += [heading, "\n".join(f"- {name}: {value}" for name, value in items.items() if value)]
    parts += [*_table(metrics), f"Written by jaxrnn {__version__}."]
    text = "\n\n".join(parts) + "\n"
    return {"rate": rate, "delay_ms": delays, "metrics": metrics, "metadata": metadata, "text": text}


def _result(task: str, dataset: str, metric: str, unit: str, mean: float, **others: Any) -> dict[str, Any]:
    """Return an entry of Hugging Face's index of results."""
    values = {"type": metric, "value": mean, "name": f"mean {metric} {unit}".strip()}
    return {"task": {"type": task}, "dataset": {"name": dataset, "type": dataset}, "metrics": [values]}


def _delay_ms(stream: StreamInfo, rate: float | None) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for name, frames in (stream.delay or {}).items():
        speed = (stream.rate or {}).get(name)
        found[name] = None if rate is None or frames is None or speed is None else milliseconds(frames, rate, speed)
    return found


def _metrics(dataset: str, document: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(document, Mapping) or not {"metrics", "summary"} <= document.keys():
        raise InputError(f"evaluations: {dataset!r} must be the `document` of results, not {type(document).__name__}")
    for metric in document["metrics"]:
        about = {"dataset": dataset, "kind": metric.get("kind"), "unprocessed": metric.get("of") == "recording"}
        for column in metric["columns"]:
            found = document["summary"][column["name"]]
            values = {key: found[key] for key in ("n", "mean", "low", "high")}
            values["improvement"] = (found.get("improvement") or {}).get("mean")
            yield {**about, "metric": column["name"], "unit": column["unit"], **values}


def _about(inspection: Inspection, license: str | None) -> dict[str, dict[str, str]]:
    """Return the sections about the network and the arrays."""
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in inspection.opsets.items())
    layers = Counter(node.operator for node in inspection.recurrent)
    counts = ", ".join(f"{each.count:,} {_code(each.name)}" for each in inspection.operators)
    problem, kinds = inspection.problem or inspection.state_problem, {each.kind for each in inspection.state}
    state = "none" if not kinds else "carried by the caller" if kinds == {"external"} else "forgotten after each call"
    kept = {name for each in inspection.state for name in (each.input, each.output)}
    arrays = {"inputs": inspection.inputs, "outputs": inspection.outputs}
    listed = {kind: [str(each) for each in those if each.name not in kept] for kind, those in arrays.items()}
    listed["state"] = [str(ArraySpec(each.name, each.dtype, each.shape)) for each in inspection.state]
    return {
        f"# {_code(Path(inspection.label).name)}": {
            "licence": _code(license) if license else "not stated",
            "format": f"ONNX, opset {_code(opsets)}, written by {_code(inspection.producer or 'an unknown exporter')}",
            "size": f"{inspection.parameter_count:,} parameters, {bytes_of(inspection.parameter_bytes)}",
            "recurrence": ", ".join(f"{count} {_code(name)}" for name, count in layers.items()) or "none",
            "operations": f"{sum(each.count for each in inspection.operators):,} nodes: {counts}",
            "state": state if problem is None else f"not known: {_code(_line(problem))}",
        },
        "## Arrays": {kind: ", ".join(map(_code, specs)) for kind, specs in listed.items()},
    }


def _delays(
    inspection: Inspection, streams: Sequence[StreamInfo], rate: float | None, delays: Mapping[str, Any]
) -> dict[str, dict[str, str]]:
    """Return a section for each stream, or else about the delay of a step."""
    speed = {"input frames per second": "not known" if rate is None else f"{rate:g}"}
    found: dict[str, dict[str, str]] = {}
    for each in streams:
        late = {}
        for name, frames in (each.delay or {}).items():
            time = delays[each.symbol or ""][name]
            said = f"{frames} output frame(s), {'in milliseconds not known' if time is None else f'{time:g} ms'}"
            late[_code(name)] = "known at the end of a recording" if frames is None else said
        found["## Delay" if each.symbol is None else f"## Delay in pulses of {_code(each.symbol)}"] = {
            **late,
            "look-ahead": _frames(each.look_ahead, rate),
            "receptive field": _frames(each.receptive_field, rate),
            "pulse": _frames(each.smallest_pulse, rate),
            "state": bytes_of(each.state_bytes or 0),
            "attention": "" if each.past is None else said_past(each.past),
            **speed,
        }
    steps = {each.kind for each in inspection.state} == {"external"} and inspection.problem is None
    at_once = "a step returns its outputs at once; whether the network itself delays them is not known"
    failed = {_code(str(each.symbol)): _code(_line(str(each.problem))) for each in inspection.streams}
    return found or {"## Delay": {"outputs": at_once if steps else "not known", **failed, **speed}}


def _frames(count: int | None, rate: float | None) -> str:
    """Return a number of input frames with the milliseconds, if the rate is known; None is all past."""
    if count is None:
        return "all past input frame(s)"
    return f"{count} input frame(s)" + ("" if rate is None else f", {milliseconds(count, rate):g} ms")


def _table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a section about metrics, if there are any."""
    if not rows:
        return
    columns = ("dataset", "metric", "unit", "n", "mean", "low", "high", "improvement")
    values = ([f"{row[key]:.4g}" if isinstance(row[key], float) else row[key] for key in columns] for row in rows)
    lines = [[_code(str(each)) if each not in (None, "") else "\N{EN DASH}" for each in line] for line in values]
    yield "## Metrics"
    yield "\n".join(f"| {' | '.join(line)} |" for line in (columns, ["---"] * len(columns), *lines))
    yield "Means over n recordings with intervals of 95 %; improvements are over the unprocessed recordings."
    if any(str(row["kind"]).startswith("si_sdr") for row in rows):
        yield "SI-SDR compares signals after the means of both are subtracted."


def _line(message: str) -> str:
    return message.partition("\n")[0]


def _clean(text: str) -> str:
    """Replace characters that neither YAML nor a line of Markdown can hold."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def _code(text: str) -> str:
    """Return a foreign text as code of Markdown, in which no character has a meaning."""
    return f"`{_clean(text).replace('`', chr(39)).replace('|', chr(92) + '|')}`"
