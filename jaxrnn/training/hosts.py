"""Joining the processes of a training, on one host or many, through JAX."""

from __future__ import annotations

import socket

import jax
from jax.experimental import multihost_utils

from jaxrnn._files.messages import first_line
from jaxrnn.errors import InputError, TrainingError
from jaxrnn.training.sharding import gather_texts

#: Seconds that processes wait for the others when they end.
END_SECONDS = 10


def join(coordinator: str | None, processes: int | None, process: int | None, lost_after: int) -> None:
    """Join the other processes; what is None is known to what has started this one, and JAX asks it.

    A process that does not find the others in five minutes is ended by JAX.

    Args:
        coordinator: ``host:port`` of process 0.
        processes: how many there are.
        process: the number of this one.
        lost_after: seconds after which a process that does not answer counts as lost.

    Raises:
        InputError: JAX does not know what has started this process, or the port is taken.
    """
    if process == 0 and coordinator is not None:
        _check_port(coordinator)
    # Else JAX asks even where it needs no answer, and Kubernetes may refuse one.
    known = None not in (coordinator, processes, process)
    try:
        jax.distributed.initialize(
            coordinator,
            processes,
            process,
            cluster_detection_method="deactivate" if known else None,
            heartbeat_timeout_seconds=lost_after,
            shutdown_timeout_seconds=END_SECONDS,
        )
    except (ValueError, RuntimeError, LookupError, OSError) as error:
        raise InputError(
            f"JAX does not find the other processes: {first_line(error).rstrip('.')}. It asks Slurm, Open MPI, TPU "
            "pods and Kubernetes by itself; anywhere else give --coordinator HOST:PORT --processes COUNT "
            "--process NUMBER"
        ) from error


def host_names() -> list[str]:
    """The name of the host of every process."""
    return gather_texts(socket.gethostname())


def wait_for_others() -> None:
    """Wait until all processes are here, however long one of them writes its results."""
    multihost_utils.sync_global_devices("end")


def check_joined() -> None:
    """Refuse several processes that JAX has devices of, but that have not joined: they could keep no checkpoints.

    Raises:
        TrainingError: they are such.
    """
    if jax.process_count() > 1 and not jax.distributed.is_initialized():
        raise TrainingError(
            f"this is one of {jax.process_count()} processes with common devices, and they have not joined: give "
            "--coordinator auto, or call jax.distributed.initialize() first in Python"
        )


def _check_port(coordinator: str) -> None:
    port = int(coordinator.rpartition(":")[2])
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        raise InputError(
            f"--coordinator {coordinator}: process 0 cannot use port {port} here: {error.strerror}"
        ) from None
