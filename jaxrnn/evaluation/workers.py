"""Several processes of this machine at one evaluation, each on cores of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

from jaxrnn.evaluation.journal import Journal

#: The option of ``jaxrnn evaluate`` that a worker is started with.
HOST_OPTION = "--host"


@dataclass(frozen=True)
class Ended:
    """A process that ended otherwise than it should.

    Attributes:
        index: its number.
        status: its exit status, negative for a signal.
        said: the end of what it wrote to standard error.
    """

    index: int
    status: int
    said: str


def run_workers(
    arguments: Sequence[str], count: int, journal: Journal, watch: Callable[[set[int]], Any] | None = None
) -> list[Ended]:
    """Run so many processes until all of them have ended.

    Args:
        arguments: those of ``jaxrnn evaluate`` that all of them get.
        count: how many.
        journal: what they work at.
        watch: called now and then with the units that are finished.

    Returns:
        Those that failed; what they left was done by the others, if any were left.
    """
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(_started(arguments, index, count)) for index in range(count)]
        # All are asked: one that was killed is a process still, whose claim stands, until it is.
        while None in [process.poll() for process, _ in processes]:
            if watch is not None:
                watch(journal.finished())
            time.sleep(0.2)
        if watch is not None:
            watch(journal.finished())
        return [
            Ended(index, process.returncode, _end_of(said))
            for index, (process, said) in enumerate(processes)
            if process.returncode != 0
        ]


@contextlib.contextmanager
def _started(arguments: Sequence[str], index: int, count: int) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    command = [sys.executable, "-m", "jaxrnn", "evaluate", *arguments, HOST_OPTION, f"{index}/{count}"]
    cores = _cores(index, count)
    # The child sets its own cores before it imports JAX, which makes as many threads as it sees.
    environment = dict(os.environ) | ({"JAXRNN_CORES": ",".join(map(str, cores))} if cores else {})
    # A file, for a pipe that nobody reads until the end would stop a process that says much.
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, env=environment)
        try:
            yield process, said
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait()


def _cores(index: int, count: int) -> list[int]:
    """The cores of one of several processes; none where the system does not tell."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    cores = sorted(os.sched_getaffinity(0))
    return cores[index::count] or [cores[index % len(cores)]]


def _end_of(said: IO[bytes]) -> str:
    said.seek(0)
    return said.read().decode(errors="replace").strip()[-2000:]
