"""The compute dtype: what it rounds and what it leaves, at every way in; which parameters go with it."""

from __future__ import annotations

import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from node_models import one_operator
from onnx import TensorProto, helper
from refusals import check_refused
from small_models import WIDTH, frames_of, graph_of, layers_model, make_model, operator_replaced, step_model
from test_linear_attention import network as attention_network
from tiers import of_tiers

import jaxrnn
from jaxrnn import InputError
from jaxrnn._jax.context import COMPUTE_TYPES
from jaxrnn.jaxprs.equations import type_of, walk
from jaxrnn.profiling import profile_model
from jaxrnn.training import Sequences, fit, validate

FRAMES = 5
PRODUCTS = ("dot_general", "conv_general_dilated")


def offline_model():
    """A convolution over time and a projection, of no state."""
    rng = np.random.default_rng(4)
    kernel, weight = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, WIDTH, 3), (4, 2)))
    nodes = [
        helper.make_node("Conv", ["x", "K"], ["c"], kernel_shape=[3], pads=[2, 0]),
        helper.make_node("Tanh", ["c"], ["t"]),
        helper.make_node("Transpose", ["t"], ["m"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["m", "P"], ["y"]),
    ]
    ends = {"x": [1, WIDTH, "S"]}, {"y": [1, "S", 2]}
    return jaxrnn.load(make_model(graph_of(nodes, *ends, {"K": kernel, "P": weight}, "offline")))


MODELS = {"steps": step_model, "offline": offline_model}
STACKED = frames_of(FRAMES)
ONE = {"x": STACKED["x"][0]}
WHOLE = {"x": np.moveaxis(STACKED["x"], 0, 2).reshape(1, WIDTH, FRAMES)}


def module(model, params, dtype):
    made = jaxrnn.nnx.Module(model, dtype=dtype)
    made.update(params)
    return made


def cell(model, params, dtype):
    made = jaxrnn.nnx.Cell(model, dtype=dtype)
    made.update(params)
    return made(made.initialize_carry((1, WIDTH)), ONE["x"])


def in_pulses(model, params, dtype):
    streamed = model.stream("S", 2, dtype=dtype)
    streamed = pickle.loads(pickle.dumps(streamed)).with_pulse(1)
    y, state = streamed.step(streamed.pack(params), streamed.init(params=params), {"x": WHOLE["x"][:, :, :1]})
    z, state = streamed.scan(params, state, {"x": WHOLE["x"][:, :, 1:4]})
    last = streamed.flush(params, state, {"x": WHOLE["x"][:, :, 4:]}, 1)
    return {"y": jnp.concatenate([each["y"] for each in (y, z, last.outputs)], 1)}


#: Ways in, each a function of a model, parameters and a compute dtype.
WAYS = {
    "apply": ("offline", lambda m, p, dtype: m.apply(p, WHOLE, dtype=dtype)),
    "packed apply": ("offline", lambda m, p, dtype: m.apply(m.pack(p, dtype=dtype), WHOLE)),
    "stream": ("offline", lambda m, p, dtype: m.stream("S", 2, dtype=dtype).run(p, WHOLE)),
    "pulses": ("offline", in_pulses),
    "step": ("steps", lambda m, p, dtype: m.step(p, m.init(), ONE, dtype=dtype)),
    "packed step": ("steps", lambda m, p, dtype: m.step(m.pack(p, dtype=dtype), m.init(), ONE)),
    "scan": ("steps", lambda m, p, dtype: m.scan(p, m.init(), STACKED, dtype=dtype)),
    "packed scan": ("steps", lambda m, p, dtype: m.scan(m.pack(p, dtype=dtype), m.init(), STACKED)),
    "run": ("steps", lambda m, p, dtype: m.run(p, STACKED, dtype=dtype)),
    "module": ("offline", lambda m, p, dtype: module(m, p, dtype)(WHOLE)),
    "module's step": ("steps", lambda m, p, dtype: module(m, p, dtype).step(ONE)),
    "module's scan": ("steps", lambda m, p, dtype: module(m, p, dtype).scan(STACKED)),
    "cell": ("steps", cell),
}
#: Those that build an object with live state or packed parameters around every call, which is not traced again.
EAGER = ("packed", "module", "cell", "pulses")


def rounding(dtype, operator):
    """An operator whose operands are rounded to a type, and of a convolution the result; all else is in float32."""

    def to(array):
        return jnp.asarray(array).astype(dtype).astype(jnp.float32)

    @functools.wraps(operator)
    def rounded(*operands, **attributes):
        result = operator(*map(to, operands), **attributes)
        return to(result) if "group" in attributes else result

    return rounded


@functools.cache
def emulated(kind, dtype):
    """A model that computes in full precision what low precision gives."""
    with (
        operator_replaced("MatMul", functools.partial(rounding, dtype)),
        operator_replaced("Conv", functools.partial(rounding, dtype)),
    ):
        return MODELS[kind]()


def furthest(a, b) -> float:
    apart = jax.tree.map(lambda x, y: float(np.max(np.abs(np.asarray(x) - np.asarray(y)))), a, b)
    return max(jax.tree.leaves(apart))


def types_of_products(function, *arguments):
    """The types of operands and result of every product of two arrays."""
    equations = walk(jax.make_jaxpr(function)(*arguments).jaxpr)
    chosen = [equation for equation in equations if equation.primitive.name in PRODUCTS]
    return {(each.primitive.name, *(type_of(atom).name for atom in (*each.invars, *each.outvars))) for each in chosen}


@pytest.mark.thorough
@pytest.mark.parametrize("way", of_tiers(WAYS, ("apply", "packed step", "module's step"), thorough=()))
def test_operands_of_products_are_rounded_and_nothing_else(way):
    """Low precision is float32 arithmetic on rounded operands, in any order of types, compiled or not."""
    kind, call = WAYS[way]
    model = MODELS[kind]()
    function = functools.partial(call, model)
    functions = [function] if way.startswith(EAGER) else [function, jax.jit(function, static_argnums=1)]
    for each in functions:
        exact = each(model.params, None)
        for dtype in COMPUTE_TYPES:
            low = each(model.params, dtype)
            expected = call(emulated(kind, dtype), model.params, None)
            roundoff = float(jnp.finfo(dtype).eps) / 2
            assert {leaf.dtype.name for leaf in jax.tree.leaves(low)} == {"float32"}
            assert furthest(low, exact) > roundoff / 100
            # Sums in another order may round to the neighbour, where a convolution's result is rounded.
            assert furthest(low, expected) < (4 * roundoff if kind == "offline" else 1e-5)
            assert furthest(each(model.params, None), exact) == 0
            # Parameters of that type are those that the products see.
            narrow = jax.tree.map(lambda value, kind=dtype: value.astype(kind), model.params)
            assert furthest(each(narrow, dtype), low) == 0
            with pytest.raises(InputError, match=rf"\] must be float32\[.*, not {dtype}\[.*; `dtype='{dtype}'` takes"):
                each(narrow, None)


@pytest.mark.thorough
def test_products_have_operands_of_low_precision_and_wide_sums():
    model, offline = step_model(), offline_model()
    calls = {
        "scan": lambda dtype: types_of_products(
            lambda p: model.scan(p, model.init(), STACKED, dtype=dtype), model.params
        ),
        "apply": lambda dtype: types_of_products(lambda p: offline.apply(p, WHOLE, dtype=dtype), offline.params),
    }
    assert calls["scan"](None) == {("dot_general", *["float32"] * 3)}
    for dtype in COMPUTE_TYPES:
        product, convolution = ("dot_general", dtype, dtype, "float32"), ("conv_general_dilated", *[dtype] * 3)
        assert calls["scan"](dtype) == {product}
        assert calls["apply"](dtype) == {product, convolution}
        packed = model.pack(model.params, dtype=dtype)
        assert {array.dtype.name for array in packed.folded} == {dtype}
        # A call that says a type computes in it, whatever its parameters were packed for.
        for other in COMPUTE_TYPES:
            of_packed, of_plain = (model.scan(p, model.init(), STACKED, dtype=other) for p in (packed, model.params))
            assert furthest(of_packed, of_plain) == 0


def arrays(**shapes):
    rng = np.random.default_rng(7)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


X, XW = {"X": (3, 2, 4)}, {"X": (1, 4, 6), "W": (4, 4, 3)}
#: Operators with products, their inputs, and attributes.
OPERATORS = {
    "MatMul": ({"a": (2, 3), "b": (3, 4)}, {}),
    "Gemm": ({"a": (2, 3), "b": (4, 3), "c": (4,)}, {"transB": 1}),
    "Einsum": ({"a": (2, 3), "b": (3, 4)}, {"equation": "ij,jk->ki"}),
    "Conv": (XW, {"group": 1}),
    "Conv of one place": ({"X": (1, 4, 6), "W": (2, 4, 1)}, {}),
    "Conv in groups": ({"X": (1, 4, 6), "W": (4, 2, 3)}, {"group": 2}),
    "ConvTranspose": (XW, {"strides": [2]}),
    "DeformConv": ({"X": (1, 2, 4, 4), "W": (2, 2, 2, 2), "offset": (1, 8, 3, 3)}, {}),
    "LSTM": (X | {"W": (1, 20, 4), "R": (1, 20, 5)}, {"hidden_size": 5}),
    "GRU": (X | {"W": (1, 15, 4), "R": (1, 15, 5)}, {"hidden_size": 5}),
    "RNN": (X | {"W": (1, 5, 4), "R": (1, 5, 5)}, {"hidden_size": 5}),
    "Attention": ({"q": (1, 2, 3, 4), "k": (1, 2, 5, 4), "v": (1, 2, 5, 4)}, {}),
    "com.microsoft::FusedMatMul": ({"a": (2, 3), "b": (4, 3)}, {"transB": 1}),
}


@pytest.mark.parametrize("what", OPERATORS)
def test_every_product_of_an_operator_is_lowered(what):
    shapes, attributes = OPERATORS[what]
    file, inputs = one_operator(what.partition(" ")[0], arrays(**shapes), opset=23, **attributes)
    model = jaxrnn.load(file)
    exact = types_of_products(model.apply, {}, inputs)
    low = types_of_products(functools.partial(model.apply, dtype="bfloat16"), {}, inputs)
    assert {tuple(types) for _, *types in exact} == {("float32",) * 3}
    assert {(name, *types[:2]) for name, *types in low} == {(name, "bfloat16", "bfloat16") for name, *_ in exact}
    assert {types[2] for name, *types in low if name == "dot_general"} <= {"float32"}


@pytest.mark.thorough
def test_a_filter_for_each_channel_keeps_its_type():
    """Offline and streamed alike: it is no sum that low precision makes faster."""
    node = helper.make_node("Conv", ["x", "K"], ["y"], kernel_shape=[3], pads=[2, 0], group=WIDTH)
    shape, kernel = [1, WIDTH, "S"], np.ones((WIDTH, 1, 3), np.float32)
    model = jaxrnn.load(make_model(graph_of([node], {"x": shape}, {"y": shape}, {"K": kernel}, "depthwise")))
    exact = model.apply(model.params, WHOLE)
    assert furthest(model.apply(model.params, WHOLE, dtype="bfloat16"), exact) == 0
    assert furthest(model.stream("S", 2, dtype="bfloat16").run(model.params, WHOLE), exact) < 1e-6


#: Convolutions with one filter for each channel keep their type.
FILTERS = {("conv_general_dilated", *["float32"] * 3)}
RECURRENT = {"LSTM": layers_model, "linear attention": lambda: attention_network(6)}


@pytest.mark.parametrize("what", of_tiers(RECURRENT, (), ("linear attention",)))
def test_what_was_traced_for_one_type_serves_no_other(what):
    """Loops whose body is a function of a module, derivative rules that are traced late, chunks computed again."""
    model = jaxrnn.load(RECURRENT[what]().SerializeToString())
    rng, sizes = np.random.default_rng(0), {"T": 6, "batch": 2}
    shapes = {info.name: info.sized(sizes).sizes for info in model.inputs}
    inputs = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}

    def loss(params, dtype, remat):
        return sum(jnp.sum(y**2) for y in model.apply(params, inputs, dtype=dtype, remat=remat).values())

    for remat in (None, 2):
        for dtype in (None, "bfloat16", None):
            value, slope = (functools.partial(each, dtype=dtype, remat=remat) for each in (loss, jax.grad(loss)))
            operand = dtype or "float32"
            assert types_of_products(value, model.params) - FILTERS == {("dot_general", operand, operand, "float32")}
            # In a derivative, the other operand may be a cotangent.
            types = types_of_products(slope, model.params) - FILTERS
            assert ("dot_general", "float32", operand, "float32") in types
            assert dtype is not None or len(types) == 1

    gradient = jax.jit(jax.grad(loss), static_argnames=("dtype", "remat"))
    wide, narrow, again = (gradient(model.params, dtype, None) for dtype in (None, "bfloat16", None))
    assert furthest(again, wide) == 0
    largest = max(float(np.max(np.abs(value))) for value in wide.values())
    assert largest * 2**-14 < furthest(narrow, wide) < largest * 2**-4


