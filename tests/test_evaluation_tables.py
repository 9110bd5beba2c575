"""Results as tables, what they say together, and two of them side by side."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from pathlib import Path

import numpy as np
import polars
import pytest
from evaluation_cases import results_from
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import check_refused
from scipy import stats

from jaxrnn.audio.corpus import extra_columns, from_manifest
from jaxrnn.errors import InputError
from jaxrnn.evaluation import Item, summary
from jaxrnn.evaluation.compare import compare
from jaxrnn.evaluation.evaluation import check_main
from jaxrnn.evaluation.metrics import Column, build_metric, over_whole, si_sdr
from jaxrnn.evaluation.metrics.counts import detection
from jaxrnn.evaluation.metrics.sound import level
from jaxrnn.evaluation.parts import Parts, frame_of
from jaxrnn.evaluation.results import read_results, write_results
from jaxrnn.evaluation.summary import mean_interval, pooled, slice_by, summarise

METRICS = (si_sdr(), level(), detection())

pytestmark = pytest.mark.usefixtures("few_draws")


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


def document(rows, metrics=METRICS, **options):
    return results_from("it", rows, metrics, **options).document


def write(folder, rows, metrics=METRICS, **options):
    write_results(results_from("it", rows, metrics, **options), folder)
    return folder


def counts_of(confusion):
    """A detector's counts without a histogram."""
    return {"at": [0, 1, 2, 3], "counts": list(confusion)}


