"""The evaluator of the lowering, with rules that write the nodes of an equation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal
from jax.extend.core.primitives import convert_element_type_p

from jaxrnn.errors import UnsupportedError
from jaxrnn.export.quantized import FEW
from jaxrnn.export.reshaping import thin
from jaxrnn.export.writer import Operand, Writer, dtype_of, make_value, shape_of
from jaxrnn.jaxprs.equations import bind, evaluate, is_key, needed, trace, type_of
from jaxrnn.jaxprs.equations import shape_of as shape_of_atom
from jaxrnn.jaxprs.moves import computed
from jaxrnn.jaxprs.own import is_platform_index, operator_p
from jaxrnn.jaxprs.primitives import Rules
from jaxrnn.streaming.diagnostics import Path, describe_equation, node_scope_of
from jaxrnn.streaming.interpreter import EXPORTS

#: A function ``rule(lowering, equation, *operands)`` that writes an equation and returns the result, or a list of
#: results if the primitive has several.
Rule = Callable[..., Any]

#: The rules of equations on real numbers, and of equations with complex numbers or random keys.
RULES: Rules[Rule] = Rules()
COMPLEX: Rules[Rule] = Rules()

NO_COMPLEX = "ONNX has no such operator for complex numbers: use real and imaginary parts"
_NO_RULE = (
    "it has no export rule; compute it outside, write it with other functions, or add a rule with "
    "jaxrnn.streaming.register(..., export=rule)"
)


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

    def __init__(self, writer: Writer, path: Path = (), problems: list[str] | None = None):
        self.writer, self.path = writer, path
        self.problems: list[str] = [] if problems is None else problems

    def inside(self) -> Lowering:
        """Return an evaluator that writes into a subgraph."""
        return Lowering(self.writer.inside(), self.path, self.problems)

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
        return self.evaluate(trace(function, *structs)[0], operands)

    def check(self) -> None:
        """Raise an error that lists all equations that could not be written."""
        if len(self.problems) > 1:
            lines = "".join(f"\n  {problem}" for problem in self.problems)
            raise UnsupportedError(f"{len(self.problems)} operations cannot be written as ONNX:{lines}")
        if self.problems:
            raise UnsupportedError(self.problems[0])

    def apply(self, equation: JaxprEqn, operands: list[Any]) -> Sequence[Operand]:
        """Write an equation. An equation that cannot be written becomes a problem with placeholder results."""
        pairs = zip(equation.invars, operands, strict=True)
        try:
            with self._at(equation):
                return self._written(equation, [array_of(*pair) for pair in pairs])
        except UnsupportedError as error:
            if str(error) not in self.problems:
                self.problems.append(str(error))
            return list(map(_placeholder, equation.outvars))

    def _written(self, equation: JaxprEqn, operands: list[Any]) -> Sequence[Operand]:
        if (known := known_results(equation, operands)) is not None:
            self.writer.made.follow(equation.invars, operands, known)
            return known
        rules = COMPLEX if any(map(is_complex, (*equation.invars, *equation.outvars))) else RULES
        if (rule := EXPORTS.get(equation.primitive.name) or rules.of(equation)) is None:
            self.refuse(NO_COMPLEX if rules is COMPLEX else _NO_RULE)
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


def part_type(atom: Any) -> np.dtype:
    """Return the dtype of both parts of complex numbers or random keys."""
    return np.dtype(np.uint32 if is_key(type_of(atom)) else jnp.finfo(type_of(atom)).dtype)


def check_key(dtype: Any) -> None:
    """Raise an error for random keys other than Threefry's, which are no pairs of integers."""
    if str(dtype) != "key<fry>":
        raise UnsupportedError(
            f"ONNX engines cannot draw the numbers of {dtype}; use a key of the implementation "
            '"threefry2x32", or draw the numbers outside, and pass them as an input'
        )


def _placeholder(atom: Any) -> Any:
    """Return a value in place of a result that cannot be written."""
    shape = shape_of_atom(atom)
    if is_complex(atom):
        return Complex(*(make_value("", shape, part_type(atom)) for _ in range(2)))
    return make_value("", shape, type_of(atom))


def array_of(atom: Any, value: Any) -> Any:
    """Return the value of an atom as an operand. An array without elements is known."""
    if isinstance(value, jax.Array) and is_key(value.dtype):
        check_key(value.dtype)
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


def known_results(equation: JaxprEqn, operands: Sequence[Any], *, small: bool = True) -> list[Any] | None:
    """Compute the results of an equation if all operands are constants or the results are empty.

    With ``small``, operations that only make quantised constants larger stay.
    """
    if equation.effects:
        return None
    variables = equation.outvars
    ordinary = all(isinstance(type_of(each), np.dtype) for each in variables)
    if ordinary and all(0 in shape_of_atom(variable) for variable in variables):
        return [np.zeros(shape_of_atom(variable), type_of(variable)) for variable in variables]
    arrays = [operand for operand in operands if isinstance(operand, np.ndarray)]
    if len(arrays) < len(operands) or is_platform_index(equation) or (small and _stays_small(equation, arrays)):
        return None
    known = computed(equation, arrays, thin) if ordinary else None
    if known is not None:
        return known
    with jax.ensure_compile_time_eval():
        results = bind(equation, list(map(jnp.asarray, arrays)))
    return [np.asarray(x) if isinstance(x.dtype, np.dtype) else x for x in results]


def _stays_small(equation: JaxprEqn, operands: Sequence[np.ndarray]) -> bool:
    """Return True if the file keeps quantised operands, because the result would only take more space."""
    quantized = any(jnp.issubdtype(x.dtype, jnp.integer) and x.dtype.itemsize == 1 and x.size >= FEW for x in operands)
    if equation.primitive is operator_p:
        return quantized or equation.params["name"] == "DequantizeLinear"
    casts = equation.primitive is convert_element_type_p
    return quantized and casts and np.dtype(type_of(equation.outvars[0])).itemsize > 1
