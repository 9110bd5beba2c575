"""What the tests of evaluations share: the packaged denoiser over frames, corpora, a runner of chunks, and metrics."""

from __future__ import annotations

import functools
import json
import os
import signal
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import soundfile

import jaxrnn
from jaxrnn.audio import Frames, Network, Waveform
from jaxrnn.audio.corpus import COLUMNS
from jaxrnn.demo import PACKAGED
from jaxrnn.evaluation import Evaluation, Framed, Item, Metric, Piece, from_folder
from jaxrnn.evaluation.parts import frame_of
from jaxrnn.evaluation.results import results_of

RATE = 16_000
CONFIG = """
corpus: {folder: noisy, reference: clean}
system:
  frames: {size: 256, hop: 128, window: sqrt_hann}
  stages: [{model: MODEL, takes: magnitude, gives: mask}]
metrics: [si_sdr]
batch: 4
chunk: 0.25
keep: true
out: out
"""


@functools.cache
def denoiser():
    """The packaged denoiser, which is compiled once for all tests of a process."""
    return Framed(Waveform(Network(jaxrnn.load(PACKAGED), gives="mask"), Frames(256, 128, "sqrt_hann")))


def sound(samples, seed=0):
    """Noise that comes and goes."""
    noise = np.random.default_rng(seed).normal(0, 0.1, samples)
    return (noise * (1 + np.sin(np.arange(samples) / 2000))).astype(np.float32)


def make_corpus(folder, lengths, seed=0):
    """``noisy`` and ``clean`` below a folder, files of so many samples each."""
    generator = np.random.default_rng(seed)
    for kind in ("noisy", "clean"):
        (folder / kind).mkdir(parents=True)
    for number, length in enumerate(lengths):
        clean = 0.3 * np.sin(np.arange(length) * generator.uniform(0.05, 0.3))
        noisy = clean + generator.normal(0, 0.05, length)
        for kind, samples in (("noisy", noisy), ("clean", clean)):
            soundfile.write(folder / kind / f"f{number:02d}.wav", samples.astype(np.float32), RATE, subtype="FLOAT")
    return folder


def evaluation_of(folder, out: str | Path = "out", system=None, **options: Any):
    corpus = from_folder(folder / "noisy", reference=folder / "clean")
    options = {"batch": 4, "chunk": 0.25, "keep": True, **options}
    return Evaluation(denoiser() if system is None else system, corpus, ["si_sdr"], folder / out, **options)


def write_config(folder, text=CONFIG, name="config.yaml"):
    (folder / name).write_text(text.replace("MODEL", json.dumps(str(PACKAGED))))
    return folder / name


def outputs(folder):
    """Every file below a folder of results that holds an output, by name, with its samples."""
    return {path.name: soundfile.read(path, dtype="float32")[0] for path in sorted((folder / "outputs").rglob("*.wav"))}


def leftovers(folder):
    """What a torn write would leave."""
    return [path for path in folder.rglob("*") if path.name.startswith(".") or "outputs.partial" in path.parts]


def through(system, recordings, chunk):
    """Recordings ``[{name: [time, ...]}]`` through a system as one batch: ``[{output: [frames, ...]}]`` in time."""
    lengths = [len(next(iter(each.values()))) for each in recordings]
    left, alive = np.array([system.padded(length) for length in lengths]), np.ones(len(lengths), bool)
    chunk = -(-chunk // system.multiple) * system.multiple
    carry, start = system.start(len(lengths)), 0
    found = [{} for _ in lengths]
    while alive.any():
        parts = {
            name: np.stack([_part(each[name], start - system.before, start + chunk) for each in recordings])
            for name in recordings[0]
        }
        frames = np.clip(left, 0, chunk)
        ending = bool((frames < chunk).any())
        pieces, carry = system.run(carry, parts, jnp.asarray(frames, jnp.int32), ending=ending)
        for place in np.flatnonzero(alive):
            for name, piece in pieces.items():
                found[place].setdefault(name, []).append(np.asarray(piece.values)[place, : int(piece.counts[place])])
        alive &= frames == chunk
        left, start = left - frames, start + chunk
    return [
        {
            name: np.concatenate(values)[system.delay[name] :][: system.expected(name, length)]
            for name, values in each.items()
        }
        for each, length in zip(found, lengths, strict=True)
    ]


def _part(array, start, stop):
    places = np.arange(start, stop)
    inside = (places >= 0) & (places < len(array))
    found = np.zeros((stop - start, *array.shape[1:]), array.dtype)
    found[inside] = array[places[inside]]
    return found


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def value(metric: Metric, output, reference=None, source=None, cuts=(), rate=RATE):
    """A metric's result on arrays that come in pieces, as a recording's row has it."""
    judge = metric.start(rate)
    for start, stop in zip([0, *cuts], [*cuts, len(output)], strict=True):
        judge.add(*(None if array is None else array[start:stop] for array in (output, reference, source)))
    found = judge.result()
    return found[metric.name] if set(found) == {metric.name} else found


def noisy(size=4000, noise=0.3, seed=0):
    generator = rng(seed)
    reference = generator.normal(size=size) + 0.2
    return (0.7 * reference + noise * generator.normal(size=size) + 0.1).astype(np.float32), reference.astype(
        np.float32
    )


#: What a recording may begin with: the first worker that computes its unit dies.
ONCE = 0.5


class Fragile:
    """The mean of each sample and the one before it, by a worker that dies of some recordings.

    Args:
        folder: where it notes of what it has died once; None for a worker that does not die.
    """

    rate, multiple, before = RATE, 1, 1
    delay, per_frame = {"audio": 0}, {"audio": 1}

    def __init__(self, folder: Path | None):
        self._folder = folder

    def start(self, batch):
        return ()

    def padded(self, frames):
        return frames

    def expected(self, output, frames):
        return frames

    def run(self, carry, parts, frames, *, ending):
        samples = parts["samples"]
        if self._folder is not None:
            died = self._folder / "died"
            if (samples[:, 1] == ONCE).any() and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return {"audio": Piece((samples[:, 1:] + samples[:, :-1]) / 2, frames)}, carry  # pyright: ignore[reportArgumentType]


def begin_with(recording, value):
    """Another first sample of a recording."""
    samples = soundfile.read(recording, dtype="float32")[0]
    samples[0] = value
    soundfile.write(recording, samples, RATE, subtype="FLOAT")


def results_from(name, rows, metrics, **options):
    """Results of rows with columns of a manifest, as an evaluation of these recordings has them."""
    rows = sorted(rows, key=lambda row: row["id"])
    pools = [metric.pool.key for metric in metrics if metric.pool is not None]
    known = {*COLUMNS, *pools, *(metric.name for metric in metrics)}
    known |= {column.name for metric in metrics for column in metric.columns}
    prefixes = tuple(f"{metric.name}_" for metric in metrics if metric.by_key)
    judged = [{key: row[key] for key in row if key in known or key.startswith(prefixes)} for row in rows]
    items = [
        Item(row["id"], Path("r"), None, {key: row[key] for key in row if key not in judged[place]})
        for place, row in enumerate(rows)
    ]
    return results_of(name, frame_of(judged, range(len(rows)), pools).lazy(), items, metrics, **options)
