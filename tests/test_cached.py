"""Compiled steps beside an ONNX file: the same results, and never those of another file."""

from __future__ import annotations

import shutil
import subprocess
import sys
import warnings

import jax
import numpy as np
import onnx
import pytest
from compilations import compilations
from onnx import TensorProto, helper, numpy_helper
from refusals import check_refused

import jaxrnn
from jaxrnn.demo import PACKAGED


def ended(stepper, params=None):
    """Return the outputs of a stream over seven frames, by a runner."""
    run = jaxrnn.Runner(stepper, params)
    x = np.random.default_rng(0).standard_normal((7, 2)).astype(np.float32)
    first = [run({"x": x[index : index + 2]})["y"] for index in (0, 2, 4)]
    return np.concatenate([*first, run.flush({"x": x[6:]})["y"]])


def offline_file(path, scale=2.0, **how):
    """Write a model that sums over all frames so far and scales the sum."""
    nodes = [helper.make_node("CumSum", ["x", "axis"], ["sum"]), helper.make_node("Mul", ["sum", "scale"], ["y"])]
    arrays = {"axis": np.array(0), "scale": np.full(2, scale, np.float32)}
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["time", 2]) for name in "xy"]
    model = helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors))
    onnx.save(model, path, **how)
    return path


def test_the_second_call_compiles_nothing_and_agrees(tmp_path):
    path, stream = offline_file(tmp_path / "sums.onnx"), {"pulse": 2}
    expected = ended(jaxrnn.load(path).stream(pulse=2), jaxrnn.load(path).params)
    assert np.array_equal(ended(jaxrnn.load_cached(path, stream=stream)), expected)
    (kept,) = (tmp_path / "__jaxrnn__").iterdir()
    with compilations() as compiled:
        assert np.array_equal(ended(jaxrnn.load_cached(path, stream=stream)), expected)
    assert not compiled
    assert list((tmp_path / "__jaxrnn__").iterdir()) == [kept]


def test_another_content_or_option_is_compiled(tmp_path):
    path, stream = offline_file(tmp_path / "sums.onnx"), {"pulse": 2}
    before = ended(jaxrnn.load_cached(path, stream=stream))
    offline_file(path, scale=3.0)
    assert np.array_equal(ended(jaxrnn.load_cached(path, stream=stream)), 1.5 * before)
    assert len(list((tmp_path / "__jaxrnn__").iterdir())) == 1
    assert jaxrnn.load_cached(path, stream={"pulse": 4}).spec.pulse == 4
    with jax.enable_x64(True):
        jaxrnn.load_cached(path, stream=stream)
    with jax.default_matmul_precision("highest"):
        jaxrnn.load_cached(path, stream=stream)
    assert len(list((tmp_path / "__jaxrnn__").iterdir())) == 4


def test_external_data_count_as_content(tmp_path):
    how = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    path, stream = offline_file(tmp_path / "sums.onnx", **how), {"pulse": 2}
    before, whole = ended(jaxrnn.load_cached(path, stream=stream)), path.read_bytes()
    (tmp_path / "w.bin").unlink()
    check_refused(jaxrnn.ModelError, "w.bin", jaxrnn.load_cached, path, stream=stream)
    offline_file(path, scale=3.0, **how)
    assert path.read_bytes() == whole
    assert np.array_equal(ended(jaxrnn.load_cached(path, stream=stream)), 1.5 * before)


def test_a_damaged_file_is_written_again(tmp_path):
    path, stream = offline_file(tmp_path / "sums.onnx"), {"pulse": 2}
    expected = ended(jaxrnn.load_cached(path, stream=stream))
    (kept,) = (tmp_path / "__jaxrnn__").iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-1])
    assert np.array_equal(ended(jaxrnn.load_cached(path, stream=stream)), expected)
    assert jaxrnn.load_compiled(kept).spec.pulse == 2


def test_steps_that_cannot_be_kept_run(tmp_path):
    path, blocked = offline_file(tmp_path / "sums.onnx"), tmp_path / "blocked"
    blocked.write_bytes(b"a file where the folder should be")
    with pytest.warns(UserWarning, match="cannot be kept for the next start"):
        loaded = jaxrnn.load_cached(path, stream={"pulse": 2}, folder=blocked)
    assert np.array_equal(ended(loaded), ended(jaxrnn.load(path).stream(pulse=2), jaxrnn.load(path).params))


def test_each_start_gives_the_warnings_of_the_first(tmp_path):
    path = offline_file(tmp_path / "sums.onnx")
    proto = onnx.load(path)
    proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 3  # the nodes give 2
    onnx.save(proto, path)
    options = {"load": {"declared": "lenient"}, "stream": {"pulse": 2}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first start shows nothing, and the next start has another filter
        jaxrnn.load_cached(path, **options)
    (kept,) = (tmp_path / "__jaxrnn__").iterdir()
    whole = kept.read_bytes()
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"sums\.onnx: the file declares the output y: float32") as given:
            jaxrnn.load_cached(path, **options)
        assert [each.filename for each in given] == [__file__]
    assert kept.read_bytes() == whole
    with pytest.warns(UserWarning, match="declares the output"), pytest.raises(jaxrnn.InputError, match="tme"):
        jaxrnn.load_cached(path, load={"declared": "lenient"}, stream={"symbol": "tme"})


def test_refusals(tmp_path):
    path = offline_file(tmp_path / "sums.onnx")
    own = {("own", "Sum"): lambda x: x}
    check_refused(jaxrnn.InputError, "own operators are functions", jaxrnn.load_cached, path, load={"operators": own})
    check_refused(jaxrnn.InputError, "a dict of options", jaxrnn.load_cached, path, stream=4)
    check_refused(
        jaxrnn.InputError, r"`stream` has no option 'puls'.*'pulse'", jaxrnn.load_cached, path, stream={"puls": 4}
    )
    check_refused(jaxrnn.ModelError, "none.onnx", jaxrnn.load_cached, tmp_path / "none.onnx")
    assert not (tmp_path / "__jaxrnn__").exists()


@pytest.mark.thorough
def test_a_model_in_steps(tmp_path):
    path = tmp_path / "denoiser.onnx"
    shutil.copy(PACKAGED, path)
    frame = {"magnitude": np.full((1, 1, 129), 0.5, np.float32)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        masks = [jaxrnn.Runner(jaxrnn.load_cached(path, dims={"time": 1}))(frame)["mask"] for _ in range(2)]
    expected = jaxrnn.Runner(jaxrnn.load(path))(frame)["mask"]
    np.testing.assert_allclose(masks, [expected] * 2, rtol=0, atol=1e-6)


@pytest.mark.thorough
def test_a_later_start_imports_no_interpreter(tmp_path):
    shutil.copy(PACKAGED, tmp_path / "denoiser.onnx")
    code = "import sys, jaxrnn; jaxrnn.load_cached('denoiser.onnx', dims={'time': 1}); print(*sys.modules)"
    first, later = (
        subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, capture_output=True, text=True)
        for _ in range(2)
    )
    interpreters = {"jaxrnn.model.model", "jaxrnn.onnx", "jaxrnn.streaming", "onnx"}
    assert interpreters <= {*first.stdout.split()}
    assert not interpreters & {*later.stdout.split()}
