"""More processes on this machine for the evaluation that this one runs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

#: The option of ``jaxrnn evaluate`` that a process is started with.
HOST_OPTION = "--host"


@dataclass(frozen=True)
class FailedProcess:
    """A process that did not end with status 0.

    Attributes:
        index: its number.
        status: its exit status, negative for a signal.
        log: the end of its standard error.
    """

    index: int
    status: int
    log: str


@contextlib.contextmanager
def workers(
    arguments: Sequence[str], environments: Sequence[Mapping[str, str]]
) -> Iterator[Callable[[], list[FailedProcess]]]:
    """Start processes 1, 2, ... of the evaluation whose process 0 is this one; they end with the context.

    Args:
        arguments: arguments of ``jaxrnn evaluate`` for all of them.
        environments: additional environment variables for each of them.

    Yields:
        A function that waits until all of them have ended and returns those that failed. The others have then done
        what these left undone.
    """
    with contextlib.ExitStack() as stack:
        count = len(environments) + 1
        processes = [
            stack.enter_context(_started([*arguments, HOST_OPTION, f"{index}/{count}"], environment))
            for index, environment in enumerate(environments, 1)
        ]
        stop = threading.Event()
        reaper = threading.Thread(target=_reap, args=([process for process, _ in processes], stop), daemon=True)
        reaper.start()

        def failed() -> list[FailedProcess]:
            for process, _ in processes:
                process.wait()
            return [
                FailedProcess(index, process.returncode, _end_of(log))
                for index, (process, log) in enumerate(processes, 1)
                if process.returncode != 0
            ]

        try:
            yield failed
        finally:
            stop.set()
            reaper.join()


def _reap(processes: Sequence[subprocess.Popen[bytes]], stop: threading.Event) -> None:
    """Poll all of them: until it is polled, a killed process still exists, and its lease stays valid."""
    while not stop.wait(0.2):
        for process in processes:
            process.poll()


@contextlib.contextmanager
def _started(
    arguments: Sequence[str], environment: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    command = [sys.executable, "-m", "jaxrnn", "evaluate", *arguments]
    # A file and no pipe: nobody reads a pipe before the end, and a full one would block the process.
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, env={**os.environ, **environment})
        try:
            yield process, log
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait()


def _end_of(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read().decode(errors="replace").strip()[-2000:]
