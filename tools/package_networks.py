"""The networks of packages for speech on the page of known networks: imported, streamed and exported.

    python -m tools.package_networks                                    # all rows, printed
    python -m tools.package_networks "Vocos" "Encodec, encoder"         # these rows
    python -m tools.package_networks --write docs/networks.md           # all rows, into the page

The packages are torchaudio, transformers, speechbrain, encodec, vocos, descript-audio-codec, asteroid
and asteroid-filterbanks, beside torch; and for recurrences, attention and forecasts ncps, mingru-pytorch, s5-pytorch,
mambapy, yet-another-retnet, pyxlstm, xlstm, pytorch-tcn, conformer, vector-quantize-pytorch, local-attention, denoiser,
norse, snntorch, x-transformers and gluonts.
The networks are small, with random weights: the question is which layers and loops are imported. Each network runs in a
process of its own; a row of a network whose package is missing stays as it is.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import math
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "docs" / "networks.md"
#: Seconds for a network.
LIMIT = 400
#: Characters of a reason.
LONGEST = 160
HEAD = """
## Networks of packages

These networks were built from the packages, small and with random weights, by `python -m tools.package_networks`.
`from_torch` compares each with PyTorch at several lengths, for the weights of the network and for other weights.
"streams" shows the arguments of `stream` and the delay; with `past`, attention sees so many earlier frames, and the
stream is that of the network with this mask. The exported stream ran in ONNX Runtime, step by step, over
recordings of several lengths, and was compared with the whole file.

| network | package | whole file | streams | exported stream |
|---|---|---|---|---|
"""


#: The head of the table of bounded futures.
BOUNDED_HEAD = """
## Bounded futures of networks of packages

These networks do not stream, because they need the whole recording. [Bounded futures](offline-to-live.md) make them
streamable: `model.stream("time", ...)` with the arguments of the table. The frames of `future` and `past` are those of
each operation, and the delay is in frames of the output. "stream" is the largest difference between the stream and
the bounded function over a recording. "limit" is the largest difference between the offline network and the network
with a future and a past longer than the recording. Both are rounded up to a power of ten. The exported stream and its
flush ran in ONNX Runtime and LiteRT over recordings of several lengths.