@pytest.mark.thorough
def test_gradients_have_the_types_of_parameters():
    model = step_model()
    narrow = jax.tree.map(lambda value: value.astype(jnp.bfloat16), model.params)

    def loss(params):
        return jnp.sum(model.scan(params, model.init(), STACKED, dtype="bfloat16")[0]["y"] ** 2)

    wide = jax.grad(loss)(jax.tree.map(lambda value: value.astype(jnp.float32), narrow))
    for name, value in jax.grad(loss)(narrow).items():
        assert value.dtype == jnp.bfloat16
        np.testing.assert_array_equal(value, wide[name].astype(jnp.bfloat16))
    packed = model.pack(narrow, dtype="bfloat16")
    run = jaxrnn.Runner(model, packed)
    expected = model.run(narrow, STACKED, dtype="bfloat16")["y"]
    for frame, y in zip(STACKED["x"], expected, strict=True):
        np.testing.assert_allclose(run({"x": frame})["y"], y, atol=1e-6)


REFUSED = ("float32", np.float64, "int8", jnp.float8_e4m3fn, "brain", 3)


@pytest.mark.parametrize("dtype", REFUSED, ids=str)
def test_other_types_are_refused(dtype):
    model, offline = step_model(), offline_model()
    calls = [
        lambda: model.apply(model.params, {**ONE, **model.init()}, dtype=dtype),
        lambda: model.step(model.params, model.init(), ONE, dtype=dtype),
        lambda: model.scan(model.params, model.init(), STACKED, dtype=dtype),
        lambda: model.run(model.params, STACKED, dtype=dtype),
        lambda: model.pack(model.params, dtype=dtype),
        lambda: offline.stream("S", dtype=dtype),
        lambda: jaxrnn.nnx.Module(model, dtype=dtype),
        lambda: jaxrnn.nnx.Cell(model, dtype=dtype),
        lambda: fit(model, [STACKED], lambda *_: 0.0, steps=1, dtype=dtype),
        lambda: validate(model, model.params, [STACKED], lambda *_: 0.0, dtype=dtype),
    ]
    for call in calls:
        check_refused(InputError, r"^dtype must be 'bfloat16' or 'float16', or None for", call)


