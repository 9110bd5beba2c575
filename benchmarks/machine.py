"""The machine of a run: cores, processor, memory and versions."""

from __future__ import annotations

import datetime
import os
import platform
from importlib import metadata
from typing import Any

#: Packages whose versions are recorded.
PACKAGES = (
    "jaxrnn",
    "jax",
    "jaxlib",
    "numpy",
    "onnx",
    "onnxruntime",
    "tract",
    "ai-edge-litert",
    "openvino",
    "torch",
)

#: Vector extensions by the flag of a processor, the widest first.
VECTORS = {"avx512f": "AVX-512", "avx2": "AVX2"}


def prepare(cores: str) -> dict[str, Any]:
    """Pin the process to one core for cores ``one``, and return the settings. JAX keeps its defaults, as for a user."""
    pinned = pin_to_one_core() if cores == "one" else None
    return {"pinned_core": pinned, "threads": threads(cores)}


def pin_to_one_core() -> int | None:
    """Pin this process to one core if the system can, and return its number."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return core


def threads(cores: str) -> int:
    """Return the number of threads that an engine may use."""
    if cores == "one":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment(prepared: dict[str, Any]) -> dict[str, Any]:
    """Describe the machine, the preparation and the versions."""
    import jax

    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "processor": processor(),
        "vectors": vectors(),
        "cores": os.cpu_count(),
        "memory_gb": memory_gb(),
        "system": f"{platform.system()} {platform.release()}",
        "device": jax.devices()[0].device_kind,
        **prepared,
        "python": platform.python_version(),
        **versions(),
    }


def versions() -> dict[str, str]:
    """Return versions of installed packages."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def processor() -> str:
    """Return the name of the processor without trademarks."""
    name = _cpu_info("model name") or platform.processor() or platform.machine()
    return " ".join(name.replace("(R)", "").replace("(TM)", "").removesuffix("Processor").split())


def vectors() -> str | None:
    """Return the widest vector extension of the processor, if the system reports it."""
    flags = (_cpu_info("flags") or "").split()
    return next((name for flag, name in VECTORS.items() if flag in flags), None)


def _cpu_info(key: str) -> str | None:
    """Read an entry about the first processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next((line.split(":")[1].strip() for line in lines if line.startswith(key)), None)
    except OSError:
        return None


def memory_gb() -> float | None:
    """Return the memory of the machine in 10^9 bytes, if the system reports it."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (AttributeError, ValueError, OSError):
        return None
