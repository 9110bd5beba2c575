"""`past`: causal attention without a bound, streamed with a band, against the function with this band written out."""

from __future__ import annotations

import functools
import itertools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from flax import nnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax
from refusals import check_refused
from streaming_verifier import check_gradients, check_values
from test_cli import call, call_json
from test_stream_attention import HEADS, WIDTH, W, apart, attend, bucketed, is_bounded, library, masks
from tiers import of_tiers

import jaxrnn
from jaxrnn.export import verify_export

EXAMPLE = jax.ShapeDtypeStruct((12, WIDTH), np.float32)
#: Farther back than any key: the function without a band.
ALL = 1 << 20
PAST = 3


def seen_by(x, past, ahead=0):
    """The mask of causal attention. The comparison with the past is written only where there is a band."""
    d = apart(x)
    return (d >= -ahead) if past == ALL else (d >= -ahead) & (d <= past)


def causal(x, past, *, ahead=0, **options):
    return attend(x, seen_by(x, past, ahead), **options)


def projected(x):
    return [x @ w.astype(x.dtype) for w in W[:3]]


def softmaxed(x, past, mask):
    """Single-head attention, with a mask as ``mask(scores, seen)`` writes it."""
    q, k, v = projected(x)
    return mask(q @ k.T, seen_by(x, past)) @ v


def with_where(scores, seen):
    return jax.nn.softmax(scores, where=seen)


def added(scores, seen):
    return jax.nn.softmax(scores + jnp.where(seen, 0.0, -1e9).astype(scores.dtype))


def as_in_keras(scores, seen):
    return jax.nn.softmax(scores + (1.0 - seen.astype(scores.dtype)) * jnp.asarray(-1e9, scores.dtype))


def by_hand(scores, seen):
    scores = jnp.where(seen, scores, -jnp.inf)
    weights = jnp.exp(scores - lax.stop_gradient(jnp.max(scores, 1, keepdims=True, initial=-jnp.inf)))
    return weights / jnp.sum(weights, 1, keepdims=True)


def keys_first(x, past):
    q, k, v = projected(x)
    return jax.nn.softmax(jnp.where(seen_by(x, past).T, k @ q.T, -jnp.inf), 0).T @ v


def alibi(x, past):
    slopes = jnp.asarray([0.5, 0.25])[:, None, None]
    return causal(x, past, bias=-slopes * jnp.abs(apart(x)).astype(jnp.float32))


def t5(x, past):
    return causal(x, past, bias=bucketed(x, both=False))


def by_distance(x, past):
    """Weights that depend on positions only."""
    weights = added(
        -0.25 * apart(x).astype(x.dtype), (apart(x) >= 0) if past == ALL else (apart(x) >= 0) & (apart(x) <= past)
    )
    return weights @ x


def two_layers(x, past):
    x = x + causal(x, past)
    return x + causal(jax.nn.gelu(x @ W[0].astype(x.dtype)), past, ahead=1)


def banded_and_causal(x, past):
    """The band of the first layer is longer than `past`, and stays."""
    seen = apart(x) >= 0
    x = x + attend(x, seen & (apart(x) <= 5))
    return x + attend(x, seen if past == ALL else seen_by(x, past))


def beside_linear_attention(x, past):
    """The second layer is a recurrence, and keeps the whole past."""
    x = x + causal(x, past)
    return x + jnp.where(apart(x) >= 0, x @ x.T, 0.0) @ x / 30


def masked_twice(x, past):
    """The first layer is bounded by a second mask, and stays."""
    q, k, v = projected(x)
    scores = jnp.where(apart(x) >= 0, q @ k.T, -jnp.inf)
    return causal(jax.nn.softmax(jnp.where(apart(x) <= 5, scores, -jnp.inf)) @ v, past)


def cut_off(x, past):
    """Weights beyond 5 frames are dropped after the softmax."""
    q, k, v = projected(x)
    seen = seen_by(x, past)
    weights = jax.nn.softmax(jnp.where(seen, q @ k.T, -jnp.inf))
    return jnp.where(apart(x) <= 5, weights, 0) @ v


