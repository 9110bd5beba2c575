"""`profile`: compile a function, record calls with JAX's profiler, and assign the recorded regions to ONNX nodes.

JAX's profiler names the instructions that ran. The compiled program names the scopes of the computation, which contain
the ONNX nodes. A fusion has the parts of several nodes: the sizes of the results of the parts estimate their shares.
XLA drops the scope of some instructions, such as rewritten products: these belong to the nodes of their readers.
"""

from __future__ import annotations

import os
import re
import statistics
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrnn._files.messages import first_line
from jaxrnn._jax.context import own_names
from jaxrnn.errors import InputError
from jaxrnn.profiling.peaks import Peaks, measure_peaks, time_calls
from jaxrnn.profiling.results import Profile, Region

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
    profiler for the times of the regions of the compiled program. The remaining time of a call is the rest. Arguments
    must not be donated. On the CPU, calls are faster in a process that starts with
    ``jax.config.update("jax_cpu_enable_async_dispatch", False)``.

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
    with own_names():
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
    program, notes = CompiledProgram(compiled.as_text() or "", None if nodes is None else list(nodes)), []
    try:
        recorded = record(call, program.name, statistics.median(first))
    except RuntimeError as error:
        recorded, notes = {}, [f"there are no regions, because JAX's profiler failed: {first_line(error)}"]
    times = np.array([*first, *time_calls(call)])
    seconds, regions = float(np.median(times)), program.regions(recorded)
    if not regions and not notes:
        notes.append(f"the backend {jax.default_backend()!r} reports no regions: only whole calls are timed")
    in_regions = sum(region.seconds for region in regions)
    if in_regions > seconds:
        notes.append(
            f"the recorded regions took {in_regions / seconds:.2f} times as long as a call without the profiler (the "
            "profiler slows loops down, or regions ran in parallel): the times of the regions are divided by this "
            "factor, and include the gaps between regions"
        )
    if unnamed := sum(region.seconds for region in regions if not region.nodes):
        share, compiler = f"{unnamed / in_regions:.1%}", "the compiler dropped the scopes of their operations"
        notes.append(f"{share} of the time in regions belongs to no node, in the row (none): {compiler}")
    scale = min(1.0, seconds / in_regions) if in_regions else 1.0
    analysis = compiled.cost_analysis() or {}  # some backends have no cost analysis
    return Profile(
        label=name,
        device=_device(arguments),
        threads=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        seconds=seconds,
        fastest=float(np.percentile(times, 10)),
        slowest=float(np.percentile(times, 90)),
        calls=len(times),
        regions=tuple(replace(region, seconds=region.seconds * scale) for region in regions),
        rest=max(seconds - in_regions, 0.0),
        xla={key: float(analysis[name]) for name, key in _ANALYSIS.items() if name in analysis},
        has_loops=program.has_loops,
        peaks=(measure_peaks() if peaks is True else peaks) or None,
        operators=dict(nodes or {}),
        notes=tuple(notes),
    )


def _device(arguments: Any) -> str:
    leaves = [leaf for leaf in jax.tree.leaves(arguments) if isinstance(leaf, jax.Array)]
    device = next(iter(leaves[0].devices())) if leaves else jax.devices()[0]
    return f"{device.platform}:{device.id} ({device.device_kind})"


#: Time and number of calls of a recording, and limit of recorded events; reading an event takes a few microseconds.
_SECONDS, _FEWEST_CALLS, _MOST_CALLS, _MOST_EVENTS = 0.3, 5, 300, 200_000


