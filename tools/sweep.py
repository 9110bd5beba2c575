"""The sweep: each primitive, in each type, at odd values, in ONNX Runtime and LiteRT against NumPy.

Values are NaN, infinities, zeros of both signs, subnormal numbers, and the ends of integers. The sweep decides the
types of a primitive in LiteRT (`litert` in `jaxrnn.jaxprs.primitives.Entry`): ``python -m tools.sweep`` prints the
outcome of each primitive alone, whatever the table says, and `tests/test_sweep.py` compares all primitives of a type in
one file.
"""

from __future__ import annotations

import functools
import itertools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import click
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import primitives
from scipy import special

import jaxrnn
from jaxrnn._jax.context import exact_types
from jaxrnn.export import export_litert
from jaxrnn.export.graphs import function_graph
from jaxrnn.export.litert.files import Forms
from jaxrnn.jaxprs.primitives import PRIMITIVES
from jaxrnn.verification.litert import LiteRt

SIGNED, UNSIGNED = ("int8", "int16", "int32", "int64"), ("uint8", "uint16", "uint32", "uint64")
TYPES = ("bool", *SIGNED, *UNSIGNED, "float16", "float32", "float64", "complex64")
OPSET = 18  # the first with bits of integers

#: A function of arrays whose rows are independent.
Function = Callable[..., Any]


def odd_values(name: str) -> np.ndarray:
    """Return the values of a type that engines get wrong, among ordinary values."""
    dtype = np.dtype(name)
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        numbers = [0, 1, 2, 3, 5, 7, 8, 15, 16, 31, 100, info.min, info.max, info.max - 1]
        return np.unique(np.array([*numbers, *([-1, -2, -3, -7, -100, info.min + 1] if info.min else [])], dtype))
    info = np.finfo(dtype)
    if dtype.kind == "c":
        parts = np.array([0.0, -0.0, 1, -1, 0.5, -2.5, 3, 1e-30, -1e30, np.inf, -np.inf, np.nan], info.dtype)
        return np.array([complex(a, b) for a in parts for b in parts], dtype)
    numbers = [
        0.0,
        -0.0,
        1,
        -1,
        0.5,
        -0.5,
        1.5,
        -1.5,
        2,
        2.5,
        -2.5,
        3,
        0.1,
        -0.3,
        7.25,
        -20,
        60,
        1e-3,
        0.49999997,
        1.001,
    ]
    numbers += [100, 1000.3, -1e4, info.tiny, -info.tiny, info.smallest_subnormal, -info.tiny / 4]
    with np.errstate(over="ignore"):
        return np.array([*numbers, 1e5, 1e30, info.max, info.min, np.inf, -np.inf, np.nan], dtype)


