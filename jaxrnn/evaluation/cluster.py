"""Workers that compute units in other processes: processes of this machine, or tasks of Ray on a cluster.

Both kinds run the function `compute_unit`, and answer with futures of `concurrent.futures`. If a worker dies, the units
in flight are computed again, separately if any of several units may have brought the worker down. If a unit brings down
several workers, the recordings become rows with errors.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Self

from jaxrnn._files.messages import short_repr
from jaxrnn._files.progress import note
from jaxrnn.errors import InputError, JaxrnnError, check_count, optional_package
from jaxrnn.evaluation.evaluator import Evaluator, Unit
from jaxrnn.evaluation.parts import Row, row_of
from jaxrnn.version import __version__

#: Units in flight for each worker, so that no worker waits for the driver.
AT_ONCE = 2
#: Seconds without a ready worker between two notes, and seconds to wait for a server of Ray.
PATIENCE, ANSWER = 30.0, 10.0


@short_repr
@dataclass(frozen=True)
class Workers:
    """Processes that compute units.

    Attributes:
        count: the number of workers; None to fill the cluster as it is at the start.
        address: the address of a Ray cluster, ``"auto"`` for the cluster of this machine; None to use processes of this
            machine, without Ray.
        cpus: CPUs per worker.
        gpus: GPUs per worker, or a share of a GPU.
        tries: workers that a unit may bring down before the recordings of the unit become rows with errors.
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


def compute_unit(make: bytes, version: str, workers: Workers, unit: Unit | None) -> tuple[dict[str, Any], list[Row]]:
    """Return the versions and devices of this worker, and the rows of a unit; without a unit, no rows."""
    evaluator, environment = _evaluator(make, version, workers)
    return environment, [] if unit is None else evaluator.rows(unit)


@functools.lru_cache(1)
def _evaluator(make: bytes, version: str, workers: Workers) -> tuple[Evaluator, dict[str, Any]]:
    import cloudpickle

    if version != __version__:
        raise InputError(f"a worker has jaxrnn {__version__}, and this process {version}: install one version")
    # JAX reads both variables when it first looks for devices. Workers share a machine, and may share a GPU.
    os.environ.setdefault("NPROC", str(max(1, int(workers.cpus))))
    if 0 < workers.gpus < 1:
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{0.9 * workers.gpus:.3f}")
    try:
        evaluator: Evaluator = cloudpickle.loads(make)()
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"a worker cannot make the system: {error} ({type(error).__name__}). Install the packages and files of "
            "this process on all nodes"
        ) from error
    return evaluator.__enter__(), dict(evaluator.environment)


class LostWorkerError(Exception):
    """A worker has died, because of a unit or of the machine."""

    def __init__(self, said: object, *, by_unit: bool = True):
        super().__init__(str(said))
        self.by_unit = by_unit


class _Processes:
    """Processes of this machine. They end with this process, however it ends."""

    shares_fate = True  # a worker that dies takes down the units of all

    def __init__(self, make: bytes, workers: Workers):
        self.count, self._make, self._workers = workers.count or 1, make, workers
        self._executor: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def _start(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        reader, self._writer = context.Pipe(duplex=False)
        arguments = reader, context.Value("i", 0), self._workers.gpus
        return ProcessPoolExecutor(self.count, context, _begin_process, arguments)

    def submit(self, unit: Unit | None) -> Future[Any]:
        for _ in range(2):  # new processes start after one has died
            if self._executor is None:
                self._executor = self._start()
            with contextlib.suppress(BrokenProcessPool), _without_interrupts():
                return self._executor.submit(compute_unit, self._make, __version__, self._workers, unit)
            self._end()
        raise LostWorkerError("workers end when they start")

    def result(self, future: Future[Any]) -> tuple[dict[str, Any], list[Row]]:
        try:
            return future.result()
        except BrokenProcessPool as error:
            raise LostWorkerError(error) from error

    def _end(self) -> None:
        if self._executor is not None:
            self._writer.close()  # all processes end at once
            self._executor.shutdown(cancel_futures=True)
        self._executor = None

    def __exit__(self, *exception: object) -> None:
        self._end()


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Let processes that start inside block Ctrl-C, which the driver receives after the context."""
    if not hasattr(signal, "pthread_sigmask"):  # such as on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_process(alive: Any, number: Any, gpus: float) -> None:
    """Begin a worker of this machine: leave interrupts to the driver, end with the driver, and choose GPUs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(alive,), daemon=True).start()
    with number.get_lock():
        place, number.value = number.value, number.value + 1
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus_of(place, gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))


