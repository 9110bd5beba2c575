"""Metrics of outputs: against written-out formulas and other libraries, in pieces of any size, and where they end."""

from __future__ import annotations

import itertools
import math
import warnings

import mir_eval
import numpy as np
import pystoi
import pytest
import sklearn.metrics
from evaluation_cases import RATE, noisy, rng, value
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import check_refused

from jaxrnn.errors import InputError
from jaxrnn.evaluation.metrics import (
    METRICS,
    NoValueError,
    over_whole,
    si_sdr,
)
from jaxrnn.evaluation.metrics.counts import Segments, detection
from jaxrnn.evaluation.metrics.sound import sdr

#: Of a detector's counts.
KEY = "detection_counts"


def decibels(signal, noise):
    return 10 * math.log10(np.sum(np.square(signal)) / np.sum(np.square(noise)))


def test_metrics_that_are_sums_have_the_values_of_their_formulas():
    output, reference = noisy()
    x, s = (array.astype(np.float64) - array.astype(np.float64).mean() for array in (output, reference))
    along = (x @ s) / (s @ s) * s
    assert value(si_sdr(), output, reference) == pytest.approx(decibels(along, x - along), abs=1e-9)
    difference = output.astype(np.float64) - reference
    assert value(METRICS["snr"](), output, reference) == pytest.approx(decibels(reference.astype(float), difference))
    rms = 20 * math.log10(np.sqrt(np.mean(output.astype(np.float64) ** 2)))
    assert value(METRICS["level"](), output) == pytest.approx(rms)
    assert value(METRICS["peak"](), output) == pytest.approx(20 * math.log10(np.abs(output).max()))
    sine = np.sin(2 * np.pi * np.arange(16_000) / 16)
    assert value(METRICS["level"](), sine) == pytest.approx(-3.0103, abs=1e-4)
    improvement = value(METRICS["si_sdr_improvement"](), output, reference, noisy(noise=1.0)[0])
    assert improvement == pytest.approx(value(si_sdr(), output, reference) - value(si_sdr(), *noisy(noise=1.0)))


@pytest.mark.parametrize("scale", [1e-6, -0.5, 1.0, 1e4])
@pytest.mark.parametrize("noise", [1e-5, 0.1, 30.0])
def test_si_sdr_does_not_see_scale_or_offset(scale, noise):
    output, reference = (array.astype(np.float64) for array in noisy(noise=noise))
    expected = value(si_sdr(), output, reference)
    # Sums of squares lose what an offset adds, and 100 dB are ten digits: six are left.
    assert value(si_sdr(), scale * output, reference) == pytest.approx(expected, abs=1e-4)
    assert value(si_sdr(), output + 3, 2 * reference - 5) == pytest.approx(expected, abs=1e-3)


def test_si_sdr_tells_outputs_apart_that_are_all_but_equal():
    reference = rng().normal(size=4000)
    output = reference + 1e-9 * rng(1).normal(size=4000)
    s, d = reference - reference.mean(), (output - reference) - (output - reference).mean()
    rest = d - (d @ s) / (s @ s) * s
    # The difference itself is rounded to a ten-millionth of it.
    assert value(si_sdr(), output, reference, cuts=(7,)) == pytest.approx(decibels(s, rest), abs=1e-5)


def test_sdr_is_that_of_the_best_filter():
    generator = rng()
    reference = generator.normal(size=2000)
    output = np.convolve(reference, [0.8, -0.3, 0.2])[:2000] + 0.1 * generator.normal(size=2000)
    taps = 7
    # The output and every delayed reference, as long as the latest reaches.
    columns = np.stack([np.pad(reference, (lag, taps - lag)) for lag in range(taps)], 1)
    padded = np.pad(output, (0, taps))
    along = columns @ np.linalg.lstsq(columns, padded)[0]
    assert value(sdr(taps=taps), output, reference) == pytest.approx(decibels(along, padded - along), abs=1e-9)


