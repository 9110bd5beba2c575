"""Metrics in an evaluation: in time with references of each kind, by name, of one's own, and what does not fit."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from types import MappingProxyType

import jax.numpy as jnp
import numpy as np
import pytest
import soundfile
from evaluation_cases import RATE, noisy, rng, value
from refusals import check_refused

from jaxrnn.audio.corpus import COLUMNS
from jaxrnn.errors import InputError, MissingPackageError
from jaxrnn.evaluation import METRICS, Column, Evaluation, Item, Piece, build_metric, over_whole
from jaxrnn.evaluation.judging import UnitMember
from jaxrnn.evaluation.metrics import check_metrics, latencies, si_sdr
from jaxrnn.evaluation.metrics.counts import detection

HOP = 160


class Gain:
    """Sound made louder, late by a few samples, and a score for every hop: its share of positive samples."""

    rate, multiple, before = RATE, HOP, 0
    delay = MappingProxyType({"sound": 0, "score": 1})
    per_frame = MappingProxyType({"sound": 1, "score": Fraction(1, HOP)})

    def start(self, batch):
        return jnp.zeros((batch, 1))

    def padded(self, frames):
        return -(-frames // HOP) * HOP + HOP

    def expected(self, output, frames):
        return frames if output == "sound" else -(-frames // HOP)

    def run(self, carry, parts, frames, *, ending):
        sound = parts["samples"]
        scores = (sound.reshape(len(sound), -1, HOP) > 0).mean(-1)
        late = jnp.concatenate([carry, scores], 1)
        return {"sound": Piece(2 * sound, frames), "score": Piece(late[:, :-1], frames // HOP)}, late[:, -1:]


def recording(folder: Path, name: str, samples: np.ndarray) -> Path:
    folder.mkdir(exist_ok=True)
    soundfile.write(folder / f"{name}.wav", samples, RATE, subtype="FLOAT")
    return folder / f"{name}.wav"


def test_metrics_in_an_evaluation_are_in_time_with_references_of_each_kind(tmp_path):
    items, clean, dirty, labels = [], {}, {}, {}
    for number, size in enumerate((8 * HOP, 20 * HOP + 7, 37)):
        name = f"r{number}"
        clean[name] = rng(number).normal(size=size).astype(np.float32)
        dirty[name] = clean[name] + rng(9 + number).normal(size=size).astype(np.float32)
        reference = recording(tmp_path / "clean", name, clean[name])
        items.append(Item(name, recording(tmp_path / "in", name, dirty[name]), reference, {"size": size}))
    metrics = [METRICS[name](output="sound") for name in ("si_sdr", "si_sdr_improvement", "snr")]
    run = Evaluation(Gain(), items, [*metrics, over_whole(whole_mean, "mean")], tmp_path / "out", chunk=0.05)
    run.run()
    for row in run.rows():
        x, s = 2 * dirty[row["id"]], clean[row["id"]]
        assert row["notes"] is None
        assert row["si_sdr"] == pytest.approx(value(si_sdr(), x, s), abs=1e-6)
        assert row["snr"] == pytest.approx(value(METRICS["snr"](), x, s), abs=1e-6)
        assert row["si_sdr_improvement"] == pytest.approx(0, abs=1e-6)
        assert row["mean"] == pytest.approx(float(np.mean(x.astype(np.float64) - s)), abs=1e-6)
    # The same sounds with labels of frames: as an array, as segments, and as an array of another rate.
    for item in items:
        frames = -(-len(dirty[item.id]) // HOP)
        labels[item.id] = (np.arange(frames) % 3 == 0).astype(np.float32)
    np.save(tmp_path / "r0.npy", labels["r0"])
    starts = [f"{HOP * k / RATE},{HOP * (k + 1) / RATE}" for k in np.flatnonzero(labels["r1"])]
    (tmp_path / "r1.csv").write_text("\n".join(["start,end", *starts]))
    np.save(tmp_path / "r2.npy", np.ones(37))
    judged = [
        Item(item.id, item.path, tmp_path / f"{item.id}{ending}")
        for item, ending in zip(items, (".npy", ".csv", ".npy"), strict=True)
    ]
    run = Evaluation(Gain(), judged, [detection(output="score")], tmp_path / "scored", chunk=0.05)
    run.run()
    for row in run.rows()[:2]:
        sound = np.pad(dirty[row["id"]], (0, -len(dirty[row["id"]]) % HOP)).reshape(-1, HOP)
        expected = value(detection(), (sound > 0).mean(1), labels[row["id"]])
        assert row["detection_counts"] == expected["detection_counts"]
        assert row["auc"] == pytest.approx(expected["auc"])
    last = run.rows()[2]
    assert last["auc"] is None
    assert "the reference has 37 frames, the output 1: labels need its 100 a second" in last["notes"]


def whole_mean(output, reference, rate):
    return np.mean(output.astype(np.float64) - reference)


def several(output, reference, rate, *, power=1.0):
    return {"rate": rate, "energy": np.sum(np.abs(output) ** power)}


def failing(output, reference, rate):
    raise RuntimeError("no such luck")


def made(limit: float = 1.0):
    return over_whole(whole_mean, "made", limit=limit)


def no_metric():
    return 3.0


def judged(metrics, output, reference, system=None):
    """The row of one recording under some metrics, in two pieces."""

    class Stored:
        def __init__(self, array):
            self.array, self.length = array, len(array)

        def part(self, start, stop):
            found = self.array[start:stop]
            return {"samples": np.pad(found, [(0, stop - start - len(found)), *[(0, 0)] * (found.ndim - 1)])}

    reference = None if reference is None else Stored(reference)
    member = UnitMember(Item("f", Path("f")), Stored(output), reference, system or Gain(), metrics, None)
    for part in (output[:300], output[300:]):
        member.add({"sound": (part, len(part))})
    return {name: value for name, value in member.row().items() if name == "notes" or name not in COLUMNS}


def test_functions_of_ones_own_are_found_by_name_and_fail_alone():
    here = Path(__file__)
    output, reference = noisy(900)
    metrics = [
        build_metric(f"{here}:whole_mean", {"unit": "V", "higher_is_better": False}),
        build_metric(f"{here.name}:several", {"power": 2, "called": "sum"}, folder=here.parent),
        build_metric(f"{here}:failing"),
        build_metric(f"{here}:made", {"limit": 0.05}),
        build_metric("si_sdr", {"called": "quality"}),
    ]
    assert metrics[0].columns == (Column("whole_mean", "V", False),)
    row = judged(metrics, output, reference)
    assert row["whole_mean"] == pytest.approx(whole_mean(output, reference, 0))
    assert row["sum_rate"] == RATE
    assert row["sum_energy"] == pytest.approx(np.sum(output**2))
    assert "sum" not in row
    assert row["failing"] is None
    assert row["made"] is None
    assert row["quality"] == pytest.approx(value(si_sdr(), output, reference))
    assert (
        row["notes"]
        == "failing: RuntimeError: no such luck; made: the recording is longer than 0.05 s, this metric's limit"
    )
    assert judged([build_metric("si_sdr")], output, None) == {"notes": None, "si_sdr": None}


def test_outputs_of_several_lengths_are_all_told():
    output, reference = noisy(900)

    class Pair(Gain):
        delay = MappingProxyType({"sound": 0, "other": 0})
        per_frame = MappingProxyType({"sound": 1, "other": 1})

        def expected(self, output, frames):
            return None

    class Stored:
        length = 890

        def part(self, start, stop):
            return {"samples": reference[start:stop]}

    metrics = METRICS["snr"](output="sound"), METRICS["si_sdr"](output="other")
    member = UnitMember(Item("f", Path("f")), Stored(), Stored(), Pair(), metrics, None)
    member.add({"sound": (output, 900), "other": (output[:896], 896)})
    judged_are = "the reference has 890 frames, the output {}; judged are the first 890"
    assert member.row()["notes"] == f"{judged_are.format(900)}; {judged_are.format(896)}"


def test_a_reference_of_another_length_is_told():
    output, reference = noisy(900)
    shorter = judged([METRICS["snr"]()], output, reference[:890])
    assert shorter["snr"] == pytest.approx(value(METRICS["snr"](), output[:890], reference[:890]))
    assert shorter["notes"] == "the reference has 890 frames, the output 900; judged are the first 890"
    longer = judged([METRICS["snr"]()], output, np.pad(reference, (0, 800)))
    assert longer["snr"] == pytest.approx(value(METRICS["snr"](), output, reference))
    assert "judged are the first 900" in longer["notes"]
    torn = judged([METRICS["snr"](), METRICS["si_sdr"](), METRICS["level"]()], output, reference[:500])
    assert (torn["snr"], torn["si_sdr"]) == (None, None)
    assert torn["level"] == pytest.approx(value(METRICS["level"](), output))
    assert torn["notes"].startswith("snr, si_sdr: the reference has 500 frames, the output 900: it is too short")
    wide = judged([METRICS["snr"](), detection(output="sound")], output, np.zeros((900, 2)))
    said = "snr: a frame of the reference has the shape (2,), the output's (); detection: a label has the shape (2,)"
    assert wide["notes"].startswith(said)


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("si_sdrr", {}, "did you mean 'si_sdr'"),
        ("stoi", {"limits": 3}, "did you mean 'limit'"),
        ("pesq", {"band": "broad"}, "'wide' or 'narrow'"),
        ("detection", {"rates": ["f2"]}, "accuracy, precision"),
        ("detection", {"low": 1}, "low < high"),
        ("sdr", {"taps": 0}, "taps must be a whole number from 1 on"),
        ("stoi", {"limit": 0}, "above 0"),
        (f"{__file__}:no_metric", {}, "not a float"),
        (f"{__file__}:no_metrics", {}, "no_metric"),
        (f"{__file__}:several", {"powre": 2}, "did you mean 'power'"),
    ],
)
def test_a_metric_that_there_is_not_is_told_at_once(kind, options, said):
    check_refused(InputError, said, build_metric, kind, options)


def test_a_metric_that_does_not_fit_is_told_before_anything_runs(monkeypatch):
    corpus = [Item("a", Path("a.wav"), Path("b.wav"), {"place": "street"})]
    bare = [Item("a", Path("a.wav"))]
    cases = [
        ([si_sdr(output="sond")], corpus, "did you mean 'sound'"),
        ([si_sdr()], bare, "needs references"),
        ([METRICS["si_sdr_improvement"](output="score")], corpus, "a frame for each"),
        ([si_sdr(), si_sdr()], corpus, "called 'si_sdr'"),
        ([detection(output="score"), METRICS["f1"](output="score")], corpus, "column 'f1'"),
        ([METRICS["level"]("place")], corpus, "the manifest"),
        ([METRICS["level"]("seconds")], corpus, "the table of results"),
        ([], [Item("a", Path("a.wav"), None, {"notes": 1})], "'notes'"),
        ([over_whole(whole_mean, "pla"), over_whole(whole_mean, "pla_ce")], corpus, "pla may give columns pla_"),
        (
            [over_whole(whole_mean, "own")],
            [Item("a", Path("a"), Path("b"), {"own_size": 1})],
            "manifest has 'own_size'",
        ),
    ]
    for metrics, items, said in cases:
        check_refused(InputError, said, check_metrics, metrics, Gain(), items)
    check_metrics([METRICS["level"](), detection(output="score"), over_whole(whole_mean, "pla")], Gain(), corpus)
    monkeypatch.setitem(__import__("sys").modules, "pystoi", None)
    check_refused(MissingPackageError, "pip install pystoi", build_metric, "stoi")


def test_the_latency_of_a_system_is_its_delay_in_time():
    found = latencies(Gain())
    assert found["sound"] == {"delay_frames": 0, "delay_milliseconds": 0, "block_milliseconds": 10}
    assert found["score"] == {"delay_frames": 1, "delay_milliseconds": 10, "block_milliseconds": 10}
