"""The report of an evaluation in a real browser, which reaches no network."""

from __future__ import annotations

import base64
import io
import math
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from browsers import opened, requests_of, screen, webdriver
from report_cases import HOSTILE, SDR, Page, make_report, make_results, named, results, row_of

from jaxrnn.evaluation.report import write_report
from jaxrnn.evaluation.report.table import NONE, defined, text

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_results(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def report(corpus):
    return make_report(corpus)


@pytest.fixture(scope="module")
def page(report):
    return Page(report.read_text(encoding="utf-8"))


def column(browser: Any, table: str, place: int) -> list[str]:
    """The visible cells of a column."""
    return browser.execute_script(
        "return [...document.getElementById(arguments[0]).tBodies[0].rows]"
        ".filter(row => !row.hidden && row.getClientRects().length).map(row => row.cells[arguments[1]].textContent)",
        table,
        place,
    )


def test_browser_needs_nothing_else(browser, report, page):
    opened(browser, report)
    assert browser.title == "Evaluation of first"
    assert browser.get_log("browser") == []
    assert requests_of(browser, report) == {report.as_uri()}
    assert browser.execute_script("return [...document.images].every(image => image.naturalWidth > 200)")
    shown = browser.execute_script("return [...document.querySelectorAll('table')].map(t => t.tBodies[0].rows.length)")
    assert sum(shown) + len(shown) == len(page.all("tr"))


def test_browser_plays_every_sound(browser, report, page):
    opened(browser, report)
    found = browser.execute_async_script("""
        const done = arguments[0], players = [...document.querySelectorAll("audio")];
        const ready = (player) => player.readyState >= 1 ? null : new Promise((resolve, reject) => {
            player.addEventListener("loadedmetadata", resolve);
            player.addEventListener("error", () => reject(player.error.message));
        });
        Promise.all(players.map(ready)).then(
            () => done(players.map((player) => [player.getAttribute("aria-label"), player.duration])),
            (reason) => done([["" + reason, 0]]));
    """)
    wanted = {}
    for attributes, _ in page.all("audio"):
        samples, rate = soundfile.read(io.BytesIO(base64.b64decode(str(attributes["src"]).split(",")[1])))
        wanted[attributes["aria-label"]] = pytest.approx(len(samples) / rate, abs=0.01)
    assert dict(found) == wanted
    assert len(found) == 3 * 4
    # A click on a picture plays from there, and no two sounds at once.
    sounds = browser.find_elements("css selector", ".sound:has(audio)")
    for place in (4, 5):
        picture = sounds[place].find_element("css selector", ".pictures")
        browser.execute_script("arguments[0].scrollIntoView({ block: 'center' })", picture)
        picture.click()
    # The page stops the one when it hears that the other plays, which is a moment after it does.
    playing = "return [...document.querySelectorAll('audio')].map((player) => !player.paused)"
    end = time.monotonic() + 10
    while (found := browser.execute_script(playing)) != [place == 5 for place in range(12)]:
        assert time.monotonic() < end, found
    assert 0.4 <= browser.execute_script("return arguments[0].querySelector('audio').currentTime", sounds[5]) <= 1.0


def marks(browser: Any, title: str, kind: str) -> list[dict[str, Any]]:
    """What the marks of a plot stand for."""
    return browser.execute_script(
        "const [title, kind] = arguments, figures = [...document.querySelectorAll('figure')];"
        "const plot = figures.find(figure => figure.querySelector('figcaption').textContent === title);"
        "return [...plot.querySelectorAll(`.mark-${kind}.role-mark path`)].map(mark => mark.__data__.datum)",
        title,
        kind,
    )


def pointed_at(browser: Any, mark: Any) -> Any:
    """What is said of a mark when the mouse comes to it."""
    browser.execute_script("arguments[0].scrollIntoView({ block: 'center' })", mark)
    webdriver.ActionChains(browser).move_to_element(browser.find_element("tag name", "nav")).perform()
    webdriver.ActionChains(browser).move_to_element(mark).perform()
    return browser.find_element("id", "vg-tooltip-element")


def test_browser_draws_every_plot(browser, report, corpus):
    opened(browser, report)
    _, _, rows, others = corpus
    shown = browser.execute_script(
        "return [...document.querySelectorAll('.plot')].map(plot => plot.querySelectorAll('svg').length)"
    )
    assert shown
    assert set(shown) == {1}
    # Of the baseline, the files that both have.
    counts = {"first": 0, "second": 0}
    for bar in marks(browser, "si_sdr", "rect"):
        counts[bar["system"]] += bar["__count"]
    assert counts == {"first": 13, "second": 12}
    assert sum(bar["__count"] for bar in marks(browser, "difference in si_sdr", "rect")) == len(others)
    points = {point["file"] for point in marks(browser, "si_sdr against snr", "symbol")}
    assert points == {text(row["id"]) for row in rows if row["status"] == "ok"}
    assert browser.get_log("browser") == []


def test_browser_tells_a_point_and_plays_it(browser, report):
    """A file whose sound is on the page is played; another one is shown in the table."""
    opened(browser, report)
    find = (
        "return [...document.querySelectorAll('.mark-symbol.role-mark path')].find(mark => "
        "mark.__data__.datum.file === arguments[0] && mark.__data__.datum.sound === arguments[1])"
    )
    for file, sound in (("file10", True), ("file5", False)):
        point = browser.execute_script(find, file, sound)
        tip = pointed_at(browser, point)
        assert tip.is_displayed()
        assert tip.text.split("\n")[0] == f"file {file}"
        webdriver.ActionChains(browser).click(point).perform()
        led = browser.find_element("css selector", ".led")
        assert led.tag_name == ("article" if sound else "tr")
        assert led.find_element("css selector", "h4, th").text == file
        assert browser.execute_script(
            "const box = arguments[0].getBoundingClientRect(); return box.top < innerHeight && box.bottom > 0", led
        )
    end = time.monotonic() + 10
    played = "return [...document.querySelectorAll('audio')].filter(one => one.played.length).map(one => one.ariaLabel)"
    while (found := browser.execute_script(played)) != ["output of first of file10"]:
        assert time.monotonic() < end, found


@pytest.mark.nightly
def test_browser_draws_whatever_is_in_a_corpus(browser, tmp_path):
    """Names are text wherever they come up; values that have no place in a plot are left out."""
    names = {HOSTILE: "${", "image": "]};'\"\\`", "title": "<b>"}
    values = [None, math.nan, math.inf, -math.inf, 0.0, 1e15, -1e100, 1e-300, 1e150, 3.0]
    for system, found in (("all", values), ("same", [3.0] * 5), ("one", [3.0]), ("none", []), ("lost", [None])):
        rows = [
            row_of(f"{HOSTILE}{place}", Path("f.wav"), seconds=place + 0.5, **dict.fromkeys(names, value), si_sdr=value)
            for place, value in enumerate(found)
        ]
        metrics = (SDR, *(named(name, unit) for name, unit in names.items()))
        both = [results(f"{HOSTILE}{name}", rows, *metrics) for name in (system, "other")]
        write_report(both[0], tmp_path / "r.html", baseline=both[1] if rows else None)
        opened(browser, tmp_path / "r.html")
        # Two systems that gave the same are two all the same.
        bars = marks(browser, "si_sdr", "rect") if any(map(defined, zip(found))) else []
        assert len({bar["system"] for bar in bars}) == (2 if bars else 0)
        points = browser.find_elements("css selector", ".mark-symbol.role-mark path")
        assert bool(points) == (len(found) > 1), system
        if points:
            assert pointed_at(browser, points[0]).text.startswith(f"file {HOSTILE}")
            assert browser.find_elements("css selector", "#vg-tooltip-element :is(script, img)") == []
        assert browser.title.startswith("Evaluation of <")
        assert browser.get_log("browser") == []


@pytest.mark.nightly
def test_browser_sorts_and_filters(browser, tmp_path):
    rng = np.random.default_rng(0)
    values = [None, math.inf, -math.inf, *rng.normal(0, 10, 1000).round(3).tolist()]
    rows = [row_of(f"f{place}", Path("f.wav"), si_sdr=value, part=place % 7) for place, value in enumerate(values)]
    write_report(results("it", rows), tmp_path / "r.html", examples=0)
    opened(browser, tmp_path / "r.html")
    headers = browser.find_elements("css selector", "#files-table thead th")
    assert [header.text.split()[0] for header in headers] == ["id", "seconds", "si_sdr", "part"]
    by_id = column(browser, "files-table", 0)
    assert by_id == sorted(row["id"] for row in rows)
    order = sorted(value for value in values if value is not None)
    headers[2].find_element("tag name", "button").click()
    shown = column(browser, "files-table", 2)
    assert shown[0] == "-∞"
    assert shown[-2:] == ["∞", NONE]
    assert [float(value) for value in shown[1:-2]] == pytest.approx(order[1:-1], abs=0.00501)
    assert headers[2].get_attribute("aria-sort") == "ascending"
    headers[2].find_element("tag name", "button").click()
    assert column(browser, "files-table", 2) == [*shown[-2::-1], NONE]
    assert headers[2].get_attribute("aria-sort") == "descending"
    assert column(browser, "files-table", 0)[0] == "f1"
    headers[0].find_element("tag name", "button").click()
    assert column(browser, "files-table", 0) == [row["id"] for row in rows]  # f2 before f10
    assert headers[2].get_attribute("aria-sort") == "none"
    box = browser.find_element("css selector", "input[type=search]")
    box.send_keys("F12 4")
    kept = [row for row in rows if "f12" in row["id"] and any("4" in cell for cell in cells_of(browser, row["id"]))]
    assert column(browser, "files-table", 0) == [row["id"] for row in kept]
    assert browser.find_element("tag name", "output").text == f"{len(kept)} of {len(rows)}"
    box.clear()
    box.send_keys("zz")
    assert column(browser, "files-table", 0) == []
    # The head of the table stays in sight.
    box.clear()
    box.send_keys(" ")
    places = browser.execute_script("""
        const frame = document.getElementById("files-table").parentElement;
        frame.scrollTop = 5000;
        return [frame.getBoundingClientRect().top, frame.querySelector("th").getBoundingClientRect().top];
    """)
    assert places[1] == pytest.approx(places[0], abs=2)
    assert browser.get_log("browser") == []


def cells_of(browser: Any, name: str) -> list[str]:
    kept = browser.execute_script(
        "return window.kept ??= Object.fromEntries([...document.getElementById('files-table').tBodies[0].rows]"
        ".map(row => [row.cells[0].textContent, [...row.cells].map(cell => cell.textContent)]))"
    )
    return kept[name]


@pytest.mark.nightly
@pytest.mark.parametrize("width", [390, 1280])
def test_browser_on_phone_and_desk(browser, report, width):
    with screen(browser, width) as seen:
        opened(browser, report)
        assert browser.execute_script("return document.documentElement.scrollWidth") == width
        for scheme in ("light", "dark"):
            picture = seen(scheme)
            assert picture.shape == (800, width)
            assert np.median(picture) > 0.95 if scheme == "light" else np.median(picture) < 0.15
            for name in ("ink", "muted", "link", "first", "second"):
                assert contrast(browser, name, "paper") >= 4.5
            assert contrast(browser, "muted", "shade") >= 4.5
            # Plots have the page's colours.
            axis = browser.execute_script("return getComputedStyle(document.querySelector('.plot text')).fill")
            assert axis == browser.execute_script("return getComputedStyle(document.body).color")


def contrast(browser: Any, one: str, two: str) -> float:
    """The ratio of WCAG 2: of relative luminances."""
    found = []
    for name in (one, two):
        value = browser.execute_script(
            "const probe = document.body.appendChild(document.createElement('p'));"
            "probe.style.color = `var(--${arguments[0]})`; const found = getComputedStyle(probe).color;"
            "probe.remove(); return found;",
            name,
        )
        channels = np.array([int(part) for part in re.findall(r"\d+", value)[:3]]) / 255
        linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
        found.append(float(linear @ [0.2126, 0.7152, 0.0722]))
    return (max(found) + 0.05) / (min(found) + 0.05)


def test_browser_runs_no_foreign_script(browser, report, tmp_path):
    """Not even were one to get into the page."""
    opened(browser, report)
    assert browser.execute_script("return document.title") == "Evaluation of first"
    content = report.read_text(encoding="utf-8").replace("<main>", f"<main>{HOSTILE}", 1)
    (tmp_path / "r.html").write_text(content, encoding="utf-8")
    opened(browser, tmp_path / "r.html")
    assert browser.title == "Evaluation of first"
    assert "Content Security Policy" in str(browser.get_log("browser"))