def test_sdr_is_that_of_mir_eval():
    generator = rng()
    reference = np.convolve(generator.normal(size=8000), np.ones(8))[:8000]  # of few high frequencies, like speech
    output = 0.5 * np.roll(reference, 20) + 0.3 * generator.normal(size=8000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # mir_eval says that it will be removed
        expected = mir_eval.separation.bss_eval_sources(reference[None], output[None])[0][0]
    assert value(sdr(), output, reference, cuts=(100, 5000)) == pytest.approx(expected, abs=1e-6)


def test_what_exact_copies_silence_and_values_that_are_not_finite_give():
    output, reference = noisy()
    silence, bad = np.zeros_like(output), output.copy()
    bad[7] = bad[9] = np.inf
    bad[11] = np.nan
    constant = silence + np.float32(0.1)
    undefined = [
        ("level", bad, None, "not finite"),
        ("peak", bad, None, "not finite"),
        ("level", bad[:0], None, "empty"),
    ]
    for name in ("si_sdr", "snr", "sdr"):
        assert value(METRICS[name](), reference, reference) == math.inf, name
        undefined += [(name, output, silence, "reference is"), (name, bad, reference, "not finite")]
    undefined += [("si_sdr", output, constant, "reference is"), ("peak", bad[:0], None, "empty")]
    for name, sound, other, said in undefined:
        check_refused(NoValueError, said, value, METRICS[name](), sound, other, cuts=(len(sound) // 2,))
    assert value(si_sdr(), np.float32(0.25) * reference, reference) == math.inf
    assert value(METRICS["snr"](), silence, reference) == 0
    orthogonal = np.tile([1.0, 1.0, -1.0, -1.0], 8), np.tile([1.0, -1.0, -1.0, 1.0], 8)
    for name, failed in itertools.product(("si_sdr", "sdr"), (silence, constant)):
        if (name, failed is constant) != ("sdr", True):  # a filter makes a constant of other sound
            assert value(METRICS[name](), failed, reference, cuts=(100,)) == -100, "a failure has the lowest value"
    assert value(si_sdr(), *orthogonal) == -100
    for name in ("level", "peak"):
        assert value(METRICS[name](), silence) == -math.inf
    assert math.isnan(value(METRICS["si_sdr_improvement"](), reference, reference, reference))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 900), max_size=6).map(sorted), st.integers(0, 3))
def test_how_a_recording_is_cut_changes_nothing(cuts, seed):
    output, reference = noisy(900, seed=seed)
    source = noisy(900, 0.8, seed)[0]
    for name in ("si_sdr", "si_sdr_improvement", "snr", "level", "peak"):
        metric = METRICS[name]()
        whole = value(metric, output, reference, source)
        assert value(metric, output, reference, source, cuts) == pytest.approx(whole, abs=1e-9), name
    metric = sdr(taps=32)
    assert value(metric, output, reference, cuts=cuts) == pytest.approx(value(metric, output, reference), abs=1e-9)
    scores, labels = rng(seed).random(900), rng(seed + 9).integers(-1, 2, 900)
    assert value(detection(), scores, labels, cuts=cuts) == value(detection(), scores, labels)
    kept = over_whole(lambda x, s, rate: float(x @ np.arange(len(x)) + s.sum()), "kept")
    assert value(kept, output, reference, cuts=cuts) == value(kept, output, reference)


@pytest.mark.parametrize("seed", range(3))
def test_a_detector_has_the_rates_that_scikit_learn_finds(seed):
    generator = rng(seed)
    recordings = []
    for size in (40, 700, 30):
        labels = generator.integers(0, 2, size)
        recordings.append((np.round(np.clip(0.4 * labels + 0.6 * generator.random(size), 0, 1), 3), labels))
    metric = detection(threshold=0.6)
    found = [value(metric, scores, labels) for scores, labels in recordings]

    def expected(scores, labels):
        chosen = scores >= 0.6
        return {
            "accuracy": sklearn.metrics.accuracy_score(labels, chosen),
            "precision": sklearn.metrics.precision_score(labels, chosen),
            "recall": sklearn.metrics.recall_score(labels, chosen),
            "f1": sklearn.metrics.f1_score(labels, chosen),
            "auc": sklearn.metrics.roc_auc_score(labels, scores),
        }

    for row, (scores, labels) in zip(found, recordings, strict=True):
        assert {key: row[key] for key in row if key != KEY} == pytest.approx(expected(scores, labels))
    scores, labels = (np.concatenate(parts) for parts in zip(*recordings, strict=True))
    counts = [row[KEY] for row in found]
    assert metric.pool is not None
    sums = np.stack([metric.pool.sums(each) for each in counts])
    both = metric.pool.values(np.array([[1, 1, 1], [0, 2, 1]]) @ sums)
    assert {key: array[0] for key, array in both.items()} == pytest.approx(expected(scores, labels))
    drawn = [np.concatenate([recordings[1][part], recordings[1][part], recordings[2][part]]) for part in (0, 1)]
    assert {key: array[1] for key, array in both.items()} == pytest.approx(expected(*drawn))
    assert metric.pool.curve is not None
    curve = metric.pool.curve(sums.sum(0))
    false, true, thresholds = sklearn.metrics.roc_curve(labels, scores, drop_intermediate=False)
    np.testing.assert_allclose(curve["false_positive_rate"], false)
    np.testing.assert_allclose(curve["true_positive_rate"], true)
    np.testing.assert_allclose(curve["threshold"], thresholds)
    precision, _, _ = sklearn.metrics.precision_recall_curve(labels, scores, drop_intermediate=False)
    np.testing.assert_allclose(curve["precision"][1:], precision[:-1][::-1])
    assert sklearn.metrics.auc(false, true) == pytest.approx(both["auc"][0])


