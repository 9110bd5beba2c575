"""Descriptions in exported files: facts as metadata for programs, and sentences for readers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from jaxrnn.onnx.stepfile import FLUSH, FUNCTION, METADATA, STEP, StepFile
from jaxrnn.steps.specs import ArraySpec
from jaxrnn.steps.stepspec import OutputSpec
from jaxrnn.version import __version__


def describe_file(model: ir.Model, facts: StepFile) -> None:
    """Write the facts into the metadata and doc strings of a model."""
    model.producer_name, model.producer_version = "jaxrnn", __version__
    model.metadata_props[METADATA] = _json(facts.to_json())
    for key, text in _plain(facts).items():
        model.metadata_props[f"{METADATA}.{key}"] = text
    model.graph.doc_string = model.doc_string = " ".join(_sentences(facts))
    texts = _texts(facts)
    for value in (*model.graph.inputs, *model.graph.outputs):
        value.doc_string = texts.get(str(value.name), "")


def _json(facts: Mapping[str, Any]) -> str:
    """Return JSON with one fact a line, and one array of the graph a line."""

    def written(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)

    lines = []
    for key, value in facts.items():
        if isinstance(value, list) and value:
            listed = ",\n".join(f"  {written(each)}" for each in value)
            lines.append(f" {written(key)}: [\n{listed}\n ]")
        else:
            lines.append(f" {written(key)}: {written(value)}")
    return "{\n" + ",\n".join(lines) + "\n}"


def _plain(facts: StepFile) -> dict[str, str]:
    """Return the facts for programs without a JSON parser, one entry a line."""
    spec = facts.spec
    result = {"kind": facts.kind}
    if facts.kind == STEP:
        result["pulse"] = str(spec.pulse)
        result["delay"] = _lines({facts.outputs[each.name]: each.delay or 0 for each in _frames(facts)})
    if facts.kind == STEP and facts.frame_rate is not None:
        result["frame_rate"], result["look_ahead_ms"] = f"{facts.frame_rate:g}", f"{facts.look_ahead_ms:g}"
        delays = {facts.outputs[each.name]: facts.delay_ms(each) for each in _frames(facts)}
        result["delay_ms"] = _lines({name: f"{delay:g}" for name, delay in delays.items() if delay is not None})
    if facts.state and facts.kind == STEP:
        result["state"] = _lines({each.input: each.output for each in facts.state.values()})
    if facts.counts:
        result["counts"] = _lines({facts.outputs[name]: count for name, count in facts.counts.items()})
    return result | {key: name for key, name in facts.files.items() if key != facts.kind}


def _lines(values: Mapping[str, Any]) -> str:
    return "\n".join(f"{name}={value}" for name, value in values.items())


def _frames(facts: StepFile) -> list[OutputSpec]:
    return [each for each in facts.spec.outputs if each.time_axis is not None and each.name in facts.outputs]


def _sentences(facts: StepFile) -> list[str]:
    spec, files = facts.spec, facts.files
    if facts.kind == FUNCTION:
        return [f"{spec.label}, written by jaxrnn {__version__}."]
    if facts.kind == FLUSH:
        result = [f"{spec.label}, flush, written by jaxrnn {__version__}.", "Run it once, after the last step."]
        if facts.valid:
            result.append("The inputs are the frames that did not fill a pulse, padded with any values.")
            result.append(f"{facts.valid} is the number of these frames, which may be 0.")
        if facts.counts:
            result.append("Every output starts with its existing frames; its count output is their number.")
        return result
    result = [f"{spec.label}, one step, written by jaxrnn {__version__}."]
    if spec.streams:
        result.append(f"A step takes {_count(spec.pulse, 'input frame')}.")
    if facts.state:
        after = ", ".join(f"{each.output} as {each.input}" for each in list(facts.state.values())[:3])
        more = ", and so on" if len(facts.state) > 3 else ""
        where = f" and in {files['first_state']}" if "first_state" in files else ""
        result.append(f"The state before the first step is in the metadata {METADATA!r}{where}.")
        result.append(f"After every step, pass the state back: {after}{more}.")
    delays = [
        f"{each.delay} of {facts.outputs[each.name]}{_in_time(facts.delay_ms(each))}"
        for each in _frames(facts)
        if each.delay
    ]
    if delays:
        result.append(f"Drop the first output frames of a stream: {', '.join(delays)}.")
    if "flush" in files:
        result.append(f"After the last step, {files['flush']} returns the remaining frames.")
    elif any(each.delay or each.at_end for each in spec.outputs) or spec.pulse > spec.multiple:
        result.append("The frames after the last step need the flush, which was not exported.")
    if spec.look_ahead:
        after = f"{_count(spec.look_ahead, 'input frame')}{_in_time(facts.look_ahead_ms)}"
        result.append(f"An output frame depends on {after} after it.")
    return result


def _in_time(milliseconds: float | None) -> str:
    return "" if milliseconds is None else f" ({milliseconds:g} ms)"


def _texts(facts: StepFile) -> dict[str, str]:
    spec = facts.spec
    texts = {facts.inputs[each.name]: _input_text(each) for each in spec.inputs}
    for each in spec.outputs:
        if each.name in facts.outputs:
            texts[facts.outputs[each.name]] = _output_text(each, facts)
    for each in spec.state:
        names = facts.state[each.name]
        texts[names.input] = f"State ({each.kind})"
        if names.output is not None:
            texts[names.input] += f": {names.output} of the previous step"
            texts[names.output] = f"State ({each.kind}): {names.input} of the next step"
    for name, count in facts.counts.items():
        texts[count] = f"Number of existing frames of {facts.outputs[name]}"
    if facts.valid is not None:
        texts[facts.valid] = "Number of existing frames of the tail"
    return texts


def _input_text(each: ArraySpec) -> str:
    if each.time_axis is None:
        return ""
    return f"{_count(each.sizes[each.time_axis], 'frame')} along axis {each.time_axis}"


def _output_text(each: OutputSpec, facts: StepFile) -> str:
    if each.time_axis is None:
        return "Known at the end" if each.at_end else ""
    text = f"{_count(each.sizes[each.time_axis], 'frame')} along axis {each.time_axis}"
    if facts.kind == STEP and each.delay:
        text += f"; drop the first {each.delay} of a stream, which precede frame 0"
    if each.name in facts.counts:
        text += f", of which the first {facts.counts[each.name]} exist"
    return text


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
