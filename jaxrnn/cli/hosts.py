"""The options of a command that runs as several processes, on one host or many, and what it says when one is lost."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from jaxrnn.cli.errors import INTERRUPTED, LOST, MISTAKE, print_error
from jaxrnn.cli.options import grouped
from jaxrnn.cli.supervision import Ended, Report, can_fork, fork
from jaxrnn.errors import JaxrnnError

#: What starts the processes of a job, by the variables that say so: how many there are, and what JAX needs besides.
_LAUNCHERS = (("SLURM_NTASKS", "SLURM_STEP_NODELIST"), ("OMPI_COMM_WORLD_SIZE",))
#: What a coordinator may be in place of a host and a port.
AUTO, NONE = "auto", "none"
#: Seconds after which a process that does not answer counts as lost.
LOST_AFTER = 30
#: What an error says that comes of another process's end.
_OF_OTHERS = re.compile(
    r"gloo|nccl|rccl|connection (closed|reset|refused)|socket closed|coordination|heartbeat|barrier|unavailable|"
    r"deadline",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Hosts:
    """What the options say: where process 0 is, how many there are, and which one this is."""

    coordinator: str | None
    processes: int | None
    process: int | None
    lost_after: int

    def __post_init__(self):
        if self.coordinator in (None, AUTO, NONE):
            if self.processes is not None or self.process is not None:
                raise click.UsageError("--processes and --process need --coordinator HOST:PORT.")
        elif not re.fullmatch(r".+:\d{1,5}", self.coordinator or ""):
            raise click.UsageError(
                f"--coordinator is HOST:PORT of process 0, '{AUTO}' or '{NONE}', not {self.coordinator!r}."
            )
        elif (self.processes is None) != (self.process is None):
            raise click.UsageError("Give both --processes, their number, and --process, which of them this is.")
        elif self.processes is not None and self.process is not None and self.process >= self.processes:
            raise click.UsageError(f"--process {self.process}: the last of {self.processes} is {self.processes - 1}.")

    @property
    def address(self) -> str | None:
        """Of process 0; None for JAX to find it."""
        return None if self.coordinator == AUTO else self.coordinator


hosts_options = grouped(
    "hosts",
    Hosts,
    click.option(
        "--coordinator",
        metavar="HOST:PORT",
        help="Train as one of several processes; process 0 listens at this address. 'auto' has JAX find it (TPU pods, "
        "Kubernetes), 'none' trains alone. [default: auto under Slurm and Open MPI, else none]",
    ),
    click.option("--processes", metavar="COUNT", type=click.IntRange(1), help="How many processes there are."),
    click.option("--process", metavar="NUMBER", type=click.IntRange(0), help="Which of them this is, from 0."),
    click.option(
        "--lost-after",
        metavar="SECONDS",
        type=click.IntRange(1),
        default=LOST_AFTER,
        show_default=True,
        help="How long a process may be silent before it counts as lost, and all others end.",
    ),
)


class Member:
    """What a process of a training is among the others; it may be the only one.

    Attributes:
        index: its number.
        writes: whether it is the one that writes and shows.
    """

    def __init__(self, report: Report | None = None, index: int = 0):
        self._report, self.index = report, index

    @property
    def writes(self) -> bool:
        """Whether this process is the one that writes results and shows progress."""
        return self.index == 0

    def tell(self, **facts: Any) -> None:
        """Tell what a message needs that says how this process ended: ``checkpoints``, the folder."""
        if self._report is not None:
            self._report.tell(**facts)


@contextlib.contextmanager
def among_hosts(hosts: Hosts) -> Iterator[Member]:
    """Join the other processes, where there are any, for the rest of a command.

    The body runs in a fork, so that one line says how it ended: this process waits for it and exits.
    """
    if not _are_several(hosts):
        yield Member()
        return
    report = None
    if can_fork():
        ended = fork(_announce_end)
        if isinstance(ended, Ended):
            raise SystemExit(_explain(ended, hosts))
        report = ended
    from jaxrnn.training.hosts import host_names, join, wait_for_others

    member = Member(report, hosts.process or 0)
    member.tell(process=hosts.process)
    numbered = hosts.process is not None
    try:
        join(hosts.address, hosts.processes, hosts.process, hosts.lost_after)
        names = host_names()
        import jax

        member.index, numbered = jax.process_index(), True
        member.tell(process=member.index, hosts=names)
        yield member
        wait_for_others()
        member.tell(ended=0)
    except BaseException as error:
        if report is not None and _is_of_others(error):
            time.sleep(hosts.lost_after + 15)  # until the runtime knows which process is lost, and ends this one
        member.tell(ended=_status(error))
        if numbered and isinstance(error, JaxrnnError):
            raise type(error)(f"process {member.index}: {error}") from error
        raise


def _are_several(hosts: Hosts) -> bool:
    if hosts.coordinator is not None:
        return hosts.coordinator != NONE
    launched = (names for names in _LAUNCHERS if all(name in os.environ for name in names))
    return any(os.environ[count].isdecimal() and int(os.environ[count]) > 1 for count, *_ in launched)


def _announce_end() -> None:
    click.echo("ending after this update; Ctrl-C again ends at once", err=True)


def _is_of_others(error: BaseException | None) -> bool:
    """Whether an error is what this process sees of another one's end."""
    seen = 0
    while error is not None and seen < 10:
        plain = isinstance(error, Exception) and not isinstance(error, JaxrnnError)
        if plain and _OF_OTHERS.search(f"{type(error).__name__} {error}"):
            return True
        error, seen = error.__cause__ or error.__context__, seen + 1
    return False


