"""Evaluations by workers of Ray: what comes out is the same to the last byte, whoever computes and whoever dies."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner
from evaluation_cases import (
    CONFIG,
    ONCE,
    Fragile,
    begin_with,
    evaluation_of,
    leftovers,
    make_corpus,
    write_config,
)
from evaluation_kills import finish, start, written
from quick_compiling import QUICK_COMPILER

from jaxrnn.cli import main
from jaxrnn.errors import InputError
from jaxrnn.evaluation import Workers, compare, evaluate, from_folder

ray = pytest.importorskip("ray")

# Ray's processes replace themselves at once; what JAX warns of are forks that go on.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")

LENGTHS = [400 * number for number in range(1, 25)]


@pytest.fixture(scope="module")
def environment():
    """Workers compile as this process does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_PLATFORMS", "cpu")
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        patch.setenv("XLA_FLAGS", QUICK_COMPILER)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        yield


@pytest.fixture(scope="module")
def machine(environment):
    """A Ray of two cores on this machine, which this process has joined."""
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()


def items_of(corpus):
    return from_folder(corpus / "noisy", reference=corpus / "clean")


OPTIONS = {"batch": 4, "chunk": 0.25, "keep": True, "facts": {"system": "fragile"}}


def test_workers_give_the_same_bytes_though_one_of_them_dies(machine, tmp_path):
    corpus = make_corpus(tmp_path, LENGTHS)
    begin_with(corpus / "noisy" / "f20.wav", ONCE)
    evaluate(Fragile(None), items_of(corpus), ["si_sdr"], tmp_path / "alone" / "out", **OPTIONS)
    evaluate(Fragile(tmp_path), items_of(corpus), ["si_sdr"], tmp_path / "both" / "out", workers=2, **OPTIONS)
    assert (tmp_path / "died").exists()
    assert written(tmp_path / "both" / "out") == written(tmp_path / "alone" / "out")
    assert not leftovers(tmp_path / "both" / "out")
    assert ray.is_initialized(), "who has started it ends it"


class Failing:
    """What the workers make in place of a system."""

    def __init__(self, corpus):
        self._corpus = corpus

    def __call__(self):
        if "RAY_RAYLET_PID" in os.environ:  # in a worker
            (self._corpus / "noisy" / "f00.wav").unlink()
        return Fragile(None)


@pytest.mark.thorough
def test_what_goes_wrong_in_a_worker_is_said_as_in_this_process(machine, tmp_path):
    corpus = make_corpus(tmp_path, LENGTHS[:4])
    with pytest.raises(InputError, match=r"cannot be pickled .* give a function that makes the system"):
        evaluate(Fragile(threading.Lock()), items_of(corpus), [], tmp_path / "out", workers=1)
    with pytest.raises(InputError, match="expected a positive count"):
        Workers(0)
    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked" / "outputs").write_text("")
    with pytest.raises(InputError, match=r"f03\.wav cannot be written"):
        evaluate(Fragile(None), items_of(corpus), [], tmp_path / "blocked", workers=1, **OPTIONS)
    with pytest.raises(InputError, match=r"there is no file .*f00\.wav"):
        evaluate(Failing(corpus), items_of(corpus), [], tmp_path / "out", workers=1, **OPTIONS)


def test_one_process_writes_at_a_time(tmp_path):
    corpus = make_corpus(tmp_path, LENGTHS[:4])
    one, other = (evaluation_of(corpus, system=Fragile(None)) for _ in range(2))
    with one.journal.writing(), pytest.raises(InputError, match=r"another process runs an evaluation in .*out"):
        other.run()
    other.run()
    one.run()
    assert one.is_complete


SAME_NUMBER = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from evaluation_cases import Fragile, evaluation_of
from jaxrnn.errors import InputError
evaluation = evaluation_of(Path({corpus!r}), system=Fragile(None))
try:
    evaluation.run(watch=lambda unit, rows: time.sleep(0.5))
    print(os.getpid(), "has run")
except InputError as error:
    print(os.getpid(), error)
"""


@pytest.mark.thorough
def test_two_containers_of_one_name_with_the_same_process_numbers(tmp_path):
    """One of them is refused, and the results of the other are whole."""
    unshare = ["unshare", "--pid", "--fork", sys.executable, "-c"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, ""], check=False, capture_output=True).returncode:
        pytest.skip("processes cannot be numbered anew here")
    corpus = make_corpus(tmp_path, LENGTHS)
    script = SAME_NUMBER.format(tests=str(Path(__file__).parent), corpus=str(corpus))
    both = [subprocess.Popen([*unshare, script], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = sorted(process.communicate(timeout=120)[0].strip() for process in both)
    assert said[0].startswith("1 another process runs an evaluation in")
    assert said[1] == "1 has run"
    evaluation = evaluation_of(corpus, system=Fragile(None))
    assert evaluation.is_complete
    assert len(evaluation.rows()) == len(LENGTHS)
    assert not leftovers(corpus / "out")


def test_without_ray_the_option_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    make_corpus(tmp_path, LENGTHS[:2])
    result = CliRunner().invoke(main, ["evaluate", str(write_config(tmp_path)), "--workers", "2"])
    assert result.exit_code == 2, result.output
    assert "ray is needed for several workers: pip install 'jaxrnn[cluster]'" in result.stderr
    assert CliRunner().invoke(main, ["evaluate", str(write_config(tmp_path))]).exit_code == 0


def invoke(settings, out, *options):
    """The command in this process."""
    result = CliRunner().invoke(main, ["evaluate", str(settings), "--set", f"out={out}", *options])
    assert result.exit_code == 0, result.output


@pytest.mark.thorough
def test_the_command_gives_the_same_in_every_way(environment, tmp_path):
    """Its report, slices, and a comparison with what another way has given; then it finds all of it finished."""
    corpus = make_corpus(tmp_path, LENGTHS)
    lines = "id,path,reference,kind\n" + "".join(
        f"f{n:02d},noisy/f{n:02d}.wav,clean/f{n:02d}.wav,{'ab'[n % 2]}\n" for n in range(len(LENGTHS))
    )
    (corpus / "corpus.csv").write_text(lines)
    text = CONFIG.replace("{folder: noisy, reference: clean}", "{manifest: corpus.csv}")
    settings = write_config(corpus, f"{text.replace('[si_sdr]', '[si_sdr, level]')}slices: [kind]\n")
    invoke(settings, tmp_path / "alone" / "out")
    finish(start(settings, tmp_path / "two" / "out", "--workers", "2"))
    assert written(tmp_path / "two" / "out") == written(tmp_path / "alone" / "out")
    pages = [(tmp_path / name / "out" / "report.html").read_text() for name in ("alone", "two")]
    assert all("By kind" in page for page in pages)
    (found, _) = compare(tmp_path / "two" / "out", tmp_path / "alone" / "out").differences
    assert (found.n, found.mean) == (len(LENGTHS), 0.0)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "two" / "out" / "units").iterdir()}
    invoke(settings, tmp_path / "two" / "out", "--against", str(tmp_path / "alone" / "out"))
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "two" / "out" / "units").iterdir()} == before
    assert "paired by file" in (tmp_path / "two" / "out" / "report.html").read_text()
