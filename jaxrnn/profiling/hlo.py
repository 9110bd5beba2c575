"""Compiled programs and the cost of their instructions, parsed from ``compiled.as_text()``.

JAX exposes compiled HLO as text. ``compiled.cost_analysis()`` returns totals of the whole program with one trip of each
loop, and does not divide the work among regions and nodes. This parser reads shapes, operands, called computations and
the scopes in the metadata.

Operations are counted as in XLA's cost analysis: a multiplication with an addition counts as two operations, an
element-wise operation counts as one per element, and transcendental functions are counted separately. Unlike in XLA, a
loop counts all trips if XLA knows the trip count, and a branch counts the most expensive case.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from jaxrnn._files.messages import short_repr

#: Bits of element types. For all other types, the number of bits is the first number in the name.
_BITS = {"pred": 8, "s4": 4, "u4": 4, "c64": 64, "c128": 128, "bf16": 16}
_SHAPE = re.compile(r"([a-z][a-z0-9]*)\[([\d,<=]*)\]")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_START = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_COMMENT = re.compile(r"/\*.*?\*/")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_CALLED = re.compile(
    r"(?:calls|to_apply|condition|body|branch_computations|called_computations)=(\{[^}]*\}|%?[\w.\-]+)"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


@dataclass(frozen=True)
class Shape:
    """An array: XLA's name of the element type, and the dimensions."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of elements of the array."""
        return math.prod(self.dims)

    @property
    def nbytes(self) -> int:
        """The size in bytes; 0 for a token."""
        digits = re.search(r"\d+", self.dtype)
        bits = _BITS.get(self.dtype, int(digits[0]) if digits else 0)
        return -(-self.size * bits // 8)


@dataclass(frozen=True)
class Instruction:
    """An instruction; names are unique in the module."""

    name: str
    opcode: str
    #: The shapes of the results; several for a tuple.
    shapes: tuple[Shape, ...]
    #: Names of instructions of the same computation.
    operands: tuple[str, ...]
    #: Names of computations.
    called: tuple[str, ...]
    #: Scope and primitive, such as ``jit(step)/lstm/dot_general``; empty for instructions that XLA added.
    op_name: str
    #: The text between the parentheses.
    text: str
    attributes: str
    is_root: bool

    @property
    def shape(self) -> Shape:
        """The shape of the result, or of the first array of a tuple."""
        return self.shapes[0] if self.shapes else Shape("token", ())

    @property
    def elements(self) -> int:
        """The number of elements of the result."""
        return self.shape.size

    @property
    def nbytes(self) -> int:
        """The size of the result in bytes."""
        return sum(shape.nbytes for shape in self.shapes)

    @property
    def trips(self) -> int:
        """The trip count of a loop, or 1 if XLA does not know the trip count."""
        match = _TRIPS.search(self.attributes)
        return int(match[1]) if match else 1


@dataclass
class Computation:
    """A computation: a dict of instructions, in the printed order."""

    name: str
    instructions: dict[str, Instruction] = field(default_factory=dict)

    @property
    def root(self) -> Instruction:
        """The instruction that computes the result."""
        instructions = list(self.instructions.values())
        return next((item for item in instructions if item.is_root), instructions[-1])

    def parameter(self, index: int) -> Instruction | None:
        """Return the parameter instruction with this number."""
        for item in self.instructions.values():
            if item.opcode == "parameter" and item.text == str(index):
                return item
        return None

    def users(self, name: str) -> list[Instruction]:
        """Return the instructions that read a value."""
        return [item for item in self.instructions.values() if name in item.operands]


@dataclass
class HloModule:
    """A compiled program."""

    name: str
    computations: dict[str, Computation]
    entry: str

    @classmethod
    def parse(cls, text: str) -> HloModule:
        """Parse the printed program."""
        name, entry, computations = "", "", {}
        inside: Computation | None = None
        for line in text.splitlines():
            if line.startswith("HloModule "):
                name = line.split()[1].rstrip(",")
            elif line.startswith("}"):
                inside = None
            elif inside is not None:
                line = _COMMENT.sub("", line)
                if start := _START.match(line):
                    item = _instruction(line, start)
                    inside.instructions[item.name] = item
            elif (header := _HEADER.match(line)) and "->" in line:
                inside = computations[header[2]] = Computation(header[2])
                entry = header[2] if header[1] else entry
        return cls(name, computations, entry)

    def find(self, name: str) -> tuple[Computation, Instruction] | None:
        """Find an instruction and the computation that contains the instruction."""
        for computation in self.computations.values():
            if name in computation.instructions:
                return computation, computation.instructions[name]
        return None

    def called(self, item: Instruction) -> list[Computation]:
        """Return the computations that an instruction calls."""
        return [self.computations[name] for name in item.called if name in self.computations]

    def inside(self, item: Instruction) -> Iterator[Instruction]:
        """Iterate over the instructions of the computations that an instruction calls, recursively."""
        for computation in self.called(item):
            for inner in computation.instructions.values():
                yield inner
                yield from self.inside(inner)


def _instruction(line: str, start: re.Match[str]) -> Instruction:
    rest = line[start.end() :]
    end = _closing(rest) + 1 if rest.startswith("(") else rest.index(" ")
    shapes = tuple(
        Shape(dtype, tuple(int(size.lstrip("<=")) for size in dims.split(",") if size))
        for dtype, dims in _SHAPE.findall(rest[:end])
    )
    opcode, _, after = rest[end:].strip().partition("(")
    close = _closing("(" + after) - 1
    text, attributes = after[:close], after[close + 1 :]
    op_name = _OP_NAME.search(attributes)
    called = tuple(
        name.strip().lstrip("%") for group in _CALLED.findall(attributes) for name in group.strip("{}").split(",")
    )
    operands = () if opcode in ("parameter", "constant") else tuple(_operands(text))
    scope = re.sub(r"\\(.)", r"\1", op_name[1]) if op_name else ""
    return Instruction(start[2], opcode, shapes, operands, called, scope, text, attributes, bool(start[1]))


def _closing(text: str) -> int:
    """Return the index of the parenthesis that closes the first letter of a text."""
    depth = 0
    for place, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth == 0:
            return place
    return len(text) - 1


def _operands(text: str) -> Iterator[str]:
    """Yield the names in a list of operands, which may include types."""
    depth, piece = 0, ""
    for letter in text + ",":
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            words = piece.split()
            if words:
                yield words[-1].lstrip("%")
            piece = ""
        else:
            piece += letter


_TRANSCENDENTAL = {
    "acos", "acosh", "asin", "asinh", "atan2", "atanh", "cbrt", "cosine", "cosh", "erf", "exponential",
    "exponential-minus-one", "log", "log-plus-one", "logistic", "power", "rsqrt", "sine", "sinh", "sqrt", "tan", "tanh",
}  # fmt: skip
_ARITHMETIC = {
    "abs", "add", "and", "ceil", "clamp", "clz", "compare", "complex", "convert", "divide", "floor", "imag",
    "is-finite", "maximum", "minimum", "multiply", "negate", "not", "or", "popcnt", "real", "reduce-precision",
    "remainder", "round-nearest-afz", "round-nearest-even", "select", "shift-left", "shift-right-arithmetic",
    "shift-right-logical", "sign", "stochastic-convert", "subtract", "xor",
}  # fmt: skip
#: Instructions without work.
_FREE = {"after-all", "bitcast", "constant", "get-tuple-element", "parameter", "partition-id", "replica-id", "tuple"}
_SLICES = {"slice", "dynamic-slice", "gather"}
#: Instructions that call computations, and instructions that apply a computation to elements.
_CALLS = {"fusion", "call", "while", "map"}
_APPLIED = {"reduce", "reduce-window", "scatter", "select-and-scatter"}
#: Instructions whose operands are read only by the called computations.
_CONTROL = {"while", "conditional", "call"}


@short_repr
@dataclass(frozen=True)
class Cost:
    """Floating-point operations, transcendental functions, and bytes read and written."""

    flops: float = 0.0
    transcendentals: float = 0.0
    nbytes: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.transcendentals + other.transcendentals,
            self.nbytes + other.nbytes,
        )

    def __mul__(self, times: float) -> Cost:
        return Cost(self.flops * times, self.transcendentals * times, self.nbytes * times)


