"""What Flax itself does with imported modules: its table, its bridge to linen, its abstract modules, checkpoints."""

from __future__ import annotations

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import linen, nnx
from test_nnx import arrays_of, assert_identical, counting_model

from jaxrnn.nnx import Cell, Module, RecurrentState


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