def operands_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return all pairs of odd values, as two arrays."""
    values = odd_values(name)
    if np.dtype(name).kind == "c":  # each value, and some of the pairs
        rng = np.random.default_rng(0)
        return np.resize(values, 4 * values.size), rng.choice(values, 4 * values.size)
    x, y = zip(*itertools.product(values, values), strict=True)
    return np.array(x, values.dtype), np.array(y, values.dtype)


def _rows(x: Any, y: Any) -> Any:
    return jnp.stack([x, y, x], 1)


def _place(x: Any) -> Any:
    """Return the position 1, which the file computes."""
    changes = lax.convert_element_type(lax.ne(x[1:], x[:-1]), np.int32)
    return lax.min(lax.reduce_sum(changes, (0,)), np.int32(1))


def _window(primitive: Any) -> Function:
    params = {"base_dilation": (1, 1), "window_dilation": (1, 1), "window_strides": (1, 1)}
    return lambda x, y: primitive.bind(_rows(x, y), window_dimensions=(1, 2), padding=((0, 0), (0, 0)), **params)


def _at(name: str) -> Function:
    return lambda x, y: getattr(_rows(x, y).at[:, np.array([2, 0])], name)(_rows(y, x)[:, :2])


def _factors(x: Any, *shape: int) -> Any:
    return jnp.asarray(np.arange(1, 1 + np.prod(shape)).reshape(shape).astype(x.dtype))


def _power(exponent: int) -> Function:
    return lambda x: primitives.integer_pow_p.bind(x, y=exponent)


_EVEN, _AWAY = lax.RoundingMethod.TO_NEAREST_EVEN, lax.RoundingMethod.AWAY_FROM_ZERO
#: Functions of each element, by primitive, with the function in NumPy if NumPy or SciPy has one.
ONE: dict[str, tuple[Function, Function | None]] = {
    "abs": (lax.abs, np.abs),
    "acos": (lax.acos, np.arccos),
    "acosh": (lax.acosh, np.arccosh),
    "asin": (lax.asin, np.arcsin),
    "asinh": (lax.asinh, np.arcsinh),
    "atan": (lax.atan, np.arctan),
    "atanh": (lax.atanh, np.arctanh),
    "bessel_i0e": (lax.bessel_i0e, special.i0e),
    "bessel_i1e": (lax.bessel_i1e, special.i1e),
    "cbrt": (lax.cbrt, np.cbrt),
    "ceil": (lax.ceil, np.ceil),
    "clz": (lax.clz, None),
    "conj": (lambda x: lax.conj_p.bind(x, input_dtype=x.dtype), np.conj),
    "cos": (lax.cos, np.cos),
    "cosh": (lax.cosh, np.cosh),
    "digamma": (lax.digamma, special.digamma),
    "erf": (lax.erf, special.erf),
    "erf_inv": (lax.erf_inv, special.erfinv),
    "erfc": (lax.erfc, special.erfc),
    "exp": (lax.exp, np.exp),
    "exp2": (lax.exp2, np.exp2),
    "expm1": (lax.expm1, np.expm1),
    "floor": (lax.floor, np.floor),
    "imag": (lax.imag, np.imag),
    **{f"integer_pow {n}": (_power(n), lambda x, n=n: x**n) for n in (0, 1, 3, 4, 7, -1, -2, -3)},
    "is_finite": (lax.is_finite, np.isfinite),
    "lgamma": (lax.lgamma, special.gammaln),
    "log": (lax.log, np.log),
    "log1p": (lax.log1p, np.log1p),
    "logistic": (lax.logistic, special.expit),
    "neg": (lax.neg, np.negative),
    "not": (lax.bitwise_not, np.invert),
    "population_count": (lax.population_count, None),
    "real": (lax.real, np.real),
    "reduce_precision": (lambda x: lax.reduce_precision(x, 8, 7), None),
    "round to even": (lambda x: lax.round(x, _EVEN), np.rint),
    "round away": (lambda x: lax.round(x, _AWAY), None),
    "rsqrt": (lax.rsqrt, lambda x: 1 / np.sqrt(x)),
    "shift_left by 3": (lambda x: lax.shift_left(x, jnp.full_like(x, 3)), None),
    "shift_right_arithmetic by 3": (lambda x: lax.shift_right_arithmetic(x, jnp.full_like(x, 3)), None),
    "shift_right_logical by 3": (lambda x: lax.shift_right_logical(x, jnp.full_like(x, 3)), None),
    "sign": (lax.sign, np.sign),
    "sin": (lax.sin, np.sin),
    "sinh": (lax.sinh, np.sinh),
    "sqrt": (lax.sqrt, np.sqrt),
    "square": (lax.square, np.square),
    "stop_gradient": (lax.stop_gradient, None),
    "tan": (lax.tan, np.tan),
    "tanh": (lax.tanh, np.tanh),
}
#: Functions of two arrays.
TWO: dict[str, tuple[Function, Function | None]] = {
    "add": (lax.add, np.add),
    "and": (lax.bitwise_and, np.bitwise_and),
    "atan2": (lax.atan2, np.arctan2),
    "clamp": (lambda x, y: lax.clamp(y, x, jnp.full_like(x, 3)), None),
    "clamp to numbers": (lambda x, y: lax.clamp(jnp.array(1, x.dtype), x, jnp.array(3, x.dtype)), None),
    "div": (lax.div, None),
    "div by 3": (lambda x, y: lax.div(x, jnp.full_like(x, 3)), None),
    "eq": (lax.eq, np.equal),
    "ge": (lax.ge, np.greater_equal),
    "gt": (lax.gt, np.greater),
    "igamma": (lax.igamma, special.gammainc),
    "igammac": (lax.igammac, special.gammaincc),
    "le": (lax.le, np.less_equal),
    "le_to": (primitives.le_to_p.bind, None),
    "lt": (lax.lt, np.less),
    "lt_to": (primitives.lt_to_p.bind, None),
    "max": (lax.max, np.maximum),
    "min": (lax.min, np.minimum),
    "mul": (lax.mul, np.multiply),
    "ne": (lax.ne, np.not_equal),
    "nextafter": (lax.nextafter, np.nextafter),
    "or": (lax.bitwise_or, np.bitwise_or),
    "polygamma": (lax.polygamma, special.polygamma),
    "pow": (lax.pow, np.power),
    "rem": (lax.rem, None),
    "rem by 3": (lambda x, y: lax.rem(x, jnp.full_like(x, 3)), None),
    "select_n": (lambda x, y: lax.select_n(lax.ne(x, y), x, y), None),
    "shift_left": (lax.shift_left, None),
    "shift_right_arithmetic": (lax.shift_right_arithmetic, None),
    "shift_right_logical": (lax.shift_right_logical, None),
    "sub": (lax.sub, np.subtract),
    "xor": (lax.bitwise_xor, np.bitwise_xor),
    "zeta": (lax.zeta, special.zeta),
    # Of rows of three.
    "argmax": (lambda x, y: lax.argmax(_rows(x, y), 1, np.int32), None),
    "argmin": (lambda x, y: lax.argmin(_rows(x, y), 1, np.int32), None),
    "broadcast_in_dim of one": (lambda x, y: lax.broadcast_in_dim(x, (x.shape[0], 1), (0,)), None),
    "broadcast_in_dim": (lambda x, y: lax.broadcast_in_dim(x, (x.shape[0], 2), (0,)), None),
    "concatenate": (lambda x, y: lax.concatenate([x[:, None], y[:, None]], 1), None),
    "conv_general_dilated": (
        lambda x, y: lax.conv_general_dilated(_rows(x, y)[:, None], _factors(x, 1, 1, 2), (1,), "VALID"),
        None,
    ),
    "cumlogsumexp": (lambda x, y: lax.cumlogsumexp(_rows(x, y), 1), None),
    "cummax": (lambda x, y: lax.cummax(_rows(x, y), 1), None),
    "cummin": (lambda x, y: lax.cummin(_rows(x, y), 1), None),
    "cumprod": (lambda x, y: lax.cumprod(_rows(x, y), 1), None),
    "cumsum": (lambda x, y: lax.cumsum(_rows(x, y), 1), None),
    "cumsum reversed": (lambda x, y: lax.cumsum(_rows(x, y), 1, reverse=True), None),
    "dot_general": (lambda x, y: lax.dot_general(_rows(x, y), _factors(x, 3, 1), (((1,), (0,)), ((), ()))), None),
    "dot_general of inputs": (
        lambda x, y: lax.dot_general(_rows(x, y), _rows(y, x), (((1,), (1,)), ((0,), (0,)))),
        None,
    ),
    "dynamic_slice": (lambda x, y: lax.dynamic_slice(_rows(x, y), (np.int32(0), _place(x)), (x.shape[0], 2)), None),
    "dynamic_update_slice": (
        lambda x, y: lax.dynamic_update_slice(_rows(x, y), y[:, None], (np.int32(0), _place(x))),
        None,
    ),
    "gather": (lambda x, y: jnp.take(_rows(x, y), _place(x) + np.array([0, 2, 9], np.int32), 1, mode="fill"), None),
    "gather at known places": (lambda x, y: _rows(x, y)[:, np.array([2, 0, 2])], None),
    "pad": (lambda x, y: lax.pad(_rows(x, y), jnp.array(1, x.dtype), ((0, 0, 0), (1, -1, 0))), None),
    "pad between": (lambda x, y: lax.pad(_rows(x, y), jnp.array(1, x.dtype), ((0, 0, 0), (1, 2, 1))), None),
    "reduce_and": (lambda x, y: lax.reduce_and(_rows(x, y), (1,)), None),
    "reduce_max": (lambda x, y: lax.reduce_max(_rows(x, y), (1,)), None),
    "reduce_min": (lambda x, y: lax.reduce_min(_rows(x, y), (1,)), None),
    "reduce_or": (lambda x, y: lax.reduce_or(_rows(x, y), (1,)), None),
    "reduce_prod": (lambda x, y: lax.reduce_prod(_rows(x, y), (1,)), None),
    "reduce_sum": (lambda x, y: lax.reduce_sum(_rows(x, y), (1,)), None),
    "reduce_window_max": (_window(lax.reduce_window_max_p), None),
    "reduce_window_min": (_window(lax.reduce_window_min_p), None),
    "reduce_window_sum": (_window(lax.reduce_window_sum_p), None),
    "reduce_xor": (lambda x, y: lax.reduce_xor(_rows(x, y), (1,)), None),
    "reshape": (lambda x, y: _rows(x, y).reshape(-1, 1, 3), None),
    "rev": (lambda x, y: lax.rev(_rows(x, y), (1,)), None),
    "scatter": (_at("set"), None),
    "scatter-add": (_at("add"), None),
    "scatter-max": (_at("max"), None),
    "scatter-min": (_at("min"), None),
    "scatter-mul": (_at("mul"), None),
    "scatter-sub": (_at("subtract"), None),
    "slice": (lambda x, y: lax.slice(_rows(x, y), (0, 0), (x.shape[0], 3), (1, 2)), None),
    "sort": (lambda x, y: lax.sort(_rows(x, y), dimension=1), None),
    "sort of pairs": (lambda x, y: lax.sort((_rows(x, y), _rows(y, x)), dimension=1), None),
    "split": (lambda x, y: lax.split(_rows(x, y), (1, 2), 1), None),
    "tile": (lambda x, y: lax.tile(_rows(x, y), (1, 2)), None),
    "top_k": (lambda x, y: lax.top_k(_rows(x, y), 2), None),
    "transpose": (lambda x, y: jnp.swapaxes(_rows(x, y)[:, None, :], 1, 2), None),
    "iota": (lambda x, y: lax.iota(x.dtype, x.shape[0]), None),
}
CASES: dict[str, tuple[Function, Function | None]] = {
    **{name: (lambda x, y, f=function: f(x), numpy and (lambda x, y, f=numpy: f(x)))
       for name, (function, numpy) in ONE.items()},
    **TWO,
}  # fmt: skip


def _converted(name: str) -> Function:
    def function(x: Any, y: Any) -> Any:
        drops = x.dtype.kind == "c" and np.dtype(name).kind != "c"  # JAX warns
        return lax.convert_element_type(x.real if drops else x, np.dtype(name))

    return function


def _reread(x: Any, y: Any) -> Any:
    kind = "float" if x.dtype.kind != "f" and x.dtype.itemsize > 1 else "int"
    return lax.bitcast_convert_type(x, np.dtype(f"{kind}{8 * x.dtype.itemsize}"))


CASES |= {f"convert_element_type to {name}": (_converted(name), None) for name in TYPES}
CASES |= {
    "bitcast_convert_type": (_reread, None),
    "complex": (lax.complex, lambda x, y: x + 1j * y),
}

_UNARY = {*(name.partition(" ")[0] for name in ONE), "bitcast_convert_type", "convert_element_type"}
_UNARY -= {"shift_left", "shift_right_arithmetic", "shift_right_logical"}


def primitive_of(case: str) -> str:
    """Return the primitive of a case."""
    return case.partition(" ")[0]


def expected(case: str, name: str) -> list[list[np.ndarray]]:
    """Return the results of a case in NumPy, if NumPy has the function, and in JAX."""
    function, numpy = CASES[case]
    operands = operands_of(name)
    with np.errstate(all="ignore"), exact_types():
        own = [np.asarray(each) for each in jax.tree.leaves(jax.jit(function)(*operands))]
        if numpy is None:
            return [own]
        wide = {"f": np.float64, "c": np.complex128}.get(np.dtype(name).kind, np.dtype(name))
        results = jax.tree.leaves(numpy(*(each.astype(wide) for each in operands)))
        return [[each.astype(like.dtype) for each, like in zip(results, own, strict=True)], own]


#: By how many roundings results may differ, of their own size or of `_SCALE`.
_ROUNDINGS, _SCALE = {"float16": 4, "float32": 64, "float64": 64}, 1e-3
#: Functions that add terms of the size 1, and logarithms, which have an absolute error close to 1.
_SUMS = ("digamma", "lgamma", "polygamma", "zeta", "bessel_i1e", "cumsum", "reduce_sum", "reduce_window_sum")
_SUMS += ("dot_general", "conv_general_dilated", "cumlogsumexp", "log", "logistic")


def kinds_of_differences(found: np.ndarray, known: np.ndarray, operands: Sequence[np.ndarray], case: str) -> set[str]:
    """Return at which kinds of operands a result differs: NaN, infinities, and so on, or "numbers"."""
    if (found.dtype, found.shape) != (known.dtype, known.shape):
        return {f"{found.dtype}{list(found.shape)} in place of {known.dtype}{list(known.shape)}"}
    wrong, signs = np.zeros(known.shape, bool), np.zeros(known.shape, bool)
    for a, b in zip(_parts(found), _parts(known), strict=True):
        differs = _differs(a, b, case)
        wrong |= differs
        signs |= ~differs & (a == 0) & (b == 0) & (np.signbit(a) != np.signbit(b)) if b.dtype.kind == "f" else False
    wrong &= ~(np.isnan(found) & np.isnan(known)) if known.dtype.kind in "fc" else True
    rows = np.unique(np.argwhere(wrong).reshape(-1, max(known.ndim, 1))[:, 0])
    return {*(_kind([each[row] for each in operands]) for row in rows), *(["zero"] if signs.any() else [])}


def _parts(x: np.ndarray) -> tuple[np.ndarray, ...]:
    return (np.real(x), np.imag(x)) if x.dtype.kind == "c" else (x,)


def _differs(found: np.ndarray, known: np.ndarray, case: str) -> np.ndarray:
    if known.dtype.kind != "f":
        return found != known
    a, b = found.astype(np.float64), known.astype(np.float64)
    with np.errstate(all="ignore"):
        scale = np.maximum(np.abs(b), 1.0 if primitive_of(case) in _SUMS else _SCALE)
        close = (a == b) | (np.isnan(a) & np.isnan(b))
        return ~(close | (np.abs(a - b) <= _ROUNDINGS[known.dtype.name] * float(np.finfo(known.dtype).eps) * scale))


def _kind(values: Sequence[Any]) -> str:
    parts = [float(part) for each in values for part in (each.real, each.imag) if each.dtype.kind in "fc"]
    tiny = max((float(np.finfo(each.dtype).tiny) for each in values if each.dtype.kind in "fc"), default=0.0)
    if any(map(np.isnan, parts)):
        return "NaN"
    if any(map(np.isinf, parts)):
        return "infinity"
    if any(0 < abs(part) < tiny for part in parts):
        return "subnormal"
    if len({bool(np.signbit(part)) for part in parts if part == 0}) == 2:
        return "zero"
    return "large" if any(abs(part) > 1e6 for part in parts) else "numbers"


class Engine:
    """An engine that runs a function as an exported file."""

    name: str

    def run(self, function: Callable[..., Any], arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Export a function of a dict of arrays, and return what the file returns."""
        raise NotImplementedError


