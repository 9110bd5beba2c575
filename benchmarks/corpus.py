"""A corpus through DTLN from files to a table of SI-SDR, beside loops of other engines; several cores; long files.

All contenders read the same files and use the same metric. A loop takes file after file and frame after frame, with
transforms over all frames of a file at once. jaxrnn runs ``jaxrnn evaluate``, with its start, parts and compilation.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from benchmarks.corpus_child import LONG, SYSTEMS, dtln
from benchmarks.networks import RATE, SPEECH, describe, load, path_of
from benchmarks.peers import open_all
from benchmarks.pipeline import BLOCK, HOP, OverBlocks, denoise, over_blocks
from benchmarks.plan import Cases, Plan
from benchmarks.processes import run_child
from benchmarks.results import SUBJECT, Row, row_of
from benchmarks.scans import loop
from benchmarks.timing import check
from jaxrnn.demo.signals import NOISES, voiced
from jaxrnn.evaluation import Evaluation, Item, build_metric, from_folder
from jaxrnn.evaluation.results import OUTPUTS

TITLE = "a corpus through DTLN, from files to a table"
UNIT = "s"

#: Files of the corpus, and files that are compared sample by sample before the timing.
FILES, COMPARED = 1000, 30
#: Seconds of each file in a chunk, and files in a batch.
CHUNK, BATCH = 4.0, 16
#: The largest difference between samples of a file alone and in a batch.
ALONE_AGREEMENT = 1e-5

#: The largest relative difference of SI-SDR: a difference d in the samples changes the SI-SDR of an output with error e
#: by about 9 dB times d / e, and e is about 0.01.
VALUE_AGREEMENT = 1e-3
#: The engine of the target, and the fastest engine on single files.
ENGINES = ("ONNX Runtime", "LiteRT")

ONE_PROCESS = "jaxrnn, one process on one core"
FACTS = "times real time"
MORE_THAN_SHORT = "MB more than the short one"

#: A function from the samples of a recording to the same number of samples.
OverSamples = Callable[[np.ndarray], np.ndarray]

_CONFIG = """
corpus: {{folder: noisy, reference: clean}}
system:
  frames: {{size: {block}, hop: {hop}}}
  stages:
    - {{model: {first}, takes: magnitude, gives: mask}}
    - {{model: {second}, takes: samples, gives: samples}}
