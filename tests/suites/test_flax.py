"""Layers of Flax: linen modules, and modules of NNX."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from suites.layers import Layer, check_bounded, check_layer, varied

WIDTH = 4


def _linen(module, shape=(2, 12, WIDTH), axis=1, **options):
    def make():
        dtype = options.get("dtype", np.float32)
        variables = varied(module.init(jax.random.key(0), jnp.ones(shape, dtype)))
        return lambda x: module.apply(variables, x)

    return Layer(make, shape, axis, options)


def _nnx(build, shape=(2, 12, WIDTH), axis=1, **options):
    def make():
        graph, state = nnx.split(build(nnx.Rngs(0)))
        state = varied(state)
        return lambda x: nnx.merge(graph, state, copy=True)(x)

    return Layer(make, shape, axis, options)


def _banded(x):
    """A causal mask that sees four frames."""
    i, j = jnp.arange(x.shape[1])[:, None], jnp.arange(x.shape[1])
    return ((i >= j) & (i - j < 4))[None, None]


class _Attention(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.MultiHeadDotProductAttention(2)(x, mask=_banded(x))


class _Scanned(nn.Module):
    """A cell in a loop over time of the length of the recording."""

    @nn.compact
    def __call__(self, x):
        cell = nn.scan(nn.GRUCell, variable_broadcast="params", split_rngs={"params": False}, in_axes=1, out_axes=1)
        return cell(WIDTH)(jnp.zeros((x.shape[0], WIDTH), x.dtype), x)


class _ScannedByLength(nn.Module):
    """A loop over time that is given its length."""

    @nn.compact
    def __call__(self, x):
        options = {"in_axes": 1, "out_axes": 1, "length": x.shape[1]}
        cell = nn.scan(nn.LSTMCell, variable_broadcast="params", split_rngs={"params": False}, **options)
        start = (jnp.zeros((x.shape[0], WIDTH), x.dtype),) * 2
        return cell(WIDTH)(start, x)


class _Stack(nn.Module):
    """Layers in a loop, each with its own parameters."""

    @nn.compact
    def __call__(self, x):
        class Layer(nn.Module):
            @nn.compact
            def __call__(self, x, _):
                return nn.relu(nn.Conv(WIDTH, (3,), padding="CAUSAL")(x)), None

        return nn.scan(nn.remat(Layer), {"params": 0}, split_rngs={"params": True}, length=3)()(x, None)[0]


def _nnx_attention(rngs):
    attend = nnx.MultiHeadAttention(2, WIDTH, decode=False, rngs=rngs)
    return _Masked(attend)


class _Masked(nnx.Module):
    def __init__(self, attend):
        self.attend = attend

    def __call__(self, x):
        return self.attend(x, mask=_banded(x))


CELLS = ("LSTMCell", "OptimizedLSTMCell", "GRUCell", "SimpleCell", "MGUCell")

LINEN = (
    {f"linen.RNN, {name}": _linen(nn.RNN(getattr(nn, name)(3))) for name in CELLS}
    | {f"linen.Conv, {padding}": _linen(nn.Conv(3, (3,), padding=padding)) for padding in ("CAUSAL", "SAME", "VALID")}
    | {
        "linen.Dense": _linen(nn.Dense(3)),
        "linen.DenseGeneral": _linen(nn.DenseGeneral((2, 3))),
        "linen.Einsum": _linen(nn.Einsum((WIDTH, 3), "btc,cd->btd")),
        "linen.Embed": _linen(nn.Embed(6, 3), (2, 12), dtype=np.int32),
        "linen.Conv, stride": _linen(nn.Conv(3, (4,), 2), multiple=2),
        "linen.Conv, dilation": _linen(nn.Conv(3, (3,), padding="CAUSAL", kernel_dilation=2)),
        "linen.Conv, groups": _linen(nn.Conv(6, (3,), feature_group_count=2, padding="CAUSAL")),
        "linen.Conv, two axes": _linen(nn.Conv(3, (3, 3)), (2, 12, 5, WIDTH)),
        "linen.Conv, circular": _linen(nn.Conv(3, (3,), padding="CIRCULAR")),
        "linen.ConvLocal": _linen(nn.ConvLocal(3, (3,), padding="CAUSAL")),
        "linen.ConvTranspose": _linen(nn.ConvTranspose(3, (4,), (2,))),
        "linen.ConvTranspose, valid": _linen(nn.ConvTranspose(3, (4,), (2,), padding="VALID")),
        "linen.BatchNorm": _linen(nn.BatchNorm(use_running_average=True)),
        "linen.LayerNorm": _linen(nn.LayerNorm()),
        "linen.RMSNorm": _linen(nn.RMSNorm()),
        "linen.GroupNorm": _linen(nn.GroupNorm(2)),
        "linen.GroupNorm, of each frame": _linen(nn.GroupNorm(2, reduction_axes=-1)),
        "linen.InstanceNorm": _linen(nn.InstanceNorm()),
        "linen.WeightNorm": _linen(nn.WeightNorm(nn.Dense(3))),
        "linen.PReLU": _linen(nn.PReLU()),
        "linen.Dropout": _linen(nn.Dropout(0.5, deterministic=True)),
        "linen.Sequential": _linen(nn.Sequential([nn.Dense(3), nn.relu, nn.Conv(2, (3,))])),
        "linen.avg_pool": _linen(nn.Sequential([nn.Dense(3), lambda x: nn.avg_pool(x, (3,), (3,))])),
        "linen.max_pool": _linen(nn.Sequential([nn.Dense(3), lambda x: nn.max_pool(x, (3,), (1,), "SAME")])),
        "linen.MultiHeadDotProductAttention": _linen(_Attention(), tolerance=1e-4),
        "linen.RNN, ConvLSTMCell": _linen(nn.RNN(nn.ConvLSTMCell(3, (3,))), (2, 12, 5, WIDTH)),
        "linen.RNN, reverse": _linen(nn.RNN(nn.GRUCell(3), reverse=True, keep_order=True)),
        "linen.RNN, return_carry": _linen(nn.RNN(nn.GRUCell(3), return_carry=True)),
        "linen.RNN, time_major": _linen(nn.RNN(nn.GRUCell(3), time_major=True), (12, 2, WIDTH), 0),
        "linen.Bidirectional": _linen(nn.Bidirectional(nn.RNN(nn.GRUCell(3)), nn.RNN(nn.GRUCell(3)))),
        "linen.scan": _linen(_Scanned()),
        "linen.scan, length": _linen(_ScannedByLength()),
        "linen.scan, layers": _linen(_Stack()),
    }
)

NNX = (
    {
        f"nnx.RNN, {name}": _nnx(lambda rngs, name=name: nnx.RNN(getattr(nnx, name)(WIDTH, 3, rngs=rngs)))
        for name in CELLS
        if hasattr(nnx, name)
    }
    | {
        f"nnx.Conv, {padding}": _nnx(lambda rngs, padding=padding: nnx.Conv(WIDTH, 3, 3, padding=padding, rngs=rngs))
        for padding in ("CAUSAL", "SAME", "VALID")
    }
    | {
        "nnx.Linear": _nnx(lambda rngs: nnx.Linear(WIDTH, 3, rngs=rngs)),
        "nnx.LinearGeneral": _nnx(lambda rngs: nnx.LinearGeneral(WIDTH, (2, 3), rngs=rngs)),
        "nnx.Einsum": _nnx(lambda rngs: nnx.Einsum("btc,cd->btd", (WIDTH, 3), (3,), rngs=rngs)),
        "nnx.Embed": _nnx(lambda rngs: nnx.Embed(6, 3, rngs=rngs), (2, 12), dtype=np.int32),
        "nnx.LoRA": _nnx(lambda rngs: nnx.LoRA(WIDTH, 2, 3, rngs=rngs)),
        "nnx.ConvTranspose": _nnx(lambda rngs: nnx.ConvTranspose(WIDTH, 3, 4, 2, rngs=rngs)),
        "nnx.BatchNorm": _nnx(lambda rngs: nnx.BatchNorm(WIDTH, use_running_average=True, rngs=rngs)),
        "nnx.LayerNorm": _nnx(lambda rngs: nnx.LayerNorm(WIDTH, rngs=rngs)),
        "nnx.RMSNorm": _nnx(lambda rngs: nnx.RMSNorm(WIDTH, rngs=rngs)),
        "nnx.GroupNorm": _nnx(lambda rngs: nnx.GroupNorm(WIDTH, 2, rngs=rngs)),
        "nnx.GroupNorm, of each frame": _nnx(lambda rngs: nnx.GroupNorm(WIDTH, 2, reduction_axes=-1, rngs=rngs)),
        "nnx.Dropout": _nnx(lambda rngs: nnx.Dropout(0.5, deterministic=True, rngs=rngs)),
        "nnx.Sequential": _nnx(
            lambda rngs: nnx.Sequential(nnx.Linear(WIDTH, 3, rngs=rngs), nnx.relu, nnx.Conv(3, 2, 3, rngs=rngs))
        ),
        "nnx.MultiHeadAttention": _nnx(_nnx_attention, tolerance=1e-4),
        "nnx.RNN, return_carry": _nnx(
            lambda rngs: nnx.RNN(nnx.GRUCell(WIDTH, 3, rngs=rngs), return_carry=True, rngs=rngs)
        ),
        "nnx.Bidirectional": _nnx(
            lambda rngs: nnx.Bidirectional(
                *(nnx.RNN(nnx.GRUCell(WIDTH, 3, rngs=rngs), rngs=rngs) for _ in range(2)), rngs=rngs
            )
        ),
    }
)

LAYERS = LINEN | NNX
OFFLINE = {
    **dict.fromkeys(("linen.GroupNorm", "linen.InstanceNorm", "nnx.GroupNorm"), "known only when the stream has ended"),
    **dict.fromkeys(("linen.Bidirectional", "nnx.Bidirectional", "linen.RNN, reverse"), "reverses time"),
}
REFUSED = OFFLINE | {
    "linen.Conv, circular": "jnp.pad takes values from near the end",
    "linen.ConvLocal": "the function works on 12 frames only",  # there are weights for each frame
}


@pytest.mark.filterwarnings("ignore")  # of the packages
@pytest.mark.nightly
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    check_layer(LAYERS[name], REFUSED.get(name))


@pytest.mark.filterwarnings("ignore")  # of the packages
@pytest.mark.nightly
@pytest.mark.parametrize("name", OFFLINE)
def test_offline_layers_are_bounded(name):
    check_bounded(LAYERS[name])


@pytest.mark.nightly
def test_how_many_stream():
    assert (len(LAYERS) - len(REFUSED), len(LAYERS)) == (56, 64)
