"""The report of an evaluation: what it says, that it shows foreign text as text."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
import soundfile
from evaluation_cases import results_from
from PIL import Image
from refusals import check_refused
from report_cases import HOSTILE, RATE, SDR, Page, make_report, make_results, named, results, row_of, tone
from tiers import in_later_tier

from jaxrnn.errors import InputError, MissingPackageError
from jaxrnn.evaluation.metrics import over_whole
from jaxrnn.evaluation.metrics.counts import detection
from jaxrnn.evaluation.report import page as pages
from jaxrnn.evaluation.report import write_report, write_summary
from jaxrnn.evaluation.report.plots import library
from jaxrnn.evaluation.report.sounds import HEIGHT, Player, encode, levels
from jaxrnn.evaluation.report.table import NONE, decimals, duration, number, text

pytestmark = pytest.mark.usefixtures("few_draws")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_results(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def report(corpus):
    return make_report(corpus)


@pytest.fixture(scope="module")
def page(report):
    return Page(report.read_text(encoding="utf-8"))


def test_figures_are_those_of_the_rows(page):
    values = np.array([*(2.0 * np.arange(12)), -20.0])
    head, sdr, intelligibility = page.rows("Summary of every metric")
    found = dict(zip(head, sdr, strict=True))
    assert found["metric"] == "si_sdr (dB)"
    assert found["files"] == "13"
    mean, interval = found["mean, interval"].split(" ", 1)
    low, high = map(float, interval.split("…"))
    assert float(mean) == pytest.approx(values.mean(), abs=0.005)
    # The interval of the normal approximation, give or take what 13 files and the draws leave open.
    assert high - low == pytest.approx(2 * 1.96 * values.std(ddof=1) / math.sqrt(13), rel=0.25)
    assert low < values.mean() < high
    assert [float(found[name]) for name in ("lowest", "median", "highest")] == [-20.0, 10.0, 22.0]
    # The one that failed has none either.
    assert (intelligibility[1], intelligibility[-2]) == ("12", "2")
    by_noise = {row[0]: row for row in page.rows("By noise")}
    assert by_noise["car"][1] == "8"
    assert float(by_noise["babble"][2].split(" ")[0]) == pytest.approx(10.0)


def test_summaries_for_spreadsheets_and_papers(tmp_path):
    rows = [row_of(f"{place}", tmp_path, si_sdr=1.5 * place) for place in range(5)]
    hostile = r"50%_of \x{}#&$~^"
    metric = over_whole(lambda x, s, rate: 0.0, hostile, unit="%")
    found = results_from("it", [{**row, hostile: place / 3} for place, row in enumerate(rows)], [SDR, metric])
    write_summary(found, tmp_path)
    table = polars.read_csv(tmp_path / "summary.csv")
    assert table["metric"].to_list() == [SDR.name, hostile]
    assert table["mean"].to_list() == [found.document["summary"][name]["mean"] for name in table["metric"]]
    text = (tmp_path / "summary.tex").read_text()
    line = next(line for line in text.splitlines() if line.startswith("50"))
    name = r"50\%\_of \textbackslash{}x\{\}\#\&\$\textasciitilde{}\textasciicircum{} (\%)"
    assert line.startswith(rf"{name} & 5 & 0.667 & ")
    assert all(line.count(" & ") == 4 for line in text.splitlines() if line.endswith(r"\\"))
    write_summary(results_from("it", [*rows, row_of("silent", tmp_path, si_sdr=None)], [SDR]), tmp_path)
    head, line = [each for each in (tmp_path / "summary.tex").read_text().splitlines() if "&" in each]
    assert head.startswith("metric & recordings & missing & mean &")
    assert line.startswith(r"si\_sdr (dB) & 5 & 1 & 3.00 & ")


def test_comparison_is_paired(page):
    differences = np.array([-3.0, *[1.5] * 11])
    row = page.rows("Both systems, paired by file")[1]
    assert row[1] == "12"
    assert float(row[4].split(" ")[0]) == pytest.approx(differences.mean(), abs=0.005)
    assert row[6:9] == ["11", "0", "1"]
    assert page.rows("Lowest differences in si_sdr")[1] == ["file0", "3.00", "0.00", "-3.00"]
    assert page.rows("Mean differences by noise")[2][2] == "+1.50 +1.50 … +1.50"


def test_detectors_are_told_over_the_whole_corpus(tmp_path):
    metric, rng, systems = detection(), np.random.default_rng(0), []
    labels = np.arange(400) % 2.0
    for noise in (0.4, 0.2):
        rows = []
        for place in range(3):
            judge = metric.start(100)
            judge.add(np.clip(0.5 + 0.3 * (labels - 0.5) + noise * rng.standard_normal(400), 0, 1), labels, None)
            rows.append(row_of(f"f{place}", Path(f"f{place}.npz"), **judge.result()))
        systems.append(results(f"noise {noise}", rows, metric))
    worse, better = systems
    write_report(better, tmp_path / "r.html", baseline=worse)
    page = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    head, *_, last = page.rows("Both systems, frames of all files counted together")
    row = dict(zip(head, last, strict=True))
    values = [system.document["corpus"]["detection"]["values"]["auc"]["value"] for system in systems]
    assert row["whole corpus"] == "auc"
    assert [float(row[system.name]) for system in systems] == pytest.approx(values, abs=5e-5)
    assert float(row["difference, interval"].split(" ")[0]) == pytest.approx(values[1] - values[0], abs=5e-5)
    assert "ROC of detection" in page.text
    assert "detection_counts" not in page.text


def test_every_row_is_in_the_table(page, corpus):
    _, _, rows, others = corpus
    head, *found = page.rows("All files")
    assert [row[0] for row in found] == [text(row["id"]) for row in sorted(rows, key=lambda row: row["id"])]
    told = dict(zip(head, next(row for row in found if row[0] == "file3"), strict=True))
    assert float(told["si_sdr (dB)"]) == 6.0
    assert float(told["si_sdr of second (dB)"]) == others[3]["si_sdr"]
    assert float(told["difference (dB)"]) == 1.5
    assert told["talker"] == text(HOSTILE)
    (error,) = page.rows("Files with errors")[1:]
    assert error[0] == text(HOSTILE)
    assert error[1].endswith("cannot be read")


def test_best_and_worst_are_played(page):
    order = [words for _, words in page.all("h4")]
    assert order == ["gone", "file0", "file11", "file10"]
    assert "there is no file" in page.text
    durations = {}
    for attributes, _ in page.all("audio"):
        kind, content = str(attributes["src"]).removeprefix("data:").split(";base64,")
        assert kind in ("audio/flac", "audio/wav")
        samples, rate = soundfile.read(io.BytesIO(base64.b64decode(content)))
        durations[attributes["aria-label"]] = len(samples) / rate
    assert durations["input of file0"] == durations["reference of file0"] == 0.5
    assert durations["output of second of file11"] == 1.0
    assert "Cut: the first 1.0 s of 1.6 s." in page.text


def test_lower_may_be_better(corpus, tmp_path):
    _, items, rows, _ = corpus
    found = results("it", rows, named("stoi"), named("si_sdr", "dB", False))
    write_report(found, tmp_path / "r.html", corpus=items, main="si_sdr")
    page = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert page.all("figcaption")[0][1] == page.all("dt")[0][1].removeprefix("mean ") == "si_sdr"
    order = [words for _, words in page.all("h4")]
    assert order[0] == "file11"
    assert order[5] == "gone"
    with pytest.raises(InputError, match=r"no metric 'sdr'.*there are: stoi, si_sdr"):
        write_report(found, tmp_path / "r.html", main="sdr")


def test_nothing_leads_out_of_the_page(report, page):
    # The drawing's own script names namespaces of XML and pages of its makers, and asks for none of them.
    content = report.read_text(encoding="utf-8").replace(library(), "")
    assert not re.search(r"https?:", content)
    assert "@import" not in content
    (policy,) = [found["content"] for found, _ in page.all("meta") if "http-equiv" in found]
    assert "default-src 'none'" in str(policy)
    for _, attributes, _ in page.elements:
        for name in ("src", "href", "xlink:href", "action", "data", "poster", "srcset"):
            assert name not in attributes or str(attributes[name]).startswith(("data:", "#")), attributes
        for value in attributes.values():
            assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)", value or ""))


def test_foreign_text_is_shown_as_text(page):
    (policy,) = [str(found["content"]) for found, _ in page.all("meta") if "http-equiv" in found]
    (data, listed), *scripts = page.all("script")
    assert data == {"type": "application/json", "id": "data"}
    assert text(HOSTILE) in json.loads(listed)["file"]
    assert [base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for _, code in scripts] == re.findall(
        r"'sha256-([^']*)'", policy
    )
    assert "unsafe" not in policy.split("script-src")[1]
    assert not any(name.startswith("on") for _, attributes, _ in page.elements for name in attributes)
    assert not any(attributes.get("src") == "x" for attributes, _ in page.all("img"))
    assert text(HOSTILE) in page.text


def test_names_and_links_are_of_one_thing_each(page):
    names = [attributes["id"] for _, attributes, _ in page.elements if "id" in attributes]
    assert len(names) == len(set(names))
    for _, attributes, _ in page.elements:
        target = attributes.get("href") or attributes.get("xlink:href") or ""
        assert not target.startswith("#") or target[1:] in names


def test_pictures_and_tables_can_be_read_out(page):
    assert all(attributes.get("alt") for attributes, _ in page.all("img"))
    assert all(attributes.get("scope") in ("col", "row") for attributes, _ in page.all("th"))
    assert all(attributes.get("aria-label") for _, attributes, _ in page.elements if attributes.get("role") == "img")


@pytest.mark.nightly
def test_same_rows_give_the_same_bytes(corpus, tmp_path):
    folder, items, rows, _ = corpus
    for name in ("one.html", "two.html"):
        write_report(results("it", rows, outputs=folder / "outputs"), tmp_path / name, corpus=items)
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"one.html", "two.html"}


@pytest.mark.parametrize(
    "name",
    in_later_tier(
        ["$x_{", "{{ 7 * 7 }}{% raw %}", "\x00\x1b[31m", "\u202egnp.exe", "漢字 🎧", "#010203", "a" * 5000, "&lt;"],
        ["$x_{", "\u202egnp.exe", "#010203", "漢字 🎧", "a" * 5000, "&lt;"],
    ),
)
def test_any_text_can_be_a_name(name, tmp_path):
    rows = [row_of(f"{name}{place}", Path(name), **{name: place % 2, "si_sdr": float(place)}) for place in range(3)]
    found = results(name, rows, SDR, named(name), outputs=tmp_path, slices=[name], **{name: name})
    write_report(found, tmp_path / "r.html", baseline=results(name, rows, SDR, named(name)), title=name)
    page = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert page.all("h1")[0][1] == text(name)
    assert [row[0] for row in page.rows("All files")[1:]] == [text(f"{name}{place}") for place in range(3)]


def test_names_of_files_may_be_no_text(tmp_path):
    write_report(results("it", [row_of("caf\udce9", Path("caf\udce9"), si_sdr=1.0)]), tmp_path / "r.html")
    page = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert page.rows("All files")[1][0] == "caf?"


@pytest.mark.parametrize(
    "values",
    in_later_tier(
        [
            [],
            [None],
            [math.nan, math.nan],
            [math.inf, -math.inf, 1.0],
            [3.0],
            [3.0] * 5,
            [0.0, 1e100, -1e100],
            [1e-300, 0.0],
        ],
        [[None], [3.0], [3.0] * 5, [1e-300, 0.0]],
    ),
    ids=str,
)
def test_any_values_give_a_page(values, tmp_path):
    rows = [row_of(f"f{place}", Path("f.wav"), si_sdr=value) for place, value in enumerate(values)]
    for found in (results("it", rows), results_from("it", rows, ())):
        baseline = results("that", rows) if values and found.columns else None
        write_report(found, tmp_path / "r.html", baseline=baseline)
        page = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
        assert len(page.rows("All files")) == len(values) + 1


def test_a_page_holds_no_more_than_it_may(corpus, tmp_path, monkeypatch):
    folder, items, rows, _ = corpus
    monkeypatch.setattr(Player, "SECONDS", 0.4)
    monkeypatch.setattr(Player, "MEGABYTES", 0.05)
    monkeypatch.setattr(pages, "ROWS", 5)
    write_report(results("it", rows, outputs=folder / "outputs"), tmp_path / "r.html", corpus=items, examples=3)
    page = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    sounds = [base64.b64decode(str(attributes["src"]).split(",")[1]) for attributes, _ in page.all("audio")]
    assert 0 < sum(map(len, sounds)) <= 50_000
    assert len(sounds) + page.text.count("Not embedded") == 5 * 3
    assert "The table holds the 5 errors and worst" in page.text
    assert {row[0] for row in page.rows("All files")[1:]} == {text(HOSTILE), "gone", "file0", "file1", "file2"}
    with pytest.raises(InputError, match="examples must be a whole number from 0 on, not -1"):
        write_report(results("it", rows), tmp_path / "r.html", examples=-1)


def test_a_page_of_a_large_corpus_holds_its_errors_its_ends_and_some_at_random(tmp_path, monkeypatch):
    """What is in the plots was not chosen by its values."""
    monkeypatch.setattr(pages, "ROWS", 20)
    monkeypatch.setattr(pages, "DRAWN", 100)
    # A column of the manifest may have any name.
    rows = [row_of(f"f{place:04d}", Path("f.wav"), si_sdr=float(place % 500), place=place) for place in range(1000)]
    for place in (3, 700):
        rows[place] |= {"status": "error", "error": "it is torn", "si_sdr": None}
    others = [row | {"si_sdr": None if row["error"] else row["si_sdr"] + place % 2} for place, row in enumerate(rows)]
    write_report(results("it", rows), tmp_path / "r.html", baseline=results("that", others), examples=2)
    page = Page((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert "The plots are of 100 files drawn at random" in page.text
    assert "All files (1\N{NARROW NO-BREAK SPACE}000)" in page.text
    assert [row[0] for row in page.rows("Files with errors")[1:]] == ["f0003", "f0700"]
    worst = [place for place in range(1000) if place % 500 < 9 and place != 3]
    assert {row[0] for row in page.rows("All files")[1:]} == {f"f{place:04d}" for place in (3, 700, 9, *worst)}
    assert [words for _, words in page.all("h4")] == ["f0000", "f0500", "f0999", "f0499"]
    drawn, median = re.findall(r"Histogram of si_sdr\. it: (\d+) files.*?median ([\d.]+)", page.text)[0]
    assert 95 <= int(drawn) <= 100
    assert 180 < float(median) < 320


@pytest.mark.thorough
def test_a_report_takes_the_place_of_another_whole(corpus, tmp_path, monkeypatch):
    _, _, rows, _ = corpus
    path = tmp_path / "r.html"
    path.write_text("before")
    (tmp_path / "file").write_text("")
    check_refused(InputError, "cannot be written", write_report, results("it", rows), tmp_path / "file" / "r.html")

    def fail(*args: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", fail)
        check_refused(InputError, "No space left", write_report, results("it", rows), path)
    assert path.read_text() == "before"
    assert {found.name for found in tmp_path.iterdir()} == {"r.html", "file"}


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    for name in ("page", "figures", "plots"):
        monkeypatch.delitem(sys.modules, f"jaxrnn.evaluation.report.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(MissingPackageError, match=r"altair is needed for a report: pip install 'jaxrnn\[evaluate\]'"):
        write_report(results("it", []), tmp_path / "r.html")


def test_sounds_are_kept_without_loss():
    rng = np.random.default_rng(0)
    for rate, kinds in {RATE: "flac", 8_000: "flac", 96_000: "flac", 96_001: "wav", 700_000: "wav"}.items():
        samples = 0.1 * rng.standard_normal(9_000) if rate == 8_000 else tone(440, 1.0)
        content, kind = encode(samples, rate)
        assert kind == f"audio/{kinds}"
        found, found_rate = soundfile.read(io.BytesIO(content), dtype="int16")
        assert found_rate == rate
        np.testing.assert_allclose(found / 32768, samples, atol=0.5 / 32768 + 1e-9)


def test_what_is_odd_about_a_sound_is_said(tmp_path):
    loud = np.concatenate([tone(440, 0.1, 4.0), [np.nan, np.inf]])
    soundfile.write(tmp_path / "loud.wav", loud, RATE, subtype="FLOAT")
    np.save(tmp_path / "a.npy", np.zeros((3, 2)))
    (tmp_path / "empty.wav").write_bytes(b"")
    paths = {name: tmp_path / name for name in ("loud.wav", "a.npy", "empty.wav", "none.wav")}
    sounds = Player(RATE).sounds({**paths, "kept": "Outputs were not kept."})
    notes = [" ".join(sound.notes) for sound in sounds]
    assert "not finite" in notes[0]
    assert "12.0 dB over full scale" in notes[0]
    assert "arrays, not sound" in notes[1]
    assert "cannot be read" in notes[2]
    assert "there is no file" in notes[3]
    assert notes[4] == "Outputs were not kept."
    assert [sound.uri is not None for sound in sounds] == [True, False, False, False, False]


def test_pictures_show_what_is_heard(tmp_path):
    soundfile.write(tmp_path / "long.wav", tone(2_000, 1.0, 0.5), RATE, subtype="FLOAT")
    soundfile.write(tmp_path / "short.wav", tone(6_000, 0.5, 0.25), RATE, subtype="FLOAT")
    long, short = Player(RATE).sounds({name: tmp_path / f"{name}.wav" for name in ("long", "short")})
    assert (long.share, short.share) == (1.0, 0.5)
    pictures = []
    for sound, frequency in ((long, 2_000), (short, 6_000)):
        content = base64.b64decode(str(sound.spectrogram).split(",")[1])
        picture = np.asarray(Image.open(io.BytesIO(content)))
        pictures.append(picture)
        assert picture.shape[0] == HEIGHT
        loudest = HEIGHT - 1 - picture[:, 20].argmax()
        assert loudest / HEIGHT * RATE / 2 == pytest.approx(frequency, abs=RATE / 2 / HEIGHT)
    wide, half = pictures
    assert wide.any(0).all()
    assert half[:, : half.shape[1] // 2].any(0).all()
    assert not half[:, half.shape[1] // 2 + 1 :].any()
    # Half the amplitude is 6 of the 80 dB, and half the waveform's height.
    assert (int(wide.max()) - int(half.max())) / 47 == pytest.approx(6.02 / 80, abs=0.02)
    heights = [
        max(float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", str(sound.waveform))) - 50 for sound in (long, short)
    ]
    assert heights[0] == pytest.approx(2 * heights[1], rel=0.02)
    assert levels(tone(1_000, 0.5, 1.0)).max() == pytest.approx(0.0, abs=0.1)


def test_wording():
    assert [number(value) for value in (None, math.nan, math.inf, -math.inf, 0.0, 12.3456, 1234.5)] == [
        NONE,
        NONE,
        "∞",
        "-∞",
        "0",
        "12.35",
        "1234.5",
    ]
    assert number(-0.001, 2) == "0.00"
    assert number(0.25, 2, sign=True) == "+0.25"
    assert decimals([1.0, 2.0, None, math.nan]) == 0
    assert [duration(value) for value in (None, 4.25, 59.99, 61, 3599.7, 8000)] == [
        NONE,
        "4.2 s",
        "60.0 s",
        "1 min 01 s",
        "1.00 h",
        "2.22 h",
    ]
