"""Programs for other platforms than the CPU: everything lowers for them, in the plain forms; only CPUs run here."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import MODELS
from jax import lax
from small_models import layers_model
from test_exports import EXPECTED, Export
from test_fast_forms import depthwise_model
from tiers import of_tiers

import jaxrnn
from jaxrnn._jax.context import exact_types
from jaxrnn.cells.cell import LSTM, Weights
from jaxrnn.cells.convolution import convolve
from jaxrnn.cells.forms import by_platform
from jaxrnn.cells.recurrence import run_direction
from jaxrnn.jaxprs.scanning import schedule_of_cells
from jaxrnn.jaxprs.schedule import Step
from jaxrnn.streaming.measuring import drawn

OTHERS = ("cuda", "rocm", "tpu")
ALL = ("cpu", *OTHERS)
#: What a network must not need: code of the host, and kernels that only one platform has.
FOREIGN = re.compile(r"custom_call @[\w.$]+|stablehlo\.(?:send|recv|infeed|outfeed)\b")


def shapes(tree):
    return jax.tree.map(lambda array: jax.ShapeDtypeStruct(np.shape(array), array.dtype), tree)


@exact_types()
def export(function, *examples, platforms=OTHERS):
    return jax.export.export(jax.jit(function), platforms=platforms)(*map(shapes, examples))


def lowered(function, *examples, platforms=OTHERS):
    return export(function, *examples, platforms=platforms).mlir_module()


def energy(outputs):
    floats = [leaf for leaf in jax.tree.leaves(outputs) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return sum((jnp.sum(jnp.abs(leaf) ** 2).astype(jnp.float32) for leaf in floats), jnp.zeros((), jnp.float32))


# -- every model

#: Sizes of open dimensions that are no batch; others are 64.
SIZES = {"sequence": 576, "input_dim_1": 576}
BATCH = re.compile(r"b\d*|batch|input_dim_0|state_dim_1")
PULSES = {"dual_path_net": 1, "filter_net": 1, "keyword_net": 2, "wave_net": 64}
NAMES = sorted(path.stem for path in MODELS.glob("*.onnx"))


def size_of(symbol):
    return 1 if BATCH.fullmatch(symbol) else SIZES.get(symbol, 64)


def sized(specs):
    sizes = {name: size_of(name) for each in specs for name in each.symbols}
    return {each.name: each.sized(sizes).struct() for each in specs}


def functions_of(model, pulse, symbol):
    """By name, functions and examples of their arguments: the whole graph, its gradient, a step, a stream."""
    x = sized(model.inputs)
    yield "apply", model.apply, (model.params, x)
    yield "gradient", jax.grad(lambda params, x: energy(model.apply(params, x))), (model.params, x)
    try:
        dims = {name: size_of(name) for each in model.spec.state for name in each.symbols if not BATCH.fullmatch(name)}
        state = jax.eval_shape(functools.partial(model.init, **({"dims": dims} if dims else {})))
    except jaxrnn.StateError as error:
        assert "forgets its state" in str(error)  # noqa: PT017
    else:
        frame = sized(model.spec.inputs)
        yield "step", model.step, (model.params, state, frame)
    if pulse:
        streamed = model.stream(symbol, pulse)
        state = jax.eval_shape(streamed.init)
        yield "step of the stream", streamed.step, (model.params, state, sized(streamed.spec.inputs))
        yield "flush", streamed.flush, (model.params, state)


def check_lowering(model, pulse=None, symbol="S"):
    for name, function, examples in functions_of(model, pulse, symbol):
        assert not FOREIGN.findall(lowered(function, *examples)), name


@pytest.mark.parametrize("name", of_tiers(NAMES, [], ["filter_net"]))
def test_models_lower(name):
    static = {"sr": np.asarray(16000)} if name.startswith("silero") else {}
    check_lowering(jaxrnn.load(MODELS / f"{name}.onnx", static=static), PULSES.get(name))


#: Of a network that both exporters of PyTorch wrote, the newer one's file.
FILES = [name for name in EXPECTED if name.replace("_script", "_dynamo") not in EXPECTED.keys() - {name}]


@pytest.mark.parametrize("name", of_tiers(FILES, [], FILES[::9]))
def test_files_of_exporters_lower(name):
    network = Export(name)
    streams = network.expected["stream"] is True
    check_lowering(network.model, 1 if streams else None, network.time if streams else "S")


@pytest.mark.parametrize("proto", [layers_model, depthwise_model])
def test_small_models_lower(proto):
    model = jaxrnn.load(proto())
    check_lowering(model, 1, "T" if proto is layers_model else "S")


# -- which form is where


def weights(hidden=4, features=3, gates=4):
    rng = np.random.default_rng(0)
    shapes = (gates * hidden, features), (gates * hidden, hidden), (2 * gates * hidden,)
    return Weights(*(jnp.array(0.3 * rng.standard_normal(shape), jnp.float32) for shape in shapes))


def lstm(weights, x):
    hidden = weights.recurrent.shape[1]
    return run_direction(LSTM(), weights, x, (jnp.zeros((x.shape[1], hidden), x.dtype),) * 2)


def convolution(x, kernel):
    return convolve(x, kernel, (2,), [(1, 2)], (1,), (2,), 4)


def transposed(x, kernel):
    return convolve(x, kernel, (1,), [(2, 1)], (2,), (1,), 2)


IMAGES = jnp.array(drawn((2, 4, 9), np.float32, 0)), jnp.array(drawn((8, 1, 3), np.float32, 1))
IN_GROUPS = IMAGES[0], jnp.array(drawn((6, 2, 4), np.float32, 2))


@pytest.mark.thorough
@pytest.mark.parametrize("derived", [lambda f: f, lambda f: jax.grad(lambda *args: energy(f(*args)), (0, 1))])
def test_gates_and_convolutions(derived):
    """One tanh, sums of products and products of windows on CPUs; a sigmoid, and convolutions of groups, elsewhere."""
    for steps in (1, 5):
        cpu, other = (
            lowered(derived(lstm), weights(), np.ones((steps, 2, 3), np.float32), platforms=(name,))
            for name in ("cpu", "cuda")
        )
        assert ("exponential" in cpu, "exponential" in other) == (False, True)
    for function, images, groups in ((convolution, IMAGES, 4), (transposed, IN_GROUPS, 2)):
        cpu, other = (lowered(derived(function), *images, platforms=(name,)) for name in ("cpu", "tpu"))
        assert "stablehlo.convolution" not in cpu
        assert "stablehlo.convolution" in other
        assert f"feature_group_count = {groups}" in other


def test_integers_are_no_convolution():
    """Their sums are exact in any order, and not every platform convolves them."""
    x, kernel = (array.astype(jnp.int32) for array in IMAGES)
    assert "stablehlo.convolution" not in lowered(convolution, x, kernel)


def test_blocks():
    """A long sequence is a loop over blocks on CPUs, and one loop elsewhere."""
    x = jax.ShapeDtypeStruct((40_000, 1, 3), np.float32)
    cpu, other = (lowered(lstm, weights(hidden=16), x, platforms=(name,)) for name in ("cpu", "rocm"))
    assert other.count("stablehlo.while") == 1
    assert cpu.count("stablehlo.while") > 1


def test_convolutions_of_a_stream():
    """A step multiplies the frames under its windows with a matrix on CPUs, and convolves them elsewhere."""
    streamed = stream_of_convolution(2)
    for params in (KERNEL, streamed.pack(KERNEL)):
        arguments = params, streamed.init(), jnp.zeros((1, 4, 2), jnp.float32)
        cpu, other = (lowered(streamed.step, *arguments, platforms=(name,)) for name in ("cpu", "cuda"))
        assert ("stablehlo.convolution" in cpu, "stablehlo.dot_general" in cpu) == (False, True)
        assert ("stablehlo.convolution" in other, "stablehlo.dot_general" in other) == (True, False)


FRAMES = jax.ShapeDtypeStruct((1, 4, 20), np.float32)
KERNEL = jnp.array(drawn((5, 4, 3), np.float32, 2))


def stream_of_convolution(pulse):
    return jaxrnn.stream(dense, FRAMES, axes=2, params=KERNEL, pulse=pulse)


def dense(kernel, x):
    return lax.conv_general_dilated(x, kernel, (1,), [(2, 0)], dimension_numbers=("NCH", "OIH", "NCH"))


# -- both forms compute the same


@pytest.fixture
def plain(monkeypatch):
    """What other platforms run, on CPUs."""

    def swapped(*operands, cpu, default):
        return lax.platform_dependent(*operands, cpu=default, default=cpu)

    monkeypatch.setattr("jaxrnn.cells.forms.platform_dependent", swapped)


def with_gradients(function, *operands):
    return jax.jit(lambda *args: (function(*args), jax.grad(lambda *args: energy(function(*args)), (0, 1))(*args)))(
        *operands
    )


CASES = {
    "gates": (lstm, (weights(), jnp.array(drawn((7, 2, 3), np.float32, 3)))),
    "one frame": (lstm, (weights(), jnp.array(drawn((1, 2, 3), np.float32, 3)))),
    "blocks": (lstm, (weights(), jnp.array(drawn((35_003, 1, 3), np.float32, 3)))),
    "depthwise": (convolution, IMAGES),
    "transposed": (transposed, IN_GROUPS),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_forms_agree(name, request):
    function, operands = CASES[name]
    expected = with_gradients(function, *operands)
    request.getfixturevalue("plain")
    found = with_gradients(lambda *args: function(*args), *operands)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5 * max(1.0, float(np.abs(b).max())))


@pytest.mark.parametrize("pulse", [1, 3, 5])
def test_forms_of_a_stream_agree(pulse, plain):
    """The plain forms of a stream are the function on a whole recording, also packed."""
    streamed = stream_of_convolution(pulse)
    x = jnp.array(drawn((1, 4, 15), np.float32, 4))
    state, outputs = streamed.init(), []
    params = streamed.pack(KERNEL)
    step = jax.jit(streamed.step)
    for begin in range(0, 15, pulse):
        y, state = step(params, state, x[..., begin : begin + pulse])
        outputs.append(y)
    np.testing.assert_allclose(jnp.concatenate(outputs, 2), dense(KERNEL, x), atol=1e-5)


@pytest.mark.thorough
def test_one_file_serves_every_platform(tmp_path):
    """It holds both forms, has the state that a file for one platform has, and runs here."""
    model = jaxrnn.load(layers_model())
    streamed = model.stream("T", 2)
    files = [tmp_path / "one.jaxrnn", tmp_path / "all.jaxrnn"]
    for path, platforms in zip(files, (None, ALL), strict=True):
        jaxrnn.save_compiled(streamed, path, params=model.params, platforms=platforms)
    one, every = map(jaxrnn.load_compiled, files)
    assert one.spec.state == every.spec.state
    x = {"x": drawn((8, 1, 3))}
    found, expected = (each.scan(each.params, each.init(), x) for each in (every, one))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    np.testing.assert_allclose(found[0]["logits"], model(x)["logits"], atol=1e-6)


@pytest.mark.parametrize("platforms", ["cuda", ("cpu", "gpu"), (), ("Cuda",), (1,)])
def test_unknown_platforms_are_refused(platforms, tmp_path):
    model = jaxrnn.load(layers_model())
    with pytest.raises(jaxrnn.InputError, match=r"some of cpu, cuda, rocm, tpu \(a GPU is cuda or rocm\)"):
        jaxrnn.save_compiled(model.stream("T", 1), tmp_path / "x", params=model.params, platforms=platforms)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", CASES)
def test_an_export_for_all_platforms_is_the_function(name):
    function, operands = CASES[name]
    if name == "blocks":
        operands = operands[0], operands[1][:25_001]
    found, expected = (
        call(*operands) for call in (jax.jit(export(function, *operands, platforms=ALL).call), jax.jit(function))
    )
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), found, expected)


# -- a choice is understood wherever functions are taken apart


@pytest.mark.parametrize(
    "name",
    of_tiers(["eager", "jit", "vmap", "checkpoint", "scan", "disable_jit"], ["jit", "vmap", "checkpoint"], ["scan"]),
)
def test_transformations(name):
    """Values and derivatives of first and second order, forward and reverse, and no compilation in a second call."""
    gates = LSTM()._gates
    plain = lambda x: jnp.concatenate([jax.nn.sigmoid(x[..., :6]), jnp.tanh(x[..., 6:])], -1)  # noqa: E731
    wrap = {
        "jit": jax.jit,
        "vmap": jax.vmap,
        "checkpoint": jax.checkpoint,
        "scan": lambda f: lambda x: lax.scan(lambda carry, row: (carry, f(row)), jnp.float32(0), x)[1],
    }.get(name, lambda f: f)
    x = jnp.array(drawn((3, 8)))

    def derivatives(function):
        loss = lambda x: jnp.sum(wrap(function)(x) ** 3)  # noqa: E731
        product = lambda x: jax.jvp(jax.grad(loss), (x,), (jnp.cos(x),))[1]  # noqa: E731
        return wrap(function)(x), jax.grad(loss)(x), jax.jvp(loss, (x,), (jnp.cos(x),))[1], product(x)

    with jax.disable_jit(name == "disable_jit"):
        compute = derivatives if name in ("eager", "disable_jit") else jax.jit(derivatives, static_argnums=0)
        results = [compute(function) for function in (gates, plain)]
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-5)


def test_a_cell_with_gates_by_platform_is_recognised():
    params, x = weights(), jnp.zeros((1, 3))

    def step(params, x, carry):
        new = LSTM().step(LSTM().prepare(params, x.dtype)[1], carry, x @ params.input.T)
        return new[0], new

    traced = Step.trace(step, params, x, (jnp.zeros((1, 4)),) * 2)
    assert any("branches_platforms" in equation.params for equation in traced.equations)
    assert schedule_of_cells(traced, loose=False) is not None


@pytest.mark.parametrize(("other", "recognised"), [(lambda x: -jnp.tanh(-x), True), (lambda x: jnp.tanh(2 * x), False)])
def test_a_cell_is_one_in_every_form(other, recognised):
    """What differs by platform on purpose stays as it is."""

    def step(params, x, h):
        h = by_platform(jnp.tanh, other, x + h @ params)
        return h, h

    h = jnp.zeros((1, 4))
    schedule = schedule_of_cells(Step.trace(step, jnp.eye(4), h, h), loose=False)
    assert (schedule is not None) == recognised


def test_packed_parameters_know_no_platform():
    """What depends on the platform is decided in every program that takes them, not where they are packed."""
    model = jaxrnn.load(layers_model())
    streamed = model.stream("T", 1)
    packed = streamed.pack(model.params)
    assert all(array.dtype == np.float32 for array in packed.folded)
    arguments = packed, streamed.init(), {"x": jnp.zeros((1, 1, 3), jnp.float32)}
    cpu, other = (lowered(streamed.step, *arguments, platforms=(name,)) for name in ("cpu", "rocm"))
    assert ("exponential" in cpu, "exponential" in other) == (False, True)


def running_sum(x):
    """A choice of the caller's own, whose forms remember the past each in its own way."""

    def loop(x):
        return lax.scan(lambda total, row: (total + row,) * 2, jnp.zeros_like(x[0]), x)[1]

    return by_platform(lambda x: jnp.cumsum(x, 0), loop, x) * 2


@pytest.mark.parametrize("form", ["cpu", "plain"])
def test_a_choice_of_ones_own_streams(form, request):
    if form == "plain":
        request.getfixturevalue("plain")
    x = jnp.array(drawn((7, 3)))
    streamed = jaxrnn.stream(lambda x: running_sum(x), x, axes=0, pulse=2)
    np.testing.assert_allclose(jax.jit(streamed.run)(None, x), 2 * np.cumsum(x, 0), atol=1e-5)
    cpu, other = (lowered(streamed.step, None, streamed.init(), x[:2], platforms=(name,)) for name in ("cpu", "tpu"))
    assert ("stablehlo.while" in cpu) == (form == "plain") != ("stablehlo.while" in other)


def test_a_choice_of_parameters_alone_is_left_to_lowering():
    p, x = jnp.float32(1.5), jnp.array(drawn((4, 3)))
    streamed = jaxrnn.stream(lambda p, x: x * by_platform(jnp.sin, jnp.cos, p), x, axes=0, params=p)
    assert "platform_index" in str(jax.make_jaxpr(streamed.step)(p, streamed.init(), x[:1]))
