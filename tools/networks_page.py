"""The page of published networks, made from a table: ``python -m tools.networks_page --write docs/networks.md``.

Facts about published files are in the table, with their sources. Figures come from files in the folder
``JAXRNN_MODELS``, which are loaded and run; without the folder, the figures of the page are kept.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnxruntime

import jaxrnn
from jaxrnn._files.writing import in_place_of
from jaxrnn.audio import Frames, Network, Waveform, latency
from jaxrnn.steps.stepper import Stepper
from jaxrnn.verification.sampling import random_inputs
from tools import package_networks

PAGE = Path(__file__).resolve().parent.parent / "docs" / "networks.md"
GITHUB = "https://github.com"
#: Steps, or frames of a recording, that are compared with ONNX Runtime.
STEPS, FRAMES, TOLERANCE = 20, 48, 1e-4


@dataclass(frozen=True)
class Known:
    """A published network: facts from its repository."""

    name: str
    #: Usual names of the files.
    files: str
    #: The licence, and the address of the licence.
    licence: str
    source: str
    #: How to load the file, the state that the caller carries, and the time axis.
    load: str
    state: str
    time: str
    #: The files of `RUN` for this network; empty if the network was not run.
    run: tuple[str, ...] = ()
    #: Pairs of state inputs and outputs that the page lists as paired by name.
    pairs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Ran:
    """A file in the folder of models that the script runs."""

    #: The published file, or a network of the same kind with random weights.
    what: str
    static: Mapping[str, Any] = field(default_factory=dict)
    #: Sizes of open dimensions of a step.
    dims: Mapping[str, int] = field(default_factory=dict)
    #: For a network of whole recordings: the dimension that is time.
    symbol: str | None = None


SR = {"sr": np.asarray(16_000)}
#: The files that are run, by path in the folder of models.
RUN = {
    "dtln_1.onnx": Ran("published file"),
    "dtln_2.onnx": Ran("published file"),
    "silero_vad.onnx": Ran("published file", SR, {"input_dim_0": 1, "input_dim_1": 576}),
    "silero_vad_16k_op15.onnx": Ran("published file", SR, {"batch": 1, "sequence": 576}),
    "gtcrn.onnx": Ran("published file"),
    "predictor_net.onnx": Ran("same kind, random weights", dims={"batch": 1}),
    "filter_net.onnx": Ran("same kind, random weights", symbol="S"),
    "dual_path_net.onnx": Ran("same kind, random weights", symbol="S"),
    "speech/rnnoise_script.onnx": Ran("same kind, random weights", symbol="T"),
    "exports/step_attend_script.onnx": Ran("same kind, random weights", dims={"S": 12}),
    "exports/step_wkv_script.onnx": Ran("same kind, random weights"),
}


KNOWN = (
    Known(
        "DTLN, noise suppression",
        "`model_1.onnx`, `model_2.onnx`; here `dtln_1.onnx`, `dtln_2.onnx`",
        "MIT",
        f"{GITHUB}/breizhn/DTLN/blob/master/LICENSE",
        "`load(file)`; both files as one function of sound: [`Waveform`](sound.md#kinds-of-networks)",
        "external; one tensor has h and c of both layers",
        "a frame of 512 samples a step, hop 128",
        ("dtln_1.onnx", "dtln_2.onnx"),
    ),
    Known(
        "Silero VAD, voice detection",
        "`silero_vad.onnx`, `silero_vad_16k_op15.onnx`",
        "MIT",
        f"{GITHUB}/snakers4/silero-vad/blob/master/LICENSE",
        '`load(file, static={"sr": np.asarray(16000)})`: the rate chooses a branch',
        "external; h and c",
        "a window of 576 samples a step: 64 of the window before, and 512 new",
        ("silero_vad.onnx", "silero_vad_16k_op15.onnx"),
    ),
    Known(
        "GTCRN, speech enhancement",
        "`gtcrn.onnx`, `gtcrn_simple.onnx`",
        "MIT",
        f"{GITHUB}/Xiaobin-Rong/gtcrn/blob/main/LICENSE",
        '`load(file)`; as a function of sound: `Waveform(Network(model, gives="spectrum"), Frames(512, 256, '
        '"sqrt_hann"))`',
        "external; a cache of convolutions, and GRUs over time",
        "one spectrum a step",
        ("gtcrn.onnx",),
    ),
    Known(
        "RNN-T predictor with joint network",
        "by toolkit; [icefall](https://github.com/k2-fsa/icefall) writes `decoder-*.onnx` and `joiner-*.onnx`",
        "that of the toolkit and the weights",
        "",
        "`load(file)`",
        "external; h and c of LSTM layers. icefall's decoder takes the last tokens, and has no state",
        "one token a step",
        ("predictor_net.onnx",),
    ),
    Known(
        "DeepFilterNet, speech enhancement",
        "`enc.onnx`, `erb_dec.onnx`, `df_dec.onnx`",
        "MIT or Apache-2.0",
        f"{GITHUB}/Rikorose/DeepFilterNet/blob/main/LICENSE",
        '`load(file)`, then `model.stream("time")`',
        f"internal: the files take whole recordings ([export]({GITHUB}/Rikorose/DeepFilterNet/blob/main/DeepFilterNet/"
        "df/scripts/export.py))",
        "`time`: axis 2 of `feat_erb`, `feat_spec`; axis 1 of `emb`",
        ("filter_net.onnx",),
    ),
    Known(
        "DPDFNet, speech enhancement",
        "`dpdfnet2.onnx`, `dpdfnet4.onnx`, `dpdfnet8.onnx`, `baseline.onnx`",
        "Apache-2.0",
        "https://huggingface.co/Ceva-IP/DPDFNet",
        "`load(file)`; if state is asked: `state={input: output}`",
        "external; one tensor "
        "([`spec[1, 1, F, 2]`, `state[S]`](https://huggingface.co/TigreGotico/audiosronnx-dpdfnet))",
        "one spectrum a step",
        ("dual_path_net.onnx",),
    ),
    Known(
        "TEN VAD, voice detection",
        "`ten-vad.onnx`",
        "Apache-2.0 with additional conditions",
        f"{GITHUB}/TEN-framework/ten-vad/issues/9",
        "`load(file)`; if state is asked: `state={input: output}`",
        f"external; four tensors `[1, 64]` ([a description]({GITHUB}/tinof/ffsubsync/blob/master/ffsubsync/onnx_models/"
        "README.md))",
        "three frames of 41 features a step",
    ),
    Known(
        "RNNoise, noise suppression",
        "C code; ONNX files are made by others",
        "BSD-3-Clause",
        f"{GITHUB}/xiph/rnnoise/blob/main/COPYING",
        "`load(file)`, then `model.stream(time)` with the dimension that `inspect` shows",
        "internal in files of whole recordings; [three "
        "GRUs](https://huggingface.co/webmachinelearning/test-data/tree/main/models/rnnoise/weights)",
        "frames of features",
        ("speech/rnnoise_script.onnx",),
    ),
    Known(
        "Streaming zipformer, speech recognition",
        "`encoder-epoch-99-avg-1.onnx`, with `decoder` and `joiner`",
        "Apache-2.0",
        f"{GITHUB}/k2-fsa/icefall/blob/master/LICENSE",
        "`load(file)`; the names pair by convention",
        "external; `cached_key_0` to `new_cached_key_0`, and so on for each layer, `embed_states`, `processed_lens` "
        f"([export]({GITHUB}/k2-fsa/icefall/blob/master/egs/librispeech/ASR/zipformer/export-onnx-streaming.py))",
        "a chunk of frames a step, axis 1 of `x`",
        pairs=(
            ("cached_key_0", "new_cached_key_0"),
            ("cached_nonlin_attn_0", "new_cached_nonlin_attn_0"),
            ("cached_val1_0", "new_cached_val1_0"),
            ("cached_conv2_0", "new_cached_conv2_0"),
            ("embed_states", "new_embed_states"),
            ("processed_lens", "new_processed_lens"),
        ),
    ),
    Known(
        "Streaming conformer, speech recognition (WeNet)",
        "`encoder.onnx`, with `ctc` and `decoder`",
        "Apache-2.0",
        f"{GITHUB}/wenet-e2e/wenet#readme",
        "`load(file)`; the names pair by convention",
        f"external; `att_cache`, `cnn_cache` ([export]({GITHUB}/wenet-e2e/wenet/blob/main/wenet/bin/"
        "export_onnx_cpu.py))",
        "a chunk of frames a step, axis 1 of `chunk`; `offset` counts frames",
        pairs=(("att_cache", "r_att_cache"), ("cnn_cache", "r_cnn_cache")),
    ),
    Known(
        "Tacotron 2, speech synthesis (NVIDIA)",
        "`decoder_iter.onnx`, with `encoder` and `postnet`",
        "BSD-3-Clause",
        f"{GITHUB}/NVIDIA/DeepLearningExamples/blob/master/PyTorch/SpeechSynthesis/Tacotron2/LICENSE",
        "`load(file)`; the names pair by convention",
        "external; `attention_hidden` to `out_attention_hidden`, cells, attention weights, their sum, and context",
        "one frame of the spectrogram a step; `seq_len` is text",
        ("exports/step_attend_script.onnx",),
        pairs=(
            ("attention_hidden", "out_attention_hidden"),
            ("decoder_cell", "out_decoder_cell"),
            ("attention_weights", "out_attention_weights"),
            ("attention_weights_cum", "out_attention_weights_cum"),
            ("attention_context", "out_attention_context"),
        ),
    ),
    Known(
        "RWKV, language",
        "made by others, such as `convert_rwkv_to_onnx.py`",
        "Apache-2.0 (weights)",
        "https://huggingface.co/BlinkDL/rwkv-5-world",
        "`load(file)`; the names pair by convention",
        "external; `state0_in` to `state0_out`, three for each layer "
        f"([export]({GITHUB}/dengzii/rwkv-mobile/blob/master/converter/convert_rwkv_to_onnx.py))",
        "one token a step",
        ("exports/step_wkv_script.onnx",),
        pairs=(("state0_in", "state0_out"), ("state1_in", "state1_out")),
    ),
)


HEAD = """# Known networks