def record(call: Callable[[], Any], module: str, one_call: float) -> dict[str, tuple[float, int]]:
    """Record calls of the program `module`, which take about `one_call` seconds.

    Returns:
        The seconds and executions in a call by the name of the instruction: the median over the faster half of the
        calls, because other processes interrupted the slower half. The time that the profiler adds is divided equally
        among the events of the CPU.
    """
    jax.block_until_ready(call())
    runs, _ = _runs(call, module, 2)
    if not runs:
        return {}
    calls = min(_MOST_CALLS, max(_FEWEST_CALLS, _SECONDS / one_call), _MOST_EVENTS / len(runs[0]))
    runs, traced = _runs(call, module, max(int(calls), 2))
    runs.sort(key=lambda run: sum(event.seconds for event in run))
    durations: dict[str, list[list[float]]] = defaultdict(list)
    for run in runs[: (len(runs) + 1) // 2]:
        by_name: dict[str, list[float]] = defaultdict(list)
        for event in run:
            by_name[event.name].append(event.seconds)
        for name, seconds in by_name.items():
            durations[name].append(seconds)
    counts = {name: round(statistics.median(map(len, lists))) for name, lists in durations.items()}
    sums = {name: statistics.median(map(sum, lists)) for name, lists in durations.items()}
    added = max(traced - one_call, 0.0) / max(sum(counts.values()), 1) if runs[0][0].on_host else 0.0
    added = min(added, *(sums[name] / counts[name] for name in sums))
    return {name: (sums[name] - added * counts[name], counts[name]) for name in sums}


@dataclass(frozen=True)
class Event:
    """An execution of an instruction in a call (`run`) of the program."""

    name: str
    run: Any
    seconds: float
    on_host: bool


def _runs(call: Callable[[], Any], module: str, calls: int) -> tuple[list[list[Event]], float]:
    """Return the events of complete calls, and the median seconds of a call with the profiler."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    options.enable_hlo_proto = False  # would write all programs of the process
    times = []
    with tempfile.TemporaryDirectory(prefix="jaxrnn-profile-") as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            for _ in range(calls):
                began = time.perf_counter()
                jax.block_until_ready(call())
                times.append(time.perf_counter() - began)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # types of the profiler cause warnings in Python 3.13
            events = [event for file in Path(folder).rglob("*.xplane.pb") for event in events_of(file, module)]
    runs: dict[Any, list[Event]] = defaultdict(list)
    for event in [event for event in events if not event.on_host] or events:
        runs[event.run].append(event)
    # A recording can include the end of an earlier call: keep calls with the usual number of events.
    sizes = Counter(map(len, runs.values()))
    usual = max(sizes, key=lambda count: (sizes[count], count), default=0)
    return [run for run in runs.values() if len(run) == usual], statistics.median(times)


def events_of(file: Path, module: str) -> Iterator[Event]:
    """Iterate over the executions of instructions of a program in a file of JAX's profiler."""
    for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
        for line in plane.lines:
            for event in line.events:
                stats = dict(event.stats)
                if (name := stats.get("hlo_op")) and stats.get("hlo_module") in (None, module):
                    on_host = not plane.name.startswith("/device:")
                    yield Event(str(name), stats.get("run_id"), event.duration_ns * 1e-9, on_host)


_HEADER = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*->.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_SCOPE = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_CALLS = ("fusion", "call", "while", "conditional")
#: Longest chain of readers from an instruction without a scope to a reader with a scope.
_FAR = 4


@dataclass(frozen=True)
class Instruction:
    """An instruction of a compiled program, with the names of all instructions and computations that it mentions."""

    name: str
    computation: str
    opcode: str
    #: Elements of the result, or of the first array of a tuple.
    size: int
    mentions: tuple[str, ...]
    node: str | None


class CompiledProgram:
    """A compiled program: instructions with nodes, read from ``compiled.as_text()``.

    JAX writes the scope of an instruction as ``op_name``. With `nodes`, the innermost node of the scope counts;
    without `nodes`, each scope is a node.
    """

    def __init__(self, text: str, nodes: Collection[str] | None):
        self.name, inside = "", ""
        self.bodies: dict[str, list[Instruction]] = {}
        self._places: dict[str, Instruction] = {}
        for line in text.splitlines():
            if line.startswith("HloModule "):
                self.name = line.split()[1].rstrip(",")
            elif header := _HEADER.match(line):
                inside = header[1]
                self.bodies[inside] = []
            elif found := _INSTRUCTION.match(line):
                name, kind, opcode, rest = found.groups()
                dims = re.search(r"\[([\d,<=]*)\]", kind)
                size = int(np.prod([int(each.lstrip("<=")) for each in dims[1].split(",") if each])) if dims else 0
                scope = _SCOPE.search(rest)
                node = find_node(re.sub(r"\\(.)", r"\1", scope[1]), nodes) if scope else None
                mentions = (rest[: rest.index(")")],) if opcode == "parameter" else re.findall(r"%([\w.\-]+)", rest)
                self._places[name] = Instruction(name, inside, opcode, size, tuple(mentions), node)
                self.bodies[inside].append(self._places[name])

    @property
    def has_loops(self) -> bool:
        """True if the program has a loop, which a cost analysis counts once."""
        return any(item.opcode == "while" for item in self._places.values())

    def inside(self, item: Instruction) -> Iterator[Instruction]:
        """Iterate over the instructions of the computations that an instruction calls, recursively."""
        for part in (part for name in item.mentions for part in self.bodies.get(name, ())):
            yield part
            yield from self.inside(part)

    def regions(self, recorded: Mapping[str, tuple[float, int]]) -> list[Region]:
        """Return the recorded instructions with their nodes, the longest time first, without loops around others."""
        regions = []
        for name, (seconds, executions) in recorded.items():
            item = self._places.get(name)
            if item is None or (item.opcode != "fusion" and any(part.name in recorded for part in self.inside(item))):
                continue
            work = self._work(item) or self._of_readers(item, _FAR)
            shares = {node: amount / work.total() for node, amount in work.most_common()}
            regions.append(Region(name, item.opcode, shares, seconds, executions))
        return sorted(regions, key=lambda region: -region.seconds)

    def _work(self, item: Instruction) -> Counter[str]:
        """Count the elements that an instruction and the called computations write, by node."""
        parts = [item, *self.inside(item)] if item.opcode in _CALLS else [item]
        work: Counter[str] = Counter()
        for part in parts[1:] or parts:
            if part.node is not None and part.opcode not in (*_CALLS, "parameter", "constant"):
                work[part.node] += max(part.size, 1)
        return work or Counter({item.node: 1} if item.node is not None else {})

    def _of_readers(self, item: Instruction, far: int) -> Counter[str]:
        """Return the node of the first reader with a node, else of the readers of the readers."""
        readers = list(self._readers(item)) if far else []
        found = next((reader.node for reader in readers if reader.node is not None), None)
        if found is not None:
            return Counter({found: 1})
        return next(filter(None, (self._of_readers(reader, far - 1) for reader in readers)), Counter())

    def _readers(self, item: Instruction) -> Iterator[Instruction]:
        """Iterate over the instructions that read a value, inside of a fusion the instructions that read it there."""
        for user in self.bodies[item.computation]:
            if item.name in user.mentions and user.opcode != "parameter":
                body = next((self.bodies[name] for name in user.mentions if name in self.bodies), [])
                if user.opcode == "fusion":
                    place = str(user.mentions.index(item.name))
                    inner = [part for part in body if part.opcode == "parameter" and part.mentions == (place,)]
                    yield from (reader for part in inner for reader in self._readers(part))
                yield user


#: JAX writes a transformation around the scope, as in ``vmap(lstm)``.
_WRAPPED = re.compile(r"\b(?:vmap|jvp|transpose|pmap|shard_map)\(([^()]*)\)")
_CALL = re.compile(r"^(?:jit|pjit)\(.*?\)/")


def find_node(scope: str, nodes: Collection[str] | None) -> str | None:
    """Return the innermost node of a scope such as ``jit(step)/vmap(lstm)/dot_general``, or None."""
    unwrapped, before = scope, ""
    while before != unwrapped:
        before, unwrapped = unwrapped, _WRAPPED.sub(r"\1", unwrapped)
    if nodes is None:  # the scopes between the function and the primitive
        return _CALL.sub("", unwrapped).rpartition("/")[0] or None
    for path in (f"/{scope}/", f"/{unwrapped}/"):
        ends = [
            (path.rfind(f"/{name}/") + len(name), len(name), name) for name in nodes if name and f"/{name}/" in path
        ]
        if ends:
            return max(ends)[2]
    return None
