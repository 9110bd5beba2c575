"""Plain forms: the same functions with one equation for each layer and convolution, and windows in their own layout."""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from recurrent_reference import build, nodes
from small_models import FEATURES, layers_model
from stream_functions import CASES
from streaming_verifier import assert_same, check_values
from tiers import of_tiers

import jaxrnn
from jaxrnn._jax.context import exact_types
from jaxrnn.cells.forms import plain_forms
from jaxrnn.jaxprs.equations import walk
from jaxrnn.streaming import transform
from jaxrnn.streaming.checking import POISON, InPulses
from jaxrnn.streaming.measuring import drawn

#: By model, the smallest pulse.
NETWORKS = {"dual_path_net": 1, "keyword_net": 2, "wave_net": 64}
#: Functions through rules that have a plain form of their own; all others run the same program, as test_stream.py does.
QUICK = (
    "transposed with stride",
    "stride 3, dilation 2",
    "time behind another axis",
    "running softmax",
    "frames by a table of numbers",
)
MORE = (
    "linear recurrence",
    "parallel resistors",
    "LSTM and its final state",
    "strides of several layers",
    "transposed by 2",
    "depthwise",
    "convolution over frequency",
    "over frequency",
    "max pooling",
    "spectrum of overlapping frames",
    "running logsumexp",
    "layers with look-ahead in a loop",
)


def primitives(function, *arguments):
    return Counter(equation.primitive.name for equation in walk(jax.make_jaxpr(function)(*arguments).jaxpr))


@pytest.mark.parametrize("name", of_tiers((*QUICK, *MORE), QUICK, MORE[::6]))
def test_streams_are_exact(name):
    with plain_forms():
        check_values(CASES[name].function, (20, 3), **CASES[name].options)


@pytest.mark.thorough
@given(nodes())
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_layer_is_one_equation(case):
    """With every feature of its operator, mapped too, it is what it is in the usual forms."""
    operator, arrays, attributes, wanted, opset = case
    weights = {"W", "R", "B", "P"} & set(arrays)
    model = jaxrnn.load(build(operator, arrays, attributes, wanted, opset, set(arrays) - weights))
    x = {name: array for name, array in arrays.items() if name not in weights}
    fixed = {name: array for name, array in x.items() if name == "sequence_lens"}
    moving = {name: np.stack([array, array[::-1]]) for name, array in x.items() if name not in fixed}

    def of_streams(params, moving):
        return jax.vmap(lambda x: model.apply(params, fixed | x))(moving)

    def results(params, x, moving):
        many = jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf]), params)
        return of_streams(params, moving), jax.vmap(model.apply, (0, None))(many, x)

    with exact_types():
        expected = jax.jit(results)(model.params, x, moving)
        with plain_forms():
            found = jax.jit(results)(model.params, x, moving)
            for counts in (primitives(model.apply, model.params, x), primitives(of_streams, model.params, moving)):
                assert counts["recurrent_layer"] == 1
                assert not {"cond", "scan", "dot_general", "platform_index"} & set(counts)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-9), found, expected)


def test_a_layer_has_derivatives():
    model = jaxrnn.load(layers_model())
    x = jnp.asarray(drawn((4, 2, FEATURES)))

    def loss(params, x):
        return jnp.sum(jnp.sin(model.apply(params, {"x": x})["logits"]))

    expected = jax.grad(loss, (0, 1))(model.params, x)
    with plain_forms():
        found = jax.grad(loss, (0, 1))(model.params, x)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-5), found, expected)


@pytest.mark.parametrize("name", of_tiers(NETWORKS, (), ("keyword_net",)))
def test_networks(models, name, monkeypatch):
    """Equal from the first frame to the last, alone and in a batch, and as simple as an ONNX graph has it."""
    monkeypatch.setattr(transform, "PLACEHOLDER", POISON)
    model, pulse = jaxrnn.load(models / f"{name}.onnx"), NETWORKS[name]
    usual = model.stream(pulse=pulse)
    plain = usual._export_form().stepper
    assert [spec.name.rpartition(".")[0] for spec in plain.state] == [
        spec.name.rpartition(".")[0] for spec in usual.state
    ]
    assert not plain.spec.joined
    assert set(plain.init()) == {spec.name for spec in plain.state}

    frame = {each.name: drawn(each.sizes, each.dtype) for each in plain.spec.inputs}
    step = jax.make_jaxpr(plain.step)(model.params, plain.init(), frame).jaxpr
    counts, operators = (
        Counter(each.primitive.name for each in walk(step)),
        Counter(node.op_type for node in model.proto.graph.node),
    )
    assert not {"cond", "platform_index", "scan"} & set(counts)
    assert counts["conv_general_dilated"] == operators["Conv"] + operators["ConvTranspose"]
    assert counts["recurrent_layer"] == operators["GRU"] + operators["LSTM"]
    check_windows(plain, step, len(jax.tree.leaves(model.params)))

    with exact_types():
        frames = 9 * pulse
        inputs = {
            info.name: drawn([frames if size == "S" else size for size in info.shape], np.float32, place)
            for place, info in enumerate(model.inputs)
        }
        for pulses in ([pulse], [3 * pulse, pulse, 2 * pulse]):
            found, expected = (InPulses(each, model.params).run(inputs, frames, pulses) for each in (plain, usual))
            assert_same(found, expected, 1e-6, f"{name}, pulses {pulses}")
        pair = {key: jnp.stack([value, -value]) for key, value in frame.items()}
        batch, _ = plain.step(model.params, plain.init(2), pair)
        for index, sign in enumerate((1, -1)):
            one, _ = plain.step(model.params, plain.init(), {key: sign * value for key, value in frame.items()})
            jax.tree.map(lambda y, ys, i=index: np.testing.assert_allclose(ys[i], y, atol=1e-6), one, batch)


def check_windows(streamed, step, params):
    """Each buffer is read by one concatenation, of which the buffer after the step is one slice.

    A window and a delay may share a buffer.
    """
    after = dict(zip(sorted(spec.name for spec in streamed.state), step.outvars[-len(streamed.state) :], strict=True))
    before = dict(zip(after, step.invars[params:], strict=False))
    makers = {variable: equation for equation in step.eqns for variable in equation.outvars}
    windows = [spec.name for spec in streamed.state if spec.kind in ("history", "delay")]
    for name in windows:
        (joined,) = [equation for equation in step.eqns if before[name] in equation.invars]
        assert joined.primitive.name == "concatenate"
        assert makers[after[name]].primitive.name == "slice"
        assert makers[after[name]].invars == joined.outvars
        readers = [equation for equation in step.eqns if joined.outvars[0] in equation.invars]
        assert len(readers) <= 3
        assert {equation.primitive.name for equation in readers} <= {"slice", "conv_general_dilated"}


@pytest.mark.thorough
def test_a_step_of_a_model_and_its_usual_form_have_caches_of_their_own(models):
    model = jaxrnn.load(models / "dtln_1.onnx")
    x = {info.name: drawn(info.shape, info.dtype) for info in model.spec.inputs}
    usual = primitives(model.step, model.params, model.init(), x)
    expected = model.step(model.params, model.init(), x)
    with plain_forms():
        plain = primitives(model.step, model.params, model.init(), x)
        found = model.step(model.params, model.init(), x)
    assert plain["recurrent_layer"] == 2
    assert plain["dot_general"] < usual["dot_general"]
    assert "cond" in usual
    assert "cond" not in plain
    assert primitives(model.step, model.params, model.init(), x) == usual
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-6), found, expected)
