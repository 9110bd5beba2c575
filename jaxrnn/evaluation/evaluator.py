"""Units of recordings, and their computation in this process, chunk by chunk, on all devices."""

from __future__ import annotations

import contextlib
import functools
import itertools
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxrnn._files.stores import Location, at_once
from jaxrnn._jax.context import exact_types
from jaxrnn.audio.corpus import Item
from jaxrnn.audio.recordings import open_recording
from jaxrnn.errors import InputError, optional_package
from jaxrnn.evaluation.judging import UnitMember
from jaxrnn.evaluation.metrics import Metric
from jaxrnn.evaluation.metrics.counts import Segments
from jaxrnn.evaluation.parts import Row
from jaxrnn.evaluation.systems import System, chunk_frames
from jaxrnn.version import __version__


class Evaluator:
    """An executor of units in this process, on all devices.

    ``chunk`` is in seconds. ``outputs`` is a folder; with None, no outputs are written.
    """

    workers = 1

    def __init__(
        self, system: System, metrics: Sequence[Metric], *, batch: int, chunk: float, outputs: Location | None = None
    ):
        self._chunk = chunk_frames(system, chunk, batch)
        self._system, self._metrics, self._outputs = system, metrics, outputs
        # A cache per instance: a cache of the function would keep every system alive.
        self._run = functools.cache(functools.partial(sharded, system))
        if batch % (count := jax.local_device_count()):
            raise InputError(
                f"a batch of {batch} cannot be sharded evenly over {count} devices: take a multiple of {count}"
            )

    @property
    def environment(self) -> Mapping[str, Any]:
        """Versions and devices of this process. Results of different versions or devices are not mixed."""
        device = jax.devices()[0]
        return {
            "jaxrnn": __version__,
            "jax": jax.__version__,
            "device": device.platform,
            "kind of device": device.device_kind,
            "devices": jax.local_device_count(),
            "machine": platform.machine(),
        }

    def __enter__(self) -> Self:
        # A store is visible to all workers.
        if isinstance(self._outputs, Path) and not self._outputs.parent.is_dir():
            raise InputError(
                f"there is no folder {self._outputs.parent} here: all workers need access to the results folder"
            )
        self._judge = ThreadPoolExecutor(1)
        return self

    def __exit__(self, *exception: object) -> None:
        self._judge.shutdown()

    def compute(self, units: Iterable[Unit]) -> Iterator[tuple[Unit, list[Row]]]:
        """Yield units with rows, in order; a unit is judged while the next unit is computed."""
        last: tuple[Unit, list[Future[list[Row]]]] | None = None
        for unit in itertools.chain(units, [None]):
            begun = None if unit is None else (unit, self._begin(unit))
            if last is not None:
                yield last[0], _joined(last[1])
            last = begun

    def rows(self, unit: Unit) -> list[Row]:
        """Return the rows of a unit."""
        return _joined(self._begin(unit))

    def _begin(self, unit: Unit) -> list[Future[list[Row]]]:
        """Compute the batches of a unit, and return futures of their rows, which are then judged and written."""
        listed = list(zip(unit.items, unit.lengths, strict=True))
        batches = (listed[first : first + unit.streams] for first in range(0, len(listed), unit.streams))
        return [self._begin_batch(batch, unit.streams) for batch in batches]

    def _begin_batch(self, batch: Sequence[tuple[Item, int]], streams: int) -> Future[list[Row]]:
        members = at_once(self._member, batch, [place for item, _ in batch for place in (item.path, item.reference)])
        try:
            self._compute(streams, members)
        except BaseException:
            # The shutdown waits for the judge, so that no file is begun afterwards.
            self._judge.shutdown()
            _discard(members)
            raise
        return self._judge.submit(_rows, members)

    def _member(self, listed: tuple[Item, int]) -> UnitMember:
        """Open a recording and the reference."""
        item, length = listed
        recording = open_recording(item.path, self._system.rate)
        if recording.length != length:
            raise InputError(
                f"{item.path} has {recording.length} frames, but had {length} when the evaluation began: let no "
                "recording change, and run again"
            )
        reference, problem = None, None
        if item.reference is not None:
            try:
                is_table = item.reference.suffix.lower() == ".csv"
                reference = Segments(item.reference) if is_table else open_recording(item.reference, self._system.rate)
            except InputError as error:
                problem = str(error)
        member = UnitMember(item, recording, reference, self._system, self._metrics, self._outputs)
        if problem is not None:
            member.fail(f"reference: {problem}")
        return member

    def _compute(self, streams: int, members: Sequence[UnitMember]) -> None:
        carry = self._system.start(streams)
        pending: list[Any] = []
        # A stream that ends exactly with a chunk is flushed in the next chunk.
        count = max(member.frames for member in members) // self._chunk + 1
        read = functools.partial(read_chunk, members, streams, self._chunk, self._system.before)
        for arrays, counts, errors in prefetched(read, count):
            # Only the judge's thread touches the files of a recording.
            pending += [self._judge.submit(members[place].fail, reason) for place, reason in errors.items()]
            active = [
                place not in errors and not member.ended and member.error is None
                for place, member in enumerate(members)
            ]
            if not any(active):
                break
            ending = bool((counts < self._chunk).any())
            pieces, carry = self._run(streams, ending)(carry, arrays, counts)
            for member, frames in zip(members, counts, strict=False):
                member.ended = member.ended or frames < self._chunk
            # One chunk is judged while the next is computed; waiting for older chunks bounds memory.
            while len(pending) > 1:
                pending.pop(0).result()
            pending.append(self._judge.submit(_distribute, members, active, pieces))
        for future in pending:
            future.result()


