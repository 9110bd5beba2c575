"""Packed parameters belong to the program that they were packed for: nothing else takes them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import check_refused
from small_models import WIDTH as N
from small_models import frames_of, step_model

import jaxrnn
from jaxrnn import InputError

ANOTHER = "packed for .*, and .* is a different program: pack the parameters"


def test_another_graph_with_equal_shapes_is_refused_wherever_parameters_go():
    one, other = step_model(), step_model(transposed=True)
    packed = one.pack(one.params)
    assert [a.shape for a in packed.folded] == [a.shape for a in other.pack(other.params).folded]
    frames, state = frames_of(3), other.init()
    first = {name: array[0] for name, array in frames.items()}
    calls = [
        lambda: other.step(packed, state, first),
        lambda: jax.jit(other.step)(packed, state, first),
        lambda: other.scan(packed, state, frames),
        lambda: other.apply(packed, {**first, **state}),
        lambda: other.step(packed, other.init(2), {"x": np.stack([first["x"]] * 2)}),
        lambda: jaxrnn.Runner(other, packed)(first),
    ]
    for call in calls:
        check_refused(InputError, ANOTHER, call)
    other_arguments = jaxrnn.load(one.proto, state={"h": "h_next"}, static={"x": first["x"]})
    check_refused(InputError, ANOTHER, other_arguments.step, packed, state, {})


def test_the_same_graph_takes_them_whatever_its_own_weights_are():
    """Parameters are arguments: packed ones mean what the plain ones in them mean, and compile nothing anew."""
    one, again, tuned = step_model(), step_model(), step_model(seed=1)
    step, frames = jax.jit(again.step), frames_of(3)
    first = {name: array[0] for name, array in frames.items()}
    for model in (one, again, tuned, one):
        packed = model.pack(model.params)
        expected, _ = again.step(model.params, again.init(), first)
        found, _ = step(packed, again.init(), first)
        np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-6)
        np.testing.assert_array_equal(again.apply(packed, {**first, **again.init()})["y"], expected["y"])
        scanned, _ = again.scan(packed, again.init(), frames)
        np.testing.assert_allclose(scanned["y"][0], expected["y"], rtol=1e-5)
    assert step._cache_size() == 1


def test_frames_of_other_sizes_work_with_the_plain_parameters():
    model = step_model(rows="rows")
    packed, open_sizes = model.pack(model.params, dims={"rows": 2}), model.pack(model.params)
    assert packed.folded
    assert not open_sizes.folded
    for rows in (2, 3):
        given = (model.init(), {"x": frames_of(1, rows)["x"][0]})
        expected = model.step(model.params, *given)
        for params in (packed, open_sizes):
            jax.tree.map(np.testing.assert_array_equal, model.step(params, *given), expected)
    other = step_model(rows="rows", transposed=True)
    with pytest.raises(InputError, match=ANOTHER):
        other.step(open_sizes, other.init(), {"x": frames_of(1, 3)["x"][0]})


def test_what_is_folded_of_the_size_of_frames_is_for_that_size_alone():
    model = step_model(rows="rows", by_size=True)
    packed, other = (model.pack(model.params, dims={"rows": rows}) for rows in (2, 3))
    assert [array.shape for array in packed.folded] == [array.shape for array in other.folded]
    given = (model.init(), {"x": frames_of(1, 3)["x"][0]})
    jax.tree.map(np.testing.assert_array_equal, model.step(packed, *given), model.step(model.params, *given))


def layer(turn):
    def dense(params, x):
        return {"y": jnp.cumsum(x["x"] @ turn(params["w"]), 0)}

    return dense


def streamed_layer(turn, pulse=2, **options):
    example = {"x": jax.ShapeDtypeStruct((8, N), jnp.float32)}
    params = {"w": jnp.array(np.random.default_rng(0).standard_normal((N, N)), jnp.float32)}
    return jaxrnn.stream(layer(turn), example, axes=0, params=params, pulse=pulse, **options), params


def test_another_stream_in_equal_pulses_is_refused():
    (one, params), (other, _) = streamed_layer(lambda w: w), streamed_layer(lambda w: w.T)
    again, _ = streamed_layer(lambda w: w)
    packed = one.pack(params)
    assert packed.purpose == again.pack(params).purpose
    x = {"x": frames_of(2)["x"][:, 0]}
    expected = one.step(params, one.init(), x)
    for stream in (one, again):
        jax.tree.map(np.testing.assert_array_equal, stream.step(packed, stream.init(), x), expected)
    calls = [
        lambda: other.step(packed, other.init(), x),
        lambda: jax.jit(other.step)(packed, other.init(), x),
        lambda: other.with_pulse(1).step(packed, other.init(), {"x": x["x"][:1]}),
        lambda: other.run(packed, x),
        lambda: other.flush(packed, other.init()),
        lambda: other.init(params=packed),
        lambda: jaxrnn.Runner(other, packed),
        lambda: jaxrnn.StreamPool(other, packed, 2),
    ]
    for call in calls:
        check_refused(InputError, ANOTHER, call)
    # Pulses of another size: the plain parameters.
    found, _ = one.with_pulse(1).step(packed, one.init(), {"x": x["x"][:1]})
    np.testing.assert_array_equal(found["y"], one.with_pulse(1).step(params, one.init(), {"x": x["x"][:1]})[0]["y"])


@pytest.mark.thorough
def test_a_stream_of_a_model_and_the_model_itself_are_two_programs(models):
    model = jaxrnn.load(models / "keyword_net.onnx")
    streams = model.stream(pulse=2), model.stream(pulse=2, multiple=2)
    recording, pulse = ({"feats": np.zeros((1, 40, frames), np.float32)} for frames in (8, 2))
    for packed in (stream.pack(model.params) for stream in streams):
        words = r"the stream of .*keyword_net.onnx, and .* is a different program"
        check_refused(InputError, words, model.apply, packed, recording)
    packed, (stream, other) = model.pack(model.params), streams
    check_refused(InputError, ANOTHER, stream.step, other.pack(model.params), stream.init(), pulse)
    check_refused(InputError, ANOTHER, stream.run, packed, recording)
