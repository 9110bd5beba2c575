"""Fine-tune Silero VAD for speech in loud noise, and write the ONNX file.

    python examples/finetune_vad.py --out runs/vad

In clean speech, the energy shows the active blocks. These labels train the detector on the same speech with added
noise. Only the decoder of Silero VAD is trained, an LSTM and one layer, in chunks of 1.6 s with the state carried
between chunks. ``configs/finetune_vad.yaml`` describes the training, which ``jaxrnn finetune
configs/finetune_vad.yaml`` also runs. The script reads ``silero_vad.onnx`` from JAXRNN_MODELS and recordings from
JAXRNN_AUDIO. Requires ``pip install -e '.[train,verify,plot,audio]'``.
"""

from __future__ import annotations

import time
from pathlib import Path

import click
import jax
import numpy as np
from recordings import AUDIO, MODELS, RATE, Samples, read_recording
from rich.console import Console
from rich.table import Table
from scipy.stats import rankdata
from silero_vad import BLOCK, blocks_with_context, speech_probability

import jaxrnn
from jaxrnn.demo import signals
from jaxrnn.training.settings import prepare_training

CONFIG = Path(__file__).parents[1] / "configs" / "finetune_vad.yaml"
#: The recording is held out from this second on.
HELD_OUT = 46
#: Settings for a training of seconds, which only tests the script and gains nothing.
QUICK = {
    "data.arguments.count": 4,
    "data.arguments.seconds": 32 * BLOCK / RATE,
    "validation": None,
    "batch_size": 4,
    "epochs": 1,
    "sequences.chunk": 16,
}


