"""Steps, streams, recordings, layers and training on ``jax.devices()[0]``, with the used share of the device's limits.

PyTorch runs beside jaxrnn, with cuDNN on an NVIDIA GPU. All cases also run on a CPU, and a fact marks the result. The
first cases compare the values of the device with those of the CPU. ``python -m benchmarks.accelerator`` is a quick run
that needs only JAX, onnx, onnx-ir, flax and optax, and PyTorch for the peer, and begins no case after six minutes.

Operations and bytes are XLA's costs of a frame times the number of frames, since XLA counts the body of a loop once.
Bytes therefore count weights again for each frame, as without a cache.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import sys
import timeit
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxrnn
from benchmarks import own, scale, start, train
from benchmarks.batches import stacked_frames
from benchmarks.layers import name_of, onnx_layer, weights
from benchmarks.networks import PACKAGED_NAME, RATE, SPEECH, Entry, load, path_of, random_frames
from benchmarks.peers import engine_module, is_installed
from benchmarks.plan import Cases, Plan, timed
from benchmarks.results import Row, row_of, save
from benchmarks.sequence import sequence
from benchmarks.timing import Call, check

TITLE = "on the first device that JAX has, device arrays in and out"
UNIT = "us"

#: The largest difference of float32 outputs: a GPU may multiply matrices in TensorFloat-32, with 10 bits.
ROUGH = 1e-2


@dataclass(frozen=True)
class Sizes:
    """The sizes of a run: live streams, recordings at once, and hidden units, frames and batches of layers."""

    streams: tuple[int, ...]
    recordings: tuple[int, ...]
    layers: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


#: By "accelerator" and "quick". A quick run on an accelerator has the ends of each range.
SIZES = {
    (True, False): Sizes((64, 512, 4096), (64, 256, 1024), ((128, 512), (500,), (1, 32, 256))),
    (True, True): Sizes((64, 4096), (256,), ((128, 512), (500,), (1, 64))),
    (False, False): Sizes((64, 512), (64,), ((128, 512), (500,), (1, 32))),
    (False, True): Sizes((16,), (16,), ((64,), (50,), (1,))),
}


def cases(plan: Plan) -> Cases:
    """Return values, steps, live streams, training, layers and recordings; on an accelerator also starts and growth."""
    on_accelerator = jax.devices()[0].platform != "cpu"
    sizes, networks = SIZES[on_accelerator, plan.quick], _networks()
    found: Cases = {"limits of the device": _limits}
    found |= {f"{entry.file}, values": functools.partial(_values, plan, entry) for entry in networks}
    found |= {f"{entry.file}, a step": functools.partial(_step, plan, entry) for entry in networks}
    for count, entry in itertools.product(sizes.streams, networks):
        found[f"{entry.file}, {count} live streams"] = functools.partial(_pool, plan, entry, count)
    for kind, hidden, frames, batch in itertools.product(("LSTM", "GRU"), *sizes.layers):
        name = name_of(kind, hidden, frames, batch)
        found[f"{name}, training"] = functools.partial(_training, plan, kind, hidden, frames, batch)
        found[name] = functools.partial(_layer, plan, kind, hidden, frames, batch)
    for count, entry in itertools.product(sizes.recordings, networks):
        found[f"{entry.file}, a corpus of {count} recordings"] = functools.partial(_recordings, plan, entry, count)
    if on_accelerator and not plan.quick:
        elsewhere = dataclasses.replace(plan, platform=None)
        found |= start.cases(elsewhere) | scale.cases(elsewhere)
    return found


def _networks() -> list[Entry]:
    """Return the packaged denoiser, and the networks whose files are here."""
    found = [Entry(PACKAGED_NAME, 128, dims={"batch": 1, "time": 1})]
    for entry in SPEECH:
        with contextlib.suppress(FileNotFoundError):
            path_of(entry.file)
            found.append(entry)
    return found


@functools.cache
def peaks() -> tuple[float, float]:
    """Measure the limits of the first device.

    Returns:
        Operations per second of a large matrix product, and bytes per second of a loop over an array beyond all caches.
    """
    flops = 0.0
    for side in (512, 1024, 2048, 4096, 8192):
        matrix = jnp.ones((side, side), jnp.float32)
        seconds = _shortest(lambda a: a @ a, matrix)
        flops = max(flops, 2.0 * side**3 / seconds)
        if seconds > 5e-3:
            break
    array, times = jnp.ones(1 << 26, jnp.float32), 4
    seconds = _shortest(lambda a: jax.lax.fori_loop(0, times, lambda _, b: b * jnp.float32(0.999), a), array)
    return flops, 2.0 * times * array.nbytes / seconds


def _shortest(function: Callable[..., Any], array: jax.Array) -> float:
    """Return the seconds of the fastest of a few calls."""
    compiled = jax.jit(function).lower(array).compile()
    jax.block_until_ready(compiled(array))
    return min(timeit.repeat(lambda: jax.block_until_ready(compiled(array)), number=1, repeat=5))


def cost_of(function: Callable[..., Any], *arguments: Any) -> np.ndarray:
    """Return XLA's counts of operations and bytes for a function; bodies of loops count once."""
    found: Any = jax.jit(function).lower(*arguments).compile().cost_analysis() or {}
    return np.array([found.get("flops", 0.0), found.get("bytes accessed", 0.0)], float)


