"""`jaxrnn compile --symbol`: a model over whole recordings becomes a file of pulses that has been seen to work."""

from __future__ import annotations

import numpy as np
import pytest
from test_cli import call, call_json
from tiers import of_tiers

import jaxrnn
import jaxrnn.runtime.compiled
from jaxrnn.cli.errors import MISMATCH
from jaxrnn.demo import PACKAGED


@pytest.mark.parametrize(
    ("name", "options", "pulse"),
    of_tiers(
        [("keyword_net", ("--pulse", 4), 4), ("wave_net", (), 64)],
        [("keyword_net", ("--pulse", 4), 4)],
    ),
)
def test_says_what_it_wrote_and_has_verified(models, tmp_path, name, options, pulse):
    path, out = models / f"{name}.onnx", tmp_path / "out.jaxrnn"
    found = call_json("compile", path, "-o", out, "--symbol", "S", *options)
    model, loaded = jaxrnn.load(path), jaxrnn.load_compiled(out)
    streamed = model.stream(pulse=pulse)
    assert [left.name for left in tmp_path.iterdir()] == ["out.jaxrnn"]
    assert found["bytes"] == out.stat().st_size
    assert found["functions"] == ["init", "step", "flush"]
    assert (found["pulse"], found["look_ahead"], found["delay"]) == (pulse, streamed.look_ahead, streamed.delay)
    assert found["rate"] == {output: str(rate) for output, rate in streamed.rate.items()}
    assert found["outputs"] == [info.name for info in model.outputs]
    assert found["verified"]
    assert found["largest_difference"] < 1e-5
    assert (loaded.spec.label, loaded.spec.pulse) == (path.name, pulse)
    rng = np.random.default_rng(0)
    x = {each.name: rng.normal(size=each.shape).astype(np.float32) for each in loaded.spec.inputs}
    outputs, _ = loaded.step(None, loaded.init(), x)
    wanted, _ = streamed.step(model.params, streamed.init(), x)
    for output, value in wanted.items():
        np.testing.assert_allclose(outputs[output], value, atol=1e-5)


def test_text_for_people(models, tmp_path):
    path = models / "keyword_net.onnx"
    text = call("compile", path, "-o", tmp_path / "k.jaxrnn", "--symbol", "S", "--platform", "cpu").stdout
    for said in ("init, step, flush, for cpu", "pulse: 2 input", "logits by 1 of its", "loaded again: a step or the"):
        assert said in text
    elsewhere = call("compile", path, "-o", tmp_path / "t.jaxrnn", "--symbol", "S", "--platform", "tpu").stdout
    assert "not verified" in elsewhere


def test_nothing_that_differs_is_written(models, tmp_path, monkeypatch):
    load = jaxrnn.runtime.compiled.load_compiled

    def load_wrongly(path, **how):
        compiled = load(path, **how)
        compiled.params = tuple(1.01 * array for array in compiled.params)
        return compiled

    monkeypatch.setattr(jaxrnn.runtime.compiled, "load_compiled", load_wrongly)
    arguments = ("compile", models / "wave_net.onnx", "-o", tmp_path / "w.jaxrnn", "--symbol", "S")
    said = call_json(*arguments, status=MISMATCH)
    assert "nothing was written: a step or the flush of the compiled file differs" in said["error"]
    assert "flush of clean" in said["error"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "Here: --symbol NAME"),
        (("--pulse", 4), "--pulse needs --symbol NAME"),
        (("--multiple", 2), "--multiple needs --symbol NAME"),
        (("--symbol", "T"), "no input has a dimension 'T'; dimensions left open: S"),
        (("--symbol", "S", "--pulse", 3), "a pulse of 3 frame(s) does not fit"),
        (("--symbol", "S", "--dim", "S=4"), "--dim gives 'S'"),
    ],
)
def test_mistakes_are_one_clear_error(models, tmp_path, options, said):
    result = call("compile", models / "keyword_net.onnx", "-o", tmp_path / "k.jaxrnn", *options, status=2)
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())


def test_machine_code_is_kept_and_run_where_it_is_asked_for(tmp_path):
    out = tmp_path / "denoiser.jaxrnn"
    arguments = ["compile", PACKAGED, "-o", out, "--dim", "time=1"]
    made = call_json(*arguments, "--native", "--streams", 2)
    assert made["native"] == ["step", "step_2", "pool_run_2", "pool_take_2", "pool_clear_2"]
    assert made["verified"]
    assert "--streams needs --native" in call_json(*arguments, "--streams", 2, status=2)["error"]
    stream = ["stream", out, "--random", "--steps", 3]
    native, portable = (call_json(*stream, "-o", tmp_path / "out.npz", *more) for more in (["--native"], []))
    assert native.keys() == portable.keys()
    assert "not compiled" in call_json("stream", PACKAGED, "--random", "--native", status=2)["error"]
    assert not call_json(*arguments)["native"]
    with pytest.warns(UserWarning, match="holds no machine code"):
        call_json(*stream, "--native")
