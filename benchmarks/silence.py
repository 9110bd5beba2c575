"""Time of a step during sound and after a minute of silence, by engine: ``python -m benchmarks.silence``.

In silence, a state that decays reaches subnormal numbers (below 1.2e-38 in float32), with which processors compute
many times slower, unless an engine flushes these to zero. Each engine runs in a fresh process, because the mode of the
processor belongs to the thread.
"""

from __future__ import annotations

import concurrent.futures
import functools
import importlib.util
import multiprocessing
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import jax
import jax.numpy as jnp
import numpy as np

import jaxrnn
from benchmarks.networks import PACKAGED_NAME, path_of
from benchmarks.peers import one_line
from benchmarks.report import markdown
from jaxrnn.export import export_litert
from jaxrnn.export.engines import InEngine, engines_of, read_pair
from jaxrnn.model.streaming import time_symbols
from jaxrnn.steps.stepper import Bound
from jaxrnn.steps.stepspec import StepSpec

#: Recursive filters, whose states decay in silence to subnormal numbers. Biases hold the states of most networks up.
FILTERS = "256 recursive filters"
#: Networks with a recurrence, and the steps in a second.
NETWORKS = {
    PACKAGED_NAME: 125,
    "dtln_1": 125,
    "gtcrn": 62,
    "filter_net": 100,
    "speech/rnnoise_script": 100,
    FILTERS: 100,
}
ENGINES = ("JAX", "ONNX Runtime", "ONNX Runtime, set_denormal_as_zero", "LiteRT")


def filters(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return mixtures of the outputs of recursive filters."""
    poles = jnp.linspace(0.5, 0.999, 256, dtype=jnp.float32)
    mixed = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)

    def step(h: Any, x: Any) -> tuple[Any, Any]:
        h = poles * h + x
        return h, h @ mixed

    return {"y": jax.lax.scan(step, jnp.zeros(256), arrays["x"])[1]}


def bound(name: str) -> Bound:
    """Return the step of a network with state inputs, or the stream of an offline network."""
    if name == FILTERS:
        return Bound(jaxrnn.stream(filters, {"x": np.zeros((8, 256), np.float32)}, axes=0), None)
    model = jaxrnn.load(path_of(name), static={"h": 0} if name == PACKAGED_NAME else None)
    if {each.kind for each in model.state} == {"external"} and name != PACKAGED_NAME:
        return Bound(model, model.params)
    (symbol,) = time_symbols(model)[:1]
    return Bound(model.stream(symbol), model.params)


def _in_file(step: Bound, engine: str, folder: Path) -> InEngine:
    if engine == "LiteRT":
        export_litert(step.stepper, step.params, folder / "step.tflite")
        file, _ = read_pair(folder / "step.tflite")
        return InEngine(engines_of(file, "auto")[0], file, None)
    jaxrnn.export_onnx(step.stepper, step.params, folder / "step.onnx", step=isinstance(step.stepper, jaxrnn.Model))
    file, _ = read_pair(folder / "step.onnx")
    return InEngine(functools.partial(_Session, flushes="denormal" in engine), file, None)


class _Session:
    """A file in ONNX Runtime with one thread."""

    def __init__(self, path: Path, *, flushes: bool):
        import onnxruntime

        self.name, options = "ONNX Runtime", onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        if flushes:
            options.add_session_config_entry("session.set_denormal_as_zero", "1")
        self._session = onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
        self._outputs = [each.name for each in self._session.get_outputs()]

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return all outputs."""
        return dict(zip(self._outputs, self._session.run(None, dict(feeds)), strict=True))


def measured(name: str, engine: str, seconds: float) -> tuple[float, float, float, int]:
    """Return microseconds of a step in sound, in the slowest second of silence and in its last second.

    These are medians over a second. The last number is that of subnormal elements in the state at the end.
    """
    step = bound(name)
    rng, count = np.random.default_rng(0), NETWORKS[name]
    sounds = [_frame(step.spec, rng) for _ in range(count)]
    silent = {key: np.zeros_like(array) for key, array in sounds[0].items()}
    with tempfile.TemporaryDirectory() as folder:
        run: jaxrnn.Runner | _Carried
        if engine == "JAX":
            run = jaxrnn.Runner(step.stepper, step.params)
        else:
            run = _Carried(_in_file(step, engine, Path(folder)))
        medians = []
        for second in range(int(seconds) + 4):
            times = []
            for frame in sounds if second < 4 else [silent] * count:
                began = time.perf_counter()
                run(frame)
                times.append(time.perf_counter() - began)
            medians.append(float(np.median(times)) * 1e6)
        entries = [np.asarray(each) for key, each in run.state.items() if not key.startswith("jaxrnn.")]
    floats = [np.abs(each) for each in entries if each.dtype == np.float32]
    tiny = sum(int(np.count_nonzero((each > 0) & (each < np.finfo(np.float32).tiny))) for each in floats)
    return medians[3], max(medians[4:]), medians[-1], tiny


class _Carried:
    """A file in an engine with its state."""

    def __init__(self, steps: InEngine):
        self._steps, self.state = steps, steps.begin()

    def __call__(self, frame: Mapping[str, np.ndarray]) -> None:
        _, self.state = self._steps(self.state, frame)


def _frame(spec: StepSpec, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        each.name: (0.1 * rng.standard_normal(each.sized(dict.fromkeys(each.symbols, 1)).sizes)).astype(each.dtype)
        for each in spec.inputs
    }


@click.command()
@click.option("--seconds", default=60.0, show_default=True, help="Silence, in seconds of sound.")
@click.option("--only", multiple=True, metavar="NAME", help="Networks whose name contains it; may be repeated.")
def main(seconds: float, only: tuple[str, ...]) -> None:
    """Print a table: the time of a step in sound, in the slowest second of silence, and in its last second."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows = []
    for name in NETWORKS:
        for engine in ENGINES:
            if only and not any(each in name for each in only):
                continue
            if engine == "LiteRT" and not all(map(importlib.util.find_spec, ("ai_edge_litert", "litert_converter"))):
                continue
            # A process for each, because an engine changes the mode of the thread that opens a file.
            context = multiprocessing.get_context("spawn")
            with concurrent.futures.ProcessPoolExecutor(1, context) as process:
                try:
                    *times, tiny = process.submit(measured, name, engine, seconds).result()
                except Exception as error:  # one engine must not end the others
                    rows.append([name, engine, f"not run: {one_line(error)}", "", "", ""])
                    continue
            rows.append([name, engine, *(f"{each:.1f}" for each in times), str(tiny)])
    head = ["network", "engine", "sound, us", "slowest second", "last second", "subnormal numbers in the state"]
    click.echo(markdown(head, rows))


if __name__ == "__main__":
    main()
