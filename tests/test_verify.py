"""Verification of models and exported files: equal results are accepted, and each difference is found and named."""

from __future__ import annotations

import functools
import itertools
import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from refusals import check_refused
from small_models import (
    FEATURES,
    a_little_wrong,
    graph_of,
    layers_model,
    look_ahead_model,
    make_model,
    operator_replaced,
    step_model,
)
from tiers import of_tiers

import jaxrnn
from jaxrnn import InputError, NodeError, load
from jaxrnn.comparison import agree, compare
from jaxrnn.demo import PACKAGED
from jaxrnn.export import verify_export
from jaxrnn.verification import verify
from jaxrnn.verification.peers import PeerError, Reference, expose
from jaxrnn.verification.running import WHOLE
from jaxrnn.verification.sampling import random_inputs, symbols_of

BF16 = np.dtype(ml_dtypes.bfloat16)
NAN, INF = np.nan, np.inf

#: Options of real models, and the engine to compare with.
REAL = {
    "dtln_1": {},
    "silero_vad_16k_op15": {"static": {"sr": 16000}, "dims": {"sequence": 576, "batch": 2}, "engine": "reference"},
    "filter_net": {"dims": {"S": 7}},
    "dual_path_net": {"dims": {"S": 3}, "engine": "reference"},
    "keyword_net": {"dims": {"S": [40, 33]}},
    "wave_net": {"dims": {"S": 640}},
    "ocr_net": {"dims": {"width": 64, "batch": 2}},
    "predictor_net": {"dims": {"batch": [1, 3]}},
}


@pytest.mark.parametrize("name", of_tiers(REAL, ("dtln_1",), ("silero_vad_16k_op15",)))
def test_real_models_agree_inside_and_outside(models, name):
    report = verify(models / f"{name}.onnx", nodes=name != "filter_net", **REAL[name])
    assert report.ok, report
    assert all(case.values >= 5 for case in report.cases) or name == "filter_net"
    assert max(output.max_abs for case in report.cases for output in case.outputs) < 1e-4


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["ort", "reference"])
def test_every_combination_of_sizes_is_a_case(engine):
    report = verify(layers_model(), dims={"T": (1, 4), "batch": [2, 3]}, engine=engine, nodes=True)
    assert report.ok
    assert [(case.dims["T"], case.dims["batch"]) for case in report.cases] == list(itertools.product((1, 4), (2, 3)))
    assert [case.outputs[0].shape for case in report.cases] == [(t, b, 2) for t in (1, 4) for b in (2, 3)]
    assert {case.values for case in report.cases} == {6}


@pytest.mark.parametrize("engine", ["ort", "reference"])
def test_the_first_wrong_node_is_named(engine):
    with operator_replaced("Tanh", a_little_wrong):
        blind = verify(layers_model(), engine=engine)
        report = verify(layers_model(), engine=engine, nodes=True)
        loose = verify(layers_model(), engine=engine, nodes=True, atol=1e-2)
    assert not blind.ok
    assert blind.cases[0].first is None
    assert not report.ok
    first = report.cases[0].first
    assert (first.node, first.operator, first.comparison.name) == ("squash", "Tanh-13", "squashed")
    assert 1e-4 < first.comparison.max_rel < 1.1e-3
    assert loose.ok


def test_types_that_onnx_runtime_does_not_exchange_go_to_the_reference():
    model = layers_model(TensorProto.BFLOAT16)
    with pytest.raises(PeerError, match="bfloat16"):
        verify(model, engine="ort")
    report = verify(model, nodes=True)
    assert "reference" in report.engine
    assert "bfloat16" in report.notes[0]
    assert report.ok, report
    assert report.cases[0].outputs[0].dtype == "bfloat16"


@pytest.mark.parametrize("size", [1.5, True, "a"])
def test_sizes_are_whole_numbers(size):
    words = f"the size of the dimension 'time' must be a whole number of at least 0, not {size!r}"
    check_refused(jaxrnn.InputError, words, verify, PACKAGED, dims={"time": size})


@pytest.mark.parametrize("size", [{"time": 0}, {"batch": 0}])
def test_recurrent_layers_without_frames_go_to_the_reference(size):
    """ONNX Runtime would end the process."""
    with pytest.raises(PeerError, match="runs no GRU or LSTM without frames or streams, and 'magnitude' is empty"):
        verify(PACKAGED, dims=size, engine="ort")