def test_a_file_without_float32_has_nothing_to_lower():
    model = jaxrnn.load(layers_model(TensorProto.DOUBLE).SerializeToString())
    with pytest.raises(InputError, match=r"dtype='bfloat16'` is for products of float32, .* are float64"):
        model.stream("T", dtype="bfloat16")


#: Parameters of a wrong type, and what the message says besides, without a compute dtype and with bfloat16.
WRONG = {
    "float64": ("must be float32[4, 4], not float64[4, 4]; convert it with .astype('float32')", "float32[4, 4] or"),
    "int32": ("must be float32[4, 4], not int32[4, 4]; convert it with .astype('float32')", "float32[4, 4] or"),
    "float16": ("not float16[4, 4]; `dtype='float16'` takes parameters of that type", "convert it"),
    "bfloat16": ("not bfloat16[4, 4]; `dtype='bfloat16'` takes parameters of that type", None),
}


@pytest.mark.parametrize("kind", of_tiers(WRONG, ("bfloat16",)))
def test_parameters_of_another_type_are_refused_by_name(kind):
    """By one rule everywhere: not by the operator that happens to meet them first."""
    model = step_model()
    plain, low = WRONG[kind]
    params = {**model.params, "R": np.asarray(model.params["R"]).astype(jnp.dtype(kind))}

    def fitted(dtype):
        options = {"steps": 1, "batch_size": 1, "sequences": Sequences(mode="scan", time_axis=0), "progress": False}
        return fit(model, [STACKED], lambda y, x, mask: jnp.mean(y["y"] ** 2), params=params, dtype=dtype, **options)

    calls = [
        lambda dtype: model.apply(params, {**ONE, **model.init()}, dtype=dtype),
        lambda dtype: model.step(params, model.init(), ONE, dtype=dtype),
        lambda dtype: model.scan(params, model.init(), STACKED, dtype=dtype),
        lambda dtype: model.pack(params, dtype=dtype),
        lambda dtype: jaxrnn.nnx.Module(model, dtype=dtype).update(params),
        fitted,
    ]
    for call in calls:
        with pytest.raises(InputError) as caught:
            call(None)
        assert "params['R'] " in str(caught.value)
        assert plain in str(caught.value)
        if low is None:
            call("bfloat16")
            continue
        with pytest.raises(InputError) as caught:
            call("bfloat16")
        assert low in str(caught.value)
    for call in (lambda: model.init(params=params), lambda: jaxrnn.Runner(model, params)):
        check_refused(InputError, r"params\['R'\] must be float32", call)


