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
from quick_compiling import QUICK_ENVIRONMENT
from refusals import check_refused

import jaxrnn
from benchmarks import BENCHMARKS, engines, engines_child, machine, peers, report, silence, start, tables, targets
from benchmarks.__main__ import main
from benchmarks.layers import GATES, onnx_layer, scan_layer
from benchmarks.networks import SPEECH, describe, load, random_frames
from benchmarks.plan import Plan, timed
from benchmarks.processes import ChildError
from benchmarks.results import Result, Row, read, row_of, save
from benchmarks.scale import exponent
from benchmarks.stages import covered
from benchmarks.start import COLD
from benchmarks.timing import AGREEMENT, DisagreementError, Effort, Timing
from jaxrnn.cli.output import console


def made_up(benchmark: str, rows: list[Row], processor: str = "P", **more: Any) -> Result:
    """A result of a processor with the AVX2 of its time."""
    around = {"processor": processor, "vectors": "AVX2", "jax": "9.9", "threads": 1}
    more = {"cores": "one", "quick": False, "failures": {}, **more}
    return Result(
        benchmark, "a title", "us", command="python -m benchmarks x", environment=around, absent={}, rows=rows, **more
    )


ROOT = Path(__file__).parent.parent

#: By benchmark, the smallest of its cases, and whether it needs the real networks.
SMALLEST = {
    "step": ("predictor_net", True),
    "recording": ("dtln_1, streams", True),
    "corpus": ("DTLN, 3 files", True),
    "sequence": ("RNN H64 T50 B1", False),
    "train": ("LSTM H64 T100 B8", False),
    "pulses": ("keyword_net", True),
    "export": ("keyword_net", True),
    "streams": ("dtln_1, 64 live", True),
    "start": ("dtln_1, start", True),
    "scale": ("LSTM forward, T grows", False),
    "accelerator": ("limits", False),
}


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The benchmarks' command, in a process of its own: it pins itself to a core. It compiles as the tests do."""
    command = [sys.executable, "-m", "benchmarks", *arguments]
    environment = {**os.environ, "JAXRNN_MODELS": str(MODELS), "COLUMNS": "100", **QUICK_ENVIRONMENT}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.nightly
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
        assert result["seconds"] > 0
        assert {"processor", "jax", "python", "pinned_core"} <= result["environment"].keys()
        for row in result["rows"]:
            for timing in row["timings"].values():
                assert 0 < timing["low"] <= timing["median"] <= timing["high"]
            assert row["ratios"].keys() - {"best peer"} == row["timings"].keys() - {"jaxrnn"}
            assert all(0 < ratio < math.inf for ratio in row["ratios"].values())
            for contender, stages in row["stages"].items():
                parts = sum(timing["median"] for timing in stages.values())
                assert parts == pytest.approx(row["timings"][contender]["median"])
            # Whatever was compared agrees, but for rounded weights; one contender alone is compared with none.
            assert row["difference"] is None or row["difference"] <= AGREEMENT or "bfloat16" in row["name"]
        assert read(tmp_path / f"{name}.json").plain() == result
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    page = tmp_path / "pages" / "performance.md"
    written = CliRunner().invoke(main, ["report", str(tmp_path), "--page", str(page)])
    assert written.exit_code == 0, written.output
    text = page.read_text()
    assert "{{" not in text
    links = re.findall(r"\]\((.*?\.(?:json|png))\)", text)
    found_links = sorted((page.parent / link).resolve() for link in links)
    assert found_links == sorted(file for ending in ("json", "png") for file in tmp_path.glob(f"*.{ending}"))


def test_the_accelerator_needs_no_package_of_an_extra(tmp_path):
    extras = ("click", "rich", "scipy", "polars", "pydantic", "omegaconf", "soundfile", "matplotlib", "grain")
    code = f"import runpy, sys; sys.modules.update(dict.fromkeys({extras})); sys.argv = ['x', *sys.argv[1:]]; "
    code += "runpy.run_module('benchmarks.accelerator', run_name='__main__')"
    command = [sys.executable, "-c", code, "--minutes", "0", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, "no values of the device were compared" in done.stdout) == (1, True), done.stderr
    found = read(tmp_path / "accelerator_all_cores.json")
    assert any(row.name == "packaged denoiser, values" for row in found.rows)
    assert all("not begun" in row.refused["jaxrnn"] for row in found.rows)