def speech_blocks(clean: Samples, threshold: float = 30) -> np.ndarray:
    """Return the speech blocks of a clean recording by their level below the loud blocks, ``bool[blocks]``."""
    blocks = clean[: len(clean) // BLOCK * BLOCK].reshape(-1, BLOCK)
    level = 10 * np.log10(np.mean(blocks**2, axis=1) + 1e-10)
    return level > np.percentile(level, 95) - threshold


def add_noise(rng: np.random.Generator, clean: Samples, snr: float) -> Samples:
    """Return the recording with synthetic noise of a random kind."""
    noise = signals.NOISES[rng.choice(list(signals.NOISES))]
    return signals.mix(clean, noise(rng, len(clean)), snr).noisy


def make_examples(
    recording: Path,
    count: int,
    seconds: float,
    *,
    start: float = 0,
    end: float | None = None,
    snr: tuple[float, float] = (-10, 10),
    seed: int = 0,
) -> list[dict]:
    """Return parts of a clean speech recording with added noise, and labels of the speech blocks.

    Args:
        recording: WAV, mono, 16 kHz.
        count: number of parts.
        seconds: length of a part.
        start: earliest start of a part in the recording, in seconds.
        end: latest end of a part in seconds; None for the end of the recording.
        snr: range of the SNR in dB, drawn uniformly.
        seed: seed of the random generator.
    """
    clean = read_recording(recording)
    speech, size = speech_blocks(clean), round(seconds * RATE / BLOCK)
    first, last = round(start * RATE / BLOCK), len(speech) if end is None else round(end * RATE / BLOCK)
    if last - first < size:
        raise jaxrnn.InputError(f"{recording} has no {seconds} s between {start} s and {last * BLOCK / RATE:.1f} s")
    examples = []
    for index in range(count):
        rng = np.random.default_rng([seed, index])
        at = rng.integers(first, last - size + 1)
        noisy = add_noise(rng, clean[at * BLOCK : (at + size) * BLOCK], rng.uniform(*snr))
        examples.append({"input": blocks_with_context(noisy), "speech": speech[at : at + size]})
    return examples


def judge(model: jaxrnn.Model, clean: Samples, snr: float) -> tuple[float, float]:
    """Return the area under the ROC curve, and the share of correct blocks at a threshold of 1/2.

    The area is the chance that a speech block has a higher probability than a block without speech.
    """
    speech = speech_blocks(clean)
    noisy = [add_noise(np.random.default_rng([2**20, index]), clean, snr) for index in range(4)]
    found = np.concatenate([speech_probability(samples, model)[: len(speech)] for samples in noisy])
    truth = np.tile(speech, len(noisy))
    yes, no = np.sum(truth), np.sum(~truth)
    area = (np.sum(rankdata(found)[truth]) - yes * (yes + 1) / 2) / (yes * no)
    return float(area), float(np.mean((found >= 0.5) == truth))


def check(file: Path, model: jaxrnn.Model, params: dict[str, jax.Array], samples: Samples) -> float:
    """Return the largest difference between ONNX Runtime on the file and `Model.apply`, over blocks with state.

    The difference is relative to the largest number of the array, because state values grow to 7.
    """
    import onnxruntime  # the command `jaxrnn finetune` needs this file, but not this package

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    run, largest, state = jax.jit(model.apply), 0.0, np.zeros((2, 1, 128), np.float32)
    for block in blocks_with_context(samples):
        expected = run(params, {"input": block, "state": state})
        found = session.run(["output", "stateN"], {"input": block, "state": state, "sr": np.array(RATE)})
        for name, array in zip(("output", "stateN"), found, strict=True):
            scale = max(1, abs(array).max())
            largest = max(largest, float(abs(array - expected[name]).max() / scale))
        state = found[1]
    return largest


@click.command()
@click.option(
    "--out", default="runs/vad", show_default=True, type=click.Path(path_type=Path), help="Folder to write to."
)
@click.option("--config", default=CONFIG, show_default=True, type=click.Path(path_type=Path), help="Settings.")
@click.option(
    "--models", default=MODELS, show_default=True, type=click.Path(path_type=Path), help="Folder of the network."
)
@click.option(
    "--speech",
    default=AUDIO / "speech_16k.wav",
    show_default=True,
    type=click.Path(path_type=Path),
    help="A clean recording of a minute of speech: WAV, mono, 16 kHz.",
)
@click.option("--quick", is_flag=True, help="A few seconds' work, to see that all of it runs.")
def main(out: Path, config: Path, models: Path, speech: Path, quick: bool) -> None:
    """Fine-tune Silero VAD on noisy speech, and write silero_vad.onnx and loss.png to a folder."""
    console, began = Console(), time.perf_counter()
    exported = out.absolute() / "silero_vad.onnx"
    chosen = {
        "export": exported,
        "plot": exported.with_name("loss.png"),
        "model.file": models.absolute() / exported.name,
    }
    chosen |= {f"{part}.arguments.recording": speech.absolute() for part in ("data", "validation")}
    try:
        with console.status("adding noise to speech"):
            training = prepare_training(config, chosen | (QUICK if quick else {}))
        fitted = training.run()
        held_out = read_recording(speech, at_least=(HELD_OUT + 1) * RATE)[HELD_OUT * RATE :]
    except jaxrnn.JaxrnnError as error:
        raise click.ClickException(str(error)) from error
    console.print(f"{fitted.step} updates in {time.perf_counter() - began:.0f} s, the best after {fitted.best_step}")

    new = jaxrnn.load(exported, static={"sr": RATE})
    table = Table("SNR", "ROC area before", "after", "right before", "after", title="On speech that was held out")
    for snr in [5] if quick else [10, 5, 0, -5, -10]:
        (area, right), (new_area, new_right) = (judge(model, held_out, snr) for model in (training.model, new))
        table.add_row(f"{snr} dB", f"{area:.3f}", f"{new_area:.3f}", f"{right:.1%}", f"{new_right:.1%}")
    console.print(table)

    difference = check(exported, training.model, fitted.params, held_out[:RATE])
    console.print(f"largest difference of ONNX Runtime with the new file from jaxrnn: {difference:.1e}")
    if difference > 1e-5:
        raise click.ClickException("that is more than rounding")
    console.print(f"wrote {exported} and {chosen['plot']}", soft_wrap=True)


if __name__ == "__main__":
    main()
