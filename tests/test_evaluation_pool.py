"""The pool of workers, whose workers start, die and fail; and clusters that nobody answers for."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import types
from concurrent.futures import Future
from pathlib import Path

import pytest
from refusals import check_refused

from jaxrnn.errors import InputError
from jaxrnn.evaluation import Item, Workers, cluster
from jaxrnn.evaluation.cluster import LostWorkerError, WorkerPool, compute_unit, gpus_of, join, room_for
from jaxrnn.evaluation.evaluator import Unit
from jaxrnn.version import __version__

ALIKE = {"jax": "1"}


class FakeWorkers:
    """Two workers that answer when asked for.

    Args:
        starts: what comes of each preparation in turn: an error, or what results depend on.
        rows: a function of a unit that returns rows, or an error.
    """

    count, shares_fate = 2, False

    def __init__(self, starts, rows):
        self._starts, self._rows = iter(starts), rows

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def submit(self, unit):
        future = Future()
        future.set_result((next(self._starts), []) if unit is None else self._rows(unit))
        return future

    def result(self, future):
        found = future.result()
        for error in found if isinstance(found, tuple) else [found]:
            if isinstance(error, Exception):
                raise error
        return found if isinstance(found, tuple) else (ALIKE, found)


@pytest.fixture
def pool():
    """A pool of two workers that are not there."""

    def made(starts, rows=lambda unit: [unit.index], **settings):
        computed = WorkerPool(Workers(2, **settings), dict)
        computed._backend = FakeWorkers(starts, rows)  # pyright: ignore[reportAttributeAccessIssue]
        return computed

    return made


def units(count):
    return [Unit(index, (index,), (Item(f"f{index}", Path("f")),), (16_000,), 16_000, 1) for index in range(count)]


@pytest.mark.parametrize("by_unit", [True, False])
def test_every_unit_comes_back_whichever_workers_fail(pool, by_unit):
    """A start that fails is tried again, and so is a unit whose worker dies; of a lost node, any number of times."""
    crashes = iter([LostWorkerError("dead", by_unit=by_unit)] * (2 if by_unit else 9))
    lost = LostWorkerError("dead")
    with pool([lost, ALIKE], lambda unit: next(crashes, [unit.index]) if unit.index == 3 else [unit.index]) as computed:
        assert (computed.environment, computed.workers) == (ALIKE, 2)
        found = list(computed.compute(units(9)))
    assert sorted(unit.index for unit, _ in found) == list(range(9))
    assert all(rows == [unit.index] for unit, rows in found)


def test_a_unit_that_brings_down_every_worker_is_rows_with_errors(pool):
    dies = LostWorkerError("dead")
    with pool([ALIKE], lambda unit: dies if unit.index == 3 else [unit.index], tries=3) as computed:
        found = {unit.index: rows for unit, rows in computed.compute(units(9))}
    (row,) = found.pop(3)
    assert (row["id"], row["seconds"], row["status"]) == ("f3", 1.0, "error")
    assert row["error"] == "the unit of this recording brought down 3 workers"
    assert found == {index: [index] for index in range(9) if index != 3}


class Dying:
    """An evaluator that dies of unit 3."""

    environment = ALIKE

    def __enter__(self):
        return self

    def rows(self, unit):
        if unit.index == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return [unit.index, os.getpid()]


@pytest.mark.thorough
def test_units_beside_one_that_brings_down_processes_are_computed(monkeypatch):
    """All units in flight fail with a process; only the one at fault is rows with errors."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    with WorkerPool(Workers(2, tries=2), Dying) as computed:
        found = {unit.index: rows for unit, rows in computed.compute(units(6))}
    (row,) = found.pop(3)
    assert row["error"] == "the unit of this recording brought down 2 workers"
    assert {index: rows[0] for index, rows in found.items()} == {index: index for index in range(6) if index != 3}
    for pid in {rows[1] for rows in found.values()}:
        assert not Path(f"/proc/{pid}").exists()


def test_starts_that_fail_end_a_run_after_as_many_as_are_allowed(pool):
    with (
        pytest.raises(InputError, match="3 workers in a row ended before they were ready: dead"),
        pool(itertools.repeat(LostWorkerError("dead")), tries=3),
    ):
        pass
    with pytest.raises(InputError, match=r"^a bad system$"), pool([InputError("a bad system")]):
        pass


def test_workers_that_differ_end_the_run(pool):
    with pool([ALIKE], lambda unit: ({"jax": "2"}, [])) as computed:
        check_refused(InputError, r"workers differ \(jax: 1 and 2\)", list, computed.compute(units(1)))


def test_a_slow_start_is_waited_for_and_said(monkeypatch, capsys):
    monkeypatch.setattr(cluster, "PATIENCE", 0.01)
    computed, future, waited = WorkerPool(Workers(2), dict), Future(), []
    backend = types.SimpleNamespace(count=2, submit=lambda unit: future, result=lambda future: (future.result(), []))
    computed._backend = backend  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setattr(cluster, "note", lambda text: (waited.append(text), future.set_result(ALIKE)))
    assert computed._prepared() == ALIKE
    assert waited[0].startswith("no worker of 2 has started in 0 s")


def test_shares_of_resources_are_counted_exactly(monkeypatch):
    node = {"CPU": 8.0, "GPU": 2.0}
    for gpus, count in ((0.2, 10), (0.1, 20), (0.4, 4), (1, 2), (0, 8), (3, 0)):
        assert room_for({"CPU": 0.1 if gpus else 1, "GPU": gpus}, node) == count
    assert room_for({"CPU": 0, "GPU": 0}, node) == 1
    with pytest.raises(InputError, match=r"gpus must be a whole number, or the share of one GPU, not 1\.5"):
        Workers(1, gpus=1.5)
    check_refused(InputError, "count must be a whole number from 1 on, not 0", Workers, 0)


@pytest.mark.parametrize(
    ("gpus", "visible", "expected"),
    [
        (1, None, ["0", "1", "2"]),
        (2, None, ["0,1", "2,3", "4,5"]),
        (0.5, None, ["0", "0", "1"]),
        (0.2, "7", ["7"] * 5 + [""]),
        (1, "3,5", ["3", "5", ""]),
    ],
)
def test_workers_of_one_machine_share_its_gpus(gpus, visible, expected):
    assert [gpus_of(place, gpus, visible) for place in range(len(expected))] == expected


def test_a_worker_of_another_version_or_without_a_package_says_so():
    words = rf"a worker has jaxrnn {__version__}, and this process 0.0: install one version"
    check_refused(InputError, words, compute_unit, b"", "0.0", Workers(1), None)
    named, words = b"cnot_installed_here\nmake\n.", r"No module named 'not_installed_here' .* Install the packages"
    check_refused(InputError, words, compute_unit, named, __version__, Workers(1), None)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:{free}", "Connection refused"),
        ("ray://127.0.0.1:{free}", "Connection refused"),
        ("127.0.0.1", "an address is HOST:PORT or ray://HOST:PORT"),
        ("auto", "Connection refused"),
    ],
)
def test_an_address_that_nobody_answers_is_said_at_once(monkeypatch, address, said):
    """Before Ray tries, which would take minutes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    address = address.format(free=port)
    check_refused(
        InputError, f"^cannot join a Ray cluster at '{address}'.*{said}.*ray start --head", join, None, address
    )


def test_what_a_cluster_says_is_said(monkeypatch):
    def init(address, **options):
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.1\n")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    message = r"Version mismatch: The cluster was started with: Ray: 2\.1; start one .*; a cluster that asks"
    check_refused(InputError, message, join, types.SimpleNamespace(init=init), "auto")
