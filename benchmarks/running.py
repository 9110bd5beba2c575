"""A run of a benchmark: cases run in sequence, and a failure does not stop the next case."""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import jax

from benchmarks.machine import environment
from benchmarks.peers import absent, one_line
from benchmarks.plan import Plan
from benchmarks.results import SUBJECT, Result, Row

#: The benchmark that runs on the first device of JAX.
ON_FIRST_DEVICE = "accelerator"


def benchmark_module(name: str) -> ModuleType:
    """Import the module of a benchmark, with ``TITLE``, ``UNIT`` and ``cases``."""
    return importlib.import_module(f"benchmarks.{name}")


def run(
    name: str, plan: Plan, cores: str, prepared: dict[str, Any], shown: Callable[[Row], None] | None = None
) -> Result:
    """Run a benchmark; the result lists cases that fail. ``shown`` is called with each row."""
    module = benchmark_module(name)
    result = Result(
        benchmark=name,
        title=module.TITLE,
        unit=module.UNIT,
        cores=cores,
        quick=plan.quick,
        command=" ".join(["python -m benchmarks", *sys.argv[1:]]),
        environment=environment(prepared),
        absent=absent(),
    )
    began = time.monotonic()
    # All other benchmarks run on the CPU, like the peers.
    device = contextlib.nullcontext() if name == ON_FIRST_DEVICE else jax.default_device(jax.devices("cpu")[0])
    with device, _counting(name, len(cases := list(plan.chosen(module.cases(plan)).items()))) as indices:
        for index in indices:
            case, rows = cases[index]
            if plan.minutes is not None and time.monotonic() - began > 60 * plan.minutes:
                result.rows.append(Row(case, "left out", {}, refused={SUBJECT: f"not begun in {plan.minutes} minutes"}))
                continue
            try:
                for row in rows():
                    result.rows.append(row)
                    if shown is not None:
                        shown(row)
            except Exception as error:  # one case must not end a run of hours
                result.failures[case] = f"{type(error).__name__}: {one_line(error)}"
            # The next case starts with empty caches, like the first case.
            jax.clear_caches()
    result.seconds = time.monotonic() - began
    return result


def _counting(name: str, count: int) -> contextlib.AbstractContextManager[Iterable[int]]:
    """Return numbers with a progress bar, or without a bar where the packages of the command line are missing."""
    try:
        from jaxrnn.cli.output import counting
    except ModuleNotFoundError:
        return contextlib.nullcontext(range(count))
    return counting(name, count)
