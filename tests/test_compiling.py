"""Compiled values: what XLA's optimiser makes of primitives, operators and models equals the program without it.

XLA once compiled `arctan` wrongly, from 64 elements on and with an option that jaxrnn set. So every comparison covers
sizes below, at and beyond those of vectors, and nothing in the package sets an option of the compiler.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_backend_suite as suite
from conftest import MODELS
from jax import lax
from quick_compiling import OPTIMISED
from small_models import graph_of, make_model
from tiers import of_tiers
from verifier import in_float64, peer_outputs

import jaxrnn
from jaxrnn._jax.context import exact_types
from jaxrnn.jaxprs.primitives import PRIMITIVES

WIDE = {"xla_cpu_prefer_vector_width": 512}

#: Below, at and beyond the sizes of vectors, quick ones and, by dtype, more.
QUICK_SHAPES = [(1,), (64,), (1, 17, 33)]
SHAPES = {"float32": [(15,), (64,), (65,), (512,), (1, 17, 33)], "float64": [(1,), (17,), (64,), (300,)]}

#: Two implementations of a function may each be some units in the last place off; those of these are longer series.
ULPS, SERIES = 32, 2048
LONG = {"digamma", "igamma", "igammac", "lgamma", "polygamma", "regularized_incomplete_beta", "zeta", "erf_inv", "pow"}


def unit(x):
    return jnp.tanh(x) * 0.99


def positive(x):
    return jnp.abs(x) + jnp.asarray(0.1, x.dtype)


def above_one(x):
    return 1 + positive(x)


def whole(x):
    return lax.convert_element_type(x * 8, jnp.int32)


def bits(x):
    return jnp.abs(whole(x)) % 31


#: Primitives by what brings random numbers into their domain.
UNARY = {
    (lambda x: x): "abs asinh atan bessel_i0e bessel_i1e cbrt ceil cos cosh digamma erf erfc exp exp2 expm1 floor "
    "is_finite lgamma logistic neg round sign sin sinh square tan tanh",
    unit: "acos asin atanh erf_inv",
    positive: "log log1p rsqrt sqrt",
    above_one: "acosh",
    whole: "clz population_count not",
}
BINARY = {
    (lambda x: x,) * 2: "add atan2 complex div eq ge gt le lt max min mul ne nextafter rem sub",
    (positive,) * 2: "igamma igamma_grad_a igammac",
    (positive, lambda y: y): "pow",
    (above_one, positive): "zeta",
    (whole,) * 2: "and or xor",
    (whole, bits): "shift_left shift_right_arithmetic shift_right_logical",
}


def primitive(name, *domains):
    function = getattr(lax, f"bitwise_{name}" if name in ("and", "not", "or", "xor") else name)
    return lambda *operands: function(*(domain(x) for domain, x in zip(domains, operands, strict=False)))


#: By name, functions of two arrays that are drawn from a normal distribution, scaled by 3.
FUNCTIONS = {
    **{name: primitive(name, domain) for domain, names in UNARY.items() for name in names.split()},
    **{name: primitive(name, *domains) for domains, names in BINARY.items() for name in names.split()},
    "clamp": lambda x, y: lax.clamp(jnp.asarray(-1, x.dtype), x, jnp.asarray(2, x.dtype)),
    "conj": lambda x, y: lax.conj(lax.complex(x, y)),
    "real": lambda x, y: lax.real(lax.complex(x, y) * lax.complex(y, x)),
    "imag": lambda x, y: lax.imag(lax.complex(x, y) * lax.complex(y, x)),
    "convert_element_type": lambda x, y: (whole(x), x.astype(jnp.bfloat16), x.astype(jnp.float16)),
    "reduce_precision": lambda x, y: lax.reduce_precision(x, 5, 7),
    "integer_pow": lambda x, y: [lax.integer_pow(x, power) for power in (-2, -1, 2, 3, 5)],
    "le_to": lambda x, y: jnp.searchsorted(jnp.asarray([-1, 0, 1], x.dtype), x),
    "lt_to": lambda x, y: jnp.digitize(x, jnp.asarray([-1, 0, 1], x.dtype)),
    "mulhi": lambda x, y: lax.mulhi(whole(x) << 20, whole(y) << 20),
    # Primitives from JAX 0.12 on.
    "log2": lambda x, y: jnp.log2(positive(x)),
    "one_minus_square": lambda x, y: getattr(lax, "one_minus_square", lambda x: 1 - x * x)(x),
    "polynomial": lambda x, y: jnp.polyval(jnp.asarray([2, -1, 0.5], x.dtype), x),
    "polygamma": lambda x, y: lax.polygamma(jnp.full_like(x, 2), positive(x)),
    "regularized_incomplete_beta": lambda x, y: lax.betainc(positive(x), positive(y), jax.nn.sigmoid(x)),
    "select_n": lambda x, y: lax.select(x > y, x, y),
    # Not primitives of one element, but what recurrent networks are made of.
    "angle": lambda x, y: jnp.angle(lax.complex(x, y)),
    "atan2 with a constant": lambda x, y: (jnp.arctan2(x, 0.5), jnp.arctan2(0.5, x)),
    "arctan of quotients": lambda x, y: lax.atan(x / lax.round(y / 3)),  # by 0 too
    "complex functions": lambda x, y: [f(lax.complex(x / 3, y / 3)) for f in (jnp.abs, jnp.exp, jnp.sqrt, jnp.tanh)],
    "softmax": lambda x, y: (jax.nn.softmax(x), jax.nn.logsumexp(x, -1)),
    "reductions": lambda x, y: (x.sum(-1), x.max(-1), x.min(-1), jnp.argmax(x, -1), jnp.prod(unit(x), -1)),
    "cumulations": lambda x, y: (jnp.cumsum(x, -1), lax.cummax(x, x.ndim - 1), lax.cumlogsumexp(x, x.ndim - 1)),
    "product": lambda x, y: jnp.einsum("...i,...j->ij", x, y) + jnp.einsum("...i,...i->...", x, y).sum(),
    "gates of a cell": lambda x, y: jax.nn.sigmoid(x) * jnp.tanh(y) + jax.nn.sigmoid(y) * x,
}
#: Elementwise primitives without arithmetic.
MOVES = {"add_any", "pvary", "stop_gradient"}


def test_every_elementwise_primitive_is_compared():
    names = {name for name, entry in PRIMITIVES.items() if entry.kind == "elementwise"}
    assert not names - set(FUNCTIONS) - MOVES


def results(function, arrays, options):
    compiled = jax.jit(lambda arrays: [function(*pair) for pair in arrays], compiler_options=options)
    return jax.tree.map(np.asarray, compiled(arrays))


def assert_near(found, expected, ulps, what):
    """Equal types and shapes, NaN where NaN is expected, and values within units in the last place of the largest."""
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), what
        if not jnp.issubdtype(b.dtype, jnp.inexact):
            np.testing.assert_array_equal(a, b, err_msg=what)
            continue
        eps = float(jnp.finfo(b.dtype).eps)
        wide = np.complex128 if b.dtype.kind == "c" else np.float64
        tolerance = ulps * eps * (np.sqrt(b.shape[-1]) if b.ndim else 1)
        np.testing.assert_allclose(a.astype(wide), b.astype(wide), tolerance, tolerance, err_msg=what)


def compare(name, dtype, shapes, options):
    """One primitive on random arrays of several shapes, optimised and not."""
    with jax.enable_x64(dtype == "float64"):
        rng = np.random.default_rng(len(name))
        arrays = [tuple(3 * rng.standard_normal((2, *shape)).astype(dtype)) for shape in shapes]
        found, expected = (results(FUNCTIONS[name], arrays, each) for each in (options, None))
        for shape, *pair in zip(shapes, found, expected, strict=True):
            assert_near(*pair, SERIES if name in LONG else ULPS, f"{name} of {dtype}{list(shape)}")


#: What recurrent networks are made of, and what XLA once compiled wrongly. `test_functions_of_all_sizes` has the rest.
QUICK = ["atan", "exp", "tanh", "logistic", "rsqrt", "arctan of quotients", "softmax", "reductions", "cumulations"]
QUICK += ["product", "gates of a cell", "convert_element_type", "complex functions", "mulhi"]


@pytest.mark.parametrize(
    "name", of_tiers([name for name in FUNCTIONS if name in {*LONG, *QUICK}], QUICK[::8], thorough=QUICK)
)
def test_functions(name):
    compare(name, "float32", QUICK_SHAPES[1:] if name in LONG else QUICK_SHAPES, OPTIMISED)


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - LONG))
def test_functions_of_all_sizes(name, dtype):
    compare(name, dtype, SHAPES[dtype], OPTIMISED)


def test_the_comparison_finds_what_the_option_broke():
    """`arctan` with vectors of 512 bits, where this XLA and this processor still have the defect."""
    x = np.random.default_rng(0).standard_normal(561).astype(np.float32) * 3
    wrong = jax.jit(jnp.arctan, compiler_options={**OPTIMISED, **WIDE})(x)
    if np.abs(wrong - np.arctan(x)).max() < 1e-6:
        pytest.skip("XLA compiles arctan rightly here")
    with pytest.raises(AssertionError, match="atan of float32"):
        compare("atan", "float32", [(561,)], {**OPTIMISED, **WIDE})


def test_the_package_sets_no_option_of_the_compiler():
    """An option needs a comparison over everything that it touches before it may be set."""
    folder = Path(jaxrnn.__file__).parent
    found = [path.name for path in folder.rglob("*.py") if re.search(r"compiler_options|xla_[cg]pu", path.read_text())]
    assert not found


def phase_model():
    """Phase and magnitude of real and imaginary parts over frames, as PyTorch exports `torch.atan2`: Div and Atan."""
    from onnx import helper

    nodes = [
        helper.make_node("Div", ["imag", "real"], ["slope"]),
        helper.make_node("Atan", ["slope"], ["half"]),
        helper.make_node("Constant", [], ["zero"], value_float=0.0),
        helper.make_node("Constant", [], ["pi"], value_float=np.pi),
        helper.make_node("Less", ["real", "zero"], ["left"]),
        helper.make_node("Less", ["imag", "zero"], ["below"]),
        helper.make_node("Sub", ["half", "pi"], ["lower"]),
        helper.make_node("Add", ["half", "pi"], ["upper"]),
        helper.make_node("Where", ["below", "lower", "upper"], ["turned"]),
        helper.make_node("Where", ["left", "turned", "half"], ["phase"]),
    ]
    spectrum = ["b", "S", 33]
    return make_model(graph_of(nodes, {"real": spectrum, "imag": spectrum}, {"phase": spectrum}))


@pytest.mark.parametrize("frames", of_tiers([1, 17, 64], [], [17]))
def test_the_phase_of_a_complex_network(frames):
    """In all the ways that the package compiles a model by itself, and under the user's own jit."""
    model = jaxrnn.load(phase_model())
    rng = np.random.default_rng(frames)
    inputs = {name: rng.standard_normal((1, frames, 33)).astype(np.float32) for name in ("real", "imag")}
    expected = np.arctan2(inputs["imag"], inputs["real"])
    streamed = model.stream("S", pulse=1)
    step = jax.jit(model.apply, compiler_options=OPTIMISED)
    ways = {
        "apply": model.apply(model.params, inputs),
        "call": model(inputs),
        "jit": step(model.params, inputs),
        "stream, run": streamed.run(model.params, inputs),
        "stream, scan": streamed.scan(model.params, streamed.init(), inputs)[0],
    }
    for way, outputs in ways.items():
        np.testing.assert_allclose(outputs["phase"], expected, atol=4e-7, err_msg=way)


