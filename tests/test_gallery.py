"""The gallery: what its entries say is so, its files can be read, and it is made again only where something changed."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
import soundfile

import jaxrnn
from jaxrnn.profiling import Profile, Row
from jaxrnn.training.fit import Fitted
from tools import gallery
from tools.gallery import (
    Figures,
    Picture,
    Printed,
    Sound,
    bounded,
    engines,
    entry,
    exactness,
    finetuning,
    profiling,
    streamed,
    streams,
)
from tools.gallery.making import KEPT, Made, find
from tools.gallery.small_network import convolved, recurrent

#: Where a line of code is cut on a screen of 1280 pixels.
COLUMNS = 82


def figures_of(items) -> dict[str, float]:
    rows = [row for item in items if isinstance(item, Figures) for row in item.rows.items()]
    return {name: float(value.split()[0].replace(",", "")) for name, value in rows if re.match(r"-?\d", value)}


def check_files(folder: Path, items) -> None:
    """Pictures are SVG of the size that is said, for two looks; sounds are 16 kHz and not silent."""
    for item in items:
        if isinstance(item, Picture):
            assert len(item.alt) > 60
            looks = [(folder / f"{item.name}.{look}.svg").read_text() for look in ("light", "dark")]
            for text in looks:
                root = ElementTree.fromstring(text)
                assert list(map(float, root.attrib["viewBox"].split()[2:])) == pytest.approx(
                    [item.width, item.height], abs=0.5
                )
            assert looks[0] != looks[1]
        elif isinstance(item, Sound):
            samples, rate = soundfile.read(folder / f"{item.name}.flac")
            assert rate == 16_000
            assert 2 < len(samples) / rate < 20
            assert 0.01 < np.sqrt(np.mean(samples**2)) < 0.5
        elif isinstance(item, Printed):
            assert str(folder) not in item.text


@pytest.mark.parametrize("name", gallery.NAMES)
def test_entries_are_of_one_shape(name):
    described = find(name)
    assert re.fullmatch(r"[^.]*[^.\d]\.( [^.]*[^.\d]\.)", re.sub(r"\(\w+\.md\)", "", described.see)), "two sentences"
    code = inspect.getsource(described.shown).splitlines()
    assert len(code) <= 22
    assert max(map(len, code)) <= COLUMNS
    assert all(len(part) > 2 for part in (described.title, described.see))


def test_a_page_without_models_says_what_it_needs(tmp_path, monkeypatch):
    monkeypatch.setattr(entry.recordings, "MODELS", tmp_path)
    monkeypatch.setattr(entry.recordings, "AUDIO", tmp_path)
    made = gallery.make(tmp_path / "made", ["denoising"])
    page = gallery.markdown(made, pictures="gallery", sounds=".")
    assert (
        "it needs `dtln_1.onnx` and `dtln_2.onnx` in the folder that JAXRNN_MODELS names, and `speech_16k.wav`" in page
    )
    assert "![" not in page
    assert "<audio" not in page
    assert inspect.getsource(find("denoising").shown) in page


def test_what_was_made_comes_first_and_the_home_page_plays_it():
    """The numbers of the home page are those of the entry, of the benchmarks and of the table of operators."""
    items = (Sound("noisy", "noisy"), Sound("streamed", "streamed"), Figures({streamed.DIFFERENCE: "7e-08"}))
    there = Made("streamed", "There", "See. Hear.", "", "code", "", items)
    absent = Made("speech", "Absent", "See. Hear.", "", "code", "a model", ())
    page = gallery.markdown([absent, there], pictures="gallery", sounds="sounds")
    assert page.index("## There") < page.index("## Absent")
    home = gallery.home(there, sounds="sounds")
    assert re.findall(r'src="([^"]*)"', home) == ["sounds/streamed/noisy.flac", "sounds/streamed/streamed.flac"]
    difference, ratios, operators = re.findall(r"^\*\*(.*)\*\*$", home, re.M)
    assert difference == "7e-08"
    rows = [row for result in engines.results_of("step") for row in result.rows]
    bounds = [row.ratios["ONNX Runtime"] for row in rows]
    low, high = map(float, ratios.split(" to "))
    assert min(bounds) < low <= high < max(bounds)
    defined = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    assert operators == f"{len(defined)} of {len(defined)}"
    assert "*No sounds here: they need a model.*" in gallery.home(absent, sounds="sounds")


@pytest.mark.nightly
def test_a_denoiser_streams_what_it_gives_at_once(tmp_path):
    items = streamed.make(tmp_path)
    check_files(tmp_path, items)
    figures = figures_of(items)
    assert figures["SI-SDR, streamed"] == pytest.approx(figures["SI-SDR, offline"], abs=0.01)
    assert figures["SI-SDR, streamed"] > figures["SI-SDR, noisy"] + 6
    assert figures[streamed.DIFFERENCE] < 1e-6


@pytest.mark.thorough
def test_only_what_has_changed_is_made_again(tmp_path):
    names: list[str] = []
    (first,) = gallery.make(tmp_path, ["engines"], watch=names.append)
    assert gallery.make(tmp_path, ["engines"], watch=names.append) == [first]
    assert names == ["engines"]
    check_files(tmp_path / "engines", first.items)
    kept = tmp_path / "engines" / KEPT
    for text in ("{", kept.read_text().replace('"digest": "', '"digest": "0')):
        kept.write_text(text)
        assert gallery.make(tmp_path, ["engines"], watch=names.append) == [first]
    assert names == ["engines"] * 3
    # Without making, a page has what there is.
    shown, missing = gallery.kept(tmp_path, ["engines", "streams"])
    assert shown == first
    assert "python -m tools.gallery" in missing.missing


def test_times_are_those_of_the_results():
    """A ratio below 1 in the figures is one in the rows, and the picture's words count the same."""
    rows = [row for result in engines.results_of("step") for row in result.rows]
    assert len(rows) >= 10
    for row in rows:
        others = [timing.median for name, timing in row.timings.items() if not name.startswith("jaxrnn")]
        assert (row.timings["jaxrnn"].median < min(others)) == (row.ratios["best peer"] < 1)


