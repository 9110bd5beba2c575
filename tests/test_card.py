"""Model cards: the numbers are those of `inspect`, the metadata are YAML, and what is unknown is said."""

from __future__ import annotations

import onnx
import pytest
import yaml
from evaluation_cases import results_from
from refusals import check_refused
from small_models import layers_model, look_ahead_model
from test_cli import call, call_json

import jaxrnn
from jaxrnn.demo import PACKAGED
from jaxrnn.evaluation.metrics import si_sdr, with_unprocessed
from jaxrnn.evaluation.results import write_results
from jaxrnn.inspection import write_card


def front_of(text):
    """The metadata of a card."""
    start, front, _ = text.split("---\n", 2)
    assert start == ""
    return yaml.safe_load(front)


@pytest.mark.parametrize(
    ("name", "options", "delays"),
    [
        ("packaged", ("--rate", "125"), {}),
        ("dtln_1.onnx", (), {}),
        pytest.param(
            "filter_net.onnx",
            ("--rate", "100"),
            dict.fromkeys(("mask", "coefs", "snr"), 20.0),
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_numbers_are_those_of_inspect(models, tmp_path, name, options, delays):
    path = PACKAGED if name == "packaged" else models / name
    found = call_json("card", path, *options, "--license", "mit", "-o", tmp_path / "README.md")
    text = (tmp_path / "README.md").read_text()
    assert found.pop("text") == text
    inspected = call_json("inspect", path)
    del inspected["page"]
    assert {key: found[key] for key in inspected} == inspected
    assert f"- size: {inspected['parameter_count']:,} parameters" in text
    assert f"- operations: {sum(each['count'] for each in inspected['operators']):,} nodes" in text
    for each in (*inspected["inputs"], *inspected["outputs"]):
        kept = {name for state in inspected["state"] for name in (state["input"], state["output"])}
        assert (f"`{each['name']}: {each['dtype']}[" in text) or each["name"] in kept
    for stream in inspected["streams"]:
        assert found["delay_ms"] == {stream["symbol"]: delays}
        for output, frames in stream["delay"].items():
            assert f"- `{output}`: {frames} output frame(s), {delays[output]:g} ms" in text
    assert ("## Delay in pulses" in text) == bool(delays)
    assert front_of(text) == found["metadata"]
    assert found["metadata"]["license"] == "mit"


def test_a_delay_is_in_milliseconds_only_with_a_rate(tmp_path):
    onnx.save(look_ahead_model(), tmp_path / "model.onnx")
    model = jaxrnn.load(tmp_path / "model.onnx")
    (symbol,) = {each["symbol"] for each in call_json("inspect", tmp_path / "model.onnx")["streams"]}
    said = call("card", tmp_path / "model.onnx").stdout
    assert "- `y`: 1 output frame(s), in milliseconds not known" in said
    assert "- `total`: known at the end of a recording" in said
    assert "- licence: not stated" in said
    assert "- input frames per second: not known" in said
    with_rate = call_json("card", tmp_path / "model.onnx", "--rate", "50")
    given = with_rate["delay_ms"]
    assert "- look-ahead: 1 input frame(s), 20 ms" in with_rate["text"]
    jaxrnn.export_onnx(model.stream(symbol), model.params, tmp_path / "step.onnx", frame_rate=50.0)
    stated = call_json("card", tmp_path / "step.onnx")
    assert stated["exported"]["delay"]["y"] == 1
    assert (given[symbol]["y"], stated["delay_ms"][""]["y"]) == (20, 20)
    words = "the frame rate must be 50 as in the metadata"
    check_refused(jaxrnn.InputError, words, write_card, tmp_path / "step.onnx", tmp_path / "c.md", rate=40)
    for rate in (0, -1, float("nan"), "50"):
        words = "the frame rate must be a number of frames a second"
        check_refused(jaxrnn.InputError, words, write_card, tmp_path / "model.onnx", tmp_path / "c.md", rate=rate)
    assert not (tmp_path / "c.md").exists()


def test_metrics_are_those_of_the_results(tmp_path):
    onnx.save(layers_model(), tmp_path / "odd `name|.onnx")
    rows = [{"si_sdr": 10.0 + each, "unprocessed_si_sdr": 4.0 + each / 2} for each in range(12)]
    metrics = with_unprocessed([si_sdr()])
    rows = [{"id": str(each), "seconds": 1.0, "status": "ok", **row} for each, row in enumerate(rows)]
    results = results_from("mine", rows, metrics)
    write_results(results, tmp_path)
    options = ("--metrics", f"my | set={tmp_path}", "--task", "audio-to-audio")
    text = call("card", tmp_path / "odd `name|.onnx", *options).stdout
    mean, summary = 15.5, results.document["summary"]["si_sdr"]
    line = f"| `15.5` | `{summary['low']:.4g}` | `{summary['high']:.4g}` | `8.75` |"
    assert f"| `my \\| set` | `si_sdr` | `dB` | `12` {line}" in text
    assert "| `unprocessed_si_sdr` |" in text
    assert "after the means of both are subtracted" in text
    assert "# `odd 'name\\|.onnx`" in text
    (index,) = front_of(text)["model-index"]
    (entry,) = index["results"]  # the input is no result of the network
    assert entry["metrics"] == [{"type": "si_sdr", "value": mean, "name": "mean si_sdr dB"}]
    assert (entry["task"], entry["dataset"]["name"]) == ({"type": "audio-to-audio"}, "my | set")
    write_card(tmp_path / "odd `name|.onnx", tmp_path / "c.md", evaluations={"my | set": results.document})
    front = front_of((tmp_path / "c.md").read_text())
    assert (front["metrics"], "model-index" in front) == (["si_sdr"], False)
    words = "evaluations: 'a' must be the `document` of results, not Results"
    check_refused(jaxrnn.InputError, words, write_card, PACKAGED, tmp_path / "d.md", evaluations={"a": results})


def test_what_is_not_known_is_said(tmp_path):
    model = layers_model()
    model.graph.node[0].op_type = "Bogus"
    onnx.save(model, tmp_path / "bad.onnx")
    text = call("card", tmp_path / "bad.onnx").stdout
    assert "- state: not known: `" in text
    assert "- outputs: not known" in text
