"""The pool of workers on a Ray that is not there: what starts, dies and fails, and clusters that nobody answers for."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import signal
import socket
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from refusals import check_refused

from jaxrnn.errors import InputError
from jaxrnn.evaluation import Item, Workers, cluster
from jaxrnn.evaluation.cluster import Worker, WorkerPool, room_for
from jaxrnn.evaluation.evaluator import Unit
from jaxrnn.version import __version__


class RayError(Exception):
    def __init__(self, said, actor_init_failed=False):
        super().__init__(said)
        self.actor_init_failed = actor_init_failed


class RayTaskError(RayError):
    def __init__(self, cause):
        super().__init__(f"Traceback of a worker: {cause}")
        self.cause = cause


class Reference:
    def __init__(self, outcome):
        self.outcome = outcome


SLOW, DIES = {"jax": "slow"}, RayError("the process is dead")


class FakeRay(types.ModuleType):
    """Ray with room for two workers.

    Args:
        starts: what comes of each worker in turn: an error, or what its results depend on.
        rows: what comes of a unit: an error or its rows.
    """

    exceptions = types.SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)
    cloudpickle = pickle
    init: Any
    shutdown: Any

    def __init__(self, starts, rows=lambda unit: [unit.index]):
        super().__init__("ray")
        self._starts, self._rows = iter(starts), rows
        self.started, self.killed, self._waits = 0, 0, 3
        self.initialized = True
        self._private = types.SimpleNamespace(services=types.SimpleNamespace())

    def is_initialized(self):
        return self.initialized

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": 2.0}}, {"Alive": False, "Resources": {"CPU": 8.0}}]

    def put(self, value):
        return value

    def remote(self, kind):
        assert kind is Worker
        return types.SimpleNamespace(options=lambda **options: types.SimpleNamespace(remote=self._start))

    def _start(self, cpus, gpus):
        self.started += 1
        start = next(self._starts)
        calls = {"prepare": lambda make, version: start, "rows": self._rows}
        return types.SimpleNamespace(
            **{
                name: types.SimpleNamespace(remote=lambda *of, call=call: Reference(call(*of)))
                for name, call in calls.items()
            }
        )

    def kill(self, handle):
        self.killed += 1

    def wait(self, references, num_returns, timeout):
        done = [each for each in references if each.outcome is not SLOW or self._waits == 0]
        self._waits -= not done
        return done[:num_returns], None

    def get(self, reference):
        if isinstance(reference.outcome, Exception):
            raise reference.outcome
        return reference.outcome


ALIKE = {"jax": "1"}


def make() -> Any:
    raise AssertionError("no worker is there")


@pytest.fixture
def pool(monkeypatch):
    """A pool of two workers on a Ray that is not there."""

    def made(starts, rows=None, **settings):
        ray = FakeRay(starts) if rows is None else FakeRay(starts, rows)
        monkeypatch.setitem(sys.modules, "ray", ray)
        return WorkerPool(Workers(2, **settings), make), ray

    return made


def units(count):
    return [Unit(index, (Item(f"f{index}", Path("f")),), (16_000,), 16_000, 1) for index in range(count)]


def test_every_unit_comes_back_whichever_starts_and_workers_fail(pool):
    """A start that fails is tried again, and so is a unit whose worker dies, once the others are through."""
    crashes = iter([DIES, DIES])
    computed, ray = pool(
        itertools.chain([DIES, ALIKE, DIES], itertools.repeat(ALIKE)),
        lambda unit: next(crashes, [unit.index]) if unit.index == 3 else [unit.index],
    )
    with computed:
        assert computed.environment == ALIKE
        found = list(computed.compute(units(9)))
    assert sorted(unit.index for unit, _ in found) == list(range(9))
    assert all(rows == [unit.index] for unit, rows in found)
    assert ray.started == 6
    assert ray.killed == ray.started


def test_a_unit_that_brings_down_every_worker_is_rows_with_errors(pool):
    computed, _ = pool(itertools.repeat(ALIKE), lambda unit: DIES if unit.index == 3 else [unit.index], tries=3)
    with computed:
        found = {unit.index: rows for unit, rows in computed.compute(units(9))}
    (row,) = found.pop(3)
    assert (row["id"], row["seconds"], row["status"]) == ("f3", 1.0, "error")
    assert row["error"].startswith("the unit of this recording brought down ")
    assert found == {index: [index] for index in range(9) if index != 3}


def test_starts_that_fail_end_a_run_after_as_many_as_are_allowed(pool):
    """As many as all workers may try; what fails for every worker alike ends it at the first."""
    computed, ray = pool(itertools.repeat(DIES), tries=3)
    with computed, pytest.raises(InputError, match="6 workers in a row ended before they were ready: the process is"):
        assert computed.environment
    assert ray.started == 7
    said = "The actor died in its creation task\n  File x.py\nModuleNotFoundError: No module named 'jaxrnn'"
    computed, ray = pool(itertools.repeat(RayError(said, actor_init_failed=True)))
    with computed, pytest.raises(InputError, match=r"^a worker cannot start: ModuleNotFoundError: No module named"):
        assert computed.environment
    computed, ray = pool(itertools.repeat(RayTaskError(InputError("a bad system"))))
    with computed, pytest.raises(InputError, match=r"^a bad system$"):
        assert computed.environment
    computed, ray = pool(itertools.repeat(RayTaskError(KeyError("of one's own"))))
    with computed, pytest.raises(RayTaskError, match="of one's own"):
        assert computed.environment
    assert ray.started == 2


def test_a_slow_start_is_waited_for_and_said(pool, capsys):
    computed, ray = pool(itertools.repeat(SLOW))
    with computed:
        assert computed.environment == SLOW
    assert ray.started == 2
    assert "no worker of 2 has started in 0 s" in capsys.readouterr().err


def test_workers_that_differ_end_the_run(pool):
    computed, _ = pool([ALIKE, {"jax": "2"}])
    with computed, pytest.raises(InputError, match=r"workers differ \(jax: 1 and 2\)"):
        list(computed.compute(units(3)))
    computed, _ = pool([ALIKE, ALIKE], cpus=4)
    with pytest.raises(InputError, match="no node of the cluster has room for a worker of 4 CPUs and 0 GPUs"), computed:
        pass


def test_shares_of_resources_are_counted_exactly():
    node = {"CPU": 8.0, "GPU": 2.0}
    for gpus, count in ((0.2, 10), (0.1, 20), (0.4, 4), (1, 2), (0, 8), (3, 0)):
        assert room_for({"CPU": 0.1 if gpus else 1, "GPU": gpus}, node) == count
    assert room_for({"CPU": 0, "GPU": 0}, node) == 1
    with pytest.raises(InputError, match=r"gpus must be a whole number, or the share of one GPU, not 1\.5"):
        Workers(1, gpus=1.5)


def test_a_worker_of_another_version_or_without_a_package_says_so(pool):
    pool([])
    words = rf"a worker has jaxrnn {__version__}, and this process 0.0: install one version"
    check_refused(InputError, words, Worker(1, 0).prepare, b"", "0.0")
    named, words = b"cnot_installed_here\nmake\n.", r"No module named 'not_installed_here' .* Install the packages"
    check_refused(InputError, words, Worker(1, 0).prepare, named, __version__)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:{free}", "Connection refused"),
        ("ray://127.0.0.1:{free}", "Connection refused"),
        ("127.0.0.1:{deaf}", "timed out"),
        ("ray://127.0.0.1:{deaf}", "timed out"),
        ("127.0.0.1", "an address is HOST:PORT or ray://HOST:PORT"),
        ("auto", "Connection refused"),
    ],
)
def test_an_address_that_nobody_answers_is_said_at_once(monkeypatch, address, said):
    """Before Ray tries, which would take minutes."""
    ray = FakeRay([])
    ray.initialized, ray.shutdown = False, lambda: None
    monkeypatch.setattr(cluster, "ANSWER", 0.1)
    monkeypatch.setattr(cluster, "PATIENT", {})
    monkeypatch.setitem(sys.modules, "ray", ray)
    with socket.create_server(("127.0.0.1", 0)) as free, socket.create_server(("127.0.0.1", 0)) as deaf:
        ports = {"free": free.getsockname()[1], "deaf": deaf.getsockname()[1]}
        free.close()
        found = "127.0.0.1:{free}".format(**ports)
        services = types.SimpleNamespace(
            canonicalize_bootstrap_address=lambda given: found if given == "auto" else given
        )
        ray._private = types.SimpleNamespace(services=services)
        address = address.format(**ports)
        message = f"^cannot join a Ray cluster at '{address}'.*{said}.*ray start --head"
        with pytest.raises(InputError, match=message), cluster.connected(Workers(None, address)):
            pass


def test_a_cluster_that_answers_is_joined_and_what_it_says_is_said(monkeypatch):
    ray, shut = FakeRay([]), []
    ray.initialized, ray.shutdown = False, lambda: shut.append(True)

    def init(address, **options):
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.1\n")

    ray.init = init
    monkeypatch.setattr(cluster, "_check_answer", lambda address: None)
    monkeypatch.setitem(sys.modules, "ray", ray)
    message = r"Version mismatch: The cluster was started with: Ray: 2\.1; a cluster that asks"
    with pytest.raises(InputError, match=message), cluster.connected(Workers(None, "ray://head:10001")):
        pass
    assert shut


@pytest.mark.parametrize(("hello", "is_ray"), [(bytes([0, 0, 0, 4, 0]), True), (b"HTTP/1.1 400", False), (b"", False)])
def test_what_answers_says_whether_it_is_ray(hello, is_ray):
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as threads:

        def answer():
            line, _ = server.accept()
            with line:
                line.recv(len(cluster.HELLO))
                line.sendall(hello)

        answered = threads.submit(answer)
        with contextlib.nullcontext() if is_ray else pytest.raises(ValueError, match="the server there is not Ray"):
            cluster._check_answer(f"127.0.0.1:{server.getsockname()[1]}")
        answered.result()


def test_a_ray_that_does_not_come_up_is_started_again(monkeypatch):
    """And a signal while it starts is the user's."""
    ray = FakeRay([])
    ray.initialized, ray.shutdown = False, lambda: None
    monkeypatch.setattr(cluster, "PATIENT", {})
    monkeypatch.setitem(sys.modules, "ray", ray)
    outcomes = iter([Exception("it timed out"), Exception("again"), None, *[Exception("The node timed out")] * 3])

    def init(**options):
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
        if (outcome := next(outcomes)) is not None:
            raise outcome

    ray.init = init
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with cluster.connected(Workers(1)) as joined:
            assert joined is ray
        with (
            pytest.raises(InputError, match="Ray cannot start here: The node timed out"),
            cluster.connected(Workers(1)),
        ):
            pass
        ray.init = lambda **options: sys.exit(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt), cluster.connected(Workers(1)):
            pass
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)
