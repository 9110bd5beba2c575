"""The evaluator of the lowering, with a rule for each primitive that writes nodes."""

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
from jaxrnn.export.quantized import FEW
from jaxrnn.export.reshaping import thin
from jaxrnn.export.writer import Operand, Writer, dtype_of, make_value, shape_of
from jaxrnn.jaxprs.equations import bind, evaluate, is_key, needed, type_of
from jaxrnn.jaxprs.equations import shape_of as shape_of_atom
from jaxrnn.jaxprs.moves import ON_ELEMENTS, counted, move
from jaxrnn.streaming.diagnostics import Path, describe_equation, node_scope_of

#: A function ``rule(lowering, equation, *operands)`` that writes an equation and returns the result, or a list of
#: results if the primitive has several.
Rule = Callable[..., Any]


@dataclass(frozen=True)
class Complex:
    """The real and the imaginary part of a complex array, or both integers of random keys."""

    real: Operand
    imag: Operand


class Lowering:
    """The interface of the rules: the graph's writer, and an evaluator of jaxprs.

    ``path`` is the stack of nested equations, the current equation last. ``problems`` collects messages about
    equations that cannot be written.
    """

    def __init__(self, writer: Writer, rules: Mapping[str, Rule], path: Path = (), problems: list[str] | None = None):
        self.writer, self.rules, self.path = writer, rules, path
        self.problems: list[str] = [] if problems is None else problems

    def inside(self) -> Lowering:
        """Return an evaluator that writes into a subgraph."""
        return Lowering(self.writer.inside(), self.rules, self.path, self.problems)

    def evaluate(self, jaxpr: Any, operands: Sequence[Operand]) -> list[Operand]:
        """Write a jaxpr and return the results."""
        inner = getattr(jaxpr, "jaxpr", jaxpr)
        live = inner.replace(eqns=needed(inner.eqns, inner.outvars, effects=True))
        closed = ClosedJaxpr(live, list(map(np.asarray, getattr(jaxpr, "consts", ()))))
        results = evaluate(closed, operands, self.apply)
        return [array_of(atom, value) for atom, value in zip(inner.outvars, results, strict=True)]

    def trace(self, function: Callable[..., Any], *operands: Operand) -> list[Operand]:
        """Trace a JAX function, write the jaxpr, and return the results."""
        structs = [jax.ShapeDtypeStruct(shape_of(each), dtype_of(each)) for each in operands]
        return self.evaluate(jax.make_jaxpr(lambda *arrays: jax.tree.leaves(function(*arrays)))(*structs), operands)

    def check(self) -> None:
        """Raise an error that lists all equations that could not be written."""
        if len(self.problems) > 1:
            lines = "".join(f"\n  {problem}" for problem in self.problems)
            raise UnsupportedError(f"{len(self.problems)} operations cannot be written as ONNX:{lines}")
        if self.problems:
            raise UnsupportedError(self.problems[0])

    def apply(self, equation: JaxprEqn, operands: list[Any]) -> Sequence[Operand]:
        """Write an equation. An equation that cannot be written becomes a problem with placeholder results."""
        arrays = [array_of(atom, value) for atom, value in zip(equation.invars, operands, strict=True)]
        try:
            with self._at(equation):
                return self._written(equation, arrays)
        except UnsupportedError as error:
            if str(error) not in self.problems:
                self.problems.append(str(error))
            return list(map(_placeholder, equation.outvars))

    def _written(self, equation: JaxprEqn, operands: list[Any]) -> Sequence[Operand]:
        if (known := known_results(equation, operands)) is not None:
            return known
        rule = self.rules.get(equation.primitive.name)
        if rule is None:
            self.refuse(
                "it has no export rule; compute it outside, write it with other functions, or add a rule with "
                "jaxrnn.streaming.register(..., export=rule)"
            )
        results = rule(self, equation, *operands)
        results = results if equation.primitive.multiple_results else [results]
        for variable, result in zip(equation.outvars, results, strict=True):
            found, shape = shape_of(result.real if isinstance(result, Complex) else result), shape_of_atom(variable)
            if found != shape:
                self.refuse(f"its export rule wrote an array of shape {list(found)} in place of {list(shape)}")
        return results

    @contextlib.contextmanager
    def _at(self, equation: JaxprEqn) -> Iterator[None]:
        outer, scope = self.path, self.writer.scope
        self.path = (*outer, equation)
        self.writer.scope = node_scope_of(self.path)
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
        """Refuse the current equation."""
        raise UnsupportedError(reason)


