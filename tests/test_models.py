"""The real models: values against ONNX Runtime, and under JAX's transformations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import of_tiers
from verifier import assert_same, check_vmap, peer_outputs, verify

import jaxrnn

#: Silero's decoder takes one frame: 196 to 700 samples give it one.
#: Name: the lengths of each symbolic axis, and the values of inputs that are bound.
CASES = {
    "dtln_1": ([{}], {}),
    "dtln_2": ([{}], {}),
    "gtcrn": ([{}], {}),
    "filter_net": ([{"S": n} for n in (5, 50, 83)], {}),
    "dual_path_net": ([{"S": n} for n in (3, 40, 61)], {}),
    "keyword_net": ([{"S": n} for n in (8, 64, 93)], {}),
    "wave_net": ([{"S": n} for n in (64, 640, 1920)], {}),
    "ocr_net": ([{"batch": b, "width": w} for b, w in ((1, 20), (3, 100), (2, 61))], {}),
    "predictor_net": ([{"batch": b} for b in (1, 2, 3)], {}),
    "silero_vad_16k_op15": ([{"batch": b, "sequence": n} for b, n in ((1, 300), (3, 576), (1, 700))], {"sr": 16000}),
    "silero_vad": (
        [{"state_dim_1": b, "input_dim_0": b, "input_dim_1": n} for b, n in ((1, 300), (3, 576), (1, 700))],
        {"sr": 16000},
    ),
}
#: One of each kind, and none that takes long to compile.
QUICK = ("dtln_1", "keyword_net", "wave_net", "ocr_net", "predictor_net", "silero_vad_16k_op15")
#: Node by node too: most kinds of operators, and few weights.
EAGER = ("ocr_net",)
NETS = ("filter_net", "dual_path_net", "keyword_net", "wave_net", "ocr_net", "predictor_net")


def random_inputs(model, sizes, seed=0):
    """Inputs for a model, of the given symbolic sizes."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for info in model.inputs:
        shape = [size if isinstance(size, int) else sizes[size] for size in info.shape]
        values = rng.normal(size=shape) * 0.5 if info.dtype.kind == "f" else rng.integers(0, 60, shape)
        arrays[info.name] = values.astype(info.dtype)
    return arrays


@pytest.mark.parametrize("name", of_tiers(CASES, QUICK[:1], QUICK))
def test_values(models, name):
    lengths, static = CASES[name]
    static = {key: np.asarray(value) for key, value in static.items()}
    path = models / f"{name}.onnx"
    model = jaxrnn.load(path, static=static)
    tolerance = {info.name: 1e-4 if info.name == "snr" else 1e-5 for info in model.outputs}
    for seed, sizes in enumerate(lengths):
        verify(
            path, random_inputs(model, sizes, seed), static=static, atol=tolerance, eager=name in EAGER and seed == 0
        )


@pytest.mark.thorough
def test_the_sampling_rate_may_stay_an_input(models):
    """Silero's branch is picked at run time too: known outside jit, by lax.cond inside it."""
    path = models / "silero_vad_16k_op15.onnx"
    model = jaxrnn.load(path)
    inputs = random_inputs(model, {"batch": 2, "sequence": 576}) | {"sr": np.asarray(16000)}
    expected = peer_outputs(path, inputs)
    assert_same(model(inputs), expected, 1e-5)
    assert_same(model.apply(model.params, inputs), expected, 1e-5)


@pytest.mark.parametrize("name", of_tiers(["dtln_1", "predictor_net", "silero_vad_16k_op15"], ("dtln_1",)))
def test_vmap(models, name):
    lengths, static = CASES[name]
    model = jaxrnn.load(models / f"{name}.onnx", static=static)
    check_vmap(model, random_inputs(model, lengths[0]))


@pytest.mark.parametrize("name", of_tiers(["dual_path_net", "keyword_net", "ocr_net"], (), ("keyword_net",)))
def test_one_trace_serves_every_length(models, name):
    """Exported once with symbolic dimensions, the function runs at each length with the same result."""
    lengths, _ = CASES[name]
    model = jaxrnn.load(models / f"{name}.onnx")
    constraints = {"ocr_net": ["width >= 2"], "keyword_net": ["S >= 2"]}.get(name, [])
    specs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), model.params)
    exported = jax.export.export(jax.jit(model.apply))(specs, model.symbolic_inputs(constraints=constraints))
    for sizes in lengths:
        inputs = random_inputs(model, sizes)
        assert_same(exported.call(model.params, inputs), jax.jit(model.apply)(model.params, inputs), 1e-5)


@pytest.mark.thorough
def test_parameters_of_exporters(models):
    """Weights in Constant nodes are parameters, also inside branches; numbers of formulas are not."""
    silero = jaxrnn.load(models / "silero_vad_16k_op15.onnx", static={"sr": 16000})
    assert sum(value.size for value in silero.params.values()) > 200_000
    assert all(value.ndim > 0 for value in silero.params.values())
    for name in CASES:
        model = jaxrnn.load(models / f"{name}.onnx")
        assert all(jnp.issubdtype(value.dtype, jnp.floating) for value in model.params.values())
        scalars = [key for key, value in model.params.items() if value.ndim == 0]
        assert not scalars or name in ("dtln_2", "gtcrn")  # which keep their epsilons as initializers
    assert jax.tree.structure(silero.params) == jax.tree.structure(dict.fromkeys(silero.params, 0))


def test_single_steps_have_no_loop(models):
    """Every network that is called a frame at a time compiles to straight code."""
    for name in ("dtln_1", "dtln_2", "gtcrn", "predictor_net", "silero_vad_16k_op15"):
        lengths, static = CASES[name]
        model = jaxrnn.load(models / f"{name}.onnx", static=static)
        inputs = random_inputs(model, lengths[0])
        text = str(jax.make_jaxpr(model.apply)(model.params, inputs))
        # GTCRN has four bidirectional GRUs over the 33 bands inside every frame, each one loop.
        assert text.count("scan[") == (4 if name == "gtcrn" else 0), name
        assert "while[" not in text
        # Choices by platform are made before a program is compiled.
        assert text.count("cond[") == text.count("branches_platforms=((")
