"""The networks of the benchmarks: files, sizes of frames, and random frames."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import jaxrnn
from benchmarks.built import NETWORKS
from benchmarks.peers import Network
from jaxrnn.demo import PACKAGED

#: Samples of a second of the networks' audio.
RATE = 16_000


@dataclass(frozen=True)
class Entry:
    """A network that is called a frame at a time.

    Attributes:
        file: the name of the file without the suffix.
        hop: new samples in a frame; 0 if frames are not sound.
        static: fixed inputs.
        dims: sizes of open dimensions of a frame, including the batch.
    """

    file: str
    hop: int
    static: Mapping[str, Any] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)


SPEECH = (
    Entry("dtln_1", 128),
    Entry("dtln_2", 128),
    Entry("silero_vad_16k_op15", 512, {"sr": np.asarray(16000)}, {"batch": 1, "sequence": 576}),
    Entry("gtcrn", 256),
)
#: The denoiser of the package, which is always here.
PACKAGED_NAME = "packaged denoiser"
OTHERS = (Entry("predictor_net", 0, {}, {"batch": 1}),)


@dataclass(frozen=True)
class Offline:
    """A network with a time axis ``S``, which is streamed.

    Attributes:
        name: the name of the file, or of the function in `benchmarks.built`.
        pulse: the smallest pulse.
        late: frames after the delay in which the output of tract may be wrong, because wrong first frames remain in
            recurrent layers.
    """

    name: str
    pulse: int = 1
    late: int = 0


OFFLINE = (
    Offline("filter_net", late=40),
    Offline("keyword_net", pulse=2),
    Offline("wave_net", pulse=64),
    Offline("dual_path_net"),
    Offline("convolutional_recurrent"),
    Offline("deep_filter", late=40),
    Offline("dual_path"),
)


@contextlib.contextmanager
def offline_file(network: Offline) -> Iterator[Path]:
    """Yield the file of an offline network; a built network is written to a temporary folder."""
    if network.name not in NETWORKS:
        yield path_of(network.name)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{network.name}.onnx"
        onnx.save(NETWORKS[network.name](), path)
        yield path


def path_of(name: str) -> Path:
    """Return the path of the file of a network; raise FileNotFoundError if the file is missing."""
    if name == PACKAGED_NAME:
        return PACKAGED
    default = Path(__file__).parent.parent.parent / "shared" / "models"
    folder = Path(os.environ.get("JAXRNN_MODELS", default))
    path = folder / f"{name}.onnx"
    if not path.is_file():
        raise FileNotFoundError(f"no {path.name} in {folder}: set JAXRNN_MODELS to the folder of the models")
    return path


def load(entry: Entry) -> jaxrnn.Model:
    """Load the model of a network."""
    return jaxrnn.load(path_of(entry.file), static=entry.static)


def random_frames(model: jaxrnn.Model, dims: Mapping[str, int], *lead: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return random frames ``[*lead, *shape of the input]``: floats at the level of speech, integers 0 and 1."""
    rng = np.random.default_rng(seed)
    frames = {}
    for info in model.spec.inputs:
        shape = (*lead, *(size if isinstance(size, int) else dims[size] for size in info.shape or ()))
        if np.issubdtype(info.dtype, np.floating):
            frames[info.name] = (0.1 * rng.standard_normal(shape, np.float32)).astype(info.dtype)
        else:
            frames[info.name] = rng.integers(0, 2, shape).astype(info.dtype)
    return frames


def describe(entry: Entry, model: jaxrnn.Model) -> Network:
    """Describe the network for the peers."""
    start = {name: np.asarray(value) for name, value in model.init().items()}
    return Network(
        path=path_of(entry.file),
        frame=random_frames(model, entry.dims),
        declared=tuple(info.name for info in model.outputs),
        outputs=tuple(info.name for info in model.spec.outputs),
        state=tuple((str(variable.input), str(variable.output)) for variable in model.state),
        start={str(variable.input): start[variable.name] for variable in model.state},
        fixed={name: np.asarray(value) for name, value in entry.static.items()},
    )