#: Operators whose ``stash_type`` asks for float32 arithmetic whatever their inputs have.
IN_FLOAT32 = {"GroupNormalization", "LayerNormalization", "RMSNormalization"}
COPIES = 79  # with the seven elements or more of most cases of the suite, 561 and more


@functools.cache
def operator_cases():
    """A case of ONNX's suite for each operator: the first whose float inputs can be stacked."""
    found = {}
    for name in itertools.chain(*suite.in_tiers()):
        case = suite.all_cases()[name]
        if case.model is None or len(case.model.graph.node) != 1:
            continue
        node = case.model.graph.node[0]
        _, ((values, _), *_) = suite.content(case)
        if any(map(suite.is_float, values)) and all(
            isinstance(v, np.ndarray) and v.dtype.kind not in "OUS" for v in values
        ):
            found.setdefault((node.domain, node.op_type), name)
    return found


def compare_operator(name, wide):
    """One operator mapped over many copies of its case, each scaled by another number, optimised and not."""
    proto, ((values, _), *_) = suite.content(suite.all_cases()[name])
    inputs = dict(zip(suite.inputs_of(proto.graph), values, strict=False))
    needed = suite.needed_while_tracing(proto.graph)
    if wide:
        proto = in_float64(proto)
        inputs = {key: v.astype(np.float64) if v.dtype == np.float32 else v for key, v in inputs.items()}
    free = {key: v for key, v in inputs.items() if key not in needed and suite.is_float(v)}
    if not free or (wide and proto.graph.node[0].op_type in IN_FLOAT32):
        raise jaxrnn.StaticValueError("nothing is left to compare")
    model = jaxrnn.load(proto, static={key: v for key, v in inputs.items() if key not in free})
    scales = np.random.default_rng(0).uniform(0.3, 1, COPIES)
    stacked = {key: (v * scales.reshape(-1, *[1] * v.ndim)).astype(v.dtype) for key, v in free.items()}
    mapped = jax.vmap(functools.partial(model.apply, model.params))
    with exact_types():
        assert_near(*(jax.jit(mapped, compiler_options=each)(stacked) for each in (OPTIMISED, None)), SERIES, name)


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("part", range(6))
def test_operators(part, dtype):
    failures, left_out = [], []
    names = list(operator_cases().values())[part::6]
    for name in names:
        try:
            with jax.enable_x64(dtype == "float64"):
                compare_operator(name, dtype == "float64")
        except AssertionError as error:
            error.add_note(name)
            failures.append(error)
        except jaxrnn.JaxrnnError as error:  # shapes that depend on data, or an operator that has no float64
            left_out.append(f"{name}: {error}")
    if failures:
        raise ExceptionGroup(f"{len(failures)} operators", failures)
    assert len(left_out) <= len(names) // (2 if dtype == "float64" else 8), left_out