class Tensor:
    """An array of another package, whose dtypes have no names, such as a tensor of PyTorch."""

    def __init__(self, array):
        self.array, self.shape, self.ndim, self.dtype = array, array.shape, array.ndim, type("float32", (), {})

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.array, dtype)


def test_arrays_of_other_packages_are_refused_by_name():
    model = step_model()
    params = {**model.params, "R": Tensor(np.asarray(model.params["R"]))}
    inputs = {name: Tensor(np.asarray(array)) for name, array in ONE.items()}
    with pytest.raises(
        InputError, match=r"params\['R'\] must be float32\[4, 4\], not .*; convert it with numpy.asarray$"
    ):
        model.step(params, model.init(), ONE)
    for call in (lambda: model.step(model.params, model.init(), inputs), lambda: jaxrnn.Runner(model)(inputs)):
        with pytest.raises(InputError, match=r"^input x: .* got .*; convert it with numpy.asarray$"):
            call()


@pytest.mark.thorough
def test_parameters_of_functions_of_ones_own():
    """A function has the types that it was streamed with; numbers of Python take them on."""
    x = jax.ShapeDtypeStruct((4, 2), jnp.float32)
    wide = jaxrnn.stream(lambda p, x: p["w"] * x, x, axes=0, params={"w": jnp.ones(2)})
    with pytest.raises(InputError, match=r"params\['w'\] must be float32\[2\], not float16\[2\]"):
        wide.step({"w": jnp.ones(2, jnp.float16)}, wide.init(), np.ones((1, 2), np.float32))
    numbers = jaxrnn.stream(lambda p, x: p * x, x, axes=0, params=0.5)
    y, _ = numbers.step(2, numbers.init(), np.ones((1, 2), np.float32))
    np.testing.assert_array_equal(y, [[2, 2]])
    drawn = jaxrnn.stream(lambda p, x: x * jax.random.uniform(p), x, axes=0, params=jax.random.key(0))
    with pytest.raises(InputError, match=r"params must be key<fry>\[\], not float32\[\]$"):
        drawn.step(jnp.ones(()), drawn.init(), np.ones((1, 2), np.float32))
    # 64 bits of NumPy, where JAX has 32.
    doubles = jaxrnn.stream(lambda p, x: p * x, x, axes=0, params=np.ones(2))
    y, _ = doubles.step(np.full(2, 3.0), doubles.init(), np.ones((1, 2), np.float32))
    np.testing.assert_array_equal(y, [[3, 3]])


