"""Workers that compute units in other processes, on this machine or a cluster: Ray actors, each with an evaluator.

The driver takes units lazily and collects rows. Each worker has two units: the first is judged while the second is
computed. If a worker dies, the driver gives each of its units to a worker without other units. If a unit brings down
several workers, the recordings become rows with errors.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from jaxrnn._files.messages import short_repr
from jaxrnn._files.progress import note
from jaxrnn.errors import InputError, JaxrnnError, check_count, optional_package
from jaxrnn.evaluation.evaluator import Evaluator, Unit
from jaxrnn.evaluation.journal import Row, row_of
from jaxrnn.version import __version__

#: Units per worker: the first is judged while the second is computed.
AT_ONCE = 2
#: Seconds without a ready worker between two notes.
PATIENCE = 30.0


class Worker:
    """An evaluator in a separate process, called by Ray in two threads."""

    def __init__(self, cpus: float, gpus: float):
        # JAX reads both variables when it first looks for devices. Workers share a machine, and may share a GPU.
        os.environ.setdefault("NPROC", str(max(1, int(cpus))))
        if 0 < gpus < 1:
            os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{0.9 * gpus:.3f}")
        self._computing = threading.Lock()

    def prepare(self, make: bytes, version: str) -> dict[str, Any]:
        """Make the evaluator with a function that Ray has pickled, and return versions and devices."""
        from ray import cloudpickle

        if version != __version__:
            raise InputError(f"a worker has jaxrnn {__version__}, and this process {version}: install one version")
        try:
            evaluator: Evaluator = cloudpickle.loads(make)()
        except (ImportError, AttributeError) as error:
            raise InputError(
                f"a worker cannot make the system: {error} ({type(error).__name__}). Install the packages and files "
                "of this process on all nodes"
            ) from error
        self._evaluator = evaluator.__enter__()
        return dict(self._evaluator.environment)

    def rows(self, unit: Unit) -> list[Row]:
        """Return the rows of a unit. While a unit is judged, the next unit is computed."""
        with self._computing:
            future = self._evaluator.begin(unit)
        return future.result()


@dataclass(eq=False)
class _Actor:
    """The driver's record of a worker. ``units`` maps references of rows to units, and of the preparation to None."""

    handle: Any
    units: dict[Any, Unit | None] = field(default_factory=dict)
    is_ready: bool = False
    has_suspect: bool = False
    is_dead: bool = False

    @property
    def has_room(self) -> bool:
        return self.is_ready and not self.is_dead and not self.has_suspect and len(self.units) < AT_ONCE


def room_for(worker: Mapping[str, float], node: Mapping[str, float]) -> int:
    """Return the number of workers that fit a node, both described by amounts of resources.

    A worker with less than one GPU has a share of a single GPU.
    """
    counts = []
    for kind, amount in worker.items():
        if amount:
            units, unit = (int(node.get(kind, 0)), 1.0) if kind == "GPU" and amount < 1 else (1, node.get(kind, 0))
            counts.append(units * int(unit / amount + 1e-9))  # 1 // 0.2 is 4
    return min(counts, default=1)


