"""Several processes, on one machine or many, share the units of one evaluation through files in its folder.

Each process first takes the units of its own number, then those that the others have left. It leases a unit by a file
that it touches regularly, until the unit is finished. When it stops touching the file, the lease expires and the unit
is free again. Two processes that compute one unit by mistake write the same rows.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import jax

from jaxrnn.briefs import brief
from jaxrnn.errors import InputError
from jaxrnn.evaluation.evaluation import Evaluation
from jaxrnn.evaluation.journal import writing_to
from jaxrnn.evaluation.units import Unit
from jaxrnn.evaluation.writers import runs

#: Seconds between two renewals of a lease, seconds without one after which it expires, and seconds between two looks at
#: the leases of others.
RENEWAL, PATIENCE, POLL = 2.0, 15.0, 0.2


@brief
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


class Leases:
    """The leases of units in a folder, as one process sees them: a context, inside of which it renews its own.

    Args:
        folder: the folder; created if missing.
        patience: seconds without a renewal after which a lease of another machine expires.
    """

    def __init__(self, folder: Path, patience: float = PATIENCE):
        self._folder, self._patience = folder, patience
        self._name = f"{socket.gethostname()}:{os.getpid()}"
        self._own: dict[int, Path] = {}
        self._renewals: dict[Path, tuple[int, float]] = {}
        self._done = threading.Event()
        self._renewing = threading.Thread(target=self._renew, daemon=True)

    def __enter__(self) -> Self:
        with writing_to(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        self._renewing.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self._renewing.join()
        self.release(set(self._own))

    def _renew(self) -> None:
        while not self._done.wait(RENEWAL):
            for path in list(self._own.values()):
                # Unlike a touch, it makes no file of a lease that has just ended.
                with contextlib.suppress(OSError):
                    os.utime(path)

    def _path(self, unit: Unit) -> Path:
        return self._folder / f"{unit.index:06d}"

    def is_free(self, unit: Unit) -> bool:
        """Whether no process holds a valid lease of the unit."""
        path = self._path(unit)
        try:
            holder, renewal = path.read_text(), path.stat().st_mtime_ns
        except FileNotFoundError:
            return True
        host, _, process = holder.rpartition(":")
        if holder == self._name:
            return unit.index not in self._own
        if host == socket.gethostname() and not runs(process):
            return True
        # The clocks of machines differ: what counts is whether the file changes while this process watches it.
        last, since = self._renewals.get(path, (0, 0.0))
        if renewal != last:
            self._renewals[path] = (renewal, time.monotonic())
            return False
        return time.monotonic() - since >= self._patience

    def take(self, unit: Unit) -> None:
        """Lease a unit."""
        with writing_to(self._folder):
            self._path(unit).write_text(self._name)
        self._own[unit.index] = self._path(unit)

    def release(self, units: set[int]) -> bool:
        """End the own leases of units, by their numbers; whether there are others."""
        for index in self._own.keys() & units:
            self._own.pop(index).unlink(missing_ok=True)
        return bool(self._own)


def shared(evaluation: Evaluation, host: Host, *, patience: float = PATIENCE) -> Iterator[Unit | None]:
    """The units for this process, one by one, until every unit is finished by some process.

    Yields:
        A unit, or None while all unfinished units are leased: those that were yielded before are to be finished.
    """
    own = [unit for unit in evaluation.units if unit.index % host.count == host.index]
    others = [unit for unit in reversed(evaluation.units) if unit.index % host.count != host.index]
    with Leases(evaluation.journal.folder / "leases", patience) as leases:
        while True:
            finished = evaluation.journal.finished()
            working = leases.release(finished)
            left = [unit for unit in (*own, *others) if unit.index not in finished]
            if not left:
                return
            unit = next((unit for unit in left if leases.is_free(unit)), None)
            if unit is not None:
                leases.take(unit)
            elif not working:
                time.sleep(POLL)
            yield unit
