"""Devices, and the instruction sets of the processor, which decide if machine code can run here."""

from __future__ import annotations

import contextlib
import functools
import platform
from typing import Any

import jax


@functools.cache
def features() -> tuple[str, ...]:
    """Return the names of the instruction sets of the processor, or the name of the processor."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith(("flags", "Features")):
                return tuple(sorted(line.partition(":")[2].split()))
    return tuple(filter(None, [platform.processor()]))


def default_device() -> Any:
    """Return the device on which JAX puts new arrays."""
    (device,) = jax.device_put(0).devices()
    return device


def in_calling_thread(device: Any) -> Any:
    """Return a device for the programs of this one that computes in the calling thread, if JAX has such a device.

    JAX's own CPU device passes each program to another thread, which takes half as long as a step of a small network.
    Arrays cannot be used on both devices: move them through the host.
    """
    return _synchronous_cpu() or device if device.platform == "cpu" else device


@functools.cache
def _synchronous_cpu() -> Any:
    try:
        from jaxlib import xla_client

        return xla_client.make_cpu_client(asynchronous=False).local_devices()[0]
    except Exception:  # any error: this interface of JAX is private
        return None