class WorkerPool:
    """An executor of units with workers, as in `Computing`. Ray and the workers run inside the context."""

    def __init__(self, workers: Workers, make: Callable[[], Evaluator]):
        with optional_package("ray", "several workers", "cluster"):
            from ray import cloudpickle as pickle
        self._settings = workers
        try:
            self._make = pickle.dumps(make)  # pyright: ignore[reportPrivateImportUsage]
        except Exception as error:  # parts of a system raise many types
            raise InputError(
                f"this system cannot be pickled for workers ({error}): give a function that makes the system, such as "
                "lambda: Chain(...)"
            ) from error
        self._actors: list[_Actor] = []
        self._environment: dict[str, Any] | None = None
        self._failed_starts = 0
        #: Units to compute again, and the number of workers that each has brought down.
        self._suspects: deque[Unit] = deque()
        self._crashes: Counter[int] = Counter()

    def __enter__(self) -> Self:
        workers = self._settings
        with contextlib.ExitStack() as stack:
            self._ray = ray = stack.enter_context(connected(workers))
            stack.callback(self._end)
            self._call = ray.remote(Worker).options(
                num_cpus=workers.cpus, num_gpus=workers.gpus, max_concurrency=AT_ONCE, max_restarts=0
            )
            self._function = ray.put(self._make)
            self._actors = [self._start() for _ in range(self._count())]
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._exit.close()

    def _end(self) -> None:
        for actor in self._actors:
            with contextlib.suppress(Exception):
                self._ray.kill(actor.handle)
        self._actors = []

    def _count(self) -> int:
        """Return the number of workers, provided that a node has room for a worker."""
        wanted = {"CPU": self._settings.cpus, "GPU": self._settings.gpus}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        room = sum(room_for(wanted, node) for node in nodes)
        if not room:
            largest = {kind: max((node.get(kind, 0) for node in nodes), default=0) for kind in wanted}
            raise InputError(
                f"no node of the cluster has room for a worker of {wanted['CPU']:g} CPUs and {wanted['GPU']:g} GPUs; "
                f"the largest node has {largest['CPU']:g} and {largest['GPU']:g}"
            )
        return self._settings.count or room

    def _start(self) -> _Actor:
        actor = _Actor(self._call.remote(self._settings.cpus, self._settings.gpus))
        actor.units[actor.handle.prepare.remote(self._function, __version__)] = None
        return actor

    @property
    def workers(self) -> int:
        """The number of workers that are ready."""
        return sum(actor.is_ready and not actor.is_dead for actor in self._actors)

    @property
    def environment(self) -> Mapping[str, Any]:
        """Versions and devices of the first worker that is ready; all other workers must agree."""
        while self._environment is None:
            for _ in self._finished():
                raise AssertionError("no unit is computed yet")
        return self._environment

    def compute(self, units: Iterable[Unit]) -> Iterator[tuple[Unit, list[Row]]]:
        """Yield units with rows, as in `Computing`."""
        fresh = iter(units)
        while True:
            exhausted = not self._submit(fresh)
            if exhausted and not any(unit for actor in self._actors for unit in actor.units.values()):
                return
            yield from self._finished()

    def _submit(self, fresh: Iterator[Unit]) -> bool:
        """Give units to the workers with room; return True if there may be more units."""
        for actor in self._actors:
            while actor.has_room:
                if self._suspects and not actor.units:
                    unit, actor.has_suspect = self._suspects.popleft(), True
                elif (unit := next(fresh, None)) is None:
                    break
                actor.units[actor.handle.rows.remote(unit)] = unit
        return bool(self._suspects) or not any(actor.has_room for actor in self._actors)

    def _finished(self) -> Iterator[tuple[Unit, list[Row]]]:
        """Wait for workers, and yield finished units with rows."""
        pending = {reference: actor for actor in self._actors for reference in actor.units}
        for reference in self._waited(list(pending)):
            actor = pending[reference]
            unit = actor.units.pop(reference)
            try:
                result = self._ray.get(reference)
            except self._ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, JaxrnnError):
                    raise error.cause from None
                raise
            except self._ray.exceptions.RayError as error:
                yield from self._lost(actor, unit, error)
                continue
            if unit is None:
                self._ready(actor, result)
            else:
                actor.has_suspect = False
                yield unit, result

    def _waited(self, references: list[Any]) -> list[Any]:
        """Wait until a reference is done, return all references that are done, and note slow starts."""
        done, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
        began = time.monotonic()
        while not done:
            done, _ = self._ray.wait(references, num_returns=1, timeout=None if self.workers else PATIENCE)
            if not done:
                note(
                    f"no worker of {len(self._actors)} has started in {time.monotonic() - began:.0f} s; the machines "
                    "are busy, or other jobs have the CPUs and GPUs of the cluster: waiting"
                )
        return done

    def _ready(self, actor: _Actor, environment: dict[str, Any]) -> None:
        actor.is_ready, self._failed_starts = True, 0
        first = self._environment = self._environment or environment
        differing = [key for key in first if first[key] != environment.get(key)]
        if differing:
            both = "; ".join(f"{key}: {first[key]} and {environment.get(key)}" for key in differing)
            raise InputError(f"workers differ ({both}), and so would results: use nodes of one kind")

    def _lost(self, actor: _Actor, unit: Unit | None, error: Exception) -> Iterator[tuple[Unit, list[Row]]]:
        """Replace a dead worker, and schedule its unit again."""
        if unit is None:
            self._failed_starts += 1
            if getattr(error, "actor_init_failed", False):
                raise InputError(f"a worker cannot start: {str(error).strip().splitlines()[-1]}") from error
            # A lost node may take down several healthy workers.
            if self._failed_starts >= self._settings.tries * len(self._actors):
                raise InputError(
                    f"{self._failed_starts} workers in a row ended before they were ready: {error}"
                ) from error
        if not actor.is_dead:
            actor.is_dead = True
            with contextlib.suppress(Exception):
                self._ray.kill(actor.handle)
            self._actors.append(self._start())
        if not actor.units:
            self._actors.remove(actor)
        if unit is None:
            return
        self._crashes[unit.index] += 1
        # Only a unit that was alone with the worker has certainly brought the worker down.
        if actor.has_suspect and self._crashes[unit.index] >= self._settings.tries:
            reason = f"the unit of this recording brought down {self._crashes[unit.index]} workers"
            lengths = zip(unit.items, unit.lengths, strict=True)
            yield unit, [row_of(item, length / unit.rate, reason) for item, length in lengths]
        else:
            self._suspects.append(unit)


