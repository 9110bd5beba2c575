"""A run of a benchmark: cases run in sequence, and a failure does not stop the next case."""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from types import ModuleType
from typing import Any

import jax

from benchmarks.machine import environment
from benchmarks.peers import absent, one_line
from benchmarks.plan import Plan
from benchmarks.results import Result
from jaxrnn.cli.output import counting

#: The benchmark that runs on the first device of JAX.
ON_FIRST_DEVICE = "accelerator"


def benchmark_module(name: str) -> ModuleType:
    """Import the module of a benchmark, with ``TITLE``, ``UNIT`` and ``cases``."""
    return importlib.import_module(f"benchmarks.{name}")


def run(name: str, plan: Plan, cores: str, prepared: dict[str, Any]) -> Result:
    """Run a benchmark; the result lists cases that fail."""
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
    with device, counting(name, len(cases := list(plan.chosen(module.cases(plan)).items()))) as indices:
        for index in indices:
            case, rows = cases[index]
            try:
                result.rows.extend(rows())
            except Exception as error:  # one case must not end a run of hours
                result.failures[case] = f"{type(error).__name__}: {one_line(error)}"
            # The next case starts with empty caches, like the first case.
            jax.clear_caches()
    result.seconds = time.monotonic() - began
    return result
