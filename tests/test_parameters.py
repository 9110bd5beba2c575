"""The choice between parameters and constants by the flow of values, in small graphs and in files of exporters."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper, numpy_helper
from tiers import of_tiers

import jaxrnn
from jaxrnn.cli import main
from jaxrnn.model.inspection import inspect_model
from jaxrnn.verification.sampling import random_inputs

UNREACHED = "reaches no float output by a differentiable path"
N = 4


def graph(text: str, producer: str = "", **tensors: np.ndarray | float) -> onnx.ModelProto:
    """Return a model in ONNX's text syntax, with float tensors of shape [4, 4] for names that are not given."""
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17], producer_name: "{producer}"> {text}')
    rng = np.random.default_rng(0)
    made = {name for node in proto.graph.node for name in node.output} | {each.name for each in proto.graph.input}
    for node in proto.graph.node:
        for name in node.input:
            if name and name not in made:
                made.add(name)
                array = np.asarray(tensors.get(name, rng.standard_normal((N, N)).astype(np.float32)))
                proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return proto


def reasons(proto) -> dict[str, str]:
    return {each.name: each.reason for each in inspect_model(proto).constants}


def test_gradients_decide():
    """A copy of which only the shape is read, a compared and an unused tensor, and an unread carry are constants."""
    text = """g (float[T,4] x) => (float[T,4] y, int64[T] best) {
      sizes = Shape (copy)
      like = ConstantOfShape (sizes)
      added = MatMul (x, w)
      h, seen = Loop (trips, , added, passed) <body = body (int64 i, bool go, float[T,4] a, float[4,4] b) =>
        (bool on, float[T,4] c, float[4,4] d) {
          on = Identity (go)
          c = MatMul (a, outer)
          d = Identity (b)
      }>
      unread = MatMul (x, unused)
      scores = MatMul (x, head)
      best = ArgMax <axis = 1, keepdims = 0> (scores)
      above = Greater (added, limits)
      gate = Cast <to = 1> (above)
      gated = Mul (gate, h)
      y = Add (gated, zero)
    }"""
    zero = np.zeros((1, N), np.float32)
    proto = graph(text, trips=np.int64(2), limits=np.ones(N, np.float32), zero=zero)
    proto.graph.initializer.append(numpy_helper.from_array(np.eye(N, dtype=np.float32), "outer"))
    model = jaxrnn.load(proto)
    assert set(model.params) == {"w", "outer", "zero"}
    found = reasons(proto)
    assert found == dict.fromkeys(("copy", "passed", "unused", "head"), UNREACHED) | {"limits": "only compared"}
    x = jnp.ones((3, N))
    slopes = jax.grad(lambda params: model.apply(params, {"x": x})["y"].sum())(model.params)
    assert all(jnp.any(slope != 0) for slope in slopes.values())


def test_weights_reached_through_a_carry():
    """A weight whose product appears in the output one step later, or only in a branch, is a parameter."""
    text = """g (float[4] x, bool flag) => (float[4] y) {
      a, b = Loop (trips, , x, x) <body = body (int64 i, bool go, float[4] p, float[4] q) =>
        (bool on, float[4] r, float[4] s) {
          on = Identity (go)
          r = Tanh (q)
          s = MatMul (q, w)
      }>
      y = If (flag) <then_branch = then () => (float[4] u) { u = MatMul (a, v) },
                     else_branch = other () => (float[4] z) { z = Identity (a) }>
    }"""
    proto = graph(text, trips=np.int64(3))
    for name in "wv":
        proto.graph.initializer.append(numpy_helper.from_array(np.eye(N, dtype=np.float32), name))
    assert set(jaxrnn.load(proto).params) == {"w", "v"}


def test_a_model_of_integers_keeps_its_weights():
    """Without a float output, each tensor that reaches an output is a parameter."""
    text = """g (float[T,4] x) => (int64[T] y) {
      scores = MatMul (x, w)
      y = ArgMax <axis = 1, keepdims = 0> (scores)
      unread = MatMul (x, unused)
    }"""
    assert set(jaxrnn.load(graph(text)).params) == {"w"}


def test_masks():
    """A table of 0 and large numbers is a mask if it is added or selected; a weight with a large number is a weight."""
    text = """g (float[4,4] x) => (float[4,4] y) {
      masked = Add (x, mask)
      chosen = Where (keep, masked, fill)
      biased = Add (chosen, bias)
      y = MatMul (biased, w)
    }"""
    mask = np.triu(np.full((N, N), -2.37e38, np.float32), 1)
    bias = np.array([0, 1, -np.inf, 2], np.float32)
    fill, keep = np.full((N, N), -np.inf, np.float32), np.eye(N) > 0
    proto = graph(text, mask=mask, fill=fill, keep=keep, bias=bias, w=mask)
    assert list(jaxrnn.load(proto).params) == ["bias", "w"]
    assert reasons(proto) == dict.fromkeys(("mask", "fill"), "values of a mask")