@pytest.mark.thorough
def test_a_table_has_a_sound_type_for_every_column_and_a_file_for_it_the_same_bytes(tmp_path):
    rows = rows_of()
    table = results_from("it", json.loads(json.dumps(rows[::-1])), METRICS).table
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
    results = results_from("a", rows, METRICS, slices=["place"], facts={"latency": {"y": 1}})
    write_results(results, tmp_path / "a")
    write(tmp_path / "b", rows[::-1], slices=["place"], facts={"latency": {"y": 1}})
    names = ["results.json", "results.parquet"]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == names
    read = read_results(tmp_path / "a")
    assert read.rows == table.to_dicts()
    assert read.table.equals(table)
    assert (read.name, read.document, read.columns) == ("a", results.document, results.columns)
    assert [(pool.key, pool.size) for pool in read.pools.values()] == [("detection_counts", 4 + 2 * 1001)]
    names = ["si_sdr", "level", "accuracy", "precision", "recall", "f1", "auc"]
    assert [column.name for column in read.columns] == names
    assert read.columns[1].higher_is_better is None
    # Every JSON there is can read it: nothing in it is NaN or infinite.
    plain = json.loads((tmp_path / "a" / "results.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert plain == results.document
    assert plain["summary"]["si_sdr"]["infinite"] == 1
    assert plain["summary"]["level"]["n"] == 0
    assert plain["summary"]["level"]["mean"] is None
    assert plain["recordings"] | {"seconds": 0} == {"all": 40, "failed": 4, "noted": 0, "seconds": 0}
    assert plain["facts"] == {"latency": {"y": 1}}


def test_of_many_recordings_groups_are_drawn_and_intervals_are_as_wide(monkeypatch):
    generator = np.random.default_rng(0)
    rows = [
        {"id": f"{place:04d}", "level": value, "vad_counts": counts_of([right, 20 - right, 0, 0])}
        for place, (value, right) in enumerate(
            zip(generator.normal(-20, 3, 2000), generator.integers(5, 15, 2000).tolist(), strict=True)
        )
    ]
    metrics = (level(), detection(called="vad", rates=["accuracy"], bins=11))
    monkeypatch.setattr(summary, "DRAWS", 1000)
    alone = document(rows, metrics)
    monkeypatch.setattr(summary, "MANY", 1000)
    monkeypatch.setattr(summary, "ALONE", 1000)
    monkeypatch.setattr(summary, "GROUPS", 200)
    together = document(rows, metrics)
    for find in (lambda said: said["summary"]["level"], lambda said: said["corpus"]["vad"]["values"]["vad"]):
        one, other = find(alone), find(together)
        assert one.get("value", one.get("mean")) == other.get("value", other.get("mean"))
        assert other["high"] - other["low"] == pytest.approx(one["high"] - one["low"], rel=0.2)
        assert other["low"] == pytest.approx(one["low"], abs=0.2 * (one["high"] - one["low"]))


def test_the_document_says_what_its_rows_say():
    rows = rows_of()
    said = document(rows, slices=["place", "snr"])
    good = [row for row in rows if "si_sdr" in row]
    values = np.array([row["si_sdr"] for row in good if math.isfinite(row["si_sdr"])])
    found = said["summary"]["si_sdr"]
    assert (found["n"], found["missing"], found["infinite"]) == (len(values), 4, 1)
    assert found["mean"] == pytest.approx(values.mean())
    assert found["deviation"] == pytest.approx(values.std(ddof=1))
    assert (found["median"], found["minimum"]) == pytest.approx((np.median(values), values.min()))
    confusion = np.sum([METRICS[2].pool.sums(row["detection_counts"])[:4] for row in good], 0)
    accuracy = said["corpus"]["detection"]["values"]["accuracy"]
    assert accuracy["value"] == pytest.approx((confusion[0] + confusion[3]) / confusion.sum())
    assert accuracy["low"] < accuracy["value"] < accuracy["high"]
    curve = said["corpus"]["detection"]["curve"]
    area = np.trapezoid(curve["true_positive_rate"], curve["false_positive_rate"])
    assert area == pytest.approx(said["corpus"]["detection"]["values"]["auc"]["value"])
    street = next(part for part in said["slices"]["place"] if part["label"] == "street")
    assert [part["label"] for part in said["slices"]["place"]] == ["café", "street", "(none)"]
    alone = document([row for row in rows if row["place"] == "street"])
    assert street["summary"] == alone["summary"]
    assert street["corpus"]["detection"]["values"] == alone["corpus"]["detection"]["values"]
    assert sum(part["recordings"]["all"] for part in said["slices"]["snr"]) == len(rows)
    with pytest.raises(InputError, match="did you mean 'place'"):
        document(rows, slices=["palce"])
    assert document([])["recordings"]["all"] == 0
    strange = [{**rows[0], "id": "a\udcff", "place": "\udc80"}, {**rows[1], "notes": "\x00\U0001f600"}]
    assert results_from("it", strange, METRICS).table["id"].to_list() == ["a?", "r001"]
    dictionary = over_whole(lambda x, s, rate: {}, "own", unit="V")
    rows[0] |= {"own_size": 2.0, "own_part": None}
    rows[1] |= {"own": None}
    known = document(rows, [*METRICS, dictionary])["metrics"][-1]["columns"]
    assert [(column["name"], column["unit"]) for column in known] == [("own_part", "V"), ("own_size", "V")]
    assert results_from("it", rows, [dictionary]).table.columns[-2:] == ["own_part", "own_size"]


@pytest.mark.parametrize("name", ["si_sdr", "sdr", "class_accuracy", "stoi"])
def test_a_column_of_the_manifest_is_no_metric_even_where_the_metric_of_that_prefix_has_no_value(name):
    rows = [{"id": f"{place}", f"{name}_before": 1.5, name: None} for place in range(3)]
    found = results_from("it", rows, [build_metric(name)])
    assert [column.name for column in found.columns] == [name]
    assert found.table.columns[-2:] == [f"{name}_before", name]
    check_refused(InputError, rf"no metric.*there are: {name}$", check_main, [build_metric(name)], f"{name}_before")


def test_what_cannot_be_read_is_told(tmp_path, monkeypatch):
    check_refused(InputError, r"no results.parquet", read_results, tmp_path)
    write(tmp_path, rows_of(5))
    (tmp_path / "results.parquet").write_bytes(b"PAR1")
    check_refused(InputError, "cannot be read", read_results, tmp_path)
    (tmp_path / "file").write_text("")
    check_refused(InputError, "cannot be written", write, tmp_path / "file", rows_of(5))

    def full(frame, file, **options):
        raise polars.exceptions.ComputeError("underlying IO error: No space left on device")

    monkeypatch.setattr(polars.LazyFrame, "sink_parquet", full)
    with pytest.raises(InputError, match=r"results.parquet cannot be written: .*No space left on device. Finished"):
        write(tmp_path / "full", rows_of(5))


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("metrics/0", [], r"metrics\[0\] is not an object"),
        ("metrics/0/columns/0/name", "sdr", "no column 'sdr'"),
        ("metrics/0/columns/0/name", "place", "no column 'place' of the type"),
        ("recordings/seconds", "long", "recordings.seconds is 'long'"),
        ("summary/level", None, "level is not an object"),
        ("facts", None, "facts is not an object"),
        ("slices/place", [{}], r"place\[0\] lacks"),
        ("slices/place/0/summary/level/mean", True, "level.mean is True"),
        ("corpus/detection/values", 3, "values is not an object"),
        ("corpus/detection/values/auc/low", [], r"auc.low is \[\]"),
    ],
)
def test_a_document_that_a_report_could_not_read_is_told(tmp_path, place, value, words):
    write(tmp_path, rows_of(5), slices=["place"])
    path = tmp_path / "results.json"
    document = inner = json.loads(path.read_text())
    *outer, last = (int(key) if key.isdigit() else key for key in place.split("/"))
    for key in outer:
        inner = inner[key]
    inner[last] = value
    path.write_text(json.dumps(document))
    check_refused(InputError, f"cannot be read: .*{words}", read_results, tmp_path)


