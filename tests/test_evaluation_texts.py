"""Tables that another program wrote: error rates of texts, and the equal error rate of scores."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from refusals import check_refused
from sklearn.metrics import roc_curve

from jaxrnn.errors import InputError, MissingPackageError
from jaxrnn.evaluation import compare, evaluate_table, read_results
from jaxrnn.evaluation.metrics import OF_TABLES, build_metric
from jaxrnn.evaluation.settings import prepare_evaluation

pytestmark = pytest.mark.usefixtures("few_draws")

TEXTS = """id,speaker,reference,hypothesis
a,1,the cat sat,the cat sat
b,1,the cat sat down,a cat sat
c,2,007,007 seven
d,2,see you,
e,3,"",uh
f,3,,never heard
"""
#: Substituted, missing and inserted words, and words of the reference, counted by hand.
WRONG, WORDS = (0, 2, 1, 2, 1), (3, 4, 1, 2, 0)


def written(folder, text, name="texts.csv"):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text)
    return path


def value_of(results, name):
    return results.document["corpus"][name]["values"][name]["value"]


def test_error_rates_of_texts_are_those_counted_by_hand(tmp_path):
    """A missing hypothesis counts as an empty text; a missing reference is no value, and is counted."""
    pytest.importorskip("jiwer", reason="jiwer is not installed: pip install jiwer")
    results = evaluate_table(written(tmp_path, TEXTS), ["wer", "cer"], tmp_path / "out", slices=["speaker"])
    expected = [100 * wrong / words if words else None for wrong, words in zip(WRONG, WORDS, strict=True)]
    assert results.column("wer").to_list() == pytest.approx([*expected, None])
    # Words that are inserted into silence count over the table.
    assert value_of(results, "wer") == pytest.approx(100 * sum(WRONG) / sum(WORDS))
    assert results.column("cer").to_list()[:4] == pytest.approx([0, 100 * 8 / 16, 100 * 6 / 3, 100])
    summary = results.document["summary"]["wer"]
    assert (summary["n"], summary["missing"]) == (4, 2)
    assert "no reference" in results.rows[5]["notes"]
    assert results.column("reference").to_list()[2] == "007"
    slices = [each["corpus"]["wer"]["values"]["wer"]["value"] for each in results.document["slices"]["speaker"]]
    assert slices == [pytest.approx(100 * 2 / 7), 100, None]
    assert (tmp_path / "out" / "report.html").stat().st_size > 100_000
    assert "wer (\\%)" in (tmp_path / "out" / "summary.tex").read_text()

    def of_row(expected, found, **options):
        return build_metric("wer", options).of_row(expected, found)["wer"]

    assert of_row("Yes, sir", "yes, sir") == of_row("yes, sir", "yes sir") == 50
    assert of_row("Yes, sir", "yes, sir", lowercase=True) == of_row("yes, sir", "yes sir", punctuation=False) == 0
    assert of_row("Yes, sir", "yes sir", lowercase=True, punctuation=False) == 0


def test_a_recogniser_that_fails_gets_no_better_mean(tmp_path):
    """Two tables are compared by id, over the whole table too; failures count as errors."""
    pytest.importorskip("jiwer", reason="jiwer is not installed: pip install jiwer")
    rows = [f"{number:02d},one two three,one two {'three' if number % 2 else 'tree'}" for number in range(12)]
    fails = [row.rpartition(",")[0] + "," if number % 3 == 0 else row for number, row in enumerate(rows)]
    head = "id,reference,hypothesis"
    for name, lines in (("good", rows), ("bad", fails)):
        evaluate_table(written(tmp_path, "\n".join([head, *lines]), f"{name}.csv"), ["wer"], tmp_path / name)
    found = compare(tmp_path / "good", tmp_path / "bad")
    (row,), (corpus,) = found.differences, found.corpus["wer"]
    assert (row.n, row.missing_second, row.losses, row.wins) == (12, 0, 4, 0)
    assert corpus.first == pytest.approx(100 * 6 / 36)
    assert corpus.second == pytest.approx(100 * (4 * 3 + 4) / 36)
    assert corpus.low <= corpus.difference <= corpus.high
    others = written(tmp_path, "\n".join([head, *(row.replace("two", "too") for row in rows)]), "others.csv")
    evaluate_table(others, ["wer"], tmp_path / "others")
    check_refused(InputError, "the reference is another", compare, tmp_path / "good", tmp_path / "others")


def test_the_equal_error_rate_is_where_the_roc_curve_crosses(tmp_path):
    """Against the curve of scikit-learn, interpolated, for scores on the grid of the bins, and in cases by hand."""

    def eer(labels, scores, **options):
        metric = build_metric("eer", options)
        sums = sum(metric.pool.sums(metric.of_row(*each)[metric.pool.key]) for each in zip(labels, scores, strict=True))
        return float(metric.pool.values(sums)["eer"])

    assert eer([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]) == 0.5
    assert eer([0, 0, 1, 1], [0.1, 0.2, 0.7, 0.8]) == 0
    assert eer([0, 0, 1, 1], [0.7, 0.8, 0.1, 0.2]) == 1
    assert eer([0, 1], [0.5, 0.5]) == 0.5
    assert math.isnan(eer([0, 0], [0.1, 0.4]))
    for seed in range(5):
        generator = np.random.default_rng(seed)
        labels = generator.random(90) < 0.3
        scores = np.rint(100 * (generator.normal(0.2, 0.3, 90) + 0.4 * labels)) / 100
        false, true, _ = roc_curve(labels, scores, drop_intermediate=False)
        gap = false - (1 - true)
        at = int(np.argmax(gap >= 0))
        share = -gap[at - 1] / (gap[at] - gap[at - 1])
        expected = false[at - 1] + share * (false[at] - false[at - 1])
        assert eer(labels, scores, low=-2, high=3, bins=501) == pytest.approx(expected, abs=1e-12)


def test_a_table_of_scores(tmp_path):
    """Rates of scores are over the table, with intervals and a curve; a table with only these is compared, too."""
    generator = np.random.default_rng(0)
    for name, gain in (("one", 0.3), ("two", 0.6)):
        scores = [(number % 2, generator.normal(0.2 + gain * (number % 2), 0.2)) for number in range(40)]
        text = "\n".join(["target,cosine", *(f"{label},{score:.3f}" for label, score in scores)])
        written(tmp_path, text, f"{name}.csv")
        options = {"label": "target", "score": "cosine", "low": -1, "high": 2, "bins": 3001}
        metrics = [build_metric("eer", options), build_metric("detection", options)]
        results = evaluate_table(tmp_path / f"{name}.csv", metrics, tmp_path / name)
        assert results.columns == ()
        found = results.document["corpus"]["eer"]["values"]["eer"]
        assert 0 <= found["low"] <= found["value"] <= found["high"] <= 0.5
        assert results.document["corpus"]["detection"]["curve"]["false_positive_rate"][-1] == 1
    again = read_results(tmp_path / "two")
    assert json.dumps(again.document, sort_keys=True) == json.dumps(results.document, sort_keys=True)
    (eer,) = compare(tmp_path / "one", tmp_path / "two", same_files=False).corpus["eer"]
    assert eer.second < eer.first
    # A settings file describes the same evaluation.
    options = "label: target, score: cosine, low: -1, high: 2, bins: 3001"
    text = f"corpus: {{table: one.csv}}\nmetrics: [{{name: eer, {options}}}]\nout: run\n"
    evaluation = prepare_evaluation(written(tmp_path, text, "one.yaml"))
    expected = value_of(read_results(tmp_path / "one"), "eer")
    assert value_of(evaluation.conclude(evaluation.run()), "eer") == expected


def test_mistakes_about_tables_are_one_clear_error(tmp_path, monkeypatch):
    path, scores = written(tmp_path, TEXTS), written(tmp_path, "id,label,score\na,1,3.5\n", "scores.csv")
    cases = [
        (path, ["si_sdr"], "judges outputs of a system, not a table; for tables: detection"),
        (path, [], "needs metrics"),
        (path, [build_metric("wer", {"hypothesis": "hypotesis"})], "no column 'hypotesis' .did you mean 'hypothesis'"),
        (path, ["wer", "wer"], "two metrics are called 'wer'"),
        (path, [build_metric("wer", {"called": "speaker"})], "has a column 'speaker'"),
        (
            path,
            [build_metric("eer", {"label": "speaker", "score": "reference"})],
            "expected numbers in speaker, reference",
        ),
        (scores, ["eer"], "scores such as 3.5, not of 0 to 1: set low and high"),
        (tmp_path / "none.csv", ["wer"], "there is no table"),
        (written(tmp_path, "reference,hypothesis\n", "empty.csv"), ["wer"], "has no rows"),
        (written(tmp_path, "id,label,score\na,1,0\na,1,0\n", "twice.csv"), ["eer"], "an id of its own"),
    ]
    for table, metrics, said in cases:
        check_refused(InputError, said, evaluate_table, table, metrics, tmp_path / "out")
    for name in OF_TABLES:
        assert build_metric(name).of_row is not None
    check_refused(InputError, "texts of a table, not the outputs", build_metric("wer").start, 100)
    for text, said in (
        ("corpus: {table: texts.csv}\nsystem: {function: 'x:y'}\nmetrics: [wer]\nout: out\n", "takes no system"),
        ("corpus: {manifest: texts.csv}\nmetrics: [wer]\nout: out\n", "recordings need a system"),
        ("corpus: {table: texts.csv, folder: x}\nmetrics: [wer]\nout: out\n", "folder or manifest or table"),
    ):
        check_refused(InputError, said, prepare_evaluation, written(tmp_path, text, "wrong.yaml"))
    monkeypatch.setitem(__import__("sys").modules, "jiwer", None)
    check_refused(
        MissingPackageError, "jiwer is needed for the metric wer", evaluate_table, path, ["wer"], tmp_path / "out"
    )
