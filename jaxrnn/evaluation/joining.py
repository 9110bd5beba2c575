"""The Ray that workers run in: one of this process alone, or a cluster that it joins."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jaxrnn._files.messages import brief
from jaxrnn.errors import InputError, optional_package

#: Seconds in which a cluster answers.
ANSWER = 10.0
#: How a client of HTTP/2, which Ray speaks, begins, and the kind of message that a server begins with.
HELLO, SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]), 4
#: What Ray reads from the environment when it starts here: a busy machine is no broken one.
PATIENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_register_timeout_seconds": "600"}


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


@contextlib.contextmanager
def joined(workers: Workers) -> Iterator[Any]:
    """Ray, running inside of the context; what this process has joined before stays as it was.

    Raises:
        InputError: Ray cannot start, or nobody answers at the address.
        MissingPackageError: Ray is not installed.
    """
    with optional_package("ray", "several workers", "cluster"):
        import ray
    if ray.is_initialized():
        yield ray
        return
    for name, value in PATIENT.items():
        os.environ.setdefault(name, value)
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), _own_signals():
            # Ray's processes replace themselves at once; what JAX warns of are forks that go on.
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            _start(ray, workers) if workers.address is None else _join(ray, workers.address, workers.tries)
        yield ray
    finally:
        ray.shutdown()


def _start(ray: Any, workers: Workers) -> None:
    # Its resources are what the workers ask for: they are told how many CPUs they have, not bound to them.
    count = workers.count or 1
    room = {"num_cpus": -(-count * workers.cpus // 1), "num_gpus": -(-count * workers.gpus // 1)}
    try:
        _tried(ray, workers.tries, Exception, address="local", include_dashboard=False, **room)
    except Exception as error:  # of whatever kind its processes make it
        raise InputError(f"Ray cannot start here: {_said(error)}") from error


def _tried(ray: Any, tries: int, kind: type[Exception], **options: Any) -> None:
    """Start or join Ray, again where it did not come up."""
    while True:
        try:
            return ray.init(**options, log_to_driver=False, logging_level="error")
        except kind:
            ray.shutdown()
            tries -= 1
            if not tries:
                raise


def _join(ray: Any, address: str, tries: int) -> None:
    where = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    hint = "start one with 'ray start --head', or give the HOST:6379 of its head or the ray://HOST:10001 of its clients"
    try:
        if "://" not in where:
            # It also finds the cluster of this machine.
            where = ray._private.services.canonicalize_bootstrap_address(where) or where
        if "://" not in where or where.startswith("ray://"):  # others are of plugins
            _check_answer(where.removeprefix("ray://"))
        hint = "a cluster that asks for a token needs RAY_AUTH_MODE=token and RAY_AUTH_TOKEN in the environment"
        # Of "auto", Ray finds the token itself. A server for clients may fail to start its process for this one.
        _tried(ray, tries, ConnectionAbortedError, address=address)
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        named = repr(address) if where == address else f"{address!r}, which is {where}"
        raise InputError(f"cannot join a Ray cluster at {named}: {_said(error)}; {hint}") from error


def _check_answer(address: str) -> None:
    """Have a server say hello: Ray itself would wait for minutes, deaf to signals.

    Raises:
        OSError: nobody answers.
        ValueError: the address is none, or what answers is not Ray.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError("an address is HOST:PORT or ray://HOST:PORT")
    with socket.create_connection((host.strip("[]"), int(port)), ANSWER) as line:
        if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
            return
        line.sendall(HELLO)
        with line.makefile("rb") as answer:
            kind = answer.read(4)[3:]
        if kind != bytes([SETTINGS]):
            raise ValueError("what answers there is not Ray")


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Ray ends a process at SIGTERM from its start on: the handler that was there before comes back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as error:  # Ray's own handler
        raise KeyboardInterrupt from error
    finally:
        # Who leaves SIGTERM to the system has Ray end in order all the same.
        if before is not signal.SIG_DFL:
            signal.signal(signal.SIGTERM, before)


def _said(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