def test_a_table_with_damaged_pages_is_told(tmp_path):
    """The end of the file, which is read first, is right."""
    path = write(tmp_path, rows_of(40)) / "results.parquet"
    data = path.read_bytes()
    path.write_bytes(data[:4] + b"\xff" * 400 + data[404:])
    found = read_results(tmp_path)
    check_refused(InputError, "table of results cannot be read", lambda: found.table)
    check_refused(InputError, "table of results cannot be read", compare, found, found)


@pytest.mark.thorough
def test_intervals_hold_the_mean_as_often_as_they_say(monkeypatch):
    # 300 samples of 60 from a skewed distribution of mean 1: the count that hold it is binomial, and an interval of
    # 60 values is up to two hundredths too narrow.
    monkeypatch.setattr(summary, "CONFIDENCE", 0.9)
    monkeypatch.setattr(summary, "DRAWS", 400)
    generator = np.random.default_rng(3)
    held = sum(low <= 1 <= high for low, high in (mean_interval(generator.exponential(size=60)) for _ in range(300)))
    assert stats.binom.ppf(1e-4, 300, 0.87) <= held <= stats.binom.ppf(1 - 1e-4, 300, 0.9)


def test_few_recordings_have_the_interval_of_the_textbook_or_none():
    """Student's t below ten recordings, none below four: a bootstrap of two covers the mean half of the time."""
    values = np.random.default_rng(0).normal(5, 2, 9)
    for count in (4, 9):
        some = values[:count]
        half = stats.t.ppf(0.975, count - 1) * some.std(ddof=1) / math.sqrt(count)
        assert mean_interval(some) == pytest.approx((some.mean() - half, some.mean() + half))
    assert all(math.isnan(end) for count in range(4) for end in mean_interval(values[:count]))
    pool = detection(called="vad", rates=["accuracy"]).pool
    assert pool is not None
    counts = [[30, 2, 4, 9], [12, 7, 1, 8], [3, 3, 20, 5], [40, 1, 1, 10], [9, 9, 9, 9]]
    groups = np.stack([pool.sums(counts_of(each)) for each in counts])
    found = pooled((pool, groups))["vad"]
    left_out = [(groups.sum(0) - each)[[0, 3]].sum() / (groups.sum(0) - each)[:4].sum() for each in groups]
    half = stats.t.ppf(0.975, 4) * math.sqrt(4 * np.var(left_out))
    assert (found["low"], found["high"]) == pytest.approx((found["value"] - half, found["value"] + half))
    assert math.isnan(pooled((pool, groups[:3]))["vad"]["low"])
    same = pooled((pool, groups), (pool, groups))["vad"]
    assert list(same.values()) == [0, 0, 0]


