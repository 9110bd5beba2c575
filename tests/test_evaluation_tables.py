"""Results as tables, what they say together, and two of them side by side."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import polars
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from jaxrnn.errors import InputError
from jaxrnn.evaluation.compare import compare
from jaxrnn.evaluation.metrics import Column, detection, level, over_whole, si_sdr
from jaxrnn.evaluation.slices import slice_by
from jaxrnn.evaluation.statistics import Resampling, pooled, summarise
from jaxrnn.evaluation.tables import document, frame, read_results, write_results

METRICS = (si_sdr(), level(), detection())


def rows_of(count=40, seed=0, shift=0.0, **columns):
    """Rows as an evaluation has them: some failed, one perfect, with a column of each kind from the manifest."""
    generator = np.random.default_rng(seed)
    quality = np.random.default_rng(1).normal(10, 3, count) + shift
    rows = []
    for number in range(count):
        row = {
            "id": f"r{number:03d}",
            "path": f"/in/r{number:03d}.wav",
            "reference": f"/clean/r{number:03d}.wav",
            "seconds": 1.0 + number,
            "status": "ok",
            "error": None,
            "notes": None,
            "place": ("street", "café", None)[number % 3],
            "snr": number / 3 if number % 5 else None,
            "count": number % 4,
            "indoors": number % 2 == 0,
            "empty": None,
            "tags": ["a", number],
            **{name: values[number] for name, values in columns.items()},
        }
        if number % 10 == 3:
            rows.append(row | {"status": "error", "error": "it is torn", "seconds": None})
            continue
        labels = generator.integers(0, 2, 20)
        judge = METRICS[2].start(100)
        judge.add(np.clip(0.3 * labels + 0.7 * generator.random(20), 0, 1), labels, None)
        found = {"si_sdr": math.inf if number == 8 else quality[number], "level": None} | judge.result()
        rows.append(row | found)
    return rows


def test_a_table_has_a_sound_type_for_every_column_and_a_file_for_it_the_same_bytes(tmp_path):
    rows = rows_of()
    table = frame(json.loads(json.dumps(rows[::-1])), METRICS)
    assert dict(table.schema) == {
        **dict.fromkeys(("id", "path", "reference"), polars.String),
        "seconds": polars.Float64,
        **dict.fromkeys(("status", "error", "notes", "place"), polars.String),
        "snr": polars.Float64,
        "count": polars.Int64,
        "indoors": polars.Boolean,
        **dict.fromkeys(("empty", "tags"), polars.String),
        **dict.fromkeys(("si_sdr", "level", "accuracy", "precision", "recall", "f1", "auc"), polars.Float64),
    }
    assert table["si_sdr"].to_list() == [row.get("si_sdr") for row in rows]
    assert table["level"].null_count() == len(rows)
    said = write_results(tmp_path / "a", rows, METRICS, slices=["place"], facts={"latency": {"y": 1}}, csv=True)
    write_results(tmp_path / "b", rows[::-1], METRICS, slices=["place"], facts={"latency": {"y": 1}}, csv=True)
    names = ["results.csv", "results.json", "results.parquet"]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == names
    read, columns, counting = read_results(tmp_path / "a")
    assert read == table.to_dicts()
    assert [metric.facts for metric in counting] == [METRICS[2].facts]
    assert [column.name for column in columns] == ["si_sdr", "level", "accuracy", "precision", "recall", "f1", "auc"]
    assert columns[1].higher_is_better is None
    # Every JSON there is can read it: nothing in it is NaN or infinite.
    plain = json.loads((tmp_path / "a" / "results.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert plain == said
    assert plain["rows"][8]["si_sdr"] is None
    assert plain["summary"]["si_sdr"]["infinite"] == 1
    assert plain["summary"]["level"]["n"] == 0
    assert plain["summary"]["level"]["mean"] is None
    assert plain["recordings"] | {"seconds": 0} == {"all": 40, "failed": 4, "noted": 0, "seconds": 0}
    assert plain["facts"] == {"latency": {"y": 1}}


def test_the_document_says_what_its_rows_say():
    rows = rows_of()
    said = document(rows, METRICS, slices=["place", "snr"])
    good = [row for row in rows if "si_sdr" in row]
    values = np.array([row["si_sdr"] for row in good if math.isfinite(row["si_sdr"])])
    found = said["summary"]["si_sdr"]
    assert (found["n"], found["missing"], found["infinite"]) == (len(values), 4, 1)
    assert found["mean"] == pytest.approx(values.mean())
    assert found["deviation"] == pytest.approx(values.std(ddof=1))
    assert (found["median"], found["minimum"]) == pytest.approx((np.median(values), values.min()))
    confusion = np.sum([row["detection_counts"]["confusion"] for row in good], 0)
    accuracy = said["corpus"]["detection"]["values"]["accuracy"]
    assert accuracy["value"] == pytest.approx((confusion[0] + confusion[3]) / confusion.sum())
    assert accuracy["low"] < accuracy["value"] < accuracy["high"]
    curve = said["corpus"]["detection"]["curve"]
    area = np.trapezoid(curve["true_positive_rate"], curve["false_positive_rate"])
    assert area == pytest.approx(said["corpus"]["detection"]["values"]["auc"]["value"])
    street = next(part for part in said["slices"]["place"] if part["label"] == "street")
    assert [part["label"] for part in said["slices"]["place"]] == ["café", "street", "(none)"]
    alone = document([row for row in rows if row["place"] == "street"], METRICS)
    assert street["summary"] == alone["summary"]
    assert street["corpus"]["detection"]["values"] == alone["corpus"]["detection"]["values"]
    assert sum(part["recordings"]["all"] for part in said["slices"]["snr"]) == len(rows)
    with pytest.raises(InputError, match="did you mean 'place'"):
        document(rows, METRICS, slices=["palce"])
    assert document([], METRICS)["recordings"]["all"] == 0
    strange = [{**rows[0], "id": "a\udcff", "place": "\udc80"}, {**rows[1], "notes": "\x00\U0001f600"}]
    assert frame(strange, METRICS)["id"].to_list() == ["a?", "r001"]
    dictionary = over_whole(lambda x, s, rate: {}, "own", unit="V")
    rows[0] |= {"own_size": 2.0, "own_part": None}
    rows[1] |= {"own": None}
    known = document(rows, [*METRICS, dictionary])["metrics"][-1]["columns"]
    assert [(column["name"], column["unit"]) for column in known] == [("own_part", "V"), ("own_size", "V")]
    assert frame(rows, [dictionary]).columns[-2:] == ["own_part", "own_size"]


def test_what_cannot_be_read_is_told(tmp_path):
    with pytest.raises(InputError, match=r"no results.parquet"):
        read_results(tmp_path)
    write_results(tmp_path, rows_of(5), METRICS)
    (tmp_path / "results.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="cannot be read"):
        read_results(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_results(tmp_path / "file", rows_of(5), METRICS)


@pytest.mark.parametrize("kind", ["percentile", "bca"])
def test_intervals_hold_the_mean_as_often_as_they_say(kind):
    # 300 samples of 60 from a skewed distribution of mean 1: the count that hold it is binomial, and an interval of
    # 60 values is up to two hundredths too narrow.
    generator = np.random.default_rng(3)
    how = Resampling(confidence=0.9, draws=400, kind=kind)
    held = sum(low <= 1 <= high for low, high in (how.of_mean(generator.exponential(size=60)) for _ in range(300)))
    assert stats.binom.ppf(1e-4, 300, 0.87) <= held <= stats.binom.ppf(1 - 1e-4, 300, 0.9)


def test_intervals_are_the_same_again_and_those_of_the_textbook_for_many():
    values = np.random.default_rng(0).normal(5, 2, 10_000)
    found = summarise(values)
    assert found == summarise(values.tolist())
    half = 1.96 * values.std() / 100
    # A quantile of 1000 draws is known to a few hundredths of a standard deviation.
    assert (found.low, found.high) == pytest.approx((found.mean - half, found.mean + half), abs=0.15 * half)
    assert math.isnan(summarise([3.0]).low)
    assert summarise([3.0, 3.0, None, math.nan]).low == 3.0
    assert summarise([math.inf, -math.inf]).infinite == 2
    metric = detection(rates=["accuracy"])
    frames = np.random.default_rng(1).integers(0, 30, (500, 4))
    counts = [{"confusion": row.tolist(), "bins": [], "negatives": [], "positives": []} for row in frames]
    assert metric.pool is not None
    found = pooled(metric.pool, counts, Resampling(draws=10_000))["detection"]
    drawn = np.random.default_rng(5).integers(0, 500, (10_000, 500))
    again = frames[drawn].sum(1)
    expected = np.quantile((again[:, 0] + again[:, 3]) / again.sum(1), [0.025, 0.975])
    # Such a quantile of 10,000 draws is known to a hundredth of the width.
    assert (found.low, found.high) == pytest.approx(expected, abs=0.05 * (found.high - found.low))


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(
        st.lists(st.one_of(st.none(), st.floats(), st.integers(-3, 3)), max_size=60),
        st.lists(st.one_of(st.none(), st.text(max_size=2), st.booleans()), max_size=60),
        st.lists(st.text("abcdefgh", min_size=2), max_size=200),
    )
)
def test_every_recording_is_in_one_slice(values):
    found = slice_by(values)
    places = np.concatenate([np.zeros(0, int), *found.values()])
    assert sorted(places) == list(range(len(values)))
    assert all(len(part) for part in found.values())
    assert len(found) <= 52
    known = [value for value in values if value is not None and value == value]
    if known and all(type(value) in (int, float) for value in known) and len(set(known)) > 8:
        parts = [[values[place] for place in part] for label, part in found.items() if label != "(none)"]
        assert all(max(low) < min(high) for low, high in itertools.pairwise(parts))


def test_slices_are_values_or_quantiles():
    assert {label: places.tolist() for label, places in slice_by([5, 0, 5, None, -2.5]).items()} == {
        "-2.5": [4],
        "0": [1],
        "5": [0, 2],
        "(none)": [3],
    }
    values = np.random.default_rng(0).permutation(1000) / 1000
    many = slice_by(values.tolist())
    for label, places in many.items():
        assert float(label.split()[0]) == values[places].min()
    assert [len(places) for places in many.values()] == pytest.approx([250] * 4, abs=1)
    assert next(iter(many)).startswith("0 to 0.2")
    assert list(slice_by([True, False, True])) == ["false", "true"]
    assert list(slice_by(["(none)", None])) == ["(none)", "((none))"]
    crowd = slice_by([f"{number}" for number in range(200)] + ["199"] * 3)
    assert len(crowd["(150 others)"]) == 150
    assert len(crowd["199"]) == 4


def test_a_comparison_is_that_of_its_pairs_and_turns_around(tmp_path):
    first, second = rows_of(), rows_of(shift=1.0)
    extra = np.random.default_rng(7).normal(0, 2, 40)
    for row, more in zip(second, extra, strict=True):
        if "si_sdr" in row:
            row["si_sdr"] += more
    second[5]["si_sdr"] = first[5]["si_sdr"]
    second[6]["si_sdr"] = None
    first, second = first[1:], second[:-1]
    write_results(tmp_path / "a", first, METRICS)
    write_results(tmp_path / "b", second, METRICS)
    found = compare(tmp_path / "a", tmp_path / "b", slices=["place"])
    assert (found.only_first, found.only_second) == (("r039",), ("r000",))
    assert (found.recordings, found.names) == (38, (str(tmp_path / "a"), str(tmp_path / "b")))
    (one,) = (entry for entry in found.differences if entry.column == "si_sdr")
    pairs = [(x.get("si_sdr"), y.get("si_sdr")) for x, y in zip(first[:-1], second[1:], strict=True)]
    pairs = [pair for pair in pairs if None not in pair]
    less = np.array([y - x for x, y in pairs if math.isfinite(x)])
    # Four failed and one has no value; two infinite ones are equal, but have no mean.
    assert (one.n, one.left_out, one.infinite) == (len(less), 5, 1)
    less = np.append(less, 0.0)
    assert (one.wins, one.ties, one.losses) == ((less > 0).sum(), 2, (less < 0).sum())
    assert one.mean == pytest.approx(less[:-1].mean())
    assert one.low < one.mean < one.high
    assert one.p == pytest.approx(stats.wilcoxon(less[less != 0]).pvalue)
    street = found.slices["place"]["street"][0]
    only = [row["id"] for row in second if row["place"] == "street"]
    mean = np.nanmean(
        [found.pairs["si_sdr"][found.ids.index(name)] for name in only if name in found.ids and name != "r008"]
    )
    assert street.mean == pytest.approx(mean)
    turned = compare(second, first, metrics=METRICS, slices=["place"])
    for there, back in zip(found.differences, turned.differences, strict=True):
        assert (there.wins, there.ties, there.losses) == (back.losses, back.ties, back.wins)
        ours = (there.n, there.first, there.second, there.mean, there.low, there.high, there.median, there.p)
        theirs = (back.n, back.second, back.first, -back.mean, -back.high, -back.low, -back.median, back.p)
        assert ours == pytest.approx(theirs, nan_ok=True)
    assert json.loads(json.dumps(found.as_dict(), allow_nan=False)) == found.as_dict()
    same = compare(first, first, metrics=[Column("si_sdr", "dB", False)]).differences[0]
    assert (same.p, same.mean, same.low, same.wins, same.losses) == (1.0, 0.0, 0.0, 0, 0)
    worse = compare(first, second, metrics=[Column("si_sdr", "dB", False)], ties=0.5).differences[0]
    assert (worse.wins, worse.losses) == ((less < -0.5).sum(), (less > 0.5).sum())


def test_the_corpus_of_a_detector_is_compared_as_a_whole(tmp_path):
    def counts(right):
        wrong = 20 - right
        return {"confusion": [right, wrong, 0, 0], "bins": [], "negatives": [], "positives": []}

    metric = detection(called="vad", rates=["accuracy"])
    generator = np.random.default_rng(0)
    shared = generator.integers(5, 15, 60)
    better = shared + generator.integers(0, 3, 60)
    rows = [rows_of(60, right=[counts(int(count)) for count in side]) for side in (shared, better)]
    rows = [[{**row, "vad_counts": row.pop("right")} for row in side] for side in rows]
    for name, side in zip("ab", rows, strict=True):
        write_results(tmp_path / name, side, [metric, METRICS[0]])
        (tmp_path / name / "units").mkdir()
        half = len(side) // 2
        for part, some in enumerate((side[:half], side[half:])):
            (tmp_path / name / "units" / f"{part}.json").write_text(json.dumps(some))
    (found,) = compare(tmp_path / "a", tmp_path / "b").corpus["vad"]
    assert (found.n, found.column) == (60, "vad")
    assert found.difference == pytest.approx((better - shared).sum() / 1200)
    # Of pairs: much closer than the two systems' own intervals, which the recordings' spread makes wide.
    drawn = np.random.default_rng(1).integers(0, 60, (1000, 60))
    expected = np.quantile((better - shared)[drawn].sum(1) / 1200, [0.025, 0.975])
    assert (found.low, found.high) == pytest.approx(expected, abs=0.2 * (found.high - found.low))
    (turned,) = compare(rows[1], rows[0], metrics=[metric, METRICS[0]]).corpus["vad"]
    assert (turned.difference, turned.low) == pytest.approx((-found.difference, -found.high))
    assert compare(tmp_path / "a", tmp_path / "b").as_dict()["corpus"]["vad"][0]["n"] == 60


def test_results_of_different_corpora_are_refused():
    rows = rows_of(6)
    cases = [
        ([row | {"id": f"x{row['id']}"} for row in rows], "no id is in both"),
        ([row | {"path": f"/other{row['path']}"} for row in rows], "for 6 of 6 ids the recording is another file"),
        ([row | {"reference": None} for row in rows], "the reference is another file"),
        ([row | {"seconds": 9.0} for row in rows], "9 in the second"),
        ([*rows, rows[0]], "two rows have the id 'r000'"),
        ([{key: row[key] for key in ("id", "path", "reference")} for row in rows], "no metric in common"),
    ]
    for other, said in cases:
        with pytest.raises(InputError, match=said):
            compare(rows, other, metrics=METRICS)
    moved = [row | {"path": f"/other{row['path']}"} for row in rows]
    assert compare(rows, moved, metrics=METRICS, same_files=False).recordings == 6
    with pytest.raises(InputError, match="give metrics"):
        compare(rows, rows)
