"""Equations as nodes of a graph: the one evaluator of the lowering, which looks rules up by primitive."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from jaxrnn.errors import UnsupportedError
from jaxrnn.jaxprs.equations import bind, evaluate, type_of
from jaxrnn.jaxprs.equations import shape_of as shape_of_atom
from jaxrnn.jaxprs.known import move
from jaxrnn.jaxprs.slices import needed
from jaxrnn.lowering.writer import Operand, Writer, dtype_of, plain_name, shape_of
from jaxrnn.streaming.sources import Path, describe_equation, scope_of

#: What writes an equation: a function of the lowering, the equation and its operands; a list where a primitive has
#: several results.
Rule = Callable[..., Any]


class Lowering:
    """Equations as nodes: what the rules are given.

    Attributes:
        writer: of the graph.
        rules: by primitive.
        path: the equations inside of which the current one is, itself last.
    """

    def __init__(self, writer: Writer, rules: Mapping[str, Rule], path: Path = ()):
        self.writer, self.rules, self.path = writer, rules, path

    def inside(self) -> Lowering:
        """The same for a subgraph."""
        return Lowering(self.writer.inside(), self.rules, self.path)

    def evaluate(self, jaxpr: Any, operands: Sequence[Operand]) -> list[Operand]:
        """The results of a jaxpr, closed or without constants."""
        inner = getattr(jaxpr, "jaxpr", jaxpr)
        live = inner.replace(eqns=needed(inner.eqns, inner.outvars))
        closed = ClosedJaxpr(live, list(map(np.asarray, getattr(jaxpr, "consts", ()))))
        results = evaluate(closed, operands, self.apply)
        return [array_of(atom, value) for atom, value in zip(inner.outvars, results, strict=True)]

    def trace(self, function: Callable[..., Any], *operands: Operand) -> list[Operand]:
        """The results of a function of JAX, for what is easier said in its primitives."""
        structs = [jax.ShapeDtypeStruct(shape_of(each), dtype_of(each)) for each in operands]
        return self.evaluate(jax.make_jaxpr(lambda *arrays: jax.tree.leaves(function(*arrays)))(*structs), operands)

    def apply(self, equation: JaxprEqn, operands: list[Any]) -> Sequence[Operand]:
        """The results of an equation.

        Raises:
            UnsupportedError: it cannot be written; names its place.
        """
        arrays = [array_of(atom, value) for atom, value in zip(equation.invars, operands, strict=True)]
        with self._at(equation):
            if (known := self._known(equation, arrays)) is not None:
                return known
            rule = self.rules.get(equation.primitive.name)
            if rule is None:
                self.refuse("ONNX has no operator for it")
            results = rule(self, equation, *arrays)
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

    def _known(self, equation: JaxprEqn, operands: Sequence[Operand]) -> list[Operand] | None:
        """The results of an equation whose operands are all known, or whose results have no elements."""
        if equation.effects or any(
            not isinstance(type_of(each), np.dtype) for each in (*equation.invars, *equation.outvars)
        ):
            return None
        if all(0 in shape_of_atom(variable) for variable in equation.outvars):
            return [np.zeros(shape_of_atom(variable), type_of(variable)) for variable in equation.outvars]
        if not all(isinstance(operand, np.ndarray) for operand in operands):
            return None
        arrays = [np.asarray(operand) for operand in operands]
        if (moved := move(equation, arrays)) is not None:
            return [*moved]
        if equation.primitive.name == "platform_index":
            return None
        with jax.ensure_compile_time_eval():
            return [np.asarray(each) for each in bind(equation, [*map(jnp.asarray, arrays)])]

    def refuse(self, reason: str) -> NoReturn:
        """Say that the current equation cannot be written.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(reason)


def array_of(atom: Any, value: Any) -> Operand:
    """A value of an atom as an operand."""
    if isinstance(value, ir.Value):
        return value
    return np.asarray(value, type_of(atom)) if isinstance(atom, Literal) else np.asarray(value)
