"""Steps, recordings, layers and training on ``jax.devices()[0]``, with the used share of the limits of the device.

PyTorch runs beside jaxrnn, with cuDNN on an NVIDIA GPU. All cases also run on a CPU, and a fact marks the result.

Operations and bytes are XLA's costs of a frame times the number of frames, since XLA counts the body of a loop once.
Bytes therefore count weights again for each frame, as without a cache.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxrnn
from benchmarks import own, scale, start, train
from benchmarks.batches import stacked_frames
from benchmarks.layers import name_of, onnx_layer, weights
from benchmarks.networks import RATE, SPEECH, Entry, load, random_frames
from benchmarks.peers import engine_module, is_installed
from benchmarks.plan import Cases, Plan, timed
from benchmarks.results import Row, row_of
from benchmarks.sequence import sequence
from benchmarks.timing import Call
from jaxrnn.profiling import Peaks, measure_peaks

TITLE = "on the first device that JAX has, device arrays in and out"
UNIT = "us"

#: The largest difference of float32 outputs: a GPU may multiply matrices in TensorFloat-32, with 10 bits.
ROUGH = 1e-2


def cases(plan: Plan) -> Cases:
    """Return steps, batches of recordings, layers and training; on an accelerator also starts and growth."""
    on_cpu = jax.devices()[0].platform == "cpu"
    counts, sizes = (64, 256, 1024), ((128, 512), (500,), (1, 32, 256))
    if plan.quick:
        counts, sizes = (16,), ((64,), (50,), (1,))
    elif on_cpu:
        counts, sizes = (64,), ((128, 512), (500,), (1, 32))
    found: Cases = {"limits of the device": _limits}
    found |= {f"{entry.file}, a step": functools.partial(_step, plan, entry) for entry in SPEECH}
    for entry, count in itertools.product(SPEECH, counts):
        found[f"{entry.file}, {count} recordings"] = functools.partial(_recordings, plan, entry, count)
    for kind, hidden, frames, batch in itertools.product(("LSTM", "GRU"), *sizes):
        name = name_of(kind, hidden, frames, batch)
        found[name] = functools.partial(_layer, plan, kind, hidden, frames, batch)
        found[f"{name}, training"] = functools.partial(_training, plan, kind, hidden, frames, batch)
    if not on_cpu:
        elsewhere = dataclasses.replace(plan, platform=None)
        found |= start.cases(elsewhere) | scale.cases(elsewhere)
    return found


@functools.cache
def peaks() -> Peaks:
    """Measure the limits of the first device: large matrix products, and arrays that exceed all caches."""
    return measure_peaks("float32", sizes=(1 << 28,))


def cost_of(function: Callable[..., Any], *arguments: Any) -> np.ndarray:
    """Return XLA's counts of operations and bytes for a function; bodies of loops count once."""
    found: Any = jax.jit(function).lower(*arguments).compile().cost_analysis() or {}
    return np.array([found.get("flops", 0.0), found.get("bytes accessed", 0.0)], float)


def rates(spent: np.ndarray, microseconds: float) -> dict[str, float]:
    """Return operations and bytes per second, and their shares of the `peaks` of the device."""
    flops, traffic = spent / microseconds * 1e6
    return {
        "GFLOP/s": flops / 1e9,
        "of the peak": flops / peaks().flops,
        "GB/s": traffic / 1e9,
        "of the bandwidth": traffic / max(peaks().bandwidths.values()),
    }


def _limits() -> Iterator[Row]:
    """Yield the limits of the device as a row; a fact marks an accelerator."""
    device = jax.devices()[0]
    facts = {
        "device": device.device_kind,
        "an accelerator": "no: this is a CPU" if device.platform == "cpu" else "yes",
        "GFLOP/s": peaks().flops / 1e9,
        "GB/s": max(peaks().bandwidths.values()) / 1e9,
    }
    yield row_of("limits of the device", "limits", {}, facts=facts)


