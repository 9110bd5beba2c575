"""One step of an imported model as a cell of Flax, and what Flax does with imported modules."""

from __future__ import annotations

import copy
import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import linen, nnx
from onnx import TensorProto, helper
from refusals import check_refused
from small_models import FEATURES, HIDDEN, graph_of, layers_model, make_model
from test_nnx import arrays_of, assert_identical, counting_model
from tiers import of_tiers
from verifier import assert_close

import jaxrnn
import jaxrnn.demo
from jaxrnn.nnx import Cell, Module, RecurrentState, named

BATCH, STEPS = 3, 7
CELLS = {"LSTM": nnx.OptimizedLSTMCell, "GRU": nnx.GRUCell, "RNN": nnx.SimpleCell}
#: Where files put the batch and one frame: shapes of X, of each state and of Y.
FORMS = {
    "sequence": ([1, "batch", FEATURES], [1, "batch", HIDDEN], [1, 1, "batch", HIDDEN]),
    "open time": (["time", "batch", FEATURES], [1, "batch", HIDDEN], ["time", 1, "batch", HIDDEN]),
    "batch first": (["batch", 1, FEATURES], ["batch", 1, HIDDEN], ["batch", 1, 1, HIDDEN]),
    "fixed batch": ([1, 1, FEATURES], [1, 1, HIDDEN], [1, 1, 1, HIDDEN]),
    "unnamed output": ([1, "batch", FEATURES], [1, "batch", HIDDEN], [1, 1, None, HIDDEN]),
    "no axes of size 1": (["batch", FEATURES], ["batch", HIDDEN], ["batch", HIDDEN]),
    "no sequence": ([1, "batch", FEATURES], [1, "batch", HIDDEN], None),
}


def onnx_weights(cell):
    """What a cell of Flax holds, in ONNX layout: W, R and B, gates in ONNX order."""
    weights = {path: np.asarray(variable[...]) for path, variable in nnx.to_flat_state(nnx.state(cell, nnx.Param))}
    W, R = weights["dense_i", "kernel"].T, weights["dense_h", "kernel"].T
    order = {nnx.OptimizedLSTMCell: [0, 3, 1, 2], nnx.GRUCell: [1, 0, 2], nnx.SimpleCell: [0]}[type(cell)]
    bias = weights.get(("dense_i", "bias"), weights.get(("dense_h", "bias")))

    def gates(array):
        return np.concatenate([np.split(array, len(order))[gate] for gate in order])

    return {"W": gates(W)[None], "R": gates(R)[None], "B": np.concatenate([gates(bias), 0 * bias])[None]}


def single_node(kind, form, weights, direction="forward"):
    """A file with one recurrent operator whose state comes from outside."""
    x, state, y = FORMS[form]
    names = ("h", "c") if kind == "LSTM" else ("h",)
    attributes = {"layout": 1} if form == "batch first" else {}
    attributes |= {"linear_before_reset": 1} if kind == "GRU" else {}
    bare = form == "no axes of size 1"
    given = ["x", *names]
    nodes = []
    if bare:
        nodes = [helper.make_node("Unsqueeze", [name, "zero"], [f"{name}_in"]) for name in given]
        given = [f"{name}_in" for name in given]
    results = ["y" if y else "", *(f"{name}_out" for name in names)]
    made = [f"{name}_made" if bare else name for name in results]
    inputs = [given[0], "W", "R", "B", "", *given[1:]]
    nodes.append(helper.make_node(kind, inputs, made, hidden_size=HIDDEN, direction=direction, **attributes))
    if bare:
        nodes += [
            helper.make_node("Squeeze", [a, "zero_one" if b == "y" else "zero"], [b])
            for a, b in zip(made, results, strict=True)
        ]

    constants = {**weights, "zero": np.array([0]), "zero_one": np.array([0, 1])}
    after = ({"y": y} if y else {}) | {f"{name}_out": state for name in names}
    return jaxrnn.load(make_model(graph_of(nodes, {"x": x} | dict.fromkeys(names, state), after, constants, kind)))


