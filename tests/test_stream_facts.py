"""Delay, look-ahead and receptive field are what a function needs: held against measurements from outside."""

from __future__ import annotations

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import ARCHITECTURES, WIDTH
from conftest import MODELS
from facts_verifier import check_facts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax
from streaming_verifier import check_values
from test_stream_models import offline_of
from test_stream_random import CHANNELS, chain, convolution, other_length, same_length, undecided_by_jax
from tiers import of_tiers

import jaxrnn
from benchmarks.multiplications import OPTIONS
from jaxrnn.jaxprs.equations import walk
from jaxrnn.streaming.dimensions import in_shape, out_shape, symbolic_axes
from jaxrnn.streaming.measuring import drawn

X = jax.ShapeDtypeStruct((20, 1), np.float32)

#: Facts that are larger than what is measured, and why.
LARGER = {
    # Mirrored frames make frame 0 late. A step gives as many frames as the one before, so all later frames wait too.
    "EnCodec encoder": "latent frame 0 waits for a mirrored frame of the next pulse",
    "masked spectrum": "spectrum 0 waits for a mirrored frame two hops later",
    # The first frames of a transposed convolution wait for repeated frames, and a slice cuts them off.
    "BigVGAN": "frames that are cut off wait for repeated frames",
    "speech/convstft_center_script": "spectrum 0 waits for a mirrored frame of the next pulse",
}


#: Delay, look-ahead and receptive field of `ARCHITECTURES`.
KNOWN = {
    "BigVGAN": (51, 11, 23),
    "EnCodec encoder": (7, 55, None),
    "EnCodec decoder": (48, 6, None),
    "Mimi encoder": (0, 7, None),
    "masked spectrum": (8, 7, None),
}


@pytest.mark.parametrize("name", of_tiers(ARCHITECTURES, [], ["masked spectrum"]))
def test_facts_of_architectures(name):
    case = ARCHITECTURES[name]
    streamed = jaxrnn.stream(case.function, jax.ShapeDtypeStruct((16, WIDTH), np.float32), axes=0, **case.options)
    check_facts(case.function, streamed, larger=name in LARGER)
    assert (streamed.delay, streamed.look_ahead, streamed.receptive_field) == KNOWN[name]


@pytest.mark.parametrize("name", of_tiers(ARCHITECTURES, [], ["BigVGAN"]))
def test_architectures_are_exact(name):
    case = ARCHITECTURES[name]
    least = 7 if "constraints" in case.options else 1
    lengths = (least, least + 1, least + 6, 25)
    check_values(case.function, (20, WIDTH), lengths=lengths, chunkings=((1,), (3, 1)), **case.options)


#: Stacks of windows (length, stride, dilation), without padding, that no short recording fills.
STACKS = {
    "frames of 25 ms": [(400, 160, 1)],
    "one behind another": [(30, 1, 1), (30, 1, 1), (30, 1, 1)],
    "dilated": [(3, 1, 5), (3, 2, 25), (2, 1, 60)],
    "wav2vec": [(10, 5, 1), *[(3, 2, 1)] * 4, *[(2, 2, 1)] * 2],
}


def windows(stack, padding):
    """Return sums over windows, one after the other."""

    def function(x):
        for length, stride, dilation in stack:
            x = lax.reduce_window(x, 0.0, lax.add, (length, 1), (stride, 1), padding, window_dilation=(dilation, 1))
        return x

    return function


@pytest.mark.parametrize("name", of_tiers(STACKS, ["one behind another", "dilated"]))
def test_windows_that_no_short_recording_fills(name):
    """A recording without an output frame does not show that an output depends on nothing."""
    stack = STACKS[name]
    field, hop = 1, 1
    for length, stride, dilation in stack:
        field, hop = field + (length - 1) * dilation * hop, hop * stride
    function = windows(stack, "VALID")
    streamed = jaxrnn.stream(function, X, axes=0, constraints=[f"S >= {field}"])
    assert (streamed.look_ahead, streamed.receptive_field) == (field - 1, field)
    check_facts(function, streamed, larger=False)


