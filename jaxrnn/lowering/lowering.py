"""Equations as nodes of a graph: the one evaluator of the lowering, which looks rules up by primitive."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import numpy as np
import onnx_ir as ir
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from jaxrnn.errors import UnsupportedError
from jaxrnn.jaxprs.equations import evaluate, type_of
from jaxrnn.jaxprs.equations import shape_of as shape_of_atom
from jaxrnn.jaxprs.slices import needed
from jaxrnn.lowering.known import known_results
from jaxrnn.lowering.writer import Operand, Writer, dtype_of, make_value, plain_name, shape_of
from jaxrnn.streaming.sources import Path, describe_equation, scope_of

#: What writes an equation: a function of the lowering, the equation and its operands; a list where a primitive has
#: several results.
Rule = Callable[..., Any]


@dataclass(frozen=True)
class Complex:
    """A complex array of the graph.

    Attributes:
        real: its real part.
        imag: its imaginary part.
    """

    real: Operand
    imag: Operand


class Lowering:
    """Equations as nodes: what the rules are given.

    Attributes:
        writer: of the graph.
        rules: by primitive.
        path: the equations inside of which the current one is, itself last.
        problems: what cannot be written, in words.
    """

    def __init__(self, writer: Writer, rules: Mapping[str, Rule], path: Path = (), problems: list[str] | None = None):
        self.writer, self.rules, self.path = writer, rules, path
        self.problems: list[str] = [] if problems is None else problems

    def inside(self) -> Lowering:
        """The same for a subgraph."""
        return Lowering(self.writer.inside(), self.rules, self.path, self.problems)

    def evaluate(self, jaxpr: Any, operands: Sequence[Operand]) -> list[Operand]:
        """The results of a jaxpr, closed or without constants."""
        inner = getattr(jaxpr, "jaxpr", jaxpr)
        live = inner.replace(eqns=needed(inner.eqns, inner.outvars, effects=True))
        closed = ClosedJaxpr(live, list(map(np.asarray, getattr(jaxpr, "consts", ()))))
        results = evaluate(closed, operands, self.apply)
        return [array_of(atom, value) for atom, value in zip(inner.outvars, results, strict=True)]

    def trace(self, function: Callable[..., Any], *operands: Operand) -> list[Operand]:
        """The results of a function of JAX, for what is easier said in its primitives."""
        structs = [jax.ShapeDtypeStruct(shape_of(each), dtype_of(each)) for each in operands]
        return self.evaluate(jax.make_jaxpr(lambda *arrays: jax.tree.leaves(function(*arrays)))(*structs), operands)

    def check(self) -> None:
        """See that all equations so far were written.

        Raises:
            UnsupportedError: some were not; says all of them.
        """
        if len(self.problems) > 1:
            lines = "".join(f"\n  {problem}" for problem in self.problems)
            raise UnsupportedError(f"{len(self.problems)} operations cannot be written as ONNX:{lines}")
        if self.problems:
            raise UnsupportedError(self.problems[0])

    def apply(self, equation: JaxprEqn, operands: list[Any]) -> Sequence[Operand]:
        """The results of an equation; what cannot be written is a problem, and its results stand for themselves."""
        arrays = [array_of(atom, value) for atom, value in zip(equation.invars, operands, strict=True)]
        try:
            with self._at(equation):
                return self._written(equation, arrays)
        except UnsupportedError as error:
            if str(error) not in self.problems:
                self.problems.append(str(error))
            if not all(isinstance(type_of(each), np.dtype) for each in equation.outvars):
                self.check()
            return [make_value("", shape_of_atom(each), type_of(each)) for each in equation.outvars]

    def _written(self, equation: JaxprEqn, operands: list[Any]) -> Sequence[Operand]:
        if (known := known_results(equation, operands)) is not None:
            return known
        rule = self.rules.get(equation.primitive.name)
        if rule is None:
            self.refuse("ONNX has no operator for it")
        results = rule(self, equation, *operands)
        return results if equation.primitive.multiple_results else [results]

    @contextlib.contextmanager
    def _at(self, equation: JaxprEqn) -> Iterator[None]:
        outer, scope = self.path, self.writer.scope
        self.path = (*outer, equation)
        self.writer.scope = plain_name(scope_of(self.path))
        try:
            yield
        except UnsupportedError as error:
            if error.located:
                raise
            located = UnsupportedError(f"{describe_equation(self.path)}: {error}")
            located.located = True
            raise located from error
        finally:
            self.path, self.writer.scope = outer, scope

    def refuse(self, reason: str) -> NoReturn:
        """Say that the current equation cannot be written.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(reason)


def array_of(atom: Any, value: Any) -> Any:
    """A value of an atom as an operand; complex values of the graph and keys of random numbers stay what they are."""
    if isinstance(value, ir.Value | Complex) or not isinstance(type_of(atom), np.dtype):
        return value
    return np.asarray(value, type_of(atom)) if isinstance(atom, Literal) else np.asarray(value)
