"""Multiplications: exported graphs multiply hardly more often than the equations of their models, without a clock."""

import functools

import jax
import numpy as np
import onnx_ir as ir
import pytest
from conftest import MODELS
from jax import lax
from lowering_verifier import lowered, verify_lowering
from packages import needs_litert
from tiers import of_tiers

from benchmarks import multiplications
from jaxrnn._jax.context import exact_types
from jaxrnn.export.graphs import function_graph
from jaxrnn.export.litert.forms import Forms
from jaxrnn.jaxprs.equations import trace
from tools import sweep

#: The largest number of multiplications of a file for each multiplication of the equation.
LIMIT = 1.5

#: Convolutions with rows of zeros: channels, outputs in a group, groups, and by axis the size, the taps, the stride,
#: the padding, the distances of elements and of taps.
CONVOLUTIONS = {
    "a frame": (6, 2, 1, [(1, 32, 1, (31, 31), 8, 1)]),
    "two frames of a window": (6, 2, 1, [(2, 32, 1, (31, 31), 8, 1)]),
    "many frames": (3, 2, 1, [(40, 8, 1, (7, 7), 4, 1)]),
    "frames apart": (3, 2, 1, [(5, 3, 1, (8, 8), 4, 4)]),
    "each channel": (6, 1, 6, [(1, 16, 1, (15, 15), 4, 1)]),
    "each channel, many frames": (6, 2, 6, [(9, 8, 1, (7, 3), 4, 1)]),
    "groups": (6, 2, 2, [(3, 8, 1, (7, 7), 2, 1)]),
    "an image": (3, 2, 1, [(4, 3, 1, (2, 2), 2, 1), (5, 4, 1, (3, 3), 3, 1)]),
    "a frame over frequencies": (3, 2, 1, [(1, 3, 1, (2, 2), 1, 1), (9, 3, 2, (1, 1), 1, 1)]),
    "more padding than frames": (3, 2, 1, [(2, 9, 1, (8, 8), 1, 1)]),
    "taps in the padding": (3, 2, 1, [(4, 9, 1, (20, 0), 1, 2)]),
    "elements that strides skip": (3, 2, 1, [(12, 5, 3, (4, 4), 3, 1)]),
    "windows in the padding": (3, 2, 1, [(6, 2, 2, (30, 30), 1, 1)]),
}


def convolution(channels, outputs, groups, axes):
    """Return a convolution as a function, and its operands; the kernel is reversed, as of a transposed convolution."""
    sizes, taps, strides, pads, spacings, dilations = zip(*axes, strict=True)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, channels, *sizes)).astype(np.float32)
    kernel = rng.standard_normal((outputs * groups, channels // groups, *taps)).astype(np.float32)
    reverse = (slice(None), slice(None), *(slice(None, None, -1) for _ in taps))

    def function(x, kernel):
        how = {"lhs_dilation": spacings, "rhs_dilation": dilations, "feature_group_count": groups}
        return lax.conv_general_dilated(x, kernel[reverse], strides, pads, **how)

    return function, x, kernel


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_no_zeros_are_multiplied(name):
    """The graph of ONNX, and the program that LiteRT's converter gets, equal JAX with the products of the equation."""
    function, x, kernel = convolution(*CONVOLUTIONS[name])
    needed = multiplications.of_program(trace(function, x, kernel)[0].jaxpr)
    model = verify_lowering(function, x, kernel, known={1}, roundings=32)
    assert needed <= multiplications.of_onnx(ir.from_proto(model)) <= LIMIT * needed

    alone = functools.partial(function, kernel=kernel)
    (found,) = sweep.Rewritten().run(lambda inputs: {"y": alone(inputs["x"])}, {"x": x}).values()
    expected = np.asarray(jax.jit(alone)(x))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    graph = function_graph(alone, None, x, None)
    with exact_types():
        program, _ = trace(lambda x: Forms().whole(graph.closed, [x]), x)
    assert needed <= multiplications.of_program(program.jaxpr, zeros=True) <= LIMIT * needed


def test_ordinary_convolutions_stay_single_nodes():
    """Also with padding of the same size; a transposed convolution of several frames is the operator of the engine."""
    for axes, operator in (([(9, 3, 1, (1, 1), 1, 1)], "Conv"), ([(9, 8, 1, (7, 7), 4, 1)], "ConvTranspose")):
        function, x, kernel = convolution(3, 2, 1, axes)
        assert [each.op_type for each in lowered(function, x, kernel, known={1}).graph.node] == [operator]


FILES = multiplications.names_in(MODELS)
#: Networks that LiteRT multiplied 127, 26 and 1.7 times as often as necessary.
TRANSPOSED = ["speech/convstft_center_script", "wave_net", "speech/unet_script"]
#: Networks of different kinds: grouped and resized convolutions, recurrent layers along time and frequency.
OTHERS = ["dual_path_net", "filter_net", "gtcrn", "exports/keras_conv_gru"]
OTHERS += [f"speech/{name}" for name in ("keras_frequency_bigru", "interp_lin_script")]


@pytest.mark.parametrize("engine", ["ONNX", pytest.param("LiteRT", marks=needs_litert)])
@pytest.mark.parametrize("name", of_tiers(FILES, {*TRANSPOSED} & {*FILES}, {*OTHERS} & {*FILES}))
def test_networks(name, engine, models, tmp_path):
    found = multiplications.counted(models, name, tmp_path, [engine])
    file = found.files[engine]
    assert not isinstance(file, str), file
    assert file.multiplications <= LIMIT * found.equation
    assert found.equation or name == "speech/pcen_script"
