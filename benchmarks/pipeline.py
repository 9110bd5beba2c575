"""DTLN with transforms over a recording: spectra, the first network, samples, the second network, overlap-add.

All engines take the recording stage by stage, with NumPy's transforms over all blocks at once; jaxrnn also runs as one
JAX function with the transforms inside.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

import jaxrnn
from benchmarks.networks import RATE, SPEECH, describe, load
from benchmarks.peers import Arrays, open_all
from benchmarks.plan import Cases, Plan, timed
from benchmarks.results import Row
from benchmarks.scans import loop, scanner, speed
from benchmarks.timing import Call

BLOCK, HOP = 512, 128
NAME = "DTLN, with its transforms"

#: A function from blocks ``float32[blocks, 1, 1, features]`` to the same number of blocks.
OverBlocks = Callable[[np.ndarray], np.ndarray]


def cases(plan: Plan, seconds: float) -> Cases:
    """Return the case of the whole of DTLN."""
    return {NAME: functools.partial(_rows, plan, seconds)}


def _rows(plan: Plan, seconds: float) -> Iterator[Row]:
    entries = SPEECH[:2]
    models = [load(entry) for entry in entries]
    rng = np.random.default_rng(0)
    samples = (0.1 * rng.standard_normal(round(seconds * RATE))).astype(np.float32)

    def denoiser(overs: list[Callable[[Arrays], dict[str, np.ndarray]]]) -> Call:
        first, second = (over_blocks(over, model) for over, model in zip(overs, models, strict=True))
        return lambda: {"samples": denoise(samples, first, second)}

    whole = jax.jit(functools.partial(denoise_traced, *models))
    scans = [scanner(model, entry.dims) for model, entry in zip(models, entries, strict=True)]
    calls: dict[str, Call] = {
        "jaxrnn": lambda: {"samples": np.asarray(whole(samples))},
        "jaxrnn, transforms in NumPy": denoiser(scans),
    }
    opened = [open_all(describe(e, m), plan.threads) for e, m in zip(entries, models, strict=True)]
    (first, refused), (second, more) = opened
    for engine in first.keys() & second.keys():
        calls[engine] = denoiser([loop(first[engine]), loop(second[engine])])
    row = timed(NAME, "pipeline", calls, plan.effort(15), refused=refused | more)
    row.facts |= speed(row.timings["jaxrnn"].median, seconds, plan.threads)
    yield row


def over_blocks(over: Callable[[Arrays], dict[str, np.ndarray]], model: jaxrnn.Model) -> OverBlocks:
    """Return a network over frames as a function from the only input to the only output."""
    (block,), (result,) = model.spec.inputs, model.spec.outputs
    return lambda blocks: over({block.name: blocks})[result.name]


def denoise(samples: np.ndarray, first: OverBlocks, second: OverBlocks) -> np.ndarray:
    """Run DTLN over ``float32[samples]`` with NumPy around the networks; the output is 384 samples late.

    The stages follow Westhausen and Meyer, "Dual-signal transformation LSTM network for real-time noise
    suppression", Interspeech 2020.
    """
    blocks = np.lib.stride_tricks.sliding_window_view(np.pad(samples, (BLOCK - HOP, 0)), BLOCK)[::HOP]
    spectra = np.fft.rfft(blocks)
    mask = first(np.abs(spectra).astype(np.float32)[:, None, None])[:, 0, 0]
    estimate = np.fft.irfft(spectra * mask).astype(np.float32)
    filtered = second(estimate[:, None, None])[:, 0, 0]
    result = np.zeros((len(filtered) + BLOCK // HOP - 1, HOP), np.float32)
    for part in range(BLOCK // HOP):
        result[part : part + len(filtered)] += filtered[:, part * HOP : (part + 1) * HOP]
    return result.reshape(-1)


def denoise_traced(model_1: jaxrnn.Model, model_2: jaxrnn.Model, samples: jax.Array) -> jax.Array:
    """Denoise as one JAX function."""

    def over(model: jaxrnn.Model, blocks: jax.Array) -> jax.Array:
        (block,), (result,) = model.spec.inputs, model.spec.outputs
        inputs = {block.name: blocks[:, None, None]}
        outputs, _ = model.scan(model.pack(model.params), model.init(), inputs)
        return outputs[result.name][:, 0, 0]

    hops = jnp.pad(samples, (BLOCK - HOP, 0))
    hops = hops[: hops.shape[0] // HOP * HOP].reshape(-1, HOP)
    count, parts = hops.shape[0] - BLOCK // HOP + 1, range(BLOCK // HOP)
    spectra = jnp.fft.rfft(jnp.concatenate([hops[part : part + count] for part in parts], 1))
    estimate = jnp.fft.irfft(spectra * over(model_1, jnp.abs(spectra)))
    filtered = over(model_2, estimate.astype(jnp.float32))
    pieces = filtered.reshape(count, len(parts), HOP)
    padded = [jnp.pad(pieces[:, part], ((part, len(parts) - 1 - part), (0, 0))) for part in parts]
    return sum(padded[1:], padded[0]).reshape(-1)