def test_intervals_of_skewed_values_are_those_of_scipy(monkeypatch):
    monkeypatch.setattr(summary, "DRAWS", 4000)
    values = np.random.default_rng(2).exponential(size=25)
    expected = stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="BCa", rng=np.random.default_rng(7)
    ).confidence_interval
    assert mean_interval(values) == pytest.approx(tuple(expected), abs=0.03)


@pytest.mark.thorough
def test_intervals_are_the_same_again_and_those_of_the_textbook_for_many(monkeypatch):
    monkeypatch.setattr(summary, "DRAWS", 1000)
    values = np.random.default_rng(0).normal(5, 2, 10_000)
    found = summarise(values)
    assert found == summarise(values.copy())
    half = 1.96 * values.std() / 100
    # A quantile of 1000 draws is known to a few hundredths of a standard deviation.
    assert (found["low"], found["high"]) == pytest.approx((found["mean"] - half, found["mean"] + half), abs=0.15 * half)
    assert math.isnan(summarise(np.array([3.0]))["low"])
    assert summarise(np.array([3.0] * 12 + [math.nan]))["low"] == 3.0
    assert summarise(np.array([math.inf, -math.inf]))["infinite"] == 2
    metric = detection(rates=["accuracy"])
    frames = np.random.default_rng(1).integers(0, 30, (500, 4))
    assert metric.pool is not None
    # Blocks of a few draws and recordings are exact too.
    counts = list(map(counts_of, frames.tolist()))
    groups = np.stack(list(map(metric.pool.sums, counts)))
    whole = pooled((metric.pool, groups[:50]))
    with monkeypatch.context() as patched:
        patched.setattr(summary, "_AT_ONCE", 7 * metric.pool.size)
        assert pooled((metric.pool, groups[:50])) == whole
    monkeypatch.setattr(summary, "DRAWS", 4000)
    found = pooled((metric.pool, groups))["detection"]
    drawn = np.random.default_rng(5).integers(0, 500, (4000, 500))
    again = frames[drawn].sum(1)
    expected = np.quantile((again[:, 0] + again[:, 3]) / again.sum(1), [0.025, 0.975])
    # Of 4000 draws, the difference of two such quantiles has a deviation of 1.5 % of the width: five of them.
    assert (found["low"], found["high"]) == pytest.approx(expected, abs=0.08 * (found["high"] - found["low"]))


def slices(values):
    """The slices of a manifest's column, as a table has it."""
    items = [Item(f"{place:04d}", Path("r"), None, {"of": value}) for place, value in enumerate(values)]
    return slice_by(extra_columns(items)["of"]) if items else {}


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(
    st.one_of(
        st.lists(st.one_of(st.none(), st.floats(), st.integers(-3, 3)), max_size=60),
        st.lists(st.one_of(st.none(), st.text(max_size=2), st.booleans()), max_size=60),
        st.lists(st.text("abcdefgh", min_size=2), max_size=200),
    )
)
def test_every_recording_is_in_one_slice(values):
    found = slices(values)
    places = np.concatenate([np.zeros(0, int), *found.values()])
    assert sorted(places) == list(range(len(values)))
    assert all(len(part) for part in found.values())
    assert len(found) <= 52
    known = [value for value in values if value is not None and value == value]
    if known and all(type(value) in (int, float) for value in known) and len(set(known)) > 8:
        parts = [[values[place] for place in part] for label, part in found.items() if label != "(none)"]
        assert all(max(low) < min(high) for low, high in itertools.pairwise(parts))