#: Seconds to wait for an answer from a cluster.
ANSWER = 10.0
#: The preface of an HTTP/2 client, which Ray speaks, and the type of a server's first frame.
HELLO, SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]), 4
#: Variables that Ray reads when it starts here; a busy machine needs a long timeout.
PATIENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_register_timeout_seconds": "600"}


@short_repr
@dataclass(frozen=True)
class Workers:
    """Processes that compute units.

    Attributes:
        count: the number of workers; None to fill the cluster as it is at the start.
        address: the address of a Ray cluster, ``"auto"`` for the cluster of this machine; None to start workers on this
            machine.
        cpus: CPUs per worker.
        gpus: GPUs per worker, or a share of a GPU.
        tries: workers that a unit may bring down before its recordings become rows with errors.
    """

    count: int | None = None
    address: str | None = None
    cpus: float = 1
    gpus: float = 0
    tries: int = 3

    def __post_init__(self) -> None:
        if self.count is None and self.address is None:
            raise InputError("give the number of workers, or the address of a Ray cluster")
        for name, number in {"count": 1 if self.count is None else self.count, "tries": self.tries}.items():
            check_count(f"workers: {name}", number)
        if min(self.cpus, self.gpus) < 0:
            raise InputError(f"workers: expected positive resources, not {self}")
        if self.gpus > 1 and self.gpus % 1:
            raise InputError(f"workers: gpus must be a whole number, or the share of one GPU, not {self.gpus:g}")


@contextlib.contextmanager
def connected(workers: Workers) -> Iterator[Any]:
    """Start or join Ray for the context; a Ray that this process has joined before stays unchanged."""
    with optional_package("ray", "several workers", "cluster"):
        import ray
    if ray.is_initialized():
        yield ray
        return
    for name, value in PATIENT.items():
        os.environ.setdefault(name, value)
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), _own_signals():
            # JAX warns of forks; Ray's forked processes call exec at once.
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            _start(ray, workers) if workers.address is None else _join(ray, workers.address, workers.tries)
        yield ray
    finally:
        ray.shutdown()


def _start(ray: Any, workers: Workers) -> None:
    # Ray schedules by declared resources, so the declaration is exactly what the workers request.
    count = workers.count or 1
    room = {"num_cpus": -(-count * workers.cpus // 1), "num_gpus": -(-count * workers.gpus // 1)}
    try:
        _tried(ray, workers.tries, Exception, address="local", include_dashboard=False, **room)
    except Exception as error:  # Ray's processes raise many types
        raise InputError(f"Ray cannot start here: {_said(error)}") from error


def _tried(ray: Any, tries: int, kind: type[Exception], **options: Any) -> None:
    """Start or join Ray, with several tries."""
    while True:
        try:
            return ray.init(**options, log_to_driver=False, logging_level="error")
        except kind:
            ray.shutdown()
            tries -= 1
            if not tries:
                raise


def _join(ray: Any, address: str, tries: int) -> None:
    where = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    hint = "start one with 'ray start --head', or give the HOST:6379 of its head or the ray://HOST:10001 of its clients"
    try:
        if "://" not in where:
            # This call also finds the cluster of this machine.
            where = ray._private.services.canonicalize_bootstrap_address(where) or where
        if "://" not in where or where.startswith("ray://"):  # plugins have other schemes
            _check_answer(where.removeprefix("ray://"))
        hint = "a cluster that asks for a token needs RAY_AUTH_MODE=token and RAY_AUTH_TOKEN in the environment"
        # With "auto", Ray finds the token. A client server may fail to start a process for this client.
        _tried(ray, tries, ConnectionAbortedError, address=address)
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        named = repr(address) if where == address else f"{address!r}, which is {where}"
        raise InputError(f"cannot join a Ray cluster at {named}: {_said(error)}; {hint}") from error


def _check_answer(address: str) -> None:
    """Check that a server answers, because Ray itself would wait for minutes and ignore signals."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError("an address is HOST:PORT or ray://HOST:PORT")
    with socket.create_connection((host.strip("[]"), int(port)), ANSWER) as line:
        if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
            return
        line.sendall(HELLO)
        with line.makefile("rb") as answer:
            kind = answer.read(4)[3:]
        if kind != bytes([SETTINGS]):
            raise ValueError("the server there is not Ray")


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Restore the handler of SIGTERM, which Ray replaces when it starts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as error:  # Ray's own handler
        raise KeyboardInterrupt from error
    finally:
        # With the default handler, Ray's own handler stays, and ends Ray in order.
        if before is not signal.SIG_DFL:
            signal.signal(signal.SIGTERM, before)


def _said(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
