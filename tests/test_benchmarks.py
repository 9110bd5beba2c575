"""The benchmarks run, refuse to time what differs, and make their page; no time is asserted, for none is known."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import MODELS

import jaxrnn
from benchmarks import machine, peers, report, tables, targets
from benchmarks.__main__ import main
from benchmarks.layers import GATES, onnx_layer, scan_layer
from benchmarks.networks import SPEECH, describe, load, random_frames
from benchmarks.plan import Plan, timed
from benchmarks.results import Result, Row, read, row_of, save
from benchmarks.running import BENCHMARKS
from benchmarks.scale import exponent
from benchmarks.timing import AGREEMENT, DisagreementError, Effort, Timing
from jaxrnn.cli.output import console

ROOT = Path(__file__).parent.parent

#: By benchmark, the smallest of its cases, and whether it needs the real networks.
SMALLEST = {
    "step": ("predictor_net", True),
    "recording": ("dtln_1, streams", True),
    "corpus": ("DTLN, 3 files", True),
    "sequence": ("RNN H64 T50 B1", False),
    "train": ("LSTM H64 T100 B8", False),
    "pulses": ("keyword_net", True),
    "streams": ("dtln_1, 64 live", True),
    "start": ("dtln_1, start", True),
    "scale": ("LSTM forward, T grows", False),
    "accelerator": ("limits", False),
}


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The benchmarks' command, in a process of its own: it pins itself to a core."""
    command = [sys.executable, "-m", "benchmarks", *arguments]
    environment = {**os.environ, "JAXRNN_MODELS": str(MODELS), "COLUMNS": "100"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.thorough
def test_every_benchmark_gives_results_and_they_make_a_page(tmp_path):
    wanted = [name for name, (_, real) in SMALLEST.items() if MODELS.is_dir() or not real]
    patterns = [part for name in wanted for part in ("--only", SMALLEST[name][0])]
    found = json.loads(call("all", "--quick", "--json", "--out", str(tmp_path), *patterns).stdout)
    assert set(SMALLEST) == set(BENCHMARKS)
    assert set(wanted) <= found.keys()
    for name, result in found.items():
        assert result["rows"], name
        assert not result["failures"]
        assert result["quick"]
        assert {"processor", "jax", "python", "pinned_core"} <= result["surroundings"].keys()
        for row in result["rows"]:
            for timing in row["timings"].values():
                assert 0 < timing["low"] <= timing["median"] <= timing["high"]
            assert row["ratios"].keys() - {"best peer"} == row["timings"].keys() - {"jaxrnn"}
            assert all(0 < ratio < math.inf for ratio in row["ratios"].values())
            # Whatever was compared agrees, but for rounded weights; one contender alone is compared with none.
            assert row["difference"] is None or row["difference"] <= AGREEMENT or "bfloat16" in row["name"]
        assert read(tmp_path / f"{name}.json").plain() == result
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    page = tmp_path / "pages" / "performance.md"
    written = CliRunner().invoke(main, ["report", str(tmp_path), "--page", str(page)])
    assert written.exit_code == 0, written.output
    text = page.read_text()
    assert "{{" not in text
    for row in (row for result in found.values() for row in result["rows"]):
        assert f"| {row['name']} |" in text
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert len(pictures) == len(found)
    assert all((page.parent / picture).is_file() for picture in pictures)


def test_a_pattern_that_fits_no_case_is_refused_with_the_cases(monkeypatch):
    monkeypatch.setattr(machine, "prepare", lambda cores: {})
    refused = CliRunner().invoke(main, ["train", "--quick", "--only", "GRU H65"])
    assert refused.exit_code == 2
    assert "GRU H64 T100 B8" in refused.output


def test_a_table_shows_times_ratios_and_what_was_left_out(capsys):
    samples = {"jaxrnn": [10.0, 20.0, 30.0], "tract": [40.0] * 3}
    result = made_up(
        "step", [row_of("net", "g", samples, refused={"LiteRT": "no file"}), row_of("other", "g", samples)]
    )
    result.absent["OpenVINO"] = "openvino"
    tables.show(console(), result)
    shown = capsys.readouterr().out
    assert re.search(r"net +20\.0 us \(15\.0 to 25\.0\) +40\.0 us \(40\.0 to 40\.0\) \[0\.50\] +0\.50 \(tract\)", shown)
    assert "LiteRT (net): no file" in shown
    assert "pip install openvino" in shown


class Counted:
    """A contender that counts its calls."""

    def __init__(self, **outputs: Any):
        self.calls, self._outputs = 0, outputs

    def __call__(self) -> dict[str, Any]:
        self.calls += 1
        return self._outputs


@pytest.mark.parametrize(
    "other",
    [{"y": np.full(3, 1.001)}, {"y": np.full(3, np.nan)}, {"y": np.ones((3, 1))}, {"z": np.ones(3)}],
    ids=["another value", "NaN", "another shape", "another name"],
)
def test_nothing_is_timed_that_is_not_the_same(other):
    one, another = Counted(y=np.ones(3)), Counted(**other)
    with pytest.raises(DisagreementError, match="the other"):
        timed("x", "x", {"jaxrnn": one, "the other": another}, Effort(3, 0.001))
    assert (one.calls, another.calls) == (1, 1)


def test_a_disagreement_is_reported_and_the_rest_goes_on(tmp_path, monkeypatch):
    from benchmarks import running, train

    def cases(plan: Plan) -> dict[str, Any]:
        same, other = (Counted(y=np.full(2, value)) for value in (1.0, 2.0))
        effort = Effort(2, 0.0)
        return {
            "different": lambda: [timed("different", "g", {"jaxrnn": same, "peer": other}, effort)],
            "the same": lambda: [timed("the same", "g", {"jaxrnn": same, "peer": same}, effort)],
        }

    monkeypatch.setattr(train, "cases", cases)
    result = running.run("train", Plan(quick=True), "one", {})
    assert [row.name for row in result.rows] == ["the same"]
    assert "peer differs from jaxrnn by 1" in result.failures["different"]


def test_ratios_are_medians_over_rounds_and_the_best_peer_is_the_fastest():
    samples = {
        "jaxrnn": [1.0, 2.0, 30.0],
        "slow": [4.0, 4.0, 60.0],
        "quick": [2.0, 2.0, 20.0],
        "jaxrnn, other": [1.0] * 3,
    }
    row = row_of("x", "x", samples)
    assert row.ratios == {"slow": 0.5, "quick": 1.0, "jaxrnn, other": 2.0, "best peer": 1.0}
    assert row.best == "quick"
    assert row.margins["slow"] == -3.0
    assert row.timings["jaxrnn"] == Timing(2.0, 1.5, 16.0)


def test_exponents_are_those_of_powers():
    sizes = (1, 2, 4, 8, 16)
    assert exponent(sizes, [3 * size**1.5 for size in sizes]) == pytest.approx(1.5)
    # What does not grow is left aside at the small sizes.
    assert exponent(sizes, [10, 10, 16, 64, 256]) == pytest.approx(2.0)
    assert exponent(sizes, [0.0] * 5) is None


@pytest.mark.parametrize("kind", GATES)
def test_a_cell_as_body_of_scan_is_the_operator(kind):
    operator = onnx_layer(kind, 6, 5, 3)
    # The body applies the reset gate to the state, the operator's other way to the product.
    for node in operator.graph.node:
        kept = [attribute for attribute in node.attribute if attribute.name != "linear_before_reset"]
        del node.attribute[:]
        node.attribute.extend(kept)
    x = np.random.default_rng(0).standard_normal((5, 3, 6), np.float32)
    expected, found = (jaxrnn.load(proto)(X=x)["Y"] for proto in (operator, scan_layer(kind, 6, 5, 3)))
    # Sums of 12 products of numbers near 1 in float32, in two orders, through 5 steps.
    np.testing.assert_allclose(found, expected, atol=5 * 12 * 2**-23)


def test_a_peer_carries_its_state_and_begins_anew(models):
    entry = SPEECH[0]
    model = load(entry)
    opened, refused = peers.open_all(describe(entry, model), 1, ["ONNX Runtime"])
    assert not refused
    frames = [random_frames(model, entry.dims, seed=seed) for seed in range(4)]
    run = jaxrnn.Runner(model)
    expected = np.stack([run(frame)[model.spec.outputs[0].name] for frame in frames])
    for _ in range(2):
        found = peers.outputs_over(opened["ONNX Runtime"], frames)[model.spec.outputs[0].name]
        np.testing.assert_allclose(found, expected, atol=AGREEMENT)


def test_engines_that_are_missing_or_refuse_are_left_out_and_said(tmp_path, monkeypatch):
    monkeypatch.setitem(peers.ENGINES, "Nowhere", ("no_such_package_anywhere", "no-such", "nowhere"))
    assert peers.absent()["Nowhere"] == "no-such"
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    network = peers.Network(broken, {"x": np.zeros(1, np.float32)}, ("y",), ("y",))
    installed = [engine for engine in ("Nowhere", "ONNX Runtime") if peers.is_installed(engine)]
    opened, refused = peers.open_all(network, 1, ["Nowhere", "ONNX Runtime"])
    assert not opened
    assert list(refused) == installed
    assert all(refused.values())


def made_up(benchmark: str, rows: list[Row], **more: Any) -> Result:
    """A result that nobody measured."""
    around = {"processor": "P | Q", "jax": "9.9", "threads": 1}
    more = {"cores": "one", "quick": False, "failures": {}, **more}
    return Result(
        benchmark, "a title", "us", command="python -m benchmarks x", surroundings=around, absent={}, rows=rows, **more
    )


def test_the_page_says_which_targets_are_reached(tmp_path):
    def row(name: str, ratio: float) -> Row:
        return row_of(
            name, "speech", {"jaxrnn": [ratio] * 3, "ONNX Runtime": [1.0] * 3}, refused={"tract": "it | will not"}
        )

    ratios = dict(zip(targets.SPEECH, (0.2, 0.4, 0.2, 0.4), strict=True))
    save(made_up("step", [row(*pair) for pair in ratios.items()]), tmp_path)
    slow = made_up("recording", [row(name, 0.5) for name in ratios], failures={"gtcrn": "it differs"}, quick=True)
    save(slow, tmp_path)
    # Of all cores: on the page, but no target is measured by it.
    save(
        made_up("pulses", [row_of("filter_net", "streamed", {"jaxrnn": [1.0], "tract": [8.0]})], cores="all"), tmp_path
    )
    page = tmp_path / "page.md"
    report.write(tmp_path, page)
    lines = page.read_text().splitlines()
    first, second = (
        next(line for line in lines if line.startswith(f"| {what}")) for what in ("step, NumPy", "recording through")
    )
    assert first.endswith("| ONNX Runtime | 0.42 | 0.28 | yes |")
    assert second.endswith("| 0.25 | 0.50 | no: 2.00 times as much, by a quick run |")
    assert sum(line.endswith("not measured |") for line in lines) == len(targets.TARGETS) - 2
    assert any("these figures do not count" in line for line in lines)
    assert "- gtcrn: it differs" in lines
    assert any("all cores" in line and "filter_net" not in line for line in lines)
    assert any("P \\| Q" in line for line in lines)


def test_the_page_is_made_of_results_alone(tmp_path):
    # No figure is typed: what reads as a number in the template could not have been measured.
    assert not re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w])", report.TEMPLATE.read_text())
    with pytest.raises(ValueError, match="no results"):
        report.write(tmp_path, tmp_path / "page.md")
    (tmp_path / "other.json").write_text("[1, 2]")
    with pytest.raises(ValueError, match=r"other\.json is no result"):
        report.write(tmp_path, tmp_path / "page.md")
    assert not (tmp_path / "page.md").exists()
