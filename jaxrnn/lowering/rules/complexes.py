"""Complex numbers: pairs of real ones, as engines have no others."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Var

from jaxrnn.jaxprs.equations import bind, evaluate, type_of
from jaxrnn.lowering.lowering import Complex, Lowering, Rule
from jaxrnn.lowering.rules.spectra import transform
from jaxrnn.lowering.writer import shape_of

#: Primitives that do to both parts what they do to real numbers.
_BY_PARTS = frozenset(
    """
    add add_any broadcast_in_dim concatenate copy copy_p cumsum dynamic_slice dynamic_update_slice expand_dims gather
    neg optimization_barrier pad pvary reduce_sum reshape rev scatter scatter-add select_n slice split squeeze stack
    stop_gradient sub tile transpose
    """.split()  # noqa: SIM905
)
#: Primitives whose rules hand their operands on to other equations.
_HANDED_ON = frozenset(("closed_call", "custom_jvp_call", "custom_vjp_call", "jit", "pjit", "remat2"))
#: Primitives with bodies that become graphs of their own, and how many operands each of these takes in turn.
_WITH_BODIES = frozenset(("cond", "scan", "while"))
_COUNTS = ("num_consts", "num_carry", "cond_nconsts", "body_nconsts")


def _product(a: Any, b: Any, c: Any, d: Any, product: Any = jnp.multiply) -> Any:
    return product(a, c) - product(b, d), product(a, d) + product(b, c)


def _quotient(a: Any, b: Any, c: Any, d: Any) -> Any:
    """Scaled, so that no square overflows or vanishes."""
    size = jnp.maximum(jnp.abs(c), jnp.abs(d))
    c, d = c / size, d / size
    squares = (c * c + d * d) * size
    return (a * c + b * d) / squares, (b * c - a * d) / squares


def _absolute(a: Any, b: Any) -> Any:
    """Scaled, so that no square overflows or vanishes."""
    a, b = jnp.abs(a), jnp.abs(b)
    large = jnp.maximum(a, b)
    ratio = jnp.minimum(a, b) / jnp.where(large == 0, jnp.ones_like(large), large)
    return large * jnp.sqrt(1 + ratio * ratio)


def _exponential(a: Any, b: Any) -> Any:
    size = jnp.exp(a)
    return size * jnp.cos(b), size * jnp.sin(b)


def _unequal(a: Any, b: Any, c: Any, d: Any) -> Any:
    return jnp.logical_or(a != c, b != d)


#: Primitives of complex numbers, as functions of real and imaginary parts, one operand after another.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": _absolute,
    "conj": lambda a, b: (a, -b),
    "div": _quotient,
    "eq": lambda *parts: jnp.logical_not(_unequal(*parts)),
    "exp": _exponential,
    "log": lambda a, b: (jnp.log(_absolute(a, b)), jnp.arctan2(b, a)),
    "mul": _product,
    "ne": _unequal,
    "square": lambda a, b: _product(a, b, a, b),
}


def _power(exponent: int, a: Any, b: Any) -> Any:
    c, d = a, b
    for _ in range(abs(exponent) - 1):
        c, d = _product(c, d, a, b)
    return (c, d) if exponent > 0 else _quotient(jnp.ones_like(c), jnp.zeros_like(c), c, d)


def _contraction(equation: JaxprEqn, *parts: Any) -> Any:
    preferred = equation.params.get("preferred_element_type")
    changed = {} if preferred is None else {"preferred_element_type": jnp.finfo(preferred).dtype}
    return _product(*parts, product=lambda x, y: bind(equation, [x, y], **changed)[0])


def _function(equation: JaxprEqn) -> Callable[..., Any] | None:
    """What an equation computes of the parts of its operands."""
    name = equation.primitive.name
    if name == "dot_general":
        return functools.partial(_contraction, equation)
    if name == "integer_pow" and equation.params["y"]:
        return functools.partial(_power, equation.params["y"])
    return _FUNCTIONS.get(name)


def _has_complex(values: Any) -> bool:
    return any(
        isinstance(each, Complex) or (isinstance(each, np.ndarray) and each.dtype.kind == "c") for each in values
    )


def _part(value: Any, name: str) -> Any:
    """The real or imaginary part of an operand; of a real one, the same for both."""
    if isinstance(value, Complex):
        return value.real if name == "real" else value.imag
    if isinstance(value, np.ndarray) and value.dtype.kind == "c":
        return np.ascontiguousarray(getattr(value, name))
    return value


def _real_var(atom: Any) -> Any:
    """A variable for one part of a complex one."""
    return Var(atom.aval.update(dtype=np.dtype(jnp.finfo(type_of(atom)).dtype))) if _is_complex(atom) else atom


def _by_parts(rule: Rule, lowering: Lowering, equation: JaxprEqn, *operands: Any) -> Any:
    params = dict(equation.params)
    if params.get("fill_value") is not None:
        params["fill_value"] = np.real(params["fill_value"])
    invars, outvars = [*map(_real_var, equation.invars)], [*map(_real_var, equation.outvars)]
    of_parts = equation.replace(invars=invars, outvars=outvars, params=params)
    real, imag = (rule(lowering, of_parts, *(_part(each, name) for each in operands)) for name in ("real", "imag"))
    if equation.primitive.multiple_results:
        return [Complex(*pair) for pair in zip(real, imag, strict=True)]
    return Complex(real, imag)


def _is_complex(atom: Any) -> bool:
    dtype = type_of(atom)
    return isinstance(dtype, np.dtype) and dtype.kind == "c"


def _as_parts(atoms: Sequence[Any]) -> list[Any]:
    """Return variables in which each complex one is replaced by its two parts."""
    return [_real_var(atom) for atom in atoms for _ in range(2 if _is_complex(atom) else 1)]


def _joined(atoms: Sequence[Any], parts: Sequence[Any], join: Callable[[Any, Any], Any]) -> list[Any]:
    """Return the values of variables, two for each complex one."""
    rest = iter(parts)
    return [join(next(rest), next(rest)) if _is_complex(atom) else next(rest) for atom in atoms]


def _of_parts(body: ClosedJaxpr) -> ClosedJaxpr:
    """Return the body of a loop or branch that takes and returns complex arrays as two parts."""
    atoms, results = body.jaxpr.invars, body.jaxpr.outvars

    def function(*parts: Any) -> list[Any]:
        values = evaluate(body, _joined(atoms, parts, lax.complex))
        pairs = zip(results, values, strict=True)
        return [part for atom, each in pairs for part in ([each.real, each.imag] if _is_complex(atom) else [each])]

    return jax.make_jaxpr(function)(
        *(jax.ShapeDtypeStruct(each.aval.shape, type_of(each)) for each in _as_parts(atoms))
    )


def _around_bodies(rule: Rule, lowering: Lowering, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """Lower a loop or branch whose complex arrays are passed as two parts."""
    params, groups = dict(equation.params), [each for each in _COUNTS if each in equation.params]
    start = 0
    for name in groups:
        end = start + params[name]
        params[name], start = len(_as_parts(equation.invars[start:end])), end
    for name, value in equation.params.items():
        if isinstance(value, ClosedJaxpr):
            params[name] = _of_parts(value)
        elif name == "branches":
            params[name] = tuple(map(_of_parts, value))
    invars, outvars = _as_parts(equation.invars), _as_parts(equation.outvars)
    pairs = zip(equation.invars, operands, strict=True)
    parts = [_part(each, part) for atom, each in pairs for part in (("real", "imag") if _is_complex(atom) else ("",))]
    results = rule(lowering, equation.replace(invars=invars, outvars=outvars, params=params), *parts)
    return _joined(equation.outvars, results, Complex)


def _with_complex(name: str, rule: Rule | None, lowering: Lowering, equation: JaxprEqn, *operands: Any) -> Any:
    """A rule, also for complex operands or results."""
    if name in _WITH_BODIES and any(map(_is_complex, (*equation.invars, *equation.outvars))):
        assert rule is not None
        return _around_bodies(rule, lowering, equation, *operands)
    if not _has_complex(operands) and name not in ("complex", "fft", "convert_element_type", "real", "imag"):
        assert rule is not None
        return rule(lowering, equation, *operands)
    if name == "complex":
        return Complex(*operands)
    if name in ("real", "imag"):
        return _part(operands[0], name)
    if name == "fft":
        return transform(lowering, equation, *(_part(operands[0], each) for each in _parts_of(operands[0])))
    if name == "convert_element_type":
        return _converted(rule, lowering, equation, operands[0])
    if name in _HANDED_ON and rule is not None:
        return rule(lowering, equation, *operands)
    if name in _BY_PARTS and rule is not None:
        return _by_parts(rule, lowering, equation, *operands)
    function = _function(equation)
    if function is None:
        lowering.refuse("of complex numbers, ONNX has no such operator")
    parts = [_part(each, part) for each in operands for part in ("real", "imag")]
    results = lowering.trace(function, *parts)
    return Complex(*results) if len(results) == 2 else results[0]


def _parts_of(x: Any) -> tuple[str, ...]:
    return ("real", "imag") if _has_complex([x]) else ("real",)


def _converted(rule: Rule | None, lowering: Lowering, equation: JaxprEqn, x: Any) -> Any:
    dtype = np.dtype(equation.params["new_dtype"])
    assert rule is not None
    to_complex, of_complex = dtype.kind == "c", _has_complex([x])
    if not to_complex and not of_complex:
        return rule(lowering, equation, x)
    part = np.dtype(jnp.finfo(dtype).dtype) if to_complex else dtype
    of_part = equation.replace(
        invars=[*map(_real_var, equation.invars)],
        outvars=[*map(_real_var, equation.outvars)],
        params={**equation.params, "new_dtype": part},
    )
    real = rule(lowering, of_part, _part(x, "real"))
    if not to_complex:
        return real
    return Complex(real, rule(lowering, of_part, _part(x, "imag")) if of_complex else np.zeros(shape_of(x), part))


def with_complex(rules: Mapping[str, Rule]) -> dict[str, Rule]:
    """Rules that know complex numbers too."""
    names = {*rules, *_FUNCTIONS, "complex", "fft", "imag", "real"}
    return {name: functools.partial(_with_complex, name, rules.get(name)) for name in names}