def flax_cell(kind):
    """A cell of Flax whose biases are not zero."""
    cell = CELLS[kind](FEATURES, HIDDEN, rngs=nnx.Rngs(0))
    for _, variable in nnx.to_flat_state(nnx.state(cell, nnx.Param)):
        if variable.ndim == 1:
            variable.set_value(jax.random.normal(jax.random.key(1), variable.shape))
    return cell


def random(*shape, seed=0):
    return jax.device_put(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


@nnx.jit
def exercise(cell, x, lengths, starts, frames):
    """What a cell does in `nnx.RNN`, its gradients, and what it does by itself."""

    def loss(rnn, carry, x):
        return jnp.sum(rnn(x, initial_carry=carry) ** 2)

    rnn = nnx.RNN(cell, return_carry=True)
    carry, first = rnn(x[:, :3])
    gradients = nnx.grad(loss, argnums=(1, 2))(nnx.RNN(cell), carry, x[:, 3:])
    turned = rnn(x, seq_lengths=lengths, reverse=True, keep_order=True)
    return (carry, first, turned, [cell(*each) for each in zip(starts, frames, strict=True)]), gradients


X, LENGTHS, BATCHES = random(BATCH, STEPS, FEATURES), jnp.array([STEPS, 2, 4]), ((), (2, 3))
FRAMES = [random(*batch, FEATURES) for batch in BATCHES]
DRAWN = nnx.initializers.normal()


@functools.cache
def of_flax(kind):
    """A cell of Flax, carries that it begins with, and what it does."""
    cell = flax_cell(kind)
    starts = [cell.initialize_carry((*batch, FEATURES), nnx.Rngs(5), DRAWN) for batch in BATCHES]
    return cell, starts, exercise(cell, X, LENGTHS, starts, FRAMES)


NODES = [("LSTM", form) for form in FORMS] + [
    (k, form) for k in ("GRU", "RNN") for form in ("fixed batch", "no sequence")
]


@pytest.mark.parametrize(
    ("kind", "form"),
    of_tiers(NODES, [], [("LSTM", "fixed batch")]),
)
def test_a_single_node_stands_where_the_cell_of_flax_does(kind, form):
    """Carries may be swapped; lengths, reversal, gradients and batch axes are as there, whatever axes a file has."""
    own, starts, (values, gradients) = of_flax(kind)
    cell = Cell(single_node(kind, form, onnx_weights(own)))
    assert cell.num_feature_axes == own.num_feature_axes
    found = exercise(cell, X, LENGTHS, starts, FRAMES)
    assert_close(found[0], values)
    assert_close(found[1], gradients, atol=1e-5)
    for batch, start in zip(BATCHES, starts, strict=True):
        shape = (*batch, FEATURES)
        assert_close(cell.initialize_carry(shape, nnx.Rngs(5), DRAWN), start, atol=0)
        assert_close(cell.initialize_carry(shape), own.initialize_carry(shape, nnx.Rngs(0)), atol=0)


def test_parameters_of_a_cell_are_trained_and_frozen():
    own = flax_cell("GRU")
    cell = Cell(single_node("GRU", "sequence", onnx_weights(own)))
    x = random(BATCH, STEPS, FEATURES)
    chosen = nnx.All(nnx.Param, nnx.Not(named("R", of=cell)))
    gradients = nnx.jit(nnx.grad(lambda rnn: jnp.sum(rnn(x)), argnums=nnx.DiffState(0, chosen)))(nnx.RNN(cell))
    expected = nnx.jit(nnx.grad(lambda rnn: jnp.sum(rnn(x))))(nnx.RNN(own))
    found = nnx.to_pure_dict(gradients)["cell"]["weights"]
    assert found.keys() == {"W", "B"}
    turned = onnx_weights(nnx.merge(nnx.graphdef(own), expected["cell"], nnx.state(own, nnx.Not(nnx.Param))))
    np.testing.assert_allclose(found["W"], turned["W"], rtol=0, atol=2e-5)


REAL = {"dtln_1": {}, "silero_vad": {"sr": 16_000}, "silero_vad_16k_op15": {"sr": 16_000}}


@pytest.mark.parametrize("name", of_tiers(REAL, ("dtln_1",), ("silero_vad_16k_op15",)))
def test_a_real_model_in_rnn_is_its_scan(models, name):
    """Also for streams of unequal lengths, and carried on from there by the model itself."""
    model = jaxrnn.load(models / f"{name}.onnx", static=REAL[name])
    (given,), (result,) = model.spec.inputs, model.spec.outputs
    cell = Cell(model)
    x = 0.3 * random(BATCH, STEPS, 257 if name == "dtln_1" else 576)
    lengths = np.array([STEPS, 1, 4])
    carry, y = nnx.jit(lambda rnn: rnn(x, seq_lengths=jnp.asarray(lengths), return_carry=True))(nnx.RNN(cell))

    shape = (BATCH, 1, 1, 257) if model.spec.batch_symbol is None else (BATCH, 576)
    frames = {given.name: jnp.moveaxis(x, 1, 0).reshape(STEPS, *shape)}
    outputs, state = jax.jit(model.scan)(model.params, model.init(BATCH), frames, lengths=lengths)
    expected = jnp.moveaxis(outputs[result.name], 0, 1).reshape(y.shape)
    exists = np.arange(STEPS)[:, None] < lengths[:, None, None]
    assert_close(jnp.where(exists, y, 0), expected, atol=1e-5)
    assert_close(cell.state_of(carry), state, atol=1e-5)
    assert_close(cell.carry_of(state), carry, atol=1e-5)
    for leaf in jax.tree.leaves(carry):
        assert leaf.shape[0] == BATCH
    alone = cell.initialize_carry(x.shape[2:])
    assert_close(cell.state_of(alone), model.init(), atol=0)


def test_a_frame_with_several_axes():
    """``[1, bins, 1, 2]`` with a state of other axes, of a file that fixed its batch and starts from its own values."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Reshape", ["x", "flat"], ["x_flat"]),
        helper.make_node("Mul", ["h", "decay"], ["kept"]),
        helper.make_node("Add", ["kept", "x_flat"], ["h_out"]),
        helper.make_node("Reshape", ["h_out", "wide"], ["y"]),
    ]
    constants = {"decay": rng.random((1, 6), np.float32), "flat": np.array([1, 1, 6]), "wide": np.array([1, 2, 1, 3])}
    start = rng.random((1, 1, 6), np.float32)
    inputs, outputs = {"x": [1, 3, 1, 2], "h": [1, 1, 6]}, {"y": [1, 2, 1, 3], "h_out": [1, 1, 6]}
    graph = graph_of(nodes, inputs, outputs, {**constants, "h": start})
    model = jaxrnn.load(make_model(graph), state={"h": "h_out"})
    cell = Cell(model)
    assert cell.num_feature_axes == 2
    x = random(BATCH, STEPS, 3, 2)
    carry, y = nnx.jit(lambda rnn: rnn(x))(nnx.RNN(cell, return_carry=True))
    frames = {"x": np.moveaxis(x, 1, 0)[:, :, None, :, None, :]}
    outputs, state = jax.jit(model.scan)(model.params, model.init(BATCH), frames)
    assert_close(y, np.moveaxis(np.asarray(outputs["y"])[:, :, 0, :, 0], 0, 1))
    assert_close(carry, {"h": state["h"]})
    assert_close(cell.state_of(cell.initialize_carry((3, 2))), {"h": jnp.asarray(start)}, atol=0)


def test_tokens_without_an_axis_of_features():
    """``[batch]`` integers into an embedding: ``[batch, time]`` in `nnx.RNN`."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Gather", ["table", "token"], ["embedded"]),
        helper.make_node("Unsqueeze", ["embedded", "zero"], ["x"]),
        helper.make_node("GRU", ["x", "W", "R", "", "", "h"], ["", "h_out"], hidden_size=HIDDEN),
        helper.make_node("Squeeze", ["h_out", "zero"], ["y"]),
    ]
    shapes = {"table": (9, FEATURES), "W": (1, 3 * HIDDEN, FEATURES), "R": (1, 3 * HIDDEN, HIDDEN)}
    constants = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    inputs = {"token": (TensorProto.INT64, ["batch"]), "h": [1, "batch", HIDDEN]}
    outputs = {"y": ["batch", HIDDEN], "h_out": [1, "batch", HIDDEN]}
    model = jaxrnn.load(make_model(graph_of(nodes, inputs, outputs, {**constants, "zero": np.array([0])})))
    tokens = jax.device_put(rng.integers(0, 9, (BATCH, STEPS)))
    found = nnx.jit(lambda rnn: rnn(tokens))(nnx.RNN(Cell(model), return_carry=True))
    outputs, state = jax.jit(model.scan)(model.params, model.init(BATCH), {"token": np.asarray(tokens).T})
    assert_close(found, (np.asarray(state["h"])[0], np.swapaxes(outputs["y"], 0, 1)))