def test_scores_between_the_classes_move_auc_by_less_than_what_falls_in_one():
    labels = rng().integers(0, 2, 5000)
    scores = 1 / (1 + np.exp(-(rng(1).normal(size=5000) + labels)))
    found = value(detection(), scores.astype(np.float32)[:, None], labels)
    places = np.rint(scores * 1000).astype(int)
    tied = np.bincount(places[labels == 0], minlength=1001) @ np.bincount(places[labels == 1], minlength=1001)
    bound = tied / 2 / (labels.sum() * (5000 - labels.sum()))
    assert abs(found["auc"] - sklearn.metrics.roc_auc_score(labels, scores)) <= bound < 1e-3
    logits = detection(low=-12, high=12, bins=4001, threshold=0)
    other = value(logits, np.log(scores / (1 - scores)), labels)
    assert other["auc"] == pytest.approx(found["auc"], abs=2e-3)
    assert other["f1"] == found["f1"]


def test_rates_that_have_nothing_to_divide_by_are_not_defined():
    metric = detection()
    for labels, undefined in (
        (np.ones(3), {"auc"}),
        (np.zeros(3), {"recall", "f1", "auc"}),
        (np.full(3, -1.0), {"accuracy", "precision", "recall", "f1", "auc"}),
    ):
        found = value(metric, np.array([0.2, 0.7, 0.9]), labels)
        assert {key for key in found if key != KEY and math.isnan(found[key])} == undefined
    assert math.isnan(value(metric, np.zeros(3), np.ones(3))["precision"])
    assert metric.pool is not None
    nothing = np.zeros(metric.pool.size)
    assert metric.pool.curve is not None
    assert not any(metric.pool.curve(nothing).values())
    assert all(math.isnan(value) for value in metric.pool.values(nothing).values())
    for scores in (np.array([0.5, 1.5]), np.array([0.5, np.nan]), np.ones((2, 3))):
        with pytest.raises(NoValueError):
            value(metric, scores, np.ones(2))


@pytest.mark.parametrize("name", ["si_sdr", "snr", "sdr", "level", "peak", "auc", "class_accuracy"])
def test_complex_numbers_have_no_value(name):
    labels = np.arange(4.0) / 4
    for output, reference in ((labels + 1j, labels), (labels, labels + 1j)):
        if output is not labels or METRICS[name]().needs_reference:
            with pytest.raises(NoValueError, match="there are complex numbers, and this metric judges real ones"):
                value(METRICS[name](), output, reference)