def cost_of(module: HloModule, computation: Computation, item: Instruction) -> Cost:
    """Return the cost of a single execution of an instruction, including called computations."""
    operations = _operations(module, computation, item)
    if item.opcode in _CONTROL:
        inner = [sum(cost_of(module, body, part).nbytes for part in _work(body)) for body in module.called(item)]
        nbytes = item.trips * (max if item.opcode == "conditional" else sum)(inner)
    else:
        nbytes = _bytes(module, computation, item)
    return replace(operations, nbytes=nbytes)


def _work(computation: Computation) -> list[Instruction]:
    return [item for item in computation.instructions.values() if item.opcode not in _FREE]


def _operations(module: HloModule, computation: Computation, item: Instruction) -> Cost:
    """Count floating-point operations and transcendental functions, without bytes."""
    opcode = item.opcode
    if opcode in _TRANSCENDENTAL:
        return Cost(transcendentals=item.elements)
    if opcode in _ARITHMETIC:
        return Cost(item.elements)
    operands = [computation.instructions[name] for name in item.operands if name in computation.instructions]
    if opcode == "dot":
        contracted = re.search(r"\blhs_contracting_dims=\{([\d,]*)\}", item.attributes)
        axes = [int(axis) for axis in contracted[1].split(",") if axis] if contracted else []
        return Cost(2.0 * item.elements * math.prod(operands[0].shape.dims[axis] for axis in axes))
    if opcode == "convolution":
        return Cost(convolution_flops(item, operands[0].shape, operands[1].shape))
    if opcode == "fft":  # of each element, four multiplications with additions in log2(size) rounds
        sizes = re.search(r"\bfft_length=\{([\d,]*)\}", item.attributes)
        rounds = [int(size).bit_length() - 1 for size in sizes[1].split(",")] if sizes else []
        return Cost(8.0 * operands[0].elements * math.prod(rounds))
    if opcode == "sort":  # log2(elements) comparisons of each element, rounded up
        return Cost(float(operands[0].elements * max(operands[0].elements - 1, 0).bit_length()))
    bodies = [sum((_operations(module, body, part) for part in _work(body)), Cost()) for body in module.called(item)]
    if opcode == "conditional":
        dearest = [max((getattr(body, kind) for body in bodies), default=0.0) for kind in ("flops", "transcendentals")]
        return Cost(*dearest)
    if opcode in _APPLIED:
        times = _applications(item, operands)
    elif opcode in _CALLS:
        times = item.trips if opcode == "while" else item.elements if opcode == "map" else 1
    else:
        return Cost()
    return sum(bodies, Cost()) * times


