"""How things are timed: pinned to one core, interleaved in one process, after the outputs have been seen to agree."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import jax
import numpy as np

Call = Callable[[], Mapping[str, Any]]


@dataclass(frozen=True)
class Timing:
    """Microseconds a call: the median, and the quartiles around it."""

    median: float
    low: float
    high: float


def pin_to_one_core() -> int | None:
    """Keep this process on one core, where the system allows it; returns which."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return core


def prepare() -> dict[str, Any]:
    """Pin the process to one core and have JAX compute in the calling thread; says what was done, for the record.

    A step is shorter than handing it to another thread.
    """
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    return {"pinned_core": pin_to_one_core(), "jax_cpu_enable_async_dispatch": False}


def largest_difference(calls: Mapping[str, Call]) -> float:
    """The largest absolute difference between the outputs of any contender and the first one's."""
    first, *others = (call() for call in calls.values())
    worst = 0.0
    for other in others:
        for name, value in first.items():
            worst = max(worst, float(np.max(np.abs(np.asarray(value) - np.asarray(other[name])), initial=0)))
    return worst


def interleaved(calls: Mapping[str, Call], rounds: int, calls_a_round: int) -> dict[str, Timing]:
    """Time the contenders in turn, round after round, so that a slow moment of the machine meets all of them."""
    for call in calls.values():
        for _ in range(calls_a_round):
            call()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter_ns()
            for _ in range(calls_a_round):
                call()
            samples[name].append((time.perf_counter_ns() - start) / calls_a_round / 1000)
    return {name: Timing(statistics.median(times), *_quartiles(times)) for name, times in samples.items()}


def _quartiles(times: list[float]) -> tuple[float, float]:
    low, _, high = statistics.quantiles(times, n=4)
    return low, high


def surroundings(prepared: Mapping[str, Any]) -> dict[str, Any]:
    """The machine, how it was `prepare`d, and the versions, for the record."""
    packages = ("jax", "jaxlib", "onnx", "onnxruntime", "numpy")
    return {
        "machine": platform.machine(),
        "processor": _processor(),
        **prepared,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
        **_version_of("tract"),
        **_version_of("torch"),
    }


def _version_of(package: str) -> dict[str, str]:
    """The version of a peer that need not be installed."""
    try:
        return {package: metadata.version(package)}
    except metadata.PackageNotFoundError:
        return {}


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
