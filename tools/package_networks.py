"""The networks of packages for speech on the page of known networks: imported, streamed and exported.

    python -m tools.package_networks                                    # all rows, printed
    python -m tools.package_networks "Vocos" "Encodec, encoder"         # these rows
    python -m tools.package_networks --write docs/networks.md           # all rows, into the page

The packages are torchaudio, transformers, speechbrain, encodec, vocos, descript-audio-codec and asteroid, beside torch.
The networks are small, with random weights: the question is which layers and loops are imported. Each network runs in a
process of its own; a row of a network whose package is missing stays as it is.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import importlib
import importlib.util
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
"streams" shows the arguments of `stream` and the delay. The exported stream ran in ONNX Runtime, step by step, over
recordings of several lengths, and was compared with the whole file.

| network | package | whole file | streams | exported stream |
|---|---|---|---|---|
"""


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


def _transformer(torch: Any, name: str, **options: Any) -> Any:
    """Return a model of transformers with a small configuration."""
    return _of(f"transformers.{name}Model")(_of(f"transformers.{name}Config")(**options)).eval()


_SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
_WAVES = {**_SMALL, "conv_dim": (8, 8), "conv_stride": (5, 4), "conv_kernel": (10, 4), "num_feat_extract_layers": 2}
_WAVES |= {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
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
    "DPRNN-TasNet": Network(
        "asteroid",
        lambda torch: (
            _of("asteroid.models.DPRNNTasNet")(
                2, n_filters=16, kernel_size=16, bn_chan=8, hid_size=8, chunk_size=10, n_repeats=1
            ),
            torch.randn(2, 1, 160),
        ),
    ),
}
#: Modules by package, where the names differ.
IMPORTED = {"descript-audio-codec": "dac"}


def measure(name: str) -> str:
    """Return the row of a network."""
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
                report = verify_export(streamed, model.params, path, offline=model)
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
    return f"| {name} | {NETWORKS[name].package} | {' | '.join(cells)} |"


def rows_of(text: str) -> dict[str, str]:
    """Return the rows of networks on a page."""
    section = text.partition("## Networks of packages")[2]
    found = {line.split(" | ")[0].removeprefix("| "): line for line in section.splitlines() if line.startswith("| ")}
    return {name: found[name] for name in NETWORKS if name in found}


def main() -> int:
    """Print rows, or write them into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *NETWORKS], help="networks; by default all")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="the page to write")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(measure(*arguments.names))
        return 0
    rows = rows_of(PAGE.read_text(encoding="utf-8"))
    for name in arguments.names or NETWORKS:
        if importlib.util.find_spec(IMPORTED.get(NETWORKS[name].package, NETWORKS[name].package)) is None:
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