def test_static_and_given_inputs_reach_the_peer():
    """The trip count of the loop is static; some inputs are given, and others are random."""
    body = graph_of(
        [helper.make_node("Add", ["carry", "step"], ["next"]), helper.make_node("Identity", ["go"], ["go_on"])],
        {"i": (TensorProto.INT64, []), "go": (TensorProto.BOOL, []), "carry": ["N"]},
        {"go_on": (TensorProto.BOOL, []), "next": ["N"], "carry": ["N"]},
    )
    loop = helper.make_node("Loop", ["trips", "", "start"], ["last", "all"], name="loop", body=body)
    inputs = {"trips": (TensorProto.INT64, []), "start": ["N"], "step": ["N"]}
    graph = graph_of([loop], inputs, {"last": ["N"], "all": ["trips", "N"]}, name="counted")
    step = np.arange(4, dtype=np.float32)
    report = verify(make_model(graph), {"step": step}, static={"trips": 3}, nodes=True)
    case = report.cases[0]
    assert report.ok, report
    assert (case.dims, case.drawn, case.outputs[1].shape) == ({"N": 4}, {"start": "standard normal"}, (3, 4))
    with pytest.raises(InputError, match=r"N=4.*N=9"):
        verify(make_model(graph), {"step": step}, static={"trips": 3}, dims={"N": 9})


AGREE = [
    ("floats", [1.0, 2.0, 0.0], [1.00001, 1.9999, 9e-6], {}),
    ("nans and infinities", [NAN, INF, -INF, 1.0], [NAN, INF, -INF, 1.0], {}),
    ("nans on purpose", [NAN, INF, -INF], [NAN, INF, -INF], {"require_finite": False}),
    ("halves inside", np.float32([1.0]), np.float32([1.005]), {"precision": np.dtype(np.float16)}),
    ("halves", np.float16([1.0]), np.float16([1.005]), {}),
    ("bfloat16", np.array([1.0], BF16), np.array([1.05], BF16), {}),
    ("integers, loosely", [1, 2], [1, 3], {"atol": 1}),
    ("cancellation", [1000.0, 1e-3], [1000.0, 2e-3], {"scaled": True}),
    ("strings", np.array(["a"]), np.array(["a"], object), {}),
    ("strings inside a graph", np.array(["a\0"], np.dtypes.StringDType()), np.array(["a\0"], object), {}),
    ("bytes", np.array([b"a"]), np.array(["a"]), {}),
    ("sequences", (np.ones(2), np.zeros(1)), [np.ones(2), np.zeros(1)], {}),
    ("absent", None, None, {}),
    ("byte order", np.array([1.0], "<f4"), np.array([1.0], ">f4"), {}),
    ("byte order here", np.array([1.0], ">f4"), np.array([1.0], "<f4"), {}),
]
DIFFERENT = [
    ("value", [1.0, 2.0], [1.0, 2.1], {}, "1 of 2"),
    ("tolerance is met or not at its own place", [1e6, 1.0], [1e6, 1.1], {}, "1 of 2"),
    ("nan here", [NAN], [1.0], {}, "1 here, 0 in the peer"),
    ("nan there", [0.0], [NAN], {}, "0 here, 1 in the peer"),
    ("finite and infinite", [1.0], [INF], {}, "1 of 1"),
    ("opposite infinities", [INF], [-INF], {}, "1 of 1"),
    ("large integers", np.int64([2**60]), np.int64([2**60 + 1]), {}, "1 of 1"),
    ("halves, exactly", np.float16([1.0]), np.float16([1.005]), {"atol": 0, "rtol": 0}, "1 of 1"),
    ("cancellation", [1000.0, 1e-3], [1000.0, 2e-3], {}, "1 of 2"),
    ("type", np.float32([1]), np.float64([1]), {}, "element type"),
    ("shape", np.ones((2, 1)), np.ones((1, 2)), {}, "shape"),
    ("strings", np.array(["a", "b"]), np.array(["a", "c"]), {}, "1 of 2"),
    ("a zero at the end", np.array(["a\0", "b"], object), np.array(["a", "b"], object), {}, "1 of 2"),
    ("sequence item", (np.ones(2), np.zeros(1)), (np.ones(2), np.ones(1)), {}, r"value\[1\]"),
    ("sequence length", (np.ones(2),), (), {}, "1 items here, but 0"),
    ("absent", None, np.ones(1), {}, "absent here, but an array"),
]


