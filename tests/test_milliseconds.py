"""Delay and look-ahead in milliseconds, where the rate is given: in tables, in JSON and in the metadata of files."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from small_models import look_ahead_model
from test_cli import call, call_json

import jaxrnn
from jaxrnn.onnx.stepfile import StepFile

X = jax.ShapeDtypeStruct((20, 3), np.float32)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(look_ahead_model(), path)
    return path


def halves(inputs):
    """One frame for two, which looks three frames ahead."""
    x = inputs["x"]
    return {"y": (x + jnp.pad(x, ((0, 3), (0, 0)))[3:])[::2]}


def metadata_of(path):
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


def test_metadata(tmp_path):
    streamed = jaxrnn.stream(halves, {"x": X}, axes=0)
    exported = jaxrnn.export_onnx(streamed, None, tmp_path / "s.onnx", flush=tmp_path / "f.onnx", frame_rate=100)
    facts, (output,) = exported.step.facts, exported.step.facts.spec.outputs
    assert (streamed.look_ahead, facts.look_ahead_ms) == (3, 30.0)
    assert facts.delay_ms(output) == 1000 * streamed.delay["y"] / 50
    told = metadata_of(tmp_path / "s.onnx")
    assert told["jaxrnn.frame_rate"] == "100"
    assert told["jaxrnn.look_ahead_ms"] == "30"
    assert told["jaxrnn.delay_ms"] == f"y={facts.delay_ms(output):g}"
    read = StepFile.from_json(json.loads(told["jaxrnn"]))
    assert (read.frame_rate, read.look_ahead_ms) == (100.0, 30.0)
    text = onnx.load(tmp_path / "s.onnx").doc_string
    assert "depends on 3 input frames (30 ms) after" in text
    assert f"of y ({facts.delay_ms(output):g} ms)" in text
    assert jaxrnn.load(tmp_path / "s.onnx").spec is not None


def test_metadata_of_frames_longer_than_a_short_recording(tmp_path):
    def frames(inputs):
        return {"y": jax.lax.reduce_window(inputs["x"], 0.0, jax.lax.add, (400, 1), (160, 1), "VALID")}

    streamed = jaxrnn.stream(frames, {"x": X}, axes=0)
    jaxrnn.export_onnx(streamed, None, tmp_path / "s.onnx", frame_rate=16_000)
    told = metadata_of(tmp_path / "s.onnx")
    assert float(told["jaxrnn.look_ahead_ms"]) == 1000 * 399 / 16_000


@pytest.mark.parametrize("rate", [np.float64(44_100 / 512), np.int64(1_234_567), np.float32(62.5)])
def test_metadata_have_all_digits(tmp_path, rate):
    """Of any number, in the facts for programs without a JSON parser, too."""
    streamed = jaxrnn.stream(halves, {"x": X}, axes=0)
    facts = jaxrnn.export_onnx(streamed, None, tmp_path / "s.onnx", frame_rate=rate).step.facts
    told = metadata_of(tmp_path / "s.onnx")
    assert float(told["jaxrnn.frame_rate"]) == facts.frame_rate == rate
    assert float(told["jaxrnn.look_ahead_ms"]) == facts.look_ahead_ms
    assert float(told["jaxrnn.delay_ms"].removeprefix("y=")) == facts.delay_ms(facts.spec.outputs[0])


def test_without_a_rate(tmp_path):
    jaxrnn.export_onnx(jaxrnn.stream(halves, {"x": X}, axes=0), None, tmp_path / "s.onnx")
    told = metadata_of(tmp_path / "s.onnx")
    assert not [key for key in told if key.endswith(("_ms", "rate"))]
    assert "frame_rate" not in json.loads(told["jaxrnn"])


@pytest.mark.parametrize("wrong", [0, -1, "fast", True, float("inf"), float("nan")])
def test_rates_that_are_none(tmp_path, wrong):
    with pytest.raises(jaxrnn.InputError, match="frame_rate must be a number of frames a second"):
        jaxrnn.export_onnx(jaxrnn.stream(halves, {"x": X}, axes=0), None, tmp_path / "s.onnx", frame_rate=wrong)


def test_export_command(file, tmp_path):
    symbol = next(size for size in jaxrnn.load(file).inputs[0].shape if isinstance(size, str))
    arguments = ("export", file, "--symbol", symbol, "-o", tmp_path / "s.onnx")
    facts = call_json(*arguments, "--rate", 16000, "--hop", 160)
    assert facts["look_ahead_ms"] == 10 * facts["look_ahead"] > 0
    assert [each["delay_ms"] for each in facts["outputs"]] == [10.0 * each["delay"] for each in facts["outputs"]]
    assert metadata_of(tmp_path / "s.onnx")["jaxrnn.look_ahead_ms"] == f"{facts['look_ahead_ms']:g}"
    shown = call(*arguments, "--rate", 100).stdout
    assert "delay, ms" in shown
    assert "ms)" in shown
    assert "delay, ms" not in call(*arguments).stdout
    assert "--hop goes with --rate" in call(*arguments, "--hop", 160, status=2).stderr


@pytest.mark.thorough
def test_stream_command(file):
    symbol = next(size for size in jaxrnn.load(file).inputs[0].shape if isinstance(size, str))
    arguments = ("stream", file, "--symbol", symbol, "--random", "--frames", 8)
    for rate in (("--rate", 100), ("--rate", 16000, "--hop", 160)):
        timed = [each for each in call_json(*arguments, *rate)["outputs"] if each["delay"] is not None]
        assert [each["delay_ms"] for each in timed] == [10.0 * each["delay"] for each in timed]
    shown = call(*arguments, "--rate", 100).stdout
    assert "delay, ms" in shown
    assert "look-ahead" in shown
