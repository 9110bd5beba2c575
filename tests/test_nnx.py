"""An imported model as a Flax NNX module: the same values, its state in place, trained and frozen, saved and nested."""

from __future__ import annotations

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from onnx import TensorProto, helper
from refusals import check_refused
from small_models import HIDDEN, graph_of, layers_model, make_model
from test_loop_bounds import roots_model
from tiers import of_tiers
from verifier import assert_close

import jaxrnn
from jaxrnn.nnx import Cell, Module, RecurrentState, named

#: Name: sizes of open dimensions, and inputs to bind.
REAL = {
    "silero_vad": ({"input_dim_0": 1, "input_dim_1": 576, "state_dim_1": 1}, {"sr": 16_000}),
    "dtln_1": ({}, {}),
    "predictor_net": ({"batch": 1}, {}),
    "filter_net": ({"S": 5}, {}),
}
STEPS = 6
#: Names that would be methods, numbers or paths if they were attributes of a module.
WEIGHTS = {"encoder.0.W": (3, 4), "encoder/b:0": (4,), "step": (4, 4), "0": (4,), "encoder": (4, 2)}


def counting_model(dtype=np.float32):
    """A step of a hand-made cell with a counter of 64 bits among its state, and awkward names."""
    rng = np.random.default_rng(3)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        helper.make_node("MatMul", ["x", "encoder.0.W"], ["encoded"]),
        helper.make_node("Add", ["encoded", "encoder/b:0"], ["shifted"]),
        helper.make_node("MatMul", ["h", "step"], ["carried"]),
        helper.make_node("Add", ["shifted", "carried"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["h_out"]),
        helper.make_node("Add", ["count", "one"], ["count_out"]),
        helper.make_node("Mul", ["h_out", "0"], ["scaled"]),
        helper.make_node("MatMul", ["scaled", "encoder"], ["y"]),
    ]
    state = {"h": (kind, ["batch", 4]), "count": (TensorProto.INT64, ["batch", 1])}
    after = {f"{name}_out": each for name, each in state.items()}
    constants = {name: rng.normal(size=shape).astype(dtype) for name, shape in WEIGHTS.items()} | {"one": np.array([1])}
    inputs, outputs = {"x": ["batch", 3]} | state, {"y": ["batch", 2]} | after
    graph = graph_of(nodes, inputs, outputs, constants, "counting", kind)
    return jaxrnn.load(make_model(graph), state={name: f"{name}_out" for name in state})


@pytest.fixture
def counting():
    return counting_model()


@pytest.fixture(scope="module", params=of_tiers(REAL, ("predictor_net",), ("silero_vad",)))
def real(request, models):
    dims, static = REAL[request.param]
    return jaxrnn.load(models / f"{request.param}.onnx", static=static), dims


def arrays(infos, dims, lead=(), seed=0):
    rng = np.random.default_rng(seed)
    found = {}
    for info in infos:
        shape = (*lead, *(dims[size] if isinstance(size, str) else size for size in info.shape))
        drawn = 0.3 * rng.normal(size=shape) if info.dtype.kind == "f" else rng.integers(0, 60, shape)
        found[info.name] = jax.device_put(drawn.astype(info.dtype)) if info.dtype != np.int64 else drawn
    return found


