"""What `stream` refuses: each with the primitive, where it comes from, and what to do instead."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from refusals import check_refused
from stream_functions import KERNEL, conv, rnn

import jaxrnn
from jaxrnn.streaming.rules import RULES

X = jax.ShapeDtypeStruct((20, 3), np.float32)


def attention(x):
    weights = jax.nn.softmax(x @ x.T, -1)
    return weights @ x


def instance_norm(x):
    mean, variance = x.mean(0), x.var(0)
    return (x - mean) / jnp.sqrt(variance + 1e-5)


def bidirectional(x):
    return jnp.concatenate([rnn(x), rnn(x[::-1])[::-1]], -1)


def backwards(x):
    return lax.scan(lambda c, frame: (c + frame,) * 2, jnp.zeros(3), x, reverse=True)[1]


def same_padding(x):
    return lax.conv_general_dilated(
        x[None], jnp.asarray(KERNEL, x.dtype), (2,), "SAME", dimension_numbers=("NTC", "TIO", "NTC")
    )


def of_twenty_frames(x):
    if x.shape[0] != 20:
        raise AssertionError
    return x


def in_scopes(x):
    with jax.named_scope("encoder"), jax.named_scope("norm"):
        return x - x.mean(0)


@jax.jit
def in_scope(x):
    with jax.named_scope("inner"):
        return lax.rev(x, (0,))


def in_scopes_of_two_functions(x):
    with jax.named_scope("outer"):
        return in_scope(x)


def writing(x):
    step = lambda carry, frame: ((carry[0] + frame, carry[1].at[0].set(carry[0])), None)  # noqa: E731
    return lax.scan(step, (jnp.zeros(3), jnp.zeros_like(x)), x)[0][1]


def reading_again(x):
    def body(i, carry):
        y = carry[0].at[i].set(x[i])
        return y, carry[1] + y[i]

    return lax.fori_loop(0, x.shape[0], body, (jnp.zeros_like(x), jnp.zeros(3)))


def keys_of(x):
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), jnp.arange(x.shape[0]))


def pooled_over_time(x):
    return jax.vjp(lambda y: lax.reduce_window(y, -jnp.inf, lax.max, (2, 1), (1, 1), "VALID"), x)[1](x[1:])[0]


REFUSED = {
    "some frames are overwritten": (lambda x: lax.dynamic_update_slice(x, x[:1] * 2, (0, 0)), "some frames.*where"),
    "frames combined by a function": (lambda x: lax.reduce(x, 0.0, lambda a, b: a + 2 * b, (0,)), "known associative"),
    "the derivative of pooling over time": (pooled_over_time, "derivative of pooling over time.*its run method"),
    "groups of frames": (lambda x: lax.ragged_dot(x, KERNEL[:2], jnp.array([1, 2])), "groups or sums contain frames"),
    "approximate extremes of all frames": (lambda x: lax.approx_max_k(x, 2, 0), "orders all frames"),
    "a key that draws for all frames": (lambda x: jax.random.gamma(jax.random.key(0), x), "number of frames.*fold_in"),
    "random bits for all frames": (
        lambda x: lax.rng_bit_generator(jnp.arange(4, dtype=jnp.uint32), x.shape),
        "depend on the number of frames",
    ),
    "random numbers without a key": (lambda x: x + lax.rng_uniform(0.0, 1.0, (3,)), "other numbers whenever it runs"),
    "random keys of every second frame": (lambda x: jax.random.key_data(keys_of(x)[::2]), "delays random keys; draw"),
    "the random key of the last frame": (lambda x: jax.random.key_data(keys_of(x)[-1]), "delays random keys; draw"),
    "a loop that writes into a recording": (writing, "carries the whole recording.*stack these results"),
    "a loop that reads what it has written": (reading_again, "carries the whole recording"),
    "a loop that writes behind the end": (
        lambda x: lax.fori_loop(0, x.shape[0], lambda i, y: lax.dynamic_update_index_in_dim(y, x[i], i + 1, 0), x),
        "clips the positions of frames",
    ),
    "a loop that reads the frame before the first": (
        lambda x: lax.map(lambda t: x[t] + x[t - 1], jnp.arange(x.shape[0])),
        "may be negative, which counts from the end; keep the numbers at 0",
    ),
    "a global mean used along the stream": (lambda x: x - x.mean(0), "'sub'.*known only when the stream has ended"),
    "instance normalisation": (instance_norm, "known only when the stream has ended.*causal form"),
    "softmax over time": (lambda x: jax.nn.softmax(x, 0), "known only when the stream has ended"),
    "attention over all of time": (
        attention,
        r"'reduce_max'.*on all earlier and later frames; bound what each frame sees.*past=64.*abs\(i - j\) <= 16",
    ),
    "a bidirectional recurrence": (bidirectional, "reverses time.*runs forward in time"),
    "a recurrence that runs backwards": (backwards, r"'scan'.*runs backwards in time.*forwards only"),
    "reversal": (lambda x: lax.rev(x, (0,)), "'rev'.*first frame is the last of the stream"),
    "a running sum from the end": (lambda x: lax.cumsum(x, 0, reverse=True), "'cumsum'.*from the last frame"),
    "sorting over time": (lambda x: jnp.sort(x, 0), "'sort'.*sorts all frames"),
    "a Fourier transform over time": (
        lambda x: jnp.abs(jnp.fft.rfft(x, axis=0)),
        "'fft'.*transforms the whole recording at once",
    ),
    "the largest frames": (lambda x: lax.top_k(x.T, 2)[0], "'top_k'.*orders all frames"),
    "two streams one behind the other": (lambda x: jnp.concatenate([x, 2 * x]), "'concatenate'.*second stream starts"),
    "a pad that depends on the length": (same_padding, "'conv_general_dilated'.*padding.*give `multiple=2`"),
    "a product over two time axes": (lambda x: conv(x, (0, 0)) @ x.T, "'dot_general'.*two axes of different lengths"),
    "the length": (lambda x: x * jnp.float32(1) / x.shape[0], "known only when the stream has ended"),
    "a frame that moves": (
        lambda x: lax.dynamic_index_in_dim(x, x.shape[0] // 2, 0),
        "'dynamic_slice'.*which moves with the stream",
    ),
    "frames by number": (lambda x: x[jnp.argsort(x[:, 0])], "'sort'.*sorts all frames"),
    "a share of time": (lambda x: x[: x.shape[0] // 2], "'gather'.*at a rate that differs from this length"),
    "a share of time by number": (
        lambda x: x[jnp.arange(x.shape[0] // 2)],
        "'gather'.*at a rate that differs from this length",
    ),
    "a share of time in pieces": (
        lambda x: jnp.split(x, [x.shape[0] // 2])[0],
        "at a rate that differs from this length",
    ),
    "frames by number, clipped": (
        lambda x: x[jnp.clip(jnp.arange(x.shape[0]) - 1, 1)],
        "'gather'.*not a fixed step forward",
    ),
    "parts of a share of time": (lambda x: x.reshape(2, -1, 3), "'reshape'.*parts.*fixed length"),
    "blocks of 160 frames": (
        lambda x: x.reshape(-1, 160, 3),
        "Cannot divide evenly.*multiple of 160.*give `multiple=160`",
    ),
    "blocks, and the first of them at the end": (
        lambda x: jnp.roll(x.reshape(-1, 4, 3), -1, 0),
        r"multiple of 4, of 8 frames or more.*give `multiple=4, constraints=\['S >= 2'\]`",
    ),
    "random numbers": (
        lambda x: x + jax.random.normal(jax.random.key(0), x.shape),
        "'random_bits'.*depend on the number of frames.*fold_in",
    ),
    "copies of all of time": (lambda x: jnp.tile(x, (2, 1)), "'tile'.*second copy.*jnp.repeat"),
    "the last frames in front": (
        lambda x: jnp.roll(x, 2, 0),
        r"'concatenate' \(jnp\.roll in .*when the stream has ended.*write jnp\.pad",
    ),
    "frames set by number": (lambda x: x.at[-1].set(0.0), r"'scatter' \(.*select by position"),
    "the mean around all frames": (
        lambda x: jnp.pad(x, ((2, 0), (0, 0)), mode="mean"),
        r"\(jnp\.pad in .*modes 'constant', 'edge', 'reflect'",
    ),
    "the last frames around the first": (
        lambda x: jnp.pad(x, ((2, 0), (0, 0)), mode="wrap"),
        r"\(jnp\.pad in .*modes 'constant', 'edge', 'reflect'",
    ),
    "the first frames at the end of a short recording": (
        lambda x: jnp.roll(x, -3, 0),
        r"\(jnp\.roll in .*recordings of 4 frames or more.*give `constraints=\['S >= 4'\]`",
    ),
    "mirrored frames of a short recording": (
        lambda x: jnp.pad(x, ((2, 5), (0, 0)), mode="reflect"),
        r"\(jnp\.pad in .*recordings of 6 frames or more.*give `constraints=\['S >= 6'\]`",
    ),
    "the length as a number": (lambda x: x / float(x.shape[0]), r"\(test_stream_refusals.*TypeError.*x\.shape\[0\]"),
    "a loop of Python over frames": (lambda x: sum(x[i] for i in range(x.shape[0])), "TypeError.*range"),
    "a condition on the length": (
        lambda x: x if x.shape[0] > 5 else 2 * x,
        r"inconclusive.*recordings of 6 frames or more.*constraints=\['S >= 6'\]",
    ),
    "NumPy": (
        lambda x: np.convolve(x[:, 0], np.ones(3)),
        r"jax\.jit of it fails, too \((np.\w+ in )?test_stream_refusals",
    ),
    "a loop over the length": (
        lambda x: lax.while_loop(lambda s: s[1] < x.shape[0], lambda s: (s[0] / 2, s[1] + 1), (x, 0))[0],
        "'scan' .lax.while_loop.*carries the whole recording",
    ),
    "a loop that counts to the length": (
        lambda x: lax.while_loop(lambda n: n < x.shape[0], lambda n: 2 * n, 1),
        "'while'.*known only when the stream has ended, such as the length; write a loop over frames as jax.lax.scan",
    ),
    "a loop that returns the length": (
        lambda x: lax.while_loop(lambda n: n < 10, lambda n: n + x.shape[0], 1),
        "'while'.*known only when the stream has ended, such as the length; write a loop over frames as jax.lax.scan",
    ),
    "the length in a recurrence": (
        lambda x: lax.scan(lambda c, f: (c + f / x.shape[0], c), jnp.zeros(3), x)[1],
        "'scan'.*known only when the stream has ended",
    ),
    "the length in a loop": (
        lambda x: lax.scan(lambda c, _: (c + x.shape[0], c), 0, jnp.ones(3))[1],
        "'scan'.*known only at the end",
    ),
    "the length in layers of look-ahead": (
        lambda x: lax.scan(lambda c, _: (jnp.pad(c[1:], ((0, 1), (0, 0))), c / x.shape[0]), x, jnp.ones(3))[1],
        "'div'.*known only when the stream has ended",
    ),
    "the length in a branch": (
        lambda x: lax.cond(jnp.array(3) > 1, lambda: x.shape[0] * 1.0, lambda: 1.0),
        "'cond'.*known only at the end",
    ),
    "a condition of Python": (lambda x: x if x[0, 0] > 0 else -x, r"test_stream_refusals.*write jnp\.where\(condition"),
    "a condition of the first frame": (
        lambda x: lax.cond(x[0, 0] > 0, lambda: x, lambda: -x),
        r"'cond'.*not known before the stream begins; write jnp\.where\(condition, a, b\)",
    ),
    "chosen elements": (
        lambda x: x[x > 0],
        r"test_stream.*keep all frames, and write jnp\.where\(mask, x, 0\)",
    ),
    "numbers of chosen frames": (lambda x: jnp.nonzero(x)[0], r"jnp\.nonzero in test_stream.*jnp\.where\(mask, x, 0\)"),
    "numbers of frames by where": (lambda x: jnp.where(x > 0)[0], r"in place of jnp\.where\(mask\)"),
    "a number of Python": (lambda x: x * float(x[0, 0]), r"with the array in place of float\(\)"),
    "a function of NumPy": (lambda x: np.sin(x), r"jnp\.sin for np\.sin"),
    "a count of Python": (lambda x: sum(x[i] for i in range(x[0, 0].astype(int))), r"write jax\.lax\.fori_loop"),
    "windows that start at a bound": (
        lambda x: jax.vmap(lambda start: lax.dynamic_slice_in_dim(x, start, 2))(
            jnp.maximum(jnp.arange(x.shape[0]) - 3, 0)
        ),
        "'gather'.*it reads frames at indices that depend on the stream",
    ),
    "elements of frames behind the end": (
        lambda x: x[jnp.arange(x.shape[0]) + 2, jnp.ones(x.shape[0], jnp.int32)],
        "'gather'.*it reads frames at indices that depend on the stream",
    ),
    "windows that start from a number": (
        lambda x: lax.reduce_window(x, 5.0, lax.add, (3, 1), (1, 1), [(2, 0), (0, 0)]),
        "'reduce_window'.*not neutral",
    ),
    "equal parts of time": (lambda x: jnp.split(x, 2)[0], r"'split' .*at a rate that differs.*cut at fixed frames"),
    "an assertion about the length": (
        of_twenty_frames,
        r"Whether 'S' equals '20' depends on the length.*works on 20 frames only",
    ),
    "scopes and the line": (in_scopes, r"node 'encoder/norm' of test_stream_refusals\.py:\d+ \(.*in_scopes\)"),
    "scopes of inner functions": (in_scopes_of_two_functions, r"node 'outer.*inner'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    function, words = REFUSED[name]
    check_refused(jaxrnn.StreamError, f"(?s){words}", jaxrnn.stream, function, X, axes=0)


def test_a_mistake_in_the_function_stays_what_it_is():
    """It fails on the example too, so it is nothing about streams."""
    with pytest.raises(KeyError, match="weight"):
        jaxrnn.stream(lambda x: x * {}["weight"], X, axes=0)


@pytest.mark.thorough
def test_a_recording_that_is_too_short():
    """It is refused, or where its length is not known while it is compiled, NaN."""
    streamed = jaxrnn.stream(lambda x: jnp.roll(x, -2, 0), X, axes=0, constraints=["S >= 3"])
    x = jnp.ones((2, 3))
    words = r"a recording of 2 frame\(s\) does not satisfy `constraints=\['S >= 3'\]"
    check_refused(jaxrnn.InputError, words, streamed.run, None, x)
    state = streamed.init()
    for frame in x:
        _, state = streamed.step(None, state, frame[None])
    check_refused(jaxrnn.InputError, "a recording of 2 frame", streamed.flush, None, state)
    assert np.all(np.isnan(jax.jit(streamed.flush)(None, state).outputs[: len(x)]))
    _, state = streamed.step(None, state, x[:1])
    assert not np.any(np.isnan(streamed.flush(None, state).outputs))


def test_an_error_of_our_own_is_not_taken_for_one_of_the_function(monkeypatch):
    def broken(*_):
        raise TypeError("broken")

    monkeypatch.setitem(RULES, "tanh", broken)
    with pytest.raises(TypeError, match="broken"):
        jaxrnn.stream(jnp.tanh, X, axes=0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"axes": 2}, r"2 as the time axis of x, which has 2 axes"),
        ({"axes": "time"}, "'time' as the time axis"),
        ({"axes": None}, "no leaf of the example has a time axis"),
        ({"axes": {"x": 0}}, "tree of integers like the example, such as 0"),
        ({"axes": 0, "pulse": 0}, "pulse must be a positive number of input frames"),
        ({"axes": 0, "pulse": 1.5}, "pulse must be a positive number of input frames"),
        ({"axes": 0, "multiple": 0}, "multiple must be a positive number of frames, not 0"),
        ({"axes": 0, "constraints": ["many"]}, "constraints must look like 'S >= 3'"),
        ({"axes": 0, "multiple": 4, "pulse": 2}, "a multiple of 4 frames, such as 4, 8, 12"),
    ],
)
def test_arguments(options, words):
    check_refused(jaxrnn.StreamError, words, jaxrnn.stream, jnp.tanh, X, **options)


def test_the_smallest_pulse_of_several_strides():
    with pytest.raises(jaxrnn.StreamError, match=r"a pulse of 4 frame.*a multiple of 6 frames, such as 6, 12, 18"):
        jaxrnn.stream(lambda x: conv(conv(x, (2, 0), 2), (2, 0), 3), X, axes=0, pulse=4)


def test_leaves_of_different_length():
    example = {"a": jax.ShapeDtypeStruct((20, 3), np.float32), "b": jax.ShapeDtypeStruct((50, 3), np.float32)}
    with pytest.raises(jaxrnn.StreamError, match=r"\[20, 50\] frames; each number must be a multiple"):
        jaxrnn.stream(lambda x: x["a"], example, axes=0)


def test_calls_that_do_not_fit():
    """The input, the state and the tail are held against what the function was streamed for."""
    streamed = jaxrnn.stream(lambda x: conv(x["x"], (0, 2)), {"x": X}, axes=0, pulse=2)
    state, frames = streamed.init(), np.zeros((2, 3), np.float32)
    for inputs, words in (
        ({"x": np.zeros((3, 3), np.float32)}, r"x\['x'\]: float32\[2, 3\] got float32\[3, 3\].*; with_pulse"),
        ({"x": frames.astype(np.float16)}, r"float32\[2, 3\] got float16"),
        ({}, r"missing input.*x\['x'\]"),
        ({"y": frames}, "there is no input 'y'; the inputs are: x"),
        ([frames], "must be a pytree like the example, with x"),
    ):
        check_refused(jaxrnn.InputError, words, streamed.step, None, state, inputs)
    for given, error, words in (
        (streamed.init(3), jaxrnn.InputError, r"got float32.*the state is of a batch of 3"),
        ({}, jaxrnn.StateError, "'float32' is missing; init returns"),
        ({"float32": state["float32"][:-1]}, jaxrnn.StateError, r"state 'float32' must be float32\[\d+\]"),
    ):
        check_refused(error, words, streamed.step, None, given, {"x": frames})
    for valid in (3, -1, jnp.int32(3), 0.5):
        words = "valid must be from 0 to the 2 frame"
        check_refused(jaxrnn.InputError, words, streamed.flush, None, state, {"x": frames}, valid)
    words = r"x\['x'\]: float32\[frames, 3\] got float32\[2, 4\]"
    check_refused(jaxrnn.InputError, words, streamed.run, None, {"x": np.zeros((2, 4), np.float32)})


def test_parameters_that_do_not_fit():
    params = {"a": jnp.ones(3), "b": jnp.zeros(3)}
    streamed = jaxrnn.stream(lambda p, x: p["a"] * x + p["b"], X, axes=0, params=params)
    state, frame = streamed.init(), np.ones((1, 3), np.float32)
    for wrong, words in (
        (None, "pass params"),
        ({"a": params["a"], "c": params["b"]}, "no parameter 'c'"),
        ({"a": params["a"]}, "'b' is missing"),
        ((params["a"], params["b"]), "pytree like those"),
        ({"a": params["a"], "b": jnp.zeros(4)}, r"params\['b'\] must be float32\[3\], not float32\[4\]"),
    ):
        check_refused(jaxrnn.InputError, words, streamed.step, wrong, state, frame)
        check_refused(jaxrnn.InputError, words, streamed.flush, wrong, state)


def test_a_number_is_a_parameter():
    streamed = jaxrnn.stream(lambda p, x: p * x, X, axes=0, params=2.0)
    y, _ = streamed.step(2.0, streamed.init(), np.ones((1, 3), np.float32))
    np.testing.assert_array_equal(y, 2 * np.ones((1, 3)))


def test_a_number_of_frames_that_is_no_multiple():
    streamed = jaxrnn.stream(lambda x: x.reshape(-1, 2, 3).sum(1), X, axes=0, pulse=4, multiple=2)
    with pytest.raises(jaxrnn.InputError, match=r"the 4 frame\(s\) of the tail and a multiple of 2, not 3"):
        streamed.flush(None, streamed.init(), np.ones((4, 3), np.float32), 3)


def ruled(derivative):
    """Return an identity with this derivative rule, ``(x, ct) -> ct``."""
    identity = jax.custom_vjp(lambda weight, x: weight * x)
    identity.defvjp(lambda weight, x: (weight * x, x), lambda x, ct: (jnp.sum(ct * x), derivative(x, ct)))
    return identity


@pytest.mark.parametrize(
    ("derivative", "words"),
    [
        (lambda x, ct: ct * (1 + jnp.arange(x.shape[0], dtype=x.dtype)), "reads other frames, or positions"),
        (lambda x, ct: ct * jnp.float32(x.shape[0]), "reads other frames, or positions"),
        (lambda x, ct: ct * jnp.pad(x, (2, 0))[:-2], "reads other frames, or positions"),
        (lambda x, ct: ct + jnp.cumsum(x), "reads other frames, or positions"),
        (lambda x, ct: ct * jnp.sum(x), "known only when the stream has ended"),
        (lambda x, ct: ct * jnp.dot(x, x), "known only when the stream has ended"),
    ],
)
def test_derivative_rules_of_other_frames(derivative, words):
    """A rule gets the frames of a pulse. JAX adds the derivatives of pulses, so that sums over frames are right."""
    function, x = ruled(derivative), jnp.arange(6, dtype=jnp.float32)
    streamed = jaxrnn.stream(lambda weight, x: function(weight, x), x, axes=0, params=jnp.float32(1), pulse=2)
    check_refused(jaxrnn.StreamError, words, jax.grad(lambda w: streamed.run(w, x).sum()), jnp.float32(1))


def test_derivative_rules_of_single_frames():
    function, x = ruled(lambda x, ct: 2 * ct * x), jnp.arange(6, dtype=jnp.float32)
    streamed = jaxrnn.stream(lambda weight, x: function(weight, weight * x), x, axes=0, params=jnp.float32(1), pulse=2)
    found, expected = (
        jax.grad(lambda w, run=run: run(w, x).sum())(jnp.float32(3)) for run in (streamed.run, streamed.offline)
    )
    np.testing.assert_allclose(found, expected)
