"""Compiled files: the same results without ONNX, and nothing runs from a file that is not whole."""

from __future__ import annotations

import subprocess
import sys

import jax
import numpy as np
import pytest
from test_steps import CASES, NAMES, close, frame, recording

import jaxrnn


@pytest.fixture(scope="module", params=NAMES)
def compiled(request, models, tmp_path_factory):
    dims, static = CASES[request.param]
    model = jaxrnn.load(models / f"{request.param}.onnx", static=static)
    path = tmp_path_factory.mktemp("compiled") / f"{request.param}.jaxrnn"
    jaxrnn.save_compiled(model, path, dims=dims)
    return model, dims, path


@pytest.mark.parametrize("batch", [1, 3])
def test_gives_the_same_results(compiled, batch):
    model, dims, path = compiled
    loaded = jaxrnn.load_compiled(path)
    assert loaded.batch_symbol == model.batch_symbol
    frames = recording(model, dims, batch, 7)
    found = loaded.scan(loaded.params, loaded.init_state(batch), frames)
    close(found, jax.jit(model.scan)(model.params, model.init_state(batch), frames))
    one = frame(frames, 0)
    expected = jax.jit(model.step)(model.params, model.init_state(batch), one)
    close(loaded.step(loaded.params, loaded.init_state(batch), one), expected)


def test_needs_no_onnx_and_no_tracing_of_the_model(compiled):
    model, dims, path = compiled
    one = frame(recording(model, dims), 0)
    expected, _ = jax.jit(model.step)(model.params, model.init_state(), one)
    arrays = path.with_suffix(".npz")
    np.savez(arrays, **one)
    code = f"""
import sys, numpy as np
sys.modules["onnx"] = sys.modules["onnx_ir"] = None
import jaxrnn
model = jaxrnn.load_compiled({str(path)!r})
outputs, _ = model.step(model.params, model.init_state(), dict(np.load({str(arrays)!r})))
np.savez({str(path.with_suffix(".out.npz"))!r}, **outputs)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    found = np.load(path.with_suffix(".out.npz"))
    close([{name: found[name] for name in found}], [expected])


@pytest.fixture
def small(models, tmp_path):
    path = tmp_path / "dtln.jaxrnn"
    jaxrnn.save_compiled(jaxrnn.load(models / "dtln_1.onnx"), path)
    return path


@pytest.mark.parametrize("where", [0.001, 0.3, 0.7, 0.999])
def test_damaged_files_are_refused(small, where):
    data = bytearray(small.read_bytes())
    data[int(where * len(data))] ^= 1
    small.write_bytes(data)
    with pytest.raises(jaxrnn.ModelError, match=r"damaged|not a model compiled"):
        jaxrnn.load_compiled(small)


def test_foreign_and_truncated_files_are_refused(small, models, tmp_path):
    small.write_bytes(small.read_bytes()[:-100])
    with pytest.raises(jaxrnn.ModelError, match="damaged"):
        jaxrnn.load_compiled(small)
    with pytest.raises(jaxrnn.ModelError, match="not a model compiled"):
        jaxrnn.load_compiled(models / "dtln_1.onnx")
    with pytest.raises(jaxrnn.ModelError, match="No such file"):
        jaxrnn.load_compiled(tmp_path / "nothing.jaxrnn")


def test_another_platform_is_named(models, tmp_path):
    path = tmp_path / "elsewhere.jaxrnn"
    elsewhere = "tpu" if jax.default_backend() != "tpu" else "cpu"
    jaxrnn.save_compiled(jaxrnn.load(models / "dtln_1.onnx"), path, platforms=[elsewhere])
    loaded = jaxrnn.load_compiled(path)
    with pytest.raises(jaxrnn.ModelError, match=rf"dtln_1\.onnx was compiled for {elsewhere}, but JAX runs on"):
        loaded.step(loaded.params, loaded.init_state(), {"input_2": np.zeros((1, 1, 257), np.float32)})


def test_what_does_not_fit_is_named(small, models):
    loaded = jaxrnn.load_compiled(small)
    state = loaded.init_state()
    with pytest.raises(jaxrnn.InputError, match=r"'input_2' must be float32\[1, 1, 257\].*float64"):
        loaded.step(loaded.params, state, {"input_2": np.zeros((1, 1, 257))})
    with pytest.raises(jaxrnn.InputError, match=r"'input_2'.*missing"):
        loaded.step(loaded.params, state, {})
    with pytest.raises(jaxrnn.StateError, match=r"'input_3'.*missing"):
        loaded.step(loaded.params, {}, {"input_2": np.zeros((1, 1, 257), np.float32)})
    silero = jaxrnn.load(models / "silero_vad_16k_op15.onnx", static={"sr": 16000})
    with pytest.raises(jaxrnn.InputError, match=r"size of sequence, as in dims=\{'sequence'"):
        jaxrnn.save_compiled(silero, small)
    assert jaxrnn.load_compiled(small).label == "dtln_1.onnx"  # which is still there
