"""A command that is watched by its own first process, which says in one line how it ended.

JAX's runtime ends a process by ``abort`` as soon as it hears that another one is lost, and no handler in Python runs.
So the command goes on in a fork, and the process that was started waits for it: it relays what libraries write to the
standard streams, keeps apart what the runtime says of other processes, and passes signals on.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

#: The files of JAX's runtime whose messages are of other processes, and of signals.
_OF_OTHERS = {
    "client.h",
    "coordination_service.cc",
    "coordination_service_agent.cc",
    "preemption_notifier.cc",
    "preemption_sync_manager.cc",
}
#: How a message of the runtime begins: severity, date, time, thread, file and line.
_MESSAGE = re.compile(rb"([IWEF])\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ (?:.*/)?([\w.-]+):\d+\] ")
#: What the collectives of CPUs print on standard output.
_GREETING = b"[Gloo] Rank "
#: Lines of the runtime that are kept.
_KEPT_LINES = 300


@dataclasses.dataclass(frozen=True)
class Report:
    """In the fork: where it tells its supervisor what it is doing."""

    _fd: int

    def tell(self, **facts: Any) -> None:
        """Facts in JSON's types; later ones replace earlier ones of the same name."""
        os.write(self._fd, json.dumps(facts).encode() + b"\n")


@dataclasses.dataclass(frozen=True)
class Ended:
    """In the supervisor: how the command ended.

    Attributes:
        code: its exit status; a negative number is that of the signal that ended it.
        facts: what it told.
        log: what the runtime said of other processes.
        asked: whether the user, or the system, asked it to end.
    """

    code: int
    facts: dict[str, Any]
    log: str
    asked: bool


def can_fork() -> bool:
    """Whether the rest of a command can run in a fork: JAX, whose threads a fork would not have, is not imported."""
    return hasattr(os, "fork") and "jax" not in sys.modules


def fork(on_signal: Callable[[], None]) -> Report | Ended:
    """Go on in a fork, which gets a `Report`; in the process that called this, wait for it to end.

    Ctrl-C and SIGTERM reach the fork as SIGTERM, and the second of them as SIGKILL. It does not outlive its supervisor.

    Args:
        on_signal: is called in the supervisor at the first of them.
    """
    output, told, alive = os.pipe(), os.pipe(), os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's threads, which do not matter here, make Python 3.12 warn
        child = os.fork()
    if not child:
        for fd in (output[0], told[0], alive[1]):
            os.close(fd)
        _redirect(output[1])
        threading.Thread(target=_end_with, args=(alive[0],), daemon=True).start()
        return Report(told[1])
    for fd in (output[1], told[1], alive[0]):
        os.close(fd)
    asked: list[int] = []

    def pass_on(number: int, frame: Any) -> None:
        asked.append(number)
        os.kill(child, signal.SIGTERM if len(asked) == 1 else signal.SIGKILL)
        if len(asked) == 1:
            on_signal()

    handlers = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    log: collections.deque[bytes] = collections.deque(maxlen=_KEPT_LINES)
    facts: dict[str, Any] = {}
    readers = [
        threading.Thread(target=_relay, args=(output[0], log), daemon=True),
        threading.Thread(target=_collect, args=(told[0], facts), daemon=True),
    ]
    for reader in readers:
        reader.start()
    _, status = os.waitpid(child, 0)
    for reader in readers:
        reader.join(2.0)  # a process that the command has started may hold the pipes for longer
    for number, handler in {**handlers, signal.SIGINT: before}.items():
        signal.signal(number, handler)
    os.close(alive[1])
    code = os.waitstatus_to_exitcode(status)
    if code < 0 and sys.stderr.isatty():
        os.write(2, b"\x1b[?25h\n")  # a progress bar has hidden the cursor
    return Ended(code, facts, b"".join(log).decode(errors="replace"), bool(asked))


def _redirect(fd: int) -> None:
    """Have Python write to the standard streams as before, and everything else to a pipe."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        options = {"encoding": stream.encoding, "errors": stream.errors}
        buffering = 1 if name == "stderr" or stream.isatty() else -1
        setattr(sys, name, os.fdopen(os.dup(number), "w", buffering, **options))
        os.dup2(fd, number)
    os.close(fd)


def _end_with(fd: int) -> None:
    """End this process when the other end of a pipe is closed, which its supervisor's end does in any case."""
    os.read(fd, 1)
    os.kill(os.getpid(), signal.SIGKILL)


def _relay(fd: int, log: collections.deque[bytes]) -> None:
    """Pass lines on to standard error but for those of other processes, which are kept."""
    kept = fatal = False
    with os.fdopen(fd, "rb") as lines:
        for line in lines:
            if (message := _MESSAGE.match(line)) and not fatal:
                kept = message[2].decode() in _OF_OTHERS
                fatal = kept and message[1] == b"F"  # what follows is its stack
            if kept:
                log.append(line)
            elif not line.startswith(_GREETING):
                os.write(2, line)


def _collect(fd: int, facts: dict[str, Any]) -> None:
    with os.fdopen(fd, "rb") as lines:
        for line in lines:
            facts |= json.loads(line)