@pytest.mark.thorough
@pytest.mark.parametrize("network", [convolved, recurrent])
def test_facts_of_a_stream_bound_its_derivatives(network):
    streamed, derivatives = streams.with_slopes(network)
    depends = derivatives != 0
    outputs = np.arange(len(depends))
    place = (outputs / float(streamed.rate)).astype(int)
    last = depends.shape[1] - 1 - np.argmax(depends[:, ::-1], axis=1)
    inner = outputs[last < depends.shape[1] - 1]
    assert (last - place)[inner].max() == streamed.look_ahead
    arrived = streams.leaving(streamed, outputs)
    assert np.all(last < arrived)
    # And no frame waits for more than the pulse to fill.
    assert np.all(arrived[inner] - (last[inner] + 1) < streamed.pulse)
    if streamed.receptive_field is None:
        assert depends[:, 0].all()
    else:
        spans = (last - np.argmax(depends, axis=1) + 1)[depends[:, 0] == False]  # noqa: E712  where nothing is cut off
        assert spans.max() == streamed.receptive_field


@pytest.mark.thorough
def test_a_stream_is_exact_and_blocks_are_not(tmp_path):
    items = exactness.make(tmp_path)
    check_files(tmp_path, items)
    figures = figures_of(items)
    assert figures["largest difference, stream"] <= 4 * figures["rounding of numbers of this size"]
    assert figures["largest difference, block by block"] > 0.5


@pytest.mark.nightly
def test_memory_is_drawn(tmp_path):
    check_files(tmp_path, find("memory").make(tmp_path))


