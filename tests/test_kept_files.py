"""Files that earlier versions wrote: later versions read them, or refuse them by name, as `docs/stability.md` promises.

`tests/kept/make.py` wrote the files of each version, with the code of that version. They are never written again.
"""

import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from kept import make

import jaxrnn
from jaxrnn.evaluation import compare, read_results
from jaxrnn.training import load_checkpoint

KEPT = Path(__file__).parent / "kept"
VERSIONS = sorted(path.stem for path in KEPT.glob("*.zip"))


def arrays(path):
    with np.load(path) as archive:
        return dict(archive)


@pytest.fixture(params=VERSIONS)
def kept(request, tmp_path):
    with zipfile.ZipFile(KEPT / f"{request.param}.zip") as archive:
        archive.extractall(tmp_path)
    return tmp_path


def test_versions():
    assert VERSIONS[0] == "0.2.1"


def test_states_and_compiled_files(kept):
    """A live stream goes on where the earlier version stopped, in a compiled file, in JAX, and in the exported file."""
    model, after = jaxrnn.load(kept / "network.onnx"), arrays(kept / "after.npz")
    steppers = {
        "compiled": (jaxrnn.load_compiled(kept / "stream.jaxrnn"), None),
        "stream": (model.stream("time", pulse=4), model.params),
    }
    for name, (stepper, params) in steppers.items():
        run = jaxrnn.Runner(stepper, params)
        run.state = arrays(kept / "state.npz")
        np.testing.assert_allclose(run({"x": after["x"]})["y"], after["y"], rtol=1e-5, atol=1e-6, err_msg=name)
    step, first = jaxrnn.load(kept / "stream.onnx"), arrays(kept / "stream.first_state.npz")
    assert {variable.input for variable in step.state} == set(first)
    x, stream = make.examples()[0]["x"], model.stream("time", pulse=4)
    outputs, _ = step.step(step.params, first, {"x": x[:, :4]})
    expected, _ = stream.step(model.params, stream.init(), {"x": x[:, :4]})
    np.testing.assert_allclose(outputs["y"][:, 1:], expected["y"][:, 1:], rtol=1e-5, atol=1e-6)  # behind the delay


def test_checkpoints(kept):
    """A training goes on from update 4, and ends with the weights of a training without a break."""
    weights = load_checkpoint(kept / "checkpoints")
    assert set(weights) == {"kernel", "W", "R"}
    resumed = make.train(kept, epochs=3)
    shutil.rmtree(kept / "checkpoints")
    whole = make.train(kept, epochs=3)
    assert [record["step"] for record in resumed.history] == list(range(1, 7))
    for name, array in whole.params.items():
        np.testing.assert_allclose(resumed.params[name], array, rtol=1e-5, atol=1e-6)


def test_results(kept):
    results = read_results(kept / "results")
    assert len(results.table) == 3
    assert compare(kept / "results", kept / "results").differences[0].ties == 3


@pytest.mark.thorough
@pytest.mark.parametrize("kept", ["0.2.1"], indirect=True)
def test_an_evaluation_of_version_0_2_is_not_continued(kept):
    folder = kept / "again"
    folder.mkdir()
    shutil.copytree(kept / "results", folder / "results")
    again = make.evaluate(folder)
    assert again.returncode == 2
    assert "an evaluation of jaxrnn 0.2" in again.stderr