@pytest.mark.parametrize(("here", "peer", "options"), [row[1:] for row in AGREE], ids=[row[0] for row in AGREE])
def test_comparison_agrees(here, peer, options):
    assert compare("value", _plain(here), _plain(peer), **options).ok


@pytest.mark.parametrize(
    ("here", "peer", "options", "reason"), [row[1:] for row in DIFFERENT], ids=[row[0] for row in DIFFERENT]
)
def test_comparison_differs(here, peer, options, reason):
    result = compare("value", _plain(here), _plain(peer), **options)
    assert not result.ok
    assert re.search(reason, result.reason)


NOTHING = [
    ("nans and infinities", [NAN, INF, -INF], [NAN, INF, -INF], "no element is finite"),
    ("empty", np.zeros((0, 3)), np.zeros((0, 3)), "the value has no elements"),
    ("no strings", np.zeros(0, object), np.zeros(0, object), "the value has no elements"),
    ("an empty sequence", (), [], "the value has no elements"),
    ("a sequence of nans", (np.array([NAN]),), [np.array([NAN])], "no element is finite"),
]


@pytest.mark.parametrize(("here", "peer", "reason"), [row[1:] for row in NOTHING], ids=[row[0] for row in NOTHING])
def test_a_comparison_of_nothing_is_no_agreement(here, peer, reason):
    """It is no difference either, so that a value may be empty on some inputs and compared on others."""
    result = compare("value", _plain(here), _plain(peer))
    assert (result.ok, result.differs, result.compared) == (False, False, 0)
    assert result.reason == f"nothing was compared: {reason}"
    other, wrong = (compare("value", np.ones(3), value) for value in (np.ones(3), np.zeros(3)))
    assert (other.ok, other.compared) == (True, 3)
    assert not agree([result])
    assert agree([result, other])
    assert not agree([result, other, wrong])
    assert not agree([other, replace(result, name="another value")])
    assert not agree([])


@pytest.mark.parametrize("option", [{"atol": -1.0}, {"rtol": float("nan")}])
def test_what_is_no_tolerance_is_refused(option):
    check_refused(InputError, "must be a number of at least 0", compare, "value", np.ones(2), np.ones(2), **option)


def _plain(value):
    return np.asarray(value) if isinstance(value, list) and value and isinstance(value[0], float | int) else value


def test_errors_are_measured_where_they_are():
    result = compare("value", np.float64([[1.0, 2.0], [3.0, 4.5]]), np.float64([[1.0, 2.0], [3.5, 4.0]]))
    assert (result.max_abs, result.worst) == (0.5, (1, 0))
    assert result.max_rel == pytest.approx(0.5 / 3.5)


def _lookup_model() -> onnx.ModelProto:
    """Return a model with rows of a table by index, and a window whose length is a formula of another dimension."""
    node = helper.make_node("Gather", ["table", "tokens"], ["rows"])
    inputs = {
        "tokens": (TensorProto.INT32, ["batch", "S"]),
        "wave": ["4*S + 1", "past"],
        "flag": (TensorProto.BOOL, [64]),
    }
    table = np.ones((7, FEATURES), np.float32)
    return make_model(graph_of([node], inputs, {"rows": ["batch", "S", FEATURES]}, {"table": table}, "lookup"))


def test_random_inputs_fit_the_declarations():
    model = load(_lookup_model())
    assert symbols_of(model.inputs) == ("batch", "S", "past")
    sample = random_inputs(model, dims={"S": 50, "past": 2})
    assert sample.dims == {"batch": 1, "S": 50, "past": 2}
    assert sample.assumed == ("batch",)
    tokens, wave, flag = (sample.inputs[name] for name in ("tokens", "wave", "flag"))
    assert (tokens.dtype, tokens.shape, set(tokens.ravel())) == (np.int32, (1, 50), set(range(7)))
    assert (wave.dtype, wave.shape) == (np.float32, (201, 2))
    assert set(flag) == {False, True}
    again, other = random_inputs(model, dims={"S": 50, "past": 2}), random_inputs(model, dims={"S": 50}, seed=1)
    assert all(np.array_equal(sample.inputs[name], again.inputs[name]) for name in sample.inputs)
    assert not np.array_equal(tokens, other.inputs["tokens"])
    given = random_inputs(model, {"tokens": np.zeros((2, 6), np.int32)})
    assert given.inputs["wave"].shape == (25, 16)
    assert given.random == ("wave", "flag")


