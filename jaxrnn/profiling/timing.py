"""Times of calls and of the regions in them, and the peak rates of the machine."""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxrnn._files.messages import brief
from jaxrnn.profiling.hlo import HloModule

#: Events that are recorded at most, if two calls do not have more: reading them back takes a few microseconds each.
_MOST_EVENTS = 200_000
_SECONDS = 0.3
_CALLS = 5, 300


@dataclass(frozen=True)
class Event:
    """One execution of an instruction: how long, in which call of the program, and whether the host ran it."""

    name: str
    run: Any
    nanoseconds: float
    on_host: bool


@dataclass(frozen=True)
class Recorded:
    """Regions of one call.

    Attributes:
        seconds: by instruction, all its executions in a call together: the median of the faster half of the calls.
        counts: by instruction, its executions in a call.
        on_host: whether the host's clock took them, so that the recorder's own work is among them.
    """

    seconds: dict[str, float]
    counts: dict[str, int]
    on_host: bool

    @property
    def shortest(self) -> float:
        """Seconds of the shortest execution."""
        return min((seconds / self.counts[name] for name, seconds in self.seconds.items()), default=0.0)

    def less(self, each: float) -> Recorded:
        """The same with so many seconds taken off each execution."""
        taken = {name: max(seconds - each * self.counts[name], 0.0) for name, seconds in self.seconds.items()}
        return Recorded(taken, self.counts, self.on_host)


def time_calls(call: Callable[[], Any], seconds: float = _SECONDS) -> list[float]:
    """Seconds of each call, from the call to its results; as many calls as fit the time, but a few at least."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < _CALLS[0] or (time.perf_counter() < end and len(times) < 100_000):
        began = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - began)
    return times


def record(call: Callable[[], Any], module: str, one_call: float) -> Recorded:
    """Call a compiled program under JAX's profiler.

    Args:
        call: calls the program once.
        module: the name of its HLO module.
        one_call: seconds of a call, roughly.
    """
    events = _events(call, module, 2)
    if events:
        calls = min(_CALLS[1], max(_CALLS[0], _SECONDS / one_call), 2 * _MOST_EVENTS / len(events))
        if calls > 2:
            events = _events(call, module, int(calls))
    return _summed(events)


def _events(call: Callable[[], Any], module: str, calls: int) -> list[Event]:
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    options.enable_hlo_proto = False  # of every program that the process holds
    jax.block_until_ready(call())
    with tempfile.TemporaryDirectory(prefix="jaxrnn-profile-") as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            for _ in range(calls):
                jax.block_until_ready(call())
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        if not files:
            return []
        with warnings.catch_warnings():
            # Python 3.13 warns of how the profiler's own types were built.
            warnings.simplefilter("ignore", DeprecationWarning)
            return list(_read(jax.profiler.ProfileData.from_file(str(files[0])), module))


def _read(data: Any, module: str) -> Iterator[Event]:
    """The events of a program's instructions: of the accelerator where one ran it, else of the host."""
    planes = list(data.planes)
    events = [event for plane in planes if plane.name.startswith("/device:") for event in _of_plane(plane, module)]
    if not events:
        events = [event for plane in planes for event in _of_plane(plane, module)]
    return iter(events)


def recorder_seconds() -> float:
    """What the recorder itself adds to an event on the host: the time of an event in which next to nothing is done."""
    call = jax.jit(lambda x: jnp.cumsum(x[::-1])[::2] @ x[:4]).lower(jnp.ones(8)).compile()
    example = jnp.ones(8)
    recorded = record(lambda: call(example), HloModule.parse(call.as_text() or "").name, 1e-4)
    return recorded.shortest if recorded.on_host else 0.0


def _of_plane(plane: Any, module: str) -> Iterator[Event]:
    for line in plane.lines:
        for event in line.events:
            stats = dict(event.stats)
            name = stats.get("hlo_op")
            if name and stats.get("hlo_module") in (None, module):
                yield Event(str(name), stats.get("run_id"), event.duration_ns, not plane.name.startswith("/device:"))