def differential(x, past):
    """The difference of two softmaxes, and the largest score as a second output."""
    q, k, v = projected(x)
    seen = seen_by(x, past)
    first, second = (jnp.where(seen, scores, -jnp.inf) for scores in (q @ k.T, 2 * q @ k.T))
    return (jax.nn.softmax(first) - 0.5 * jax.nn.softmax(second)) @ v, jnp.max(first, 1, initial=-jnp.inf)


def in_a_loop(x, past):
    """Layers as a scan, with checkpoints."""
    weights = jnp.stack([W[0], W[1]]).astype(x.dtype)
    layer = jax.checkpoint(lambda x, w: (x + causal(jnp.tanh(x @ w), past), None))
    return lax.scan(layer, x, weights)[0]


def with_own_rule(x, past):
    """A function with a derivative rule, which holds for the band too."""

    @jax.custom_vjp
    def attention(x):
        return causal(x, past)

    attention.defvjp(lambda x: jax.vjp(functools.partial(causal, past=past), x), lambda pull, g: pull(g))
    return attention(jnp.tanh(x))


def straight_through(x, past):
    """A derivative rule that is not the derivative, behind attention."""

    @jax.custom_vjp
    def rounded(x):
        return jnp.round(4 * x) / 4

    rounded.defvjp(lambda x: (rounded(x), None), lambda _, g: (3 * g,))
    return rounded(causal(x, past))


def counted(x, past):
    """As the layer `Attention` of Keras: rows and columns of a matrix of ones, counted by running sums."""
    ones = jnp.ones((x.shape[0], x.shape[0]), np.int32)
    rows, columns = jnp.cumsum(ones, -2), jnp.cumsum(ones, -1)
    seen = (rows >= columns) if past == ALL else (rows >= columns) & (rows - columns <= past)
    q, k, v = projected(x)
    return jax.nn.softmax(jnp.where(seen, q @ k.T, q @ k.T - 1e9)) @ v


CASES = {
    "causal": causal,
    "counted": counted,
    "with look-ahead": functools.partial(causal, ahead=2),
    "a finite mask": functools.partial(causal, fill=-1e9),
    "where=": functools.partial(softmaxed, mask=with_where),
    "an added mask": functools.partial(softmaxed, mask=added),
    "as Keras": functools.partial(softmaxed, mask=as_in_keras),
    "by hand": functools.partial(softmaxed, mask=by_hand),
    "keys first": keys_first,
    "ALiBi": alibi,
    "T5": t5,
    "by distance": by_distance,
    "two layers": two_layers,
    "banded and causal": banded_and_causal,
    "beside linear attention": beside_linear_attention,
    "masked twice": masked_twice,
    "cut off": cut_off,
    "differential": differential,
    "in a loop": in_a_loop,
    "with its own rule": with_own_rule,
    "straight through": straight_through,
    "every second frame": lambda x, past: causal(x[::2], past),
    "in a batch": lambda x, past: jax.vmap(functools.partial(causal, past=past))(jnp.stack([x, 2 * x]))[1],
    "jax.nn.dot_product_attention": lambda x, past: library(
        x, is_causal=True, mask=None if past == ALL else (apart(x) <= past)[None, None]
    ),
}
DERIVED = ["two layers", "where=", "in a loop", "with its own rule", "straight through"]
FAST = ["with look-ahead", "where=", "banded and causal", "cut off", "in a loop", "jax.nn.dot_product_attention"]


def of(name):
    """The function without a band, and with it."""
    return functools.partial(CASES[name], past=ALL), functools.partial(CASES[name], past=PAST)


@pytest.mark.parametrize("name", of_tiers(CASES, FAST[:1], thorough=FAST[1:3]))
def test_values(name):
    """Pulses of all sizes and the function with the band, with NaN in frames that do not exist."""
    function, reference = of(name)
    options = {"lengths": (0, 1, 4, 23), "chunkings": ((1,), (5, 1))}
    streamed = check_values(function, (20, WIDTH), past=PAST, reference=reference, **options)
    for length in (2, 23):
        x = np.random.default_rng(length).normal(size=(length, WIDTH)).astype(np.float32)
        found, expected = streamed.offline(None, x), jax.jit(reference)(x)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", of_tiers(DERIVED, ["in a loop"], thorough=()))