def recordings_of(path):
    """Inputs and outputs that were recorded beside a model: of its calls, or by length."""
    found = {}
    if path.with_suffix(".npz").exists():
        with np.load(path.with_suffix(".npz")) as arrays:
            for key in arrays.files:
                if match := re.fullmatch(r"(?:(\d*)\.?(in|out)(\d*)[./])(.+)", key):
                    call = found.setdefault(match[1] or match[3], {"in": {}, "out": {}})
                    call[match[2]][match[4]] = arrays[key]
    return found


def model_files():
    paths = sorted(path.relative_to(MODELS).as_posix() for path in MODELS.rglob("*.onnx")) if MODELS.is_dir() else []
    return [path for path in paths if not path.startswith("damaged/")]


@pytest.mark.thorough
@pytest.mark.parametrize("name", of_tiers(model_files(), [], model_files()[::30]))
def test_models(models, name):
    """Whole networks, compiled as users do, against what their framework or ONNX Runtime computed."""
    path = models / name
    calls = recordings_of(path)
    static = {"sr": np.asarray(16000)} if name == "silero_vad.onnx" else {}
    model = jaxrnn.load(path, static=static)
    if not calls:
        rng = np.random.default_rng(0)
        sizes = {"sequence": 576, "batch": 2, "input_dim_0": 2, "input_dim_1": 576, "state_dim_1": 2}
        shapes = {info.name: [sizes.get(str(size), size) for size in info.shape] for info in model.inputs}
        inputs = {info.name: np.abs(rng.standard_normal(shapes[info.name])).astype(info.dtype) for info in model.inputs}
        calls = {"": {"in": inputs, "out": peer_outputs(path, {**inputs, **static})}}
    apply = jax.jit(model.apply, compiler_options=OPTIMISED)
    call = max(calls.values(), key=lambda call: sum(map(operator.attrgetter("size"), call["in"].values())))
    outputs = apply(model.params, call["in"])
    for key, expected in call["out"].items():
        scale = max(1.0, float(np.abs(expected).max()))
        # One step of a quantised network is 1/127 of its range; all others are sums of some 10^3 float32 products.
        atol = 0.05 if "_q" in name else 2e-5
        np.testing.assert_allclose(outputs[key], expected, rtol=0, atol=atol * scale, err_msg=f"{name}: {key}")
