"""`profile`: a function compiled, timed, recorded, and its parts held against what the machine can do."""

from __future__ import annotations

import dataclasses
import os
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from jaxrnn._files.messages import first_line
from jaxrnn.errors import InputError
from jaxrnn.profiling.costs import cost_of
from jaxrnn.profiling.hlo import Computation, HloModule, Instruction
from jaxrnn.profiling.nodes import Names, shares_of
from jaxrnn.profiling.peaks import Peaks, measure_peaks
from jaxrnn.profiling.results import Profile
from jaxrnn.profiling.rows import Region
from jaxrnn.profiling.traces import Recorded, record, recorder_seconds, time_calls

_FLOATS = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_ANALYSIS = {"flops": "flops", "transcendentals": "transcendentals", "bytes accessed": "bytes"}


def profile(
    function: Callable[..., Any],
    *arguments: Any,
    label: str | None = None,
    nodes: Mapping[str, str] | None = None,
    peaks: Peaks | bool = True,
) -> Profile:
    """Compile a function and say where the time of a call goes.

    It is called again and again with the same arguments: without JAX's profiler for the time of a call, and under it
    for the times of the regions of the compiled program. What the recorder adds to each region is measured and taken
    off. What is left of a call beside its regions is shown as the rest. Arguments must not be donated. On the CPU a
    call is shorter in a process that begins with ``jax.config.update("jax_cpu_enable_async_dispatch", False)``.

    Args:
        function: what ``jax.jit`` takes, or has made.
        arguments: what to call it with.
        label: what to call it.
        nodes: names of scopes (``jax.named_scope``, as a model enters for each of its nodes) and what they are; by
            default every scope is a node, as it is written in the program.
        peaks: the machine's limits; True measures them, which takes a few seconds, False leaves them out.

    Raises:
        InputError: the function cannot be called a second time with its arguments.
    """
    name = label or getattr(function, "__name__", None) or type(function).__name__
    jitted: Any = function if hasattr(function, "lower") else jax.jit(function)
    compiled = jitted.lower(*arguments).compile()

    def call() -> Any:
        return compiled(*arguments)

    try:
        jax.block_until_ready(call())
        first = time_calls(call)
    except (RuntimeError, ValueError) as error:
        if "donated" not in str(error) and "deleted" not in str(error):
            raise
        raise InputError(f"{name} cannot be profiled: a call used its arguments up; do not donate them") from error
    module = HloModule.parse(compiled.as_text() or "")
    recorded, notes = _record(call, module, statistics.median(first))
    times = np.array([*first, *time_calls(call)])
    if peaks is True:
        peaks = measure_peaks(_dtype_of(module))
    names = Names(None if nodes is None else list(nodes))
    regions = sorted(_regions(module, recorded, names), key=lambda region: -region.seconds)
    seconds = float(np.median(times))
    in_regions = sum(region.seconds for region in regions)
    if in_regions > seconds:
        notes.append(
            f"the regions, recorded, took {in_regions / seconds:.2f} times as long as a call without the recorder (it "
            "slows loops down, or regions ran beside each other): their times are divided by that, and what lies "
            "between them is part of them"
        )
        scale = seconds / in_regions
        regions = [dataclasses.replace(region, seconds=region.seconds * scale) for region in regions]
    rest = max(seconds - in_regions, 0.0)
    if regions and all(not region.nodes for region in regions):
        notes.append("no region could be traced to a node: the compiled program does not name them")
    return Profile(
        label=name,
        device=_device(arguments, compiled),
        threads=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        seconds=seconds,
        fastest=float(np.percentile(times, 10)),
        slowest=float(np.percentile(times, 90)),
        calls=len(times),
        regions=tuple(regions),
        rest=rest,
        xla=_analysis(compiled),
        peaks=peaks or None,
        operators=dict(nodes or {}),
        notes=tuple(notes),
    )


def _record(call: Callable[[], Any], module: HloModule, seconds: float) -> tuple[Recorded, list[str]]:
    """The recording, and what to say about it."""
    nothing = Recorded({}, {}, False)
    try:
        recorded = record(call, module.name, seconds)
    except RuntimeError as error:
        return nothing, [f"JAX's profiler did not run, so there are no regions: {first_line(error)}"]
    containers = {name for name in recorded.seconds if _contains(module, name, recorded)}
    leaves = {name: value for name, value in recorded.seconds.items() if name not in containers}
    if not leaves:
        platform = jax.default_backend()
        return nothing, [f"the backend {platform!r} reports no regions: only the call as a whole is timed"]
    regions = Recorded(leaves, recorded.counts, recorded.on_host)
    if regions.on_host:
        # A loop's events leave the caches, and the recorder's work takes longer there than where it was measured.
        regions = regions.less(min(regions.shortest, 2 * recorder_seconds()))
    return regions, []


def _contains(module: HloModule, name: str, recorded: Recorded) -> bool:
    """Whether an instruction only runs others that were seen themselves, as a loop does."""
    place = module.find(name)
    if place is None or place[1].opcode == "fusion":
        return False
    return any(inner.name in recorded.seconds for inner in module.inside(place[1]))


def _regions(module: HloModule, recorded: Recorded, names: Names) -> Iterator[Region]:
    sets: dict[str, float] = {}
    for name, seconds in recorded.seconds.items():
        place = module.find(name)
        executions = recorded.counts[name]
        if place is None:
            continue
        computation, item = place
        if computation.name not in sets:
            sets[computation.name] = working_set(module, computation)
        yield Region(
            name=name,
            opcode=item.opcode,
            nodes=shares_of(module, computation, item, names),
            seconds=seconds,
            executions=executions,
            cost=cost_of(module, computation, item) * executions,
            working_set=sets[computation.name],
        )


def working_set(module: HloModule, computation: Computation) -> float:
    """The bytes that a computation goes through in one execution, those of its loops in one trip."""
    return sum(_touched(module, computation, item) for item in computation.instructions.values())


def _touched(module: HloModule, computation: Computation, item: Instruction) -> float:
    if item.opcode in ("while", "conditional", "call"):
        return sum(working_set(module, body) for body in module.called(item))
    return cost_of(module, computation, item).nbytes


def _dtype_of(module: HloModule) -> str:
    """The type of the operands of most of the work in products of matrices and convolutions; float32 without any."""
    work: dict[str, float] = {}
    for computation in module.computations.values():
        for item in computation.instructions.values():
            operand = computation.instructions.get(item.operands[0]) if item.operands else None
            if item.opcode in ("dot", "convolution") and operand is not None and operand.shape.dtype in _FLOATS:
                kind = _FLOATS[operand.shape.dtype]
                work[kind] = work.get(kind, 0.0) + cost_of(module, computation, item).flops
    return max(work, key=lambda kind: work[kind], default="float32")


def _analysis(compiled: Any) -> dict[str, float]:
    """XLA's own figures for the whole program; empty where the backend has none."""
    analysis = compiled.cost_analysis() or {}
    return {name: float(analysis[key]) for key, name in _ANALYSIS.items() if key in analysis}


def _device(arguments: Any, compiled: Any) -> str:
    leaves = [leaf for leaf in jax.tree.leaves(arguments) if isinstance(leaf, jax.Array)]
    device = next(iter(leaves[0].devices())) if leaves else jax.devices()[0]
    return f"{device.platform}:{device.id} ({device.device_kind})"