class OnnxRuntime(Engine):
    """ONNX Runtime on the CPU."""

    name = "ONNX Runtime"

    def run(self, function: Callable[..., Any], arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Export, and run."""
        import onnxruntime

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "f.onnx")
            jaxrnn.export_onnx(function, None, path, example=dict(arrays), opset=OPSET)
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 4
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        feeds = {each.name: arrays[each.name] for each in session.get_inputs()}
        results: Any = session.run(None, feeds)
        return dict(zip([each.name for each in session.get_outputs()], results, strict=True))


class LiteRT(Engine):
    """LiteRT on the CPU."""

    name = "LiteRT"

    def run(self, function: Callable[..., Any], arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Export, and run."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "f.tflite")
            export_litert(function, None, path, example=dict(arrays))
            return LiteRt(path.read_bytes(), "function").run(arrays)


class Rewritten(Engine):
    """The program that LiteRT's converter gets, in JAX: without LiteRT's packages."""

    name = "JAX"

    def run(self, function: Callable[..., Any], arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Rewrite, and run."""
        graph = function_graph(function, None, dict(arrays), None)
        with exact_types():
            given = [arrays[each.name] if each.value is None else np.asarray(each.value) for each in graph.arguments]
            results = jax.jit(lambda *arrays: Forms().whole(graph.closed, arrays))(*given)
        return dict(zip(graph.results, map(np.asarray, results), strict=True))


def run(engine: Engine, cases: Sequence[str], name: str) -> dict[str, list[np.ndarray]]:
    """Return the results of cases in an engine, all in one file; complex numbers enter and leave as parts."""
    operands = operands_of(name)
    is_complex = np.dtype(name).kind == "c"
    given = {f"{name}": part for name, each in zip("xy", operands, strict=True) for part in [each] if not is_complex}
    if is_complex:
        given = {f"{name}_{part}": getattr(each, part) for name, each in zip("xy", operands, strict=True)
                 for part in ("real", "imag")}  # fmt: skip
    given = {name: np.ascontiguousarray(each) for name, each in given.items()}
    kinds: dict[str, list[tuple[int, bool]]] = {}

    def function(inputs: Any) -> dict[str, Any]:
        x, y = (
            (lax.complex(inputs[f"{name}_real"], inputs[f"{name}_imag"]) if is_complex else inputs[name])
            for name in "xy"
        )
        results, count = {}, itertools.count()
        for case in cases:
            kinds[case] = []
            for each in jax.tree.leaves(CASES[case][0](x, y)):
                whole = each.dtype.kind != "c"
                kinds[case].append((next(count), whole))
                place = kinds[case][-1][0]
                results |= {f"y{place}": each} if whole else {f"y{place}": each.real, f"z{place}": each.imag}
        return results

    with exact_types():
        found = engine.run(function, given)
    return {
        case: [found[f"y{n}"] if whole else _joined(found[f"y{n}"], found[f"z{n}"]) for n, whole in places]
        for case, places in kinds.items()
    }


def _joined(real: np.ndarray, imag: np.ndarray) -> np.ndarray:
    return np.stack([real, imag], -1).view(np.result_type(real.dtype, np.complex64))[..., 0]


def differences(case: str, name: str, found: Sequence[np.ndarray]) -> set[str]:
    """Return at which kinds of operands the results of a case are neither NumPy's nor JAX's."""
    operands = operands_of(name)[: 1 if primitive_of(case) in _UNARY else 2]
    answers = [
        set().union(*(kinds_of_differences(*pair, operands, case) for pair in zip(found, known, strict=True)))
        for known in expected(case, name)
    ]
    return set.intersection(*answers)


#: Forms that LiteRT, or its converter, refuses, in types in which other forms run.
REFUSED_FORMS = {
    "broadcast_in_dim": "float16",
    "pad": "int8 int16 uint32 float16",
    "shift_left": " ".join(TYPES),
}
#: Types in which ONNX's rules refuse a primitive, or ONNX Runtime has no kernel and refuses the file.
WITHOUT = {
    "float64": "acos acosh asin asinh atan atanh atan2 cosh erf erfc sinh tan",
    "float16 float32 float64": "bessel_i0e bessel_i1e digamma igamma igammac lgamma nextafter polygamma zeta",
    "int16 int32 int64 uint16 uint32 uint64 float16 float32 float64": "bitcast_convert_type",
    "float16 float64": "erf_inv reduce_precision",
    "uint64": "neg scatter-sub",
    "complex64": """
        acos acosh argmax argmin asin asinh atan atan2 atanh clamp conv_general_dilated cos cosh cummax cummin cumprod
        exp2 expm1 log1p logistic max min pow reduce_max reduce_min reduce_prod reduce_window_max reduce_window_min
        rsqrt scatter-max scatter-min scatter-mul scatter-sub sign sin sinh sort sqrt tan tanh
        """,
}
#: Primitives by the operands at which an engine differs; zeros of the other sign, and subnormal numbers, are no
#: differences.
DIFFERENCES: dict[str, dict[str, str]] = {
    "ONNX Runtime": {
        "NaN": "div reduce_window_max reduce_window_min scatter-max scatter-min",
        "infinity": """
            conv_general_dilated cumprod div dot_general exp integer_pow mul reduce_prod scatter-mul square
            """,
        "large": "conv_general_dilated dot_general integer_pow square",
    },
    "LiteRT": {
        "NaN": """
            abs argmax argmin cbrt clamp convert_element_type cosh cummax cummin div exp exp2 logistic max min
            reduce_max reduce_min reduce_window_max reduce_window_min scatter-max scatter-min top_k
            """,
        "infinity": """
            conv_general_dilated cumprod div dot_general exp logistic mul reduce_prod reduce_sum square zeta
            """,
        "large": "acosh asinh cbrt cos exp log log1p logistic reduce_sum sin sqrt square tan",
    },
    "JAX": {"NaN": "div", "infinity": "div dot_general exp mul square", "large": "dot_general square"},
}
#: Kinds of types in which JAX traces a primitive, and does not compile it.
_NOT_COMPILED = {"clamp": "b", "cumlogsumexp": "biuc"}
#: Primitives that equal others, and so need no case.
SPELLINGS = ("add_any", "pvary")
#: Elementwise primitives without a case.
NOT_SWEPT = ("mulhi", "regularized_incomplete_beta", "igamma_grad_a")


def cases_of(engine: type[Engine], name: str) -> list[str]:
    """Return the cases that an engine runs in a type."""
    if engine is OnnxRuntime:
        return [case for case in CASES if exists(case, name) and not _is_without(case, name)]
    return [case for case in CASES if exists(case, name) and _is_in_litert(case, name)]


def _is_without(case: str, name: str) -> bool:
    return any(name in types.split() and primitive_of(case) in names.split() for types, names in WITHOUT.items())


def _is_in_litert(case: str, name: str) -> bool:
    known = PRIMITIVES[primitive_of(case)].litert.split()
    to = case.partition("convert_element_type to ")[2] or name
    return name in known and to in known and name not in REFUSED_FORMS.get(case, "").split()


@functools.cache
def exists(case: str, name: str) -> bool:
    """Return True if JAX has the function of a case in a type."""
    if case == "integer_pow 0" and name == "complex64":  # no rule is written for it
        return False
    if np.dtype(name).kind in _NOT_COMPILED.get(primitive_of(case), ""):
        return False
    try:
        with exact_types():
            jax.eval_shape(CASES[case][0], *operands_of(name))
    except (TypeError, ValueError, NotImplementedError, OverflowError):
        return False
    return True


def known_differences(engine: type[Engine], case: str) -> set[str]:
    """Return the operands at which an engine may differ."""
    known = {kind for kind, names in DIFFERENCES[engine.name].items() if primitive_of(case) in names.split()}
    return known | {"zero", "subnormal"}


def outcome(engine: Engine, case: str, name: str) -> str | None:
    """Return "refused", at which operands an engine differs, "right", or None if JAX has no such function."""
    if not exists(case, name):
        return None
    try:
        found = run(engine, [case], name)[case]
    except Exception as error:  # each engine has errors of its own
        return f"refused: {error}"
    return ", ".join(sorted(differences(case, name, found))) or "right"


@click.command()
@click.argument("engine", type=click.Choice(["onnx", "litert"]))
@click.argument("words", nargs=-1)
def main(engine: str, words: tuple[str, ...]) -> None:
    """Print the outcome of each case alone, of the cases whose name and type contain all WORDS."""
    chosen = {"onnx": OnnxRuntime, "litert": LiteRT}[engine]()
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    with mock.patch.object(Forms, "check_type"):
        for name, case in itertools.product(TYPES, CASES):
            is_asked = all(word in f"{case} {name}" for word in words)
            if is_asked and (said := outcome(chosen, case, name)) is not None:
                click.echo(f"{case}|{name}|{said}".replace("\n", " "))


if __name__ == "__main__":
    main()