def _step(plan: Plan, entry: Entry) -> Iterator[Row]:
    model = load(entry)
    frame = random_frames(model, entry.dims)
    packed = model.pack(model.params, dims=entry.dims)
    here = own.OnDevice(model, packed, model.init(), wait=jax.devices()[0].platform != "cpu")
    runner = jaxrnn.Runner(model, model.params)
    calls: dict[str, Call] = {
        "jaxrnn": functools.partial(here, here.place(frame)),
        "jaxrnn, runner, NumPy in and out": functools.partial(runner, frame),
    }
    row = timed(f"{entry.file}, a step", "step", calls, plan.effort(21), agreement=ROUGH)
    cost = cost_of(model.step, packed, model.init(), frame)
    row.facts |= rates(cost, row.timings["jaxrnn"].median)
    yield row


def _recordings(plan: Plan, entry: Entry, count: int) -> Iterator[Row]:
    model, seconds = load(entry), 0.25 if plan.quick else 2.0
    steps = round(seconds * RATE) // entry.hop
    frames = jax.device_put(stacked_frames(model, entry, steps, count))
    packed, start = model.pack(model.params, dims=entry.dims), model.init(count)
    scan = jax.jit(lambda frames: model.scan(packed, start, frames)[0])
    name = f"{entry.file}, {count} recordings"
    row = timed(name, "recordings", {"jaxrnn": lambda: jax.block_until_ready(scan(frames))}, plan.effort(9))
    one = {key: value[0] for key, value in frames.items()}
    cost = cost_of(model.step, packed, start, one) * steps
    took = row.timings["jaxrnn"].median
    row.facts |= {"times real time": count * seconds / (took / 1e6), **rates(cost, took)}
    yield row


def _layer(plan: Plan, kind: str, hidden: int, frames: int, batch: int) -> Iterator[Row]:
    model, x = jaxrnn.load(onnx_layer(kind, hidden)), sequence(hidden, frames, batch)
    placed = jax.device_put(x)
    run = jax.jit(lambda x: model.apply(model.params, {"X": x})["Y"])
    calls: dict[str, Call] = {"jaxrnn": lambda: jax.block_until_ready(run(placed))}
    outputs: dict[str, Any] = {"jaxrnn": {"Y": np.asarray(run(placed))}}
    if is_installed("PyTorch"):
        layer = engine_module("PyTorch").Layer(kind, weights(kind, hidden), plan.threads, _torch_device())
        given = layer.place(x)
        calls[_torch_name()] = functools.partial(layer.forward, given)
        outputs[_torch_name()] = {"Y": layer.forward(given).cpu().numpy()}
    name = name_of(kind, hidden, frames, batch)
    row = timed(name, kind, calls, plan.effort(11), outputs=outputs, agreement=ROUGH)
    cost = cost_of(lambda p, x: model.apply(p, {"X": x})["Y"], model.params, x[:1]) * frames
    row.facts |= rates(cost, row.timings["jaxrnn"].median)
    yield row


def _training(plan: Plan, kind: str, hidden: int, frames: int, batch: int) -> Iterator[Row]:
    row = train.row(plan, kind, hidden, frames, batch, _torch_device(), _torch_name(), ROUGH)
    row.name = f"{row.name}, training"
    model = jaxrnn.load(onnx_layer(kind, hidden))
    x, wanted = (array[:1] for array in train.example(hidden, frames, batch))
    both = jax.value_and_grad(train.loss_of(model), (0, 1))
    row.facts |= rates(cost_of(both, model.params, x, jnp.asarray(wanted)) * frames, row.timings["jaxrnn"].median)
    yield row


def _torch_device() -> str:
    on_gpu = jax.devices()[0].platform == "gpu"
    return "cuda" if on_gpu and engine_module("PyTorch").has_cuda() else "cpu"


def _torch_name() -> str:
    return "PyTorch, cuDNN" if _torch_device() == "cuda" else "PyTorch"
