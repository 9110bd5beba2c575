"""What tells the processor of this machine from others, whose machine code may not run here."""

from __future__ import annotations

import contextlib
import functools
import platform


@functools.cache
def features() -> tuple[str, ...]:
    """The instruction sets of the processor by the names that the system has for them, or what else it says of it."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith(("flags", "Features")):
                return tuple(sorted(line.partition(":")[2].split()))
    return tuple(filter(None, [platform.processor()]))
