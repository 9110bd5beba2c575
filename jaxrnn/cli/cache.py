"""Programs that JAX compiled, kept for the next command."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import sys
from pathlib import Path

from jaxrnn._jax.processors import features

#: The most bytes that are kept; what was not used for longest goes first.
_SIZE = 1 << 30


def keep_programs() -> None:
    """Have JAX, which must not be imported yet, keep what it compiles in the user's cache folder.

    What ``JAX_COMPILATION_CACHE_DIR`` and the variables beside it say goes before. Where there can be no such folder,
    nothing is kept.
    """
    if "jax" in sys.modules:
        return  # a part of another program, which decides for itself
    import platformdirs

    folder = Path(platformdirs.user_cache_path("jaxrnn")) / "programs" / _processor()
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            return
    for name, value in {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_COMPILATION_CACHE_MAX_SIZE": str(_SIZE),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }.items():
        os.environ.setdefault(name, value)


def _processor() -> str:
    """What tells the processor of this machine from others, which may share the folder: it may lack instructions."""
    described = " ".join([platform.machine(), *features()])
    return hashlib.sha256(described.encode()).hexdigest()[:16]
