"""Modules of Flax NNX, linen and Equinox under `stream`: as they are where they can be, else what to write instead."""

from __future__ import annotations

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from packages import needs_litert
from tiers import of_tiers

import jaxrnn
from jaxrnn.export import export_litert, verify_export
from jaxrnn.training import fit

X = jax.random.normal(jax.random.key(0), (1, 9, 3))


class Tied(nnx.Module):
    """Two layers that share a weight, a count of the calls that the second reads, running statistics and dropout."""

    def __init__(self, *, rngs):
        self.first, self.second = nnx.Linear(3, 3, rngs=rngs), nnx.Linear(3, 3, rngs=rngs)
        self.second.kernel = self.first.kernel
        self.norm, self.dropout = nnx.BatchNorm(3, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
        self.recurrent = nnx.RNN(nnx.GRUCell(3, 4, rngs=rngs))
        count = nnx.Variable(jnp.zeros(()))
        self.counts = nnx.List([count, count])

    def __call__(self, x):
        return self.recurrent(self.count(self.norm(self.first(x))))

    def count(self, x):
        self.counts[0].set_value(self.counts[0].get_value() + 1)
        return self.dropout(self.second(x)) * self.counts[1].get_value()


class Recurrent(eqx.Module):
    """A GRU and a small network of each frame; the frames come first."""

    cell: eqx.nn.GRUCell
    output: eqx.nn.MLP

    def __init__(self, key):
        self.cell = eqx.nn.GRUCell(3, 4, key=key)
        self.output = eqx.nn.MLP(4, 2, 5, 1, key=key)

    def __call__(self, x):
        def step(h, frame):
            h = self.cell(frame, h)
            return h, self.output(h)

        return jax.lax.scan(step, jnp.zeros(4), x)[1]


def check(function, whole, x=X, axis=1, **options):
    """Stream and compare with the function on the whole recording."""
    streamed = jaxrnn.stream(function, x, axes=axis, pulse=2, **options)
    found = jax.jit(streamed.run)(options.get("params"), x)
    np.testing.assert_allclose(found, whole, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def tied():
    module = Tied(rngs=nnx.Rngs(0))
    module.eval()
    return module


@pytest.mark.thorough
def test_an_nnx_module_as_it_is(tied):
    """Its counters move in a copy, whose parts share what they share in the module; the module stays as it is."""
    before = jax.tree.map(np.array, nnx.to_pure_dict(nnx.state(tied, nnx.Not(nnx.RngState))))
    expected = nnx.clone(tied)(X)
    check(tied, expected)
    after = nnx.to_pure_dict(nnx.state(tied, nnx.Not(nnx.RngState)))
    jax.tree.map(np.testing.assert_array_equal, after, before)


@pytest.mark.parametrize("how", of_tiers(["method", "partial", "params"], ["params"]))
def test_parts_of_an_nnx_module(tied, how):
    expected = nnx.clone(tied).recurrent(X)
    if how == "params":
        check(lambda module, x: module(x), expected, params=tied.recurrent)
    else:
        part = tied.recurrent.__call__ if how == "method" else functools.partial(tied.recurrent, return_carry=False)
        check(part, expected)


SHARED = nnx.RNN(nnx.GRUCell(3, 4, rngs=nnx.Rngs(0)))


def of_global(x):
    return SHARED(x)


def naming(module, how):
    """Return a function that names a module, and the number of its calls."""
    calls = []
    count = 0

    def of_closure(x):
        nonlocal count
        count += 1
        calls[:] = [count]
        return module(x)

    def of_list(x):
        return pair[1](x)

    def of_helper(x):
        return of_closure(x)

    def of_default(x, own=module, *, held={"module": module}):  # noqa: B006
        assert own is held["module"]
        return own(x)

    pair = ["GRU", module]
    return {"closure": of_closure, "list": of_list, "helper": of_helper, "default": of_default}[how], calls


@pytest.mark.parametrize("how", of_tiers(["closure", "list", "helper", "default"], ["helper", "default"]))
def test_nnx_modules_that_a_function_names(tied, how):
    """Each trace changes copies of the modules in variables, containers and defaults; other variables stay shared."""
    before, expected = jax.tree.map(jnp.copy, nnx.to_pure_dict(nnx.state(tied, nnx.RngCount))), nnx.clone(tied)(X)
    function, calls = naming(tied, how)
    check(function, expected)
    jax.tree.map(np.testing.assert_array_equal, nnx.to_pure_dict(nnx.state(tied, nnx.RngCount)), before)
    assert how not in ("closure", "helper") or calls[0] > 1


def test_an_nnx_module_in_a_global_variable():
    before, expected = SHARED.rngs.count[...], nnx.clone(SHARED)(X)
    check(of_global, expected)
    assert SHARED.rngs.count[...] == before


def test_what_to_write_for_a_module_in_a_transformation(tied):
    """Followed to the letter."""
    for each in (nnx.jit(tied), jax.vmap(lambda x: tied(x))):
        with pytest.raises(jaxrnn.StreamError, match=r"changes an NNX module that was made outside of it") as caught:
            jaxrnn.stream(each, X, axes=1)
    text = str(caught.value)
    assert "http" not in text
    assert "jaxrnn.stream(module, ...)" in text
    split, merge = "graph, params, rest = nnx.split(module, nnx.Param, ...)", "lambda params, x: "
    assert split in text
    function = text[text.index(merge) : text.index(", ..., params=params)")]
    names = {"nnx": nnx, "module": tied}
    exec(split, names)
    check(eval(function, names), nnx.clone(tied)(X), params=names["params"])


class Noisy(nnx.Module):
    """A GRU and a linear layer, with numbers from a random key of the module."""

    def __init__(self, *, rngs):
        self.recurrent, self.output = nnx.RNN(nnx.GRUCell(3, 4, rngs=rngs)), nnx.Linear(4, 2, rngs=rngs)
        self.noise = rngs.fork()

    def __call__(self, x):
        return self.output(self.recurrent(x)) + jax.random.uniform(self.noise.noise(), (2,))


def split_all(module):
    graph, state = nnx.split(module)
    return lambda state, x: nnx.merge(graph, state)(x), state


def split_params(module):
    graph, params, rest = nnx.split(module, nnx.Param, ...)
    return lambda params, x: nnx.merge(graph, params, rest)(x), params


def split_both(module):
    graph, params, rest = nnx.split(module, nnx.Param, ...)
    return lambda given, x: nnx.merge(graph, *given)(x), (params, rest)


SPLITS = {"all": split_all, "params": split_params, "params and rest": split_both}


def split_stream(how):
    """Return the module's outputs, its stream with names, its parameters and the function over whole recordings."""
    module = Noisy(rngs=nnx.Rngs(0))
    expected = np.asarray(nnx.clone(module)(X))
    function, params = SPLITS[how](module)
    streamed = jaxrnn.stream(lambda p, x: {"y": function(p, x["x"])}, {"x": X}, axes=1, params=params, pulse=2)
    return expected, streamed, params, function


def over_files(expected):
    return {"inputs": {"x": np.asarray(X)}, "offline": lambda x: {"y": expected[:, : x["x"].shape[1]]}}


@pytest.mark.parametrize("how", SPLITS)
def test_a_split_module_streams_and_is_written(how, tmp_path):
    expected, streamed, params, _ = split_stream(how)
    np.testing.assert_allclose(jax.jit(streamed.run)(params, {"x": X})["y"], expected, rtol=0, atol=1e-6)
    jaxrnn.export_onnx(streamed, params, tmp_path / "step.onnx", flush=tmp_path / "flush.onnx")
    report = verify_export(streamed, params, tmp_path / "step.onnx", **over_files(expected))
    assert report.ok, report


@needs_litert
@pytest.mark.parametrize("how", SPLITS)
def test_a_split_module_is_written_for_litert(how, tmp_path):
    expected, streamed, params, _ = split_stream(how)
    export_litert(streamed, params, tmp_path / "step.tflite")
    report = verify_export(streamed, params, tmp_path / "step.tflite", **over_files(expected))
    assert report.ok, report
    assert report.engine.startswith("LiteRT")


@pytest.mark.parametrize("how", of_tiers(SPLITS, ["params"]))
def test_a_split_module_is_trained_from_its_file(how, tmp_path):
    expected, _, params, function = split_stream(how)
    jaxrnn.export_onnx(function, params, tmp_path / "net.onnx", example=X)
    model = jaxrnn.load(tmp_path / "net.onnx")
    np.testing.assert_allclose(model({"x": X})["y"], expected, rtol=0, atol=1e-6)

    def loss(outputs, example, mask):
        return jnp.mean((outputs["y"] - example["target"]) ** 2)

    data = [{"x": np.asarray(X), "target": expected + 0.5}]
    fitted = fit(model, data, loss, steps=30, batch_size=1, optimizer=optax.adam(0.03), progress=False)
    assert fitted.history[-1]["loss"] < 0.1 * fitted.history[0]["loss"]


def test_random_keys_among_parameters(tmp_path):
    """Threefry's keys are numbers of the file; the numbers of other keys cannot be drawn in an engine."""

    def noisy(params, x):
        return x * jax.random.uniform(params["key"], (3,))

    params = {"key": jax.random.key(3)}
    jaxrnn.export_onnx(noisy, params, tmp_path / "noisy.onnx", example=X)
    found = jaxrnn.load(tmp_path / "noisy.onnx")({"x": X})["y"]
    np.testing.assert_allclose(found, noisy(params, X), rtol=1e-6)
    other = {"key": jax.random.key(3, impl="rbg")}
    with pytest.raises(jaxrnn.UnsupportedError, match=r"cannot draw the numbers of key<rbg>"):
        jaxrnn.export_onnx(noisy, other, tmp_path / "other.onnx", example=X)


@pytest.mark.thorough
def test_linen():
    module = linen.RNN(linen.GRUCell(4))
    variables = module.init(jax.random.key(1), X)
    expected = module.apply(variables, X)
    check(module.apply, expected, params=variables)
    for params in (None, variables):
        with pytest.raises(jaxrnn.StreamError, match=r"RNN has no parameters.*stream\(module\.apply, .*params=var"):
            jaxrnn.stream(module, X, axes=1, params=params)
    assert jaxrnn.stream(module.bind(variables), X, axes=1).delay == 0


def test_equinox():
    """As it is; as parameters, once its functions are taken out, which the refusal says how to do."""
    module, x = Recurrent(jax.random.key(2)), X[0]
    expected = module(x)
    check(module, expected, x, 0)
    with pytest.raises(jaxrnn.StreamError, match=r"params\.output\.activation is a .*eqx\.partition\(module, eqx\.is_"):
        jaxrnn.stream(lambda module, x: module(x), x, axes=0, params=module)
    arrays, static = eqx.partition(module, eqx.is_array)
    check(lambda arrays, x: eqx.combine(arrays, static)(x), expected, x, 0, params=arrays)
