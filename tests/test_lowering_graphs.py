"""Graphs as small as an engineer would write them: products with what belongs to them, movements, activations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from lowering_verifier import check_well_formed, lowered, operators_of, verify_lowering

from jaxrnn.cells.forms import plain_forms
from jaxrnn.onnx.operators import activations, normalization


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_a_product_is_one_node(rng):
    x, w = rng.normal(size=(5, 3)).astype(np.float32), rng.normal(size=(3, 4)).astype(np.float32)
    model = verify_lowering(lambda x, w: x @ w, x, w, known={1}, operators={"MatMul": 1})
    assert [each.name for each in model.graph.initializer] == ["x1"]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32, np.bool_, jnp.bfloat16])
def test_results_keep_their_types(rng, dtype):
    x = (rng.normal(size=(2, 3)) * 2).astype(dtype)
    verify_lowering(lambda x: (x[:, ::-1], x.T, jnp.where(x != x.dtype.type(0), x, x[::-1])), x)


def test_what_is_not_a_number_stays_none():
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e38, -1e-37], np.float32)
    verify_lowering(lambda x: (x * x, jnp.exp(x), -x, jax.lax.rsqrt(x)), x, scale=0, signed_zeros=True)


def drawn(rng, *shapes, dtype=np.float32):
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def convolved(x, kernel, **how):
    spatial = x.ndim - 2
    how = {"window_strides": (1,) * spatial, "padding": [(0, 0)] * spatial, **how}
    return lax.conv_general_dilated(x, kernel, **how)


def names_of(model):
    return {each.name for each in model.graph.initializer}


def test_a_convolution_has_its_padding_and_its_bias(rng):
    x, kernel, bias = drawn(rng, (1, 3, 7, 5), (4, 3, 3, 2), (4,))

    def function(x, kernel, bias):
        padded = jnp.pad(x, [(0, 0), (0, 0), (2, 0), (0, 1)])
        return convolved(padded, kernel, window_strides=(2, 1)) + bias[:, None, None]

    model = verify_lowering(function, x, kernel, bias, known={1, 2}, operators={"Conv": 1}, roundings=8)
    assert names_of(model) == {"x1", "x2"}


@pytest.mark.parametrize("groups", [1, 2])
def test_a_transposed_convolution_is_one_node(rng, groups):
    """The kernel in the order of ConvTranspose is the parameter itself, under its name."""
    x, kernel, bias = drawn(rng, (2, 4, 5), (4, 3, 4), (3 * groups,))

    def function(x, kernel, bias):
        blocks = kernel.reshape(groups, 4 // groups, 3, 4).swapaxes(1, 2).reshape(3 * groups, 4 // groups, 4)
        how = {"padding": [(3, 4)], "lhs_dilation": (2,), "feature_group_count": groups}
        return convolved(x, jnp.flip(blocks, 2), **how) + bias[:, None]

    model = verify_lowering(function, x, kernel, bias, known={1, 2}, operators={"ConvTranspose": 1}, roundings=8)
    assert names_of(model) == {"x1", "x2"}


def test_a_batch_normalization_is_part_of_its_convolution(rng):
    x, kernel, bias, scale, offset = drawn(rng, (1, 3, 7), (4, 3, 3), (4, 1), (4, 1), (4, 1))

    def function(x, kernel, bias, scale, offset):
        return (convolved(x, kernel) + bias) * scale + offset

    verify_lowering(function, x, kernel, bias, scale, offset, known={1, 2, 3, 4}, operators={"Conv": 1}, roundings=16)


@pytest.mark.parametrize("scale", [0, 1e38, np.inf, np.nan, 1e-45])
def test_a_scale_that_would_lose_the_kernel_stays(rng, scale):
    """Zeros and infinities in the kernel would meet infinities of the input."""
    x, kernel = drawn(rng, (1, 3, 7), (4, 3, 3))
    scales = np.array([[scale], [1], [1], [1]], np.float32)
    model = lowered(lambda x, k, s: convolved(x, k * np.float32(9)) * s, x, kernel, scales, known={1, 2})
    assert operators_of(model.graph) == {"Conv": 1, "Mul": 1}


def test_a_convolution_that_others_use_keeps_its_result(rng):
    x, kernel, bias = drawn(rng, (1, 3, 7), (4, 3, 3), (4, 1))

    def function(x, kernel, bias):
        y = convolved(x, kernel)
        return y, y + bias

    verify_lowering(function, x, kernel, bias, known={1, 2}, operators={"Conv": 1, "Add": 1}, roundings=8)


def test_what_is_broadcast_to_more_is_no_part_of_a_node(rng):
    x, kernel, many = drawn(rng, (1, 3, 7), (1, 3, 3), (4, 1))
    verify_lowering(lambda x, k, m: convolved(x, k) + m, x, kernel, many, known={1, 2}, roundings=8)
    verify_lowering(lambda x, k, m: convolved(x, k) * m, x, kernel, many, known={1, 2}, roundings=8)
    rows = np.zeros((3, 2, 1, 1), np.float32)
    verify_lowering(lambda x, z: (jnp.maximum(x, z), jnp.where(x >= 0, x, x * (z + 2))), x, rows, known={1})
    verify_lowering(lambda x, z: jnp.sum(x, 2) / (z + 7), x, rows, known={1}, roundings=8)


def test_a_product_and_a_sum_are_a_gemm(rng):
    x, weight, bias = drawn(rng, (2, 3), (4, 3), (4,))
    model = verify_lowering(
        lambda x, w, b: x @ w.T + b, x, weight, bias, known={1, 2}, operators={"Gemm": 1}, roundings=8
    )
    assert names_of(model) == {"x1", "x2"}  # the weight as the file has it
    verify_lowering(lambda x, w: x @ w.T, x, weight, operators={"Gemm": 1}, roundings=8)
    verify_lowering(lambda x, w: x.T @ w.T, *drawn(rng, (3, 2), (4, 3)), roundings=8)
    column = bias.reshape(4, 1)[:2]
    verify_lowering(lambda x, w, c: c + x @ w.T, x, weight, column, operators={"Gemm": 1}, roundings=8)
    verify_lowering(lambda x, w, b: x @ w.T + b, *drawn(rng, (1, 3), (4, 3), (2, 4)), roundings=8)


@pytest.mark.parametrize("dtype", [np.int32, np.float64, np.float16])
def test_products_and_sums_of_other_types(rng, dtype):
    x, weight, bias = ((each * 4).astype(dtype) for each in drawn(rng, (2, 3), (4, 3), (4,)))
    verify_lowering(lambda x, w, b: x @ w.T + b, x, weight, bias, known={1, 2}, roundings=8)


def test_arrangements_are_one_node(rng):
    (x,) = drawn(rng, (4, 6))
    history = x[:, :3]
    shift = {"Concat": 1, "Slice": 1}
    verify_lowering(lambda h, x: jnp.concatenate([h, x], 1)[:, 6:], history, x, operators={"Slice": 1})
    verify_lowering(
        lambda h, x: (lambda y: (y, y[:, 6:]))(jnp.concatenate([h, x], 1)), history, x[:, :5], operators=shift
    )
    verify_lowering(lambda x: jnp.concatenate([x[:, :2], x[:, 2:4], x[:, 4:5]], 1), x, operators={"Slice": 1})
    verify_lowering(lambda x: jnp.concatenate(jnp.split(x, 3, 1), 1) + x, x, operators={"Add": 1})
    verify_lowering(lambda x: x.reshape(2, 2, 6).reshape(4, 1, 6)[:, 0], x, operators={"Identity": 1})
    verify_lowering(lambda x: x[:, None].transpose(1, 0, 2), x, operators={"Reshape": 1})
    verify_lowering(lambda x: jnp.concatenate([jnp.concatenate([x, x]), x]), x, operators={"Concat": 1})


@pytest.mark.parametrize("widths", [(2, 3), (0, 2), (5, 0)])
def test_a_reflected_padding_is_one_node(rng, widths):
    (x,) = drawn(rng, (2, 6, 3))
    verify_lowering(lambda x: jnp.pad(x, [(0, 0), widths, (0, 0)], mode="reflect"), x, operators={"Pad": 1})
    verify_lowering(lambda x: jnp.pad(x, [(0, 0), widths, (0, 0)], mode="symmetric"), x)


def test_what_does_nothing_is_no_node(rng):
    (x,) = drawn(rng, (4, 6))
    one, zero = np.float32(1), np.float32(0)
    verify_lowering(lambda x: jax.nn.relu((x * one - zero) / one), x, operators={"Relu": 1})
    verify_lowering(lambda x: jnp.where(np.ones((4, 6), bool), x, zero) + x, x, operators={"Add": 1})
    verify_lowering(lambda x: x.astype(np.float64).astype(np.float32), x, operators={"Identity": 1})
    verify_lowering(lambda x: x.astype(np.float16).astype(np.float32), x, operators={"Cast": 2})
    verify_lowering(lambda x: x + zero, np.array([-0.0, 1], np.float32), signed_zeros=True, operators={"Identity": 1})


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_numbers_next_to_one_are_factors(dtype):
    x = np.array([1000, 0.3, -2], dtype)
    for one in (np.nextafter(dtype(1), dtype(0)), np.nextafter(dtype(1), dtype(2))):
        verify_lowering(lambda x, one=one: x * one, x, roundings=0, operators={"Mul": 1})
        verify_lowering(lambda x, one=one: x / one, x, roundings=1, operators={"Div": 1})
    six = np.nextafter(dtype(6), dtype(7))
    model = lowered(lambda x: jnp.clip(x + dtype(3), 0, six) / six, x)
    assert operators_of(model.graph)["HardSigmoid"] == 0


def test_results_that_are_equal_or_inputs_are_values_of_their_own(rng):
    (x,) = drawn(rng, (4, 6))
    model = verify_lowering(lambda x: (x, x + x, x + x, x), x, operators={"Identity": 3, "Add": 1})
    assert [each.name for each in model.graph.output] == ["y0", "y1", "y2", "y3"]


def test_nodes_have_the_names_of_their_scopes(rng):
    x, kernel, bias = drawn(rng, (1, 3, 7), (4, 3, 3), (4, 1))

    def function(x, kernel, bias):
        with jax.named_scope("/encoder/Conv"):
            y = convolved(x, kernel) + bias
        with jax.named_scope("/encoder/act/Softplus"):
            return jax.nn.softplus(y)

    model = verify_lowering(function, x, kernel, bias, known={1, 2}, roundings=8)
    assert [node.name for node in model.graph.node] == ["/encoder/Conv", "/encoder/act/Softplus"]


def test_reshapes_meet(rng):
    """What does not mind the shape comes before it, so that two reshapes are one."""
    x, weight, bias = drawn(rng, (2, 1, 3, 4), (4, 5), (5,))

    def layer(x, weight, bias):
        return jax.nn.sigmoid(x.reshape(6, 1, 4) @ weight + bias).reshape(2, 15)

    verify_lowering(
        layer, x, weight, bias, known={1, 2}, operators={"MatMul": 1, "Add": 1, "Sigmoid": 1, "Reshape": 1}, roundings=8
    )
    verify_lowering(lambda x: jnp.tanh(x.reshape(6, 4)).reshape(2, 1, 3, 4), x, operators={"Tanh": 1})
    verify_lowering(lambda x, w: x.reshape(3, 8) * w, x, np.arange(8, dtype=np.float32), known={1})
    verify_lowering(
        lambda x, y: jnp.stack([x, y], 1).reshape(2, 2, 12), x, x + 1, operators={"Concat": 1, "Reshape": 1}
    )
    for axis in range(4):
        verify_lowering(lambda x, y, a=axis: jnp.stack([x, y, x], a), x, x + 1, operators={"Concat": 1, "Reshape": 1})


def test_a_mask_has_its_shape_at_once(rng):
    (x,) = drawn(rng, (2, 3))
    count = np.int32(3)

    def masked(x, count):
        mask = count >= np.array([2, 4, 3], np.int32)
        return jnp.where(mask[None], x, 0), jnp.where((np.array([5, 3], np.int32) < count)[:, None], x, 0)

    verify_lowering(masked, x, count, operators={"GreaterOrEqual": 1, "Greater": 1, "Where": 2})


@pytest.mark.parametrize("frames", [1, 6])
def test_channels_last_are_channels_first_between_convolutions(rng, frames):
    """One transpose in front and none between, biases in their convolutions, of a single frame too."""
    kernels = drawn(rng, (1, 3, 4), (1, 4, 4), (1, 4, 2))
    (x,), (bias, scale) = drawn(rng, (2, frames, 3)), drawn(rng, (4,), (4,))

    def network(x, bias, scale, *kernels):
        def layer(x, kernel):
            return convolved(x, kernel, dimension_numbers=("NWC", "WIO", "NWC"))

        y = jax.nn.relu(layer(x, kernels[0]) + bias)
        y = y + jax.nn.silu(scale * layer(y, kernels[1]) + bias)
        y = jnp.concatenate([y, 1 - y], 2)[..., :4]
        return jnp.mean(layer(y, kernels[2]), 1)

    operators = {"Conv": 3, "Relu": 1, "Sigmoid": 1, "Mul": 1, "Add": 1}
    operators |= {"Transpose": 1, "ReduceMean": 1} if frames > 1 else {"Reshape": 2}
    verify_lowering(network, x, bias, scale, *kernels, known=range(1, 6), operators=operators, roundings=32)


def test_slices_of_all_are_a_split(rng):
    (x,) = drawn(rng, (2, 7, 3))
    parts = {"Split": 1, "Sigmoid": 1, "Tanh": 1, "Mul": 1}
    verify_lowering(lambda x: jax.nn.sigmoid(x[:, 3:]) * jnp.tanh(x[:, :3])[:, :1], x[:, :6])
    verify_lowering(lambda x: jax.nn.sigmoid(x[:, 3:]) * jnp.tanh(x[:, :3]), x[:, :6], operators=parts)
    verify_lowering(lambda x: (x[:, :3], x[:, 3:5], x[:, 5:]), x, operators={"Split": 1})
    verify_lowering(lambda x: (x[:, :3], x[:, 2:5], x[:, 5:]), x, operators={"Slice": 3})
    verify_lowering(lambda x: (x[:, :3], x[:, 4:]), x, operators={"Slice": 2})


X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)

#: By name: a function of X, and the operators it needs.
TAKEN = {
    "first axis": (lambda x: x[1], {"Gather": 1}),
    "middle axis": (lambda x: jnp.sin(x[:, 2]), {"Gather": 1, "Sin": 1}),
    "last axis": (lambda x: x[..., 0], {"Gather": 1}),
    "beside an axis of one element": (lambda x: x[:1, 1:2].reshape(1, 4), {"Slice": 1, "Reshape": 1}),
    "of an axis that stays": (lambda x: x[:, 1:2], {"Slice": 1}),
    "into another shape": (lambda x: x[:, 1:2].reshape(8), {"Slice": 1, "Reshape": 1}),
    "and as it was": (lambda x: (x[:, 1], x[:, 1:2]), {"Slice": 1, "Reshape": 1}),
}


@pytest.mark.parametrize("name", TAKEN)
def test_one_element_along_an_axis_is_taken_by_its_index(name):
    function, operators = TAKEN[name]
    verify_lowering(function, X, operators=operators)


def test_masks_are_broadcast_by_what_they_choose_for():
    def masked(x, exists):
        return jnp.where(exists[None, None], x, 0), jnp.where(exists[None, :3, None], x, 0)

    # Only the mask of the middle axis needs another shape.
    operators = {"Where": 2, "Slice": 1, "Reshape": 1}
    verify_lowering(masked, X, np.array([True, False, True, True]), operators=operators)


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
    with plain_forms():
        verify_lowering(function, samples(np.float32), opset=opset, scale=8, operators={operator: 1})


@pytest.mark.parametrize("slope", [2.0, -0.5])
def test_other_slopes_are_no_leaky_relu(slope):
    operators = {"Mul": 1, "Max": 1}
    verify_lowering(lambda x: jnp.maximum(x, x.dtype.type(slope) * x), samples(np.float32), operators=operators)


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