| network | package | arguments | delay | bytes | stream | limit | ONNX Runtime | LiteRT |
|---|---|---|---|---|---|---|---|---|
"""


#: Modules by package, where the names differ.
IMPORTED = {
    "descript-audio-codec": "dac",
    "asteroid-filterbanks": "asteroid_filterbanks",
    "mingru-pytorch": "minGRU_pytorch",
    "s5-pytorch": "s5",
    "yet-another-retnet": "yet_another_retnet",
    "pyxlstm": "xLSTM",
    "pytorch-tcn": "pytorch_tcn",
    "vector-quantize-pytorch": "vector_quantize_pytorch",
    "local-attention": "local_attention",
    "x-transformers": "x_transformers",
}


@dataclass(frozen=True)
class Network:
    """A network: `build` returns the module and its example; `time` is the time axis; `stream` are options."""

    package: str
    build: Callable[[Any], tuple[Any, Any]]
    time: Any = 2
    batch: Any = None
    stream: Mapping[str, Any] = field(default_factory=dict)


def _of(path: str) -> Any:
    """Return an object by its dotted path."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _first(torch: Any, module: Any, run: Callable[..., Any]) -> Any:
    """Return a module of which `run(module, x)` is the function."""

    class Part(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = module

        def forward(self, x: Any) -> Any:
            return run(self.part, x)

    return Part()


def _with_lengths(torch: Any, module: Any, x: Any) -> tuple[Any, Any]:
    """Return a module whose second argument is the number of frames, for recordings of equal length."""
    return _first(torch, module, lambda part, x: part(x, torch.ones_like(x[:, 0, 0]).long() * x.shape[1])[0]), x


def _network(
    path: str,
    shape: tuple[int, ...],
    *arguments: Any,
    package: str = "",
    time: Any = 2,
    run: Callable[..., Any] | None = None,
    stream: Mapping[str, Any] | None = None,
    **options: Any,
) -> Network:
    """Return a network of a class that takes random numbers of a shape; `run` chooses among its outputs."""

    def build(torch: Any) -> tuple[Any, Any]:
        module = _of(path)(*arguments, **options)
        return module if run is None else _first(torch, module, run), torch.randn(*shape)

    root = path.partition(".")[0]
    names = {module: name for name, module in IMPORTED.items()}
    return Network(package or names.get(root, root), build, time, stream=stream or {})


def _transformer(torch: Any, name: str, **options: Any) -> Any:
    """Return a model of transformers with a small configuration."""
    return _of(f"transformers.{name}Model")(_of(f"transformers.{name}Config")(**options)).eval()


def _hidden(part: Any, x: Any) -> Any:
    """Return the hidden states of a decoder of transformers for embeddings of tokens."""
    return part(inputs_embeds=x, use_cache=False).last_hidden_state


def _decoder(name: str, *, time: int = 12, stream: Mapping[str, Any] | None = None, **options: Any) -> Network:
    """Return a decoder of transformers as a function of the embeddings of tokens."""
    options = {**_DECODER, **options}

    def build(torch: Any) -> tuple[Any, Any]:
        model = _transformer(torch, name, **{key: value for key, value in options.items() if value is not None})
        return _first(torch, model, _hidden), torch.randn(2, time, options["hidden_size"])

    return Network("transformers", build, time=1, stream=stream or {})


def _with_chunks_of_1(built: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return a network whose gated delta rule goes frame by frame, which computes the same function."""
    module: Any = importlib.import_module("transformers.models.qwen3_next.modeling_qwen3_next")
    module.torch_chunk_gated_delta_rule = functools.partial(module.torch_chunk_gated_delta_rule, chunk_size=1)
    return built


def _wav2vec2_features() -> Any:
    """Return the feature encoder of Wav2Vec2 with layer normalisation."""
    return _transformer(None, "Wav2Vec2", **{**_WAVES, "feat_extract_norm": "layer"}).feature_extractor


def _mimi(kind: str) -> Any:
    """Return the convolutions of Mimi."""
    options = {"num_filters": 4, "hidden_size": 16, "upsampling_ratios": [4, 2]}
    return _of(f"transformers.models.mimi.modeling_mimi.Mimi{kind}")(_of("transformers.MimiConfig")(**options))


def _vits() -> Any:
    """Return the vocoder of VITS."""
    options = {
        "flow_size": 8,
        "upsample_initial_channel": 16,
        "upsample_rates": [4, 2],
        "upsample_kernel_sizes": [8, 4],
    }
    options |= {"resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3]]}
    return _of("transformers.models.vits.modeling_vits.VitsHifiGan")(_of("transformers.VitsConfig")(**options))


def _whisper() -> Any:
    """Return the encoder of Whisper."""
    options = {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32}
    return _transformer(
        None, "Whisper", **options, num_mel_bins=8, max_source_positions=20, decoder_attention_heads=2
    ).encoder


def _filterbank(kind: str, *arguments: Any) -> Any:
    """Return the analysis of a filter bank, followed by its synthesis."""
    torch = importlib.import_module("torch")
    bank = _of(f"asteroid_filterbanks.{kind}")
    pair = [_of(f"asteroid_filterbanks.{part}")(bank(*arguments)) for part in ("Encoder", "Decoder")]
    return torch.nn.Sequential(*pair)


def _wired() -> Any:
    """Return a closed-form network with the wiring of a neural circuit policy."""
    return _of("ncps.torch.CfC")(8, _of("ncps.wirings.AutoNCP")(12, 4))


def _mambapy() -> Any:
    """Return a Mamba whose scan is a loop over frames."""
    return _of("mambapy.mamba.Mamba")(_of("mambapy.mamba.MambaConfig")(8, 1, d_state=4, pscan=False))


def _xlstm(kind: str) -> Any:
    """Return a stack with one block of xLSTM."""
    parts = importlib.import_module("xlstm")
    options: dict[str, Any] = {"context_length": 64, "num_blocks": 1, "embedding_dim": 16}
    if kind == "mLSTM":
        layer = parts.mLSTMLayerConfig(conv1d_kernel_size=4, qkv_proj_blocksize=4, num_heads=2)
        options["mlstm_block"] = parts.mLSTMBlockConfig(mlstm=layer)
    else:
        layer = parts.sLSTMLayerConfig(backend="vanilla", num_heads=2, conv1d_kernel_size=4)
        block = parts.sLSTMBlockConfig(slstm=layer, feedforward=parts.FeedForwardConfig(proj_factor=1.3))
        options |= {"slstm_block": block, "slstm_at": [0]}
    return parts.xLSTMBlockStack(parts.xLSTMBlockStackConfig(**options))


def _masked_decoder() -> Any:
    """Return a causal decoder of x-transformers with rotary positions."""
    layers = _of("x_transformers.Decoder")(dim=16, depth=1, heads=2, attn_dim_head=8, rotary_pos_emb=True)
    return _of("x_transformers.ContinuousTransformerWrapper")(
        dim_in=8, dim_out=8, max_seq_len=64, attn_layers=layers, use_abs_pos_emb=False
    )


def _deepar() -> Any:
    """Return the network of DeepAR for daily series."""
    options = {"context_length": 8, "prediction_length": 4, "num_layers": 1, "hidden_size": 8, "lags_seq": [1, 2, 3]}
    return _of("gluonts.torch.model.deepar.module.DeepARModel")(freq="D", scaling=False, **options)


def _spiking(part: Any, x: Any) -> Any:
    """Return the membranes of a neuron of snnTorch, frame by frame."""
    membrane, found = part.init_leaky(), []
    for frame in x:
        _, membrane = part(frame, membrane)
        found.append(membrane)
    return importlib.import_module("torch").stack(found)


def _first_output(part: Any, x: Any) -> Any:
    return part(x)[0]


_SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
_WAVES = {**_SMALL, "conv_dim": (8, 8), "conv_stride": (5, 4), "conv_kernel": (10, 4), "num_feat_extract_layers": 2}
_WAVES |= {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
_DECODER = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
_DECODER |= {"num_key_value_heads": 1, "head_dim": 4, "vocab_size": 11, "pad_token_id": 0}
_PAST = {"past": 64}
_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 4, "mamba_d_state": 4, "mamba_chunk_size": 4}
_DELTA: dict[str, Any] = {
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 4,
    "num_experts": 2,
}
_DELTA |= {"linear_value_head_dim": 4, "layer_types": ["linear_attention"], "mlp_only_layers": [0]}
_TASNET = {"n_filters": 16, "kernel_size": 16, "bn_chan": 8, "hid_chan": 16, "skip_chan": 8}
_TASNET |= {"n_blocks": 2, "n_repeats": 1}

NETWORKS = {
    "MelSpectrogram": Network(
        "torchaudio",
        lambda torch: (
            _of("torchaudio.transforms.MelSpectrogram")(16000, 64, hop_length=16, n_mels=8, pad_mode="constant"),
            torch.randn(2, 320),
        ),
        time=1,
    ),
    "MFCC": Network(
        "torchaudio",
        lambda torch: (
            _of("torchaudio.transforms.MFCC")(
                16000, 4, log_mels=True, melkwargs={"n_fft": 64, "hop_length": 16, "n_mels": 8, "center": False}
            ),
            torch.randn(2, 320),
        ),
        time=1,
    ),
    "ConvTasNet (torchaudio)": Network(
        "torchaudio",
        lambda torch: (_of("torchaudio.models.ConvTasNet")(2, 16, 16, 3, 8, 16, 2, 1), torch.randn(2, 1, 160)),
    ),
    "Conformer": Network(
        "torchaudio",
        lambda torch: _with_lengths(torch, _of("torchaudio.models.Conformer")(16, 2, 32, 1, 7), torch.randn(2, 20, 16)),
        time=1,
    ),
    "Emformer": Network(
        "torchaudio",
        lambda torch: _with_lengths(
            torch, _of("torchaudio.models.Emformer")(16, 2, 32, 1, 4, left_context_length=8), torch.randn(2, 20, 16)
        ),
        time=1,
    ),
    "Wav2Letter": _network("torchaudio.models.Wav2Letter", (2, 8, 60), 5, "power_spectrum", 8),
    "WaveRNN, conditions": _network("torchaudio.models.wavernn.MelResNet", (2, 8, 20), 2, 8, 16, 8, 5),
    "WaveRNN, upsampling": _network("torchaudio.models.wavernn.UpsampleNetwork", (2, 8, 20), [2, 3], 1, 8, 16, 8, 5),
    "Tacotron 2, postnet": _network("torchaudio.models.tacotron2._Postnet", (2, 8, 20), 8, 16, 5, 3),
    "Resampling": _network("torchaudio.transforms.Resample", (2, 120), 3, 2, time=1),
    "Spectrogram": _network(
        "torchaudio.transforms.Spectrogram", (2, 320), 64, hop_length=16, pad_mode="constant", time=1
    ),
    "Deltas": _network("torchaudio.transforms.ComputeDeltas", (2, 8, 20)),
    "De-emphasis": _network("torchaudio.transforms.Deemphasis", (2, 60), time=1),
    "HDemucs": _network("torchaudio.models.HDemucs", (1, 2, 1024), ["a", "b"], channels=4, nfft=64, depth=2),
    "RNN-T, predictor": Network(
        "torchaudio",
        lambda torch: (
            _first(
                torch,
                _of("torchaudio.models.rnnt._Predictor")(11, 8, 8, 1, 8),
                lambda part, x: part(x, torch.ones_like(x[:, 0]) * x.shape[1])[0],
            ),
            torch.randint(11, (2, 12)),
        ),
        time=1,
    ),
    "DeepSpeech": Network(
        "torchaudio", lambda torch: (_of("torchaudio.models.DeepSpeech")(8, 16, 5), torch.randn(2, 1, 20, 8))
    ),
    "Wav2Vec2 (transformers)": Network(
        "transformers",
        lambda torch: (
            _first(torch, _transformer(torch, "Wav2Vec2", **_WAVES), lambda part, x: part(x).last_hidden_state),
            torch.randn(2, 400),
        ),
        time=1,
    ),
    "Wav2Vec2, features": _network(
        "tools.package_networks._wav2vec2_features", (2, 400), package="transformers", time=1
    ),
    "Mimi, encoder": _network("tools.package_networks._mimi", (2, 1, 128), "Encoder", package="transformers"),
    "Mimi, decoder": _network("tools.package_networks._mimi", (2, 16, 20), "Decoder", package="transformers"),
    "HiFi-GAN (VITS)": _network("tools.package_networks._vits", (2, 8, 20), package="transformers"),
    "Whisper, encoder": _network(
        "tools.package_networks._whisper",
        (2, 8, 40),
        package="transformers",
        run=lambda part, x: part(x).last_hidden_state,
    ),
    "Mamba": Network(
        "transformers",
        lambda torch: (
            _first(
                torch,
                _transformer(torch, "Mamba", hidden_size=8, state_size=4, num_hidden_layers=1, vocab_size=11),
                lambda part, x: part(inputs_embeds=x, use_cache=False).last_hidden_state,
            ),
            torch.randn(2, 12, 8),
        ),
        time=1,
    ),
    "Llama": _decoder("Llama", stream=_PAST),
    "Mistral": _decoder("Mistral", sliding_window=4),
    "Gemma 3": _decoder(
        "Gemma3Text",
        sliding_window=4,
        num_hidden_layers=2,
        layer_types=["sliding_attention", "full_attention"],
        stream=_PAST,
    ),
    "Qwen 3": _decoder("Qwen3", stream=_PAST),
    "GPT-2": _decoder("GPT2", head_dim=None, num_key_value_heads=None, attn_pdrop=0.0, stream=_PAST),
    "Mimi, transformer": Network(
        "transformers",
        lambda torch: (
            _first(
                torch,
                _of("transformers.models.mimi.modeling_mimi.MimiTransformerModel")(
                    _of("transformers.MimiConfig")(**_DECODER, sliding_window=4, attn_implementation="sdpa")
                ),
                lambda part, x: part(x, use_cache=False)[0],
            ),
            torch.randn(2, 12, 8),
        ),
        time=1,
    ),
    "Moshi": _decoder("Moshi", ffn_dim=16, num_key_value_heads=2, intermediate_size=None, stream=_PAST),
    "Mamba-2": _decoder("Mamba2", num_heads=4, state_size=4, n_groups=1, chunk_size=4, stream={"multiple": 4}),
    "Falcon Mamba": _decoder("FalconMamba", state_size=4),
    "RWKV-4": _decoder("Rwkv", attention_hidden_size=8, num_hidden_layers=2, stream={"constraints": ["S >= 2"]}),
    "RecurrentGemma": _decoder("RecurrentGemma", num_hidden_layers=3, lru_width=8, attention_window_size=4),
    "xLSTM": _decoder("xLSTM", hidden_size=16, num_heads=2, num_blocks=1, chunk_size=4),
    "LFM2": _decoder("Lfm2", head_dim=None, num_hidden_layers=2, layer_types=["conv", "full_attention"], stream=_PAST),
    "Granite 4": _decoder(
        "GraniteMoeHybrid",
        head_dim=None,
        num_hidden_layers=2,
        layer_types=["mamba", "attention"],
        num_local_experts=0,
        shared_intermediate_size=16,
        stream={"multiple": 4, **_PAST},
        **_MAMBA,
    ),
    "Qwen3-Next": _decoder("Qwen3Next", **_DELTA),
    "Qwen3-Next, chunks of 1": Network(
        "transformers", lambda torch: _with_chunks_of_1(_decoder("Qwen3Next", **_DELTA).build(torch)), time=1
    ),
    "MiniMax": _decoder(
        "MiniMax",
        layer_types=["linear_attention"],
        num_local_experts=2,
        num_experts_per_tok=1,
        block_size=1,
        experts_implementation="batched_mm",
    ),
    "PatchTST": Network(
        "transformers",
        lambda torch: (
            _first(
                torch,
                _transformer(
                    torch,
                    "PatchTST",
                    num_input_channels=2,
                    context_length=16,
                    patch_length=4,
                    patch_stride=4,
                    d_model=8,
                    num_attention_heads=2,
                    num_hidden_layers=1,
                    ffn_dim=8,
                ),
                lambda part, x: part(past_values=x).last_hidden_state,
            ),
            torch.randn(2, 16, 2),
        ),
        time=1,
    ),
    "HiFi-GAN (SpeechT5)": Network(
        "transformers",
        lambda torch: (
            _of("transformers.SpeechT5HifiGan")(
                _of("transformers.SpeechT5HifiGanConfig")(
                    model_in_dim=8,
                    upsample_initial_channel=16,
                    upsample_rates=[4, 2],
                    upsample_kernel_sizes=[8, 4],
                    resblock_kernel_sizes=[3],
                    resblock_dilation_sizes=[[1, 3]],
                )
            ).eval(),
            torch.randn(2, 20, 8),
        ),
        time=1,
    ),
    "CRDNN": Network(
        "speechbrain",
        lambda torch: (
            _of("speechbrain.lobes.models.CRDNN.CRDNN")(
                input_size=8, cnn_channels=(4, 4), rnn_neurons=8, rnn_layers=1, rnn_bidirectional=False, dnn_neurons=8
            ),
            torch.randn(2, 20, 8),
        ),
        time=1,
        stream={"constraints": ["S >= 2"]},
    ),
    "LiGRU": Network(
        "speechbrain",
        lambda torch: (
            _first(
                torch,
                _of("speechbrain.nnet.RNN.LiGRU")(8, input_shape=(2, 20, 8), re_init=False),
                lambda part, x: part(x)[0],
            ),
            torch.randn(2, 20, 8),
        ),
        time=1,
    ),
    "ConvTasNet, masks": _network(
        "speechbrain.lobes.models.conv_tasnet.MaskNet",
        (2, 16, 20),
        16,
        8,
        16,
        3,
        2,
        1,
        2,
        norm_type="cLN",
        causal=True,
    ),
    "HiFi-GAN (speechbrain)": _network(
        "speechbrain.lobes.models.HifiGAN.HifiganGenerator",
        (2, 8, 20),
        8,
        1,
        "1",
        [[1, 3, 5]],
        [3],
        [8, 4],
        16,
        [4, 2],
        stream={"constraints": ["S >= 4"]},
    ),
    "TDNN": _network(
        "speechbrain.lobes.models.ECAPA_TDNN.TDNNBlock", (2, 8, 20), 8, 8, 3, 2, stream={"constraints": ["S >= 3"]}
    ),
    "Language model": Network(
        "speechbrain",
        lambda torch: (
            _of("speechbrain.lobes.models.RNNLM.RNNLM")(11, 8, rnn_layers=1, rnn_neurons=8, dnn_neurons=8),
            torch.randint(11, (2, 12)),
        ),
        time=1,
    ),
    "Dual path (speechbrain)": Network(
        "speechbrain",
        lambda torch: (
            _of("speechbrain.lobes.models.dual_path.Dual_Path_Model")(
                8,
                8,
                _of("speechbrain.lobes.models.dual_path.SBRNNBlock")(8, 8, 1, "LSTM", bidirectional=True),
                _of("speechbrain.lobes.models.dual_path.SBRNNBlock")(8, 8, 1, "LSTM", bidirectional=True),
                num_layers=1,
                K=10,
            ),
            torch.randn(2, 8, 40),
        ),
    ),
    "Encodec, encoder": Network(
        "encodec",
        lambda torch: (
            _of("encodec.modules.SEANetEncoder")(
                dimension=8, n_filters=4, ratios=[4, 2], lstm=1, causal=True, pad_mode="constant", norm="none"
            ),
            torch.randn(2, 1, 64),
        ),
    ),
    "Encodec, decoder": Network(
        "encodec",
        lambda torch: (
            _of("encodec.modules.SEANetDecoder")(
                dimension=8, n_filters=4, ratios=[4, 2], lstm=1, causal=True, pad_mode="constant", norm="none"
            ),
            torch.randn(2, 8, 20),
        ),
    ),
    "Vocos": Network(
        "vocos",
        lambda torch: (
            torch.nn.Sequential(
                _of("vocos.models.VocosBackbone")(8, 16, 32, 2),
                _of("vocos.heads.ISTFTHead")(16, 32, 8, padding="center"),
            ),
            torch.randn(2, 8, 20),
        ),
    ),
    "Vocos, features": Network(
        "vocos",
        lambda torch: (
            _of("vocos.feature_extractors.MelSpectrogramFeatures")(16000, 64, 16, 8, padding="center"),
            torch.randn(2, 320),
        ),
        time=1,
        stream={"constraints": ["S >= 33"]},
    ),
    "Vocos, ResNet": _network("vocos.models.VocosResNetBackbone", (2, 8, 20), 8, 16, 2),
    "DAC, quantizer": _network("dac.nn.quantize.VectorQuantize", (2, 8, 20), 8, 16, 4, run=lambda part, x: part(x)[0]),
    "DAC, encoder": Network(
        "descript-audio-codec",
        lambda torch: (_of("dac.model.dac.Encoder")(4, [2, 4], 8), torch.randn(2, 1, 128)),
    ),
    "DAC, decoder": Network(
        "descript-audio-codec",
        lambda torch: (_of("dac.model.dac.Decoder")(8, 16, [4, 2]), torch.randn(2, 8, 20)),
    ),
    "ConvTasNet (asteroid), causal": Network(
        "asteroid",
        lambda torch: (
            _of("asteroid.models.ConvTasNet")(2, **_TASNET, norm_type="cLN", causal=True, mask_act="sigmoid"),
            torch.randn(2, 1, 160),
        ),
    ),
    "LSTM-TasNet": _network(
        "asteroid.models.LSTMTasNet", (2, 1, 160), 2, n_layers=1, hid_size=8, bidirectional=False, n_filters=16
    ),
    "TDConvNet, causal": _network(
        "asteroid.masknn.TDConvNet",
        (2, 8, 20),
        8,
        2,
        n_blocks=2,
        n_repeats=1,
        bn_chan=8,
        hid_chan=8,
        skip_chan=8,
        norm_type="cLN",
        causal=True,
    ),
    "Residual GRUs": _network("asteroid.masknn.recurrent.StackedResidualRNN", (2, 20, 8), "GRU", 8, 2, time=1),
    "SuDoRM-RF": _network("asteroid.models.SuDORMRFNet", (2, 1, 160), 2, 8, 1, 2, kernel_size=21, n_filters=16),
    "STFT filters": _network(
        "tools.package_networks._filterbank", (2, 1, 160), "STFTFB", 16, 16, 8, package="asteroid-filterbanks"
    ),
    "Sinc filters": _network(
        "tools.package_networks._filterbank", (2, 1, 160), "ParamSincFB", 16, 17, 8, package="asteroid-filterbanks"
    ),
    "DPRNN-TasNet": Network(
        "asteroid",
        lambda torch: (
            _of("asteroid.models.DPRNNTasNet")(
                2, n_filters=16, kernel_size=16, bn_chan=8, hid_size=8, chunk_size=10, n_repeats=1
            ),
            torch.randn(2, 1, 160),
        ),
    ),
    "CfC": _network("ncps.torch.CfC", (2, 12, 8), 8, 12, time=1, run=_first_output),
    "CfC, wired": _network("tools.package_networks._wired", (2, 12, 8), package="ncps", time=1, run=_first_output),
    "LTC": _network("ncps.torch.LTC", (2, 12, 8), 8, 12, time=1, run=_first_output),
    "minGRU": _network("minGRU_pytorch.minGRU.minGRU", (2, 12, 8), 8, time=1),
    "minLSTM": _network("minGRU_pytorch.minLSTM.minLSTM", (2, 12, 8), 8, time=1),
    "S5": _network("s5.S5", (2, 12, 8), 8, 8, time=1),
    "Mamba (mambapy)": _network("tools.package_networks._mambapy", (2, 12, 8), package="mambapy", time=1),
    "Retention": _network(
        "yet_another_retnet.retention.MultiScaleRetention",
        (2, 12, 16),
        16,
        2,
        time=1,
        run=lambda part, x: part.forward_parallel(x, x, x)[0],
    ),
    "sLSTM": _network("xLSTM.slstm.sLSTM", (2, 12, 8), 8, 8, 1, time=1, run=_first_output),
    "xLSTM, mLSTM block": _network("tools.package_networks._xlstm", (2, 12, 16), "mLSTM", package="xlstm", time=1),
    "xLSTM, sLSTM block": _network("tools.package_networks._xlstm", (2, 12, 16), "sLSTM", package="xlstm", time=1),
    "TCN": _network("pytorch_tcn.TCN", (2, 8, 20), 8, [8, 8], kernel_size=3),
    "Conformer, convolution": _network(
        "conformer.ConformerConvModule", (2, 12, 8), 8, time=1, causal=True, kernel_size=5
    ),
    "Residual quantizer": _network(
        "vector_quantize_pytorch.ResidualVQ",
        (2, 12, 8),
        time=1,
        run=_first_output,
        dim=8,
        codebook_size=16,
        num_quantizers=2,
    ),
    "Local attention": _network(
        "local_attention.LocalAttention",
        (2, 12, 8),
        time=1,
        run=lambda part, x: part(x, x, x),
        dim=8,
        window_size=4,
        causal=True,
        autopad=True,
    ),
    "Decoder (x-transformers)": _network(
        "tools.package_networks._masked_decoder", (2, 12, 8), package="x-transformers", time=1, stream={"past": 16}
    ),
    "Demucs, causal": _network("denoiser.demucs.Demucs", (2, 1, 64), hidden=4, depth=2, resample=1, normalize=False),
    "LIF (norse)": _network("norse.torch.LIF", (12, 2, 8), time=0, run=_first_output),
    "Leaky (snnTorch)": _network("snntorch.Leaky", (12, 2, 8), time=0, run=_spiking, beta=0.9),
    "DeepAR, recurrence": _network(
        "tools.package_networks._deepar",
        (2, 12, 7),
        package="gluonts",
        time=1,
        run=lambda part, x: part.param_proj(part.rnn(x)[0]),
    ),
}


_AHEAD = {"future": 8, "past": 32}
#: Networks that need the whole recording, with the arguments of a stream with bounded futures, by name of the row.
BOUNDED = {
    f"{name}, bounded": (name, _AHEAD | options)
    for name, options in {
        "ConvTasNet (torchaudio)": {"multiple": 8},
        "Conformer": {},
        "DeepSpeech": {},
        "Wav2Vec2 (transformers)": {"constraints": ["S >= 40"]},
        "Dual path (speechbrain)": {"future": 4, "multiple": 10},
        "SuDoRM-RF": {"multiple": 20},
        "DPRNN-TasNet": {"future": 4, "multiple": 40},
    }.items()
}
#: Frames that no operation of a bounded network has.
_FAR = 80


def network_of(name: str) -> Network:
    """Return the network of a row."""
    return NETWORKS[BOUNDED[name][0] if name in BOUNDED else name]


def measure(name: str) -> str:
    """Return the row of a network."""
    return _measure_bounded(name) if name in BOUNDED else _measure(name)


def _measure_bounded(name: str) -> str:
    """Return the row of a network with bounded futures."""
    import numpy as np
    import torch

    import jaxrnn
    from jaxrnn.export import export_litert, verify_export

    network, options = network_of(name), BOUNDED[name][1]
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    module, example = network.build(torch)
    model = jaxrnn.from_torch(module.eval(), example, time=network.time, batch=network.batch)
    streamed = model.stream("time", **options)
    far = model.stream("time", **{**options, "future": _FAR, "past": _FAR, "block": 8})
    x = {model.inputs[0].name: example[:1].numpy()}
    live, whole = streamed.offline(model.params, x), model.apply(model.params, x)
    found = [_largest(streamed.run(model.params, x), live), _largest(far.offline(model.params, x), whole)]
    size = sum(np.asarray(array).nbytes for array in streamed.init(params=model.params).values())
    engines = []
    with tempfile.TemporaryDirectory() as folder:
        for name_of_file in ("stream.onnx", "stream.tflite"):
            path = Path(folder) / name_of_file
            try:
                if path.suffix == ".onnx":
                    jaxrnn.export_onnx(streamed, model.params, path, flush=path.with_name("flush.onnx"))
                else:
                    export_litert(streamed, model.params, path)
                report = verify_export(
                    streamed, model.params, path, offline=lambda x: streamed.offline(model.params, x)
                )
                engines.append("agrees" if report.ok else "differs")
            except jaxrnn.JaxrnnError as error:
                engines.append(_shortened(str(error)))
    given = ", ".join(f"`{key}={value}`" for key, value in options.items())
    return row(name, [given, ", ".join(map(str, streamed.delay.values())), f"{size:,}", *found, *engines])


def _largest(found: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """Return the largest difference between outputs, rounded up to a power of ten."""
    import numpy as np

    largest = max(float(np.abs(np.asarray(found[name]) - np.asarray(known[name])).max()) for name in known)
    return f"{10 ** math.ceil(math.log10(largest)):.0e}" if largest else "0"


def _measure(name: str) -> str:
    """Return the row of a network that streams as it is, or is refused."""
    import torch

    import jaxrnn
    from jaxrnn.export import verify_export

    network = NETWORKS[name]
    torch.manual_seed(0)
    cells = ["", "", ""]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module, example = network.build(torch)
        caught.clear()
        try:
            model = jaxrnn.from_torch(module.eval(), example, time=network.time, batch=network.batch)
            short = [re.search(r"from (\d+) frames on", str(each.message)) for each in caught]
            cells[0] = "agrees" + "".join(f", from {each[1]} frames on" for each in short if each)
            streamed = model.stream("time", **network.stream)
            given = "".join(f", `{key}={value}`" for key, value in network.stream.items())
            cells[1] = f"delay {', '.join(map(str, streamed.delay.values()))}{given}"
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "stream.onnx"
                jaxrnn.export_onnx(streamed, model.params, path)
                # Attention with a bounded past is another function than the file.
                whole = (lambda x: streamed.offline(model.params, x)) if "past" in network.stream else model
                report = verify_export(streamed, model.params, path, offline=whole)
                cells[2] = "agrees" if report.ok else "differs"
        except jaxrnn.JaxrnnError as error:
            cells[cells.index("")] = _shortened(str(error))
    return row(name, cells)


def _shortened(message: str) -> str:
    """Return the reason of a refusal in a cell of the table."""
    lines = [line for line in message.splitlines() if not line.startswith("no exporter of PyTorch")]
    text = re.sub(r"\bnode '[^']*'", "a node", lines[0]).replace("|", "/")
    return "refused: " + (text if len(text) <= LONGEST else f"{text[:LONGEST].rsplit(' ', 1)[0]} ...")


def row(name: str, cells: list[str]) -> str:
    """Return the row of a network with its three results."""
    return f"| {name} | {network_of(name).package} | {' | '.join(cells)} |"


def rows_of(text: str) -> dict[str, str]:
    """Return the rows of networks on a page."""
    section = text.partition("## Networks of packages")[2]
    found = {line.split(" | ")[0].removeprefix("| "): line for line in section.splitlines() if line.startswith("| ")}
    return {name: found[name] for name in (*NETWORKS, *BOUNDED) if name in found}


def main() -> int:
    """Print rows, or write them into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *NETWORKS, *BOUNDED], help="networks; by default all")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="the page to write")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(measure(*arguments.names))
        return 0
    rows = rows_of(PAGE.read_text(encoding="utf-8"))
    for name in arguments.names or (*NETWORKS, *BOUNDED):
        if importlib.util.find_spec(IMPORTED.get(network_of(name).package, network_of(name).package)) is None:
            continue
        command = [sys.executable, "-m", "tools.package_networks", "--one", name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT)
            last = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()[-1]
            rows[name] = last if done.returncode == 0 else row(name, [f"not built: {last[:LONGEST]}", "", ""])
        except subprocess.TimeoutExpired:
            rows[name] = row(name, [f"not within {LIMIT} seconds", "", ""])
        print(rows[name], flush=True)
    if arguments.write is not None:
        from tools.networks_page import page, read_page

        ran, waves, _ = read_page(arguments.write.read_text(encoding="utf-8"))
        arguments.write.write_text(page(ran, waves, rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