ROWS = np.arange(2 * N, dtype=np.float32).reshape(1, 2, N) + 1
#: By name: producer, first state, node that makes h0 from it, and whether the first state is a parameter.
STARTS = {
    "stateful": ("tf2onnx", ROWS[:, :1], "h0 = Identity (start)", False),
    "stateful batch": ("", ROWS, "h0 = Identity (start)", False),
    "trained, for each batch": ("tf2onnx", ROWS[:, :1], "h0 = Expand (start, sizes)", True),
    "trained": ("pytorch", ROWS[:, :1], "h0 = Identity (start)", True),
    "trained and mapped": ("tf2onnx", ROWS[:, :1], "h0 = Tanh (start)", True),
    "equal rows": ("", np.ones((1, 2, N), np.float32), "h0 = Identity (start)", True),
}


@pytest.mark.parametrize("name", STARTS)
def test_first_states(name):
    """A state frozen at export is a constant; a trained first state is a parameter, and so is each stated tensor."""
    producer, start, node, trained = STARTS[name]
    text = f"""g (float[T,B,4] x) => (float[T,1,B,4] y) {{
      {node}
      y, last = GRU <hidden_size = 4> (x, w, r, , , h0)
    }}"""
    weight = np.random.default_rng(0).standard_normal((1, 3 * N, N)).astype(np.float32)
    proto = graph(text, producer, start=start, w=weight, r=weight, sizes=np.array([1, 2, N]))
    model = jaxrnn.load(proto)
    assert set(model.params) == {"w", "r", *(["start"] if trained else [])}
    if not trained:
        assert reasons(proto)["start"].startswith("a frozen first state: ")
        (variable,) = jaxrnn.load(proto).state
        assert "starts from a constant that is not zero at every call" in variable.reason
    helper.set_model_props(proto, {"jaxrnn.weights": json.dumps([*model.params, "start"])})
    assert set(jaxrnn.load(proto).params) == {"w", "r", "start"}
    assert {each.name for each in inspect_model(proto).parameters} == {"w", "r", "start"}
    x = np.zeros((2, 2 if "Expand" in node else start.shape[1], N), np.float32)
    assert np.array_equal(jaxrnn.load(proto)({"x": x})["y"], model({"x": x})["y"])


EXPORTS = {
    "exports/keras_gru": 3,
    "exports/keras_conv_gru": 6,
    "exports/keras_bidirectional": 3,
    "exports/loop_smooth": 3,
    "exports/step_wkv_script": 9,
    "speech/keras_attention": 14,
    "speech/keras_frequency_bigru": 11,
    "speech/crn_gru_script": 28,
    "speech/tasnet_cln_script": 103,
}


@pytest.mark.parametrize("name", of_tiers(EXPORTS, [], [*EXPORTS][::10]))
def test_exports(models, name):
    """Gradients reach every parameter. Other values of the tensors that gradients do not reach change no output."""
    path = models / f"{name}.onnx"
    model = jaxrnn.load(path)
    assert len(model.params) == EXPORTS[name]
    inputs = random_inputs(model).inputs

    def loss(params):
        return sum(jnp.sum(jnp.sin(3 * value)) for value in model.apply(params, inputs).values())

    slopes = jax.jit(jax.grad(loss))(model.params)
    assert all(jnp.any(slope != 0) for slope in slopes.values())
    proto, unread = onnx.load(path), {key for key, reason in reasons(path).items() if reason == UNREACHED}
    assert bool(unread) == (name == "speech/keras_attention")
    for tensor in proto.graph.initializer:
        if tensor.name in unread:
            tensor.CopyFrom(numpy_helper.from_array(1 + numpy_helper.to_array(tensor), tensor.name))
    changed = jaxrnn.load(proto)(inputs)
    assert all(np.array_equal(value, changed[key]) for key, value in model(inputs).items())


@pytest.mark.thorough
def test_inspect_lists_constants_and_carries(models):
    """Constants stand apart with their reasons; a loop shows its state without its weights, and lines are short."""
    runner = CliRunner()
    text = runner.invoke(main, ["inspect", str(models / "speech" / "keras_attention.onnx")]).output
    assert f"{UNREACHED}\n  const_fold_opt__4794: float32[1, 1, 2, 8, 16]\n" in text
    for name in ("speech/keras_frequency_bigru", "silero_vad"):
        text = runner.invoke(main, ["inspect", str(models / f"{name}.onnx")]).output
        assert max(map(len, text.splitlines())) <= 120
        assert " ... " not in text
    found = inspect_model(models / "exports" / "keras_gru.onnx")
    assert all(len(node.carries) == 2 for node in found.recurrent)
    text = runner.invoke(main, ["inspect", str(models / "exports" / "keras_gru.onnx")]).output
    assert "Loop       placeholder_2:0: float32[1, 8]\n" in "\n".join(map(str.rstrip, text.splitlines()))
