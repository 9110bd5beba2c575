"""Layers of Haiku, with parameters as `hk.transform` initialises them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from suites.layers import Layer, check_bounded, check_layer, varied

hk = pytest.importorskip("haiku", reason="dm-haiku is not installed", exc_type=ImportError)

WIDTH = 4


def _layer(build, shape=(2, 12, WIDTH), axis=1, **options):
    """The layer that a function of the input builds and calls inside of `hk.transform`."""

    def make():
        net = hk.without_apply_rng(hk.transform_with_state(build))
        dtype = options.get("dtype", np.float32)
        params, state = net.init(jax.random.key(0), jnp.ones(shape, dtype))
        params = varied(params)
        return lambda x: net.apply(params, state, x)[0]

    return Layer(make, shape, axis, options)


def _unrolled(core, shape=(12, 2, WIDTH), axis=0, **options):
    """A recurrent core over time, with its final state."""

    def build(x):
        made = core()
        return hk.dynamic_unroll(made, x, made.initial_state(x.shape[1]))

    return _layer(build, shape, axis, **options)


def _reset(x):
    """An LSTM that starts again at some frames."""
    core = hk.ResetCore(hk.LSTM(3))
    return hk.dynamic_unroll(core, (x, x[..., 0] > 1), core.initial_state(x.shape[1]))


def _scanned(x):
    layer = hk.Linear(WIDTH)

    def step(carry, frame):
        carry = jnp.tanh(layer(carry) + frame)
        return carry, carry

    return hk.scan(step, jnp.zeros(x.shape[1:]), x)


def _attention(x):
    """Attention with a causal mask that sees four frames."""
    i, j = jnp.arange(x.shape[1])[:, None], jnp.arange(x.shape[1])
    mask = (i >= j) & (i - j < 4)
    return hk.MultiHeadAttention(2, 4, w_init=hk.initializers.VarianceScaling())(x, x, x, mask[None, None])


LAYERS = {
    "Linear": _layer(lambda x: hk.Linear(3)(x)),
    "MLP": _layer(lambda x: hk.nets.MLP([5, 3])(x)),
    "Bias": _layer(lambda x: hk.Bias(bias_dims=[-1])(x)),
    "Sequential": _layer(lambda x: hk.Sequential([hk.Linear(3), jax.nn.relu, hk.Linear(2)])(x)),
    "Embed": _layer(lambda x: hk.Embed(6, 3)(x), (2, 12), dtype=np.int32),
    "BatchApply": _layer(lambda x: hk.BatchApply(hk.Linear(3))(x)),
    "Flatten": _layer(lambda x: hk.Flatten(preserve_dims=2)(x), (2, 12, 3, 2)),
    "Reshape": _layer(lambda x: hk.Reshape((2, 2), preserve_dims=2)(x)),
    "Conv1D, causal": _layer(lambda x: hk.Conv1D(3, 3, padding=hk.pad.causal)(x)),
    "Conv1D, same": _layer(lambda x: hk.Conv1D(3, 3)(x)),
    "Conv1D, valid": _layer(lambda x: hk.Conv1D(3, 3, padding="VALID")(x)),
    "Conv1D, dilation": _layer(lambda x: hk.Conv1D(3, 3, rate=2, padding=hk.pad.causal)(x)),
    "Conv1D, stride": _layer(lambda x: hk.Conv1D(3, 4, stride=2)(x), multiple=2),
    "Conv1DTranspose": _layer(lambda x: hk.Conv1DTranspose(3, 4, stride=2)(x)),
    "DepthwiseConv1D": _layer(lambda x: hk.DepthwiseConv1D(2, 3, padding=[(2, 0)])(x)),
    "Conv2D": _layer(lambda x: hk.Conv2D(3, 3)(x), (2, 12, 5, WIDTH)),
    "Conv2DTranspose": _layer(lambda x: hk.Conv2DTranspose(3, 3, stride=(1, 2))(x), (2, 12, 5, WIDTH)),
    "SeparableDepthwiseConv2D": _layer(lambda x: hk.SeparableDepthwiseConv2D(2, 3)(x), (2, 12, 5, WIDTH)),
    "AvgPool": _layer(lambda x: hk.AvgPool((1, 3, 1), (1, 3, 1), "VALID")(x)),
    "MaxPool": _layer(lambda x: hk.MaxPool((1, 3, 1), (1, 1, 1), "SAME")(x)),
    "LayerNorm": _layer(lambda x: hk.LayerNorm(-1, True, True)(x)),
    "RMSNorm": _layer(lambda x: hk.RMSNorm(-1)(x)),
    "BatchNorm": _layer(lambda x: hk.BatchNorm(True, True, 0.9)(x, is_training=hk.running_init())),
    "GroupNorm": _layer(lambda x: hk.GroupNorm(2)(x)),
    "InstanceNorm": _layer(lambda x: hk.InstanceNorm(True, True)(x)),
    "MultiHeadAttention": _layer(_attention, tolerance=1e-4),
    "VanillaRNN": _unrolled(lambda: hk.VanillaRNN(3)),
    "LSTM": _unrolled(lambda: hk.LSTM(3)),
    "GRU": _unrolled(lambda: hk.GRU(3)),
    "IdentityCore": _unrolled(lambda: hk.IdentityCore()),
    "DeepRNN": _unrolled(lambda: hk.DeepRNN([hk.LSTM(3), jax.nn.relu, hk.GRU(2)])),
    "DeepRNN, skip connections": _unrolled(lambda: hk.deep_rnn_with_skip_connections([hk.LSTM(3), hk.GRU(2)])),
    "ResetCore": _layer(_reset, (12, 2, WIDTH), 0),
    "Conv1DLSTM": _unrolled(lambda: hk.Conv1DLSTM((5,), 2, 3), (12, 2, 5, WIDTH)),
    "Conv2DLSTM": _unrolled(lambda: hk.Conv2DLSTM((5, 4), 2, 3), (12, 2, 5, 4, 2)),
    "scan": _layer(_scanned, (12, 2, WIDTH), 0),
    "layer_stack": _layer(lambda x: hk.layer_stack(3)(hk.Conv1D(WIDTH, 3, padding=hk.pad.causal))(x)),
    "remat": _layer(lambda x: hk.remat(hk.Conv1D(3, 3, padding=hk.pad.causal))(x)),
}


def _backwards(x):
    core = hk.LSTM(3)
    return hk.dynamic_unroll(core, x, core.initial_state(x.shape[1]), reverse=True)[0]


BACKWARDS = _layer(_backwards, (12, 2, WIDTH), 0)
REFUSED = dict.fromkeys(("GroupNorm", "InstanceNorm"), "known only when the stream has ended")


@pytest.mark.filterwarnings("ignore")  # of the packages
@pytest.mark.nightly
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    check_layer(LAYERS[name], REFUSED.get(name))


@pytest.mark.filterwarnings("ignore")  # of the packages
@pytest.mark.nightly
@pytest.mark.parametrize("layer", [*(LAYERS[name] for name in REFUSED), BACKWARDS])
def test_offline_layers_are_bounded(layer):
    check_bounded(layer)


@pytest.mark.nightly
def test_how_many_stream():
    assert (len(LAYERS) - len(REFUSED), len(LAYERS)) == (36, 38)