def is_complex(atom: Any) -> bool:
    """Return True for complex numbers and random keys."""
    return is_key(type_of(atom)) or np.dtype(type_of(atom)).kind == "c"


def dtype_of_parts(atom: Any) -> np.dtype:
    """Return the dtype of both parts of complex numbers or random keys."""
    return np.dtype(np.uint32 if is_key(type_of(atom)) else jnp.finfo(type_of(atom)).dtype)


def _placeholder(atom: Any) -> Any:
    """Return an array in place of a result that could not be written."""
    if not is_complex(atom):
        return make_value("", shape_of_atom(atom), type_of(atom))
    return Complex(*(make_value("", shape_of_atom(atom), dtype_of_parts(atom)) for _ in range(2)))


def array_of(atom: Any, value: Any) -> Any:
    """Return the value of an atom as an operand. An array without elements is known."""
    if isinstance(value, jax.Array) and is_key(value.dtype):
        return Complex(*map(np.asarray, np.moveaxis(np.asarray(jax.random.key_data(value)), -1, 0)))
    if isinstance(value, ir.Value) and 0 in shape_of(value):
        return np.zeros(shape_of(value), dtype_of(value))
    if isinstance(value, ir.Value | Complex) or not isinstance(type_of(atom), np.dtype):
        return value
    return np.asarray(value, type_of(atom)) if isinstance(atom, Literal) else np.asanyarray(value)


#: The shape and the dtype of a value.
Kind = tuple[Sequence[int], Any]


def subgraph(
    lowering: Lowering, name: str, inputs: Sequence[Kind], write: Callable[..., Sequence[Operand]]
) -> ir.Graph:
    """Write the body of a branch or loop, and return the graph.

    ``inputs`` are shapes and types. ``write(lowering, *values)`` returns the results.
    """
    inside = lowering.inside()
    writer = inside.writer
    values = [make_value(writer.unused(f"{writer.scope}/{name}"), *kind) for kind in inputs]
    # Each result must be computed inside of the body.
    ends = [writer.node("Identity", result) for result in write(inside, *values)]
    return ir.Graph(values, ends, nodes=writer.nodes, name=name)


def known_results(equation: JaxprEqn, operands: Sequence[Any]) -> list[Any] | None:
    """Compute the results of an equation if all operands are constants or the results are empty."""
    if equation.effects:
        return None
    variables, name = equation.outvars, equation.primitive.name
    ordinary = all(isinstance(type_of(each), np.dtype) for each in variables)
    if ordinary and all(0 in shape_of_atom(variable) for variable in variables):
        return [np.zeros(shape_of_atom(variable), type_of(variable)) for variable in variables]
    arrays = [operand for operand in operands if isinstance(operand, np.ndarray)]
    if len(arrays) < len(operands) or name == "platform_index":
        return None
    if name == "onnx_operator" and (equation.params["name"] == "DequantizeLinear" or any(map(_is_quantized, operands))):
        return None
    if not ordinary:
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


def _spread(function: Callable[..., Any], equation: JaxprEqn, operands: Sequence[np.ndarray]) -> np.ndarray:
    """Compute a function of elements on operands before repetition."""
    (result,) = equation.outvars
    with np.errstate(all="ignore"):
        array = np.asarray(function(*map(thin, operands)), type_of(result))
    return np.broadcast_to(array, shape_of_atom(result))


def _converted(x: np.ndarray, dtype: np.dtype) -> list[Operand] | None:
    """Cast an array, or return None if the result would only take more space."""
    if _is_quantized(x) and dtype.itemsize > 1:
        return None
    if jnp.issubdtype(x.dtype, jnp.floating) and jnp.issubdtype(dtype, jnp.integer):
        with jax.ensure_compile_time_eval():
            return [np.asarray(jnp.asarray(x).astype(dtype))]
    with np.errstate(all="ignore"):
        return [np.broadcast_to(np.asarray(thin(x)).astype(dtype), x.shape)]


def _is_quantized(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.integer) and x.dtype.itemsize == 1 and x.size >= FEW


def _computed(equation: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    with jax.ensure_compile_time_eval():
        results = bind(equation, list(map(jnp.asarray, operands)))
    return [np.asarray(x) if isinstance(x.dtype, np.dtype) else x for x in results]
