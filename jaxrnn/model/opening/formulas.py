"""Formulas of the lengths of opened axes, and their values in the file."""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.core import max_dim, min_dim

from jaxrnn.errors import InputError, UnsupportedError
from jaxrnn.onnx import ir
from jaxrnn.onnx.graph import spec_of
from jaxrnn.streaming.dimensions import expression, names_in
from jaxrnn.streaming.dimensions import is_symbolic as is_formula

#: For each input the names of axes to open, or for a constant the numbers that stay and the names that follow.
Openings = Mapping[str, Mapping[int, Any]]

#: Numbers of other open dimensions, larger than any constant of a graph.
_OTHERS = (1_000_003, 1_000_033, 1_000_037, 1_000_039, 1_000_081, 1_000_099, 1_000_117, 1_000_121)


class SizeFormulas:
    """Symbols for the opened and the other open dimensions, their numbers in the file, and formulas."""

    def __init__(self, inputs: Sequence[ir.Value], opened: Openings):
        self.names: dict[str, str] = {}  # the symbol of each name in the file
        self.numbers: dict[str, int] = {}  # the value of each symbol in the file
        self.sources: dict[str, tuple[ir.Value, int, int]] = {}  # an input, its axis, and the factor of the symbol
        self.opened: set[str] = set()
        #: The shape of each input in symbols, with the opened axes as formulas.
        self.shapes: dict[str, tuple[int | str, ...]] = {}
        for value in inputs:
            spec = spec_of(value)
            spelled: list[int | str] = []
            for axis, size in enumerate(spec.shape or ()):
                given = opened.get(spec.name, {}).get(axis)
                if given is None and not isinstance(size, str):
                    spelled.append(int(size))
                    continue
                text = str(size if given is None else given)
                factor, name = multiple(text)
                symbol = self.names.setdefault(name, f"t{len(self.names)}")
                self.sources.setdefault(symbol, (value, axis, factor))
                if given is not None:
                    self._open(spec.name, axis, int(size), symbol, factor, text)
                else:
                    self.numbers.setdefault(symbol, _OTHERS[len(self.numbers) % len(_OTHERS)])
                spelled.append(symbol if factor == 1 else f"{factor}*{symbol}")
            self.shapes[spec.name] = tuple(spelled)

    def _open(self, name: str, axis: int, size: int, symbol: str, factor: int, text: str) -> None:
        if size % factor:
            raise InputError(
                f"`dims={ {name: {axis: text}} }`: the axis has size {size}, which is no multiple of {factor}"
            )
        if symbol in self.numbers and self.numbers[symbol] != size // factor:
            had = "another size" if symbol in self.opened else "a size of its own"
            raise InputError(
                f"`dims={ {name: {axis: text}} }`: the axis has size {size}, but {multiple(text)[1]} has {had} in the "
                "file; give another name"
            )
        self.numbers[symbol] = size // factor
        self.opened.add(symbol)

    def shape(self, name: str, scope: Any, *, opened: bool) -> tuple[Any, ...]:
        """Return the shape of an input, with the opened axes as symbols, or with their lengths in the file."""
        spelled = self.shapes[name]
        if not opened:
            spelled = tuple(self.number(size) if _names(size) & self.opened else size for size in spelled)
        return tuple(jax.export.symbolic_shape(", ".join(map(str, spelled)), scope=scope)) if spelled else ()

    def number(self, size: Any) -> int:
        """Return the value of a size in the file."""
        return int(size) if not is_formula(size) else int(value_in(expression(size), self.numbers))

    def are_equal(self, first: Any, second: Any) -> bool:
        """Return True for sizes that are equal in the file, and for other numbers of all symbols."""
        trials = ({name: number + step for name, number in self.numbers.items()} for step in (0, 720720, 1441440))
        sizes = [expression(first), expression(second)]
        return all(value_in(sizes[0], each) == value_in(sizes[1], each) for each in trials)

    def follows(self, size: Any) -> bool:
        """Return True for a size that depends on an opened axis."""
        return is_formula(size) and bool(names_in(expression(size)) & self.opened)

    def spelled(self, size: Any) -> str:
        """Return a formula in the names of the file."""
        back = {symbol: name for name, symbol in self.names.items()}
        return re.sub(r"\bt\d+\b", lambda found: back.get(found[0], found[0]), str(size))


def _names(size: int | str) -> set[str]:
    return names_in(expression(size))


def multiple(text: str) -> tuple[int, str]:
    """Return the factor and the name of a dimension such as ``4*U``."""
    factor, star, name = text.partition("*")
    return (int(factor), name.strip()) if star and factor.strip().isdecimal() else (1, text.strip())


_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": max_dim,
    "min": min_dim,
}
_OPERATIONS = {
    ast.Add: "Add",
    ast.Sub: "Sub",
    ast.Mult: "Mul",
    ast.Pow: "Pow",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
}
_OF_NUMBERS = {"Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "Pow": operator.pow, **_FUNCTIONS}


def walked(tree: ast.expr, leaf: Callable[[str | int], Any], apply: Callable[[str, Any, Any], Any]) -> Any:
    """Compute a formula of sizes from its leaves."""
    of = functools.partial(walked, leaf=leaf, apply=apply)
    match tree:
        case ast.Name(id=name):
            return leaf(name)
        case ast.Constant(value=int(number)):
            return leaf(number)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return apply("Sub", leaf(0), of(inner))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            return apply(_OPERATIONS[type(op)], of(left), of(right))
        case ast.Call(func=ast.Name(id=name), args=[first, second]) if name in _FUNCTIONS:
            return apply(name, of(first), of(second))
    raise UnsupportedError(f"the size {ast.unparse(tree)} has no form in ONNX")


def value_in(tree: ast.expr, numbers: Mapping[str, Any]) -> Any:
    """Return the value of a formula for numbers, or for other formulas."""
    return walked(
        tree,
        lambda leaf: numbers[leaf] if isinstance(leaf, str) else leaf,
        lambda name, first, second: _OF_NUMBERS[name](first, second),
    )