@pytest.mark.thorough
def test_a_module_whose_weights_are_cast():
    """Flax's own way to parameters of low precision."""
    from flax import nnx

    model = step_model()
    made = jaxrnn.nnx.Module(model, dtype="bfloat16")
    cast = jax.tree.map(lambda value: value.astype(jnp.bfloat16), nnx.state(made, nnx.Param))
    nnx.update(made, cast)
    expected = model.run(model.params, STACKED, dtype="bfloat16")["y"]
    np.testing.assert_array_equal(nnx.jit(lambda each: each.scan(STACKED)["y"])(made), expected)
    gradient = nnx.grad(lambda each: jnp.sum(each.scan(STACKED)["y"]))(made)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(gradient)} == {"bfloat16"}
    again = pickle.loads(pickle.dumps(made))
    again.reset()
    np.testing.assert_array_equal(again.scan(STACKED)["y"], expected)
    plain = jaxrnn.nnx.Module(model)
    nnx.update(plain, cast)
    with pytest.raises(InputError, match="dtype='bfloat16'` takes parameters of that type"):
        plain.scan(STACKED)


REAL = {
    "dtln_1": ({}, "input_2", (1, 1, 257), None),
    "silero_vad_16k_op15": ({"sr": 16000}, "input", (1, 576), None),
    "keyword_net": ({}, "feats", (1, 40), "S"),
}