def _joined(batches: Iterable[Future[list[Row]]]) -> list[Row]:
    return [row for batch in batches for row in batch.result()]


def _rows(members: Sequence[UnitMember]) -> list[Row]:
    try:
        return at_once(UnitMember.row, members, _places(members))
    except BaseException:
        _discard(members)
        raise


def _discard(members: Sequence[UnitMember]) -> None:
    for member in members:
        member.discard()


def _distribute(members: Sequence[UnitMember], active: Sequence[bool], pieces: Mapping[str, Any]) -> None:
    """Pass the outputs of a chunk to the active members."""
    arrays = {name: (np.asarray(piece.values), np.asarray(piece.counts)) for name, piece in pieces.items()}

    def add(place: int) -> None:
        members[place].add({name: (values[place], int(counts[place])) for name, (values, counts) in arrays.items()})

    at_once(add, np.flatnonzero(active).tolist(), _places(members))


def _places(members: Sequence[UnitMember]) -> Iterator[Location | None]:
    """Yield the locations of all files that are read and written while recordings are judged."""
    return (place for member in members for place in (member.item.path, member.item.reference, member.outputs))


#: The largest number of units of a corpus, each of which becomes a file.
MOST = 20_000

#: Chunks that are read ahead, and threads for reading.
PREFETCH, THREADS = 8, 4


@dataclass(frozen=True)
class Unit:
    """Recordings that are evaluated together.

    Units do not depend on workers. Results are therefore bit-identical on any worker, also after an interruption.
    """

    index: int
    places: tuple[int, ...]  # indices of the recordings in the corpus
    items: tuple[Item, ...]
    lengths: tuple[int, ...]  # frames of each recording
    rate: int  # frames per second
    #: The batch size. Streams without a recording stay empty, because another batch size would compile again.
    streams: int

    @property
    def seconds(self) -> float:
        """The total length of the recordings."""
        return sum(self.lengths) / self.rate


