"""Find the speech in a recording with Silero VAD, a small network with an LSTM, in one call.

    python examples/silero_vad.py speech.wav --out segments.json --models ../shared/models

The folder contains ``silero_vad.onnx`` of https://github.com/snakers4/silero-vad. The network returns the probability
of speech in a block of 512 samples, given the 64 samples before the block. ``model.scan`` runs it over all blocks in
one call, and computes the encoder, which has no state, for all blocks at once.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
from recordings import MODELS, RATE, Samples, blocks_of, load_model, read_recording, scanner, speed_text
from rich.console import Console

import jaxrnn

CONTEXT, BLOCK = 64, 512


class Segment(NamedTuple):
    """A segment of speech, in seconds."""

    start: float
    end: float


def speech_probability(samples: Samples, model: jaxrnn.Model) -> np.ndarray:
    """Return the probability of speech in each block of 512 samples.

    Args:
        samples: ``float32[samples]`` of 16 kHz, full scale 1; the last block is filled up with silence.
        model: ``silero_vad.onnx``, loaded with ``static={"sr": 16000}``.

    Returns:
        ``float32[blocks]``.
    """
    if samples.ndim != 1 or len(samples) == 0:
        raise jaxrnn.InputError(f"expected samples of one channel, not an array {samples.shape}")
    return scanner(model)({"input": blocks_with_context(samples)})["output"][:, 0, 0]


def blocks_with_context(samples: Samples) -> np.ndarray:
    """Return blocks ``float32[blocks, 1, 576]``: 64 previous samples (silence at first) and 512 samples."""
    missing = -len(samples) % BLOCK
    padded = np.concatenate([np.zeros(CONTEXT, np.float32), samples, np.zeros(missing, np.float32)])
    return np.ascontiguousarray(blocks_of(padded, CONTEXT + BLOCK, BLOCK)[:, None])


def segments(
    probability: np.ndarray,
    *,
    threshold: float = 0.5,
    hysteresis: float = 0.15,
    shortest_speech: float = 0.25,
    shortest_pause: float = 0.1,
) -> list[Segment]:
    """Return segments of speech, from the block that reaches the threshold to the block that falls below it.

    Args:
        probability: ``float[blocks]``, as returned by `speech_probability`.
        threshold: probability at which speech begins.
        hysteresis: distance below the threshold at which speech ends.
        shortest_speech: seconds; shorter segments are dropped.
        shortest_pause: seconds; a shorter pause does not end a segment.
    """
    seconds = BLOCK / RATE
    found: list[Segment] = []
    start: int | None = None
    pause: int | None = None
    # Silence after the end closes the last segment.
    for index, value in enumerate([*probability.tolist(), *[0.0] * (round(shortest_pause / seconds) + 1)]):
        if value >= threshold:
            start, pause = index if start is None else start, None
        elif start is not None and value < threshold - hysteresis:
            pause = index if pause is None else pause
            if (index + 1 - pause) * seconds >= shortest_pause:
                if (pause - start) * seconds >= shortest_speech:
                    found.append(Segment(start * seconds, pause * seconds))
                start = pause = None
    return found


@click.command()
@click.argument("speech", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the segments to this JSON file.")
@click.option("--threshold", default=0.5, show_default=True, type=click.FloatRange(0, 1), help="Where speech begins.")
@click.option(
    "--models", default=MODELS, show_default=True, type=click.Path(path_type=Path), help="Folder of the network."
)
def main(speech: Path, out: Path | None, threshold: float, models: Path) -> None:
    """Print when there is speech in the recording SPEECH (WAV, mono, 16 kHz)."""
    try:
        samples = read_recording(speech)
        (model,) = load_model(models, "silero_vad.onnx", static={"sr": RATE})
        began = time.perf_counter()
        with Console(stderr=True).status("listening"):
            found = segments(speech_probability(samples, model), threshold=threshold)
        took = time.perf_counter() - began
        if out is not None:
            out.write_text(json.dumps([segment._asdict() for segment in found], indent=2) + "\n", encoding="utf-8")
    except (jaxrnn.JaxrnnError, OSError) as error:
        raise click.ClickException(str(error)) from error
    for segment in found:
        click.echo(f"{segment.start:8.2f} to {segment.end:8.2f} s")
    click.echo(f"{len(found)} segment(s) of speech in {speed_text(len(samples), took)}")
    if out is not None:
        click.echo(f"wrote {out}")


if __name__ == "__main__":
    main()