#: Functions whose facts only recordings of some hundred frames show, with look-ahead and receptive field.
DISTANT = {
    "the middle of a window is seen before its ends": (windows([(3, 1, 150)], "SAME"), {}, 150, 301),
    "a branch without frames": (
        lambda x: x[:-49] + windows([(50, 1, 1)], "VALID")(x),
        {"constraints": ["S >= 50"]},
        49,
        50,
    ),
    "zeros before the recording": (lambda x: jnp.concatenate([jnp.zeros((300, 1)), x])[: x.shape[0]], {}, 0, 1),
    "frames after the beginning": (lambda x: x[300:], {}, 300, 1),
    "lengths that are rare": (windows([(90, 16, 1)], "VALID"), {"constraints": ["mod(S, 5000) == 0"]}, 89, 90),
    "no longer recordings": (windows([(90, 16, 1)], "VALID"), {"constraints": ["S <= 100"]}, 89, 90),
    "a total of frames of 40": (lambda x: jnp.cumsum(windows([(40, 16, 1)], "VALID")(x)), {}, 39, None),
}


@pytest.mark.parametrize("name", DISTANT)
def test_facts_that_only_long_recordings_show(name):
    function, options, *expected = DISTANT[name]
    streamed = jaxrnn.stream(function, X, axes=0, **options)
    assert [streamed.look_ahead, streamed.receptive_field] == expected


def test_a_measurement_without_frames_fails():
    """Facts that no recording of the verifier shows are not confirmed."""
    streamed = jaxrnn.stream(windows([(3000, 1, 1)], "VALID"), X, axes=0)
    with pytest.raises(jaxrnn.StreamError, match="do not show what the outputs depend on"):
        check_facts(lambda x: x[2999:], streamed, larger=False, nan=False)


@pytest.mark.parametrize("mode", of_tiers(["edge", "symmetric"], ["symmetric"]))
def test_repeated_frames_of_a_pad(mode):
    """The repeated frames are known before the first input frame."""

    def function(x):
        padded = jnp.pad(x, ((2, 2), (0, 0)), constant_values=0.5)
        return convolution(jnp.pad(padded, ((2, 0), (0, 0)), mode=mode), 50, 3, (0, 0))

    streamed = check_values(function, (20, CHANNELS), lengths=(1, 2, 9), chunkings=((1,), (3, 1)))
    check_facts(function, streamed, total=20, larger=False)


def test_elementwise_functions_do_not_wait_for_repeated_frames():
    """The first two frames are copies of later frames; a convolution needs these frames anyway."""

    def function(x):
        return convolution(jnp.tanh(jnp.pad(x, ((2, 0), (0, 0)), mode="reflect")), 1, 3, (0, 0))

    lengths, chunkings = (3, 9), ((1,), (3, 1))
    streamed = check_values(function, (9, CHANNELS), lengths=lengths, chunkings=chunkings, constraints=["S >= 3"])
    assert streamed.delay == 2


@pytest.mark.parametrize("facts", [{"horizon": 0}, {"sinks": frozenset()}, {"counts": False}, {"kinds": {}}])
def test_steps_learn_nothing(facts):
    """A fact that the analysis has not found is an error, because the state was made without the fact."""
    streamed = jaxrnn.stream(
        lambda x: jnp.cumsum(x)[2:] * jnp.arange(x.shape[0], dtype=x.dtype)[2:], np.ones(9, np.float32), axes=0
    )
    streamed._plan.facts = dataclasses.replace(streamed._plan.facts, **facts)
    with pytest.raises(AssertionError, match=f"a pass finds .*{next(iter(facts))}"):
        streamed.step(None, streamed.init(), np.ones(1, np.float32))


def test_gradients_ignore_repeated_frames_before_these_are_known():
    """Until then, the first two frames are placeholders, at which the derivative of a logarithm is infinite."""

    def function(weight, x):
        return jnp.log(weight * jnp.pad(jnp.exp(x), ((2, 0), (0, 0)), mode="reflect"))

    x, weight = jnp.asarray(drawn((7, CHANNELS))), jnp.float32(0.5)
    streamed = jaxrnn.stream(function, x, axes=0, params=weight, constraints=["S >= 3"])
    found, expected = (jax.grad(lambda w, run=run: run(w, x).sum())(weight) for run in (streamed.run, function))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.nightly