def test_slices_are_values_or_quantiles():
    assert {label: places.tolist() for label, places in slices([5, 0, 5, None, -2.5]).items()} == {
        "-2.5": [4],
        "0": [1],
        "5": [0, 2],
        "(none)": [3],
    }
    values = np.random.default_rng(0).permutation(1000) / 1000
    many = slices(values.tolist())
    for label, places in many.items():
        assert float(label.split()[0]) == values[places].min()
    assert [len(places) for places in many.values()] == pytest.approx([250] * 4, abs=1)
    assert next(iter(many)).startswith("0 to 0.2")
    assert list(slices([True, False, True])) == ["false", "true"]
    assert list(slices(["(none)", None])) == ["(none)", "((none))"]
    crowd = slices([f"{number}" for number in range(200)] + ["199"] * 3)
    assert len(crowd["(150 others)"]) == 150
    assert len(crowd["199"]) == 4
    crowd = slices(["(10 others)"] * 2 + [f"{number}" for number in range(59)])
    assert (len(crowd["(10 others)"]), len(crowd["((10 others))"])) == (2, 10)


@pytest.mark.thorough
def test_a_comparison_is_that_of_its_pairs_and_turns_around(tmp_path):
    first, second = rows_of(), rows_of(shift=1.0)
    extra = np.random.default_rng(7).normal(0, 2, 40)
    for row, more in zip(second, extra, strict=True):
        if "si_sdr" in row:
            row["si_sdr"] += more
    second[5]["si_sdr"] = first[5]["si_sdr"]
    second[6]["si_sdr"] = None
    first, second = first[1:], second[:-1]
    write(tmp_path / "a", first)
    write(tmp_path / "b", second)
    found = compare(tmp_path / "a", tmp_path / "b", slices=["place"])
    assert (found.only_first, found.only_second) == (("r039",), ("r000",))
    assert (found.recordings, found.names) == (38, (str(tmp_path / "a"), str(tmp_path / "b")))
    (one,) = (entry for entry in found.differences if entry.column == "si_sdr")
    pairs = list(zip(first[:-1], second[1:], strict=True))

    def less(place=None):
        """Finite differences of all recordings, or of those at a place."""
        values = [(x.get("si_sdr"), y.get("si_sdr")) for x, y in pairs if place in (None, y["place"])]
        return np.array([y - x for x, y in values if None not in (x, y) and math.isfinite(x)])

    # Four failed and one has no value; two infinite ones are equal, but have no mean.
    missing = [tuple(x.get("si_sdr") is None for x in pair) for pair in pairs]
    assert (one.missing_first, one.missing_second) == (missing.count((True, False)), missing.count((False, True)))
    assert one.missing_both == missing.count((True, True))
    assert (one.n, one.missing_first + one.missing_second + one.missing_both, one.infinite) == (len(less()), 5, 1)
    assert (one.wins, one.ties, one.losses) == ((less() > 0).sum(), 2, (less() < 0).sum())
    assert one.mean == pytest.approx(less().mean())
    assert one.low < one.mean < one.high
    assert one.p == pytest.approx(stats.wilcoxon(less()[less() != 0]).pvalue)
    assert found.slices["place"]["street"][0].mean == pytest.approx(less("street").mean())
    turned = compare(results_from("b", second, METRICS), results_from("a", first, METRICS), slices=["place"])
    for there, back in zip(found.differences, turned.differences, strict=True):
        assert (there.wins, there.ties, there.losses) == (back.losses, back.ties, back.wins)
        ours = (there.n, there.first, there.second, there.mean, there.low, there.high, there.median, there.p)
        theirs = (back.n, back.second, back.first, -back.mean, -back.high, -back.low, -back.median, back.p)
        assert ours == pytest.approx(theirs, nan_ok=True)
    lower = dataclasses.replace(METRICS[0], columns=(Column("si_sdr", "dB", False),))
    same = results_from("same", first, [lower])
    (same,) = compare(same, same).differences
    assert (same.p, same.mean, same.low, same.wins, same.losses) == (1.0, 0.0, 0.0, 0, 0)
    (worse,) = compare(results_from("a", first, [lower]), results_from("b", second, [lower])).differences
    assert (worse.wins, worse.losses) == (one.losses, one.wins)


