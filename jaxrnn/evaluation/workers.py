"""More processes on this machine for the evaluation that this one runs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO

#: The option of ``jaxrnn evaluate`` that a process is started with.
HOST_OPTION = "--host"


@contextlib.contextmanager
def workers(arguments: Sequence[str], environments: Sequence[Mapping[str, str]]) -> Iterator[Callable[[], list[str]]]:
    """Start processes 1, 2, ... of the evaluation whose process 0 is this one; they end with the context.

    Args:
        arguments: arguments of ``jaxrnn evaluate`` for all of them.
        environments: additional environment variables for each of them.

    Yields:
        A function that waits until all of them have ended, and returns a message for each that failed, with the end of
        its standard error. The others have then done the units of those.
    """
    with contextlib.ExitStack() as stack:
        count = len(environments) + 1
        processes = [
            stack.enter_context(_started([*arguments, HOST_OPTION, f"{index}/{count}"], environment))
            for index, environment in enumerate(environments, 1)
        ]
        stop = threading.Event()

        def reap() -> None:
            """Poll all of them: until it is polled, a killed process still exists, and its lease stays valid."""
            while not stop.wait(0.2):
                for process, _ in processes:
                    process.poll()

        def failures() -> list[str]:
            statuses = [process.wait() for process, _ in processes]
            return [
                f"process {index} ended with status {status}: {_end_of(processes[index - 1][1])}".rstrip(": ")
                for index, status in enumerate(statuses, 1)
                if status != 0
            ]

        reaper = threading.Thread(target=reap, daemon=True)
        reaper.start()
        try:
            yield failures
        finally:
            stop.set()
            reaper.join()


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