@pytest.mark.parametrize(
    ("dims", "message"),
    [({"T": 3}, "batch, S, past"), ({"S": -1}, "-1"), ({"S": 2.5}, "2.5"), ({"S": 10**15}, "too large")],
)
def test_bad_dimensions_are_refused(dims, message):
    check_refused(InputError, message, random_inputs, load(_lookup_model()), dims=dims)


def test_assumed_sizes_are_named():
    """Sixteen samples do not fit into frames of ten."""
    node = helper.make_node("Reshape", ["x", "shape"], ["y"], name="frames")
    graph = graph_of([node], {"x": ["S"]}, {"y": ["F", 10]}, {"shape": np.array([-1, 10])})
    with pytest.raises(NodeError, match=r"'frames'[\s\S]*assumed sizes: S=16[\s\S]*dims=\{'S': SIZE\}"):
        verify(make_model(graph))
    assert verify(make_model(graph), dims={"S": 30}).ok


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


@pytest.mark.thorough
@pytest.mark.parametrize(("pulse", "batch"), of_tiers([(1, None), (4, 3)], [(4, 3)], []))
def test_recordings_of_every_length_agree(model, tmp_path, pulse, batch):
    streamed = exported(model, tmp_path, pulse, batch)
    report = verified(model, streamed, tmp_path)
    assert report.ok
    assert report.flushed
    assert "ONNX Runtime" in report.engine
    lengths = [check.dims["frames"] for check in report.cases if check.against == WHOLE]
    assert lengths == sorted(lengths)
    assert lengths[0] == 1  # as long as the delay
    assert {length % pulse for length in lengths} >= {0, pulse - 1}
    for check in report.cases:
        assert {each.name for each in check.outputs} == {"y", "total"}
        assert all(each.max_abs < 1e-5 for each in check.outputs)
    # Without the flush, recordings end with their last whole pulse, and nothing is known at the end.
    (tmp_path / "f.onnx").unlink()
    jaxrnn.export_onnx(streamed, model.params, tmp_path / "s.onnx", batch=batch)
    report = verified(model, streamed, tmp_path)
    assert report.ok
    assert not report.flushed
    assert {each.name for check in report.cases for each in check.outputs} == {"y"}


@pytest.mark.parametrize(
    ("batch", "again"), of_tiers([(None, None), (None, 2), (3, None), (3, 2)], [(3, None)], [(None, 2)])
)
def test_the_step_of_a_file_that_was_exported(model, tmp_path, batch, again):
    """It is still that of a stream, with its place in time."""
    exported(model, tmp_path, 2, batch)
    loaded = jaxrnn.load(tmp_path / "s.onnx")
    jaxrnn.export_onnx(loaded, None, tmp_path / "again.onnx", step=True, batch=again)
    report = verify_export(loaded, None, tmp_path / "again.onnx")
    assert report.ok
    assert {each.name for check in report.cases for each in check.outputs} == {"y"}


def test_there_is_something_to_compare(model, tmp_path):
    streamed = exported(model, tmp_path)
    only_at_end = jaxrnn.stream(lambda x: {"sum": x["x"].sum(2)}, {"x": np.zeros((1, 3, 9), np.float32)}, axes={"x": 2})
    jaxrnn.export_onnx(only_at_end, None, tmp_path / "end.onnx")

    def offline(x):
        raise jaxrnn.InputError("it wants other lengths")

    for stepper, params, name, options, words in (
        (only_at_end, None, "end.onnx", {}, "only the flush returns outputs"),
        (streamed, model.params, "s.onnx", {"offline": offline}, "it wants other lengths"),
        (streamed, model.params, "f.onnx", {}, r"f\.onnx is not a step written by"),
    ):
        check_refused(jaxrnn.InputError, words, verify_export, stepper, params, tmp_path / name, **options)


