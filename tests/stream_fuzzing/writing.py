"""Programs as text: lines that each name a value, written against the values that are there already."""

from __future__ import annotations

import ast
import random
import re
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import InconclusiveDimensionOperation

from stream_fuzzing import vocabulary

NAMES = {**vars(vocabulary), "jax": jax, "jnp": jnp, "np": np, "lax": lax}
INPUTS = {"x": jax.ShapeDtypeStruct((40, 2), np.float32), "n": jax.ShapeDtypeStruct((40,), np.int32)}

#: What a line raises that makes no sense, or whose lengths JAX cannot compare.
SENSELESS = (
    TypeError,
    ValueError,
    IndexError,
    AssertionError,
    NotImplementedError,
    jax.errors.JAXTypeError,
    jax.errors.JAXIndexError,
    InconclusiveDimensionOperation,
)


@dataclass(frozen=True)
class Value:
    """A value of a program: its name there, its shape with a symbolic size, and what no element is larger than."""

    name: str
    shape: tuple[Any, ...]
    dtype: np.dtype
    bound: int

    @property
    def axis(self) -> int | None:
        """The time axis."""
        return next((axis for axis, size in enumerate(self.shape) if not isinstance(size, int)), None)

    @property
    def frames(self) -> Any:
        """The symbolic number of frames."""
        return None if self.axis is None else self.shape[self.axis]

    @property
    def rest(self) -> tuple[int, ...]:
        """The shape of one frame."""
        return tuple(size for axis, size in enumerate(self.shape) if axis != self.axis)

    @property
    def in_order(self) -> str:
        """The value with time in front."""
        return self.name if not self.axis else f"jnp.moveaxis({self.name}, {self.axis}, 0)"


@dataclass(frozen=True)
class Program:
    """A function of ``x``, float32[time, 2], and ``n``, int32[time].

    Attributes:
        lines: each names one value.
        outputs: expressions.
        least: the fewest frames that it is for.
    """

    lines: tuple[str, ...]
    outputs: tuple[str, ...]
    least: int

    @property
    def source(self) -> str:
        """The program as Python."""
        return "\n    ".join(["def program(x, n):", *self.lines, f"return {', '.join(self.outputs)},"])

    @property
    def constraints(self) -> tuple[str, ...]:
        """For `stream`."""
        return (f"S >= {self.least}",) if self.least > 1 else ()

    def function(self) -> Any:
        """The program as a function of a dict."""
        scope: dict[str, Any] = {}
        exec(compile(self.source, "<program>", "exec"), NAMES, scope)
        return lambda inputs: scope["program"](inputs["x"], inputs["n"])

    @property
    def swapped(self) -> Program:
        """The same with the operands of every sum and product, and all outputs, in the other order."""
        lines = tuple(ast.unparse(_Swapped().visit(ast.parse(line))) for line in self.lines)
        return Program(lines, self.outputs[::-1], self.least)


class _Swapped(ast.NodeTransformer):
    def visit_BinOp(self, node: ast.BinOp) -> ast.BinOp:
        self.generic_visit(node)
        if isinstance(node.op, (ast.Add, ast.Mult, ast.BitAnd, ast.BitOr)):
            return ast.BinOp(node.right, node.op, node.left)
        return node


class Writer:
    """Writes a program line by line; every line is traced at once, so that all of them make sense.

    Attributes:
        draw: where chance comes from.
        least: the fewest frames.
        values: what there is to write with.
        lines: so far.
    """

    def __init__(self, draw: random.Random, least: int):
        self.draw, self.least = draw, least
        scope = jax.export.SymbolicScope((f"S >= {least}",) if least > 1 else ())
        (size,) = jax.export.symbolic_shape("S", scope=scope)
        self._known: dict[str, Any] = {
            name: jax.ShapeDtypeStruct((size, *aval.shape[1:]), aval.dtype) for name, aval in INPUTS.items()
        }
        self.values = [Value(name, aval.shape, aval.dtype, 4) for name, aval in self._known.items()]
        self.lines: list[str] = []

    def write(self, expression: str, bound: int) -> list[Value]:
        """Add a line for an expression; its values, none where it makes no sense."""
        try:
            made = jax.eval_shape(lambda known: eval(expression, NAMES, known), self._known)
        except SENSELESS:
            return []
        name = f"v{len(self.lines)}"
        leaves = jax.tree_util.tree_leaves_with_path(made)
        if not all(_is_small(aval.shape) for _, aval in leaves):
            return []
        self.lines.append(f"{name} = {expression}")
        self._known[name] = made
        new = [
            Value(name + jax.tree_util.keystr(path), tuple(aval.shape), np.dtype(aval.dtype), bound)
            for path, aval in leaves
        ]
        self.values += new
        return new

    def pick(self, kinds: str = "fib", moving: bool = True, rest: Any = None) -> Value | None:
        """A value with or without a time axis, half the time one of the last."""
        fitting = [
            value
            for value in self.values
            if value.dtype.kind in kinds and (value.axis is not None) == moving and rest in (None, value.rest)
        ]
        if not fitting:
            return None
        return self.draw.choice(fitting[-2:] if self.draw.random() < 0.5 else fitting)

    def pair(self, kinds: str = "fib", moving: bool = True) -> tuple[Value, Value] | None:
        """Two values, mostly different ones."""
        a, b = self.pick(kinds, moving), self.pick(kinds, moving)
        if a is b:
            b = self.pick(kinds, moving)
        return None if a is None or b is None else (a, b)

    def most(self, value: Value) -> int:
        """What no element of a value is larger than, as `limited` gives it."""
        return min(value.bound, vocabulary.SMALL)

    def limited(self, value: Value, in_order: bool = True) -> str:
        """A value with small elements."""
        text = value.in_order if in_order else value.name
        return text if value.bound <= vocabulary.SMALL or value.dtype == bool else f"small({text})"

    def finish(self) -> Program:
        """The program, whose outputs are values that nothing uses and some that something does."""
        used = {word for line in self.lines for word in re.findall(r"\w+", line.partition(" = ")[2])}
        idle = [v.name for v in self.values if v.name.partition("[")[0] not in {*used, *INPUTS}]
        others = [value.name for value in self.values if value.name not in (*idle, *INPUTS)]
        chosen = idle[-8:] + self.draw.sample(others, min(len(others), self.draw.randrange(2)))
        self.draw.shuffle(chosen)
        return Program(tuple(self.lines), tuple(chosen), self.least)


def _is_small(shape: Any) -> bool:
    fixed = [size for size in shape if isinstance(size, int)]
    return len(fixed) >= len(shape) - 1 and len(shape) <= 3 and 0 not in fixed and int(np.prod(fixed)) <= 12
