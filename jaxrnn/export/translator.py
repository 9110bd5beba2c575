"""The translator of programs for an engine, by rules that write an equation or evaluate an equal program.

`Lowering` writes the nodes of an ONNX graph, and `Forms` traces a program again in the operations of LiteRT. Rules that
are functions of JAX arrays, such as complex numbers as pairs, serve both (`jaxrnn.export.small`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal
from jax.extend.core.primitives import convert_element_type_p

from jaxrnn.errors import UnsupportedError
from jaxrnn.export.quantized import FEW
from jaxrnn.export.reshaping import thin
from jaxrnn.export.writer import Made, dtype_of, shape_of
from jaxrnn.jaxprs.equations import bind, evaluate, is_key, needed, trace, type_of
from jaxrnn.jaxprs.equations import shape_of as shape_of_atom
from jaxrnn.jaxprs.moves import computed
from jaxrnn.jaxprs.own import is_platform_index, operator_p
from jaxrnn.jaxprs.primitives import Rules
from jaxrnn.streaming.diagnostics import Path, describe_equation

#: A function ``rule(translator, equation, *operands)`` that evaluates an equation and returns the result, or a list of
#: results if the primitive has several.
Rule = Callable[..., Any]

#: The rules for all engines: of equations on any numbers, and of equations with complex numbers or random keys.
SMALL: Rules[Rule] = Rules()
PAIRS: Rules[Rule] = Rules()


@dataclass(frozen=True)
class Complex:
    """The real and the imaginary part of a complex array, or both integers of random keys."""

    real: Any
    imag: Any


class Translator:
    """A translator of programs for an engine. A subclass has the engine's name and rules.

    A value is a NumPy array, which is known, an array of the engine, or a `Complex` of these. ``path`` is the stack of
    nested equations, the current equation last. ``made`` has the arrays that depend on no parameter, and ``problems``
    messages about equations that the engine lacks.
    """

    #: The engine's name in messages.
    engine: str
    #: The rules of equations on real numbers, and of equations with complex numbers or random keys.
    rules: Rules[Rule]
    of_complex: Rules[Rule]
    #: True if operations that only make quantised constants larger stay in the program.
    keeps_quantized = False

    def __init__(self, made: Made, path: Path = (), problems: list[str] | None = None):
        self.made, self.path = made, path
        self.problems: list[str] = [] if problems is None else problems

    def placeholder(self, shape: Sequence[int], dtype: np.dtype) -> Any:
        """Return an array in place of a result that the engine cannot compute."""
        raise NotImplementedError

    def whole(self, closed: ClosedJaxpr, operands: Sequence[Any]) -> list[Any]:
        """Evaluate a whole program, and return the results. One error lists all equations that the engine lacks."""
        results = self.evaluate(closed, operands)
        if len(self.problems) > 1:
            lines = "".join(f"\n  {problem}" for problem in self.problems)
            raise UnsupportedError(f"{len(self.problems)} operations cannot be written in {self.engine}:{lines}")
        if self.problems:
            raise UnsupportedError(self.problems[0])
        return results

    def evaluate(self, jaxpr: Any, operands: Sequence[Any]) -> list[Any]:
        """Evaluate a jaxpr, and return the results."""
        inner = getattr(jaxpr, "jaxpr", jaxpr)
        live = inner.replace(eqns=needed(inner.eqns, inner.outvars, effects=True))
        consts = list(map(array_of, inner.constvars, getattr(jaxpr, "consts", ())))
        results = evaluate(ClosedJaxpr(live, consts), operands, self.apply)
        return list(map(array_of, inner.outvars, results))

    def trace(self, function: Callable[..., Any], *operands: Any) -> list[Any]:
        """Trace a JAX function of the operands, evaluate the jaxpr, and return the results."""
        structs = [jax.ShapeDtypeStruct(shape_of(each), dtype_of(each)) for each in operands]
        return self.evaluate(trace(function, *structs)[0], operands)

    def compute(self, function: Callable[..., Any], equation: JaxprEqn, *operands: Any) -> Any:
        """Return the result of an equation, which a JAX function of the operands computes."""
        return self.trace(function, *operands)[0]

    def apply(self, equation: JaxprEqn, operands: list[Any]) -> Sequence[Any]:
        """Evaluate an equation of a program. A refused equation becomes a problem with placeholder results."""
        try:
            with self.at(equation):
                return self.written(equation, list(map(array_of, equation.invars, operands)))
        except UnsupportedError as error:
            if str(error) not in self.problems:
                self.problems.append(str(error))
            return list(map(self._placeholder_of, equation.outvars))

    def _placeholder_of(self, atom: Any) -> Any:
        shape = shape_of_atom(atom)
        if is_complex(atom):
            return Complex(*(self.placeholder(shape, part_type(atom)) for _ in range(2)))
        return self.placeholder(shape, type_of(atom))

    def written(self, equation: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
        """Return the results of an equation: computed now if they are known, else by the rule of the engine."""
        known = known_results(equation, operands, keeps_quantized=self.keeps_quantized)
        if known is not None:
            self.made.follow(equation.invars, operands, known)
            return known
        results = self.rule_of(equation)(self, equation, *operands)
        results = list(results) if isinstance(results, list | tuple) else [results]
        for variable, result in zip(equation.outvars, results, strict=True):
            found, shape = shape_of(result.real if isinstance(result, Complex) else result), shape_of_atom(variable)
            if found != shape:
                self.refuse(f"its export rule wrote an array of shape {list(found)} in place of {list(shape)}")
        return results

    def rule_of(self, equation: JaxprEqn) -> Any:
        """Return the rule of an equation, or None; refuse complex numbers without a rule."""
        if not any(map(is_complex, (*equation.invars, *equation.outvars))):
            return self.rules.of(equation)
        return self.of_complex.of(equation) or SMALL.of(equation) or self.refuse_complex()

    @contextlib.contextmanager
    def at(self, equation: JaxprEqn) -> Iterator[None]:
        """Evaluate an equation inside of a ``with`` block. Errors name the equation."""
        outer = self.path
        self.path = (*outer, equation)
        try:
            yield
        except UnsupportedError as error:
            if error.located:
                raise
            located = UnsupportedError(f"{describe_equation(self.path)}: {error}")
            located.located = True
            raise located from error
        finally:
            self.path = outer

    def refuse(self, reason: str) -> NoReturn:
        """Refuse the current equation."""
        raise UnsupportedError(reason)

    def refuse_complex(self) -> NoReturn:
        """Refuse complex numbers in the current equation."""
        self.refuse(f"{self.engine} has no such operator for complex numbers: use real and imaginary parts")


def of_arrays(rules: Rules[Rule], *names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a JAX function of the operands, as the rule of primitives."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        rules.add(*names)(lambda translator, equation, *operands: translator.compute(function, equation, *operands))
        return function

    return decorate


def is_complex(atom: Any) -> bool:
    """Return True for complex numbers and random keys."""
    return is_key(type_of(atom)) or np.dtype(type_of(atom)).kind == "c"


def part_type(atom: Any) -> np.dtype:
    """Return the dtype of both parts of complex numbers or random keys."""
    return np.dtype(np.uint32 if is_key(type_of(atom)) else jnp.finfo(type_of(atom)).dtype)


def check_key(dtype: Any) -> None:
    """Raise an error for random keys other than Threefry's, which are not pairs of integers."""
    if str(dtype) != "key<fry>":
        raise UnsupportedError(
            f"engines cannot draw the numbers of {dtype}; use a key of the implementation "
            '"threefry2x32", or draw the numbers outside, and pass them as an input'
        )


