"""Several processes, on one machine or many, at the units of one evaluation: through files in the folder of results.

Each takes the units of its own number first and then what is left of the others'. A unit that a process has begun is
claimed by a file that the process touches now and then; where that stops, the process is gone and the unit is free
again. Two that do one unit by mistake write the same rows.
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
from jaxrnn.evaluation.units import Unit
from jaxrnn.evaluation.writers import runs

#: Seconds between two signs of life, and after how many without one a claim is void.
BEAT, PATIENCE = 2.0, 15.0


@dataclass(frozen=True)
class Host:
    """One of the processes that share an evaluation.

    Attributes:
        index: its number.
        count: how many there are.
    """

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise InputError(f"a host is one of {self.count}, from 0 on; {self.index} is not")


def join(coordinator: str | None = None, count: int | None = None, index: int | None = None) -> Host:
    """This process's place among those of a JAX cluster.

    Args:
        coordinator: address and port of process 0; None where JAX finds out by itself, as on Slurm or TPU pods.
        count: how many processes there are.
        index: which of them this is.

    Raises:
        InputError: JAX cannot join them.
    """
    try:
        jax.distributed.initialize(coordinator, count, index)
    except (RuntimeError, ValueError) as error:
        raise InputError(f"this process cannot join the others: {error}") from error
    host = Host(jax.process_index(), jax.process_count())
    # Nothing more is said through JAX: a process that ends must not end the others.
    jax.distributed.shutdown()
    return host


@contextlib.contextmanager
def _written(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{folder} cannot be written: {error.strerror or error}. What is finished is kept; make room and run again"
        ) from error


@dataclass
class Claims:
    """The claims in a folder of results, as one process sees them.

    Attributes:
        folder: where they are.
        patience: seconds without a sign of life that make a claim void.
    """

    folder: Path
    patience: float = PATIENCE
    _seen: dict[Path, tuple[int, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with _written(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        self._name = f"{socket.gethostname()}:{os.getpid()}"

    def _path(self, unit: Unit) -> Path:
        return self.folder / f"{unit.index:06d}"

    def is_held(self, unit: Unit) -> bool:
        """Whether another process that is alive works at the unit."""
        path = self._path(unit)
        try:
            holder, beat = path.read_text(), path.stat().st_mtime_ns
        except FileNotFoundError:
            return False
        host, _, process = holder.rpartition(":")
        if holder == self._name or (host == socket.gethostname() and not runs(process)):
            return False
        # Clocks of machines differ: what counts is whether the file changes while this process looks on.
        before, since = self._seen.get(path, (0, 0.0))
        if beat != before:
            self._seen[path] = (beat, time.monotonic())
            return True
        return time.monotonic() - since < self.patience

    @contextlib.contextmanager
    def hold(self, unit: Unit) -> Iterator[None]:
        """Claim a unit, with a sign of life now and then."""
        path, done = self._path(unit), threading.Event()
        with _written(self.folder):
            path.write_text(self._name)

        def beat() -> None:
            while not done.wait(BEAT):
                with contextlib.suppress(OSError):
                    path.touch()

        pulse = threading.Thread(target=beat, daemon=True)
        pulse.start()
        try:
            yield
        finally:
            done.set()
            pulse.join()
            path.unlink(missing_ok=True)


def shared(evaluation: Evaluation, host: Host, *, patience: float = PATIENCE) -> Iterator[Unit | None]:
    """The units that this process is to do, one by one, until all others are done by whomever; None to wait.

    A unit is claimed from when it is handed out until the one after the next is asked for, so that its rows may be
    written while the next is computed.
    """
    claims = Claims(evaluation.journal.folder / "claims", patience)
    own = [unit for unit in evaluation.units if unit.index % host.count == host.index]
    others = [unit for unit in reversed(evaluation.units) if unit.index % host.count != host.index]
    with contextlib.ExitStack() as before, contextlib.ExitStack() as latest:
        taken: set[int] = set()
        while True:
            done = evaluation.journal.finished() | taken
            left = [unit for unit in (*own, *others) if unit.index not in done]
            if not left:
                return
            free = next((unit for unit in left if host.count == 1 or not claims.is_held(unit)), None)
            if free is None:
                yield None
                time.sleep(0.2)
                continue
            before.close()
            before.push(latest.pop_all())
            latest.enter_context(claims.hold(free))
            taken.add(free.index)
            yield free