def _status(error: BaseException) -> int:
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, JaxrnnError | OSError | click.ClickException):
        return MISTAKE
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def _explain(ended: Ended, hosts: Hosts) -> int:
    """Say why a process has ended that did not say so itself: its exit status."""
    if ended.code >= 0:
        return ended.code
    if "ended" in ended.facts:  # by itself; the others were not there any more
        return ended.facts["ended"]
    number = ended.facts.get("process")
    this = "this process" if number is None else f"process {number}"
    again = ""
    if "checkpoints" in ended.facts:  # else it has not read its settings
        folder = ended.facts["checkpoints"]
        again = f"; run the same command again to continue from {folder}" if folder else "; there are no checkpoints"
    if ended.asked:
        click.echo(f"{this}: interrupted{again}", err=True)
        return INTERRUPTED
    if (cause := _cause(ended.log, ended.facts.get("hosts", []), hosts)) is None:
        _print(f"{this} was ended by {signal.Signals(-ended.code).name}{again}", number)
        return 128 - ended.code
    text, status = cause
    _print(f"{this}: {text}; all processes end{again if status == LOST else ''}", number)
    return status


def _print(message: str, number: int | None) -> None:
    if number:
        click.secho(f"error: {message}", err=True, fg="red")
    else:
        print_error(message)


def _cause(log: str, names: list[str], hosts: Hosts) -> tuple[str, int] | None:
    """What JAX's runtime says of the end of other processes, and the exit status that this means; None for nothing."""

    def named(numbers: list[int]) -> str:
        listed = [f"{number} on {names[number]}" if number < len(names) else str(number) for number in numbers]
        return f"process{'es' if len(listed) > 1 else ''} {', '.join(listed)}"

    silent = re.search(r"stopped sending heartbeats\):\n([\d,\s]+)", log) or re.search(
        r"Task (\d+) heartbeat timeout", log
    )
    if silent:
        lost = sorted({int(number) for number in re.findall(r"\d+", silent[1])})
        are = "is" if len(lost) == 1 else "are"
        return f"{named(lost)} {are} lost: ended, or not reached for {hosts.lost_after} s", LOST
    if "RegisterTask" in log:
        where = f" at {hosts.address}" if hosts.address else ""
        return f"the other processes were not found{where} in five minutes, or one of them was started twice", LOST
    if "Failed to send RPC to coordination service" in log:
        return f"{named([0])} is lost: it has ended, or is not reached any more", LOST
    if first := re.search(r"The first task at the barrier: (\d+)", log):
        return f"{named([int(first[1])])} has ended with an error, which its output says", MISTAKE
    return ("another process is lost", LOST) if "client.h:" in log else None
