"""Exported files are verified over whole recordings, and whatever is wrong with one is found."""

from __future__ import annotations

import functools

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from small_models import look_ahead_model, step_model
from tiers import of_tiers

import jaxrnn
from jaxrnn.export import verify_export
from jaxrnn.verification.running import WHOLE


@pytest.fixture(scope="module")
def model():
    return jaxrnn.load(look_ahead_model())


def exported(model, folder, pulse=2, batch=None):
    streamed = model.stream("T", pulse)
    jaxrnn.export_onnx(streamed, model.params, folder / "s.onnx", flush=folder / "f.onnx", batch=batch)
    return streamed


def verified(model, streamed, folder, **options):
    offline = functools.partial(model.apply, model.params)
    return verify_export(streamed, model.params, folder / "s.onnx", offline=offline, **options)


@pytest.mark.parametrize(("pulse", "batch"), of_tiers([(1, None), (4, 3)], [(4, 3)]))
def test_recordings_of_every_length_agree(model, tmp_path, pulse, batch):
    streamed = exported(model, tmp_path, pulse, batch)
    report = verified(model, streamed, tmp_path)
    assert report.ok
    assert report.flushed
    assert "ONNX Runtime" in report.engine
    lengths = [check.frames for check in report.checks if check.against == WHOLE]
    assert lengths == sorted(lengths)
    assert lengths[0] == 1  # as long as the delay
    assert {length % pulse for length in lengths} >= {0, pulse - 1}
    for check in report.checks:
        assert {each.name for each in check.outputs} == {"y", "total"}
        assert all(each.max_abs < 1e-5 for each in check.outputs)
    # Without the flush, recordings end with their last whole pulse, and nothing is known at the end.
    (tmp_path / "f.onnx").unlink()
    jaxrnn.export_onnx(streamed, model.params, tmp_path / "s.onnx", batch=batch)
    report = verified(model, streamed, tmp_path)
    assert report.ok
    assert not report.flushed
    assert {each.name for check in report.checks for each in check.outputs} == {"y"}


@pytest.mark.parametrize(("batch", "again"), of_tiers([(None, None), (None, 2), (3, None), (3, 2)], [(3, None)]))
def test_the_step_of_a_file_that_was_exported(model, tmp_path, batch, again):
    """It is still that of a stream, with its place in time."""
    exported(model, tmp_path, 2, batch)
    loaded = jaxrnn.load(tmp_path / "s.onnx")
    jaxrnn.export_onnx(loaded, None, tmp_path / "again.onnx", step=True, batch=again)
    report = verify_export(loaded, None, tmp_path / "again.onnx")
    assert report.ok
    assert {each.name for check in report.checks for each in check.outputs} == {"y"}


def test_there_is_something_to_compare(model, tmp_path):
    streamed = exported(model, tmp_path)
    only_at_end = jaxrnn.stream(lambda x: {"sum": x["x"].sum(2)}, {"x": np.zeros((1, 3, 9), np.float32)}, axes={"x": 2})
    jaxrnn.export_onnx(only_at_end, None, tmp_path / "end.onnx")
    with pytest.raises(jaxrnn.InputError, match="only the flush returns outputs"):
        verify_export(only_at_end, None, tmp_path / "end.onnx")

    def offline(x):
        raise jaxrnn.InputError("it wants other lengths")

    with pytest.raises(jaxrnn.InputError, match="it wants other lengths"):
        verify_export(streamed, model.params, tmp_path / "s.onnx", offline=offline)
    with pytest.raises(jaxrnn.InputError, match=r"f\.onnx is not a step written by"):
        verify_export(streamed, model.params, tmp_path / "f.onnx")


def test_a_step_agrees_with_its_state(tmp_path):
    model = step_model()
    jaxrnn.export_onnx(model, None, tmp_path / "s.onnx", step=True)
    report = verify_export(model, None, tmp_path / "s.onnx")
    assert report.ok
    (check,) = report.checks
    assert [each.name for each in check.outputs] == ["y", "state h"]
    assert not verify_export(step_model(seed=1), None, tmp_path / "s.onnx").ok


def another_weight(step, flush):
    """One number of one initializer."""
    tensor = next(each for each in step.graph.initializer if len(each.dims) > 1)
    array = numpy_helper.to_array(tensor).copy()
    array.flat[-1] += 1e-3
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def state_not_carried(name, step, flush):
    """An entry of the state that comes out as it went in."""
    for node in step.graph.node:
        node.output[:] = ["unused" if each == f"{name}_next" else each for each in node.output]
        node.input[:] = ["unused" if each == f"{name}_next" else each for each in node.input]
    step.graph.node.append(helper.make_node("Identity", [name], [f"{name}_next"]))


def another_delay(step, flush):
    """A file whose metadata promise one frame less of delay."""
    for model in (step, flush):
        for entry in model.metadata_props:
            entry.value = entry.value.replace('"delay": 1', '"delay": 0')


def a_frame_less(step, flush):
    """A flush that counts one frame too few."""
    for node in flush.graph.node:
        node.output[:] = ["more" if each == "y_count" else each for each in node.output]
    flush.graph.initializer.append(numpy_helper.from_array(np.array(1, np.int32), "one"))
    flush.graph.node.append(helper.make_node("Sub", ["more", "one"], ["y_count"]))


MUTATIONS = {
    "a weight": (another_weight, 0),
    "no history": (functools.partial(state_not_carried, "window.history"), 2),
    "no running sum": (functools.partial(state_not_carried, "sums.total"), 2),
    "another delay": (another_delay, None),
    "a frame less": (a_frame_less, None),
}


@pytest.mark.parametrize("mutation", of_tiers(MUTATIONS, ["no history", "a frame less"]))
def test_a_wrong_file_is_found(model, tmp_path, mutation):
    streamed = exported(model, tmp_path)
    mutate, first = MUTATIONS[mutation]
    files = [onnx.load(tmp_path / name) for name in ("s.onnx", "f.onnx")]
    mutate(*files)
    for file, name in zip(files, ("s.onnx", "f.onnx"), strict=True):
        onnx.save(file, tmp_path / name)
    report = verified(model, streamed, tmp_path)
    assert not report.ok
    longest = report.checks[-1]
    wrong = next(each for each in longest.outputs if each.name == "y")
    assert not wrong.ok
    if first is not None:
        assert wrong.first_frame is not None
        assert wrong.first_frame <= first