def _summed(events: Sequence[Event]) -> Recorded:
    by_run: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        by_run[event.run].append(event)
    # The end of an earlier call can reach into the recording: it is no whole call.
    whole = Counter(len(run) for run in by_run.values())
    usual = max(whole, key=lambda count: (whole[count], count), default=0)
    runs = [run for run in by_run.values() if len(run) == usual]
    runs.sort(key=lambda run: sum(event.nanoseconds for event in run))
    # Those in which something else had the processor for a while say nothing of the program.
    runs = runs[: (len(runs) + 1) // 2]
    sums: dict[str, list[float]] = defaultdict(list)
    counts: dict[str, list[int]] = defaultdict(list)
    for run in runs:
        spent: dict[str, float] = defaultdict(float)
        times = Counter(event.name for event in run)
        for event in run:
            spent[event.name] += event.nanoseconds
        for name, nanoseconds in spent.items():
            sums[name].append(nanoseconds * 1e-9)
            counts[name].append(times[name])
    return Recorded(
        {name: statistics.median(values) for name, values in sums.items()},
        {name: round(statistics.median(values)) for name, values in counts.items()},
        any(event.on_host for event in events),
    )


#: Bytes of the arrays that bandwidth is measured on: the smallest fits a core's own cache, the largest no cache.
SIZES = tuple(1 << power for power in (19, 21, 23, 25, 28))
#: Sides of the square matrices whose product is taken.
_SIDES = (512, 1024, 2048, 4096, 8192)
_ENOUGH = 5e-3


@brief
@dataclass(frozen=True)
class Peaks:
    """The machine's limits, as XLA reaches them in this process.

    Attributes:
        dtype: of the matrix product.
        flops: floating-point operations a second of a large matrix product.
        bandwidths: bytes a second by the size of the array that is gone through again and again: the best of a copy
            in place (reading and writing) and a product of a matrix and a vector (reading).
    """

    dtype: str
    flops: float
    bandwidths: dict[int, float]

    def bandwidth(self, working_set: float) -> float:
        """Bytes a second for data that is used again after so many bytes: that of the next larger array measured."""
        larger = [size for size in sorted(self.bandwidths) if size >= working_set]
        return self.bandwidths[larger[0] if larger else max(self.bandwidths)]


def measure_peaks(dtype: Any = "float32", sizes: Sequence[int] = SIZES) -> Peaks:
    """Measure the machine, in about two seconds on a CPU core.

    Args:
        dtype: of the operands of the matrix product; its result is float32 where they are narrower.
        sizes: bytes of the arrays that bandwidth is measured on.
    """
    kind = jnp.dtype(dtype)
    return Peaks(kind.name, _matrix_product(kind), {size: _bandwidth(size) for size in sizes})


def _matrix_product(dtype: Any) -> float:
    """The best rate over growing matrices, until one takes long enough to be timed."""
    best = 0.0
    result = jnp.float32 if dtype.itemsize < 4 else dtype
    for side in _SIDES:
        matrix = jnp.ones((side, side), dtype)
        product = jax.jit(lambda a: lax.dot(a, a, preferred_element_type=result)).lower(matrix).compile()
        seconds = _best(lambda call=product, a=matrix: call(a))
        best = max(best, 2.0 * side**3 / seconds)
        if seconds > _ENOUGH:
            break
    return best


def _bandwidth(nbytes: int) -> float:
    """The better of reading and copying an array of so many bytes, many times in one call."""
    columns = 1024
    rows = max(nbytes // (4 * columns), 1)
    matrix, vector = jnp.full((rows, columns), 1e-3, jnp.float32), jnp.ones(columns, jnp.float32)
    # A product takes one result of the last one, so that none can be left out or moved out of the loop.
    times = max(2, (1 << 28) // nbytes)
    read = jax.jit(lambda a, v: lax.fori_loop(0, times, lambda _, w: w.at[:1].set(lax.dot(a, w)[:1]), v)).lower(
        matrix, vector
    )
    copied = jax.jit(lambda a: lax.fori_loop(0, times, lambda _, b: b * jnp.float32(0.999), a)).lower(matrix)
    reading, copying = read.compile(), copied.compile()
    moved = float(times * matrix.nbytes)
    return max(moved / _best(lambda: reading(matrix, vector)), 2 * moved / _best(lambda: copying(matrix)))


def _best(call: Callable[[], Any]) -> float:
    """The shortest of a few calls, in seconds."""
    jax.block_until_ready(call())
    return max(min(time_calls(call, 0.0)), 1e-9)
