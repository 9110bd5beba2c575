"""``jaxrnn export``: parameters from a checkpoint or an archive into a file, shown and verified."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from export_models import TIMES, check_reads_back, model_of, tensor
from onnx import TensorProto
from small_models import a_little_wrong, layers_model, operator_replaced
from test_cli import call, call_json

import jaxrnn
from jaxrnn.cli.options import save_archive


@pytest.fixture
def layers(tmp_path):
    """A small model's file, and parameters for it, two of which are the file's own."""
    path = tmp_path / "layers.onnx"
    onnx.save(layers_model(), path)
    params = {name: np.asarray(value) for name, value in jaxrnn.load(path).params.items()}
    return path, params | {name: params[name] + np.float32(0.25) for name in ("W", "B", "P")}


def archive_of(path, params):
    save_archive(path, params)
    return path


def test_an_archive_of_parameters(layers, tmp_path):
    file, params = layers
    archive, out = archive_of(tmp_path / "params.npz", params), tmp_path / "out.onnx"
    found = call_json("export", file, "--params", archive, "-o", out, "--verify", "--dim", "T=3,7")
    check_reads_back(out, params)
    assert (found["output"], found["bytes"], found["changed"]) == (str(out), out.stat().st_size, 3)
    changes = {each["name"]: each for each in found["parameters"]}
    assert list(changes) == list(params)
    for name, each in changes.items():
        assert (each["shape"], each["dtype"]) == (list(params[name].shape), "float32")
        assert each["changed"] == (name in "WBP")
        assert each["largest_change"] == pytest.approx(0.25 if each["changed"] else 0, abs=1e-6)
    assert "ONNX Runtime" in found["verified"]["engine"]
    assert [case["dims"]["T"] for case in found["verified"]["cases"]] == [3, 7]
    text = call("export", file, "--params", archive, "-o", file, "--verify").stdout  # over the source
    check_reads_back(file, params)
    for word in ("3 changed, 2 as they were", "[1, 20, 3]", "0.25", "Verified against ONNX Runtime", "Y_h"):
        assert word in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layers.onnx", "out.onnx", "params.npz"]
    assert call_json("export", file, "--params", archive, "-o", out)["verified"] is None


def test_a_file_that_departs_is_not_written(layers, tmp_path):
    file, params = layers
    archive, out = archive_of(tmp_path / "params.npz", params), tmp_path / "out.onnx"
    with operator_replaced("Tanh", a_little_wrong):
        result = call("export", file, "--params", archive, "-o", out, "--verify", status=1)
        assert "nothing was written: the output" in result.stderr
        assert "differs from ONNX Runtime" in result.stderr
        found = call_json("export", file, "--params", archive, "-o", out, "--verify", status=1)
    assert "'Y_h' differs" in found["error"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layers.onnx", "params.npz"]


def test_checkpoints_are_chosen(layers, tmp_path, monkeypatch):
    file, params = layers
    asked = []

    def load_checkpoint(folder, model=None, step=None, best=True):
        asked.append((folder.name, model.label, step, best))
        return params

    monkeypatch.setattr("jaxrnn.training.load_checkpoint", load_checkpoint)
    out = tmp_path / "out.onnx"
    for options in ((), ("--best",), ("--last",), ("--step", "40")):
        call("export", file, "--checkpoint", tmp_path / "run", *options, "-o", out)
        check_reads_back(out, params)
    chosen = [(None, True), (None, True), (None, False), (40, True)]
    assert asked == [("run", str(file), step, best) for step, best in chosen]


def test_types_that_archives_do_not_know(tmp_path):
    file, out = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(model_of([TIMES], [tensor(kind=TensorProto.BFLOAT16)], TensorProto.BFLOAT16), file)
    params = {"w": np.asarray((1, 2, 3), ml_dtypes.bfloat16)}
    found = call_json("export", file, "--params", archive_of(tmp_path / "p.npz", params), "-o", out, "--verify")
    check_reads_back(out, params)
    assert "reference" in found["verified"]["engine"]  # which exchanges bfloat16 with Python


def test_what_is_said_about_mistakes(layers, tmp_path):
    file, params = layers
    archive = archive_of(tmp_path / "params.npz", params)
    few = archive_of(tmp_path / "few.npz", {"W": params["W"]})
    wrong = archive_of(tmp_path / "nan.npz", params | {"P": params["P"] * np.float32(np.nan)})
    out, step = ("-o", tmp_path / "out.onnx"), ("--step", "3")
    mistakes = [
        ((file, "--params", archive, "--checkpoint", tmp_path, *out), "either --checkpoint DIR or --params"),
        ((file, "--params", archive, *step, *out), "--step needs --checkpoint DIR"),
        ((file, "--checkpoint", tmp_path, *step, "--last", *out), "--step and --last exclude each other"),
        ((file, "--params", archive, "--dim", "T=3", *out), "it needs --verify"),
        ((file, "--params", archive, "--dim", "Q=3", "--verify", *out), "no dimension 'Q'"),
        ((file, "--params", archive, "-o", tmp_path), "is a folder"),
        ((file, "--params", archive, "-o", tmp_path / "no" / "out.onnx"), "no folder"),
        ((file, "--params", tmp_path / "no.npz", *out), "no.npz cannot be read"),
        ((file, "--params", few, *out), "params: 'scale' is missing (and 3 more)"),
        ((file, "--params", wrong, *out), "params['P'][0, 0] = nan is not a number"),
    ]
    before = sorted(tmp_path.iterdir())
    for arguments, words in mistakes:
        assert words in call_json("export", *arguments, status=2)["error"]
    assert sorted(tmp_path.iterdir()) == before