def _applications(item: Instruction, operands: list[Instruction]) -> float:
    """Return the number of applications of the function of a reduction."""
    if item.opcode == "reduce":
        return max(operands[0].elements - item.elements, 0)
    if item.opcode == "reduce-window":
        size = re.search(r"window=\{size=([\dx]+)", item.attributes)
        return item.elements * (math.prod(map(int, size[1].split("x"))) - 1) if size else item.elements
    return operands[-1].elements


def convolution_flops(item: Instruction, image: Shape, kernel: Shape) -> float:
    """Count two operations for each product of an image and a kernel element, without products of padding."""
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", item.attributes)
    if labels is None:
        return 2.0 * item.elements * kernel.size
    left, right, out = labels[1], labels[2], labels[3]
    spatial = sorted(letter for letter in out if letter.isdigit())
    window = re.search(r"window=\{([^}]*)\}", item.attributes)
    entries = (
        {key: sizes.split("x") for key, sizes in (part.split("=") for part in window[1].split())} if window else {}
    )
    products = 1.0
    for axis, letter in enumerate(spatial):
        stride, image_dilation, kernel_dilation = (
            int(entries[key][axis]) if key in entries else 1 for key in ("stride", "lhs_dilate", "rhs_dilate")
        )
        low = int(entries["pad"][axis].split("_")[0]) if "pad" in entries else 0
        size, taps, result = image.dims[left.index(letter)], kernel.dims[right.index(letter)], out.index(letter)
        places = np.arange(item.shape.dims[result])[:, None] * stride - low + np.arange(taps) * kernel_dilation
        inside = (places >= 0) & (places <= (size - 1) * image_dilation) & (places % image_dilation == 0)
        products *= int(inside.sum())
    groups = re.search(r"batch_group_count=(\d+)", item.attributes)
    batch = item.shape.dims[out.index("b")] if groups is None else image.dims[left.index("b")] // int(groups[1])
    return 2.0 * products * batch * kernel.dims[right.index("i")] * kernel.dims[right.index("o")]


def _bytes(module: HloModule, computation: Computation, item: Instruction) -> float:
    """Count the bytes of operands and result."""
    if item.opcode in _FREE:
        return 0.0
    operands = [computation.instructions.get(name) for name in item.operands]
    if item.opcode in _SLICES:
        rest = sum(operand.nbytes for operand in operands[1:] if operand is not None)
        return 2.0 * item.nbytes + rest
    if item.opcode == "dynamic-update-slice":
        update = operands[1]
        return 2.0 * (update.nbytes if update is not None else item.nbytes)
    body = next(iter(module.called(item)), None) if item.opcode == "fusion" else None
    if body is None:
        return float(item.nbytes + sum(operand.nbytes for operand in operands if operand is not None))
    parameters = [body.parameter(index) for index in range(len(operands))]
    return _written(body, body.root) + sum(min(each.nbytes, _read(body, each)) for each in parameters if each)


def _read(body: Computation, value: Instruction) -> float:
    """Count the bytes of a value that a fused computation reads: only the slices, if all readers slice the value."""
    total = 0.0
    for user in body.users(value.name):
        if user.opcode in _SLICES and user.operands[0] == value.name:
            total += user.nbytes
        elif user.opcode == "dynamic-update-slice" and user.operands[0] == value.name:
            continue  # updated in place
        elif user.opcode == "bitcast":
            total += _read(body, user)
        else:
            return float(value.nbytes)
    return total


def _written(body: Computation, root: Instruction) -> float:
    """Count the bytes of the result of a fused computation; an update in place counts the update only."""
    if root.opcode in ("bitcast", "tuple"):
        parts = [body.instructions[name] for name in root.operands if name in body.instructions]
        return sum(_written(body, part) for part in parts)
    if root.opcode == "dynamic-update-slice" and root.operands[1] in body.instructions:
        return float(body.instructions[root.operands[1]].nbytes)
    return float(root.nbytes)
