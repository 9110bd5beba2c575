"""What losses and metrics compute: against formulas, other libraries and brute force."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest
from loss_cases import ALL, CASES, CLASSES, FRAMES, call, draw, value_and_gradient
from scipy import special

from jaxrnn.evaluation import build_metric
from jaxrnn.si_sdr import si_sdr
from jaxrnn.training import losses, metrics


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
    torch = pytest.importorskip("torch", reason="torch is large, so the tests do not install it")
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
