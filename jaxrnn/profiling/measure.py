"""`profile`: a function compiled, timed, recorded, and its parts held against what the machine can do."""

from __future__ import annotations

import dataclasses
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
from jaxrnn.profiling.timing import Peaks, Recorded, measure_peaks, record, recorder_seconds, time_calls

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


#: JAX writes a transformation around the scope that it was applied to, such as ``vmap(lstm)``.
_WRAPPED = re.compile(r"\b(?:vmap|jvp|transpose|pmap|shard_map)\(([^()]*)\)")
_CALL = re.compile(r"^(?:jit|pjit)\(.*?\)/")
_MOVES = {"bitcast", "copy", "reshape", "transpose", "broadcast", "convert"}
#: A transcendental function takes about as long as so many additions.
_TRANSCENDENTAL = 16
#: How many readers on from an instruction without a name its node is looked for.
_FAR = 3


class Names:
    """Finds the node of an instruction by the scopes in its ``op_name``.

    Args:
        nodes: the names of a model's nodes, each of which is a scope while the model is traced; None for a function
            that is no model, whose scopes are shown as they are.
    """

    def __init__(self, nodes: Collection[str] | None):
        self._nodes = None if nodes is None else [name for name in nodes if name]
        self._known: dict[str, str | None] = {}

    def find(self, op_name: str) -> str | None:
        """The innermost node around an operation; None where there is none."""
        if op_name not in self._known:
            self._known[op_name] = self._scope(op_name) if self._nodes is None else self._node(op_name)
        return self._known[op_name]

    def _node(self, op_name: str) -> str | None:
        for path in (op_name, _unwrapped(op_name)):
            padded = f"/{path}/"
            places = [
                (place + len(name), len(name), name)
                for name in self._nodes or ()
                if (place := padded.rfind(f"/{name}/")) >= 0
            ]
            if places:
                return max(places)[2]
        return None

    @staticmethod
    def _scope(op_name: str) -> str | None:
        """The path without the function it begins with and the primitive it ends with."""
        path, _, _ = _CALL.sub("", _unwrapped(op_name)).rpartition("/")
        return path or None


def _unwrapped(op_name: str) -> str:
    before = None
    while before != op_name:
        before, op_name = op_name, _WRAPPED.sub(r"\1", op_name)
    return op_name


def shares_of(module: HloModule, computation: Computation, item: Instruction, names: Names) -> dict[str, float]:
    """The nodes that an instruction works for, each with its share of the work, which add up to 1.

    Work is estimated by the operations that the node's part of the instruction needs. An instruction that XLA made
    without saying for whom, as it does when it rewrites a product of matrices, belongs to the node that its result is
    named after where it is read, else to the nodes that read it, else to those that made its operands.
    """
    work = _work_of(module, computation, item, names) or _by_others(module, computation, item, names, _FAR)
    total = sum(work.values())
    return {name: amount / total for name, amount in work.most_common()}


def _by_others(module: HloModule, computation: Computation, item: Instruction, names: Names, far: int) -> Counter[str]:
    """Nodes of an instruction without a name, by those around it; nodes of what reads it where they have none."""
    for related in _related(module, computation, item):
        if work := Counter(name for other in related if (name := names.find(other.op_name)) is not None):
            return work
    work = Counter()
    for user in computation.users(item.name) if far else ():
        work += _work_of(module, computation, user, names) or _by_others(module, computation, user, names, far - 1)
    return work


def _work_of(module: HloModule, computation: Computation, item: Instruction, names: Names) -> Counter[str]:
    """Operations by node, of an instruction and what it calls."""
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
    """Instructions whose names say for whom another works, the surest first."""
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