def test_a_step_agrees_with_its_state(tmp_path):
    model = step_model()
    jaxrnn.export_onnx(model, None, tmp_path / "s.onnx", step=True)
    report = verify_export(model, None, tmp_path / "s.onnx")
    assert report.ok
    (check,) = report.cases
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


def padding_is_read(step, flush):
    """A flush that computes with all frames of its last pulse, as if zeros followed the recording."""
    (padded,) = (node.output[0] for node in flush.graph.node if node.input[0] == "x")
    read = {padded}
    for node in flush.graph.node:
        if node.op_type == "Where" and node.input[1] in read:
            node.op_type, node.input[:] = "Identity", [node.input[1]]
            read.update(node.output)


MUTATIONS = {
    "a weight": (another_weight, 0),
    "no history": (functools.partial(state_not_carried, "window.history"), 2),
    "no running sum": (functools.partial(state_not_carried, "sums.total"), 2),
    "another delay": (another_delay, None),
    "a frame less": (a_frame_less, None),
    "padding": (padding_is_read, None),
}


@pytest.mark.parametrize("mutation", of_tiers(MUTATIONS, ["padding"], ["no history", "a weight"]))
def test_a_wrong_file_is_found(model, tmp_path, mutation):
    streamed = exported(model, tmp_path)
    mutate, first = MUTATIONS[mutation]
    files = [onnx.load(tmp_path / name) for name in ("s.onnx", "f.onnx")]
    mutate(*files)
    for file, name in zip(files, ("s.onnx", "f.onnx"), strict=True):
        onnx.save(file, tmp_path / name)
    report = verified(model, streamed, tmp_path)
    assert not report.ok
    longest = report.cases[-1]
    wrong = next(each for each in longest.outputs if each.name == "y")
    assert not wrong.ok
    if first is not None:
        assert wrong.first_frame is not None
        assert wrong.first_frame <= first


def recording_of(proto, inside=(), times=4):
    """What a framework would record: the inputs, outputs and some values inside the graph, from ONNX's evaluator."""
    x = np.random.default_rng(3).standard_normal((times, 2, FEATURES)).astype(np.float32)
    whole = onnx.ModelProto()
    whole.CopyFrom(proto)
    expose(whole, inside)
    return {"x": x} | Reference(whole).run({"x": x})


def exported_wrongly():
    """The same network with another projection matrix, as a wrong exporter writes it."""
    proto = layers_model()
    (matrix,) = (tensor for tensor in proto.graph.initializer if tensor.name == "P")
    matrix.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(matrix)[::-1].copy(), "P"))
    return proto


@pytest.mark.parametrize("engine", of_tiers(["ort", "reference"], ["reference"]))
def test_a_recording_shows_who_is_wrong(engine):
    """The file, jaxrnn or the other engine; with values inside the graph, the first node that differs."""
    recording = recording_of(layers_model(), ["scaled", "squashed"])
    right = verify(layers_model(), outputs=recording, engine=engine)
    assert right.ok
    assert (right.cases[0].fault, right.conclusion) == (None, None)
    assert [each.name for each in right.cases[0].recorded] == ["scaled", "squashed", "Y_h", "logits"]

    for nodes in (False, True):
        wrong = verify(exported_wrongly(), outputs=recording, engine=engine, nodes=nodes)
        case = wrong.cases[0]
        assert not wrong.ok
        assert (case.fault, case.engines_agree, case.values) == ("file", True, 5 * nodes + nodes)
        assert (case.first_recorded.name, case.first_recorded.node) == ("logits", "project")
        assert re.match(
            r"The file is at fault: jaxrnn and .* differ from the recording in 'logits' \(", wrong.conclusion
        )
        assert "The first recorded value that differs is 'logits' of node 'project' (MatMul-13)" in wrong.conclusion
        assert "'Y_h' of node 'lstm' still agrees" in wrong.conclusion

    with operator_replaced("Tanh", a_little_wrong):
        ours = verify(layers_model(), outputs=recording, engine=engine)
    assert ours.cases[0].fault == "jaxrnn"
    assert ours.cases[0].first_recorded.node == "squash"
    assert "agrees with the recording, and jaxrnn differs in 'squashed'" in ours.conclusion

    with operator_replaced("Tanh", a_little_wrong):
        as_jaxrnn = {name: np.asarray(value) for name, value in load(layers_model())(x=recording["x"]).items()}
        theirs = verify(layers_model(), {"x": recording["x"]}, outputs=as_jaxrnn, engine=engine)
        everyone = verify(exported_wrongly(), outputs=recording, engine=engine)
    assert (theirs.ok, theirs.cases[0].fault) == (False, "engine")
    assert "jaxrnn agrees with the recording, and" in theirs.conclusion
    assert everyone.cases[0].fault == "unknown"
    assert "all differ" in everyone.conclusion


