"""Times of calls, times of regions from JAX's profiler, and peak rates of the machine."""

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

from jaxrnn._files.messages import short_repr
from jaxrnn.profiling.hlo import HloModule

#: Limit of recorded events, without the first two calls; reading an event takes a few microseconds.
_MOST_EVENTS = 200_000
_SECONDS = 0.3
_FEWEST_CALLS, _MOST_CALLS = 5, 300


@dataclass(frozen=True)
class Event:
    """An execution of an instruction in a call (`run`) of the program."""

    name: str
    run: Any
    nanoseconds: float
    on_host: bool


@dataclass(frozen=True)
class RecordedRegions:
    """The regions of a call."""

    #: Time of all executions of an instruction in a call: the median of the faster half of the calls.
    seconds: dict[str, float]
    #: Executions of an instruction in a call.
    counts: dict[str, int]
    #: True if the host measured the times, which then include work of the profiler.
    on_host: bool

    @property
    def shortest(self) -> float:
        """The time of the shortest execution."""
        return min((seconds / self.counts[name] for name, seconds in self.seconds.items()), default=0.0)

    def less(self, each: float) -> RecordedRegions:
        """Subtract `each` seconds from each execution."""
        taken = {name: max(seconds - each * self.counts[name], 0.0) for name, seconds in self.seconds.items()}
        return RecordedRegions(taken, self.counts, self.on_host)


def time_calls(call: Callable[[], Any], seconds: float = _SECONDS) -> list[float]:
    """Time calls until `seconds` are over, with a minimum number of calls; return the seconds of each call."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < _FEWEST_CALLS or (time.perf_counter() < end and len(times) < 100_000):
        began = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - began)
    return times


def record(call: Callable[[], Any], module: str, one_call: float) -> RecordedRegions:
    """Record calls of the program `module` with JAX's profiler; `one_call` is the approximate time of a call."""
    events = _events(call, module, 2)
    if events:
        calls = min(_MOST_CALLS, max(_FEWEST_CALLS, _SECONDS / one_call), 2 * _MOST_EVENTS / len(events))
        if calls > 2:
            events = _events(call, module, int(calls))
    return _summed(events)


def _events(call: Callable[[], Any], module: str, calls: int) -> list[Event]:
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    options.enable_hlo_proto = False  # would write all programs of the process
    jax.block_until_ready(call())
    with tempfile.TemporaryDirectory(prefix="jaxrnn-profile-") as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            for _ in range(calls):
                jax.block_until_ready(call())
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        if not files:
            return []
        with warnings.catch_warnings():
            # Types of the profiler cause warnings in Python 3.13.
            warnings.simplefilter("ignore", DeprecationWarning)
            planes = list(jax.profiler.ProfileData.from_file(str(files[0])).planes)
            events = [event for plane in planes for event in _of_plane(plane, module)]
    return [event for event in events if not event.on_host] or events


def recorder_seconds() -> float:
    """Measure the time that the profiler adds to an event on the host, with a tiny instruction."""
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


def _summed(events: Sequence[Event]) -> RecordedRegions:
    by_run: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        by_run[event.run].append(event)
    # The recording can include the end of an earlier call: keep calls with the usual number of events.
    whole = Counter(len(run) for run in by_run.values())
    usual = max(whole, key=lambda count: (whole[count], count), default=0)
    runs = [run for run in by_run.values() if len(run) == usual]
    runs.sort(key=lambda run: sum(event.nanoseconds for event in run))
    # Drop the slower half, in which other processes interrupted the program.
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
    return RecordedRegions(
        {name: statistics.median(values) for name, values in sums.items()},
        {name: round(statistics.median(values)) for name, values in counts.items()},
        any(event.on_host for event in events),
    )


#: Sizes in bytes for the bandwidth: the smallest fits the cache of a core, the largest exceeds all caches.
SIZES = tuple(1 << power for power in (19, 21, 23, 25, 28))
#: Sides of the square matrices for the peak of a matrix product.
_SIDES = (512, 1024, 2048, 4096, 8192)
_ENOUGH = 5e-3


@short_repr
@dataclass(frozen=True)
class Peaks:
    """The peak rates of the machine, measured with XLA in this process.

    Attributes:
        dtype: operand type of the matrix product.
        flops: floating-point operations per second of a large matrix product.
        bandwidths: bytes per second by the size of an array in bytes: the maximum over repeated copies in place
            (reading and writing) and repeated matrix-vector products (reading).
    """

    dtype: str
    flops: float
    bandwidths: dict[int, float]

    def bandwidth(self, working_set: float) -> float:
        """Return the bytes per second for a working set in bytes, measured on the next larger array."""
        larger = [size for size in sorted(self.bandwidths) if size >= working_set]
        return self.bandwidths[larger[0] if larger else max(self.bandwidths)]


def measure_peaks(dtype: Any = "float32", sizes: Sequence[int] = SIZES) -> Peaks:
    """Measure the peak rates of the machine, which takes about two seconds on a CPU core.

    Args:
        dtype: operand type of the matrix product; the result of narrower types is float32.
        sizes: sizes in bytes of the arrays for the bandwidth.
    """
    kind = jnp.dtype(dtype)
    return Peaks(kind.name, _matrix_product(kind), {size: _bandwidth(size) for size in sizes})


def _matrix_product(dtype: Any) -> float:
    """Return the best rate over growing matrices, up to the first product that takes long enough."""
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
    """Return the better rate of reading and copying an array of `nbytes`, repeated in a single call."""
    columns = 1024
    rows = max(nbytes // (4 * columns), 1)
    matrix, vector = jnp.full((rows, columns), 1e-3, jnp.float32), jnp.ones(columns, jnp.float32)
    # Each product depends on the last product, so XLA cannot skip products or move products out of the loop.
    times = max(2, (1 << 28) // nbytes)
    read = jax.jit(lambda a, v: lax.fori_loop(0, times, lambda _, w: w.at[:1].set(lax.dot(a, w)[:1]), v)).lower(
        matrix, vector
    )
    copied = jax.jit(lambda a: lax.fori_loop(0, times, lambda _, b: b * jnp.float32(0.999), a)).lower(matrix)
    reading, copying = read.compile(), copied.compile()
    moved = float(times * matrix.nbytes)
    return max(moved / _best(lambda: reading(matrix, vector)), 2 * moved / _best(lambda: copying(matrix)))


def _best(call: Callable[[], Any]) -> float:
    """Return the shortest of a few calls, in seconds."""
    jax.block_until_ready(call())
    return max(min(time_calls(call, 0.0)), 1e-9)