@pytest.mark.parametrize("front", [1, 4])
@pytest.mark.parametrize("mode", ["edge", "reflect"])
def test_repeated_frames_in_large_pulses(mode, front):
    """In pulses of 8 frames and more, frames in front are an update in place; streams of a batch differ in age."""

    def function(x):
        for seed in (1, 2):
            x = jnp.tanh(convolution(jnp.pad(x, ((front, 4 - front), (0, 0)), mode=mode), seed, 5, (0, 0)))
        return x

    constraints = ["S >= 6"]
    lengths, chunkings = (6, 9, 17, 30), ((8,), (1, 16), (3, 8, 1, 9))
    streamed = check_values(
        function, (20, CHANNELS), lengths=lengths, chunkings=chunkings, constraints=constraints
    ).with_pulse(8)
    x = drawn((2, 24, CHANNELS))
    _, young = streamed.step(None, streamed.init(), x[0, :8])
    state = jax.tree.map(lambda *each: jnp.stack(each), young, streamed.init())
    found, _ = streamed.step(None, state, jnp.stack([x[0, 8:16], x[1, :8]]))
    expected = [jnp.pad(function(each), ((streamed.delay, 0), (0, 0))) for each in x]
    np.testing.assert_allclose(found[0], expected[0][8:16], atol=1e-6)
    np.testing.assert_allclose(found[1][streamed.delay :], expected[1][streamed.delay : 8], atol=1e-6)


# -- real models

#: Files that do not stream over time, or that are a step.
UNSTREAMED = re.compile(
    r"dtln|gtcrn|silero|predictor|ocr|bidir|bilstm|backwards|causal_(dynamo|script)$|attention|step"
)
FILES = sorted(
    str(path.relative_to(MODELS).with_suffix(""))
    for folder in (MODELS, MODELS / "speech", MODELS / "exports")
    for path in folder.glob("*.onnx")
    if not UNSTREAMED.search(path.stem) and "_given_state" not in path.stem and "one_frame" not in path.stem
)
EDGES = [name for name in FILES if name.startswith(("speech/edge", "speech/interp"))]


@pytest.mark.parametrize("name", of_tiers(FILES, EDGES[::2], FILES[::16]))
def test_facts_of_files(name):
    """Measured in ONNX Runtime."""
    model, options = jaxrnn.load(MODELS / f"{name}.onnx"), dict(OPTIONS.get(name, {}))
    symbol = options.pop("symbol", [size for size in model.inputs[0].shape if isinstance(size, str)][-1])
    streamed = model.stream(symbol, **options)
    total = max(30, 10 * streamed.smallest_pulse, 2 * (streamed.receptive_field or 0))
    is_attention = "band" in name
    check_facts(offline_of(model), streamed, total=total, larger=name in LARGER, nan=not is_attention, compile=False)


# -- random networks


@st.composite
def edged(draw):
    """A convolution behind repeated or mirrored frames, or a part of a network that mixes time with other axes."""
    seed, length = draw(st.integers(0, 99)), draw(st.integers(1, 5))
    front = draw(st.integers(0, length - 1))
    mode = draw(st.sampled_from(["edge", "symmetric"]))
    widths = ((front, length - 1 - front), (0, 0))
    dense = np.random.default_rng(seed).normal(size=(1, 2)).astype(np.float32)
    return draw(
        st.sampled_from(
            [
                lambda x: jnp.tanh(convolution(jnp.pad(x, widths, mode=mode), seed, length, (0, 0))),
                lambda x: (x.reshape(-1, 1) @ dense).reshape(x.shape[0], 2, 2).sum(-1),
            ]
        )
    )


NETWORKS = st.lists(st.one_of(edged(), edged(), same_length(), other_length()), min_size=1, max_size=4)


@pytest.mark.nightly
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(NETWORKS)
def test_facts_of_random_networks(layers):
    with undecided_by_jax():
        check_network(layers)


def check_network(layers):
    """Hold the facts of layers, one after the other, against what is measured."""
    function = functools.partial(chain, layers)
    streamed = jaxrnn.stream(function, jax.ShapeDtypeStruct((20, CHANNELS), np.float32), axes=0)
    total = max(30, 10 * streamed.smallest_pulse, 2 * (streamed.receptive_field or 0))
    total -= total % streamed.smallest_pulse
    check_facts(function, streamed, total=total, larger=cuts_behind_repeated(streamed))


def cuts_behind_repeated(streamed):
    """Return True if frames are cut off behind repeated frames: frames in front may wait; see `LARGER`."""
    repeated = False
    for equation in walk(streamed._plan.closed.jaxpr):
        name, shape = equation.primitive.name, out_shape(equation)
        kept = {str(shape[axis]) for axis in symbolic_axes(shape)}
        if repeated and name in ("slice", "gather") and not kept <= set(map(str, in_shape(equation))):
            return True
        repeated |= name == "concatenate" and equation.params["dimension"] in symbolic_axes(shape)
    return False
