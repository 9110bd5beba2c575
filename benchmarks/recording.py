"""The networks of the examples over a whole recording: one scan here, a call a frame with carried state elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnxruntime as ort

import jaxrnn
from benchmarks.step import AGREEMENT, folder
from benchmarks.timing import Call, Timing, interleaved, largest_difference

SECONDS, RATE = 10, 16_000


@dataclass(frozen=True)
class Network:
    """A network of an example, as it is called there.

    Attributes:
        file: its name.
        hop: new samples of a frame.
        static: inputs that are bound.
        dims: sizes of open dimensions of a frame, the batch among them.
    """

    file: str
    hop: int
    static: Mapping[str, Any]
    dims: Mapping[str, int]


#: Example to the networks that it runs.
EXAMPLES: dict[str, Sequence[Network]] = {
    "dtln_denoise": [Network("dtln_1", 128, {}, {}), Network("dtln_2", 128, {}, {})],
    "silero_vad": [Network("silero_vad", 512, {"sr": 16000}, {"state_dim_1": 1, "input_dim_1": 576})],
    "gtcrn_denoise": [Network("gtcrn", 256, {}, {})],
}


def load_network(network: Network) -> tuple[Path, jaxrnn.Model]:
    """Where the network's file is, and the model."""
    path = folder() / f"{network.file}.onnx"
    return path, jaxrnn.load(path, static=network.static)


def random_frames(model: jaxrnn.Model, dims: Mapping[str, int], *lead: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Frames ``[*lead, *shape of the input]``, of the level of speech."""
    rng = np.random.default_rng(seed)
    frames = {}
    for info in model.step_inputs:
        shape = (size if isinstance(size, int) else dims[size] for size in info.shape or ())
        frames[info.name] = (0.1 * rng.standard_normal((*lead, *shape))).astype(info.dtype)
    return frames


def session_of(path: Path) -> ort.InferenceSession:
    """The peer, on one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def contenders(network: Network, seconds: float) -> dict[str, Call]:
    """The same frames through the network in each engine, from NumPy arrays to NumPy arrays."""
    path, model = load_network(network)
    count = round(seconds * RATE) // network.hop
    frames = random_frames(model, network.dims, count)
    packed, scan = model.pack(model.params, dims=network.dims), jax.jit(model.scan)
    start = model.init_state()

    def here() -> dict[str, np.ndarray]:
        outputs, _ = scan(packed, start, frames)
        return {name: np.asarray(value) for name, value in outputs.items()}

    session = session_of(path)
    fixed = {name: np.asarray(value) for name, value in network.static.items()}
    outputs = [info.name for info in model.step_outputs]
    state = [(str(variable.input), str(variable.output)) for variable in model.state]
    wanted = [*outputs, *(updated for _, updated in state)]
    zeros = {name: np.asarray(value) for name, value in start.items()}
    carried = {str(variable.input): zeros[variable.name] for variable in model.state}

    def onnx_runtime() -> dict[str, np.ndarray]:
        carry, kept = carried, []
        for index in range(count):
            results = session.run(wanted, {**{name: x[index] for name, x in frames.items()}, **carry, **fixed})
            kept.append(results[: len(outputs)])
            carry = {given: value for (given, _), value in zip(state, results[len(outputs) :], strict=True)}
        return {name: np.stack([results[i] for results in kept]) for i, name in enumerate(outputs)}

    return {"jaxrnn": here, "ONNX Runtime": onnx_runtime}


def both(networks: Sequence[Mapping[str, Call]]) -> dict[str, Call]:
    """The networks of an example one after another."""

    def joined(engine: str) -> Call:
        def call() -> dict[str, Any]:
            return {
                f"{index}/{name}": value
                for index, calls in enumerate(networks)
                for name, value in calls[engine]().items()
            }

        return call

    return {engine: joined(engine) for engine in networks[0]}


def run(quick: bool) -> dict[str, dict[str, Timing | float]]:
    """Timings of every example's networks by engine, with the largest difference between their outputs."""
    results: dict[str, dict[str, Timing | float]] = {}
    for example, networks in EXAMPLES.items():
        calls = both([contenders(network, SECONDS) for network in networks])
        difference = largest_difference(calls)
        if not difference <= AGREEMENT:
            raise RuntimeError(f"{example}: the engines differ by {difference}; nothing is timed that is not the same")
        timings = interleaved(calls, rounds=3 if quick else 15, calls_a_round=1)
        results[example] = {**timings, "difference": difference}
    return results
