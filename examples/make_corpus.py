"""Make a corpus for evaluation: noisy recordings with known SI-SDR, and recordings with labels of speech.

    python examples/make_corpus.py runs/corpus
    python examples/make_corpus.py runs/corpus --speech recordings --noisy 500
    python examples/make_corpus.py runs/corpus --labelled 0 --noises 200 --rooms 50

The speech is synthetic, or taken from a folder of clean recordings. The files serve ``configs/evaluate_*.yaml``, and
the folders of sounds ``configs/train_denoiser.yaml``, which mixes them anew::

    denoising.csv    path, reference, snr, noise: noisy/NNNN.wav and clean/NNNN.wav
    detection.csv    path, reference, snr, noise: detection/NNNN.wav and labels/NNNN.csv, a table of segments
    noise/           noises alone
    rooms/           impulse responses of made-up rooms

A file depends on its number and the seed only, so a larger corpus begins with the files of a smaller corpus. Requires
``pip install -e '.[audio]'``.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click
import numpy as np
from recordings import RATE, Samples, write_recording
from rich.console import Console
from silero_vad import BLOCK, segments

import jaxrnn
from jaxrnn.audio.recordings import SAMPLES, open_recording
from jaxrnn.demo import signals

#: SI-SDR of the recordings in dB, and power of their speech in dB of full scale.
SNRS, LEVEL = (-5, 0, 5, 10), -26
#: Speech blocks are at most this many dB below the loudest block.
RANGE = 35
#: A recording with a smaller range of samples, full scale 1, is silent.
AUDIBLE = 1e-3
#: Number of attempts to draw a part with speech.
TRIES = 100

#: A function that draws ``float32[samples]`` of clean speech.
Voice = Callable[[np.random.Generator, int], Samples]


def mix(clean: np.ndarray, noise: np.ndarray, si_sdr: float, level: float = LEVEL) -> signals.Mixture:
    """Return clean speech plus noise with an exact SI-SDR.

    The part of the noise along the speech would count as speech, so it is removed before scaling.

    Args:
        clean: ``float[samples]``, not constant.
        noise: ``float[samples]``, not a multiple of ``clean``.
        si_sdr: SI-SDR of the mixture against the clean signal, in dB.
        level: power of the clean signal in the result, in dB of full scale.
    """
    speech = clean - np.mean(clean, dtype=np.float64)
    rest = noise - np.mean(noise, dtype=np.float64)
    rest = rest - speech * (rest @ speech / (speech @ speech))
    speech *= 10 ** (level / 20) / np.sqrt(np.mean(speech**2))
    rest *= 10 ** ((level - si_sdr) / 20) / np.sqrt(np.mean(rest**2))
    return signals.Mixture(speech.astype(np.float32), (speech + rest).astype(np.float32))


def voice_of(folder: Path) -> Voice:
    """Return a function that draws parts of the recordings in a folder.

    Raises:
        jaxrnn.InputError: the folder has no readable recordings.
    """
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".wav", ".flac"))
    if not paths:
        raise jaxrnn.InputError(f"there is no .wav or .flac in {folder}")
    recordings = [open_recording(path, RATE) for path in paths]

    def draw(rng: np.random.Generator, samples: int) -> Samples:
        long_enough = [recording for recording in recordings if recording.length >= samples]
        if not long_enough:
            raise jaxrnn.InputError(f"no recording in {folder} has {samples / RATE:.1f} s: take a smaller --seconds")
        for _ in range(TRIES):
            recording = long_enough[rng.integers(len(long_enough))]
            start = int(rng.integers(recording.length - samples + 1))
            part = recording.part(start, start + samples)[SAMPLES]
            if np.ptp(part) > AUDIBLE:
                return part
        raise jaxrnn.InputError(f"the recordings in {folder} are silent")

    return draw


def with_silence(rng: np.random.Generator, voice: Voice, samples: int) -> Samples:
    """Return five parts of random length; the second and the fourth are speech, the others silence."""
    for _ in range(TRIES):
        shares = rng.uniform(0.5, 1.5, 5)
        part = np.searchsorted(np.cumsum(shares / shares.sum()), np.arange(samples) / samples, side="right")
        clean = np.where(part % 2 == 1, voice(rng, samples), np.float32(0))
        if np.ptp(clean) > AUDIBLE:
            return clean
    raise jaxrnn.InputError(f"there is no speech in parts of {samples / RATE:.1f} s: take a larger --seconds")


def speech_segments(clean: Samples) -> list[tuple[float, float]]:
    """Return the loud segments of a clean recording in seconds; short pauses count as speech."""
    blocks = clean[: len(clean) // BLOCK * BLOCK].reshape(-1, BLOCK)
    level = 10 * np.log10(np.mean(blocks.astype(np.float64) ** 2, axis=1) + 1e-12)
    loud = (level > level.max() - RANGE).astype(np.float32)
    return [(round(start, 3), round(end, 3)) for start, end in segments(loud)]


def drawn(count: int, seconds: tuple[float, float], seed: Sequence[int]) -> Iterator[tuple]:
    """Yield the name, generator, length in samples, SI-SDR and noise of each file."""
    names = list(signals.NOISES)
    for index in range(count):
        rng = np.random.default_rng([*seed, index])
        samples = round(rng.uniform(*seconds) * RATE)
        yield f"{index:04d}", rng, samples, SNRS[index % len(SNRS)], names[index // len(SNRS) % len(names)]


def make_denoising(out: Path, count: int, seconds: tuple[float, float], seed: int, voice: Voice) -> float:
    """Write noisy and clean recordings and their table; return the seconds of audio."""
    rows, made = [], 0
    for name, rng, samples, snr, noise in drawn(count, seconds, (seed, 0)):
        pair = mix(voice(rng, samples), signals.NOISES[noise](rng, samples), snr)
        for folder, sound in (("noisy", pair.noisy), ("clean", pair.clean)):
            _write(out / folder / f"{name}.wav", sound)
        rows.append((f"noisy/{name}.wav", f"clean/{name}.wav", snr, noise))
        made += samples
    _write_table(out / "denoising.csv", ("path", "reference", "snr", "noise"), rows)
    return made / RATE


def make_detection(out: Path, count: int, seconds: tuple[float, float], seed: int, voice: Voice) -> float:
    """Write recordings with speech segments, and tables of segments and of recordings; return the seconds of audio."""
    rows, made = [], 0
    for name, rng, samples, snr, noise in drawn(count, seconds, (seed, 1)):
        clean = with_silence(rng, voice, samples)
        _write(out / "detection" / f"{name}.wav", mix(clean, signals.NOISES[noise](rng, samples), snr).noisy)
        _write_table(out / "labels" / f"{name}.csv", ("start", "end"), speech_segments(clean))
        rows.append((f"detection/{name}.wav", f"labels/{name}.csv", snr, noise))
        made += samples
    _write_table(out / "detection.csv", ("path", "reference", "snr", "noise"), rows)
    return made / RATE


def make_noises(out: Path, count: int, seconds: tuple[float, float], seed: int) -> None:
    """Write noises of each kind in turn."""
    for name, rng, samples, _, noise in drawn(count, seconds, (seed, 2)):
        _write(out / "noise" / f"{name}_{noise}.wav", 0.1 * signals.NOISES[noise](rng, samples))


def make_rooms(out: Path, count: int, seed: int) -> None:
    """Write impulse responses: a direct sound, and noise that falls by 60 dB in 0.1 to 0.6 s."""
    for index in range(count):
        rng = np.random.default_rng([seed, 3, index])
        decay = rng.uniform(0.1, 0.6)
        times = np.arange(round(decay * RATE)) / RATE
        tail = rng.standard_normal(times.size) * 10 ** (-3 * times / decay)
        tail *= 10 ** (rng.uniform(-15, 0) / 20) / np.sqrt(np.sum(tail**2))
        tail[0] = 1
        _write(out / "rooms" / f"{index:04d}.wav", np.float32(0.5 * tail / np.abs(tail).max()))


def _write(path: Path, sound: Samples) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Peaks above full scale would be clipped; scaling does not change the SI-SDR.
    write_recording(path, sound / max(1.0, float(np.abs(sound).max())))


def _write_table(path: Path, columns: Sequence[str], rows: Sequence[Sequence]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *rows])


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--noisy", default=200, show_default=True, type=click.IntRange(0), help="Pairs of noisy and clean.")
@click.option("--labelled", default=40, show_default=True, type=click.IntRange(0), help="Recordings with labels.")
@click.option("--noises", default=0, show_default=True, type=click.IntRange(0), help="Noises alone.")
@click.option("--rooms", default=0, show_default=True, type=click.IntRange(0), help="Impulse responses of rooms.")
@click.option(
    "--seconds",
    default=(2.0, 8.0),
    show_default=True,
    type=(click.FloatRange(0.5), click.FloatRange(0.5)),
    help="The shortest and the longest; those with labels are three times as long.",
)
@click.option(
    "--speech",
    default=None,
    type=click.Path(path_type=Path),
    help="A folder of clean recordings of speech; without it, speech is synthetic.",
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Of all that is drawn.")
def main(
    out: Path,
    noisy: int,
    labelled: int,
    noises: int,
    rooms: int,
    seconds: tuple[float, float],
    speech: Path | None,
    seed: int,
) -> None:
    """Write a corpus for configs/evaluate_*.yaml and configs/train_denoiser.yaml to the folder OUT."""
    console = Console()
    if seconds[0] > seconds[1]:
        raise click.ClickException(f"--seconds {seconds[0]:g} {seconds[1]:g}: the shortest comes first")
    longer = (3 * seconds[0], 3 * seconds[1])
    try:
        voice = signals.voiced if speech is None else voice_of(speech)
        with console.status("making recordings"):
            first = make_denoising(out, noisy, seconds, seed, voice) if noisy else 0
            second = make_detection(out, labelled, longer, seed, voice) if labelled else 0
            make_noises(out, noises, longer, seed)
            make_rooms(out, rooms, seed)
    except (jaxrnn.JaxrnnError, OSError) as error:
        raise click.ClickException(str(error)) from error
    console.print(
        f"wrote {noisy} noisy recordings ({first:.0f} s), {labelled} with labels ({second:.0f} s), {noises} noises and "
        f"{rooms} rooms to {out}",
        soft_wrap=True,
    )


if __name__ == "__main__":
    main()