metrics: [si_sdr]
out: out
"""


def cases(plan: Plan) -> Cases:
    """Return cases for a corpus beside other engines, for several cores, and for long files."""
    files = 3 if plan.quick else FILES
    seconds = (10, 20) if plan.quick else (10, 3 * 3600)
    return {
        f"DTLN, {files} files": functools.partial(_beside_peers, plan, files),
        f"DTLN on all cores, {files} files": functools.partial(_on_cores, plan, files),
        **{f"{name}, long": functools.partial(_long, name, seconds) for name in SYSTEMS},
    }


def _beside_peers(plan: Plan, files: int) -> Iterator[Row]:
    name = f"DTLN, {files} files"
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        seconds = write_corpus(folder, files)
        corpus = from_folder(folder / "noisy", reference=folder / "clean")
        loops, refused = _loops(plan)
        some = corpus[:COMPARED]
        outputs = {SUBJECT: _kept(some, folder / "batched", BATCH)}
        alone = {"one of a batch": outputs[SUBJECT], "alone": _kept(some, folder / "alone", 1)}
        difference_alone = check(f"{name}, file by file", alone, ALONE_AGREEMENT)
        for engine, over in loops.items():
            outputs[engine] = {
                item.id: np.clip(over(soundfile.read(item.path, dtype="float32")[0]), -1, 1) for item in some
            }
        apart = check(name, outputs)

        def evaluated(number: int) -> list[float]:
            evaluation = Evaluation(dtln(), corpus, ["si_sdr"], folder / f"run{number}", batch=BATCH, chunk=CHUNK)
            evaluation.run()
            return [row["si_sdr"] for row in evaluation.rows()]

        calls: dict[str, Callable[[int], list[float]]] = {SUBJECT: evaluated}
        for engine, over in loops.items():
            calls[engine] = lambda number, over=over: [_judged(item, over) for item in corpus]
        samples: dict[str, list[float]] = {contender: [] for contender in calls}
        found: dict[str, dict[str, Any]] = {}
        for number in range(1 if plan.quick else 2):
            for contender, call in calls.items():
                began = time.perf_counter()
                values = call(number)
                samples[contender].append((time.perf_counter() - began) * 1e6)
                found[contender] = {"si_sdr": np.asarray(values)}
            check(f"{name}: SI-SDR", found, VALUE_AGREEMENT)
    row = row_of(name, "corpus", samples, difference=apart, refused=refused)
    row.facts |= {
        FACTS: seconds / (row.timings[SUBJECT].median / 1e6),
        "hours of sound": seconds / 3600,
        "difference to file by file": difference_alone,
    }
    yield row


def _loops(plan: Plan) -> tuple[dict[str, OverSamples], dict[str, str]]:
    """Return functions from samples to aligned samples through DTLN by engine, and the reasons of other engines."""
    entries = SPEECH[:2]
    models = [load(entry) for entry in entries]
    opened = [open_all(describe(e, m), plan.threads) for e, m in zip(entries, models, strict=True)]
    (first, refused), (second, more) = opened

    def over(samples: np.ndarray, *networks: OverBlocks) -> np.ndarray:
        late = BLOCK - HOP
        padded = np.pad(samples, (0, late + -(len(samples) + late) % HOP))
        return denoise(padded, *networks)[late : late + len(samples)]

    found = {}
    for engine in ENGINES:
        if engine not in first or engine not in second:
            continue
        networks = [
            over_blocks(loop(stepper), model)
            for stepper, model in zip((first[engine], second[engine]), models, strict=True)
        ]
        found[engine] = lambda samples, networks=networks: over(samples, *networks)
    return found, {engine: why for engine, why in (refused | more).items() if engine in ENGINES}


def _judged(item: Item, over: OverSamples) -> float:
    assert item.reference is not None
    noisy, clean = (soundfile.read(path, dtype="float32")[0] for path in (item.path, item.reference))
    metric = build_metric("si_sdr").start(RATE)
    metric.add(over(noisy), clean, noisy)
    return metric.result()["si_sdr"]


def _kept(corpus: Sequence[Item], folder: Path, batch: int) -> dict[str, np.ndarray]:
    """Return the samples that an evaluation writes, by recording."""
    Evaluation(dtln(), corpus, [], folder, batch=batch, chunk=CHUNK, keep=True).run()
    return {item.id: soundfile.read(folder / OUTPUTS / f"{item.id}.wav", dtype="float32")[0] for item in corpus}


def _on_cores(plan: Plan, files: int) -> Iterator[Row]:
    """Time the whole command in one process on one core, and in one process per core."""
    cores = range(os.cpu_count() or 1)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        seconds = write_corpus(folder, files)
        first, second = (path_of(entry.file) for entry in SPEECH[:2])
        config = folder / "dtln.yaml"
        config.write_text(_CONFIG.format(block=BLOCK, hop=HOP, first=first, second=second))
        samples: dict[str, list[float]] = {SUBJECT: [], ONE_PROCESS: []}
        found: dict[str, dict[str, Any]] = {}
        for number in range(1 if plan.quick else 3):
            for contender, used in ((SUBJECT, cores), (ONE_PROCESS, cores[:1])):
                out = folder / f"{len(used)}_{number}"
                took, said = _command(config, out, list(used))
                samples[contender].append(took * 1e6)
                found[contender] = {"mean": np.asarray(said["summary"]["si_sdr"]["mean"])}
    row = row_of(f"DTLN, {files} files, the command on {len(cores)} cores", "cores", samples)
    row.difference = check(row.name, found)
    row.facts[FACTS] = seconds / (row.timings[SUBJECT].median / 1e6)
    yield row


def _command(config: Path, out: Path, cores: list[int]) -> tuple[float, dict[str, Any]]:
    """Return the seconds of the whole command, and its JSON output."""
    command = [sys.executable, "-m", "jaxrnn", "evaluate", str(config), "--json"]
    command += ["--set", f"out={out}", *(["--workers", str(len(cores))] if len(cores) > 1 else [])]
    environment = dict(os.environ) | {"NPROC": "1", "JAX_PLATFORMS": "cpu"}
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return time.perf_counter() - began, json.loads(done.stdout)


def _long(name: str, lengths: tuple[int, int]) -> Iterator[Row]:
    """Time a short and a long file in fresh processes, and measure the peak memory."""
    peaks: list[float] = []
    for seconds in lengths:
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            (folder / "in").mkdir()
            rate, inputs = LONG[name]
            if inputs is None:
                write_sound(folder / "in" / "long.wav", seconds)
            else:
                write_features(folder / "in" / "long.npz", seconds, rate, inputs)
            found = run_child("benchmarks.corpus_child", name, made)
        peaks.append(found["peak_bytes"] / 1e6)
        row = row_of(f"{name}, one file of {seconds} s", "long files", {SUBJECT: [found["us"]]})
        row.facts |= {
            FACTS: seconds / (found["us"] / 1e6),
            "peak MB": peaks[-1],
            MORE_THAN_SHORT: peaks[-1] - peaks[0] if len(peaks) > 1 else None,
        }
        yield row


#: Seconds of the shortest and of the longest file of a corpus.
SHORTEST, LONGEST = 1.0, 20.0
#: Seconds of the voice and the noise that the files are cut from.
CUT_FROM = 60.0
#: Seconds of a long file that are in memory at once.
HELD = 60
#: The level of voice and noise, of full scale.
VOICE, NOISE = 0.05, 0.02


def write_corpus(folder: Path, files: int) -> float:
    """Write ``noisy/NNNN.wav`` and ``clean/NNNN.wav`` with random lengths, and return the seconds of all files."""
    rng = np.random.default_rng(0)
    length = round(CUT_FROM * RATE)
    voice, noise = VOICE * voiced(rng, length), NOISE * NOISES["hum"](rng, length)
    for kind in ("noisy", "clean"):
        (folder / kind).mkdir(parents=True)
    total = 0
    for index in range(files):
        samples = round(rng.uniform(SHORTEST, LONGEST) * RATE)
        first, second = rng.integers(length - samples, size=2)
        clean = voice[first : first + samples]
        soundfile.write(folder / "clean" / f"{index:04d}.wav", clean, RATE)
        soundfile.write(folder / "noisy" / f"{index:04d}.wav", clean + noise[second : second + samples], RATE)
        total += samples
    return total / RATE


def write_sound(path: Path, seconds: int) -> None:
    """Write noise in parts."""
    with soundfile.SoundFile(path, "w", RATE, 1) as file:
        for part in _parts(seconds, RATE, ()):
            file.write(part)


def write_features(path: Path, seconds: int, rate: int, inputs: dict[str, tuple[int, ...]]) -> None:
    """Write an ``.npz`` file of random features; ``rate`` is in frames per second, ``inputs`` are shapes of a frame."""
    np.savez(
        path,
        allow_pickle=False,
        **{name: np.concatenate([*_parts(seconds, rate, shape)]) for name, shape in inputs.items()},
    )


def _parts(seconds: int, rate: int, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(0)
    for start in range(0, seconds, HELD):
        frames = min(HELD, seconds - start) * rate
        yield (0.1 * rng.standard_normal((frames, *shape), np.float32)).astype(np.float32)
