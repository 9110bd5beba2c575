"""The evaluator of the lowering: writes equations as nodes, by one rule for each primitive."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from jaxrnn.errors import UnsupportedError
from jaxrnn.export.movement import thin
from jaxrnn.export.writer import Operand, Writer, dtype_of, make_value, plain_name, shape_of
from jaxrnn.jaxprs.elements import ON_ELEMENTS, counted
from jaxrnn.jaxprs.equations import bind, evaluate, type_of
from jaxrnn.jaxprs.equations import shape_of as shape_of_atom
from jaxrnn.jaxprs.moves import move
from jaxrnn.jaxprs.slices import needed
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


#: The shape and the element type of a value.
Kind = tuple[Sequence[int], Any]


def subgraph(
    lowering: Lowering, name: str, inputs: Sequence[Kind], write: Callable[..., Sequence[Operand]]
) -> ir.Graph:
    """A graph inside of a node.

    Args:
        lowering: what is around it.
        name: of the graph, and the beginning of its inputs' names.
        inputs: their shapes and types.
        write: its results, from a lowering of its own and its inputs.
    """
    inside = lowering.inside()
    writer = inside.writer
    values = [make_value(writer.unused(f"{writer.scope}/{name}"), *kind) for kind in inputs]
    # Each result is a value that the graph itself computes.
    ends = [writer.node("Identity", result) for result in write(inside, *values)]
    return ir.Graph(values, ends, nodes=writer.nodes, name=name)


#: Fewer elements than these may be made wider.
_FEW = 64


def known_results(equation: JaxprEqn, operands: Sequence[Any]) -> list[Any] | None:
    """The results of an equation as far as they are known: its operands are, or they have no elements."""
    if equation.effects:
        return None
    variables, name = equation.outvars, equation.primitive.name
    ordinary = all(isinstance(type_of(each), np.dtype) for each in variables)
    if ordinary and all(0 in shape_of_atom(variable) for variable in variables):
        return [np.zeros(shape_of_atom(variable), type_of(variable)) for variable in variables]
    if not all(map(is_known, operands)) or name == "platform_index":
        return None
    if name == "onnx_operator" and any(map(_is_quantized, operands)):
        return None
    arrays: Any = operands
    if not ordinary or not all(isinstance(operand, np.ndarray) for operand in operands):
        return _computed(equation, arrays)
    if name == "convert_element_type":
        return _converted(arrays[0], np.dtype(equation.params["new_dtype"]))
    if (moved := move(equation, arrays)) is not None:
        return moved
    if name == "iota":
        return [counted(equation.params)]
    plain = all(array.dtype.kind in "biuf" for array in arrays)
    if name in ON_ELEMENTS and plain:
        return [_spread(ON_ELEMENTS[name], equation, arrays)]
    return _computed(equation, arrays)


def is_known(operand: Any) -> bool:
    """Whether an operand is no value of the graph: an array, or a key of random numbers."""
    return isinstance(operand, np.ndarray | jax.Array)


def _spread(function: Callable[..., Any], equation: JaxprEqn, operands: Sequence[np.ndarray]) -> np.ndarray:
    """A function of elements, of operands as they are before they are repeated."""
    (result,) = equation.outvars
    with np.errstate(all="ignore"):
        array = np.asarray(function(*map(thin, operands)), type_of(result))
    return np.broadcast_to(array, shape_of_atom(result))


def _converted(x: np.ndarray, dtype: np.dtype) -> list[Operand] | None:
    """In another type; None where that is only larger."""
    if _is_quantized(x) and dtype.itemsize > 1:
        return None
    if jnp.issubdtype(x.dtype, jnp.floating) and jnp.issubdtype(dtype, jnp.integer):
        with jax.ensure_compile_time_eval():
            return [np.asarray(jnp.asarray(x).astype(dtype))]
    with np.errstate(all="ignore"):
        return [np.broadcast_to(np.asarray(thin(x)).astype(dtype), x.shape)]


def _is_quantized(x: Any) -> bool:
    """Whether an array is many integers of a byte."""
    return jnp.issubdtype(x.dtype, jnp.integer) and x.dtype.itemsize == 1 and x.size >= _FEW


def _computed(equation: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    with jax.ensure_compile_time_eval():
        results = bind(equation, [jnp.asarray(x) if isinstance(x, np.ndarray) else x for x in operands])
    return [np.asarray(x) if isinstance(x.dtype, np.dtype) else x for x in results]
