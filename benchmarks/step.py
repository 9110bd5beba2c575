"""One call of a network that is called a frame at a time: NumPy in, NumPy out, state carried by the caller."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnxruntime as ort

import jaxrnn
from benchmarks.timing import Call, Timing, interleaved, largest_difference

#: Model, sizes of symbolic dimensions, inputs that are bound.
MODELS: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "dtln_1": ({}, {}),
    "dtln_2": ({}, {}),
    "silero_vad_16k_op15": ({"batch": 1, "sequence": 576}, {"sr": np.asarray(16000)}),
    "gtcrn": ({}, {}),
    "predictor_net": ({"batch": 1}, {}),
}

#: A network is timed only if both engines give the same to this much.
AGREEMENT = 1e-4


def folder() -> Path:
    """Where the models are."""
    default = Path(__file__).parent.parent.parent / "shared" / "models"
    return Path(os.environ.get("JAXRNN_MODELS", default))


def contenders(name: str) -> dict[str, Call]:
    """The same step in each engine, on the same inputs."""
    sizes, static = MODELS[name]
    path = folder() / f"{name}.onnx"
    model = jaxrnn.load(path, static=static)
    rng = np.random.default_rng(0)
    inputs = {}
    for info in model.inputs:
        shape = [size if isinstance(size, int) else sizes[size] for size in info.shape or ()]
        values = rng.normal(size=shape) if info.dtype is not None and info.dtype.kind == "f" else np.ones(shape)
        inputs[info.name] = values.astype(info.dtype)

    state_names = {variable.name for variable in model.state}
    state = {name: array for name, array in inputs.items() if name in state_names}
    frame = {name: array for name, array in inputs.items() if name not in state_names}
    updated = {variable.name: str(variable.output) for variable in model.state}
    compiled = jax.jit(model.step)
    params = model.pack(model.params, dims=sizes)

    def here() -> dict[str, Any]:
        outputs, new = compiled(params, state, frame)
        named = outputs | {updated[name]: value for name, value in new.items()}
        return {name: np.asarray(value) for name, value in named.items()}

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [info.name for info in model.outputs]
    everything = {**inputs, **static}

    def onnx_runtime() -> dict[str, Any]:
        return dict(zip(names, session.run(names, everything), strict=True))

    return {"jaxrnn": here, "ONNX Runtime": onnx_runtime}


def run(quick: bool) -> dict[str, dict[str, Timing | float]]:
    """Timings of every model by engine, with the largest difference between their outputs."""
    results: dict[str, dict[str, Timing | float]] = {}
    for name in MODELS:
        calls = contenders(name)
        difference = largest_difference(calls)
        if difference > AGREEMENT:
            raise RuntimeError(f"{name}: the engines differ by {difference}; nothing is timed that is not the same")
        timings = interleaved(calls, rounds=5 if quick else 41, calls_a_round=20 if quick else 200)
        results[name] = {**timings, "difference": difference}
    return results
