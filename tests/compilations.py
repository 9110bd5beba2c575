"""Counting what JAX compiles."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
    """A list that has one entry for each program that JAX compiles inside, cached ones included."""
    counted: list[str] = []

    def listen(event: str, *_: object, **__: object) -> None:
        if event.endswith("backend_compile_duration"):
            counted.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield counted
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
