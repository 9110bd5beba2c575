"""A fresh process that times one size of a layer and prints the growth of its memory; the argument is a JSON object.

Parameters and the compiled function are loaded before, and do not count.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxrnn
from benchmarks.layers import onnx_layer
from benchmarks.memory import forget_peak, peak_bytes


def main(job: dict[str, Any]) -> None:
    """Run the job and print one JSON object."""
    jax.config.update("jax_cpu_enable_async_dispatch", False)
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
    main(json.loads(sys.argv[1]))
