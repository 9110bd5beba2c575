"""The instruction sets of the processor, without JAX: commands choose JAX's cache before the import of JAX."""

from __future__ import annotations

import contextlib
import functools
import platform


@functools.cache
def features() -> tuple[str, ...]:
    """Return the names of the processor's instruction sets, which machine code needs, or the name of the processor."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith(("flags", "Features")):
                return tuple(sorted(line.partition(":")[2].split()))
    return tuple(filter(None, [platform.processor()]))
