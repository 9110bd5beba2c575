"""The packaged denoiser learns a noise that it does not know."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import jaxrnn
from jaxrnn.demo import PACKAGED, denoise_at_once
from jaxrnn.signal import si_sdr
from tools.examples import EXAMPLES, import_example
from tools.gallery import drawing
from tools.gallery.entry import Entry, Figures, Item, save_sound

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from jaxrnn.training import Fitted

CONFIG = EXAMPLES.parent / "configs" / "finetune_denoiser.yaml"
#: Passes over the examples; the file of settings makes fewer, over eight times as many.
EPOCHS = 16


def finetune(exported: Path) -> Fitted:
    """Train as a file of settings says, but on less; write an ONNX file."""
    from jaxrnn.training.settings import prepare_training

    settings = {
        "data.arguments.count": 64,
        "validation.arguments.count": 16,
        "validation.every": 8,
        "epochs": EPOCHS,
        "optimizer.learning_rate.decay_steps": 4 * EPOCHS,
        "export": exported,
        "plot": None,
    }
    training = prepare_training(CONFIG, settings)
    return training.run(progress=False)


def make(folder: Path) -> list[Item]:
    """Draw the loss over the updates; store a siren before and after."""
    exported = folder / "denoiser.onnx"
    fitted = finetune(exported)
    clean, noisy = import_example("finetune_denoiser").draw(np.random.default_rng(2**20), 4.0, 0.0)
    before, after = (denoise_at_once(noisy, jaxrnn.load(file)) for file in (PACKAGED, exported))
    exported.unlink()
    sounds = {"noisy": noisy, "before": before, "after": after}
    titles = {"noisy": "a siren over a voice", "before": "before the training", "after": "after it"}
    decibels = {name: si_sdr(samples, clean) for name, samples in sounds.items()}
    validation = [record["validation_loss"] for record in fitted.history if "validation_loss" in record]
    alt = (
        f"The loss over {fitted.step} updates, which falls and jumps from batch to batch; and that of the validation, "
        f"measured {len(validation)} times, which falls from {validation[0]:.1f} to {validation[-1]:.1f} dB."
    )
    return [
        drawing.save(folder, "loss", functools.partial(draw, fitted), alt),
        *(save_sound(folder, name, sound, titles[name]) for name, sound in sounds.items()),
        Figures({f"SI-SDR, {titles[name]}": f"{value:z.2f} dB" for name, value in decibels.items()}),
    ]


def draw(fitted: Fitted) -> Figure:
    """Draw the loss curve as `Fitted.plot`."""
    figure = drawing.canvas(2.7)
    axes = figure.subplots()
    fitted.draw(axes)
    axes.set_ylabel("loss: minus SI-SDR (dB)")
    return figure


ENTRY = Entry(
    title="A denoiser learns a noise",
    see=(
        "The packaged denoiser was never trained on sirens, and a few dozen updates teach it: the loss on the "
        "validation examples, which it does not learn from, falls too. Listen to the same mixture before and after: "
        "its voice and its siren are in no example."
    ),
    shown=finetune,
    make=make,
    packages=(("optax", "train"), ("grain", "train"), ("soundfile", "audio"), ("onnxruntime", "verify")),
)
