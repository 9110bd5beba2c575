"""What JAX writes out as the operators that ONNX has for it, with the same values, also where these are not finite."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrnn.onnx.operators import activations, normalization
from tests.lowering_verifier import check_well_formed, lowered, operators_of, verify_lowering

#: Numbers at which functions change their form, and what is none.
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-4, -1e-4, 1.0, -1.0, 2.9, 3.0, -3.0, 6.0, 7.0, 80.0, -80.0, 3e4, -3e4]

#: By name: the function, the operators, and from which opset on.
ACTIVATIONS = {
    "relu": (jax.nn.relu, "Relu", 17),
    "relu6": (jax.nn.relu6, "Clip", 17),
    "clip": (lambda x: jnp.clip(x, -2, 3), "Clip", 17),
    "leaky_relu": (activations.leaky_relu, "LeakyRelu", 17),
    "jax_leaky_relu": (jax.nn.leaky_relu, "LeakyRelu", 17),
    "maximum_leaky_relu": (lambda x: jnp.maximum(x, x.dtype.type(0.25) * x), "LeakyRelu", 17),
    "prelu": (lambda x: activations.prelu(x, np.array([[0.1], [0.2]], x.dtype)), "PRelu", 17),
    "elu": (lambda x: activations.elu(x, alpha=0.5), "Elu", 17),
    "jax_elu": (jax.nn.elu, "Elu", 17),
    "celu_1": (activations.celu, "Elu", 17),
    "celu": (lambda x: activations.celu(x, alpha=2.0), "Celu", 17),
    "selu": (activations.selu, "Selu", 17),
    "jax_selu": (jax.nn.selu, "Selu", 17),
    "hard_sigmoid": (activations.hard_sigmoid, "HardSigmoid", 17),
    "jax_hard_sigmoid": (jax.nn.hard_sigmoid, "HardSigmoid", 17),
    "hard_swish": (activations.hard_swish, "HardSwish", 17),
    "jax_hard_swish": (jax.nn.hard_swish, "HardSwish", 17),
    "softplus": (jax.nn.softplus, "Softplus", 17),
    "softsign": (jax.nn.soft_sign, "Softsign", 17),
    "mish": (activations.mish, "Mish", 18),
    "gelu": (activations.gelu, "Gelu", 20),
    "gelu_tanh": (lambda x: activations.gelu(x, approximate="tanh"), "Gelu", 20),
    "thresholded_relu": (activations.thresholded_relu, "ThresholdedRelu", 17),
    "softmax": (jax.nn.softmax, "Softmax", 17),
    "softmax_of_channels": (lambda x: jax.nn.softmax(x, axis=1), "Softmax", 17),
    "log_softmax": (jax.nn.log_softmax, "LogSoftmax", 17),
}


def samples(dtype):
    """``[3, 2, n]``: what is special, alone in a row, and any numbers."""
    rng = np.random.default_rng(0)
    numbers = (rng.normal(size=(3, 2, len(SPECIAL))) * 3).astype(dtype)
    numbers[0, 0] = np.array(SPECIAL).astype(dtype)
    return numbers


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_one_node(name):
    function, operator, opset = ACTIVATIONS[name]
    # Functions that are small there have roundings of 1, of which they are made, times their argument.
    verify_lowering(function, samples(np.float32), opset=opset, scale=8, operators={operator: 1})


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_other_types(name, dtype):
    function, _, opset = ACTIVATIONS[name]
    if name == "gelu" and dtype == np.float64:  # engines have no error function of so many digits to hold it against
        model = lowered(function, samples(dtype), opset=opset)
        check_well_formed(model)
        assert operators_of(model.graph)["Erf"] == 1
        return
    verify_lowering(function, samples(dtype), opset=opset, scale=8)


def test_functions_that_onnx_lacks_keep_the_digits_of_small_numbers():
    x = np.concatenate([np.logspace(-30, 1.9, 50), -np.logspace(-30, 1, 50), [0, np.inf, -np.inf, np.nan]])
    for dtype in (np.float32, np.float64):
        verify_lowering(jnp.expm1, x.astype(dtype), scale=0, roundings=8)
        verify_lowering(jnp.log1p, np.where(x < -1, -1 + 1e-6, x).astype(dtype), scale=0, roundings=4)


NORMALIZATIONS = {
    "mean": (lambda x, c, f: jnp.mean(x, (1, 2)), {"ReduceMean": 1}),
    "mean_kept": (lambda x, c, f: jnp.mean(x, 1, keepdims=True), {"ReduceMean": 1}),
    "batch": (lambda x, c, f: normalization.batch_normalization(x, c, c, c, c * c)[0], {"BatchNormalization": 1}),
    "instance": (lambda x, c, f: normalization.instance_normalization(x, c, c), {"InstanceNormalization": 1}),
    "layer": (lambda x, c, f: normalization.layer_normalization(x, f, f, stash_type=0)[0], {"LayerNormalization": 1}),
    "layer_of_channels": (
        lambda x, c, f: normalization.layer_normalization(x, jnp.outer(c, f), jnp.outer(f, c).T, axis=1, stash_type=0)[
            0
        ],
        {"LayerNormalization": 1},
    ),
    "group": (
        lambda x, c, f: normalization.group_normalization(x, c, c, num_groups=2, stash_type=0),
        {"Reshape": 2, "InstanceNormalization": 1, "BatchNormalization": 1},
    ),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_normalizations_are_one_node(name, dtype):
    function, operators = NORMALIZATIONS[name]
    rng = np.random.default_rng(0)
    x, c, f = (rng.normal(size=shape).astype(dtype) for shape in ((2, 6, 5), 6, 5))
    operators = operators if dtype == np.float32 else None
    verify_lowering(function, x, c, f, known={1, 2}, roundings=32, operators=operators)
