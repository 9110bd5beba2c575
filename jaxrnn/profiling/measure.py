"""`profile`: compile a function, time calls and regions, and trace the regions back to ONNX nodes or scopes."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from jaxrnn._files.messages import first_line
from jaxrnn.errors import InputError
from jaxrnn.profiling.hlo import Computation, HloModule, Instruction, cost_of
from jaxrnn.profiling.results import Profile, Region
from jaxrnn.profiling.timing import Peaks, RecordedRegions, measure_peaks, record, recorder_seconds, time_calls

_FLOATS = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_ANALYSIS = {"flops": "flops", "transcendentals": "transcendentals", "bytes accessed": "bytes"}


def profile(
    function: Callable[..., Any],
    *arguments: Any,
    label: str | None = None,
    nodes: Mapping[str, str] | None = None,
    peaks: Peaks | bool = True,
) -> Profile:
    """Compile a function and measure the time of each part of a call.

    The function is called repeatedly with equal arguments: without JAX's profiler for the time of a call, and with the
    profiler for the times of the regions of the compiled program. The time that the profiler adds to each region is
    measured and subtracted. The remaining time of a call is the rest. Arguments must not be donated. On the CPU, calls
    are faster in a process that starts with ``jax.config.update("jax_cpu_enable_async_dispatch", False)``.

    Args:
        function: a function for ``jax.jit``, or the result of ``jax.jit``.
        arguments: arguments of the function.
        label: name in the profile; by default the name of the function.
        nodes: a dict from scopes to operators. A model enters a ``jax.named_scope`` for each node. By default, each
            scope of the program is a node.
        peaks: peaks of the machine; True measures the peaks in a few seconds, False omits the peaks.

    Raises:
        InputError: a call consumed the arguments.
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
        raise InputError(f"{name} cannot be profiled: a call consumed its arguments; do not donate them") from error
    module = HloModule.parse(compiled.as_text() or "")
    recorded, notes = _record(call, module, statistics.median(first))
    times = np.array([*first, *time_calls(call)])
    if peaks is True:
        peaks = measure_peaks(_dtype_of(module))
    names = NodeNames(None if nodes is None else list(nodes))
    regions = sorted(_regions(module, recorded, names), key=lambda region: -region.seconds)
    seconds = float(np.median(times))
    in_regions = sum(region.seconds for region in regions)
    if in_regions > seconds:
        notes.append(
            f"the recorded regions took {in_regions / seconds:.2f} times as long as a call without the profiler (the "
            "profiler slows loops down, or regions ran in parallel): the times of the regions are divided by this "
            "factor, and include the gaps between regions"
        )
        scale = seconds / in_regions
        regions = [dataclasses.replace(region, seconds=region.seconds * scale) for region in regions]
    rest = max(seconds - in_regions, 0.0)
    analysis = compiled.cost_analysis() or {}  # some backends have no cost analysis
    if regions and all(not region.nodes for region in regions):
        notes.append("no region could be traced to a node: the compiled program contains no scopes")
    return Profile(
        label=name,
        device=_device(arguments),
        threads=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        seconds=seconds,
        fastest=float(np.percentile(times, 10)),
        slowest=float(np.percentile(times, 90)),
        calls=len(times),
        regions=tuple(regions),
        rest=rest,
        xla={name: float(analysis[key]) for key, name in _ANALYSIS.items() if key in analysis},
        peaks=peaks or None,
        operators=dict(nodes or {}),
        notes=tuple(notes),
    )


def _record(call: Callable[[], Any], module: HloModule, seconds: float) -> tuple[RecordedRegions, list[str]]:
    """Record the regions of a call; return the recording and notes for the reader."""
    nothing = RecordedRegions({}, {}, False)
    try:
        recorded = record(call, module.name, seconds)
    except RuntimeError as error:
        return nothing, [f"there are no regions, because JAX's profiler failed: {first_line(error)}"]
    # Loops contain other recorded instructions; fusions do not.
    places = {name: place for name in recorded.seconds if (place := module.find(name)) is not None}
    containers = {
        name
        for name, (_, item) in places.items()
        if item.opcode != "fusion" and any(inner.name in recorded.seconds for inner in module.inside(item))
    }
    leaves = {name: value for name, value in recorded.seconds.items() if name not in containers}
    if not leaves:
        platform = jax.default_backend()
        return nothing, [f"the backend {platform!r} reports no regions: only whole calls are timed"]
    regions = RecordedRegions(leaves, recorded.counts, recorded.on_host)
    if regions.on_host:
        # In a loop, events leave the caches, so the profiler takes longer than in `recorder_seconds`.
        regions = regions.less(min(regions.shortest, 2 * recorder_seconds()))
    return regions, []


def _regions(module: HloModule, recorded: RecordedRegions, names: NodeNames) -> Iterator[Region]:
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
    """Return the bytes that a computation touches in a single execution, with one trip of each loop."""
    touched = 0.0
    for item in computation.instructions.values():
        if item.opcode in ("while", "conditional", "call"):
            touched += sum(working_set(module, body) for body in module.called(item))
        else:
            touched += cost_of(module, computation, item).nbytes
    return touched


