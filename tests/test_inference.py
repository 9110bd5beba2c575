"""ONNX's own inference of shapes, in processes that a file may bring down."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from plain_graphs import RELU, WEIGHT, X, model, node
from refusals import check_refused
from test_bad_input import INT, edited
from tiers import of_tiers

import jaxrnn
from jaxrnn.model.inspection import inspect_model
from jaxrnn.onnx.inference import _SERVER

UNFIT = model(node("MatMul", ["x", "weight"], name="product"), initializers=[WEIGHT])


def shaped_by(length):
    """An Expand to a shape of so many sizes: those of an input, one behind the other."""
    sides = helper.make_tensor_value_info("s", TensorProto.INT64, length)
    flat = [node("Reshape", ["s", "all"], ["flat"], "flat"), node("Expand", ["x", "flat"])]
    return model(*flat, inputs=[X, sides], initializers=[numpy_helper.from_array(np.array([-1]), "all")], opset=8)


def beside_a_layer(*nodes, **options):
    """With a layer whose weights are computed, which makes looking into the file ask inference for their shapes."""
    extra = [numpy_helper.from_array(np.zeros((1, 4, size), np.float32), name) for name, size in (("w", 2), ("R", 1))]
    sequence = helper.make_tensor_value_info("t", TensorProto.FLOAT, ["T", 1, 2])
    layer = [node("Neg", ["w"], ["W"], "made"), node("LSTM", ["t", "W", "R"], ["", "", "c"], "layer", hidden_size=1)]
    proto = model(*nodes, *layer, **options)
    proto.graph.input.append(sequence)
    proto.graph.initializer.extend(extra)
    return proto


LAST_NORM = node("LayerNormalization", ["x", "w3"], ["y", "m"], axis=2**31)
GAIN = numpy_helper.from_array(np.ones(3, np.float32), "w3")

#: What onnx's own inference of shapes answers by ending the process, or by taking all time and memory: it is loaded,
#: or refused in words.
CRASHES = {
    "an axis that is no int": model(LAST_NORM, initializers=[GAIN]),
    "an axis that is no int, looked into": beside_a_layer(LAST_NORM, initializers=[GAIN]),
    "a rank that inference makes of two sizes": shaped_by([2**20, 2**20]),
    "a shape without end as a value": beside_a_layer(
        node("Cast", ["i"], ["y"], to=TensorProto.INT64),
        inputs=[X, helper.make_tensor_value_info("i", TensorProto.INT64, [2**62])],
        outputs=[helper.make_tensor_value_info("y", TensorProto.INT64, None)],
    ),
    "a batch of negative rank": model(node("GatherND", ["x", "i"], batch_dims=-7), inputs=[X, INT]),
    "as many parts as there are not": model(node("Split", ["x"], ["y", "z"], num_outputs=1), opset=18),
    "no type to follow": edited(model(node("EyeLike", ["x"], dtype=1)), lambda p: p.graph.input[0].ClearField("type")),
    "no type to match": edited(
        model(node("RegexFullMatch", ["x"], pattern="a"), opset=20), lambda p: p.graph.input[0].ClearField("type")
    ),
}


@pytest.mark.parametrize(
    "what", of_tiers(CRASHES, [each for each in CRASHES if "without end" not in each and "two sizes" not in each])
)
def test_what_inference_does_not_survive(what):
    """A process that dies fails the whole run."""
    with contextlib.suppress(jaxrnn.JaxrnnError):
        inspect_model(CRASHES[what])
    try:
        loaded = jaxrnn.load(CRASHES[what])
    except jaxrnn.JaxrnnError:
        return
    with pytest.raises(jaxrnn.JaxrnnError):
        loaded(**{info.name: np.ones((2, 3), info.dtype or np.float32) for info in loaded.inputs}, q=1)


def test_where_no_process_can_be_started(monkeypatch):
    """Evaluation tells then what does not fit."""
    for name, missing in (("executable", None), ("executable", "/no/such/interpreter"), ("frozen", True)):
        _SERVER.stop()
        with monkeypatch.context() as patch:
            patch.setattr(f"sys.{name}", missing, raising=False)
            check_refused(jaxrnn.NodeError, "'product'", jaxrnn.load(UNFIT), x=np.ones((2, 3), np.float32))


def test_shapes_of_weights_that_are_computed():
    (layer,) = inspect_model(beside_a_layer(RELU)).recurrent
    assert (layer.input_size, layer.hidden_size, layer.weights) == (2, 1, 12)


def test_one_process_answers_all_requests():
    """Whatever a file does, to the next one, and whoever asks."""

    def ask():
        with pytest.raises(jaxrnn.ModelError, match="'product'"):
            jaxrnn.load(UNFIT)

    ask()
    first = _SERVER._process
    with contextlib.suppress(jaxrnn.JaxrnnError):
        jaxrnn.load(CRASHES["an axis that is no int"])
    threads = [threading.Thread(target=lambda: [ask() for _ in range(4)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _SERVER._process is first
    first.kill()
    ask()
    assert _SERVER._process is not first


def test_an_interrupted_request_is_not_answered_to_the_next_one(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    jaxrnn.load(model(RELU))
    with monkeypatch.context() as patch:
        patch.setattr("jaxrnn.onnx.inference._exchange", interrupted)
        with pytest.raises(KeyboardInterrupt):
            jaxrnn.load(UNFIT)
    jaxrnn.load(model(RELU))


#: A program that asks, and once more in a fork; every process says who answers it, and the fork is not waited for.
FORKED = """
import os, sys, onnx
from jaxrnn.onnx.inference import _SERVER, check_shapes
from jaxrnn.errors import ModelError
proto = onnx.load_model_from_string(bytes.fromhex(sys.argv[1]))
def ask():
    try:
        check_shapes(proto, strict=True)
    except ModelError:
        return _SERVER._process.pid
first = ask()
child = os.fork()
if not child:
    second = ask()
    os._exit(not (first and second and first != second))
assert os.waitpid(child, 0)[1] == 0
assert ask() == first
print(first)
"""


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_has_a_process_of_its_own_and_none_outlives_its_caller():
    command = [sys.executable, "-W", "error", "-c", FORKED, UNFIT.SerializeToString().hex()]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not ended.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(ended.stdout), 0)
