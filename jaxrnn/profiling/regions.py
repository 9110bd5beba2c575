"""Profiles of compiled functions: the time of a call by ONNX node, or by region of XLA's program.

JAX's profiler names the instructions that ran. The compiled program names the scopes of the computation, which contain
the ONNX nodes. A fusion has the parts of several nodes: the sizes of the results of the parts estimate their shares.
XLA drops the scope of some instructions, such as rewritten products: these belong to the nodes of their readers.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import statistics
import tempfile
import time
import warnings
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from jaxrnn._files.messages import check_word, first_line, short_repr
from jaxrnn._jax.context import own_names
from jaxrnn.errors import InputError, check_count
from jaxrnn.steps.stepspec import said_past

By = Literal["node", "region"]
#: Columns with numbers, the name of the row without a node, and the longest list of nodes or regions in a cell.
NUMBERS, _NONE, _LONGEST = ("µs", "time", "shared", "runs"), "(none)", 60
#: Time for repeated calls in seconds, the fewest calls, and the most calls with JAX's profiler.
_SECONDS, _FEWEST, _MOST_RECORDED = 0.3, 5, 50
#: A call that the profiler slows down by more has a note.
_SLOWED = 1.1


@short_repr
@dataclass(frozen=True)
class Row:
    """A row of the table: a region, a node, or a sum of rows.

    Attributes:
        name: name of the ONNX node or the scope; or of the region, in which XLA lists the last operations of a fusion.
        seconds: time in a recorded call.
        time_share: share of the time of the recorded call.
        kind: operator of the node, or opcode of the region in XLA.
        related: a dict from the nodes of a region to estimated shares of the region; or from the regions of a node.
        shared: share of the time that is an estimate, because a region of several nodes was divided.
        executions: executions in a call; several in a loop.
    """

    name: str
    seconds: float
    time_share: float
    kind: str = ""
    related: dict[str, float] = field(default_factory=dict)
    shared: float = 0.0
    executions: int | None = None


@short_repr
@dataclass(frozen=True)
class Profile:
    """The time of a call of a compiled function, by region of the program and by ONNX node.

    Attributes:
        label: name of the function.
        device: device of the arguments.
        threads: processors that are available to the process.
        seconds: median time of a call until the results are ready, without the profiler.
        fastest: 10th percentile of the time of a call.
        slowest: 90th percentile of the time of a call.
        calls: number of timed calls.
        recorded: time of a call with the profiler, which slows loops down. The table divides this time. Like the times
            of regions, the mean over the faster half of the recorded calls; other processes interrupt the slower half.
        regions: recorded instructions, the longest first; empty if the backend reports no regions.
        xla: totals of XLA's cost analysis (``flops``, ``transcendentals``, ``bytes``), with one trip of each loop.
        has_loops: True if the program has a loop, so that `xla` can be less than the work of a call.
        operators: a dict from nodes to operators.
        notes: notes on the figures.
        low_precision: effect of the compute dtype, or None in full precision: ``dtype``, the sizes of the folded
            parameters ``nbytes`` and ``full_nbytes``, the median time of a call in full precision ``full_seconds``, and
            over ``steps`` calls the ``differences`` of the outputs from full precision: the ``name``, the ``largest``
            absolute difference, the largest magnitude ``scale``, and the ratio of the energies of output and
            difference in ``decibels``.
        past: the `past` that changed the model, as in `jaxrnn.stream`; otherwise None.
    """

    label: str
    device: str
    threads: int
    seconds: float
    fastest: float
    slowest: float
    calls: int
    recorded: float
    regions: tuple[Row, ...]
    xla: dict[str, float]
    has_loops: bool
    operators: dict[str, str]
    notes: tuple[str, ...] = ()
    low_precision: dict[str, Any] | None = None
    past: int | None = None

    @property
    def in_regions(self) -> float:
        """The time of a recorded call in regions; more than the time of the call if regions ran in parallel."""
        return sum(region.seconds for region in self.regions)

    @property
    def rest(self) -> float:
        """The time of a recorded call outside of regions: dispatch, loop control, and gaps between regions."""
        return max(self.recorded - self.in_regions, 0.0)

    def rows(self, by: By = "region") -> tuple[Row, ...]:
        """Return the rows of the table, the longest time first.

        Args:
            by: ``"region"`` for a row per instruction of the compiled program, or ``"node"`` for a row per ONNX node
                (or scope). XLA fuses operations of several nodes, and no measurement divides a fusion: the time is
                divided in proportion to the sizes of the results, and `Row.shared` is the share of such estimates.
        """
        check_word("`by`", by, ("node", "region"))
        if by == "region":
            return self.regions
        parts: dict[str, list[tuple[Row, float]]] = defaultdict(list)
        for region in self.regions:
            for name, share in (region.related or {_NONE: 1.0}).items():
                parts[name].append((region, share))
        return tuple(sorted((self._node(*each) for each in parts.items()), key=lambda row: -row.seconds))

    def _node(self, name: str, parts: Sequence[tuple[Row, float]]) -> Row:
        seconds = sum(share * region.seconds for region, share in parts)
        divided = sum(share * region.seconds for region, share in parts if share < 1)
        return replace(
            self._sum(name, seconds),
            kind="no node" if name == _NONE else self.operators.get(name, ""),
            related={region.name: share for region, share in parts},
            shared=divided / seconds if seconds else 0.0,
            executions=max(region.executions or 0 for region, _ in parts),
        )

    def _sum(self, name: str, seconds: float) -> Row:
        return Row(name, seconds, seconds / (self.recorded or math.inf))

    def lines(self, by: By = "region", top: int | None = None) -> list[Row]:
        """Return the rows of the table and sums: the omitted rows, the rest of the call, and the call.

        Args:
            by: as in `rows`.
            top: number of rows before the sum of the omitted rows; by default all rows.
        """
        if top is not None:
            check_count("top", top)
        rows = self.rows(by)
        others = rows[len(rows[:top]) :]
        more = [self._sum(f"{len(others)} more", sum(row.seconds for row in others))] if others else []
        rest = [self._sum("dispatch, loop control, gaps", self.rest)] if self.rest else []
        return [*rows[:top], *more, *rest, self._sum("call with the profiler", self.recorded)]

    def data(self, by: By = "region") -> dict[str, Any]:
        """Return the profile in plain types, with the rows of the table as ``rows``."""
        facts = dataclasses.asdict(replace(self, regions=(), operators={}))
        del facts["regions"], facts["operators"]  # the rows show these
        rows = [dataclasses.asdict(row) for row in self.rows(by)]
        return {**facts, "in_regions": self.in_regions, "rest": self.rest, "by": by, "rows": rows}

    def heading(self) -> list[str]:
        """Return the lines above the table: label, time of a call, XLA's cost analysis, low precision and notes."""
        lines = [
            f"{self.label}, on {self.device}, {self.threads} thread(s)",
            f"a call takes {_microseconds(self.seconds)} µs (median of {self.calls}; 80 % of them within "
            f"{_microseconds(self.fastest)} to {_microseconds(self.slowest)} µs)",
        ]
        if self.past is not None:
            lines.append(f"the model is {said_past(self.past)}")
        if self.xla:
            words = {"flops": "FLOP", "transcendentals": " transcendental functions", "bytes": "B"}
            counted = ", ".join(f"{_scaled(self.xla[key])}{word}" for key, word in words.items() if key in self.xla)
            lines.append(f"XLA's cost analysis{', each loop once' if self.has_loops else ''}: {counted}")
        if (low := self.low_precision) is not None:
            lines.append(
                f"weights in {low['dtype']}: {_scaled(low['nbytes'])}B instead of {_scaled(low['full_nbytes'])}B; a "
                f"call takes {_microseconds(low['full_seconds'])} µs in full precision, "
                f"{low['full_seconds'] / self.seconds:.2f} times as long"
            )
            lines += [
                f"output {each['name']}, over {low['steps']} calls: largest difference {each['largest']:.2g}, largest "
                f"magnitude {each['scale']:.2g}, signal-to-error ratio {each['decibels']:.1f} dB"
                for each in low["differences"]
            ]
        return [*lines, *(f"note: {note}" for note in self.notes)]

    def cells(self, by: By = "region", top: int | None = None) -> list[list[str]]:
        """Return the headings and the cells of the table as texts, with arguments as in `lines`."""
        by_node = by == "node"
        headings = ["node", "operator", "µs", "time", "shared", "regions"]
        cells = [headings if by_node else ["region", "kind", "µs", "time", "runs", "nodes"]]
        for row in self.lines(by, top):
            count = "" if row.executions is None else f"{row.executions:,}"
            shared = f"{row.shared:.0%}" if row.shared else ""
            text = ", ".join(
                name if by_node or share == 1 else f"{name} {share:.0%}" for name, share in row.related.items()
            )
            numbers = [_microseconds(row.seconds), f"{row.time_share:.1%}", shared if by_node else count]
            cells.append([row.name, row.kind, *numbers, text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"])
        return cells

    def table(self, by: By = "region", top: int | None = None) -> str:
        """Return heading and table as text, with arguments as in `lines`."""
        cells = self.cells(by, top)
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        sides = [str.rjust if name in NUMBERS else str.ljust for name in cells[0]]
        aligned = ("  ".join(map(lambda side, *cell: side(*cell), sides, line, widths)).rstrip() for line in cells)
        return "\n".join([*self.heading(), "", *aligned])


def _microseconds(seconds: float) -> str:
    return f"{1e6 * seconds:,.2f}" if seconds < 1e-4 else f"{1e6 * seconds:,.0f}"


def _scaled(value: float) -> str:
    """Format a number with the prefix of a unit; the caller appends the unit."""
    power = min(max(int(math.log10(value)) // 3, 0), 4) if value else 0
    return f"{value / 1000**power:.3g} {' kMGT'[power].strip()}"


def profile(
    function: Callable[..., Any], *arguments: Any, label: str | None = None, nodes: Mapping[str, str] | None = None
) -> Profile:
    """Compile a function and measure the time of each part of a call.

    The function is called repeatedly with equal arguments: without JAX's profiler for the time of a call, and with the
    profiler for the times of the regions of the compiled program. Arguments must not be donated. On the CPU, calls are
    faster in a process that starts with ``jax.config.update("jax_cpu_enable_async_dispatch", False)``.

    Args:
        function: a function for ``jax.jit``, or the result of ``jax.jit``.
        arguments: arguments of the function.
        label: name in the profile; by default the name of the function.
        nodes: a dict from scopes to operators. A model enters a ``jax.named_scope`` for each node. By default, each
            scope of the program is a node.

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
        times = np.array(_times(call))
    except (RuntimeError, ValueError) as error:
        if "donated" not in str(error) and "deleted" not in str(error):
            raise
        raise InputError(f"{name} cannot be profiled: a call consumed its arguments; do not donate them") from error
    program, notes, seconds = CompiledProgram(compiled.as_text() or "", nodes), [], float(np.median(times))
    try:
        recorded, found = record(call, program.name, seconds)
    except RuntimeError as error:
        recorded, found = seconds, {}
        notes.append(f"there are no regions, because JAX's profiler failed: {first_line(error)}")
    regions = program.regions(found, recorded)
    if not regions and not notes:
        notes.append(f"the backend {jax.default_backend()!r} reports no regions: only whole calls are timed")
    in_regions = sum(region.seconds for region in regions)
    if in_regions > recorded:
        notes.append(f"regions ran in parallel: their times add up to {in_regions / recorded:.2f} times the call")
    if recorded > _SLOWED * seconds:
        notes.append(
            f"with the profiler, a call takes {recorded / seconds:.2f} times as long: the times of short regions are "
            "too large, above all in loops"
        )
    if unnamed := sum(region.seconds for region in regions if not region.related):
        notes.append(
            f"{unnamed / in_regions:.1%} of the time in regions belongs to no node, in the row (none): work outside of "
            "the nodes, or operations whose scopes the compiler dropped"
        )
    analysis = compiled.cost_analysis() or {}  # some backends have no cost analysis
    counted = {"flops": "flops", "transcendentals": "transcendentals", "bytes accessed": "bytes"}
    return Profile(
        label=name,
        device=_device(arguments),
        threads=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        seconds=seconds,
        fastest=float(np.percentile(times, 10)),
        slowest=float(np.percentile(times, 90)),
        calls=len(times),
        recorded=recorded,
        regions=tuple(regions),
        xla={key: float(analysis[name]) for name, key in counted.items() if name in analysis},
        has_loops=any(item.opcode == "while" for item in program.instructions.values()),
        operators=dict(nodes or {}),
        notes=tuple(notes),
    )


def _device(arguments: Any) -> str:
    leaves = [leaf for leaf in jax.tree.leaves(arguments) if isinstance(leaf, jax.Array)]
    device = next(iter(leaves[0].devices())) if leaves else jax.devices()[0]
    return f"{device.platform}:{device.id} ({device.device_kind})"


def _times(call: Callable[[], Any]) -> list[float]:
    """Return the seconds of each of many calls."""
    times: list[float] = []
    end = time.perf_counter() + _SECONDS
    while len(times) < _FEWEST or time.perf_counter() < end:
        began = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - began)
    return times


#: The name of a call among the events of the profiler.
CALL = "jaxrnn.profiling"


def record(call: Callable[[], Any], module: str, seconds: float) -> tuple[float, dict[str, tuple[float, int]]]:
    """Record calls of the program `module`, which take about `seconds`.

    Returns:
        The seconds of a call, and the seconds and executions in a call by the name of the instruction: means over the
        faster half of the calls.
    """
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    options.enable_hlo_proto = False  # would write all programs of the process
    with tempfile.TemporaryDirectory(prefix="jaxrnn-profile-") as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            for _ in range(min(_MOST_RECORDED, max(_FEWEST, int(_SECONDS / seconds)))):
                with jax.profiler.TraceAnnotation(CALL):
                    jax.block_until_ready(call())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # types of the profiler cause warnings in Python 3.13
            events = [event for file in Path(folder).rglob("*.xplane.pb") for event in events_of(file)]
    calls = sorted((event.start, event.seconds) for event in events if event.name == CALL)
    if not calls:
        raise RuntimeError("it recorded no calls")
    faster = sorted(range(len(calls)), key=lambda place: calls[place][1])[: (len(calls) + 1) // 2]
    times: dict[str, float] = defaultdict(float)
    executions: Counter[str] = Counter()
    ran = [event for event in events if event.name != CALL and event.module in (None, module)]
    for event in [event for event in ran if event.on_device] or ran:
        if bisect(calls, (event.start, math.inf)) - 1 in faster:
            times[event.name] += event.seconds
            executions[event.name] += 1
    number = len(faster)
    found = {name: (times[name] / number, round(executions[name] / number)) for name in times}
    return statistics.mean(calls[place][1] for place in faster), found


class Event(NamedTuple):
    """A call, or an execution of an instruction of a program, which is the `module`."""

    name: str
    module: str | None
    on_device: bool
    start: float
    seconds: float


def events_of(file: Path) -> Iterator[Event]:
    """Iterate over calls and executions of instructions in a file of JAX's profiler."""
    for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
        for event in (event for line in plane.lines for event in line.events):
            stats = dict(event.stats)
            if event.name == CALL or "hlo_op" in stats:
                name, module = str(stats.get("hlo_op", event.name)), stats.get("hlo_module")
                on_device = plane.name.startswith("/device:")
                yield Event(name, module, on_device, event.start_ns * 1e-9, event.duration_ns * 1e-9)


_HEADER = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*->.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_SCOPE = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_CALLS = ("fusion", "call", "while", "conditional")
#: Longest chain of readers from an instruction without a scope to a reader with a scope.
_FAR = 4


class Instruction(NamedTuple):
    """An instruction of a compiled program, with the names of all instructions and computations that it mentions."""

    name: str
    opcode: str
    #: Elements of the result, or of the first array of a tuple.
    size: int
    mentions: tuple[str, ...]
    #: Empty for a scope outside of all nodes, and None without a scope.
    node: str | None


class CompiledProgram:
    """A compiled program: instructions with nodes, read from ``compiled.as_text()``.

    JAX writes the scope of an instruction as ``op_name``. With `nodes`, the innermost node of the scope counts;
    without `nodes`, each scope is a node.
    """

    def __init__(self, text: str, nodes: Collection[str] | None):
        self.name, inside = "", ""
        self.instructions: dict[str, Instruction] = {}
        self._bodies: dict[str, list[Instruction]] = defaultdict(list)
        for line in text.splitlines():
            if line.startswith("HloModule "):
                self.name = line.split()[1].rstrip(",")
            elif header := _HEADER.match(line):
                inside = header[1]
            elif found := _INSTRUCTION.match(line):
                name, kind, opcode, rest = found.groups()
                dims = re.search(r"\[([\d,<=]*)\]", kind)
                size = math.prod(int(each.lstrip("<=")) for each in dims[1].split(",") if each) if dims else 0
                scope = _SCOPE.search(rest)
                node = find_node(re.sub(r"\\(.)", r"\1", scope[1]), nodes) or "" if scope else None
                mentions = [rest[: rest.index(")")]] if opcode == "parameter" else re.findall(r"%([\w.\-]+)", rest)
                self.instructions[name] = Instruction(name, opcode, size, tuple(mentions), node)
                self._bodies[inside].append(self.instructions[name])
        #: The instructions that read a value; of a fusion also the parameter inside, which comes first.
        self._users: dict[str, list[Instruction]] = defaultdict(list)
        for user in self.instructions.values():
            parts = [part for name in user.mentions for part in self._bodies.get(name, ()) if user.opcode == "fusion"]
            inner = {part.mentions[0]: [part] for part in parts if part.opcode == "parameter"}
            for place, name in enumerate(user.mentions if user.opcode != "parameter" else ()):
                self._users[name] += [*inner.get(str(place), ()), user]

    def _readers(self, name: str) -> Iterator[Instruction]:
        """Iterate over the instructions that read a value, first the instructions inside of a fusion."""
        for user in self._users[name]:
            yield from self._readers(user.name) if user.opcode == "parameter" else [user]

    def _inside(self, item: Instruction) -> Iterator[Instruction]:
        """Iterate over the instructions of the computations that an instruction calls, recursively."""
        for part in (part for name in item.mentions for part in self._bodies.get(name, ())):
            yield part
            yield from self._inside(part)

    def regions(self, recorded: Mapping[str, tuple[float, int]], call: float) -> list[Row]:
        """Return the recorded instructions with their nodes, the longest time first, without enclosing loops."""
        regions = []
        for name, (seconds, executions) in recorded.items():
            item = self.instructions.get(name, Instruction(name, "", 0, (), None))
            if item.opcode == "fusion" or not any(part.name in recorded for part in self._inside(item)):
                work = self._work(item)
                shares = {node: amount / work.total() for node, amount in work.most_common()}
                regions.append(Row(name, seconds, seconds / call, item.opcode, shares, 0.0, executions))
        return sorted(regions, key=lambda region: -region.seconds)

    def _work(self, item: Instruction) -> Counter[str]:
        """Count the elements that an instruction and the called computations write, by node."""
        work: Counter[str] = Counter()
        for part in self._inside(item) if item.opcode in _CALLS else [item]:
            if part.node and part.opcode not in (*_CALLS, "parameter", "constant"):
                work[part.node] += max(part.size, 1)
        node = self._node_of_readers(item) if item.node is None else item.node
        return work or Counter({node: 1} if node else {})

    def _node_of_readers(self, item: Instruction) -> str | None:
        """Return the node of the first reader with a node, else of the readers of the readers."""
        near = [item]
        for _ in range(_FAR):
            near = list(dict.fromkeys(reader for each in near for reader in self._readers(each.name)))
            if found := next((reader.node for reader in near if reader.node), None):
                return found
        return None


#: JAX writes a transformation around the scope, as in ``vmap(lstm)``.
_WRAPPED = re.compile(r"\b(?:vmap|jvp|transpose|pmap|shard_map)\(([^()]*)\)")
_JITTED = re.compile(r"^(?:jit|pjit)\(.*?\)/")


def find_node(scope: str, nodes: Collection[str] | None) -> str | None:
    """Return the innermost node of a scope such as ``jit(step)/vmap(lstm)/dot_general``, or None."""
    unwrapped, before = scope, ""
    while before != unwrapped:
        before, unwrapped = unwrapped, _WRAPPED.sub(r"\1", unwrapped)
    if nodes is None:  # the scopes between the function and the primitive
        return _JITTED.sub("", unwrapped).rpartition("/")[0] or None
    for path in (f"/{scope}/", f"/{unwrapped}/"):
        ends = [
            (path.rfind(f"/{name}/") + len(name), len(name), name) for name in nodes if name and f"/{name}/" in path
        ]
        if ends:
            return max(ends)[2]
    return None
