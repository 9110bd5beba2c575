"""Data parallelism: a mesh of devices, batches split over the mesh, and agreement between processes."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxrnn._jax.context import exact_types
from jaxrnn.errors import InputError, TrainingError

AXIS = "examples"


class AgreedInterrupt(KeyboardInterrupt):
    """An interrupt after SIGTERM to one process. All processes end after the same update."""


class Placement:
    """The devices of a training. Parameters are copied to all devices, and batches are split along the first axis.

    ``devices`` are all devices of all processes by default; ``batch_size`` counts examples of all processes.
    """

    def __init__(self, devices: Sequence[Any] | None, batch_size: int):
        chosen = jax.devices() if devices is None else list(devices) if isinstance(devices, Iterable) else []
        if not chosen or not all(isinstance(device, jax.Device) for device in chosen):
            raise InputError(f"devices must be JAX devices, as jax.devices() gives them, not {devices!r}")
        chosen = sorted(dict.fromkeys(chosen), key=lambda device: (device.process_index, device.id))
        if not any(device.process_index == jax.process_index() for device in chosen):
            raise InputError(f"devices: no device belongs to process {jax.process_index()}")
        mesh = Mesh(np.array(chosen), (AXIS,), axis_types=(AxisType.Auto,))
        self.everywhere = NamedSharding(mesh, PartitionSpec())
        self.split = NamedSharding(mesh, PartitionSpec(AXIS))
        self.processes = len({device.process_index for device in chosen})
        if self.processes not in (1, jax.process_count()):
            raise InputError(f"devices: they belong to {self.processes} of {jax.process_count()} processes")
        self.batch_size, self.devices = batch_size, len(chosen)
        self._local = [device for device in chosen if device.process_index == jax.process_index()]
        self._first = chosen.index(self._local[0])

    def own_rows(self, count: int) -> range:
        """Return the rows of this process in a batch of examples, padded to a multiple of the number of devices."""
        share = -(-count // self.devices)
        return range(self._first * share, (self._first + len(self._local)) * share)

    def replicate(self, tree: Any) -> Any:
        """Copy arrays to all devices. All processes must pass equal arrays."""
        with exact_types():
            # Through NumPy: a weakly typed array would compile the second update again.
            return jax.tree.map(lambda x: as_key(jax.device_put(as_numpy(x), self.everywhere), x), tree)

    def spread(self, tree: Any) -> Any:
        """Assemble a batch that is split over the devices. Each process passes the `own_rows` of the process."""
        with exact_types():
            return jax.tree.map(
                lambda x: jax.make_array_from_process_local_data(
                    self.split, x, (len(x) // len(self._local) * self.devices, *x.shape[1:])
                ),
                tree,
            )

    def gather(self, tree: Any) -> Any:
        """Return arrays of `spread` as NumPy arrays in all processes, without padding rows."""
        with exact_types():
            if self.processes > 1:
                tree = jax.tree.map(lambda x: multihost_utils.process_allgather(x, tiled=True), tree)
            return jax.tree.map(lambda x: np.asarray(x)[: self.batch_size], tree)

    def own(self, tree: Any) -> Any:
        """Return this process's rows of gathered arrays. The devices may have changed since `gather`."""
        rows = [row if row < self.batch_size else 0 for row in self.own_rows(self.batch_size)]
        return jax.tree.map(lambda x: x[rows], tree)

    def agree(self, numbers: Sequence[int], problem: BaseException | None = None) -> np.ndarray:
        """Return the numbers of all processes, ``int[processes, numbers]``.

        If one process passes a problem, all processes raise an error, so that no process waits.
        """
        if self.processes == 1:
            if problem is not None:
                raise problem
            return np.asarray([numbers], np.int64).reshape(1, -1)
        mine = np.asarray([problem is not None, *numbers], np.int32)
        table = np.asarray(multihost_utils.process_allgather(mine)).reshape(self.processes, -1)
        if problem is not None:
            raise problem
        failed = np.flatnonzero(table[:, 0])
        if failed.size:
            raise TrainingError(f"process {failed[0]} stopped with an error; see its output")
        return table[:, 1:]

    def check_interrupt(self, step: int) -> None:
        """Raise an AgreedInterrupt in all processes after the same update if one process received SIGTERM."""
        if self.processes > 1 and multihost_utils.reached_preemption_sync_point(step):
            raise AgreedInterrupt(f"asked to end, after update {step}")

    def single(self, arrays: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Return replicated arrays on one device of this process."""
        with exact_types():
            return {name: jax.device_put(np.asarray(x), self._local[0]) for name, x in arrays.items()}


@contextlib.contextmanager
def interrupted_by_sigterm(processes: int) -> Iterator[None]:
    """Raise KeyboardInterrupt at SIGTERM in a single process, unless the caller handles the signal.

    Python runs handlers in the main thread only. Several processes end together, by `Placement.check_interrupt`.
    """

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt("SIGTERM")

    is_main = threading.current_thread() is threading.main_thread()
    if processes > 1 or not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def gather_texts(text: str) -> list[str]:
    """Gather a text from each process. All processes return the same list."""
    if jax.process_count() == 1:
        return [text]
    content = np.frombuffer(text.encode(), np.uint8)
    lengths = multihost_utils.process_allgather(np.asarray([content.size], np.int32)).ravel()
    padded = np.zeros(lengths.max(), np.uint8)
    padded[: content.size] = content
    rows = np.asarray(multihost_utils.process_allgather(padded))
    return [row[:length].tobytes().decode() for row, length in zip(rows, lengths, strict=True)]


def is_primary() -> bool:
    """Return True in the process that writes results and shows progress."""
    return jax.process_index() == 0


def host(tree: Any) -> Any:
    """Return replicated arrays as NumPy arrays."""
    return jax.tree.map(as_numpy, tree)


def as_numpy(array: Any) -> np.ndarray:
    """Return an array in host memory; for a random key, the key data."""
    return np.asarray(jax.random.key_data(array) if _is_key(array) else array)


def as_key(numbers: Any, like: Any) -> Any:
    """Return an array, or a random key with this data if ``like`` is a random key."""
    return jax.random.wrap_key_data(numbers, impl=jax.random.key_impl(like)) if _is_key(like) else numbers


def _is_key(array: Any) -> bool:
    return isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
