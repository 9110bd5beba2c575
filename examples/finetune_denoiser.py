"""Fine-tune the packaged denoiser for a new kind of noise, and write the ONNX file.

    python examples/finetune_denoiser.py --out runs/denoiser

The denoiser of the package was trained on hiss, hum and babble, but not on sirens. ``configs/finetune_denoiser.yaml``
describes the training, which ``jaxrnn finetune configs/finetune_denoiser.yaml`` also runs. This script measures the
gain on new signals, and compares the new file in ONNX Runtime with jaxrnn. Requires ``pip install -e
'.[train,verify,plot]'``, and takes less than a minute on one core.
"""

from __future__ import annotations

import time
from pathlib import Path

import click
import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import jaxrnn
from jaxrnn.demo import RATE, Mixture, denoise_at_once, signals
from jaxrnn.demo.audio import analyse
from jaxrnn.signal import si_sdr
from jaxrnn.training.settings import prepare_training

CONFIG = Path(__file__).parents[1] / "configs" / "finetune_denoiser.yaml"
#: Settings for a training of seconds, which only tests the script and gains almost nothing.
QUICK = {"data.arguments.count": 16, "validation": None, "batch_size": 8, "epochs": 2}


def siren(rng: np.random.Generator, samples: int) -> np.ndarray:
    """Return a siren of unit power: harmonics of a pitch between 600 and 1500 Hz that rises and falls."""
    times = np.arange(samples) / RATE
    sweep = abs(2 * ((rng.uniform(0.2, 3) * times + rng.random()) % 1) - 1)
    phase = np.cumsum(2 * np.pi / RATE * rng.uniform(500, 700) * 2.5**sweep)
    tone = sum(rng.uniform(0.3, 1) / k * np.sin(k * phase) for k in range(1, 5))
    return (tone / np.sqrt(np.mean(tone**2))).astype(np.float32)


def draw(rng: np.random.Generator, seconds: float, snr: float, noise: str = "siren") -> Mixture:
    """Return a clean synthetic voice, and the voice with a siren or with a familiar noise."""
    samples = round(seconds * RATE)
    make = siren if noise == "siren" else signals.NOISES[noise]
    return signals.mix(signals.voiced(rng, samples), make(rng, samples), snr)


def make_examples(count: int, seconds: float, seed: int, snr: tuple[float, float] = (-5, 10)) -> list[dict]:
    """Return examples with sirens and familiar noises in turn, so that the model does not forget the familiar noises.

    An example has the input of the model, ``magnitude[1, time, bins]``, and two complex spectra of the same shape: the
    mixture, which the mask multiplies, and the voice, which is the target of the product.
    """
    examples = []
    for index in range(count):
        rng = np.random.default_rng([seed, index])
        noise = "siren" if index % 2 else rng.choice(list(signals.NOISES))
        clean, noisy = draw(rng, seconds, rng.uniform(*snr), noise)
        spectrum = analyse(noisy)[None]
        examples.append({"magnitude": np.abs(spectrum), "spectrum": spectrum, "clean": analyse(clean)[None]})
    return examples


def mean_si_sdr(model: jaxrnn.Model | None, noise: str, snr: float, count: int) -> float:
    """Return the mean SI-SDR in dB of denoised mixtures, or of the mixtures without a model."""
    pairs = [draw(np.random.default_rng([2**20, index]), 4, snr, noise) for index in range(count)]
    return float(np.mean([si_sdr(denoise_at_once(noisy, model) if model else noisy, clean) for clean, noisy in pairs]))


def check(file: Path, model: jaxrnn.Model, params: dict[str, jax.Array]) -> float:
    """Return the largest difference between ONNX Runtime on the file and `Model.apply` with the parameters."""
    spectrum = analyse(draw(np.random.default_rng(7), 2, 0).noisy)[None]
    inputs = {"magnitude": np.abs(spectrum), "h": np.asarray(model.init()["h"])}
    import onnxruntime  # the command `jaxrnn finetune` needs this file, but not this package

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    expected = model.apply(params, inputs)
    return max(
        float(np.abs(found - expected[info.name]).max())
        for info, found in zip(session.get_outputs(), session.run(None, inputs), strict=True)
    )


@click.command()
@click.option(
    "--out", default="runs/denoiser", show_default=True, type=click.Path(path_type=Path), help="Folder to write to."
)
@click.option("--config", default=CONFIG, show_default=True, type=click.Path(path_type=Path), help="Settings.")
@click.option("--quick", is_flag=True, help="A few seconds' work, to see that all of it runs.")
def main(out: Path, config: Path, quick: bool) -> None:
    """Fine-tune the packaged denoiser on sirens, and write denoiser.onnx and loss.png to a folder."""
    console, began = Console(), time.perf_counter()
    exported = out.absolute() / "denoiser.onnx"
    chosen = {"export": exported, "plot": exported.with_name("loss.png")}
    try:
        with console.status("making signals"):
            training = prepare_training(config, chosen | (QUICK if quick else {}))
        fitted = training.run()
    except jaxrnn.JaxrnnError as error:
        raise click.ClickException(str(error)) from error
    console.print(f"{fitted.step} updates in {time.perf_counter() - began:.0f} s, the best after {fitted.best_step}")

    models = (None, training.model, jaxrnn.load(exported))
    table = Table("noise", "SNR", "noisy", "before", "after", title="SI-SDR in dB, on signals that were held out")
    for noise, snr in [("siren", -5), ("siren", 0), ("siren", 5), *((name, 0) for name in signals.NOISES)]:
        figures = [mean_si_sdr(model, noise, snr, 1 if quick else 8) for model in models]
        table.add_row(noise, f"{snr} dB", *(f"{figure:.2f}" for figure in figures))
    console.print(table)

    difference = check(exported, training.model, fitted.params)
    console.print(f"largest difference of ONNX Runtime with the new file from jaxrnn: {difference:.1e}")
    if difference > 1e-5:
        raise click.ClickException("that is more than rounding")
    console.print(f"wrote {exported} and {chosen['plot']}", soft_wrap=True)


if __name__ == "__main__":
    main()