def test_a_classifier_is_right_where_its_highest_score_is():
    scores, labels = rng().normal(size=(90, 5)), rng(1).integers(-1, 5, 90)
    metric = METRICS["class_accuracy"]()
    assert metric.pool is not None
    judged = labels >= 0
    found = value(metric, scores[:, None], labels, cuts=(31,))
    assert found[metric.name] == pytest.approx(np.mean(np.argmax(scores, 1)[judged] == labels[judged]))
    parts = [value(metric, scores[part], labels[part])[metric.pool.key] for part in (slice(31), slice(31, None))]
    assert metric.pool.values(sum(map(metric.pool.sums, parts)))[metric.name] == pytest.approx(found[metric.name])
    assert math.isnan(value(metric, scores, np.full(90, -1))[metric.name])
    for wrong in (np.full(90, 5), np.full(90, 0.5)):
        check_refused(NoValueError, "below 5", value, metric, scores, wrong)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 80)), max_size=6),
    st.sampled_from([10.0, 12.5, 100.0]),
    st.integers(0, 20),
)
def test_segments_label_the_frames_that_they_fill_by_half(tmp_path_factory, segments, rate, first):
    path = tmp_path_factory.mktemp("labels") / "a.csv"
    lines = [f"{start / 100},speech,{(start + length) / 100}" for start, length in segments]
    path.write_text("\n".join(["start, kind, end", *lines]))
    # Time in steps of 1/800 s, on which every border is.
    grid = np.zeros(8 * 1000)
    for start, length in segments:
        grid[start * 8 : (start + length) * 8] = 1
    frames = grid[: len(grid) // round(800 / rate) * round(800 / rate)].reshape(-1, round(800 / rate))
    expected = frames.mean(1)[first : first + 30] >= 0.5
    np.testing.assert_array_equal(Segments(path).labels(first, first + 30, rate), expected)
    cut = [Segments(path).labels(start, start + 1, rate)[0] for start in range(first, first + 30)]
    np.testing.assert_array_equal(cut, Segments(path).labels(first, first + 30, rate))


def test_a_frame_that_is_half_in_a_segment_is_labelled(tmp_path):
    (tmp_path / "a.csv").write_text(
        "start,end\n" + "\n".join(f"{k / 10 + 0.05},{k / 10 + 0.1}" for k in range(0, 99, 2))
    )
    np.testing.assert_array_equal(Segments(tmp_path / "a.csv").labels(0, 100, 10), np.arange(100) % 2 == 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("begin,end\n0,1", "columns start and end"),
        ("", "found nothing"),
        ("start,end\n0,1\n2,one", "line 3"),
        ("start,end\n3,2", "start <= end"),
        ("start,end\n0,inf", "start <= end"),
        ("start,end\n1", "line 2"),
    ],
)
def test_a_table_that_is_none_of_segments_is_told(tmp_path, text, said):
    (tmp_path / "a.csv").write_text(text)
    check_refused(InputError, said, Segments, tmp_path / "a.csv")


def noisy_speech():
    """Bursts of sound for two seconds, with noise and without."""
    generator = rng()
    speech = np.repeat(generator.random(40) > 0.4, 800) * generator.normal(size=32_000) * 0.1
    return (speech + 0.02 * generator.normal(size=32_000)).astype(np.float32), speech.astype(np.float32)


def test_intelligibility_is_that_of_pystoi():
    output, reference = noisy_speech()
    assert value(METRICS["stoi"](), output, reference, cuts=(99,)) == pytest.approx(
        pystoi.stoi(reference.astype(float), output.astype(float), RATE), abs=1e-6
    )
    assert value(METRICS["estoi"](), output, reference) == pytest.approx(
        pystoi.stoi(reference.astype(float), output.astype(float), RATE, extended=True), abs=1e-6
    )
    check_refused(InputError, "judges sound", METRICS["stoi"]().start, 31.25)
    np.random.seed(1)  # noqa: NPY002
    first, drawn = value(METRICS["estoi"](), output, reference), np.random.random()  # noqa: NPY002
    assert value(METRICS["estoi"](), output, reference) == first
    np.random.seed(1)  # noqa: NPY002
    assert np.random.random() == drawn, "others' draws stay as they are"  # noqa: NPY002
    for metric, size, said in (("stoi", 1000, "less than 30 frames"), ("estoi", 50, "less than")):
        check_refused(NoValueError, said, value, METRICS[metric](), output[:size], reference[:size] + output[:size])


def test_quality_is_that_of_pesq():
    pesq = pytest.importorskip("pesq", reason="pesq needs a compiler, so the tests do not install it")
    output, reference = noisy_speech()
    assert value(METRICS["pesq"](), output, reference) == pesq.pesq(RATE, reference, output, "wb")
    narrow = METRICS["pesq"](band="narrow")
    assert narrow.name == "pesq_narrow"
    assert value(narrow, output[::2], reference[::2], rate=8000) == pesq.pesq(8000, reference[::2], output[::2], "nb")
    check_refused(InputError, "narrow", METRICS["pesq"]().start, 8000)
    with pytest.raises(NoValueError, match="1/4 of a second"):
        value(METRICS["pesq"](), output[:1000], reference[:1000] + output[:1000])
    check_refused(NoValueError, "reference is silent", value, METRICS["pesq"](), output, 0 * reference)
