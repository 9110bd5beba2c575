"""Damaged files of evaluations and trainings: recordings, manifests, results, settings and checkpoints."""

from __future__ import annotations

import functools
import io
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import polars
import soundfile
from evaluation_cases import CONFIG, evaluation_of, make_corpus
from training_cases import examples, flat_fit, mean_square, recurrent_model

from fuzzing.compiled import changed_json
from fuzzing.structure import damaged
from jaxrnn.audio.recordings import open_recording
from jaxrnn.evaluation import from_manifest, read_results, write_report
from jaxrnn.evaluation.settings import EvaluationSettings
from jaxrnn.settings.files import SettingsFile
from jaxrnn.training import load_checkpoint
from jaxrnn.training.settings import TrainingSettings

TRAINING = """
model: {file: net.onnx}
data: {npz: examples}
loss: {name: mean_squared_error, output: y, target: z, time_axis: 0}
sequences: {time_axis: 0, bucket: 8}
steps: 12
optimizer: {name: adamw, learning_rate: 0.05, weight_decay: 1.0e-2}
checkpoints: {folder: kept, every: 4}
"""


def _written(write):
    buffer = io.BytesIO()
    write(buffer)
    return buffer.getvalue()


@functools.cache
def seeds():
    """Files by name; a name with a folder is a file of a tree that is read as a whole."""
    samples, arrays = np.linspace(-1, 1, 600, dtype=np.float32), np.ones((9, 2), np.float32)
    table = polars.DataFrame({"path": ["a.wav", "b.wav"], "id": ["a", "b"], "snr": [1.0, 2.0]})
    found = {
        **{
            f"sound.{kind}": _written(lambda file, kind=kind: soundfile.write(file, samples, 16_000, format=kind))
            for kind in ("wav", "flac", "ogg", "mp3", "aiff")
        },
        "array.npy": _written(lambda file: np.save(file, arrays)),
        "array.npz": _written(lambda file: np.savez(file, x=arrays, y=arrays)),
        "packed.npz": _written(lambda file: np.savez_compressed(file, x=arrays)),
        "manifest.csv": _written(table.write_csv),
        "manifest.parquet": _written(table.write_parquet),
        "evaluation.yaml": CONFIG.encode(),
        "training.yaml": TRAINING.encode(),
    }
    for tree in ("results", "checkpoint"):
        below = (path for path in _tree(tree).rglob("*") if path.is_file() and path.stat().st_size)
        found |= {f"{tree}/{path.relative_to(_tree(tree))}": path.read_bytes() for path in below}
    return found


@functools.cache
def _tree(kind):
    """A folder of results, or of checkpoints, which stays until the process ends."""
    holder = tempfile.TemporaryDirectory()
    _HOLDERS.append(holder)
    folder = Path(holder.name, kind)
    if kind == "results":
        corpus = make_corpus(Path(holder.name), [4000, 5000])
        evaluation = evaluation_of(corpus, folder, keep=False)
        evaluation.run()
        evaluation.write_results()
    else:
        options = {"steps": 2, "batch_size": 2, "time_axis": 1, "checkpoints": folder}
        flat_fit(recurrent_model("time"), examples([4, 5]), mean_square, **options)
    return folder


_HOLDERS = []


def changed_file(rng):
    """The name of a file, and its damaged content."""
    kind = rng.choice(("sound", "array", "packed", "manifest", "evaluation", "training", "results", "checkpoint"))
    name = rng.choice([name for name in sorted(seeds()) if name.startswith(kind)])
    data = seeds()[name]
    if name.endswith(".json") and rng.random() < 0.7:
        return name, json.dumps(changed_json(rng, json.loads(data))).encode()
    if name.endswith(".jsonl") and rng.random() < 0.7:
        return name, b"".join(
            json.dumps(changed_json(rng, json.loads(line))).encode() + b"\n" for line in data.splitlines()
        )
    return name, damaged(rng, data, seeds()[rng.choice(sorted(seeds()))])


def run(name, data):
    """Read a file as a user would."""
    tree, _, below = name.partition("/")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        if below:
            shutil.copytree(_tree(tree), Path(folder, tree))
        path.write_bytes(data)
        match path.name.split(".") if not below else [tree]:
            case ["results"]:
                results = read_results(Path(folder, tree))
                write_report(results, Path(folder, "report.html"), baseline=read_results(_tree(tree)))
            case ["checkpoint"]:
                load_checkpoint(Path(folder, tree), recurrent_model("time"))
            case ["manifest", _]:
                list(from_manifest(path)[:5])
            case [("evaluation" | "training") as what, _]:
                assert SettingsFile(EvaluationSettings if what == "evaluation" else TrainingSettings, path).settings
            case _:
                recording = open_recording(path, 16_000)
                recording.part(0, min(recording.length, 1000))