class Units(Sequence[Unit]):
    """The units of a corpus, longest recordings first, made on demand.

    ``lengths`` are frames, ``int64[recordings]``; recordings with a negative length are left out. ``seconds`` is the
    total length of all recordings.
    """

    def __init__(self, corpus: Sequence[Item], lengths: np.ndarray, rate: int, batch: int):
        self._corpus, self._lengths, self._rate = corpus, lengths, rate
        order = np.argsort(-lengths, kind="stable")
        self._order = order[lengths[order] >= 0]
        count = len(self._order)
        self._streams = batch if count > batch else min(batch, 1 << max(count - 1, 0).bit_length())
        self.seconds = int(lengths[self._order].sum()) / rate
        #: The number of recordings in a unit: a batch, or in a large corpus several batches.
        self._size = batch * max(1, -(-count // (batch * MOST)))

    def __len__(self) -> int:
        return -(-len(self._order) // self._size)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[each] for each in range(len(self))[index]]
        number = range(len(self))[index]
        places = self._order[number * self._size : (number + 1) * self._size].tolist()
        items, lengths = (self._corpus[place] for place in places), self._lengths[places].tolist()
        return Unit(number, tuple(places), tuple(items), tuple(lengths), self._rate, self._streams)


#: The arrays of a chunk ``[streams, before + chunk, ...]`` by name, the number of frames of each stream in the chunk,
#: ``int32[streams]``, flushing zeros included, and reasons by the indices of unreadable recordings.
Chunk = tuple[dict[str, np.ndarray], np.ndarray, dict[int, str]]


def read_chunk(members: Sequence[UnitMember], streams: int, size: int, before: int, index: int) -> Chunk:
    """Read a chunk: the same ``size`` frames of all recordings, after ``before`` frames of the past."""
    start = int(index) * size

    def read(member: UnitMember) -> Mapping[str, np.ndarray] | str | None:
        if start - before >= member.recording.length:
            return None
        try:
            return member.recording.part(start - before, start + size)
        except InputError as error:
            return str(error)

    results = at_once(read, members, [member.item.path for member in members])
    errors = {place: result for place, result in enumerate(results) if isinstance(result, str)}
    parts = [None if isinstance(result, str) else result for result in results]
    counts = np.zeros(streams, np.int32)
    counts[: len(members)] = np.clip(np.array([member.frames for member in members]) - start, 0, size)
    # Streams without a part are zeros.
    template = next((part for part in parts if part is not None), None) or members[0].recording.part(-before - size, 0)
    parts += [None] * (streams - len(parts))
    arrays = {
        name: np.stack([np.zeros_like(array) if part is None else part[name] for part in parts])
        for name, array in template.items()
    }
    return arrays, counts, errors


def prefetched(read: Callable[[int], Chunk], count: int) -> Iterator[Chunk]:
    """Yield ``count`` chunks in order, read ahead."""
    with optional_package("grain", "evaluating a corpus", "evaluate"):
        import grain
    options = grain.ReadOptions(num_threads=min(THREADS, count), prefetch_buffer_size=PREFETCH)
    return iter(grain.MapDataset.range(count).map(read).to_iter_dataset(options))


def sharded(system: System, streams: int, ending: bool) -> Callable[..., tuple[Any, Any]]:
    """Return ``(carry, arrays, counts) -> (pieces, carry)``, with a batch that is sharded over all devices.

    Fewer than two streams per device run on one device.
    """
    run, devices = functools.partial(system.run, ending=ending), jax.local_devices()
    if len(devices) == 1 or streams % len(devices) or streams < 2 * len(devices):
        return run

    def spec(one: Any, more: Any) -> PartitionSpec:
        # The batch axis of an array of the carry is the axis that grows with the batch.
        axis = next((a for a, (x, y) in enumerate(zip(one.shape, more.shape, strict=True)) if x != y), None)
        return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, "streams")

    by_stream = PartitionSpec("streams")
    carry = jax.tree.map(spec, *(jax.eval_shape(functools.partial(system.start, size * streams)) for size in (1, 2)))
    mesh, specs = Mesh(np.array(devices), ("streams",)), (carry, by_stream, by_stream)
    compiled = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=(by_stream, carry), check_vma=False))

    def call(carry: Any, arrays: Mapping[str, Any], counts: Any) -> tuple[Any, Any]:
        # Under jit, 64-bit integers stay 64-bit only with exact types.
        is_wide = any(array.dtype.kind in "iu" and array.dtype.itemsize == 8 for array in arrays.values())
        with exact_types() if is_wide else contextlib.nullcontext():
            return compiled(carry, arrays, counts)

    return call
