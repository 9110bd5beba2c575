"""Several processes, on one machine or many, share the units of one evaluation through files in its folder.

Each process first takes the units of its own number, then what the others have left. It leases a unit by a file that it
touches regularly. When it stops touching the file, the lease expires and the unit is free again. Two processes that
compute one unit by mistake write the same rows.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import jax

from jaxrnn.errors import InputError
from jaxrnn.evaluation.evaluation import Evaluation
from jaxrnn.evaluation.journal import writing_to
from jaxrnn.evaluation.units import Unit
from jaxrnn.evaluation.writers import runs

#: Seconds between two renewals of a lease, and seconds without one after which it expires.
RENEWAL, PATIENCE = 2.0, 15.0


@dataclass(frozen=True)
class Host:
    """One of the processes that share an evaluation.

    Attributes:
        index: its number, from 0.
        count: the number of processes.
    """

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise InputError(f"a host is one of {self.count}, from 0 on; {self.index} is not")


def join(coordinator: str | None = None, count: int | None = None, index: int | None = None) -> Host:
    """Join a JAX cluster: this process's place among its processes.

    Args:
        coordinator: address and port of process 0; None where JAX detects it, as on Slurm and TPU pods.
        count: the number of processes.
        index: the number of this one.

    Raises:
        InputError: JAX cannot join the cluster.
    """
    try:
        jax.distributed.initialize(coordinator, count, index)
    except (RuntimeError, ValueError) as error:
        raise InputError(f"this process cannot join the others: {error}") from error
    host = Host(jax.process_index(), jax.process_count())
    # From here on the processes talk through files alone: one that ends must not end the others.
    jax.distributed.shutdown()
    return host


@dataclass
class Leases:
    """The leases of units in a folder, as one process sees them.

    Attributes:
        folder: the folder.
        patience: seconds without a renewal after which a lease of another machine expires.
    """

    folder: Path
    patience: float = PATIENCE
    _renewals: dict[Path, tuple[int, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with writing_to(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        self._name = f"{socket.gethostname()}:{os.getpid()}"

    def _path(self, unit: Unit) -> Path:
        return self.folder / f"{unit.index:06d}"

    def is_held(self, unit: Unit) -> bool:
        """Whether another process holds a valid lease of the unit."""
        path = self._path(unit)
        try:
            holder, renewal = path.read_text(), path.stat().st_mtime_ns
        except FileNotFoundError:
            return False
        host, _, process = holder.rpartition(":")
        if holder == self._name or (host == socket.gethostname() and not runs(process)):
            return False
        # The clocks of machines differ: what counts is whether the file changes while this process watches it.
        last, since = self._renewals.get(path, (0, 0.0))
        if renewal != last:
            self._renewals[path] = (renewal, time.monotonic())
            return True
        return time.monotonic() - since < self.patience

    @contextlib.contextmanager
    def hold(self, unit: Unit) -> Iterator[None]:
        """Lease a unit, and renew the lease until the context ends."""
        path, done = self._path(unit), threading.Event()
        with writing_to(self.folder):
            path.write_text(self._name)

        def renew() -> None:
            while not done.wait(RENEWAL):
                with contextlib.suppress(OSError):
                    path.touch()

        renewing = threading.Thread(target=renew, daemon=True)
        renewing.start()
        try:
            yield
        finally:
            done.set()
            renewing.join()
            path.unlink(missing_ok=True)


def shared(evaluation: Evaluation, host: Host, *, patience: float = PATIENCE) -> Iterator[Unit | None]:
    """The units for this process, one by one, until every unit is finished by some process.

    A unit stays leased until the unit after the next is requested, so that its rows may be written while the next one
    is computed.

    Yields:
        A unit, or None while all units that are left are taken.
    """
    leases = Leases(evaluation.journal.folder / "leases", patience)
    own = [unit for unit in evaluation.units if unit.index % host.count == host.index]
    others = [unit for unit in reversed(evaluation.units) if unit.index % host.count != host.index]
    with contextlib.ExitStack() as previous, contextlib.ExitStack() as latest:
        taken: set[int] = set()
        while True:
            done = evaluation.journal.finished() | taken
            left = [unit for unit in (*own, *others) if unit.index not in done]
            if not left:
                return
            free = next((unit for unit in left if host.count == 1 or not leases.is_held(unit)), None)
            if free is None:
                yield None
                time.sleep(0.2)
                continue
            previous.close()
            previous.push(latest.pop_all())
            latest.enter_context(leases.hold(free))
            taken.add(free.index)
            yield free