def _dtype_of(module: HloModule) -> str:
    """Return the operand type of matrix products and convolutions with the most work, by default float32."""
    work: dict[str, float] = {}
    for computation in module.computations.values():
        for item in computation.instructions.values():
            operand = computation.instructions.get(item.operands[0]) if item.operands else None
            if item.opcode in ("dot", "convolution") and operand is not None and operand.shape.dtype in _FLOATS:
                kind = _FLOATS[operand.shape.dtype]
                work[kind] = work.get(kind, 0.0) + cost_of(module, computation, item).flops
    return max(work, key=lambda kind: work[kind], default="float32")


def _device(arguments: Any) -> str:
    leaves = [leaf for leaf in jax.tree.leaves(arguments) if isinstance(leaf, jax.Array)]
    device = next(iter(leaves[0].devices())) if leaves else jax.devices()[0]
    return f"{device.platform}:{device.id} ({device.device_kind})"


#: JAX writes a transformation around the scope, as in ``vmap(lstm)``.
_WRAPPED = re.compile(r"\b(?:vmap|jvp|transpose|pmap|shard_map)\(([^()]*)\)")
_CALL = re.compile(r"^(?:jit|pjit)\(.*?\)/")
_MOVES = {"bitcast", "copy", "reshape", "transpose", "broadcast", "convert"}
#: Additions that take as long as a transcendental function.
_TRANSCENDENTAL = 16
#: Longest chain of readers from an instruction without a scope to a reader with a scope.
_FAR = 3


class NodeNames:
    """The nodes of a program by the scopes in an ``op_name``. Without names of nodes, each scope is a node."""

    def __init__(self, nodes: Collection[str] | None):
        self._nodes = None if nodes is None else [name for name in nodes if name]
        self.find = functools.cache(self._find)

    def _find(self, op_name: str) -> str | None:
        """Return the innermost node of an operation, or None."""
        if self._nodes is None:  # the scopes between the function and the primitive
            return _CALL.sub("", _unwrapped(op_name)).rpartition("/")[0] or None
        for path in (op_name, _unwrapped(op_name)):
            padded = f"/{path}/"
            inside = (name for name in self._nodes if f"/{name}/" in padded)
            ends = [(padded.rfind(f"/{name}/") + len(name), len(name), name) for name in inside]
            if ends:
                return max(ends)[2]
        return None


def _unwrapped(op_name: str) -> str:
    before = None
    while before != op_name:
        before, op_name = op_name, _WRAPPED.sub(r"\1", op_name)
    return op_name


def shares_of(module: HloModule, computation: Computation, item: Instruction, names: NodeNames) -> dict[str, float]:
    """Return the nodes of an instruction with their shares of the work, which add up to 1.

    The operations of the parts of the instruction estimate the work. XLA adds instructions without a scope, for example
    for a rewritten matrix product. Such an instruction belongs to the node of the parameter that reads the result, else
    to the nodes of the readers, else to the nodes of the operands.
    """
    work = _work_of(module, computation, item, names) or _by_others(module, computation, item, names, _FAR)
    total = sum(work.values())
    return {name: amount / total for name, amount in work.most_common()}


def _by_others(
    module: HloModule, computation: Computation, item: Instruction, names: NodeNames, far: int
) -> Counter[str]:
    """Find nodes of an instruction without a scope by the neighbours, or by the readers of the readers."""
    for related in _related(module, computation, item):
        if work := Counter(name for other in related if (name := names.find(other.op_name)) is not None):
            return work
    work = Counter()
    for user in computation.users(item.name) if far else ():
        work += _work_of(module, computation, user, names) or _by_others(module, computation, user, names, far - 1)
    return work


def _work_of(module: HloModule, computation: Computation, item: Instruction, names: NodeNames) -> Counter[str]:
    """Count the operations of an instruction and the called computations by node."""
    work: Counter[str] = Counter()
    if item.opcode in ("fusion", "call", "while", "conditional"):
        for body in module.called(item):
            for part in body.instructions.values():
                if part.opcode not in ("parameter", "constant"):
                    work += _work_of(module, body, part, names)
    if not work and (name := names.find(item.op_name)) is not None:
        cost = cost_of(module, computation, item)
        work[name] = max(round(cost.flops + _TRANSCENDENTAL * cost.transcendentals), item.elements, 1)
    return work


def _related(module: HloModule, computation: Computation, item: Instruction) -> Iterator[tuple[Instruction, ...]]:
    """Iterate over groups of neighbours of an instruction, the most reliable evidence of the node first."""
    users = computation.users(item.name)
    read_as: list[Instruction] = []
    for user in users:
        bodies = module.called(user) if user.opcode == "fusion" else []
        for body in bodies[:1]:
            for index, operand in enumerate(user.operands):
                parameter = body.parameter(index) if operand == item.name else None
                read_as += body.users(parameter.name) if parameter is not None else []
    read_as += [user for user in users if user.opcode != "fusion"]
    yield tuple(reader for reader in read_as if reader.opcode in _MOVES)
    yield tuple(read_as)
    yield tuple(users)
    yield tuple(computation.instructions[name] for name in item.operands if name in computation.instructions)
