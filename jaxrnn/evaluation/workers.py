"""Other processes of this machine at the evaluation that this one works at."""

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


@contextlib.contextmanager
def workers(arguments: Sequence[str], environments: Sequence[Mapping[str, str]]) -> Iterator[Callable[[], list[Ended]]]:
    """Processes 1, 2, ... at the evaluation that this process, number 0, works at; they end with the context.

    Args:
        arguments: those of ``jaxrnn evaluate`` that all of them get.
        environments: for each of them, what its environment holds besides this one's.

    Yields:
        A function that waits until all others have ended, and gives those that failed; what these left was done by the
        rest.
    """
    with contextlib.ExitStack() as stack:
        count = len(environments) + 1
        others = [
            stack.enter_context(_started([*arguments, HOST_OPTION, f"{index}/{count}"], environment))
            for index, environment in enumerate(environments, 1)
        ]
        over = threading.Event()
        reaper = threading.Thread(target=_reap, args=([process for process, _ in others], over), daemon=True)
        reaper.start()

        def ended() -> list[Ended]:
            for process, _ in others:
                process.wait()
            return [
                Ended(index, process.returncode, _end_of(said))
                for index, (process, said) in enumerate(others, 1)
                if process.returncode != 0
            ]

        try:
            yield ended
        finally:
            over.set()
            reaper.join()


def _reap(processes: Sequence[subprocess.Popen[bytes]], over: threading.Event) -> None:
    """Ask after all of them: one that was killed is a process still, whose claim stands, until it is asked after."""
    while not over.wait(0.2):
        for process in processes:
            process.poll()


@contextlib.contextmanager
def _started(
    arguments: Sequence[str], environment: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    command = [sys.executable, "-m", "jaxrnn", "evaluate", *arguments]
    # A file, for a pipe that nobody reads until the end would stop a process that says much.
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, env={**os.environ, **environment})
        try:
            yield process, said
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait()


def _end_of(said: IO[bytes]) -> str:
    said.seek(0)
    return said.read().decode(errors="replace").strip()[-2000:]