@pytest.mark.nightly
def test_a_denoiser_live_gains_and_gives_what_it_gives_at_once(tmp_path, models, audio):
    items = find("denoising").make(tmp_path)
    check_files(tmp_path, items)
    figures = figures_of(items)
    assert figures["SI-SDR after DTLN"] > figures["SI-SDR of the noisy speech"] + 4
    assert figures["largest difference from one call over all blocks"] < 1e-5
    lengths = {len(soundfile.read(path)[0]) for path in tmp_path.glob("*.flac")}
    assert len(lengths) == 1


@pytest.mark.nightly
def test_speech_is_where_it_is_heard(tmp_path, models, audio):
    items = find("speech").make(tmp_path)
    check_files(tmp_path, items)
    assert figures_of(items)["stretches of speech"] >= 3
    samples = entry.read_part("speech_16k.wav", 0, 18)
    model = jaxrnn.load(models / "silero_vad.onnx", static={"sr": 16_000})
    found = find("speech").shown(samples, model)
    np.testing.assert_allclose(found[:-1], np.load(audio / "silero_reference.npy")[: len(found) - 1], rtol=0, atol=1e-4)


def test_bounds_are_drawn_as_they_were_measured(tmp_path, monkeypatch):
    """With the sounds of the example, if it has run here."""
    samples = np.random.default_rng(0).uniform(-0.5, 0.5, 40_000)
    soundfile.write(tmp_path / "noisy.flac", samples, 16_000)
    monkeypatch.setattr(bounded, "SOUNDS", tmp_path)
    items = bounded.make(tmp_path)
    check_files(tmp_path, items)
    assert [item.name for item in items if isinstance(item, Sound)] == ["noisy"]
    (axes,) = bounded.draw([bounded.example.Loss(**each) for each in bounded.RESULTS["bounds"]]).axes
    before, after = axes.lines
    for line, key in ((before, "error_before"), (after, "error_after")):
        assert line.get_xdata().tolist() == [each["delay_ms"] for each in bounded.RESULTS["bounds"]]
        assert line.get_ydata().tolist() == [each[key] for each in bounded.RESULTS["bounds"]]


@pytest.mark.nightly
def test_fine_tuning_gains(tmp_path, monkeypatch):
    monkeypatch.setattr(finetuning, "EPOCHS", 2)
    items = finetuning.make(tmp_path)
    check_files(tmp_path, items)
    noisy, before, after = figures_of(items).values()
    assert noisy < before < after


def test_a_profile_is_drawn(tmp_path, monkeypatch):
    """Of a recording that took long; the lines of the picture are those of the profile."""
    parts = {"gru": 3e-3, "mask": 1e-3}
    regions = tuple(Row(name, seconds, 0.0, "fusion", {name: 1.0}) for name, seconds in parts.items())
    profile = Profile("scan", "cpu", 2, 5e-3, 4e-3, 6e-3, 10, 5e-3, regions, {}, True, {"gru": "GRU", "mask": "Mul"})
    monkeypatch.setattr(profiling, "profiled", lambda: profile)
    items = profiling.make(tmp_path)
    check_files(tmp_path, items)
    assert "GRU 'gru' takes most, 60%" in next(item.alt for item in items if isinstance(item, Picture))
    assert figures_of(items)["a call"] == 5
    (axes,) = profiling.draw(profile).axes
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([60, 20, 20])


def test_a_loss_curve_is_drawn_on_axes_of_others():
    from matplotlib.figure import Figure

    history = [{"step": step, "loss": 1 / step, "validation_loss": 2 / step} for step in range(1, 4)]
    axes = Figure().subplots()
    Fitted({}, {}, history, 3, 3, "steps", None).draw(axes)
    loss, validation, _ = axes.lines
    assert loss.get_ydata().tolist() == [1, 1 / 2, 1 / 3]
    assert validation.get_ydata().tolist() == [2, 1, 2 / 3]