def array_of(atom: Any, value: Any) -> Any:
    """Return the value of an atom as an operand. An array without elements is known."""
    if isinstance(value, Tracer):
        return value
    if isinstance(value, jax.Array) and is_key(value.dtype):
        check_key(value.dtype)
        with jax.ensure_compile_time_eval():
            integers = np.asarray(jax.random.key_data(value))
        return Complex(integers[..., 0], integers[..., 1])
    if isinstance(value, ir.Value) and 0 in shape_of(value):
        return np.zeros(shape_of(value), dtype_of(value))
    if isinstance(value, ir.Value | Complex) or not isinstance(type_of(atom), np.dtype):
        return value
    return np.asarray(value, type_of(atom)) if isinstance(atom, Literal) else np.asanyarray(value)


def known_results(equation: JaxprEqn, operands: Sequence[Any], *, keeps_quantized: bool) -> list[Any] | None:
    """Compute the results of an equation if all operands are constants or the results are empty.

    With ``keeps_quantized``, operations that only make quantised constants larger stay.
    """
    if equation.effects:
        return None
    variables = equation.outvars
    ordinary = all(isinstance(type_of(each), np.dtype) for each in variables)
    if ordinary and all(0 in shape_of_atom(variable) for variable in variables):
        return [np.zeros(shape_of_atom(variable), type_of(variable)) for variable in variables]
    arrays = [known for each in zip(equation.invars, operands, strict=True) if (known := _known(*each)) is not None]
    if len(arrays) < len(operands) or is_platform_index(equation):
        return None
    if keeps_quantized and _stays_small(equation, arrays):
        return None
    ordinary = ordinary and all(isinstance(each, np.ndarray) for each in arrays)
    known = computed(equation, arrays, thin) if ordinary else None
    if known is not None:
        return known
    with jax.ensure_compile_time_eval():
        results = bind(equation, list(map(jnp.asarray, arrays)))
    return [np.asarray(x) if isinstance(x.dtype, np.dtype) else x for x in results]


def _known(atom: Any, operand: Any) -> Any:
    """Return a constant as an array of NumPy, or of random keys; None if the operand is not known."""
    if isinstance(operand, Complex) and is_key(type_of(atom)):
        integers = [operand.real, operand.imag]
        if not all(isinstance(each, np.ndarray) for each in integers):
            return None
        with jax.ensure_compile_time_eval():
            return jax.random.wrap_key_data(jnp.stack(integers, -1), impl="threefry2x32")
    return operand if isinstance(operand, np.ndarray) else None


def _stays_small(equation: JaxprEqn, operands: Sequence[np.ndarray]) -> bool:
    """Return True if the file keeps quantised operands, because the result would only take more space."""
    quantized = any(jnp.issubdtype(x.dtype, jnp.integer) and x.dtype.itemsize == 1 and x.size >= FEW for x in operands)
    if equation.primitive is operator_p:
        return quantized or equation.params["name"] == "DequantizeLinear"
    casts = equation.primitive is convert_element_type_p
    return quantized and casts and np.dtype(type_of(equation.outvars[0])).itemsize > 1