def test_a_recording_of_outputs_alone_asks_for_values_inside():
    recording = recording_of(layers_model())
    report = verify(exported_wrongly(), outputs=recording)
    assert "To find the node, also record values inside the module" in report.conclusion


#: Changes of a recording, and the error.
UNFIT = {
    "name": (
        lambda r: r | {"logit": r["logits"]},
        r"'logit' \(did you mean 'logits'\?\).*the outputs are: logits: float32",
    ),
    "only inputs": (lambda r: {"x": r["x"]}, "hold no output of the file; the outputs are: logits: float32"),
    "shape": (
        lambda r: r | {"logits": r["logits"][1:], "Y_h": r["Y_h"].astype(float)},
        r"'logits' is float32\[3, 2, 2\], and the file computes float32\[4, 2, 2\]; 'Y_h' is float64.*computes float32",
    ),
    "no input": (lambda r: {"logits": r["logits"]}, "need the inputs that they were computed from: give x: float32"),
    "other input": (lambda r: r | {"x": r["x"][:, :, 1:]}, "x"),
}


@pytest.mark.parametrize("what", UNFIT)
def test_recordings_that_do_not_fit(what):
    change, message = UNFIT[what]
    check_refused(InputError, message, verify, layers_model(), outputs=change(recording_of(layers_model())))
    with pytest.raises(InputError, match="one set of inputs"):
        verify(layers_model(), outputs=recording_of(layers_model()), dims={"T": [4, 4]})


RECORDED = ("keras_gru", "keras_bidirectional", "lstm_no_state_dynamo", "conv_gru_script", "cumulative_norm_script")


@pytest.mark.parametrize("name", of_tiers(RECORDED, [], ("keras_gru",)))
def test_recordings_of_frameworks(models, name):
    """The recordings beside the files agree at both lengths; a recording of other weights does not."""
    path = models / "exports" / f"{name}.onnx"
    with np.load(path.with_suffix(".npz")) as archive:
        for index in "01":
            keys = (key for key in archive.files if key.startswith((f"in{index}.", f"out{index}.")))
            recording = {key.partition(".")[2]: archive[key] for key in keys}
            report = verify(path, outputs=recording)
            assert report.ok, report
            last = load(path).outputs[0].name
            assert verify(path, outputs=recording | {last: 1.1 * recording[last]}).cases[0].fault == "file"


def graph_model(nodes, inputs, outputs, constants=()):
    """A model of nodes, each given by operator, inputs, output and attributes."""
    made = [helper.make_node(kind, read, [written], name=written, **more) for kind, read, written, more in nodes]
    return make_model(graph_of(made, inputs, outputs, constants))


LOG = graph_model([("Log", ["x"], "l", {}), ("Add", ["l", "h"], "y", {})], {"x": ["T", 3], "h": [3]}, {"y": ["T", 3]})
DOMAINS = {
    "roots": ([("Sqrt", ["x"], "y", {})], "positive"),
    "entropies": (
        [("Sub", ["one", "x"], "a", {}), ("Log", ["a"], "b", {}), ("Log", ["x"], "c", {})],
        "between 0 and 1",
    ),
    "inverse cosh": ([("Acosh", ["x"], "y", {})], "above 1"),
    "any number": ([("Tanh", ["x"], "y", {})], "standard normal"),
}


@pytest.mark.parametrize("name", DOMAINS)
def test_random_inputs_are_inside_the_domain(name):
    nodes, way = DOMAINS[name]
    if nodes[-1][2] != "y":
        nodes = [*nodes, ("Mul", ["b", "c"], "y", {})]
    report = verify(graph_model(nodes, {"x": ["T", 3]}, {"y": ["T", 3]}, {"one": np.ones(1, np.float32)}))
    assert report.ok
    assert (report.cases[0].drawn, report.compared) == ({"x": way}, 48)


