"""Losses and metrics whatever they compute: frames that do not exist change nothing, types, gradients, mistakes."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from loss_cases import ALL, CASES, FLAT, FRAMES, call, draw, value_and_gradient
from tiers import of_tiers

import jaxrnn
from jaxrnn.settings.functions import build
from jaxrnn.training import losses, metrics


def padded(arrays, frames):
    """The arrays with more frames along the axis that has FRAMES of them; other axes are shorter."""
    result = {}
    for name, array in arrays.items():
        widths = [(0, frames if size == FRAMES else 0) for size in array.shape]
        filling = np.nan if array.dtype.kind in "fc" else 7
        result[name] = np.pad(array, widths, constant_values=filling)
    return result


@pytest.mark.parametrize("case", CASES | FLAT)
def test_frames_that_do_not_exist_change_nothing(case):
    name, loss = (CASES | FLAT)[case]
    outputs, example = draw()
    value, gradient = value_and_gradient(loss, name, outputs, example, ALL)
    assert np.isfinite(value)
    mask = np.arange(FRAMES + 4) < FRAMES
    more, more_gradient = value_and_gradient(loss, name, padded(outputs, 4), padded(example, 4), mask)
    # Sums of other lengths may be taken in another order: as many roundings as there are numbers.
    np.testing.assert_allclose(more, value, rtol=1e-5, atol=1e-6)
    axis = outputs[name].shape.index(FRAMES)
    inside, behind = np.split(more_gradient, [FRAMES], axis)
    np.testing.assert_allclose(inside, gradient, rtol=1e-4, atol=1e-6)
    assert not behind.any()
    if case in CASES:
        assert gradient.any()
    assert value.dtype == np.float32


# Labels without frames are impossible: see the test of that.
@pytest.mark.parametrize("case", [case for case in CASES | FLAT if case != "ctc"])
def test_no_frame_at_all_is_no_reason_for_nan(case):
    name, loss = (CASES | FLAT)[case]
    value, gradient = value_and_gradient(loss, name, *draw(), np.zeros(FRAMES, bool))
    assert value == 0
    assert not gradient.any()


@pytest.mark.parametrize("case", of_tiers(CASES, list(CASES)[:1]))
def test_gradients_are_those_of_finite_differences(case):
    name, loss = CASES[case]
    outputs, example = draw(3)
    with jax.enable_x64(True):
        wide = {
            key: array.astype(np.promote_types(array.dtype, np.float64)) if array.dtype.kind in "fc" else array
            for key, array in outputs.items()
        }
        x = jnp.asarray(wide[name])
        # Real and imaginary parts apart: JAX's gradient with respect to complex numbers is a convention.
        parts = (x.real, x.imag) if jnp.iscomplexobj(x) else (x,)

        def of_parts(*parts):
            array = jax.lax.complex(*parts) if len(parts) == 2 else parts[0]
            return loss({**wide, name: array}, example, np.arange(FRAMES) < FRAMES - 2)

        assert of_parts(*parts).dtype == jnp.float64
        check_grads(jax.jit(of_parts), parts, 1, modes=["rev"], rtol=1e-5, atol=1e-7, eps=1e-5)


@pytest.mark.parametrize("case", of_tiers(CASES | FLAT, list(CASES)[::4]))
def test_batches_x64_and_half_precision(case):
    name, loss = (CASES | FLAT)[case]
    outputs, example = draw()
    value = call(loss, outputs, example)
    stacked = jax.tree.map(lambda *arrays: np.stack(arrays), *(draw(seed) for seed in (0, 1)))
    batch = jax.jit(jax.vmap(loss))(*stacked, np.stack([ALL, ALL]))
    np.testing.assert_allclose(batch[0], value, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(batch[1], call(loss, *draw(1)), rtol=1e-5, atol=1e-6)
    with jax.enable_x64(True):
        same = jax.jit(loss)(outputs, example, ALL)
        assert same.dtype == np.float32
        np.testing.assert_allclose(same, value, rtol=1e-5, atol=1e-6)
    if outputs[name].dtype == np.float32:
        half = jax.jit(loss)({name: jnp.asarray(outputs[name], jnp.bfloat16)}, example, ALL)
        assert half.dtype == np.float32
        if case not in FLAT:
            np.testing.assert_allclose(half, value, rtol=0.05, atol=0.05)


def test_frames_of_other_rates():
    rng = np.random.default_rng(7)
    y, wanted = rng.standard_normal((2, 12)).astype(np.float32)
    built = losses.mse("y", "wanted")
    squares = (y - wanted) ** 2
    # Three samples a frame: 2 frames exist. Two frames of the mask for each of the output: 5 of them make 2 whole ones.
    assert call(built, {"y": y}, {"wanted": wanted}, np.arange(4) < 2) == pytest.approx(squares[:6].mean())
    assert call(built, {"y": y}, {"wanted": wanted}, np.arange(24) < 5) == pytest.approx(squares[:2].mean())
    without = losses.mse("y", "wanted", time_axis=None)
    assert call(without, {"y": y}, {"wanted": wanted}, np.arange(5) < 2) == pytest.approx(squares.mean())
    one = {"y": y[:1, None]}, {"wanted": wanted[:1]}
    assert call(built, *one, np.arange(5) < 2) == pytest.approx(squares[0])


def loss_of(name, /, *, folder=None, **options):
    return build("loss", name, losses.LOSSES, options, folder)


def metric_of(name, /, **options):
    return build("metric", name, metrics.METRICS, options)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: losses.mse("yy", "wanted"), "no output 'yy' (did you mean 'y'?)"),
        (lambda: losses.mse("y", "want"), "no array 'want' (did you mean 'wanted'?)"),
        (lambda: losses.mse("y", "wanted"), "which axis of float32[1, 9, 3] is time?"),
        (lambda: losses.mse("y", "wanted", time_axis=3), "time_axis=3: float32[1, 9, 3] has 3 axes"),
        (lambda: losses.mse("y", "classes", time_axis=1), "'classes' is float32[9], but what it is compared with has"),
        (lambda: losses.mse("y", "wanted", time_axis=2), "has 3 frames (its axis 2, put first), the mask 8"),
        (lambda: losses.spectral_mse("y", "wanted", time_axis=1, complex_weight=1), "needs complex values"),
        (lambda: losses.spectral_mse("y", "wanted", time_axis=1, parts_axis=2), "parts_axis=2"),
        (lambda: losses.spectral_mse("y", "wanted", power=0), "power must be above 0"),
        (lambda: losses.cross_entropy("logits", "classes", class_axis=5), "class_axis=5"),
        (lambda: losses.cross_entropy("logits", "classes", time_axis=2), "both time_axis and class_axis"),
        (lambda: losses.cross_entropy("logits", "classes", scale="log"), "'logits' or 'probabilities', not 'log'"),
        (lambda: losses.ctc("logits", "labels", blank=4), "blank=4: the output has 4 classes"),
        (lambda: losses.ctc("parts", "labels", time_axis=2), "frames and classes and no other axes"),
        (lambda: loss_of("si_sdrr", output="y"), "no loss 'si_sdrr' (did you mean 'si_sdr'?)"),
        (lambda: loss_of("mse", outputs="y"), "outputs: unknown option of mse (did you mean 'output'?)"),
        (lambda: loss_of("mse", output="y"), "target: missing"),
        (lambda: loss_of("os.pathh:join"), "'os.pathh' cannot be imported"),
        (lambda: loss_of("os.path:joint"), "os.path has no function 'joint' (did you mean 'join'?)"),
        (lambda: loss_of("absent.py:loss"), "there is no file"),
        (lambda: metric_of("acuracy"), "no metric 'acuracy' (did you mean 'accuracy'?)"),
    ],
)
def test_mistakes_are_named(make, said):
    with pytest.raises(jaxrnn.InputError, match=re.escape(said)):
        make()(*draw(), np.ones(FRAMES - 1 if "mask 8" in said else FRAMES, bool))


def test_losses_by_name_and_of_ones_own(tmp_path):
    outputs, example = draw()
    options = {"output": "y", "target": "wanted", "time_axis": 1}
    assert call(loss_of("mse", **options), outputs, example) == call(losses.mse(**options), outputs, example)
    improvement = metric_of("si_sdr_improvement", mixture="noisy", **options)
    gained = call(losses.si_sdr("noisy", "wanted", time_axis=1), example, example) - call(
        loss_of("si_sdr", **options), outputs, example
    )
    assert call(improvement, outputs, example) == pytest.approx(gained, abs=1e-5)
    (tmp_path / "own.py").write_text(
        "from dataclasses import dataclass\n\n@dataclass\nclass A:\n    b: 'int'\n\n"
        "def loss(outputs, example, mask, *, factor=1):\n    return factor * outputs['y'].sum()\n"
    )
    own = loss_of("own.py:loss", folder=tmp_path, factor=2)
    assert call(own, outputs, example) == pytest.approx(2 * outputs["y"].sum(), rel=1e-5)
    with pytest.raises(jaxrnn.InputError, match="factr: unknown option of loss"):
        loss_of(f"{tmp_path}/own.py:loss", factr=2)
