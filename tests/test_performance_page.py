"""The page of results: which targets each machine reaches, tables of all machines, and no figure that is typed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from performance_results import made_up

from benchmarks import report, targets
from benchmarks.results import Row, row_of, save
from benchmarks.start import COLD
from benchmarks.timing import Timing

ROOT = Path(__file__).parent.parent


def rows_of(ratios: tuple[float, ...], group: str = "speech", contender: str = "ONNX Runtime") -> list[Row]:
    """A row for each speech network, of these ratios."""
    return [
        row_of(name, group, {"jaxrnn": [ratio] * 3, contender: [1.0] * 3}, refused={"tract": "it | will not"})
        for name, ratio in zip(targets.SPEECH, ratios, strict=True)
    ]


def written(folder: Path) -> list[str]:
    """The lines of the page of a folder."""
    page = folder / "page.md"
    report.write(folder, page)
    return page.read_text().splitlines()


def line_of(lines: list[str], start: str) -> str:
    """The first row of a table that begins so."""
    return next(line for line in lines if line.startswith(f"| {start}"))


def test_targets_of_two_machines_stand_side_by_side(tmp_path):
    halves = (0.4, 0.8, 0.4, 0.8)
    save(made_up("step", rows_of(halves), "Intel | X"), tmp_path / "one")
    save(made_up("step", rows_of(halves), "AMD Y"), tmp_path / "other")
    slow = made_up("recording", rows_of((0.5,) * 4), "AMD Y", failures={"gtcrn": "it differs"}, quick=True)
    save(slow, tmp_path / "other")
    # Of all cores: on the page, but no target is measured by it.
    streamed = row_of("filter_net", "streamed", {"jaxrnn": [1.0], "tract": [8.0]})
    save(made_up("pulses", [streamed], "AMD Y", cores="all"), tmp_path / "other")
    lines = written(tmp_path)
    assert line_of(lines, "what").endswith("| to reach | AMD Y (AVX2) | Intel \\| X (AVX2) |")
    # What is asked depends on the processor.
    assert line_of(lines, "step, NumPy").endswith("| 0.6 (Intel), 0.5 (AMD) | 0.57: no | 0.57: yes |")
    assert line_of(lines, "recording through").endswith("| 0.25 | 0.50: no, by a quick run | not measured |")
    measured = [line for line in lines if line.count("not measured") < 2 and re.search(r": (yes|no)", line)]
    assert len(measured) == 2
    assert "- gtcrn, AMD Y (AVX2), quick run: it differs" in lines
    assert line_of(lines, "filter_net").startswith("| filter_net | AMD Y (AVX2), all cores | 1.00 | 8.00 [0.12] |")
    # One row below the other, each with its machine.
    place = lines.index(line_of(lines, "dtln_1"))
    assert [line.split(" | ")[1] for line in lines[place : place + 2]] == ["Intel \\| X (AVX2)", "AMD Y (AVX2)"]


def test_a_start_is_shown_by_its_stages_and_held_against_its_targets(tmp_path):
    seconds = {"import": 1.0, "trace": 0.9, "init": 0.2, "lower": 0.8}
    stages = {COLD: {name: Timing(*[value * 1e6] * 3) for name, value in seconds.items()}}
    row = row_of("dual_path, streamed, start", "streamed start", {COLD: [7e6] * 3}, stages=stages)
    save(made_up("start", [row]), tmp_path)
    lines = written(tmp_path)
    assert line_of(lines, "dual_path to its first streamed frame |").endswith("| 6 | 7.00: no |")
    assert line_of(lines, "dual_path, its `init`").endswith("| 0.3 | 0.20: yes |")
    assert line_of(lines, "dual_path, its tracing").endswith("| 1.5 | 1.70: no |")
    place = lines.index(line_of(lines, "dual_path | P (AVX2)"))
    assert lines[place - 2] == "|  | machine | from ONNX | import | trace | init | lower |"
    assert lines[place].endswith("| 7.00 | 1.00 | 0.9 | 0.2 | 0.8 |")


def test_some_targets_are_the_least_to_reach(tmp_path):
    def row(name: str, share: float) -> Row:
        return row_of(name, "recordings", {"jaxrnn": [1.0]}, facts={"of the peak": share, "GFLOP/s": 100.0})

    save(made_up("accelerator", [row("dtln_1, 64 recordings", 0.9), row("dtln_2, 64 recordings", 0.8)]), tmp_path)
    assert line_of(written(tmp_path), "DTLN, 64 recordings").endswith("| 0.85 or more | 0.80: no |")


def test_the_page_is_made_of_results_alone(tmp_path):
    # No figure is typed: what reads as a number in the template could not have been measured.
    assert not re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w])", report.TEMPLATE.read_text())
    with pytest.raises(ValueError, match="no results"):
        report.write(tmp_path, tmp_path / "page.md")
    for folder in ("one", "other"):
        save(made_up("step", []), tmp_path / folder)
    with pytest.raises(ValueError, match=r"one.step\.json and .*other.step\.json are both of step on P \(AVX2\)"):
        report.write(tmp_path, tmp_path / "page.md")
    (tmp_path / "other.json").write_text("[1, 2]")
    with pytest.raises(ValueError, match=r"other\.json is no result"):
        report.write(tmp_path, tmp_path / "page.md")
    assert not (tmp_path / "page.md").exists()


def test_the_page_in_the_repository_is_that_of_its_results(tmp_path):
    text, made = (ROOT / "docs" / "performance.md").read_text(), tmp_path / "page.md"
    report.write(ROOT / "benchmarks" / "results", made)
    links = re.compile(r"\]\((.*?)\)")
    assert links.sub("]", text) == links.sub("]", made.read_text())
    assert all((ROOT / "docs" / link).is_file() for link in links.findall(text))
    assert len(text.splitlines()) <= 300