On this page you find how to load well-known public recurrent networks, and which networks were run here.
Usual file names, licences and the names of state come from the linked sources. Read the licence of your file yourself:
weights can have a separate licence.

`jaxrnn inspect FILE` shows these facts for any file: open dimensions, state, and the evidence for the state.

| network | usual files | licence | load | state | time | run here |
|---|---|---|---|---|---|---|
"""

RUN_HEAD = f"""
## Runs of the files

Each file was loaded with the arguments above. A step model ran {STEPS} steps on random inputs, with its state. A model
of whole recordings was streamed over {FRAMES} frames. "equal" means that outputs and states differ from ONNX Runtime by
at most {TOLERANCE:g}, relative to the largest value if that is above 1. The bytes are the state of a stream. "same
kind" is a small network of similar layers with random weights, made for the tests: it shows that such layers run. The
published file may differ.

| file | what it is | runs as | state | bytes | delay | ONNX Runtime |
|---|---|---|---|---|---|---|
"""

WAVEFORMS = """
The delay counts output frames. These are functions from sound to sound, with the transforms of [Sound in, sound
out](sound.md), at 16,000 samples per second:

| network | samples a pulse | delay, samples | latency, ms |
|---|---|---|---|
"""

TAIL = """
Names of state that pair by convention, such as `cached_key_0` and `new_cached_key_0`, are accepted without an argument.
If jaxrnn asks, give the pairs: `load(file, state={"input": "output"})`. [State](state.md) explains the rules.
"""


def models() -> Path | None:
    """Return the folder of models, or None."""
    folder = Path(os.environ.get("JAXRNN_MODELS", ""))
    return folder if os.environ.get("JAXRNN_MODELS") and folder.is_dir() else None


def measure(folder: Path, name: str) -> str:
    """Return the row of a file: state, delay, and equality of the outputs with ONNX Runtime."""
    how = RUN[name]
    model = jaxrnn.load(folder / name, static=dict(how.static))
    session = onnxruntime.InferenceSession(folder / name)
    if how.symbol is None:
        stepper: Any = model
        same = _steps_are_equal(model, session, how)
        runs, delay = "steps", "none"
        state = ", ".join(f"`{each.name}` to `{each.output}`" for each in model.state)
    else:
        stepper = model.stream(how.symbol)
        same = _stream_is_equal(model, stepper, session, how)
        runs = f'`stream("{how.symbol}")`'
        delays = {entry.name: entry.delay for entry in stepper.spec.outputs}
        delay = ", ".join(f"`{output}` {frames}" for output, frames in delays.items())
        state = f"{len(stepper.spec.state)} arrays, made by `stream`"
    size = sum(array.nbytes for array in (stepper.init() if how.symbol else model.init(dims=dict(how.dims))).values())
    return f"| `{name}` | {how.what} | {runs} | {state} | {size:,} | {delay} | {'equal' if same else 'not equal'} |"


def measure_waveform(folder: Path, name: str) -> str:
    """Return the row of a function from sound to sound."""
    streamed = WAVES[name](folder).stream()
    (delay,) = streamed.delay.values()
    return f"| {name} | {streamed.spec.pulse} | {delay} | {latency(streamed, 16_000):g} |"


#: Functions from sound to sound.
WAVES: dict[str, Callable[[Path], Waveform]] = {
    "DTLN": lambda folder: Waveform(
        [
            Network(jaxrnn.load(folder / "dtln_1.onnx"), gives="mask"),
            Network(jaxrnn.load(folder / "dtln_2.onnx")),
        ],
        Frames(512, 128, "boxcar", synthesis="sum"),
    ),
    "GTCRN": lambda folder: Waveform(
        Network(jaxrnn.load(folder / "gtcrn.onnx"), gives="spectrum"), Frames(512, 256, "sqrt_hann")
    ),
}


def _steps_are_equal(model: jaxrnn.Model, session: onnxruntime.InferenceSession, how: Ran) -> bool:
    state: Any = model.init(dims=dict(how.dims))
    theirs = {name: np.asarray(array) for name, array in state.items()}
    names, step, equal = [output.name for output in session.get_outputs()], jax.jit(model.step), []
    for number in range(STEPS):
        drawn = random_inputs(model, dims=dict(how.dims), seed=number).inputs
        inputs = {each.name: np.asarray(drawn[each.name]) for each in model.spec.inputs}
        wanted = dict(zip(names, session.run(None, {**inputs, **how.static, **theirs}), strict=True))
        found, state = step(model.params, state, inputs)
        theirs = {each.name: wanted[str(each.output)] for each in model.state}
        equal += [_equal(found[name], wanted[name]) for name in found]
        equal += [_equal(state[name], array) for name, array in theirs.items()]
    return all(equal)


def _stream_is_equal(model: jaxrnn.Model, streamed: Stepper, session: onnxruntime.InferenceSession, how: Ran) -> bool:
    inputs = random_inputs(model, dims={str(how.symbol): FRAMES}).inputs
    wanted = session.run(None, {name: np.asarray(array) for name, array in inputs.items()})
    found = streamed.run(model.params, inputs)  # type: ignore[attr-defined]
    return all(_equal(found[output.name], value) for output, value in zip(session.get_outputs(), wanted, strict=True))


def _equal(found: Any, wanted: Any) -> bool:
    scale = max(1.0, float(np.abs(wanted).max(initial=0)))
    return (
        np.shape(found) == wanted.shape
        and float(np.abs(np.asarray(found) - wanted).max(initial=0)) <= TOLERANCE * scale
    )


def page(ran: Mapping[str, str], waves: Mapping[str, str], packages: Mapping[str, str]) -> str:
    """Return the page, with the rows of files and of functions from sound to sound."""
    rows = []
    for known in KNOWN:
        licence = f"[{known.licence}]({known.source})" if known.source else known.licence
        done = ", ".join(f"`{Path(name).name}`" for name in known.run)
        kinds = {RUN[name].what for name in known.run}
        run = f"{' and '.join(sorted(kinds))}: {done}" if done else "not run"
        cells = (known.name, known.files, licence, known.load, known.state, known.time, run)
        rows.append(f"| {' | '.join(cells)} |")
    lines = [f"{row}\n" for row in rows]
    of_files = [f"{ran[name]}\n" for name in RUN]
    of_waves = [f"{waves[name]}\n" for name in WAVES]
    of_packages, bounded = (
        [f"{packages[name]}\n" for name in names if name in packages]
        for names in (package_networks.NETWORKS, package_networks.BOUNDED)
    )
    parts = [HEAD, *lines, RUN_HEAD, *of_files, WAVEFORMS, *of_waves, TAIL, package_networks.HEAD, *of_packages]
    parts += [package_networks.BOUNDED_HEAD, *bounded]
    return "".join(parts)


def read_page(text: str) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Read the rows of files, of functions from sound to sound, and of networks of packages from a page."""
    lines = text.splitlines()
    ran = {name: line for name in RUN for line in lines if line.startswith(f"| `{name}` |")}
    waves = {name: line for name in WAVES for line in lines if line.startswith(f"| {name} |")}
    return ran, waves, package_networks.rows_of(text)


def main() -> int:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="the page to write, whose figures are kept otherwise"
    )
    arguments = parser.parse_args()
    ran, waves, packages = read_page(PAGE.read_text(encoding="utf-8")) if PAGE.is_file() else ({}, {}, {})
    if (folder := models()) is not None:
        ran = {name: measure(folder, name) for name in RUN}
        waves = {name: measure_waveform(folder, name) for name in WAVES}
    text = page(ran, waves, packages)
    if arguments.write is None:
        sys.stdout.write(text)
    else:
        with in_place_of(arguments.write) as written:
            written.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
