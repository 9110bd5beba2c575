"""Files of a version of jaxrnn for the tests of later versions.

    PYTHONPATH=. python tests/kept/make.py tests/kept/VERSION

The network is a GRU behind a convolution of three frames. `tests/test_kept_files.py` reads the files.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as nh
import soundfile

import jaxrnn
from jaxrnn.training import Sequences, fit, losses

RATE = 16_000
SETTINGS = """
corpus: {manifest: corpus.csv}
system:
  frames: {size: 256, hop: 128, window: sqrt_hann}
  stages: [{model: MODEL, takes: magnitude, gives: mask}]
metrics: [si_sdr]
main: si_sdr
out: results
"""


def network() -> onnx.ModelProto:
    """Return a network from ``x[batch, time, 2]`` to ``y[batch, time, 3]``."""
    rng = np.random.default_rng(0)
    weights = {"kernel": (2, 2, 3), "W": (1, 9, 2), "R": (1, 9, 3)}
    nodes = [
        oh.make_node("Transpose", ["x"], ["columns"], perm=[0, 2, 1]),
        oh.make_node("Conv", ["columns", "kernel"], ["smooth"], pads=[1, 1]),
        oh.make_node("Transpose", ["smooth"], ["frames"], perm=[2, 0, 1]),
        oh.make_node("GRU", ["frames", "W", "R"], ["all"], hidden_size=3),
        oh.make_node("Squeeze", ["all", "one"], ["states"]),
        oh.make_node("Transpose", ["states"], ["y"], perm=[1, 0, 2]),
    ]
    initializers = [nh.from_array(rng.normal(size=shape).astype(np.float32), name) for name, shape in weights.items()]
    graph = oh.make_graph(
        nodes,
        "kept",
        [oh.make_tensor_value_info("x", 1, ["batch", "time", 2])],
        [oh.make_tensor_value_info("y", 1, ["batch", "time", 3])],
        [*initializers, nh.from_array(np.array([1]), "one")],
    )
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=9)


def examples() -> list[dict[str, np.ndarray]]:
    """Return frames, and what a training aims at."""
    frames = np.random.default_rng(1).normal(size=(4, 1, 12, 2)).astype(np.float32)
    return [{"x": x, "target": np.tanh(np.cumsum(x, 1)[..., :1].repeat(3, -1))} for x in frames]


def train(folder: Path, epochs: int):
    """Train the network, with checkpoints in a folder."""
    model = jaxrnn.load(folder / "network.onnx")
    loss, checkpoints = losses.mse("y", "target", time_axis=1), folder / "checkpoints"
    sequences = Sequences(time_axis=1)
    return fit(
        model,
        examples(),
        loss,
        epochs=epochs,
        batch_size=2,
        sequences=sequences,
        checkpoints=checkpoints,
        progress=False,
    )


def main(folder: Path) -> None:
    """Write a stream as a compiled file and as ONNX, a state and what follows, checkpoints, and results."""
    folder.mkdir(parents=True)
    onnx.save(network(), folder / "network.onnx")
    model = jaxrnn.load(folder / "network.onnx")
    streamed = model.stream("time", pulse=4)
    jaxrnn.save_compiled(streamed, folder / "stream.jaxrnn", params=model.params)
    jaxrnn.export_onnx(streamed, model.params, folder / "stream.onnx", flush=folder / "flush.onnx")
    run, x = jaxrnn.Runner(streamed, model.params), examples()[0]["x"]
    run({"x": x[:, :4]})
    np.savez(folder / "state.npz", **run.state)
    np.savez(folder / "after.npz", x=x[:, 4:8], y=run({"x": x[:, 4:8]})["y"])
    train(folder, epochs=2)
    with tempfile.TemporaryDirectory() as place:
        evaluate(Path(place))
        shutil.copytree(Path(place) / "results", folder / "results", ignore=shutil.ignore_patterns("*.html", "*.svg"))


def evaluate(place: Path) -> subprocess.CompletedProcess[str]:
    """Evaluate the packaged denoiser on three recordings, by command, into ``results`` in a folder."""
    rng, rows = np.random.default_rng(2), ["path,reference"]
    for index in range(3):
        clean = np.sin(np.arange(4000) * (0.1 + 0.05 * index)) / 4
        for name, sound in (("clean", clean), ("noisy", clean + rng.normal(size=4000) / 20)):
            soundfile.write(place / f"{name}{index}.wav", sound, RATE)
        rows.append(f"noisy{index}.wav,clean{index}.wav")
    (place / "corpus.csv").write_text("\n".join(rows))
    (place / "settings.yaml").write_text(SETTINGS.replace("MODEL", str(jaxrnn.demo.PACKAGED)))
    command = [sys.executable, "-m", "jaxrnn", "evaluate", str(place / "settings.yaml")]
    return subprocess.run(command, capture_output=True, text=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
