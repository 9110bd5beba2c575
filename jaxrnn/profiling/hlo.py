"""A compiled program as XLA prints it: computations of instructions, read from ``compiled.as_text()``.

JAX hands out compiled HLO as text only. What is read of it is what costs and names need: shapes, operands, the
computations that an instruction calls, and the metadata that says where it came from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

#: Bits of an element; types that are not listed take part in no sum of bytes.
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
    """One array: its element type as XLA names it, and its dimensions."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.dims)

    @property
    def nbytes(self) -> int:
        """The bytes of the elements; 0 for what is no array of numbers, such as a token."""
        digits = re.search(r"\d+", self.dtype)
        bits = _BITS.get(self.dtype, int(digits[0]) if digits else 0)
        return -(-self.size * bits // 8)


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        name: unique in the module.
        opcode: such as ``fusion`` or ``dot``.
        shapes: of the result; several for a tuple.
        operands: names of instructions of the same computation.
        called: names of the computations that it calls.
        op_name: the scope and primitive that it was traced from, such as ``jit(step)/lstm/dot_general``; empty where
            XLA made the instruction itself.
        text: the operands and attributes as they are printed.
        attributes: the attributes as they are printed.
        is_root: whether it is its computation's result.
    """

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    called: tuple[str, ...]
    op_name: str
    text: str
    attributes: str
    is_root: bool

    @property
    def shape(self) -> Shape:
        """The result, or the first array of a tuple."""
        return self.shapes[0] if self.shapes else Shape("token", ())

    @property
    def elements(self) -> int:
        """The elements of the result."""
        return self.shape.size

    @property
    def nbytes(self) -> int:
        """The bytes of the result."""
        return sum(shape.nbytes for shape in self.shapes)

    @property
    def trips(self) -> int:
        """How often the body of a loop runs; 1 where XLA does not know."""
        match = _TRIPS.search(self.attributes)
        return int(match[1]) if match else 1


@dataclass
class Computation:
    """Instructions by name, in the order in which they are printed."""

    name: str
    instructions: dict[str, Instruction] = field(default_factory=dict)

    @property
    def root(self) -> Instruction:
        """The instruction whose value is the computation's."""
        instructions = list(self.instructions.values())
        return next((item for item in instructions if item.is_root), instructions[-1])

    def parameter(self, index: int) -> Instruction | None:
        """The instruction that stands for an operand of the caller."""
        for item in self.instructions.values():
            if item.opcode == "parameter" and item.text == str(index):
                return item
        return None

    def users(self, name: str) -> list[Instruction]:
        """The instructions that read a value."""
        return [item for item in self.instructions.values() if name in item.operands]


@dataclass
class HloModule:
    """A compiled program."""

    name: str
    computations: dict[str, Computation]
    entry: str

    @classmethod
    def parse(cls, text: str) -> HloModule:
        """The program that XLA printed."""
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
        """An instruction and the computation that it is in."""
        for computation in self.computations.values():
            if name in computation.instructions:
                return computation, computation.instructions[name]
        return None

    def called(self, item: Instruction) -> list[Computation]:
        """The computations that an instruction calls."""
        return [self.computations[name] for name in item.called if name in self.computations]

    def inside(self, item: Instruction) -> Iterator[Instruction]:
        """Every instruction of the computations that an instruction calls, and that those call."""
        for computation in self.called(item):
            for inner in computation.instructions.values():
                yield inner
                yield from self.inside(inner)


def _instruction(line: str, start: re.Match[str]) -> Instruction:
    rest = line[start.end() :]
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    shapes = tuple(Shape(dtype, _dims(dims)) for dtype, dims in _SHAPE.findall(rest[:end]))
    opcode, _, after = rest[end:].strip().partition("(")
    close = _closing("(" + after, 0) - 1
    text, attributes = after[:close], after[close + 1 :]
    op_name = _OP_NAME.search(attributes)
    called = tuple(
        name.strip().lstrip("%") for group in _CALLED.findall(attributes) for name in group.strip("{}").split(",")
    )
    operands = () if opcode in ("parameter", "constant") else tuple(_operands(text))
    scope = re.sub(r"\\(.)", r"\1", op_name[1]) if op_name else ""
    return Instruction(start[2], opcode, shapes, operands, called, scope, text, attributes, bool(start[1]))


def _dims(text: str) -> tuple[int, ...]:
    return tuple(int(size.lstrip("<=")) for size in text.split(",") if size)


def _closing(text: str, start: int) -> int:
    """The place of the parenthesis that closes the one at ``start``."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    return len(text) - 1


def _operands(text: str) -> Iterator[str]:
    """The names in a list of operands; a type may stand before each."""
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