def test_the_corpus_of_a_detector_is_compared_as_a_whole(tmp_path):
    metric = detection(called="vad", rates=["accuracy"])
    generator = np.random.default_rng(0)
    shared = generator.integers(5, 15, 60)
    better = shared + generator.integers(0, 3, 60)
    rows = [
        rows_of(60, right=[counts_of([int(count), 20 - int(count), 0, 0]) for count in side])
        for side in (shared, better)
    ]
    rows = [[{**row, "vad_counts": row.pop("right")} for row in side] for side in rows]
    for name, side in zip("ab", rows, strict=True):
        write(tmp_path / name, side, [metric, METRICS[0]])
        half = len(side) // 2
        parts = Parts(tmp_path / name, {})
        parts.begin({})
        for part, some in enumerate((side[:half], side[half:])):
            judged = [{"id": row["id"], "vad_counts": row["vad_counts"]} for row in some]
            places = range(part * half, part * half + len(some))
            parts.finish(part, frame_of(judged, places, ["vad_counts"]))
    (found,) = compare(tmp_path / "a", tmp_path / "b").corpus["vad"]
    assert (found.n, found.column) == (60, "vad")
    assert found.difference == pytest.approx((better - shared).sum() / 1200)
    # Of pairs: much closer than the two systems' own intervals, which the recordings' spread makes wide.
    drawn = np.random.default_rng(1).integers(0, 60, (1000, 60))
    expected = np.quantile((better - shared)[drawn].sum(1) / 1200, [0.025, 0.975])
    assert (found.low, found.high) == pytest.approx(expected, abs=0.2 * (found.high - found.low))
    results = [results_from(name, side, [metric, METRICS[0]]) for name, side in zip("ab", rows, strict=True)]
    (turned,) = compare(*results[::-1]).corpus["vad"]
    assert (turned.difference, turned.low) == pytest.approx((-found.difference, -found.high))


def test_results_of_different_corpora_are_refused():
    rows = rows_of(6)
    cases = [
        ([row | {"id": f"x{row['id']}"} for row in rows], "no id is in both"),
        ([row | {"path": f"/other{row['path']}"} for row in rows], "for 6 of 6 ids the recording is another file"),
        ([row | {"reference": None} for row in rows], "the reference is another file"),
        ([row | {"seconds": 9.0} for row in rows], "9 in the second"),
        ([*rows, rows[0]], "two rows have the id 'r000'"),
    ]
    mine = results_from("a", rows, METRICS)
    for other, said in cases:
        check_refused(InputError, said, compare, mine, results_from("b", other, METRICS))
    with pytest.raises(InputError, match=r"no metric in common: si_sdr, level, accuracy, .* and stoi"):
        compare(mine, results_from("b", rows, [dataclasses.replace(METRICS[0], columns=(Column("stoi"),))]))
    moved = [row | {"path": f"/other{row['path']}"} for row in rows]
    assert compare(mine, results_from("b", moved, METRICS), same_files=False).recordings == 6


def test_a_panic_of_polars_is_one_error(tmp_path, monkeypatch):
    """Some damaged Parquet files end in a panic of code in Rust, which is no `Exception`."""

    def panic(_):
        raise polars.exceptions.PanicException("called `Result::unwrap()` on an `Err` value")

    (tmp_path / "corpus.parquet").write_bytes(b"PAR1")
    monkeypatch.setattr(polars, "read_parquet", panic)
    check_refused(InputError, "corpus.parquet cannot be read as a table", from_manifest, tmp_path / "corpus.parquet")
