"""Time and peak memory of a layer as frames, hidden units, batch and layers grow, each point in a fresh process."""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxrnn
from benchmarks.layers import onnx_layer
from benchmarks.plan import Cases, Plan
from benchmarks.processes import forget_peak, peak_bytes, run_child
from benchmarks.results import Row, row_of

TITLE = "a layer as it grows"
UNIT = "ms"

#: The common point of the sweeps: frames, hidden units, batch, layers.
BASE = {"T": 250, "H": 128, "B": 8, "layers": 1}
SWEEPS = {
    "T": (125, 250, 500, 1000, 2000, 4000),
    "H": (32, 64, 128, 256, 512),
    "B": (1, 4, 16, 64, 128),
    "layers": (1, 2, 4, 8),
}
#: The sweeps of a quick run, with two points each.
QUICK = ("T", "H")
KINDS = ("LSTM", "GRU")
DIRECTIONS = ("forward", "backward")

TIME, MEMORY, PLANNED = "exponent of time", "exponent of peak memory", "exponent of planned memory"


def cases(plan: Plan) -> Cases:
    """Return a case for each sweep."""
    return {
        f"{kind} {direction}, {size} grows": functools.partial(_rows, plan, kind, direction, size)
        for kind in (KINDS[:1] if plan.quick else KINDS)
        for direction in DIRECTIONS
        for size in (QUICK if plan.quick else SWEEPS)
    }


def _rows(plan: Plan, kind: str, direction: str, size: str) -> Iterator[Row]:
    points = SWEEPS[size][:2] if plan.quick else SWEEPS[size]
    group = f"{kind} {direction}, {size} grows"
    rows = []
    for value in points:
        sizes = {**BASE, size: value}
        job = {"kind": kind, "direction": direction, "sizes": sizes, "rounds": 3 if plan.quick else 9}
        found = run_child("benchmarks.scale", json.dumps(job), platform=plan.platform)
        name = f"{kind} {direction} " + " ".join(f"{key}{number}" for key, number in sizes.items())
        row = row_of(name, group, {"jaxrnn": found["us"]})
        row.facts |= {
            "sweep": size,
            "size": value,
            "peak MB": found["peak_bytes"] / 1e6,
            "planned MB": found["planned_bytes"] / 1e6,
        }
        rows.append(row)
    series = {
        TIME: [row.timings["jaxrnn"].median for row in rows],
        MEMORY: [row.facts["peak MB"] for row in rows],
        PLANNED: [row.facts["planned MB"] for row in rows],
    }
    rows[-1].facts |= {what: exponent(points, values) for what, values in series.items()}
    yield from rows


def exponent(sizes: tuple[int, ...], values: list[float]) -> float | None:
    """Fit the p of ``value ~ size**p`` by least squares to the logarithms of the upper half of the sizes.

    In the lower half, constant costs hide the growth.
    """
    first = (len(sizes) - 1) // 2
    kept = [(s, v) for s, v in zip(sizes[first:], values[first:], strict=True) if v > 0]
    if len(kept) < 2:
        return None
    s, v = np.log(np.array(kept)).T
    return float(np.polyfit(s, v, 1)[0])


def measure(job: dict[str, Any]) -> None:
    """Time a size of a layer, and print the growth of memory beyond parameters and the compiled function."""
    sizes = job["sizes"]
    model = jaxrnn.load(onnx_layer(job["kind"], sizes["H"], layers=sizes["layers"]))
    shape = (sizes["T"], sizes["B"], sizes["H"])
    x = jax.device_put(np.random.default_rng(1).standard_normal(shape, np.float32))

    def forward(params: Any, x: jax.Array) -> jax.Array:
        return model.apply(params, {"X": x})["Y"]

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return jnp.mean(forward(params, x) ** 2)

    function = forward if job["direction"] == "forward" else jax.grad(loss, (0, 1))
    params = jax.device_put(dict(model.params))
    compiled = jax.jit(function).lower(params, x).compile()
    planned = compiled.memory_analysis()
    before = forget_peak()
    samples = []
    for _ in range(job["rounds"] + 1):
        start = time.perf_counter_ns()
        jax.block_until_ready(compiled(params, x))
        samples.append((time.perf_counter_ns() - start) / 1000)
    report = {
        "us": samples[1:],
        "peak_bytes": max(peak_bytes() - before, 0),
        "planned_bytes": planned.temp_size_in_bytes + planned.output_size_in_bytes if planned else 0,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    measure(json.loads(sys.argv[1]))
