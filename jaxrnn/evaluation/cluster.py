"""Units computed by other processes, on this machine or a cluster: actors of Ray, each with an evaluator of its own.

This process takes units lazily, two for each worker (one is computed while the other is judged), and returns their
rows. A unit whose worker dies is computed again, alone; if that happens again and again, its recordings are rows with
errors.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from jaxrnn.briefs import brief
from jaxrnn.errors import InputError, JaxrnnError, optional_package
from jaxrnn.evaluation.evaluator import Evaluator
from jaxrnn.evaluation.journal import Row, row_of
from jaxrnn.evaluation.units import Unit

#: Units that a worker has at once: one is computed, one judged.
AT_ONCE = 2


@brief
@dataclass(frozen=True)
class Workers:
    """Processes that compute units.

    Attributes:
        count: their number; None for as many as the cluster has room for when the run begins.
        address: of a Ray cluster, ``"auto"`` for that of this machine; None for workers on this machine alone.
        cpus: CPUs of each.
        gpus: GPUs of each, or the share of one.
        tries: workers that a unit may bring down before its recordings are rows with errors.
    """

    count: int | None = None
    address: str | None = None
    cpus: float = 1
    gpus: float = 0
    tries: int = 3

    def __post_init__(self) -> None:
        if self.count is None and self.address is None:
            raise InputError("give the number of workers, or the address of a Ray cluster")
        if not (self.count is None or self.count > 0) or min(self.cpus, self.gpus) < 0 or self.tries < 1:
            raise InputError(f"workers: expected a positive count, resources and tries, not {self}")


class Worker:
    """An evaluator in a process of its own, which Ray calls in two threads."""

    def __init__(self, cpus: float, gpus: float):
        # Both are read when JAX first looks for devices. Workers share a machine, and may share a GPU.
        os.environ.setdefault("NPROC", str(max(1, int(cpus))))
        if 0 < gpus < 1:
            os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{0.9 * gpus:.3f}")
        self._computing = threading.Lock()

    def prepare(self, make: bytes) -> dict[str, Any]:
        """Make the evaluator, by a function that Ray has pickled; what its results depend on."""
        from ray import cloudpickle

        self._evaluator: Evaluator = cloudpickle.loads(make)().__enter__()
        return dict(self._evaluator.surroundings)

    def rows(self, unit: Unit) -> list[Row]:
        """The rows of a unit. While one is judged, the next is computed."""
        with self._computing:
            future = self._evaluator.begin(unit)
        return future.result()


@dataclass(eq=False)
class _Actor:
    """A worker as this process sees it: its units by the references of their rows, None for its preparation."""

    handle: Any
    units: dict[Any, Unit | None] = field(default_factory=dict)
    is_ready: bool = False
    has_suspect: bool = False
    is_dead: bool = False

    @property
    def has_room(self) -> bool:
        return self.is_ready and not self.is_dead and not self.has_suspect and len(self.units) < AT_ONCE


class WorkerPool:
    """Computes units by workers, as `Computing` has it. Ray runs inside of the context, and the workers with it.

    Args:
        workers: how many, where, and with what.
        make: makes the evaluator of each, in its process.

    Raises:
        MissingPackageError: Ray is not installed.
        InputError: the function cannot be pickled.
    """

    def __init__(self, workers: Workers, make: Callable[[], Evaluator]):
        with optional_package("ray", "several workers", "cluster"):
            import ray
            from ray import cloudpickle as pickle
        self._ray, self._settings = ray, workers
        try:
            self._make = pickle.dumps(make)  # pyright: ignore[reportPrivateImportUsage]
        except Exception as error:  # whatever the parts of a system raise
            raise InputError(
                f"workers cannot be given this system, as it cannot be pickled ({error}): give a function that makes "
                "it, such as lambda: Chain(...)"
            ) from error
        self._actors: list[_Actor] = []
        self._surroundings: dict[str, Any] | None = None
        self._failed_starts = 0
        #: Units to compute again, and how many workers each has brought down.
        self._suspects: deque[Unit] = deque()
        self._crashes: Counter[int] = Counter()

    def __enter__(self) -> Self:
        workers, ray = self._settings, self._ray
        self._is_own = not ray.is_initialized()
        if self._is_own:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            options: dict[str, Any] = {"address": workers.address}
            if workers.address is None:
                # Its resources are what the workers ask for: they are told how many CPUs they have, not bound to them.
                count = workers.count or 1
                options = {"address": "local", "include_dashboard": False}
                options |= {"num_cpus": -(-count * workers.cpus // 1), "num_gpus": -(-count * workers.gpus // 1)}
            with _connecting(workers.address), warnings.catch_warnings():
                # Ray's processes replace themselves at once; what JAX warns of are forks that go on.
                warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
                logging.getLogger("ray").setLevel(logging.ERROR)
                ray.init(**options, log_to_driver=False, logging_level="error")
        try:
            self._call = ray.remote(Worker).options(
                num_cpus=workers.cpus, num_gpus=workers.gpus, max_concurrency=AT_ONCE, max_restarts=0
            )
            self._function = ray.put(self._make)
            self._actors = [self._start() for _ in range(self._count())]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for actor in self._actors:
            with contextlib.suppress(Exception):
                self._ray.kill(actor.handle)
        self._actors = []
        if self._is_own:
            self._ray.shutdown()

    def _count(self) -> int:
        """The number of workers; at least one must fit a node."""
        wanted = {"CPU": self._settings.cpus, "GPU": self._settings.gpus}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        room = sum(
            int(min((node.get(kind, 0) // amount for kind, amount in wanted.items() if amount), default=1))
            for node in nodes
        )
        if not room:
            largest = {kind: max((node.get(kind, 0) for node in nodes), default=0) for kind in wanted}
            raise InputError(
                f"no node of the cluster has room for a worker of {wanted['CPU']:g} CPUs and {wanted['GPU']:g} GPUs; "
                f"the most that one has are {largest['CPU']:g} and {largest['GPU']:g}"
            )
        return self._settings.count or room

    def _start(self) -> _Actor:
        actor = _Actor(self._call.remote(self._settings.cpus, self._settings.gpus))
        actor.units[actor.handle.prepare.remote(self._function)] = None
        return actor

    @property
    def workers(self) -> int:
        """The number of workers that are ready."""
        return sum(actor.is_ready and not actor.is_dead for actor in self._actors)

    @property
    def surroundings(self) -> Mapping[str, Any]:
        """What the workers' results depend on, as the first that is ready says; all others must agree."""
        while self._surroundings is None:
            for _ in self._finished():
                raise AssertionError("no unit is computed yet")
        return self._surroundings

    def compute(self, units: Iterable[Unit]) -> Iterator[tuple[Unit, list[Row]]]:
        """As `Computing` has it.

        Raises:
            JaxrnnError: what a worker has raised.
            InputError: workers end again and again while they prepare, or differ in version or device.
        """
        fresh = iter(units)
        while True:
            exhausted = not self._submit(fresh)
            if exhausted and not any(unit for actor in self._actors for unit in actor.units.values()):
                return
            yield from self._finished()

    def _submit(self, fresh: Iterator[Unit]) -> bool:
        """Give units to the workers that have room; whether there may be more."""
        for actor in self._actors:
            while actor.has_room:
                if self._suspects and not actor.units:
                    unit, actor.has_suspect = self._suspects.popleft(), True
                elif (unit := next(fresh, None)) is None:
                    break
                actor.units[actor.handle.rows.remote(unit)] = unit
        return bool(self._suspects) or not any(actor.has_room for actor in self._actors)

    def _finished(self) -> Iterator[tuple[Unit, list[Row]]]:
        """Wait for some worker; the units that it has finished."""
        pending = {reference: actor for actor in self._actors for reference in actor.units}
        done, _ = self._ray.wait(list(pending), num_returns=len(pending), timeout=0)
        if not done:
            done, _ = self._ray.wait(list(pending), num_returns=1)
        for reference in done:
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

    def _ready(self, actor: _Actor, surroundings: dict[str, Any]) -> None:
        actor.is_ready, self._failed_starts = True, 0
        first = self._surroundings = self._surroundings or surroundings
        differing = [key for key in first if first[key] != surroundings.get(key)]
        if differing:
            both = "; ".join(f"{key}: {first[key]} and {surroundings.get(key)}" for key in differing)
            raise InputError(f"workers differ ({both}), and so would their results: let all nodes be alike")

    def _lost(self, actor: _Actor, unit: Unit | None, error: Exception) -> Iterator[tuple[Unit, list[Row]]]:
        """Replace a worker that has died, and see to the unit that it had."""
        if not actor.is_dead:
            actor.is_dead = True
            with contextlib.suppress(Exception):
                self._ray.kill(actor.handle)
            self._actors.append(self._start())
        if not actor.units:
            self._actors.remove(actor)
        if unit is None:
            self._failed_starts += 1
            # Nodes that are lost may take several along, which is no fault of theirs.
            if self._failed_starts >= self._settings.tries * len(self._actors):
                raise InputError(
                    f"{self._failed_starts} workers in a row ended before they were ready: {error}"
                ) from error
            return
        self._crashes[unit.index] += 1
        # Only a unit that was alone with its worker is certain to be the one that brought it down.
        if actor.has_suspect and self._crashes[unit.index] >= self._settings.tries:
            reason = f"its unit brought down {self._crashes[unit.index]} workers, one after the other"
            lengths = zip(unit.items, unit.lengths, strict=True)
            yield unit, [row_of(item, length / unit.rate, reason) for item, length in lengths]
        else:
            self._suspects.append(unit)


@contextlib.contextmanager
def _connecting(address: str | None) -> Iterator[None]:
    try:
        yield
    except (ConnectionError, RuntimeError, ValueError, ImportError) as error:
        where = "Ray cannot start here" if address is None else f"there is no Ray cluster at {address!r}"
        raise InputError(f"{where}: {error}") from error
