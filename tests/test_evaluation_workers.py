"""Evaluations by workers of Ray: what comes out is the same to the last byte, whoever computes and whoever dies."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest
from evaluation_cases import (
    ALWAYS,
    ONCE,
    Fragile,
    begin_with,
    leftovers,
    make_corpus,
)
from quick_compiling import QUICK_COMPILER

from jaxrnn.evaluation import Workers, evaluate, from_folder

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


def folder_of(out):
    """The bytes of what an evaluation has written, but for its times and the order in which units were finished."""
    names = ("results.parquet", "results.json", "run.json")
    return {
        path.relative_to(out): path.read_bytes()
        for path in out.rglob("*")
        if path.name in names or path.suffix == ".wav"
    }


def test_workers_give_the_same_bytes_though_one_dies_and_what_kills_always_is_a_row(machine, tmp_path):
    corpus = make_corpus(tmp_path, LENGTHS)
    begin_with(corpus / "noisy" / "f20.wav", ONCE)
    items = from_folder(corpus / "noisy", reference=corpus / "clean")
    options = {"batch": 4, "chunk": 0.25, "keep": True, "facts": {"system": "fragile"}}
    alone = evaluate(Fragile(None), items, ["si_sdr"], tmp_path / "alone" / "out", **options)
    both = evaluate(Fragile(tmp_path), items, ["si_sdr"], tmp_path / "both" / "out", workers=2, **options)
    assert (tmp_path / "died").exists()
    assert folder_of(tmp_path / "both" / "out") == folder_of(tmp_path / "alone" / "out")
    assert not leftovers(tmp_path / "both" / "out")

    begin_with(corpus / "noisy" / "f10.wav", ALWAYS)
    some = evaluate(
        functools.partial(Fragile, tmp_path),
        items,
        ["si_sdr"],
        tmp_path / "some",
        workers=Workers(2, tries=2),
        **options,
    )
    failed = [row["id"] for row in some.rows if row["status"] == "error"]
    assert failed == ["f08", "f09", "f10", "f11"]
    assert {row["error"] for row in some.rows} == {None, "its unit brought down 2 workers, one after the other"}
    assert [row for row in some.rows if row["id"] not in failed] == [
        row for row in alone.rows if row["id"] not in failed
    ]
    assert [row["seconds"] for row in some.rows] == [row["seconds"] for row in both.rows]
    assert ray.is_initialized(), "who has started it ends it"
