"""`jaxrnn.export_onnx` of steps, streams and functions: files that ONNX Runtime runs alone, and jaxrnn loads again."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxrnn
from tests.exported_files import ExportedStream

#: Roundings of numbers of the size of the outputs: what sums of some terms differ by.
TOLERANCE = 1e-5


def filtered(params, inputs):
    """A convolution with look-ahead, one with a stride, a recurrence, and a sum that is known at the end."""
    x = inputs["x"].T[None]
    y = lax.conv_general_dilated(x, params["w"], (1,), ((1, 2),), dimension_numbers=("NCH", "OIH", "NCH"))
    low = lax.conv_general_dilated(y, params["v"], (2,), ((3, 0),), dimension_numbers=("NCH", "OIH", "NCH"))

    def step(h, frame):
        h = jnp.tanh(frame + h * params["decay"])
        return h, h

    _, after = lax.scan(step, params["start"], y.squeeze(0).T)
    return {"y": after, "low": low.squeeze(0).T, "total": jnp.sum(inputs["x"], 0)}


def filter_params(rng):
    shapes = {"w": (2, 2, 4), "v": (3, 2, 4), "decay": (2,), "start": (2,)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


EXAMPLE = {"x": jax.ShapeDtypeStruct((20, 2), np.float32)}


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        value = np.asarray(value)
        assert found[name].shape == value.shape, name
        assert found[name].dtype == value.dtype
        np.testing.assert_allclose(found[name], value, rtol=0, atol=TOLERANCE * np.abs(value).max(initial=1e-6))


@pytest.mark.parametrize("pulse", [2, 6])
def test_a_stream_with_its_flush(tmp_path, pulse):
    rng = np.random.default_rng(pulse)
    params = filter_params(rng)
    streamed = jaxrnn.stream(filtered, EXAMPLE, axes=0, params=params, pulse=pulse, multiple=2)
    written = jaxrnn.export_onnx(streamed, params, tmp_path / "step.onnx", flush=tmp_path / "flush.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["flush.onnx", "step.first_state.npz", "step.onnx"]
    assert sorted(written.files) == sorted(tmp_path.iterdir())
    stream = ExportedStream(tmp_path / "step.onnx", tmp_path / "flush.onnx")
    for frames in (pulse * 3, pulse * 3 + 2 if pulse > 2 else 2, 0):
        x = {"x": rng.standard_normal((frames, 2)).astype(np.float32)}
        assert_equal(stream.run(x), filtered(params, x))