def assert_identical(found, expected):
    """Equal names, dtypes and bits."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def paths(state):
    return dict(nnx.to_flat_state(state))


@pytest.mark.thorough
def test_a_module_is_the_model(real):
    """The same bits, whatever NNX does with the module; parameters under their names and state apart from them."""
    model, dims = real
    inputs = arrays(model.inputs, dims)
    expected = jax.jit(model.apply)(model.params, inputs)
    module = Module(model)
    graph, params, rest = nnx.split(module, nnx.Param, ...)
    run = nnx.jit(lambda module, inputs: module(inputs))
    for each in (module, nnx.merge(graph, params, rest), nnx.clone(module), copy.deepcopy(module)):
        assert_identical(run(each, inputs), expected)
        assert each.model is model
    assert_identical(module.params, model.params)
    assert {path[-1] for path in paths(params)} == model.params.keys()
    assert all(isinstance(variable, RecurrentState) for variable in paths(rest).values())
    assert {path[-1] for path in paths(rest)} == {v.name for v in model.state if v.kind == "external"}
    assert len(repr(module)) < 1_000


def test_a_module_runs_outside_of_nnx_jit(counting):
    inputs = arrays(counting.inputs, {"batch": 2})
    expected, module = counting.apply(counting.params, inputs), Module(counting)
    assert_identical(module(inputs), expected)
    assert_identical(module(**inputs), expected)
    assert_identical(module.step(x=arrays_of((1, 3))), Module(counting).step({"x": arrays_of((1, 3))}))


@pytest.fixture(
    scope="module",
    params=of_tiers(["counting", "silero_vad", "dtln_1", "predictor_net"], ("counting",), ("silero_vad",)),
)
def stepping(request):
    if request.param == "counting":
        return counting_model(), {"batch": 1}
    dims, static = REAL[request.param]
    return jaxrnn.load(request.getfixturevalue("models") / f"{request.param}.onnx", static=static), dims


def frame(frames, index):
    return {name: array[index] for name, array in frames.items()}


def test_steps_advance_the_state_in_place(stepping):
    """One by one, under nnx.scan and at once: the outputs and the state of a loop of pure steps."""
    model, dims = stepping
    frames = arrays(model.spec.inputs, dims, lead=(STEPS,))
    module, state, expected = Module(model), model.init(), []
    pure, step = jax.jit(model.step), nnx.jit(lambda module, inputs: module.step(**inputs))
    for index in range(STEPS):
        outputs, state = pure(model.params, state, frame(frames, index))
        assert_identical(step(module, frame(frames, index)), outputs)
        assert_identical(module.state, state)
        expected.append(outputs)
    stacked = jax.tree.map(lambda *values: np.stack(values), *expected)

    @nnx.scan(in_axes=(nnx.StateAxes({RecurrentState: nnx.Carry, ...: None}), 0), out_axes=0)
    def scanned(module, inputs):
        return module.step(inputs)

    for run in (scanned, nnx.jit(lambda module, frames: module.scan(frames))):
        module.reset()
        assert_identical(module.state, model.init())
        assert_close(run(module, frames), stacked, atol=1e-5)
        assert_close(module.state, state, atol=1e-5)


def test_lengths_and_batches_of_a_recording(counting):
    frames = arrays(counting.spec.inputs, {"batch": 3}, lead=(STEPS,))
    module, lengths = Module(counting, batch=3), np.array([STEPS, 2, 0])
    scan = nnx.jit(lambda module, inputs, lengths: module.scan(inputs, time_axis=1, lengths=lengths))
    outputs = scan(module, {"x": np.swapaxes(frames["x"], 0, 1)}, lengths)
    expected, state = jax.jit(counting.scan)(counting.params, counting.init(3), frames, lengths=lengths)
    assert_close({"y": np.swapaxes(outputs["y"], 0, 1)}, expected)
    assert_close(module.state, state)
    assert module.state["count"].ravel().tolist() == list(lengths)
    module.reset(2)
    assert module.state["h"].shape == (2, 4)
    with pytest.raises(jaxrnn.InputError, match="dimension 'batch' is 2 here, but 3 in 'x'"):
        module.step(frame(frames, 0))


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", of_tiers([np.float32, np.float64], [np.float64]))
def test_types_are_those_of_the_file(dtype):
    """Whatever `jax_enable_x64` says, which nothing changes; also where variables are references."""
    model = counting_model(dtype)
    with jax.enable_x64(True):
        inputs = {"x": jnp.ones((2, 3), dtype)}
    for reference in (False, True):
        with nnx.var_defaults(ref=reference):
            module = Module(model, batch=2)
            for run in (Module.step, nnx.jit(lambda module, inputs: module.step(inputs))):
                assert run(module, inputs)["y"].dtype == dtype
                assert {name: value.dtype for name, value in module.state.items()} == {"h": dtype, "count": np.int64}
            assert module.state["count"].ravel().tolist() == [2, 2]
            assert {value.dtype for value in module.params.values()} == {np.dtype(dtype)}
    assert not jax.config.jax_enable_x64


def test_a_model_without_steps_says_so(models):
    forgetful = jaxrnn.load(models / "filter_net.onnx")
    module = Module(forgetful)
    assert module.state == {}
    for call in (module.reset, lambda: module.step({}), lambda: module.scan({})):
        with pytest.raises(jaxrnn.StateError) as found:
            call()
        with pytest.raises(jaxrnn.StateError) as expected:
            forgetful.step(forgetful.params, {}, {})
        assert str(found.value) == str(expected.value)
    check_refused(jaxrnn.InputError, "pass inputs by name or as one dict", module, np.zeros(3))
    check_refused(jaxrnn.InputError, "not str", Module, "filter_net.onnx")


class Stack(nnx.Module):
    """Two imported models in a list, between layers of Flax."""

    def __init__(self, *models, rngs):
        self.first = nnx.Linear(5, 3, rngs=rngs)
        self.recurrent = nnx.List([Module(model, batch=2) for model in models])
        self.between = nnx.Linear(2, 3, rngs=rngs)
        self.last = nnx.Linear(2, 1, rngs=rngs)

    def __call__(self, x):
        """``[2, time, 5]`` to ``[2, time, 1]``, from a fresh state."""
        x = self.first(x)
        for module, layer in zip(self.recurrent, (self.between, self.last), strict=True):
            module.reset(2)
            x = layer(module.scan({"x": x}, time_axis=1)["y"])
        return x


@pytest.mark.thorough
def test_gradients_reach_every_parameter_of_nested_models(counting):
    """They are those of the pure functions put together by hand; other layers and the list change nothing."""
    other = counting_model()
    other.params.update({name: -0.5 * value for name, value in other.params.items()})
    stack = Stack(counting, other, rngs=nnx.Rngs(0))
    x = arrays_of((2, STEPS, 5))

    def pure(params, linear):
        value = linear[0](x)
        for model, weights, layer in zip((counting, other), params, linear[1:], strict=True):
            value, _ = model.scan(weights, model.init(2), {"x": value}, time_axis=1)
            value = layer(value["y"])
        return jnp.mean(value**2)

    linear = [stack.first, stack.between, stack.last]
    expected = jax.jit(jax.grad(pure))([counting.params, other.params], linear)
    gradients = nnx.jit(nnx.grad(lambda stack: jnp.mean(stack(x) ** 2)))(stack)
    for index, each in enumerate(expected):
        assert_close(dict(nnx.to_pure_dict(gradients)["recurrent"][index]["weights"]), each, atol=1e-5)
        assert all(np.any(value) for value in each.values())
    assert set(paths(nnx.state(gradients))) == set(paths(nnx.state(stack, nnx.Param)))
    assert int(stack.recurrent[1].state["count"][0, 0]) == STEPS


def arrays_of(shape, seed=0):
    return jax.device_put(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("patterns", "frozen"),
    [
        (("encoder.*",), {"encoder.0.W"}),
        (("encoder", "*/b:?", "0"), {"encoder", "encoder/b:0", "0"}),
    ],
)
def test_a_filter_by_name_freezes(counting, patterns, frozen):
    """In every place where NNX takes a filter; what is frozen keeps its bits while the loss falls."""
    stack = Stack(counting, counting, rngs=nnx.Rngs(0))
    chosen = named(*patterns, of=stack)
    assert {path[-1] for path in paths(nnx.state(stack, chosen))} == frozen
    assert all(path[0] == "recurrent" for path in paths(nnx.state(stack, chosen)))
    kept = nnx.split(stack, chosen, nnx.Param, ...)[1:]
    assert [len(paths(each)) for each in kept] == [2 * len(frozen), 2 * (5 - len(frozen)) + 6, 4]

    trained = nnx.All(nnx.Param, nnx.Not(chosen))
    before = nnx.state(nnx.clone(stack), nnx.Param)
    optimizer = nnx.Optimizer(stack, optax.adam(0.02), wrt=trained)
    x = arrays_of((2, STEPS, 5))

    @nnx.jit
    def update(stack, optimizer, x):
        def loss(stack):
            return jnp.mean((stack(x) - jnp.mean(x, -1, keepdims=True)) ** 2)

        value, gradients = nnx.value_and_grad(loss, argnums=nnx.DiffState(0, trained))(stack)
        optimizer.update(stack, gradients)
        return value

    with jax.numpy_dtype_promotion("standard"):  # optax mixes integers and floats
        losses = [float(update(stack, optimizer, x)) for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]
    after = paths(nnx.state(stack, nnx.Param))
    for path, variable in paths(before).items():
        same = np.array_equal(variable[...], after[path][...])
        assert same == (path[0] == "recurrent" and path[-1] in frozen), path


def test_a_filter_chooses_imported_parameters_alone(counting):
    stack = Stack(counting, counting, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(stack, optax.adam(0.1), wrt=nnx.Param)
    everything = {path for path in paths(nnx.state(stack, nnx.Param)) if path[0] == "recurrent"}
    assert set(paths(nnx.state(stack, named("*")))) == everything
    assert paths(nnx.state(optimizer, named("*"))) == {}
    first = nnx.All(named("*"), lambda path, value: path[:2] == ("recurrent", 0))
    assert {path[1] for path in paths(nnx.state(stack, first))} == {0}
    assert named("a*") == named("a*")
    assert hash(named("a*")) == hash(named("a*"))
    words = r"no imported parameter matches 'encodr.W' \(did you mean 'encoder\.0\.W'"
    check_refused(jaxrnn.InputError, words, named, "encoder", "encodr.W", of=stack)
    for bad in ((), (3,)):
        check_refused(jaxrnn.InputError, "patterns", named, *bad)


@pytest.mark.thorough
def test_a_checkpoint_restores_the_module(counting, tmp_path):
    """Parameters and state through Orbax, into a module made of a file loaded anew; names with slashes and dots too."""
    stack = Stack(counting, counting, rngs=nnx.Rngs(0))
    x = arrays_of((2, STEPS, 5))
    stack.recurrent[0].update({"step": np.ones((4, 4), np.float32)})
    run = nnx.jit(lambda stack: stack(x))
    run(stack)
    continued = [arrays_of((2, 3), seed) for seed in (1, 2)]
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", nnx.state(stack))
        checkpointer.wait_until_finished()
        again = counting_model()
        fresh = nnx.eval_shape(lambda: Stack(again, again, rngs=nnx.Rngs(1)))
        graph, shapes = nnx.split(fresh)
        restored = nnx.merge(graph, checkpointer.restore(tmp_path / "state", shapes))
    step = nnx.jit(lambda module, x: module.step(x=x))
    for index, each in enumerate(continued):
        assert_identical(step(restored.recurrent[index], each), step(stack.recurrent[index], each))
        assert_identical(restored.recurrent[index].state, stack.recurrent[index].state)
    np.testing.assert_array_equal(run(restored), run(stack))


def test_parameters_go_in_and_out(counting):
    module = Module(counting)
    assert list(module.params) == list(counting.params)
    module.update({"encoder/b:0": np.full(4, 2, np.float32)})
    assert_identical(module.params, {**counting.params, "encoder/b:0": jnp.full(4, 2, jnp.float32)})
    changed = {name: value + 1 for name, value in counting.params.items()}
    module.update(changed)
    assert_identical(module.params, changed)
    good = {"0": jnp.zeros(4)}
    for bad, said in (
        ({"encoder.0.w": jnp.zeros((3, 4))}, r"no parameter 'encoder.0.w' \(did you mean 'encoder.0.W'\?\)"),
        ({"step": jnp.zeros((4, 3))}, r"float32\[4, 4\], not float32\[4, 3\]"),
        ({"step": np.zeros((4, 4))}, r"float32\[4, 4\], not float64\[4, 4\]"),
        ({"step": [[0.0] * 4] * 4}, "float32.*, not list"),
    ):
        check_refused(jaxrnn.InputError, said, module.update, {**good, **bad})
        assert_identical(module.params, changed)


def test_a_donated_module_leaves_the_model_alone(counting):
    module, kept = Module(counting, batch=2), jax.tree.map(np.array, counting.params)
    module.update(counting.params)
    step = nnx.jit(lambda module, x: module.step(x=x), donate_argnums=0)
    for _ in range(2):
        step(module, arrays_of((2, 3)))
    assert_identical(counting.params, kept)
    assert_identical(module.params, kept)


def test_one_compilation_serves_all_steps_and_copies(counting):
    traced = []

    @nnx.jit
    def step(module, x):
        traced.append(x)
        return module.step(x=x)

    module = Module(counting, batch=2)
    for each in (module, nnx.clone(module), Module(counting, batch=2), copy.deepcopy(module)):
        for seed in range(2):
            step(each, arrays_of((2, 3), seed))
    assert len(traced) == 1
    assert copy.copy(module).weights is module.weights
    assert copy.deepcopy(module).weights["0"] is not module.weights["0"]


@pytest.mark.thorough
@pytest.mark.parametrize("cls", [Module, Cell])
def test_a_pickle_carries_the_model(counting, cls, tmp_path):
    """With its bound inputs, its declared state, and tensors that lay in a file of their own."""
    onnx.save(counting.proto, tmp_path / "m.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    model = jaxrnn.load(tmp_path / "m.onnx", state=counting.declared_state)
    module = cls(model)
    module.update({"0": jnp.full(4, 3, jnp.float32)})
    data = pickle.dumps(module)
    (tmp_path / "weights.bin").unlink()
    check_refused(jaxrnn.ModelError, "cannot be pickled", pickle.dumps, module)
    again = pickle.loads(data)
    assert_identical(again.params, module.params)
    assert again.model.label == model.label
    x = arrays_of((1, 3))
    if cls is Module:
        assert_identical(again.step(x=x), module.step(x=x))
    else:
        carry = module.initialize_carry(x.shape)
        np.testing.assert_array_equal(again(carry, x)[1], module(carry, x)[1])


def test_a_pickle_keeps_bound_inputs_and_all_bits():
    """Also of a module inside another, and of 64 bits."""
    nodes = [helper.make_node("Mul", ["x", "w"], ["z"]), helper.make_node("Mul", ["z", "gain"], ["y"])]
    constants = {"w": np.array([np.pi, np.e])}
    graph = graph_of(nodes, {"x": [2], "gain": []}, {"y": [2]}, constants, kind=TensorProto.DOUBLE)
    model = jaxrnn.load(make_model(graph), static={"gain": 1 / 3})
    again = pickle.loads(pickle.dumps(nnx.List([Module(model)])))[0]
    assert_identical(again.params, model.params)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(again(x=jnp.ones(2))["y"], np.array([np.pi, np.e]) * (1 / 3))


@pytest.mark.thorough
def test_a_pickle_keeps_bounds_of_loops():
    """So that a loop whose trips depend on data still has a gradient."""
    inputs = {"n": np.array(4), "a0": np.float32(3.3), "s0": np.float32(0)}
    module = Module(jaxrnn.load(roots_model(), max_trip_count=6))
    gradients = [
        nnx.jit(nnx.grad(lambda module: module(inputs)["s_last"]))(each)
        for each in (module, pickle.loads(pickle.dumps(module)))
    ]
    assert_identical(*(nnx.to_pure_dict(each)["weights"] for each in gradients))
    assert nnx.to_pure_dict(gradients[0])["weights"]["w"] != 0


@pytest.mark.thorough
def test_whole_sequences_in_other_types():
    """A layer in bfloat16 without state of its own: gradients in its type, and a step that needs none."""
    model = jaxrnn.load(layers_model(TensorProto.BFLOAT16))
    module = Module(model)
    x = jnp.ones((4, 2, 3), jnp.bfloat16)
    gradients = nnx.jit(nnx.grad(lambda module: jnp.sum(module(x=x)["logits"])))(module)
    assert {variable[...].dtype for variable in paths(gradients).values()} == {jnp.dtype(jnp.bfloat16)}
    assert module.weights["P"].shape == (HIDDEN, 2)