def test_a_state_that_a_batch_shares_is_one_for_each_stream():
    """A counter without a batch, beside a state that has one: both are batched, and both go back and forth."""
    nodes = [
        helper.make_node("Add", ["h", "x"], ["h_out"]),
        helper.make_node("Add", ["n", "one"], ["n_out"]),
        helper.make_node("Cast", ["n_out"], ["times"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["h_out", "times"], ["y"]),
    ]
    row, count = ["batch", 2], (TensorProto.INT64, [])
    inputs, outputs = {"x": row, "h": row, "n": count}, {"y": row, "h_out": row, "n_out": count}
    graph = graph_of(nodes, inputs, outputs, {"one": np.array(1)})
    model = jaxrnn.load(make_model(graph), state={"h": "h_out", "n": "n_out"})
    cell, x = Cell(model), random(BATCH, STEPS, 2)
    lengths = jnp.array([STEPS, 1, 4])
    carry, y = nnx.jit(lambda rnn: rnn(x, seq_lengths=lengths))(nnx.RNN(cell, return_carry=True))
    expected = np.cumsum(x, 1) * np.arange(1, STEPS + 1, dtype=np.float32)[:, None]
    assert_close(y, expected, atol=1e-5)
    assert carry["n"].tolist() == [STEPS, 1, 4]
    state = cell.state_of(carry)
    outputs, state = jax.jit(model.step)(model.params, state, {"x": np.asarray(x)[:, :1]})
    assert outputs["y"].shape == (BATCH, 1, 2)
    assert cell.carry_of(state)["n"].tolist() == [STEPS + 1, 2, 5]
    alone = cell.initialize_carry((2,))
    assert_close(cell.carry_of(model.init()), alone, atol=0)
    assert_close(cell.state_of(alone), model.init(), atol=0)
    with pytest.raises(jaxrnn.StateError, match=r"state 'h' cannot be float32\[3, 2\]"):
        cell.carry_of({"h": x[:, 0], "n": carry["n"][0]})


@pytest.mark.thorough
def test_an_open_axis_is_one_frame_or_as_many_as_are_said():
    """The packaged denoiser takes any number of frames; its state is that of one GRU among other layers."""
    model = jaxrnn.load(jaxrnn.demo.PACKAGED)
    cell, chunked = Cell(model), Cell(model, dims={"time": 4})
    bins = model.spec.inputs[0].shape[-1]
    x = jnp.abs(random(BATCH, 8, bins)) + 0.1
    expected, state = jax.jit(model.step)(model.params, model.init(BATCH), {"magnitude": x})
    carry, y = nnx.jit(lambda rnn: rnn(x, return_carry=True))(nnx.RNN(cell))
    assert_close(y, expected["mask"], atol=1e-5)
    assert_close(carry, state["h"][0], atol=1e-5)
    assert chunked.num_feature_axes == 2
    y = nnx.jit(lambda rnn: rnn(x.reshape(BATCH, 2, 4, bins)))(nnx.RNN(chunked))
    assert_close(y.reshape(x.shape), expected["mask"], atol=1e-5)


@pytest.mark.thorough
def test_what_is_no_cell_says_why(models):
    weights = {
        "W": np.zeros((2, 4 * HIDDEN, FEATURES), np.float32),
        "R": np.zeros((2, 4 * HIDDEN, HIDDEN), np.float32),
        "B": np.zeros((2, 8 * HIDDEN), np.float32),
    }
    for model, error, said in (
        (jaxrnn.load(models / "predictor_net.onnx"), jaxrnn.InputError, "takes encoder_frame.*, token.*use jaxrnn.nnx"),
        (jaxrnn.load(models / "silero_vad_16k_op15.onnx"), jaxrnn.InputError, "sr: int64.*static="),
        (jaxrnn.load(models / "filter_net.onnx"), jaxrnn.StateError, "forgets its state"),
        (jaxrnn.load(layers_model()), jaxrnn.StateError, "forgets its state"),
        (jaxrnn.load(models / "ocr_net.onnx"), jaxrnn.StateError, "forgets its state"),
    ):
        check_refused(error, said, Cell, model)
    cell = Cell(single_node("LSTM", "sequence", {name: array[:1] for name, array in weights.items()}))
    x, carry = random(BATCH, FEATURES), cell.initialize_carry((BATCH, FEATURES))
    for call, error, said in (
        (lambda: Cell(cell.model, dims={"time": 3}), jaxrnn.InputError, "no open dimension 'time'"),
        (lambda: cell(carry[0], x), jaxrnn.StateError, "tuple of c, h, not a .*Array"),
        (lambda: cell(dict(enumerate(carry)), x), jaxrnn.StateError, "tuple of c, h, not a dict of 0, 1"),
        (lambda: cell(carry, x[0]), jaxrnn.StateError, r"'c' in the carry must have the shape \[5\]"),
        (lambda: cell(carry, x[:, :2]), jaxrnn.InputError, "axis 2 must be 3, not 2"),
        (lambda: cell(carry, jnp.float32(1)), jaxrnn.InputError, r"must be \[\*batch, 3\], not of rank 0"),
        (lambda: cell((carry[0], carry[1].astype(jnp.float16)), x), jaxrnn.StateError, "must be float32"),
        (lambda: cell.initialize_carry((3,), None, nnx.initializers.normal()), jaxrnn.InputError, "rngs="),
        (lambda: cell.carry_of({"h": x}), jaxrnn.StateError, "'h' cannot be|'c' is missing"),
    ):
        check_refused(error, said, call)


@pytest.fixture(scope="module")
def counting():
    return counting_model()


class Detector(nnx.Module):
    """Starts anew for as many streams as it is called with."""

    def __init__(self, model, *, rngs):
        self.recurrent = Module(model, rngs=rngs)
        self.output = nnx.Linear(2, 1, rngs=rngs)

    def __call__(self, x):
        self.recurrent.reset(len(x))
        return self.output(self.recurrent.step(x=x)["y"])


def rows_of(module, *inputs, **options):
    """The path and the number of parameters in each row of Flax's table."""
    text = nnx.tabulate(module, *inputs, console_kwargs={"width": 200, "force_terminal": False}, **options)
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    return {row[0]: row[1] for row in cells if row[1]}


@pytest.mark.parametrize(
    ("make", "shape", "options", "rows"),
    [
        (Module, {"x": (1, 3)}, {"method": "step"}, {"step": "Module"}),
        (Cell, [(1, 3)], {}, {"": "Cell"}),
        (lambda model: nnx.RNN(Cell(model)), [(2, 4, 3)], {}, {"": "RNN", "cell": "Cell"}),
        (
            lambda model: Detector(model, rngs=nnx.Rngs(0)),
            [(4, 3)],
            {},
            {"": "Detector", "recurrent/step": "Module", "output": "Linear"},
        ),
    ],
    ids=["Module", "Cell", "RNN", "reset inside"],
)
def test_the_table_of_flax(counting, make, shape, options, rows):
    """Of a module that changes its state while it is called, and of ``nnx.RNN``; the classes are as they were after."""
    module = make(counting)
    inputs = [jax.tree.map(arrays_of, shape, is_leaf=lambda x: isinstance(x, tuple))]
    inputs = [module.initialize_carry((1, 3)), *inputs[0]] if isinstance(module, Cell) else inputs
    inputs = inputs[0] if isinstance(inputs[0], list) else inputs
    assert rows_of(module, *inputs, **options) == rows
    if not options:
        assert np.all(np.isfinite(jax.tree.leaves(module(*inputs))[0]))


def test_a_linen_module(counting):
    """The same bits; the state is a collection of its own, and parameters are plain arrays where one wants them."""
    x, inputs = arrays_of((1, 3)), {"x": arrays_of((1, 3)), **counting.init()}
    for options in ({}, {"metadata_fn": None}):
        module = nnx.bridge.to_linen(Module, counting, **options)
        variables = module.init(jax.random.key(0), inputs)
        assert_identical(module.apply(variables, inputs), counting.apply(counting.params, inputs))
        params = linen.meta.unbox(variables["params"])["weights"]
        assert_identical(params, counting.params)
        assert all(isinstance(each, jax.Array) for each in variables["params"]["weights"].values()) == bool(options)
        outputs, changed = module.apply(variables, {"x": x}, nnx_method="step", mutable=["RecurrentState"])
        expected, state = jax.jit(counting.step)(counting.params, counting.init(), {"x": x})
        assert_identical(outputs, expected)
        assert_identical(changed["RecurrentState"]["carry"], state)
    gradients = jax.grad(lambda p: jnp.sum(module.apply({**variables, "params": p}, inputs)["y"]))(variables["params"])
    expected = jax.grad(lambda params: jnp.sum(counting.apply(params, inputs)["y"]))(counting.params)
    assert_identical(gradients["weights"], expected)


@pytest.mark.thorough
def test_a_linen_module_among_layers(counting):
    """Several streams from a constructor's argument, and a cell under ``nnx.RNN``."""

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = linen.Dense(3)(x)
            x = nnx.bridge.to_linen(lambda rngs: nnx.RNN(Cell(counting, rngs=rngs)), name="recurrent")(x)
            return linen.Dense(1)(x)

    x = arrays_of((2, 4, 3))
    variables = Net().init(jax.random.key(0), x)
    dense = [variables["params"][f"Dense_{index}"] for index in range(2)]
    inner, _ = counting.scan(counting.params, counting.init(2), {"x": x @ dense[0]["kernel"]}, time_axis=1)
    np.testing.assert_allclose(Net().apply(variables, x), inner["y"] @ dense[1]["kernel"], rtol=0, atol=1e-5)


def test_an_abstract_module(counting):
    """It has shapes in place of arrays, and can be shown, split and restored into."""
    module = nnx.eval_shape(lambda: Module(counting, batch=3))
    assert "float32[3, 4]" in repr(module)
    assert "float32[3, 4]" in repr(jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), module))
    assert nnx.state(module, RecurrentState)["carry"]["h"].get_value().shape == (3, 4)


@pytest.mark.thorough
def test_a_checkpoint_of_several_streams(counting, tmp_path):
    """As many as the carry was reset for: into a module made for as many, or into any by plain dicts."""
    module = Module(counting)
    module.reset(3)
    x = arrays_of((3, 3))
    module.step(x=x)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", nnx.state(module))
        checkpointer.save(tmp_path / "plain", nnx.to_pure_dict(nnx.state(module)))
        checkpointer.wait_until_finished()
        graph, shapes = nnx.split(nnx.eval_shape(lambda: Module(counting, batch=3)))
        first = nnx.merge(graph, checkpointer.restore(tmp_path / "state", shapes))
        plain = checkpointer.restore(tmp_path / "plain")
    second = Module(counting)
    state = nnx.state(second)
    nnx.replace_by_pure_dict(state, plain)
    nnx.update(second, state)
    copies = [first, second, copy.deepcopy(module), nnx.clone(module), pickle.loads(pickle.dumps(module))]
    for each in copies:
        assert_identical(each.state, module.state)
    expected = module.step(x=x)
    for each in copies:
        assert_identical(each.step(x=x), expected)
