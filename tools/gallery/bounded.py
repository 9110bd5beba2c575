"""A bidirectional denoiser with bounded futures, before and after it learned the outputs of the offline network."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from tools.examples import import_example
from tools.gallery import drawing
from tools.gallery.entry import Entry, Figures, Item, recordings, save_sound

if TYPE_CHECKING:
    from matplotlib.figure import Figure

example = import_example("bidirectional_denoiser")
#: What the example measured; training takes minutes, so that the gallery draws the results.
RESULTS = json.loads(Path(__file__).with_suffix(".json").read_text())
#: The folder that the example wrote, whose sounds the gallery plays.
SOUNDS = Path(os.environ.get("JAXRNN_BIDIRECTIONAL", Path(__file__).parents[2] / "runs" / "bidirectional"))
#: The sounds of the example, and what they are.
PLAYED = {
    "noisy": "noisy",
    "offline": "denoised offline",
    "0ms_before": "no future, the offline parameters",
    "0ms_after": "no future, after the distillation",
    "320ms_after": "320 ms of the future, after the distillation",
}


def make(folder: Path) -> list[Item]:
    """Draw the delay against the error; list the figures, and store the sounds of the example if it has run here."""
    bounds = [example.Loss(**each) for each in RESULTS["bounds"]]
    first, last = bounds[0], bounds[-1]
    alt = (
        f"The error below the offline output against the delay: {first.error_before:.0f} dB at {first.delay_ms:.0f} ms "
        f"and {last.error_before:.0f} dB at {last.delay_ms:.0f} ms with the offline parameters, and after the "
        f"distillation {first.error_after:.0f} and {last.error_after:.0f} dB."
    )
    figures = {
        "SI-SDR of the noisy speech": f"{RESULTS['si_sdr']['noisy']:.1f} dB",
        "SI-SDR of the offline network": f"{RESULTS['si_sdr']['offline']:.1f} dB",
        "training of the offline network": f"{RESULTS['seconds']:.0f} s of two cores of an AMD EPYC",
    }
    for each in bounds:
        figures[f"{each.future_ms:.0f} ms of the future, a delay of {each.delay_ms:.0f} ms: error"] = (
            f"{each.error_before:.1f} dB below the offline output, {each.error_after:.1f} dB after "
            f"{each.seconds:.0f} s of distillation"
        )
        figures[f"{each.future_ms:.0f} ms of the future: SI-SDR"] = (
            f"{each.si_sdr_before:.1f} dB, {each.si_sdr_after:.1f} dB after the distillation"
        )
    played = {name: said for name, said in PLAYED.items() if (SOUNDS / f"{name}.flac").is_file()}
    sounds = (recordings.read_recording(SOUNDS / f"{name}.flac") for name in played)
    return [
        drawing.save(folder, "delay", functools.partial(draw, bounds), alt),
        *(save_sound(folder, name, sound, played[name]) for name, sound in zip(played, sounds, strict=True)),
        Figures(figures),
    ]


def draw(bounds: list) -> Figure:
    """Draw the delay against the error as the example does."""
    figure = drawing.canvas(2.7)
    example.plot(figure.subplots(), bounds)
    return figure


ENTRY = Entry(
    title="From offline to live",
    see=(
        "A bidirectional network sees all of the future of a recording, and bounded to some of it, it runs live: the "
        "longer the delay, the nearer to the offline output. The distillation wins back much where the future is "
        "missing, and loses a little where the bounded network was already near."
    ),
    shown=example.distil,
    make=make,
    packages=(("optax", "train"), ("soundfile", "audio")),
    source="Speech: test recording of silero-vad (MIT). The noise is synthetic.",
)
