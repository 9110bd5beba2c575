"""Fresh processes, in which starts and memory are measured, and the peak memory of a process or its device."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax


def forget_peak() -> int:
    """Reset the peak that the system records, and return the bytes in use."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes()


def peak_bytes() -> int:
    """Return the peak memory of the process, or on an accelerator of the device, in bytes."""
    statistics = jax.devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in statistics:
        return int(statistics["peak_bytes_in_use"])
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class ChildError(RuntimeError):
    """A child process failed."""


def run_child(module: str, *arguments: str, cache: Path | None = None, platform: str | None = "cpu") -> dict[str, Any]:
    """Run a module in a fresh process and read the JSON object in the last line that it prints.

    Args:
        module: the name of the module.
        arguments: the arguments on the command line.
        cache: the folder in which JAX keeps compiled functions; None to keep nothing.
        platform: the platform of JAX; None to use JAX's default.

    Raises:
        ChildError: the process failed; the message is the last line of standard error.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith("JAX_COMPILATION_CACHE")}
    # Packages that pip installed have bytecode, so a user's process does not compile sources.
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    if cache is not None:
        kept |= {
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
    if platform is not None:
        kept["JAX_PLATFORMS"] = platform
    # The child process finds this package from any folder.
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent.parent), kept.get("PYTHONPATH")]))
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=kept, check=False)
    if done.returncode:
        raise ChildError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}")
    return json.loads(done.stdout.strip().splitlines()[-1])
