"""Losses, optimizer steps and image files among the operators: what the backend suite does not ask of them."""

from __future__ import annotations

import io

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from one_operator import one_operator
from PIL import Image

import jaxrnn
from jaxrnn._jax.context import exact_types

SCORES = np.random.default_rng(0).standard_normal((5, 4, 3)).astype(np.float32)
LABELS = np.random.default_rng(1).integers(0, 4, (5, 3))
WEIGHTS = np.float32([0.5, 1, 2, 0.25])


def loss_of(scores, labels, weights=None, **attributes):
    inputs = {"scores": scores, "labels": labels, "weights": weights}
    model, arrays = one_operator("SoftmaxCrossEntropyLoss", inputs, outputs=2, opset=13, **attributes)
    return jaxrnn.load(model), arrays


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_cross_entropy_and_its_gradient(kind):
    """Ignored samples count for nothing, whatever their scores are."""
    labels = LABELS.copy()
    labels[0] = -1
    scores = SCORES.astype(kind)
    scores[0, 0] = -np.inf
    loaded, arrays = loss_of(scores, labels, WEIGHTS.astype(kind), ignore_index=-1)
    run = jax.jit(lambda x: loaded.apply({}, {**arrays, "scores": x})["y0"])
    wide = scores[1:].astype(np.float64)
    shares = np.exp(wide) / np.exp(wide).sum(1, keepdims=True)
    hot = np.moveaxis(np.eye(4)[labels[1:]], -1, 1)
    share = WEIGHTS[labels[1:]] / WEIGHTS[labels[1:]].sum()
    eps = float(jnp.finfo(kind).eps)
    assert run(scores).dtype == kind
    np.testing.assert_allclose(run(scores), -(np.log(shares) * hot * share[:, None]).sum(), rtol=4 * eps)
    slope = np.asarray(jax.grad(run)(jnp.asarray(scores))).astype(np.float64)
    np.testing.assert_array_equal(slope[0], 0)
    np.testing.assert_allclose(slope[1:], (shares - hot) * share[:, None], atol=4 * eps)


def test_a_class_that_does_not_exist_is_no_number():
    for wrong in (4, -1):
        labels = LABELS.copy()
        labels[2, 1] = wrong
        loaded, arrays = loss_of(SCORES, labels, reduction="none")
        loss = np.asarray(jax.jit(loaded.apply)({}, arrays)["y0"])
        assert np.isnan(loss[2, 1])
        assert np.isnan(loss).sum() == 1


def test_adam_is_adam():
    """Three steps against optax, whose epsilon stands elsewhere and is therefore 0."""
    optimizer = optax.adam(0.1, b1=0.9, b2=0.999, eps=0)
    tensors = [np.float32([1, -2, 3]), np.float32([[0.5]])]
    state, expected = optimizer.init(tensors), [jnp.array(x) for x in tensors]
    moments = [np.zeros_like(x) for x in tensors * 2]
    for count in range(1, 4):
        slopes = [np.sin(x + count).astype(np.float32) for x in tensors]
        names = dict(zip("RTabcdefgh", [np.float32(0.1), np.int64(count), *tensors, *slopes, *moments], strict=True))
        model, arrays = one_operator(
            "ai.onnx.preview.training::Adam", names, outputs=6, alpha=0.9, beta=0.999, epsilon=0.0
        )
        loaded = jaxrnn.load(model)
        with exact_types():
            found = [np.asarray(value) for value in jax.jit(loaded.apply)({}, arrays).values()]
        with jax.numpy_dtype_promotion("standard"):  # which optax is written for
            updates, state = optimizer.update([jnp.array(s) for s in slopes], state)
            expected = optax.apply_updates(expected, updates)
        tensors, moments = found[:2], found[2:]
        for ours, theirs in zip(tensors, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-5)  # 1 - 0.999 ** T has 3 digits less there


def encoded(image, kind):
    stream = io.BytesIO()
    image.save(stream, kind)
    return np.frombuffer(stream.getvalue(), np.uint8)


def decoded(data, **attributes):
    proto, arrays = one_operator("ImageDecoder", {"x": data}, opset=20, **attributes)
    model = jaxrnn.load(proto)
    return np.asarray(model.apply(model.params, arrays)["y0"])


def test_images():
    pixels = np.random.default_rng(2).integers(0, 256, (5, 7, 3)).astype(np.uint8)
    png = encoded(Image.fromarray(pixels), "PNG")
    np.testing.assert_array_equal(decoded(png), pixels)
    np.testing.assert_array_equal(decoded(png, pixel_format="BGR"), pixels[:, :, ::-1])
    assert decoded(png, pixel_format="Grayscale").shape == (5, 7, 1)
    transparent = encoded(Image.fromarray(np.dstack([pixels, pixels[:, :, :1]])), "PNG")
    np.testing.assert_array_equal(decoded(transparent), pixels)
    deep = encoded(Image.fromarray(np.uint16([[0, 257, 65535]])), "PNG")
    assert decoded(deep).tolist() == [[[0] * 3, [1] * 3, [255] * 3]]
    for broken in (png[:40], png[:-30], np.zeros(0, np.uint8), np.zeros(100, np.uint8)):
        assert decoded(broken).shape == (0, 0, 3)


def test_without_pillow(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(jaxrnn.errors.MissingPackageError, match=r"jaxrnn\[images\]"):
        decoded(np.zeros(3, np.uint8))
