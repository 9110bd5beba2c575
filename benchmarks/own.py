"""Forms of a step in jaxrnn with the interface of the peers."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

import jaxrnn
from benchmarks.peers import Arrays, Network

if TYPE_CHECKING:
    from jaxrnn.streaming import Streamed

#: Names of the forms; the first form is compared with the peers.
RUNNER = "jaxrnn"
JITTED = "jaxrnn, step under jit"
ON_DEVICE = "jaxrnn, jit, device arrays"
EXECUTABLE = "jaxrnn, bare executable"
IN_LITERT = "jaxrnn's file in LiteRT"


class Jitted:
    """The bare step under ``jax.jit``, as in research code, with packed parameters as an argument; NumPy in and out."""

    def __init__(self, function: jaxrnn.Model | Streamed, params: Any, start: Mapping[str, Any]):
        self._step, self._params, self._start = jax.jit(function.step), params, dict(start)
        self.reset()

    def reset(self) -> None:
        """Restore the first state."""
        self._state = self._start

    def __call__(self, frame: Arrays) -> dict[str, Any]:
        """Return the outputs of one step."""
        outputs, self._state = self._step(self._params, self._state, frame)
        return {name: np.asarray(value) for name, value in outputs.items() if value is not None}


class OnDevice(Jitted):
    """The step under ``jax.jit`` with device arrays in and out, until the outputs are ready."""

    def place(self, frame: Arrays) -> dict[str, jax.Array]:
        """Copy the frame to the device."""
        return {name: jax.device_put(array) for name, array in frame.items()}

    def __call__(self, frame: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs of one step."""
        outputs, self._state = self._step(self._params, self._state, frame)
        return jax.block_until_ready(outputs)


class Executable:
    """The compiled step of a `jaxrnn.Runner` on a CPU, called as the runner calls it.

    The difference to the time of the runner is the overhead of the runner.
    """

    def __init__(self, runner: jaxrnn.Runner):
        # The compiled step is private to the runner; there is no other way to time it.
        loaded, state, _ = runner._live.value  # pyright: ignore[reportPrivateUsage]
        self._step, self._state = loaded._step, jax.tree.map(lambda array: array + 0, state)

    def __call__(self, frame: Arrays) -> Any:
        """Return the outputs of one step."""
        outputs, _, self._state = self._step(self._state, frame)
        return outputs


def executable_of(runner: jaxrnn.Runner, frame: Arrays) -> Executable | None:
    """Return the compiled step of a runner; None for another kind of step, or with 64-bit types."""
    arrays = [*frame.values(), *runner.state.values()]
    if any(array.dtype.itemsize == 8 for array in arrays):
        return None
    try:
        made = Executable(runner)
        made(frame)
    except (AttributeError, TypeError, ValueError):
        return None
    return made


def steppers(model: jaxrnn.Model, dims: Mapping[str, int]) -> dict[str, Any]:
    """Return the steps of a model with NumPy inputs and outputs, by the name of the form."""
    start = model.init()
    packed = model.pack(model.params, dims=dims)
    return {RUNNER: jaxrnn.Runner(model, model.params), JITTED: Jitted(model, packed, start)}


def in_litert(model: jaxrnn.Model, network: Network, threads: int, dims: Mapping[str, int]) -> Any:
    """Return the step as a LiteRT file that jaxrnn exports, opened and called as the files of others."""
    from benchmarks.peers import litert

    sizes = {name: size for name, size in dims.items() if name != model.spec.batch_symbol}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.tflite"
        jaxrnn.export.export_litert(model, model.params, path, dims=sizes)
        # The file has no inputs with fixed values.
        return litert.open_file(path, dataclasses.replace(network, fixed={}), threads)