def rates(spent: np.ndarray, microseconds: float) -> dict[str, float]:
    """Return operations and bytes per second, and their shares of the `peaks` of the device."""
    flops, traffic = spent / microseconds * 1e6
    return {
        "GFLOP/s": flops / 1e9,
        "of the peak": flops / peaks()[0],
        "GB/s": traffic / 1e9,
        "of the bandwidth": traffic / peaks()[1],
    }


def _limits() -> Iterator[Row]:
    """Yield the limits of the device as a row; a fact marks an accelerator."""
    device = jax.devices()[0]
    facts = {
        "device": device.device_kind,
        "an accelerator": "no: this is a CPU" if device.platform == "cpu" else "yes",
        "GFLOP/s": peaks()[0] / 1e9,
        "GB/s": peaks()[1] / 1e9,
    }
    yield row_of("limits of the device", "limits", {}, facts=facts)


def _values(plan: Plan, entry: Entry) -> Iterator[Row]:
    """Compare steps on the device with steps on the CPU, at full precision and at the default precision."""
    model = load(entry)
    frames = [random_frames(model, entry.dims, seed=seed) for seed in range(20)]

    def outputs(device: Any, precision: str | None) -> dict[str, np.ndarray]:
        with jax.default_device(device), jax.default_matmul_precision(precision or "default"):
            step, state, found = jax.jit(model.step), model.init(), []
            for frame in frames:
                made, state = step(model.params, state, frame)
                found.append({name: np.asarray(value) for name, value in made.items()})
        return {name: np.stack([each[name] for each in found]) for name in found[0]}

    device, cpu = jax.devices()[0], jax.devices("cpu")[0]
    expected = {"CPU": outputs(cpu, "highest")}
    name = f"{entry.file}, values"
    exact = check(name, {**expected, "jaxrnn": outputs(device, "highest")})
    facts = {"difference, default precision": check(name, {**expected, "jaxrnn": outputs(device, None)}, ROUGH)}
    yield row_of(name, "values", {}, difference=exact, facts=facts)


def _pool(plan: Plan, entry: Entry, count: int) -> Iterator[Row]:
    """Time a frame of many live streams in a pool, NumPy in and out; the streams of one frame are equal."""
    model = load(entry)
    pool = jaxrnn.StreamPool(model, model.pack(model.params, dims=entry.dims), capacity=count)
    callers, frame = [pool.open() for _ in range(count)], random_frames(model, entry.dims)

    def pooled() -> dict[str, np.ndarray]:
        for caller in callers:
            pool.push(caller, frame)
        results = pool.run()
        return {f"{index}/{name}": value for index in (0, count - 1) for name, value in results[callers[index]].items()}

    run = jaxrnn.Runner(model, model.params)
    several = [pooled() for _ in range(3)]
    alone = [run(frame) for _ in range(3)]
    ends = {
        f"{index}/{name}": np.stack([each[name] for each in alone]) for index in (0, count - 1) for name in alone[0]
    }
    outputs = {"jaxrnn": {key: np.stack([each[key] for each in several]) for key in several[0]}, "a runner": ends}
    name = f"{entry.file}, {count} live streams"
    apart = check(name, outputs, ROUGH)
    row = timed(name, "pool", {"jaxrnn": pooled}, plan.effort(9), outputs={"jaxrnn": outputs["jaxrnn"]})
    row.difference, row.facts["us a stream"] = apart, row.timings["jaxrnn"].median / count
    yield row


def _step(plan: Plan, entry: Entry) -> Iterator[Row]:
    model = load(entry)
    frame = random_frames(model, entry.dims)
    packed = model.pack(model.params, dims=entry.dims)
    here = own.OnDevice(model, packed, model.init())
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
    name = f"{entry.file}, a corpus of {count} recordings"
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


def main() -> None:
    """Run quickly, print rows, write ``accelerator.json``; end with 1 if a case failed or no values were compared."""
    from benchmarks import machine, running

    parser = argparse.ArgumentParser(prog="python -m benchmarks.accelerator", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("accelerator"), help="folder of the result [./accelerator]")
    parser.add_argument("--minutes", type=float, default=6.0, help="begin no case after so many minutes [6]")
    given = parser.parse_args()
    plan = Plan(quick=True, threads=machine.threads("all"), minutes=given.minutes)
    result = running.run(running.ON_FIRST_DEVICE, plan, "all", machine.prepare("all"), print_row)
    print(f"wrote {save(result, given.out)} after {result.seconds:.0f} s")
    for case, reason in result.failures.items():
        print(f"FAILED {case}: {reason}")
    compared = any(row.group == "values" and row.difference is not None for row in result.rows)
    if not compared:
        print("FAILED: no values of the device were compared; give more minutes")
    sys.exit(bool(result.failures) or not compared)


def print_row(row: Row) -> None:
    """Print a row as a line."""
    times = [f"{name} {timing.median:.1f} us" for name, timing in row.timings.items()]
    ratios = [f"over {name} {ratio:.2f}" for name, ratio in row.ratios.items() if name != "best peer"]
    facts = [
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in row.facts.items()
    ]
    apart = [] if row.difference is None else [f"difference {row.difference:.1e}"]
    print(f"{row.name}: {', '.join([*times, *ratios, *apart, *facts, *row.refused.values()])}", flush=True)


if __name__ == "__main__":
    main()
