"""Layers of sequence-layers over sequences with a mask."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from suites.layers import Layer, check_layer, varied

sl = pytest.importorskip("sequence_layers.jax", reason="sequence-layers is not installed", exc_type=ImportError)


def _function(config, example, lowest=-1):
    """The layer as a function of values; a mask that depends on the values leaves out some frames."""
    layer = config.make()

    def sequence(x):
        return sl.Sequence(x, x.reshape(*x.shape[:2], -1)[..., 0] > lowest)

    params = varied(layer.init(jax.random.key(0), sequence(example), training=False, method=layer.layer))

    def function(x):
        y = layer.apply(params, sequence(x), training=False, method=layer.layer)
        return y.values, y.mask

    return function


def _layer(config, channels=(3,), lowest=-1, **options):
    shape = (2, 12, *channels)
    dtype = options.get("dtype", np.float32)
    return Layer(lambda: _function(config, jnp.ones(shape, dtype), lowest), shape, options=options)


PADDINGS = ("causal", "causal_valid", "reverse_causal", "reverse_causal_valid", "same", "semicausal", "valid")
#: Paddings of transposed convolutions and of overlapping frames.
TRANSPOSED = ("causal", "same", "valid")


def _attention(kind, *, options=None, **config):
    options = options or {"constraints": ("S >= 6",), "lengths": (6, 8, 13), "tolerance": 1e-4}
    # A frame that sees no valid frame is NaN in a stream: `stream` takes the large finite number for minus infinity.
    return _layer(kind.Config(num_heads=2, units_per_head=4, **config), (6,), lowest=-100, **options)


def _self_attention(**config):
    return _attention(sl.DotProductSelfAttention, **config)


def _embedding(kind, **config):
    return kind.Config(num_heads=2, **config)


CONVOLUTIONS = (
    {f"Conv1D, {padding}": _layer(sl.Conv1D.Config(4, 3, padding=padding)) for padding in PADDINGS}
    | {
        f"Conv1D, {padding}, strides": _layer(sl.Conv1D.Config(4, 4, strides=2, padding=padding))
        for padding in PADDINGS
    }
    | {
        f"Conv1DTranspose, {padding}": _layer(sl.Conv1DTranspose.Config(4, 5, strides=2, padding=padding))
        for padding in TRANSPOSED
    }
    | {
        f"Conv2D, {padding}": _layer(
            sl.Conv2D.Config(4, (3, 3), (2, 2), time_padding=padding, spatial_padding="same"), (6, 3)
        )
        for padding in ("causal", "same", "valid")
    }
    | {
        f"Conv2DTranspose, {padding}": _layer(
            sl.Conv2DTranspose.Config(4, (3, 3), (2, 2), time_padding=padding, spatial_padding="same"), (6, 3)
        )
        for padding in TRANSPOSED
    }
    | {
        "Conv1D, dilation": _layer(sl.Conv1D.Config(4, 3, dilation_rate=2, padding="causal")),
        "Conv1D, groups": _layer(sl.Conv1D.Config(6, 3, groups=3, padding="causal", use_weight_norm=True)),
        "Conv1DTranspose, groups": _layer(sl.Conv1DTranspose.Config(6, 3, strides=3, groups=3, padding="causal")),
        "DepthwiseConv1D": _layer(sl.DepthwiseConv1D.Config(3, depth_multiplier=2, padding="causal")),
        "DepthwiseConv1D, strides": _layer(sl.DepthwiseConv1D.Config(3, strides=2, padding="semicausal")),
        "Conv3D": _layer(
            sl.Conv3D.Config(4, (3, 3, 3), time_padding="causal", spatial_padding=("same", "same")), (4, 5, 2)
        ),
    }
)

POOLING = (
    {
        f"{name}Pooling1D, {padding}": _layer(getattr(sl, f"{name}Pooling1D").Config(3, 2, padding=padding))
        for name in ("Min", "Max", "Average")
        for padding in ("causal", "same", "valid")
    }
    | {
        f"{name}Pooling2D": _layer(
            getattr(sl, f"{name}Pooling2D").Config((3, 2), (2, 2), time_padding="causal", spatial_padding="same"),
            (6, 3),
        )
        for name in ("Min", "Max", "Average")
    }
    | {
        "AveragePooling1D, masked": _layer(sl.AveragePooling1D.Config(3, 2, padding="causal", masked_average=True)),
        "MaxPooling1D, dilation": _layer(sl.MaxPooling1D.Config(3, dilation_rate=2, padding="reverse_causal")),
        "MaxPooling3D": _layer(
            sl.MaxPooling3D.Config((3, 2, 2), time_padding="causal", spatial_padding=("same", "same")), (4, 5, 2)
        ),
    }
)

SIGNALS = (
    {f"Frame, {padding}": _layer(sl.Frame.Config(4, 2, padding=padding), ()) for padding in PADDINGS}
    | {
        f"OverlapAdd, {padding}": _layer(sl.OverlapAdd.Config(6, 3, padding=padding), (6,))
        for padding in ("causal", "valid", "semicausal_full")
    }
    | {f"STFT, {padding}": _layer(sl.STFT.Config(6, 3, 8, time_padding=padding), ()) for padding in TRANSPOSED}
    | {
        f"InverseSTFT, {padding}": Layer(lambda padding=padding: _inverse_stft(padding), (2, 12, 5))
        for padding in ("causal", "semicausal_full", "valid")
    }
    | {
        "OverlapAdd, uneven": _layer(sl.OverlapAdd.Config(5, 3, padding="causal"), (5,)),
        "OverlapAdd, channels": _layer(sl.OverlapAdd.Config(6, 2, padding="causal"), (6, 3)),
        "FFT": _layer(sl.FFT.Config(), (6,), dtype=np.complex64),
        "IFFT": _layer(sl.IFFT.Config(), (6,), dtype=np.complex64),
        "RFFT": _layer(sl.RFFT.Config(8), (6,)),
        "IRFFT": _layer(sl.IRFFT.Config(8), (5,), dtype=np.complex64),
        "Delay": _layer(sl.Delay.Config(3)),
        "Lookahead": _layer(sl.Lookahead.Config(3)),
        "Lookahead, of the length": _layer(sl.Lookahead.Config(3, preserve_length_in_layer=True)),
        "Window": _layer(sl.Window.Config(axis=-1), (6,)),
        "LinearToMelSpectrogram": _layer(sl.LinearToMelSpectrogram.Config(4, 8000.0, 100.0, 3800.0), (17,)),
        "Frame, valid": _layer(sl.Frame.Config(4, 2, padding="valid"), (), constraints=("S >= 4",), lengths=(4, 8, 9)),
        "STFT, valid": _layer(
            sl.STFT.Config(6, 3, 8, time_padding="valid"), (), constraints=("S >= 6",), lengths=(6, 8, 9)
        ),
        "Downsample1D": _layer(sl.Downsample1D.Config(2)),
        "Upsample1D": _layer(sl.Upsample1D.Config(2)),
        "Upsample2D": _layer(sl.Upsample2D.Config((2, 3)), (4, 3)),
    }
)


def _inverse_stft(padding):
    inverse = _function(sl.InverseSTFT.Config(6, 3, 8, time_padding=padding), jnp.ones((2, 12, 5), jnp.complex64))
    return lambda x: inverse(jax.lax.complex(x, jnp.sin(x)))


NORMALIZATION = {
    "BatchNormalization": _layer(sl.BatchNormalization.Config()),
    "GroupNormalization": _layer(sl.GroupNormalization.Config(2), (4,)),
    "GroupNormalization, cumulative": _layer(sl.GroupNormalization.Config(2, cumulative=True), (4,)),
    "L2Normalize": _layer(sl.L2Normalize.Config()),
    "LayerNormalization": _layer(sl.LayerNormalization.Config()),
    "LayerNormalization, axes": _layer(sl.LayerNormalization.Config(axis=(-2, -1)), (4, 3)),
    "RMSNormalization": _layer(sl.RMSNormalization.Config()),
}

RECURRENT = {
    f"RGLRU, {kind}": _layer(
        sl.RGLRU.Config(4, 2, scan_type=kind), (4,), constraints=("S >= 2",), lengths=(2, 5, 8, 13)
    )
    for kind in ("auto", "linear_native", "associative_native")
} | {
    "LSTM": _layer(sl.LSTM.Config(4)),
    "SequenceDense": _layer(sl.SequenceDense.Config(4, 20), constraints=("S <= 19",)),
    "SequenceEmbedding": _layer(sl.SequenceEmbedding.Config(4, 5, 20), (1,), dtype=np.int32, constraints=("S <= 19",)),
    "MaskedDense": _layer(sl.MaskedDense.Config(4, 12), constraints=("S <= 11",), lengths=(1, 2, 8)),
}

ATTENTION = {
    "DotProductSelfAttention, causal": _self_attention(max_past_horizon=4),
    "DotProductSelfAttention, all of the past": _self_attention(max_past_horizon=-1),
    "DotProductSelfAttention, look-ahead": _self_attention(max_past_horizon=4, max_future_horizon=2),
    "DotProductSelfAttention, soft cap": _self_attention(
        max_past_horizon=4, attention_logits_soft_cap=5.0, per_dim_scale=True
    ),
    "DotProductSelfAttention, sinks": _self_attention(max_past_horizon=4, num_sink_embeddings=2),
    "DotProductSelfAttention, sink scalars": _self_attention(max_past_horizon=4, use_sink_scalars=True),
    "DotProductSelfAttention, zeros": _self_attention(max_past_horizon=4, zero_fully_masked=True),
    "DotProductSelfAttention, shared keys": _self_attention(
        max_past_horizon=4, num_kv_heads=1, input_projection=sl.SeparateQueryKeyValueProjection()
    ),
    "DotProductSelfAttention, rotary": _self_attention(
        max_past_horizon=4,
        query_network=sl.ApplyRotaryPositionalEncoding.Config(1e4),
        key_network=sl.ApplyRotaryPositionalEncoding.Config(1e4),
    ),
    "DotProductSelfAttention, Shaw": _self_attention(
        max_past_horizon=4,
        relative_position_embedding=_embedding(
            sl.ShawRelativePositionEmbedding, units_per_head=4, max_backward=4, max_forward=0
        ),
    ),
    "DotProductSelfAttention, T5": _self_attention(
        max_past_horizon=4,
        relative_position_embedding=_embedding(
            sl.T5RelativePositionEmbedding, num_buckets=8, bidirectional=False, max_distance=6
        ),
    ),
    "DotProductSelfAttention, Transformer-XL": _self_attention(
        max_past_horizon=4,
        relative_position_embedding=_embedding(
            sl.TransformerXLRelativePositionEmbedding,
            units_per_head=4,
            max_backward=4,
            max_forward=0,
            position_bias_dim=8,
        ),
    ),
    "DotProductSelfAttentionV2": _attention(sl.DotProductSelfAttentionV2, max_past_horizon=4),
    "LocalDotProductSelfAttention": _attention(
        sl.LocalDotProductSelfAttention, block_size=4, max_past_horizon=4, options={"multiple": 8}
    ),
    "LocalDotProductSelfAttention, look-ahead": _attention(
        sl.LocalDotProductSelfAttention,
        block_size=4,
        max_past_horizon=4,
        max_future_horizon=2,
        options={"multiple": 20},
    ),
    "BlockwiseDotProductSelfAttention": _attention(
        sl.BlockwiseDotProductSelfAttention, block_size=4, max_past_horizon_blocks=1
    ),
    "AddTimingSignal": _layer(sl.AddTimingSignal.Config(), (4,)),
    "AddTimingSignal, of all frames": _layer(
        sl.AddTimingSignal.Config(only_advance_position_for_valid_timesteps=False), (4,)
    ),
    "ApplyRotaryPositionalEncoding": _layer(sl.ApplyRotaryPositionalEncoding.Config(1e4), (4,)),
    "ApplyRotaryPositionalEncoding, of all frames": _layer(
        sl.ApplyRotaryPositionalEncoding.Config(1e4, only_advance_position_for_valid_timesteps=False), (4,)
    ),
}

_CONV = sl.Conv1D.Config(3, 3, padding="causal")
COMBINATORS = {
    "Serial": _layer(sl.Serial.Config([_CONV, sl.Relu.Config(), sl.Dense.Config(4)])),
    "Parallel": _layer(sl.Parallel.Config([_CONV, sl.Identity.Config()])),
    "ParallelChannels": _layer(sl.ParallelChannels.Config(sl.Conv1D.Config(2, 3, padding="causal"), 2), (4,)),
    "Residual": _layer(sl.Residual.Config([_CONV, sl.Relu.Config()])),
    "Residual, shortcut": _layer(sl.Residual.Config([_CONV], [sl.Dense.Config(3)])),
    "Repeat": _layer(sl.Repeat.Config(_CONV, 3)),
    "Repeat, remat": _layer(sl.Repeat.Config(_CONV, 3, remat=True)),
    "CheckpointGradient": _layer(sl.CheckpointGradient.Config(_CONV)),
    "Blockwise": _layer(sl.Blockwise.Config(_CONV, 4)),
    "Bidirectional": _layer(sl.Bidirectional.Config(sl.LSTM.Config(4), sl.LSTM.Config(4))),
}

SIMPLE = {
    name: _layer(getattr(sl, name).Config(), (4,))
    for name in (
        *("Abs", "Affine", "Elu", "Exp", "Flatten", "GatedLinearUnit", "GatedTanhUnit", "Gelu", "Identity"),
        *("LeakyRelu", "Log", "MaskInvalid", "Max", "Mean", "Min", "PRelu", "Relu", "Sigmoid", "Softmax"),
        *("Softplus", "Sum", "Swish", "Tanh", "OptimizationBarrier"),
    )
} | {
    "Add": _layer(sl.Add.Config(0.5)),
    "Argmax": _layer(sl.Argmax.Config(), (4,)),
    "Cast": _layer(sl.Cast.Config(jnp.int32)),
    "Dense": _layer(sl.Dense.Config(4)),
    "DenseShaped": _layer(sl.DenseShaped.Config((2, 3))),
    "EinopsRearrange": _layer(sl.EinopsRearrange.Config("(a b) -> b a", {"a": 2}), (4,)),
    "EinsumDense": _layer(sl.EinsumDense.Config("...ab,bc->...ac", (None, 4)), (2, 3)),
    "Embedding": _layer(sl.Embedding.Config(4, 6), (), dtype=np.int32),
    "ExpandDims": _layer(sl.ExpandDims.Config(-1)),
    "GlobalEinopsRearrange": _layer(sl.GlobalEinopsRearrange.Config("(t k) c -> t (k c)", {"k": 2}), (3,), multiple=2),
    "GradientClipping": _layer(sl.GradientClipping.Config(1.0)),
    "Maximum": _layer(sl.Maximum.Config(0.5)),
    "Minimum": _layer(sl.Minimum.Config(0.5)),
    "Mod": _layer(sl.Mod.Config(0.5)),
    "OneHot": _layer(sl.OneHot.Config(6), (), dtype=np.int32),
    "Power": _layer(sl.Power.Config(2.0)),
    "Reshape": _layer(sl.Reshape.Config((2, 2)), (4,)),
    "Scale": _layer(sl.Scale.Config(0.5)),
    "Slice": _layer(sl.Slice.Config(((1, 3, None),)), (4,)),
    "Snake": _layer(sl.Snake.Config(separate_beta=True)),
    "Squeeze": _layer(sl.Squeeze.Config(-1), (3, 1)),
    "Transpose": _layer(sl.Transpose.Config(), (2, 3)),
}

LAYERS = CONVOLUTIONS | POOLING | SIGNALS | NORMALIZATION | RECURRENT | ATTENTION | COMBINATORS | SIMPLE
#: `signal.frame` counts frames with NumPy, and recurrentgemma calls JAX's associative scan.
SUBSTITUTED = {
    **{name: "call jnp.arange" for name in LAYERS if name.startswith(("Frame", "STFT", "LocalDotProduct"))},
    "RGLRU, associative_native": "call jaxrnn.signal.associative_scan",
}
LAYERS |= {name: dataclasses.replace(LAYERS[name], substitute=True) for name in SUBSTITUTED}
#: The layers that do not stream, by a part of the reason.
REFUSED = {
    # Each frame needs the whole recording.
    "Bidirectional": "reverses time",
    "DotProductSelfAttention, all of the past": "each frame depends on all earlier frames",
    **dict.fromkeys(("GroupNormalization", "MaskedDense"), "known only when the stream has ended"),
    # Scores of frames beside other scores.
    **dict.fromkeys(
        ("DotProductSelfAttention, sink scalars", "DotProductSelfAttention, sinks"), "joins pairs of frames"
    ),
}


@pytest.mark.filterwarnings("ignore")  # of the packages
@pytest.mark.nightly
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    check_layer(LAYERS[name], REFUSED.get(name))


@pytest.mark.filterwarnings("ignore")  # of the packages
@pytest.mark.nightly
@pytest.mark.parametrize("name", SUBSTITUTED)
def test_layers_without_substitutes(name):
    check_layer(dataclasses.replace(LAYERS[name], substitute=False), SUBSTITUTED[name])


@pytest.mark.nightly
def test_how_many_stream():
    assert (len(LAYERS) - len(REFUSED), len(LAYERS)) == (158, 164)