@pytest.mark.parametrize("name", of_tiers(REAL, (), ("dtln_1",)))
def test_real_models_err_by_what_rounding_gives(models, name):
    static, key, shape, symbol = REAL[name]
    model = jaxrnn.load(models / f"{name}.onnx", static=static)
    x = np.abs(0.3 * np.random.default_rng(0).standard_normal((20, *shape))).astype(np.float32)

    if symbol is None:
        run = jax.jit(lambda params, dtype: model.run(params, {key: x}, dtype=dtype), static_argnums=1)
        streamed = None
    else:
        x = np.moveaxis(x, 0, -1)
        run = jax.jit(lambda params, dtype: model.apply(params, {key: x}, dtype=dtype), static_argnums=1)
        streamed = model.stream(symbol, None, dtype="bfloat16")
    narrow = jax.tree.map(lambda value: value.astype(jnp.bfloat16), model.params)
    rounded = jax.tree.map(lambda value: value.astype(jnp.float32), narrow)
    exact, low = run(model.params, None), run(model.params, "bfloat16")
    by_weights = furthest(run(rounded, None), exact)
    # Operands and results of convolutions are rounded as the weights are, so that errors are of one magnitude.
    assert 0 < furthest(low, exact) < 8 * by_weights
    if streamed is not None:
        assert furthest(streamed.run(model.params, {key: x}), low) < 8 * by_weights


@pytest.mark.thorough
def test_cells_of_packed_weights_are_recognised(models):
    """Weights that were rounded beforehand run as the operator does, with all projections before the loop."""
    model = jaxrnn.load(models / "dtln_1.onnx")
    frames = {"input_2": np.abs(np.random.default_rng(0).standard_normal((4, 1, 1, 257))).astype(np.float32)}

    def run(params, dtype):
        return model.run(params, frames, dtype=dtype)

    packed = model.pack(model.params, dtype="bfloat16")
    counts = []
    for arguments in ((model.params, "bfloat16"), (packed, None)):
        equations = walk(jax.make_jaxpr(functools.partial(run, dtype=arguments[1]))(arguments[0]).jaxpr)
        counts.append(sum(equation.primitive.name == "custom_jvp_call" for equation in equations))
    assert counts == [2, 2]
    assert furthest(run(packed, None), run(model.params, "bfloat16")) < 1e-3


@pytest.mark.nightly
@pytest.mark.parametrize("what", ["step", "stream"])
def test_what_it_gains_and_costs_is_measured(what):
    """Each precision with a first state of its own: a stream keeps frames for convolutions in their type."""
    model = MODELS["steps" if what == "step" else "offline"]()
    measured = profile_model(model, what, dtype="float16").low_precision
    assert measured is not None
    assert (measured["dtype"], 2 * measured["nbytes"]) == ("float16", measured["full_nbytes"])
    (difference,) = measured["differences"]
    assert 0 < difference["largest"] < 2**-6 * difference["scale"]