def test_a_pattern_that_fits_no_case_is_refused_with_the_cases(monkeypatch):
    monkeypatch.setattr(machine, "prepare", lambda cores: {})
    refused = CliRunner().invoke(main, ["train", "--quick", "--only", "GRU H65"])
    assert refused.exit_code == 2
    assert "GRU H64 T100 B8" in refused.output
    refused = CliRunner().invoke(main, ["all", "--quick", "--only", "GRU H65", "--without", "accelerator"])
    assert refused.exit_code == 2
    assert "no benchmark has a case" in refused.output
    refused = CliRunner().invoke(main, ["all", *(part for name in BENCHMARKS for part in ("--without", name))])
    assert refused.exit_code == 2


def test_a_table_shows_times_ratios_stages_and_what_was_left_out(capsys):
    samples = {"jaxrnn": [10.0, 20.0, 30.0], "tract": [40.0] * 3}
    stages = {"jaxrnn": {"load": Timing(5.0, 5.0, 5.0), "compile": Timing(15.0, 5.0, 25.0)}}
    result = made_up(
        "step",
        [row_of("net", "g", samples, refused={"LiteRT": "no file"}, stages=stages), row_of("other", "g", samples)],
    )
    result.absent["OpenVINO"] = "openvino"
    tables.show(console(), result)
    shown = capsys.readouterr().out
    assert re.search(r"net +20\.0 us \(15\.0 to 25\.0\) +40\.0 us \(40\.0 to 40\.0\) \[0\.50\] +0\.50 \(tract\)", shown)
    assert re.search(r"net, jaxrnn +5\.00 us \(5\.00 to 5\.00\) +15\.0 us \(5\.00 to 25\.0\)", shown)
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
    ("here", "other"),
    [
        ({"y": np.ones(3)}, {"y": np.full(3, 1.001)}),
        ({"y": np.ones(3)}, {"y": np.full(3, np.nan)}),
        ({"y": np.ones(3)}, {"y": np.ones((3, 1))}),
        ({"y": np.ones(3)}, {"z": np.ones(3)}),
        ({"y": np.full(3, np.nan)}, {"y": np.full(3, np.nan)}),
        ({"y": np.ones(0)}, {"y": np.ones(0)}),
        ({}, {}),
    ],
    ids=["another value", "NaN", "another shape", "another name", "NaN twice", "empty", "no output"],
)
def test_nothing_is_timed_that_is_not_the_same(here, other):
    one, another = Counted(**here), Counted(**other)
    with pytest.raises(DisagreementError, match="the other"):
        timed("x", "x", {"jaxrnn": one, "the other": another}, Effort(3, 0.001))
    assert (one.calls, another.calls) == (1, 1)


def test_a_disagreement_is_reported_and_the_rest_goes_on(monkeypatch):
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


def test_a_peer_that_breaks_down_at_its_start_is_left_out(tmp_path, monkeypatch):
    def broken(*arguments: Any, **named: Any) -> Any:
        raise ChildError("panicked")

    monkeypatch.setattr(start, "run_child", broken)
    job = {"cache": False, "platform": "cpu"}
    with pytest.raises(peers.RefusedError, match="panicked"):
        start._measure({**job, "mode": "tract"}, tmp_path)
    with pytest.raises(ChildError):
        start._measure({**job, "mode": "onnx"}, tmp_path)


def test_intervals_that_overlap_count_once():
    # One inside another, two that overlap, and what lies outside.
    intervals = [(1.0, 4.0), (2.0, 3.0), (3.5, 5.0), (-1.0, 0.5), (9.0, 12.0)]
    assert covered(intervals, 0.0, 10.0) == pytest.approx(0.5 + 4.0 + 1.0)
    assert covered([], 0.0, 1.0) == 0.0


def test_rounds_are_at_most_those_asked_for():
    assert Plan().effort(11) == Effort(11, 0.02)
    assert Plan(rounds=5).effort(11) == Effort(5, 0.02)
    assert Plan(rounds=5).effort(3) == Effort(3, 0.02)


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


@pytest.mark.thorough
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
    check_refused(ValueError, "no results", report.write, tmp_path, tmp_path / "page.md")
    for folder in ("one", "other"):
        save(made_up("step", []), tmp_path / folder)
    with pytest.raises(ValueError, match=r"one.step\.json and .*other.step\.json are both of step on P \(AVX2\)"):
        report.write(tmp_path, tmp_path / "page.md")
    (tmp_path / "other.json").write_text("[1, 2]")
    check_refused(ValueError, r"other\.json is no result", report.write, tmp_path, tmp_path / "page.md")
    assert not (tmp_path / "page.md").exists()