def gpus_of(place: int, gpus: float, visible: str | None) -> str:
    """Return the GPUs of a worker of this machine, among the visible GPUs: several GPUs, or a GPU that workers share.

    A worker without a GPU computes on CPUs, and then differs from the first worker, which ends the run.
    """
    first, count = (place * int(gpus), int(gpus)) if gpus >= 1 else (place // int(1 / gpus + 1e-9), 1)
    chosen = range(first, first + count)
    return ",".join(map(str, chosen) if visible is None else visible.split(",")[first : first + count])


def _end_with(alive: Any) -> None:
    with contextlib.suppress(EOFError, OSError):
        alive.recv()  # the driver writes nothing, and closes the pipe when it ends
    os._exit(1)


class _RayTasks:
    """Tasks of Ray on a cluster, as `_Processes`; a Ray that this process has joined before stays unchanged."""

    shares_fate = False

    def __init__(self, make: bytes, workers: Workers):
        with optional_package("ray", "workers on a cluster", "cluster"):
            import ray
        self._ray, self._make, self._workers = ray, make, workers

    def __enter__(self) -> Self:
        ray, workers = self._ray, self._workers
        with contextlib.ExitStack() as stack:
            if not ray.is_initialized():
                stack.callback(ray.shutdown)
                join(ray, workers.address or "auto")
            wanted = {"CPU": workers.cpus, "GPU": workers.gpus}
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            room = sum(room_for(wanted, node) for node in nodes)
            if not room:
                largest = {kind: max((node.get(kind, 0) for node in nodes), default=0) for kind in wanted}
                raise InputError(
                    f"no node of the cluster has room for a worker of {wanted['CPU']:g} CPUs and {wanted['GPU']:g} "
                    f"GPUs; the largest node has {largest['CPU']:g} and {largest['GPU']:g}"
                )
            self.count = workers.count or room
            options = {"num_cpus": workers.cpus, "num_gpus": workers.gpus, "max_retries": 0}
            self._call = ray.remote(**options)(compute_unit)
            self._stored = ray.put(self._make)
            self._exit = stack.pop_all()
        return self

    def submit(self, unit: Unit | None) -> Future[Any]:
        return self._call.remote(self._stored, __version__, self._workers, unit).future()

    def result(self, future: Future[Any]) -> tuple[dict[str, Any], list[Row]]:
        try:
            return future.result()
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, JaxrnnError) else error from None
        except self._ray.exceptions.RayError as error:
            raise LostWorkerError(error, by_unit=not isinstance(error, self._ray.exceptions.NodeDiedError)) from error

    def __exit__(self, *exception: object) -> None:
        self._exit.close()


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


def join(ray: Any, address: str) -> None:
    """Join a Ray cluster."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    logging.getLogger("ray").setLevel(logging.ERROR)
    where = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    hint = "start one with 'ray start --head', or give the HOST:6379 of its head or the ray://HOST:10001 of its clients"
    try:
        if where != "auto" and ("://" not in where or where.startswith("ray://")):  # plugins have other schemes
            # Without a server, Ray would wait for minutes and ignore signals.
            host, _, port = where.removeprefix("ray://").rpartition(":")
            if not host or not port.isdecimal():
                raise ValueError("an address is HOST:PORT or ray://HOST:PORT")
            socket.create_connection((host.strip("[]"), int(port)), ANSWER).close()
        hint = f"{hint}; a cluster that asks for a token needs RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        named = repr(address) if where == address else f"{address!r}, which is {where}"
        said = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise InputError(f"cannot join a Ray cluster at {named}: {said}; {hint}") from error


class WorkerPool:
    """An executor of units with workers: a context with the attributes and the method of an `Evaluator`."""

    def __init__(self, workers: Workers, make: Callable[[], Evaluator]):
        with optional_package("cloudpickle", "several workers", "evaluate"):
            import cloudpickle
        try:
            pickled = cloudpickle.dumps(make)
        except Exception as error:  # parts of a system raise many types
            raise InputError(
                f"this system cannot be pickled for workers ({error}): give a function that makes the system, such as "
                "lambda: Waveform(...)"
            ) from error
        self._workers = workers
        self._backend = (_Processes if workers.address is None else _RayTasks)(pickled, workers)
        self.environment: dict[str, Any] = {}
        self.workers = 0

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._backend)
            self.environment = self._prepared()
            self.workers = self._backend.count
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._exit.close()

    def _prepared(self) -> dict[str, Any]:
        """Start a worker, and return the versions and devices of the worker."""
        began, tries = time.monotonic(), self._workers.tries
        while True:
            try:
                future = self._backend.submit(None)
                while not wait([future], PATIENCE).done:
                    note(
                        f"no worker of {self._backend.count} has started in {time.monotonic() - began:.0f} s; the "
                        "machines are busy, or other jobs have the CPUs and GPUs of the cluster: waiting"
                    )
                return self._backend.result(future)[0]
            except LostWorkerError as error:
                tries -= 1
                if not tries:
                    said = str(error).rstrip(".")
                    raise InputError(
                        f"{self._workers.tries} workers in a row ended before they were ready: {said}. A script that "
                        "evaluates with workers needs the line if __name__ == '__main__': above the call"
                    ) from error

    def compute(self, units: Iterable[Unit]) -> Iterator[tuple[Unit, list[Row]]]:
        """Yield units with rows, in the order of completion; units are taken lazily."""
        fresh, suspects = iter(units), deque[Unit]()
        crashes, pending = Counter[int](), dict[Future[Any], Unit]()
        shares_fate = self._backend.shares_fate
        while True:
            room = AT_ONCE * self.workers - len(pending)
            if shares_fate and suspects:
                room = 0 if pending else 1
            for _ in range(room):
                if (unit := suspects.popleft() if suspects else next(fresh, None)) is None:
                    break
                pending[self._backend.submit(unit)] = unit
            if not pending:
                return
            is_alone = not shares_fate or len(pending) == 1
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                unit = pending.pop(future)
                try:
                    environment, rows = self._backend.result(future)
                except LostWorkerError as error:
                    crashes[unit.index] += is_alone and error.by_unit
                    if crashes[unit.index] < self._workers.tries:
                        suspects.append(unit)
                        continue
                    reason = f"the unit of this recording brought down {crashes[unit.index]} workers"
                    listed = zip(unit.items, unit.lengths, strict=True)
                    rows = [row_of(item, length / unit.rate, reason) for item, length in listed]
                else:
                    pairs = {key: (value, environment.get(key)) for key, value in self.environment.items()}
                    if differing := [f"{key}: {a} and {b}" for key, (a, b) in pairs.items() if a != b]:
                        raise InputError(
                            f"workers differ ({'; '.join(differing)}), and so would results: use nodes of one kind"
                        )
                yield unit, rows
