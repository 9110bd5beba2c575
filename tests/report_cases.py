"""What the tests of reports share: a page taken apart, and one of results, references and sounds."""

from __future__ import annotations

import html.parser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from evaluation_cases import results_from

from jaxrnn.audio.corpus import Item
from jaxrnn.evaluation.metrics import Column, Metric
from jaxrnn.evaluation.report import write_report
from jaxrnn.evaluation.report.sounds import Player
from jaxrnn.evaluation.results import Results

RATE = 16_000
HOSTILE = "</td></script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"


class Page(html.parser.HTMLParser):
    """A page as its elements, each with its attributes and the text inside it."""

    EMPTY = frozenset({"meta", "link", "img", "input"})

    def __init__(self, content: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self._open: list[list[str]] = []
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        words: list[str] = []
        self.elements.append((tag, dict(attrs), words))
        if tag not in self.EMPTY:
            self._open.append(words)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))

    def handle_endtag(self, tag: str) -> None:
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for words in self._open:
            words.append(data)

    def all(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attributes, "".join(words)) for found, attributes, words in self.elements if found == tag]

    @property
    def text(self) -> str:
        return self.all("body")[0][1]

    def rows(self, label: str) -> list[list[str]]:
        """The cells of a table's rows."""
        table = next(
            place
            for place, (tag, attributes, _) in enumerate(self.elements)
            if tag == "div" and attributes.get("aria-label") == label
        )
        rows: list[list[str]] = []
        for tag, attributes, words in self.elements[table + 1 :]:
            if tag == "tr":
                rows.append([])
            elif tag in ("td", "th"):
                rows[-1].append("".join(words))
            elif attributes.get("role") == "region":
                break
        return rows


def named(name: str, unit: str = "", higher_is_better: bool = True) -> Metric:
    column = Column(name, unit, higher_is_better)
    return Metric(name, (column,), lambda rate: pytest.fail("nothing is judged here"))


SDR = named("si_sdr", "dB")


def results(
    name: str, rows: list[dict[str, Any]], *metrics: Metric, outputs: Path | None = None, slices: Any = (), **facts: Any
) -> Results:
    return results_from(name, rows, metrics or (SDR,), slices=slices, facts=facts, outputs=outputs)


def row_of(name: str, path: Path, **columns: Any) -> dict[str, Any]:
    return {"id": name, "path": str(path), "seconds": 1.0, "status": "ok", "error": None, **columns}


def tone(frequency: float, seconds: float, level: float = 0.3) -> np.ndarray:
    return level * np.sin(2 * np.pi * frequency * np.arange(round(seconds * RATE)) / RATE)


def make_results(folder: Path) -> tuple[Path, list[Item], list[dict[str, Any]], list[dict[str, Any]]]:
    """12 recordings of 0.5 to 1.6 s with references and outputs, one more that is gone, and one that failed."""
    rng = np.random.default_rng(0)
    items, rows, others = [], [], []
    for kind in ("noisy", "clean", "outputs"):
        (folder / kind).mkdir()
    for place in range(12):
        name, seconds = f"file{place}", 0.5 + place / 10
        clean = tone(200 + 100 * place, seconds)
        for kind, noise in (("noisy", 0.1), ("clean", 0.0), ("outputs", 0.02)):
            samples = clean + noise * rng.standard_normal(len(clean))
            soundfile.write(folder / kind / f"{name}.wav", samples, RATE, subtype="FLOAT")
        items.append(Item(name, folder / "noisy" / f"{name}.wav", folder / "clean" / f"{name}.wav"))
        columns = {"noise": "car" if place % 2 else "babble", "snr": float(place % 3 * 5), "talker": HOSTILE}
        row = row_of(name, items[-1].path, **columns)
        rows.append({**row, "seconds": seconds, "si_sdr": 2.0 * place, "stoi": 0.5 + place / 100})
        others.append({**rows[-1], "si_sdr": 2.0 * place - (1.5 if place else -3.0)})
    gone = Item("gone", folder / "noisy" / "gone.wav")
    rows.append(row_of("gone", gone.path, noise="car", snr=0.0, talker=None, si_sdr=-20.0, stoi=None))
    broken = folder / "noisy" / f"{HOSTILE.replace('/', '|')}.wav"
    failed = row_of(HOSTILE, broken, noise="car", snr=None, talker=None)
    rows.append({**failed, "seconds": None, "status": "error", "error": f"{broken} cannot be read"})
    return folder, [*items, gone, Item(HOSTILE, broken)], rows, others


def make_report(corpus: Any) -> Path:
    """The page of all of that, beside another system's."""
    folder, items, rows, others = corpus
    path = folder / "report" / "report.html"
    outputs, metrics = folder / "outputs", (SDR, named("stoi"))
    facts = {"models": {"dtln.onnx": "0123"}, HOSTILE: [HOSTILE]}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Player, "SECONDS", 1.0)
        write_report(
            results("first", rows, *metrics, outputs=outputs, slices=["noise", "talker"], **facts),
            path,
            baseline=results("second", others, *metrics, outputs=outputs),
            corpus=items,
            times={"times_real_time": 151.4},
            examples=2,
        )
    return path