def test_the_page_in_the_repository_is_that_of_its_results(tmp_path):
    text, made = (ROOT / "docs" / "performance.md").read_text(), tmp_path / "page.md"
    report.write(ROOT / "benchmarks" / "results", made)
    links = re.compile(r"\]\((.*?)\)")
    assert links.sub("]", text) == links.sub("]", made.read_text())
    assert all((ROOT / "docs" / link.partition("#")[0]).is_file() for link in links.findall(text))
    assert len(text.splitlines()) <= 300


@pytest.mark.thorough
def test_the_table_of_engines(models, tmp_path):
    """A flush that tract refuses in the form for all engines; ONNX Runtime agrees, and a wrong output does not."""
    found = engines.table(["gru_no_state_script"])
    assert list(found.cells) == ["gru_no_state_script, step", "gru_no_state_script, flush"]
    for cells in found.cells.values():
        assert cells["ONNX Runtime"]["agrees"]
        assert 0 < cells["ONNX Runtime"]["error"] < 1e-6
        for engine in {engines.WEB, engines.GPU} - set(found.absent):
            assert cells[engine]["agrees"], cells[engine]
    if "tract" in found.absent:
        assert found.absent["tract"] == "pip install tract"
    else:
        assert "Non constant seq_len" in found.cells["gru_no_state_script, flush"]["tract"]["refused"]
        assert found.cells["gru_no_state_script, flush"][engines.TARGET]["agrees"]
    engines.save(found, tmp_path, tmp_path / "engines.md")
    assert engines.read(tmp_path / "engines.json") == found
    page = (tmp_path / "engines.md").read_text(encoding="utf-8")
    assert "| recurrent layers | 2 | 2 |" in page
    assert "| gru_no_state_script | 684 | 1.00 | 6 |" in page


def test_an_engine_with_other_outputs_or_without_does_not_agree():
    y, count = np.arange(6, dtype=np.float32).reshape(3, 2), np.int32(2)
    case = engines.Case("a", engines.LAYERS, {}, "flush", {}, {"y": y, "count": count}, {"y": (0, 2)}, 1, 1)

    def compared(y):
        return engines.compared(case, {"outputs": engines_child.encoded({"y": y, "count": count})})

    beyond = y + np.float32([[0], [0], [9]])  # a frame that does not exist
    assert (compared(beyond).agrees, compared(beyond).error) == (True, 0)
    assert not compared(y + 0.01).agrees
    assert compared(np.where(y == 1, np.nan, y)).error > 1
    nothing = engines.Case("a", engines.LAYERS, {}, "flush", {}, {"y": y * np.nan}, {}, 1, 1)
    assert not engines.compared(nothing, {"outputs": engines_child.encoded({"y": y * np.nan})}).agrees
    assert "has the shape [2, 2]" in str(compared(y[:2]).refused)
    assert engines.compared(case, {"refused": "no"}).refused == "no"


def test_a_process_that_dies_costs_one_file(tmp_path):
    """The first answers, the second kills its process, and the third runs in another."""
    script = tmp_path / "engine.py"
    script.write_text(
        "import os, sys, pathlib\n"
        "for number in sys.argv[2:]:\n"
        "    if number == '1':\n"
        "        os._exit(3)\n"
        "    pathlib.Path(sys.argv[1], number + '.out.json').write_text('{\"refused\": \"no\"}')\n"
    )
    case = engines.Case("a", engines.LAYERS, {None: tmp_path}, "step", {}, {}, {}, 1, 1)
    cells = engines.run_all("engine", [sys.executable, str(script)], dict.fromkeys("abc", case), tmp_path)
    assert [cells[name].refused for name in "abc"] == ["no", "the process ended with 3: without a message", "no"]


def test_the_page_of_engines_is_that_of_its_results():
    found = engines.read(ROOT / "benchmarks" / "results" / "engines.json")
    assert engines.written(found) == (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    assert len(found.files) == 60
    assert set(found.cells) == set(found.files)


@pytest.mark.nightly
def test_only_onnx_runtime_keeps_subnormal_numbers_in_silence():
    """Also in LiteRT, if its packages are installed; each engine runs in a fresh process."""
    done = CliRunner().invoke(silence.main, ["--seconds", "20", "--only", silence.FILTERS], catch_exceptions=False)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.output.splitlines()[2:]]
    counts = {engine: int(count) for _, engine, *_, count in rows}
    assert counts.keys() <= {*silence.ENGINES}
    assert counts.pop("ONNX Runtime") > 100
    assert len(counts) >= 2
    assert not any(counts.values())
