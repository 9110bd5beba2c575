"""The losses: values, gradients and refusals."""

from __future__ import annotations

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.signal
from jax.test_util import check_grads
from refusals import check_refused
from scipy import special
from tiers import in_later_tier, of_tiers

import jaxrnn
from jaxrnn.evaluation import build_metric
from jaxrnn.settings.functions import build
from jaxrnn.signal import si_sdr
from jaxrnn.training import losses, metrics

FRAMES, WIDTH, CLASSES = 9, 3, 4
ALL = np.ones(FRAMES, bool)


def draw(seed: int = 0, frames: int = FRAMES) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Outputs and arrays of an example, with time on axis 1, and on axis 0 where its name says so."""
    rng = np.random.default_rng(seed)
    real = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    outputs = {
        "y": real(1, frames, WIDTH),
        "y_first": real(frames, 1, WIDTH),
        "spectrum": (real(1, frames, WIDTH) + 1j * real(1, frames, WIDTH)).astype(np.complex64),
        "parts": real(1, WIDTH, frames, 2),
        "logits": real(1, frames, CLASSES),
        "logits_in_front": real(1, CLASSES, frames),
        "yes": rng.uniform(0.01, 0.99, (frames, 1, 1)).astype(np.float32),
        "yes_logits": 3 * real(frames, 1, 1),
    }
    outputs["shares"] = special.softmax(outputs["logits"], -1)
    example = {
        "wanted": real(frames, WIDTH),
        "noisy": real(1, frames, WIDTH),
        "sources": real(WIDTH, 1, frames),
        "wanted_spectrum": (real(frames, WIDTH) + 1j * real(frames, WIDTH)).astype(np.complex64),
        "wanted_parts": real(1, WIDTH, frames, 2),
        "classes": rng.integers(0, CLASSES, frames),
        "soft": special.softmax(real(frames, CLASSES), -1),
        "speech": rng.random(frames) < 0.5,
        "labels": np.array([1, 2, 2, 0, 0]),
    }
    return outputs, example


#: Every loss and metric in its variants, and the output that it judges.
CASES = {
    "mse": ("y", losses.mse("y", "wanted", time_axis=1)),
    "mse, time first": ("y_first", losses.mse("y_first", "wanted", time_axis=0)),
    "mse of a mask": ("y", losses.mse("y", "wanted", times="noisy", time_axis=-2)),
    "absolute error": ("y", losses.mean_absolute_error("y", "wanted", time_axis=1)),
    "absolute error of spectra": ("spectrum", losses.mean_absolute_error("spectrum", "wanted_spectrum", time_axis=1)),
    "magnitudes": ("spectrum", losses.spectral_mse("spectrum", "wanted_spectrum", time_axis=1)),
    "complex": ("spectrum", losses.spectral_mse("spectrum", "wanted_spectrum", time_axis=1, complex_weight=1)),
    "compressed": (
        "spectrum",
        losses.spectral_mse("spectrum", "wanted_spectrum", time_axis=1, power=0.3, complex_weight=0.3),
    ),
    "complex mask": ("y", losses.spectral_mse("y", "wanted_spectrum", times="noisy", time_axis=1, complex_weight=0.5)),
    "parts": (
        "parts",
        losses.spectral_mse("parts", "wanted_parts", time_axis=2, power=0.5, complex_weight=0.5, parts_axis=3),
    ),
    "resolutions": (
        "y",
        losses.multi_resolution_stft("y", "wanted", time_axis=1, sizes=(4, 8), hops=(2, 3), windows=(4, 6)),
    ),
    "order of sources": ("y", losses.permutation_invariant("mse", "y", "sources", axis=2, time_axis=1)),
    "sum": (
        "y",
        losses.weighted_sum(
            [(2, losses.mse("y", "wanted", time_axis=1)), (0.5, losses.si_sdr("y", "wanted", time_axis=1))]
        ),
    ),
    "si_sdr": ("y", losses.si_sdr("y", "wanted", time_axis=1)),
    "si_sdr, zero mean": ("y", losses.si_sdr("y", "wanted", time_axis=1, zero_mean=True)),
    "si_sdr of spectra": ("spectrum", losses.si_sdr("spectrum", "wanted_spectrum", time_axis=1, zero_mean=True)),
    "cross_entropy": ("logits", losses.cross_entropy("logits", "classes")),
    "cross_entropy, classes first": (
        "logits_in_front",
        losses.cross_entropy("logits_in_front", "classes", class_axis=1, time_axis=2),
    ),
    "cross_entropy, soft": ("logits", losses.cross_entropy("logits", "soft", time_axis=1)),
    "cross_entropy, ignored": ("logits", losses.cross_entropy("logits", "classes", ignore_label=2)),
    "cross_entropy of probabilities": ("shares", losses.cross_entropy("shares", "classes", scale="probabilities")),
    "binary": ("yes", losses.binary_cross_entropy("yes", "speech")),
    "binary, logits": ("yes_logits", losses.binary_cross_entropy("yes_logits", "speech", scale="logits")),
    "ctc": ("logits", losses.ctc("logits", "labels")),
    "improvement": ("y", metrics.si_sdr_improvement("y", "wanted", "noisy", time_axis=1)),
}
#: Metrics whose gradient is zero nearly everywhere, or has no meaning.
FLAT = {
    "accuracy": ("logits", metrics.accuracy("logits", "classes")),
    "accuracy, ignored": ("logits", metrics.accuracy("logits", "classes", ignore_label=1)),
    "binary accuracy": ("yes", metrics.binary_accuracy("yes", "speech")),
}


@functools.cache
def derivative_of(loss, name):
    """Compiled once for all examples and masks of one shape."""
    return jax.jit(jax.value_and_grad(lambda array, outputs, *rest: loss({**outputs, name: array}, *rest)))


def value_and_gradient(loss, name, outputs, example, mask):
    value, gradient = derivative_of(loss, name)(outputs[name], outputs, example, mask)
    return np.asarray(value), np.asarray(gradient)


def call(loss, outputs, example, mask=ALL) -> float:
    return float(jax.jit(loss)(outputs, example, mask))


def padded(arrays, frames):
    """The arrays with more frames along the axis that has FRAMES of them; other axes are shorter."""
    result = {}
    for name, array in arrays.items():
        widths = [(0, frames if size == FRAMES else 0) for size in array.shape]
        filling = np.nan if array.dtype.kind in "fc" else 7
        result[name] = np.pad(array, widths, constant_values=filling)
    return result


SLOW = (
    "ctc",
    "complex mask",
    "cross_entropy",
    "cross_entropy, classes first",
    "cross_entropy, ignored",
    "si_sdr of spectra",
    "si_sdr, zero mean",
)


@pytest.mark.parametrize("case", in_later_tier(CASES | FLAT, SLOW))
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


@pytest.mark.thorough
@pytest.mark.parametrize("case", of_tiers(CASES, list(CASES)[:1], thorough=()))
def test_gradients_are_those_of_finite_differences(case):
    name, loss = CASES[case]
    outputs, example = draw(3)
    with jax.enable_x64(True):
        wide = {
            key: array.astype(np.promote_types(array.dtype, np.float64)) if array.dtype.kind in "fc" else array
            for key, array in outputs.items()
        }
        x = jnp.array(wide[name])
        # Real and imaginary parts apart: JAX's gradient with respect to complex numbers is a convention.
        parts = (x.real, x.imag) if jnp.iscomplexobj(x) else (x,)

        def of_parts(*parts):
            array = jax.lax.complex(*parts) if len(parts) == 2 else parts[0]
            return loss({**wide, name: array}, example, np.arange(FRAMES) < FRAMES - 2)

        assert of_parts(*parts).dtype == jnp.float64
        check_grads(jax.jit(of_parts), parts, 1, modes=["rev"], rtol=1e-5, atol=1e-7, eps=1e-5)


@pytest.mark.parametrize("case", of_tiers(CASES | FLAT, list(CASES)[::8], thorough=list(CASES)[::4]))
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
        half = jax.jit(loss)({name: jnp.array(outputs[name], jnp.bfloat16)}, example, ALL)
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
        (lambda: losses.multi_resolution_stft("spectrum", "wanted_spectrum", time_axis=1), "compares samples"),
        (lambda: losses.multi_resolution_stft("y", "wanted", sizes=(64,)), "have a number for each resolution"),
        (lambda: losses.multi_resolution_stft("y", "wanted", windows=(2000, 1, 1)), "from 1 to the 1024 samples"),
        (lambda: losses.permutation_invariant("ctc", "y", "sources"), "no loss of a source 'ctc'"),
        (lambda: losses.permutation_invariant("mse", "y", "sources", scale=1), "unexpected keyword argument 'scale'"),
        (
            lambda: losses.permutation_invariant("mse", "y", "sources", axis=1),
            "'sources' is float32[3, 1, 9], with sources first",
        ),
        (lambda: losses.weighted_sum([]), "a sum needs losses"),
        (lambda: losses.weighted_sum([(float("nan"), losses.mse("y", "wanted"))]), "finite weights, not [nan]"),
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


@pytest.mark.thorough
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


def test_errors_of_spectra_are_their_formulas():
    outputs, example = draw()
    x, y = (a.astype(np.complex128) for a in (outputs["spectrum"][0], example["wanted_spectrum"]))
    pair = ("spectrum", "wanted_spectrum")
    assert call(losses.mse(*pair, time_axis=1), outputs, example) == pytest.approx(np.mean(np.abs(x - y) ** 2))
    for power in (0.3, 1, 2):
        of_magnitudes = np.mean((np.abs(x) ** power - np.abs(y) ** power) ** 2)
        of_values = np.mean(np.abs(np.abs(x) ** (power - 1) * x - np.abs(y) ** (power - 1) * y) ** 2)
        for weight in (0, 0.3, 1):
            loss = losses.spectral_mse(*pair, time_axis=1, power=power, complex_weight=weight, floor=1e-6)
            wanted = (1 - weight) * of_magnitudes + weight * of_values
            assert call(loss, outputs, example) == pytest.approx(wanted, rel=1e-5)
    mask = losses.spectral_mse("y", "wanted_spectrum", times="noisy", time_axis=1)
    wanted = np.mean((np.abs(outputs["y"] * example["noisy"]) - np.abs(y)) ** 2)
    assert call(mask, outputs, example) == pytest.approx(wanted, rel=1e-5)
    parts = losses.mse(lambda outputs, example: outputs["y"] ** 2, "wanted", time_axis=1)
    assert call(parts, outputs, example) == pytest.approx(np.mean((outputs["y"][0] ** 2 - example["wanted"]) ** 2))


@pytest.mark.parametrize("padding", ["reflect", "zeros"])
@pytest.mark.parametrize("samples", of_tiers([400, 331, 20], [331, 20], []))  # the last turns several times
def test_resolutions_are_their_formula(padding, samples):
    """Of the first samples of a recording: what stands after these does not matter."""
    rng = np.random.default_rng(0)
    output, target = rng.standard_normal((2, 1, 400)).astype(np.float32)
    target[0, 100:300] = 0  # silence below the floor
    expected = []
    mode = {"reflect": "reflect", "zeros": "constant"}[padding]
    for size, hop, length in ((64, 10, 40), (33, 8, 32)):
        magnitudes = []
        for x in (output[0, :samples], target[0, :samples]):
            padded = np.pad(x.astype(np.float64), size // 2, mode)
            starts = range(0, len(padded) - size + 1, hop)
            before = (size - length) // 2
            window = np.pad(scipy.signal.get_window("hann", length), (before, size - length - before))
            spectra = np.fft.rfft([padded[start : start + size] * window for start in starts])
            magnitudes.append(np.sqrt(np.maximum(np.abs(spectra) ** 2, 1e-7)))
        got, wanted = magnitudes
        expected.append(np.linalg.norm(wanted - got) / np.linalg.norm(wanted))
        expected[-1] += np.abs(np.log(wanted) - np.log(got)).mean()
    options = {"sizes": (64, 33), "hops": (10, 8), "windows": (40, 32), "padding": padding}
    loss = losses.multi_resolution_stft("y", "wanted", **options)
    ready = np.arange(400) < samples
    np.testing.assert_allclose(call(loss, {"y": output}, {"wanted": target}, ready), np.mean(expected), rtol=1e-5)
    assert call(loss, {"y": target}, {"wanted": target}, ready) == 0
    gradient = jax.jit(jax.grad(lambda y: loss({"y": y}, {"wanted": target}, ready)))(target)
    assert np.isfinite(gradient).all()


def test_the_order_of_sources_does_not_matter():
    rng = np.random.default_rng(0)
    sources = rng.standard_normal((3, 50)).astype(np.float32)
    near = sources + 0.1 * rng.standard_normal((3, 50)).astype(np.float32)
    single = losses.si_sdr("y", "wanted")
    expected = np.mean(
        [call(single, {"y": x}, {"wanted": y}, np.ones(50, bool)) for x, y in zip(near, sources, strict=True)]
    )
    loss = losses.permutation_invariant("si_sdr", "y", "clean")
    own = losses.permutation_invariant(losses.si_sdr, "y", "clean", zero_mean=True)
    for order in itertools.permutations(range(3)):
        measured = call(loss, {"y": near[list(order)]}, {"clean": sources}, np.ones(50, bool))
        np.testing.assert_allclose(measured, expected, rtol=1e-5)
    assert call(own, {"y": near}, {"clean": sources}, np.ones(50, bool)) < -15


def test_a_sum_has_weights_and_a_name():
    outputs, example = draw()
    first, second = (losses.mse("y", "wanted", time_axis=1), losses.si_sdr("y", "wanted", time_axis=1))
    both = losses.weighted_sum([(2, first), (-0.5, second)])
    expected = 2 * call(first, outputs, example) - 0.5 * call(second, outputs, example)
    np.testing.assert_allclose(call(both, outputs, example), expected, rtol=1e-6)
    assert both.__qualname__ == f"2 * {first.__qualname__} + -0.5 * {second.__qualname__}"
    assert losses.weighted_sum([(1, first)]) is first, "checkpoints of a single loss know its name"


def si_sdr_of_signals(estimate, target):
    """The formula as torchmetrics has it, without its epsilon."""
    estimate, target = estimate.astype(np.float64), target.astype(np.float64)
    along = np.sum(estimate * target) / np.sum(target**2) * target
    return 10 * np.log10(np.sum(along**2) / np.sum((along - estimate) ** 2))


@pytest.mark.parametrize("noise", [10, 0.1, 1e-4])
@pytest.mark.parametrize("scale", [1, -0.02])
def test_loss_metric_and_demo_have_one_si_sdr(scale, noise):
    """Of signals without a mean also that of BSS Eval with a filter of one tap, which mir_eval tests elsewhere."""
    rng = np.random.default_rng(4)
    clean, rest = rng.standard_normal((2, 500))
    estimate = scale * (clean + noise * rest) + 0.1
    wanted = si_sdr_of_signals(estimate - estimate.mean(), clean - clean.mean())
    assert si_sdr(estimate, clean) == pytest.approx(wanted, abs=1e-9)
    arguments = {"y": estimate.astype(np.float32)}, {"clean": clean.astype(np.float32)}, np.ones(500, bool)
    assert call(metrics.si_sdr("y", "clean", zero_mean=True, limit=200), *arguments) == pytest.approx(wanted, abs=2e-3)
    for name, options in (("si_sdr", {}), ("sdr", {"taps": 1})):
        judge = build_metric(name, options).start(16_000)
        for part in (slice(0, 123), slice(123, 500)):
            judge.add((estimate - estimate.mean())[part], (clean - clean.mean())[part], None)
        assert judge.result()[name] == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(
    ("estimate", "reference", "said"),
    [
        (np.ones((4, 1)), np.ones(4), r"of one shape, not \[4, 1\] and \[4\]"),
        (np.arange(4) * 1j, np.arange(4), "the estimate is complex128"),
        (np.arange(4), np.zeros(4), "the reference is constant"),
        (np.full(7, 0.1), np.arange(7), "the estimate is constant"),
        (np.zeros(0), np.zeros(0), "the estimate is empty"),
    ],
)
def test_signals_without_si_sdr_are_refused(estimate, reference, said):
    check_refused(jaxrnn.InputError, said, si_sdr, estimate, reference)


def test_si_sdr_has_limits():
    x = np.array([1, -1, 1, -1])
    assert si_sdr(2 * x, x) == np.inf
    assert si_sdr([1, 1, -1, -1], x) == -np.inf


@pytest.mark.parametrize("scale", [1, -3, 1e-15, 1e15])
def test_si_sdr_is_that_of_signals_whatever_the_scale(scale):
    rng = np.random.default_rng(4)
    clean, noise = rng.standard_normal((2, 500))
    estimate = (scale * (clean + 0.1 * noise)).astype(np.float32)
    target = (1e3 * scale * clean).astype(np.float32)
    wanted = si_sdr_of_signals(estimate, target)
    loss = losses.si_sdr("y", "clean")
    value, gradient = value_and_gradient(loss, "y", {"y": estimate[None]}, {"clean": target}, np.ones(500, bool))
    assert value == pytest.approx(-wanted, abs=1e-4)
    # The ratio does not change along the estimate itself.
    along = np.sum(gradient.astype(np.float64) * estimate) / np.sqrt(np.sum(gradient.astype(np.float64) ** 2))
    assert abs(along) < 1e-5 * np.linalg.norm(estimate)
    if abs(scale) < 1e10:
        centred = losses.si_sdr("y", "clean", zero_mean=True)
        moved = {"y": estimate + scale * 5}, {"clean": target - scale * 700}
        wanted = si_sdr_of_signals(estimate - estimate.mean(), target - target.mean())
        assert call(centred, *moved, np.ones(500, bool)) == pytest.approx(-wanted, abs=1e-3)


@pytest.mark.parametrize(
    ("estimate", "target", "loss", "still"),
    [
        (np.ones(4), np.zeros(4), 0, True),
        (np.zeros(4), np.zeros(4), 0, True),
        (np.zeros(4), np.ones(4), 60, True),
        (np.ones(4), np.ones(4), -60, False),
        (np.array([1, -1, 1, -1]), np.ones(4), 60, False),
    ],
    ids=["silent target", "both silent", "silent estimate", "perfect", "orthogonal"],
)
def test_si_sdr_of_signals_without_one(estimate, target, loss, still):
    built = losses.si_sdr("y", "clean", limit=60)
    value, gradient = value_and_gradient(
        built, "y", {"y": estimate.astype(np.float32)}, {"clean": target.astype(np.float32)}, np.ones(4, bool)
    )
    assert value == pytest.approx(loss, abs=1e-4)
    assert np.isfinite(gradient).all()
    assert not still or not gradient.any()


@pytest.mark.thorough
def test_cross_entropies_are_those_of_scipy():
    outputs, example = draw()
    logarithms = special.log_softmax(outputs["logits"][0].astype(float), -1)
    classes, speech = example["classes"], example["speech"]
    each = -logarithms[np.arange(FRAMES), classes]
    assert call(losses.cross_entropy("logits", "classes"), outputs, example) == pytest.approx(each.mean())
    probabilities = losses.cross_entropy("shares", "classes", scale="probabilities")
    assert call(probabilities, outputs, example) == pytest.approx(each.mean())
    ignoring = losses.cross_entropy("logits", "classes", ignore_label=2)
    assert call(ignoring, outputs, example) == pytest.approx(each[classes != 2].mean())
    soft = -np.sum(example["soft"] * logarithms, -1).mean()
    assert call(losses.cross_entropy("logits", "soft"), outputs, example) == pytest.approx(soft)
    right = outputs["logits"][0].argmax(-1) == classes
    assert call(metrics.accuracy("logits", "classes"), outputs, example) == pytest.approx(right.mean())

    logits = outputs["yes_logits"].reshape(-1).astype(float)
    each = -np.where(speech, special.log_expit(logits), special.log_expit(-logits))
    binary = losses.binary_cross_entropy("yes_logits", "speech", scale="logits")
    assert call(binary, outputs, example) == pytest.approx(each.mean())
    shares = {"yes": special.expit(outputs["yes_logits"])}
    assert call(losses.binary_cross_entropy("yes", "speech"), shares, example) == pytest.approx(each.mean(), rel=1e-5)
    at_zero = metrics.binary_accuracy("yes_logits", "speech", threshold=0)
    assert call(at_zero, outputs, example) == pytest.approx(np.mean((logits >= 0) == speech))


def test_accuracies_of_training_and_of_evaluation_are_one():
    """At the threshold, with a label of one half, and with ties between classes."""
    scores, labels = np.float32([0.2, 0.5, 0.7, 0.4, 0.5]), np.float32([0, 0.5, 1, 0.5, 0])
    judge = build_metric("accuracy").start(100)
    judge.add(scores, labels, None)
    found = call(metrics.binary_accuracy("p", "speech"), {"p": scores}, {"speech": labels}, np.ones(5, bool))
    assert found == pytest.approx(judge.result()["accuracy"]) == pytest.approx(3 / 5)
    scores, labels = np.float32([[1, 1, 0], [0, 2, 2], [3, 0, 3], [1, 1, 1]]), np.array([1, 1, 0, -1])
    judge = build_metric("class_accuracy").start(100)
    judge.add(scores, labels, None)
    found = metrics.accuracy("p", "class", time_axis=0, ignore_label=-1)
    value = call(found, {"p": scores}, {"class": labels}, np.ones(4, bool))
    assert value == pytest.approx(judge.result()["class_accuracy"]) == pytest.approx(2 / 3)


@pytest.mark.thorough
def test_probabilities_of_zero_and_one_are_finite():
    built = losses.binary_cross_entropy("p", "speech")
    p = np.array([0, 0, 1, 1, 1e-30], np.float32)
    labels = {"speech": np.array([0, 1, 0, 1, 1])}
    value, gradient = value_and_gradient(built, "p", {"p": p}, labels, np.ones(5, bool))
    assert value == pytest.approx((-np.log(np.finfo(np.float32).tiny) - np.log(2.0**-24) - np.log(1e-30)) / 5, rel=1e-3)
    assert np.isfinite(gradient).all()
    assert gradient[4] == pytest.approx(-1e30 / 5)
    logits = np.array([-1e4, 1e4], np.float32)
    built = losses.binary_cross_entropy("x", "speech", scale="logits")
    value, gradient = value_and_gradient(built, "x", {"x": logits}, {"speech": [1, 0]}, np.ones(2, bool))
    assert value == pytest.approx(1e4)
    np.testing.assert_allclose(gradient, [-0.5, 0.5])
    shares = np.array([[0, 1], [1, 0]], np.float32)
    built = losses.cross_entropy("x", "classes", scale="probabilities")
    value, gradient = value_and_gradient(built, "x", {"x": shares}, {"classes": np.array([0, 0])}, np.ones(2, bool))
    assert 0 < value < 100
    assert np.isfinite(gradient).all()


def all_alignments(logarithms: np.ndarray, labels: list[int], blank: int) -> float:
    """Minus the log-likelihood of the labels: every path of classes that reads as them, added up."""
    frames, classes = logarithms.shape
    total = -np.inf
    for path in itertools.product(range(classes), repeat=frames):
        if [key for key, _ in itertools.groupby(path) if key != blank] == labels:
            total = np.logaddexp(total, sum(logarithms[t, k] for t, k in enumerate(path)))
    return -total


@pytest.mark.parametrize(
    ("blank", "rename"), [pytest.param(0, [0, 1, 2], marks=pytest.mark.thorough, id="first"), (-1, [2, 0, 1])]
)
def test_ctc_is_the_sum_over_alignments(blank, rename):
    logits = np.random.default_rng(5).standard_normal((5, 3)).astype(np.float32)
    logarithms = special.log_softmax(logits.astype(float), -1)
    sequences = [
        [rename[label] for label in labels] for labels in ([], [1], [1, 2], [2, 2], [1, 1, 1], [1, 2, 1, 2, 1])
    ]
    wanted = [all_alignments(logarithms, labels, blank % 3) for labels in sequences]
    counts = np.array(list(map(len, sequences)))
    for padding, labels_in in ((blank % 3, None), (-1, None), (3, None), (rename[1], "count")):
        labels = np.array([labels + [padding] * (7 - len(labels)) for labels in sequences])
        built = losses.ctc("y", "labels", blank=blank, labels_in=labels_in)
        values = jax.jit(jax.vmap(built, (None, 0, None)))({"y": logits}, {"labels": labels, "count": counts}, ALL[:5])
        np.testing.assert_allclose(values, wanted, rtol=1e-5)
    of_probabilities = losses.ctc("y", "labels", blank=blank, scale="probabilities")
    example = {"labels": np.array(sequences[3])}
    assert call(of_probabilities, {"y": np.exp(logarithms)}, example, ALL[:5]) == pytest.approx(wanted[3], rel=1e-5)
    empty = {"labels": np.zeros(0, int)}
    assert call(losses.ctc("y", "labels", blank=blank), {"y": logits}, empty, ALL[:5]) == pytest.approx(wanted[0])


SKIPPING = losses.ctc("logits", "labels", skip_impossible=True)


@pytest.mark.parametrize("frames", [0, 3])
def test_labels_that_need_more_frames_are_infinitely_unlikely(frames):
    outputs, example = draw()
    mask = np.arange(FRAMES) < frames  # 1, 2, 2 need four, with the blank between the twos
    infinite = CASES["ctc"][1]
    assert call(infinite, outputs, example, mask) == np.inf
    value, gradient = value_and_gradient(SKIPPING, "logits", outputs, example, mask)
    assert value == 0
    assert not gradient.any()
    assert np.isfinite(call(infinite, outputs, example, np.arange(FRAMES) < 4))


@pytest.mark.parametrize("label", [-1, CLASSES, 2**31 - 1])
def test_a_label_that_is_no_class_is_not_taken_for_one(label):
    outputs, example = draw()
    example["classes"][2] = label
    built = losses.cross_entropy("logits", "classes")
    assert np.isnan(call(built, outputs, example))
    assert np.isfinite(call(built, outputs, example, np.arange(FRAMES) < 2))
    assert call(metrics.accuracy("logits", "classes"), outputs, example) < 1


def test_the_same_as_torch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    functional = torch.nn.functional
    outputs, example = draw(6)
    tensors = {name: torch.tensor(array) for name, array in {**outputs, **example}.items()}
    logits, classes, speech = tensors["logits"][0], tensors["classes"], tensors["speech"].float()
    yes, yes_logits = tensors["yes"].reshape(-1), tensors["yes_logits"].reshape(-1)
    for built, wanted in (
        (losses.mse("y", "wanted", time_axis=1), functional.mse_loss(tensors["y"][0], tensors["wanted"])),
        (losses.cross_entropy("logits", "classes"), functional.cross_entropy(logits, classes)),
        (losses.cross_entropy("logits", "soft"), functional.cross_entropy(logits, tensors["soft"])),
        (
            losses.cross_entropy("logits", "classes", ignore_label=1),
            functional.cross_entropy(logits, classes, ignore_index=1),
        ),
        (losses.binary_cross_entropy("yes", "speech"), functional.binary_cross_entropy(yes, speech)),
        (
            losses.binary_cross_entropy("yes_logits", "speech", scale="logits"),
            functional.binary_cross_entropy_with_logits(yes_logits, speech),
        ),
        (
            losses.ctc("logits", "labels"),
            functional.ctc_loss(
                logits.log_softmax(-1)[:, None], tensors["labels"][None, :3], [FRAMES], [3], reduction="sum"
            ),
        ),
    ):
        assert call(built, outputs, example) == pytest.approx(wanted.item(), rel=1e-5)