def test_gradients(name):
    function, reference = of(name)
    check_gradients(function, (12, WIDTH), length=9, past=PAST, reference=reference)


def test_the_state_is_of_past_keys_and_values():
    """The same state as with the band written out, whatever the length of the recording."""
    function, reference = of("causal")
    streamed = jaxrnn.stream(function, EXAMPLE, axes=0, past=PAST)
    known = jaxrnn.stream(reference, EXAMPLE, axes=0)
    assert [each.shape for each in streamed.state] == [each.shape for each in known.state]
    assert [each.shape for each in streamed.state if each.kind == "history"] == [(PAST, HEADS, WIDTH // HEADS)] * 2
    assert (streamed.past, known.past) == (PAST, None)
    assert (streamed.receptive_field, streamed.delay) == (PAST + 1, 0)
    assert "changed by a past of 3" in streamed.table()
    assert "past" not in known.table()


@pytest.mark.nightly
def test_a_long_past_is_no_band():
    """Within `past` frames, the function is as it was."""
    function, _ = of("two layers")
    streamed = jaxrnn.stream(function, EXAMPLE, axes=0, past=40, pulse=4)
    x = np.random.default_rng(0).normal(size=(41, WIDTH)).astype(np.float32)
    for length in (7, 41):
        np.testing.assert_allclose(streamed.run(None, x[:length]), function(x[:length]), rtol=0, atol=2e-6)
        np.testing.assert_allclose(streamed.offline(None, x[:length]), function(x[:length]), rtol=0, atol=2e-6)
    longer = np.concatenate([x, x])
    assert np.max(np.abs(streamed.run(None, longer) - function(longer))) > 1e-4


class Cross(nnx.Module):
    """Causal attention of Flax from one input to another at the same rate, with heads."""

    def __init__(self, past):
        self.layer = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=nnx.Rngs(0))
        self.past = past

    def __call__(self, inputs):
        d = apart(inputs["x"])
        seen = (d >= 0) if self.past == ALL else (d >= 0) & (d <= self.past)
        return {"y": self.layer(inputs["x"][None], inputs["z"][None], mask=seen[None, None])[0]}


@pytest.mark.nightly
@pytest.mark.parametrize("pulse", [1, 4])
def test_cross_attention_of_flax_exported(pulse, tmp_path):
    """Two inputs, batches, a pickle's round trip through the recipe, and ONNX Runtime."""
    module, known = Cross(ALL), Cross(PAST)
    streamed = jaxrnn.stream(module, {"x": EXAMPLE, "z": EXAMPLE}, axes=0, pulse=pulse, past=PAST)
    rng = np.random.default_rng(0)
    x = {name: rng.normal(size=(13, WIDTH)).astype(np.float32) for name in "xz"}
    for length in (0, 1, 6, 13):
        part = {name: each[:length] for name, each in x.items()}
        np.testing.assert_allclose(streamed.run(None, part)["y"], known(part)["y"], rtol=0, atol=1e-6)
    state = streamed.init(batch=2)
    two = {name: np.stack([each[:pulse], 2 * each[:pulse]]) for name, each in x.items()}
    outputs, state = streamed.step(None, state, two)
    np.testing.assert_allclose(outputs["y"][1], known({k: 2 * v[:pulse] for k, v in x.items()})["y"], rtol=0, atol=1e-5)
    step = tmp_path / "step.onnx"
    jaxrnn.export_onnx(streamed, None, step, flush=tmp_path / "flush.onnx")
    for offline in (known, functools.partial(streamed.offline, None)):
        assert verify_export(streamed, None, step, offline=offline).ok
    assert not verify_export(streamed, None, step, offline=module).ok  # the function without the band
    metadata = {each.key: each.value for each in onnx.load(step).metadata_props}
    assert metadata["jaxrnn.past"] == "3"
    assert '"past": 3' in metadata["jaxrnn"]
    assert "changed by a past of 3" in onnx.load(step).graph.doc_string
    assert jaxrnn.load(step).step_file.spec.past == PAST


KINDS = ("in", "out")
#: Files of causal attention, and the name of their time axis.
FILES = {
    "causal_script": "T",
    "causal_dynamo": "T",
    "sdpa_causal_script": "T",
    "keras_attention": "unk__4797",
}


def recordings_of(models, name):
    """The recorded lengths with inputs and outputs."""
    with np.load(models / "speech" / f"{name}.npz") as arrays:
        kept = {(*key.split(".", 2),): arrays[key] for key in arrays.files}
    for length in sorted({int(length) for length, *_ in kept}):
        own = {kind: {key[2]: array for key, array in kept.items() if key[:2] == (str(length), kind)} for kind in KINDS}
        yield length, own["in"], own["out"]


@pytest.mark.parametrize(
    ("name", "pulse"),
    of_tiers(itertools.product(FILES, (1, 4)), [], [(next(iter(FILES)), 1)]),
)
def test_files(models, name, pulse):
    """The recorded outputs where `past` reaches back to the first frame; otherwise the model with the band."""
    model = jaxrnn.load(models / "speech" / f"{name}.onnx")
    streamed = model.stream(FILES[name], pulse, past=100)
    short = model.stream(FILES[name], pulse, past=8)
    for length, inputs, outputs in recordings_of(models, name):
        found, expected = streamed.run(model.params, inputs), short.offline(model.params, inputs)
        banded = short.run(model.params, inputs)
        for key, output in outputs.items():
            np.testing.assert_allclose(found[key], output, rtol=0, atol=2e-6)
            np.testing.assert_allclose(banded[key], expected[key], rtol=0, atol=2e-6)
            assert length <= 9 or np.max(np.abs(expected[key] - output)) > 1e-4


REFUSED = {
    "no attention": (lambda x: jnp.cumsum(x, 0), "past=3` has no effect: no attention sees all earlier frames"),
    "a band": (functools.partial(causal, past=5), "past=3` has no effect"),
    "all of the future": (lambda x: attend(x, apart(x) <= 0), "all later frames; bound"),
    "no mask": (lambda x: jax.nn.softmax(x @ x.T) @ x, "all earlier and later frames"),
    "a mean of all frames": (lambda x: jnp.sum(x @ x.T, 1), "all earlier and later frames"),
    "a recurrence": (lambda x: jnp.where(apart(x) >= 0, x @ x.T, 0.0) @ x, "past=3` has no effect"),
    "a sum": (lambda x: jnp.where(apart(x) >= 0, jnp.abs(x @ x.T), 0.0) @ x, "all earlier frames, .*; bound how far"),
    "first frames for ever": (lambda x: attend(x, (jnp.arange(x.shape[0]) < 2)[None] | (apart(x) == 0)), "all earlier"),
    "a product of two": (lambda x: (x @ x.T) @ (x @ x.T) @ x, "two matrices of pairs"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    function, words = REFUSED[name]
    check_refused(jaxrnn.StreamError, words, jaxrnn.stream, function, EXAMPLE, axes=0, past=3)


@pytest.mark.nightly
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(masks(), st.integers(1, 9), st.integers(1, 5), st.integers(0, 17))
def test_masks_at_random(mask, past, pulse, length):
    """A random mask that sees no later frame is cut off at `past`; if it bounds the past, `past` has no effect."""

    def seen(i, j):
        return (mask(i, j) & (i >= j)) | (i == j)

    def function(x, past=ALL):
        n = jnp.arange(x.shape[0])
        visible = seen(n[:, None], n)
        visible = visible if past == ALL else visible & (n[:, None] - n <= past)
        return jax.nn.softmax(jnp.where(visible, x @ x.T, -jnp.inf)) @ x

    if is_bounded(seen):
        with pytest.raises(jaxrnn.StreamError, match="has no effect"):
            jaxrnn.stream(function, EXAMPLE, axes=0, past=past)
        return
    streamed = jaxrnn.stream(function, EXAMPLE, axes=0, pulse=pulse, past=past)
    x = np.random.default_rng(length).normal(size=(length, WIDTH)).astype(np.float32)
    np.testing.assert_allclose(streamed.run(None, x), function(x, past), atol=1e-5)


@pytest.mark.parametrize("past", [0, -1, True, 2.5, "3", 1_000_001])
def test_wrong_numbers(past):
    with pytest.raises(jaxrnn.StreamError, match="past must be a number of frames from 1 to 1,000,000, not"):
        jaxrnn.stream(of("causal")[0], EXAMPLE, axes=0, past=past)


@pytest.mark.parametrize("name", ["causal", "jax.nn.dot_product_attention"])
def test_the_remedy_comes_first(name):
    with pytest.raises(jaxrnn.StreamError, match=r"all earlier frames.*; give `past=64` to mask keys .*, or "):
        jaxrnn.stream(of(name)[0], EXAMPLE, axes=0)


def module_level(x):
    return causal(x, ALL)


@pytest.mark.thorough
def test_a_pickle_keeps_the_band():
    streamed = pickle.loads(pickle.dumps(jaxrnn.stream(module_level, EXAMPLE, axes=0, past=PAST)))
    x = np.random.default_rng(0).normal(size=(9, WIDTH)).astype(np.float32)
    assert streamed.past == PAST
    np.testing.assert_allclose(streamed.run(None, x), of("causal")[1](x), rtol=0, atol=1e-6)
    assert streamed.with_pulse(2).past == PAST


def test_offline_without_a_band_is_the_function():
    streamed = jaxrnn.stream(lambda w, x: jnp.cumsum(w * x, 0), EXAMPLE, axes=0, params=jnp.float32(2))
    x = np.ones((3, WIDTH), np.float32)
    np.testing.assert_array_equal(streamed.offline(jnp.float32(3), x), np.cumsum(3 * x, 0))


@pytest.mark.parametrize("dtype", of_tiers([jnp.float16, jnp.bfloat16], [jnp.bfloat16]))
def test_low_precision(dtype):
    function, reference = of("an added mask")
    check_values(function, (12, WIDTH), lengths=(1, 4, 9), past=PAST, reference=reference, dtype=dtype, tolerance=0.05)


PAST_OPTIONS = ("--symbol", "T", "--past", 16)


@pytest.mark.nightly
def test_the_commands_that_stream_and_export(models, tmp_path):
    """`--past`, the message without the option, and what is said about the change."""
    file = models / "speech" / "causal_script.onnx"
    assert "give --past 64 to mask keys" in call_json("stream", file, "--symbol", "T", "--random", status=2)["error"]
    text = call("stream", file, *PAST_OPTIONS, "--pulse", 4, "--frames", 70, "--random", "--verify").stdout
    assert "the model is changed by a past of 16" in text
    assert "the whole recording, by the model with a past of 16" in text
    step = tmp_path / "step.onnx"
    found = call_json("export", file, *PAST_OPTIONS, "-o", step, "--flush", tmp_path / "flush.onnx", "--verify")
    assert (found["past"], found["verified"]) == (16, True)
    assert call_json("inspect", step)["past"] == 16
    assert "changed by a past of 16" in call("inspect", step).stdout
    assert "--past needs --symbol" in call("stream", step, "--past", 4, "--random", status=2).stderr


@pytest.mark.nightly
def test_the_other_commands(models, tmp_path):
    file = models / "speech" / "causal_script.onnx"
    found = call_json("stream", file, *PAST_OPTIONS, "--pulse", 4, "--frames", 70, "--random", "--verify")
    assert (found["past"], found["verified"], found["receptive_field"]) == (16, True, 17)
    profiled = ("profile", file, *PAST_OPTIONS)
    assert call_json(*profiled)["past"] == 16
    assert "changed by a past of 16" in call(*profiled).stdout
    (about,) = call_json("inspect", file, *PAST_OPTIONS)["streams"]
    assert (about["past"], about["problem"], about["receptive_field"]) == (16, None, 17)
    assert "--past 64" in call_json("inspect", file)["streams"][0]["problem"]
    assert call_json("compile", file, *PAST_OPTIONS, "-o", tmp_path / "c.jaxrnn")["past"] == 16
    assert jaxrnn.load_compiled(tmp_path / "c.jaxrnn").spec.past == 16
    banded = models / "speech" / "band_script.onnx"
    assert "--past 16 has no effect" in call_json("stream", banded, *PAST_OPTIONS, "--random", status=2)["error"]
