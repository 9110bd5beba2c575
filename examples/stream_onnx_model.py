"""Stream an ONNX model that was exported for whole recordings, and time a step.

    python examples/stream_onnx_model.py keyword_net --models ../shared/models --pulse 2

The folder contains networks with an open time axis, such as ``keyword_net.onnx`` and ``filter_net.onnx``. They have
look-ahead, and keep no state between calls. ``model.stream`` turns such a network into a step with state. The script
runs random input pulse by pulse, and compares the outputs with the model on the whole input.
"""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

import click
import jax
import numpy as np
from recordings import MODELS, load_model

import jaxrnn

Arrays = dict[str, Any]

#: Largest relative difference between the two runs: the order of sums differs in each layer, so there are up to a few
#: hundred roundings of float32 (1.2e-7).
TOLERANCE = 1e-5


def random_inputs(model: jaxrnn.Model, axes: dict[str, int], frames: int, seed: int) -> Arrays:
    """Return random input with a number of frames; other open dimensions are 1."""
    rng = np.random.default_rng(seed)
    inputs = {}
    for info in model.inputs:
        shape = [size if isinstance(size, int) else 1 for size in info.shape or ()]
        shape[axes[info.name]] = frames
        inputs[info.name] = rng.normal(size=shape).astype(info.dtype)
    return inputs


def input_axes(model: jaxrnn.Model, symbol: str) -> dict[str, int]:
    """Return the time axis of each input."""
    without = [str(info) for info in model.inputs if symbol not in (info.shape or ())]
    if without:
        raise jaxrnn.InputError(f"{model.label}: this example needs {symbol} in every input, but there is {without[0]}")
    return {info.name: info.shape.index(symbol) for info in model.inputs if info.shape}


def frames_of(arrays: Arrays, axes: dict[str, int], start: int, stop: int) -> Arrays:
    """Return the frames from ``start`` to ``stop`` of arrays with these time axes."""
    return {
        name: np.asarray(x)[tuple(slice(start, stop) if axis == axes[name] else slice(None) for axis in range(x.ndim))]
        for name, x in arrays.items()
    }


def output_axes(model: jaxrnn.Model, inputs: Arrays, axes: dict[str, int]) -> dict[str, int]:
    """Return the time axis of each output: the axis that grows with the input."""
    longer = {name: np.concatenate([x, x], axes[name]) for name, x in inputs.items()}
    some, more = (jax.eval_shape(model.apply, model.params, given) for given in (inputs, longer))
    pairs = {name: zip(some[name].shape, more[name].shape, strict=True) for name in some}
    return {name: [one < other for one, other in pair].index(True) for name, pair in pairs.items()}


def run_live(streamed: jaxrnn.Streamed, params: Any, inputs: Arrays, axes: dict[str, int], frames: int) -> list[Arrays]:
    """Return the outputs of all steps and of the flush."""
    # Closed over, the parameters are constants: no call passes them, and the compiler chooses their layout.
    step = jax.jit(functools.partial(streamed.step, params))
    state, outputs, pulse = streamed.init(params=params), [], streamed.pulse
    whole = frames // pulse * pulse
    for start in range(0, whole, pulse):
        output, state = step(state, frames_of(inputs, axes, start, start + pulse))
        outputs.append(output)
    flushed = streamed.flush(params, state, frames_of(inputs, axes, whole, frames), frames - whole)
    return [*outputs, flushed.outputs]


def compare(outputs: list[Arrays], expected: Arrays, delay: dict[str, int], axes: dict[str, int]) -> None:
    """Print the difference between the outputs without the delay and the outputs for the whole recording."""
    for name, reference in expected.items():
        axis, first = axes[name], delay[name]
        every = {name: np.concatenate([np.asarray(output[name]) for output in outputs], axis)}
        result = frames_of(every, axes, first, first + reference.shape[axis])[name]
        difference = np.max(np.abs(result - reference), initial=0) / max(np.max(np.abs(reference), initial=0), 1e-9)
        click.echo(f"  {name:<8} {result.shape!s:<20} largest difference: {difference:.1e} of the largest number")
        if not difference <= TOLERANCE:
            raise click.ClickException(f"{name} differs by more than {TOLERANCE:.0e}")


def microseconds(streamed: jaxrnn.Streamed, params: Any, pulse: Arrays, *, closed: bool, steps: int = 300) -> float:
    """Return the median time of a step, with the parameters closed over or passed in each call."""
    step = jax.jit(functools.partial(streamed.step, params) if closed else streamed.step)
    arguments = () if closed else (jax.device_put(params),)
    state, times = streamed.init(params=params), []
    for _ in range(steps):
        began = time.perf_counter()
        _, state = jax.block_until_ready(step(*arguments, state, pulse))
        times.append(time.perf_counter() - began)
    return 1e6 * float(np.median(times))


@click.command()
@click.argument("name", default="keyword_net")
@click.option(
    "--models", default=MODELS, show_default=True, type=click.Path(path_type=Path), help="Folder of networks."
)
@click.option("--symbol", default="S", show_default=True, help="The name of the dimension that is time.")
@click.option("--pulse", default=2, show_default=True, type=click.IntRange(1), help="Frames in each step.")
@click.option("--frames", default=101, show_default=True, type=click.IntRange(1), help="Frames of the recording.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of the input.")
def main(name: str, models: Path, symbol: str, pulse: int, frames: int, seed: int) -> None:
    """Stream the network NAME over random input, and compare with the network on the whole input."""
    try:
        (model,) = load_model(models, f"{name}.onnx")
        streamed = model.stream(symbol, pulse)
        click.echo(streamed.table())
        axes = input_axes(model, symbol)
        inputs = random_inputs(model, axes, frames, seed)
        outputs = run_live(streamed, model.params, inputs, axes, frames)
        click.echo(f"\n{frames} frames in pulses of {pulse}, against the whole recording at once:")
        compare(outputs, model(inputs), streamed.delay, output_axes(model, inputs, axes))
    except jaxrnn.JaxrnnError as error:
        raise click.ClickException(str(error)) from error
    one = random_inputs(model, axes, pulse, seed)
    closed, passed = (microseconds(streamed, model.params, one, closed=closed) for closed in (True, False))
    click.echo(f"a step takes {closed:.0f} us with the parameters closed over, {passed:.0f} us with them handed over")


if __name__ == "__main__":
    main()