def test_an_output_without_a_finite_element_is_a_failure():
    """Other inputs stay standard normal; inputs of the caller are not changed."""
    report = verify(LOG)
    assert (report.ok, report.cases[0].drawn) == (True, {"x": "positive", "h": "standard normal"})
    nothing = verify(LOG, {"x": -np.ones((4, 3), np.float32)})
    assert (nothing.ok, nothing.compared, nothing.cases[0].ok) == (False, 0, False)
    assert nothing.cases[0].outputs[0].reason == "nothing was compared: no element is finite"
    assert not verify(LOG, dims={"T": 0}).ok
    assert verify(LOG, dims={"T": [0, 2]}).compared == 6


MASKED = graph_model(
    [
        ("Shape", ["x"], "s", {"end": 1}),
        ("Squeeze", ["s"], "t", {}),
        ("Range", ["zero", "t", "one"], "r", {}),
        ("Cast", ["n"], "n64", {"to": TensorProto.INT64}),
        ("Less", ["r", "n64"], "mask", {}),
        ("Where", ["mask", "r", "zero"], "kept", {}),
        ("Gather", ["x", "place"], "row", {}),
    ],
    {
        "x": ["T", 3],
        "n": (TensorProto.INT32, [1]),
        "place": (TensorProto.INT64, [64]),
        "flag": (TensorProto.INT64, [2]),
    },
    {"kept": (TensorProto.INT64, ["T"]), "row": [64, 3]},
    {"zero": np.array(0), "one": np.array(1)},
)


def test_integers_are_numbers_that_the_graph_takes():
    """Lengths and positions reach the end of their axis, whatever its size."""
    for size in (16, 5):
        sample = random_inputs(load(MASKED), dims={"T": size})
        assert {name: way for name, way in sample.drawn.items() if name != "x"} == {
            "n": f"1 to {size}",
            "place": f"0 to {size - 1}",
            "flag": "0 to 1",
        }
        assert set(sample.inputs["place"]) >= {0, size - 1}
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((1, 8, size)).astype(np.float32) for name, size in (("W", 3), ("R", 2))}
    lstm = ("LSTM", ["x", "W", "R", "", "n"], "y", {"hidden_size": 2})
    inputs = {"x": ["T", 40, 3], "n": (TensorProto.INT32, [40])}
    model = graph_model([lstm], inputs, {"y": ["T", 1, 40, 2]}, weights)
    lengths = random_inputs(load(model)).inputs["n"]
    assert (min(lengths), max(lengths)) == (1, 16)
    assert verify(model).ok


def half_inside(kind=TensorProto.FLOAT16):
    """A product in float16 between inputs and outputs in float32."""
    nodes = [("Cast", ["x"], "a", {"to": kind}), ("MatMul", ["a", "w"], "b", {}), ("Cast", ["b"], "y", {"to": 1})]
    weights = np.random.default_rng(0).standard_normal((64, 8)).astype(helper.tensor_dtype_to_np_dtype(kind))
    return graph_model(
        [*nodes, ("Relu", ["x"], "z", {})], {"x": ["T", 64]}, {"y": ["T", 8], "z": ["T", 64]}, {"w": weights}
    )


def test_tolerances_follow_the_narrowest_arithmetic():
    """Of each value by itself: the other output has the tolerance of float32."""
    report = verify(half_inside(), nodes=True)
    assert report.ok
    assert 1e-4 < report.cases[0].outputs[0].max_abs < 0.1
    with operator_replaced("Relu", lambda function: lambda x: function(x) * x.dtype.type(1.001)):
        report = verify(half_inside(), nodes=True)
    assert [each.ok for each in report.cases[0].outputs] == [True, False]
    assert report.cases[0].first.node == "z"
    # Weights that are stored in float16 are numbers of float32.
    stored = [("Cast", ["w"], "v", {"to": 1}), ("MatMul", ["x", "v"], "y", {})]
    stored = graph_model(stored, {"x": ["T", 4]}, {"y": ["T", 2]}, {"w": np.full((4, 2), 0.1, np.float16)})
    with operator_replaced("MatMul", lambda function: lambda x, y: function(x, y) * x.dtype.type(1.001)):
        assert not verify(stored).ok


def test_float64_is_the_arbiter_of_rounding():
    """Both engines lose digits where three numbers are nearly equal; a wrong operator is as wrong in float64."""
    norm = [("LayerNormalization", ["x", "scale"], "y", {})]
    model = graph_model(norm, {"x": ["T", 3]}, {"y": ["T", 3]}, {"scale": np.ones(3, np.float32)})
    x = (10 + 0.1 * np.random.default_rng(0).standard_normal((3000, 3))).astype(np.float32)
    report = verify(model, {"x": x}, nodes=True)
    (found,) = report.cases[0].outputs
    assert report.ok
    assert not compare("y", 0 * x, 0 * x + np.float32(found.max_abs)).ok
    assert found.nearer in ("here", "peer")
    assert re.fullmatch(r"up to rounding: jaxrnn is off float64 by up to \S+, the peer by \S+", found.reason)

    for wide, nearer, words in ((True, None, "the engines also differ in float64"), (False, "peer", "jaxrnn is off")):
        with operator_replaced("LayerNormalization", functools.partial(one_in_a_thousand, wide=wide)):
            (found,) = verify(model, {"x": x}).cases[0].outputs
        assert (found.ok, found.differs, found.nearer) == (False, True, nearer)
        assert words in found.arbiter


@pytest.mark.thorough
def test_float64_is_the_arbiter_of_exported_files(tmp_path):
    """Not of a file with another weight; and without the model, nobody knows."""
    constants = {"scale": np.ones(3, np.float32), "axis": np.array(0)}
    nodes = [("LayerNormalization", ["x", "scale"], "n", {}), ("CumSum", ["n", "axis"], "y", {})]
    model = load(graph_model(nodes, {"x": ["T", 3]}, {"y": ["T", 3]}, constants))
    streamed = model.stream("T", 4)
    jaxrnn.export_onnx(streamed, model.params, tmp_path / "s.onnx", flush=tmp_path / "f.onnx")
    x = (100 + 0.1 * np.random.default_rng(0).standard_normal((14, 3))).astype(np.float32)
    check = functools.partial(verify_export, streamed, model.params, tmp_path / "s.onnx", inputs={"x": x})
    report = check(offline=model)
    assert report.ok
    assert [each.dims["frames"] for each in report.cases if each.against == WHOLE] == [1, 3, 4, 5, 13, 14]
    assert "up to rounding: the file is off float64 by" in report.cases[-1].outputs[0].reason
    assert not check(offline=functools.partial(model.apply, model.params)).ok
    for name in ("s.onnx", "f.onnx"):
        file = onnx.load(tmp_path / name)
        (scale,) = (each for each in file.graph.initializer if each.name == "scale")
        scale.CopyFrom(numpy_helper.from_array(1.05 * constants["scale"], "scale"))
        onnx.save(file, tmp_path / name)
    wrong = check(offline=model)
    assert not wrong.ok
    assert {each.outputs[0].nearer for each in wrong.cases[-2:]} == {"peer"}


def one_in_a_thousand(function, wide):
    """A function of floats with an error in float32, or in every type."""

    @functools.wraps(function)
    def wrong(*arguments, **more):
        results = function(*arguments, **more)
        return [each * each.dtype.type(1.001) if wide or each.dtype == np.float32 else each for each in results]

    return wrong


def test_without_float64_it_is_unknown_which_engine_is_nearer():
    nodes = [("DynamicQuantizeLinear", ["x"], "q", {}), ("Tanh", ["x"], "y", {})]
    proto = graph_model(nodes, {"x": ["T", 3]}, {"y": ["T", 3]})
    proto.graph.node[0].output[:] = ["q", "s", "z"]
    with operator_replaced("Tanh", a_little_wrong), operator_replaced("DynamicQuantizeLinear", only_in_float32):
        (found,) = verify(proto).cases[0].outputs
    assert (found.differs, found.nearer) == (True, "unknown")
    assert "which side is nearer to float64 is unknown" in found.arbiter


def only_in_float32(function):
    def refusing(x):
        if x.dtype != np.float32:
            raise TypeError("float32 is expected")
        return function(x)

    return refusing
