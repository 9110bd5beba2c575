"""Whether frames after the end of an example change what a model and a loss give for those that exist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxrnn._jax.context import exact_types
from jaxrnn.errors import InputError
from jaxrnn.training.batches import BatchChunk
from jaxrnn.training.forward import Forward

Outputs = dict[str, np.ndarray]
#: An example with its mask: without padding, and with it.
Sides = tuple[tuple[Any, jax.Array], ...]


def check_padding(forward: Forward, params: Mapping[str, Any], chunk: BatchChunk, labels: list[str]) -> None:
    """Compare the loss of the shortest example of a batch with and without its padding.

    A loss may forget its mask. And but for `Model.scan`, which knows how long each recording is, the graph sees the
    frames that are not there: harmless where it never looks ahead, but a reverse recurrence or a mean over time does.

    Raises:
        InputError: the losses differ; says whether it is the model or the loss.
    """
    arrays, mask, weights = chunk.own
    counts = np.where(weights, mask.sum(1), mask.shape[1])
    row, frames = int(counts.argmin()), int(counts.min())
    if frames == mask.shape[1]:
        return
    long = {name: array[row] for name, array in arrays.items()}
    short = {name: _cut(array, forward.layout.axes.get(name), frames, mask.shape[1]) for name, array in long.items()}
    with exact_types():
        values = jax.device_put({name: np.asarray(value) for name, value in params.items()})
        state = {} if forward.layout.mode == "apply" else forward.model.init()
        sides = jax.device_put(((short, np.ones(frames, bool)), (long, mask[row])))

    @jax.jit
    def run(sides: Sides) -> list[Any]:
        return [forward.run(values, state, *side, True)[0] for side in sides]

    @jax.jit
    def judge(outputs: Sequence[Any], sides: Sides) -> list[jax.Array]:
        return [forward.judge(*each)[0] for each in zip(outputs, *zip(*sides, strict=True), strict=True)]

    low_precision = forward.dtype is not None or any(x.dtype.itemsize == 2 for x in values.values())
    tolerance = 0.05 if low_precision else 1e-3

    def losses(outputs: Sequence[Any]) -> tuple[float, float, bool]:
        short, long = map(float, judge(outputs, sides))
        return short, long, abs(long - short) > tolerance * (abs(long) + abs(short) + 1e-3)

    said = f"{labels[row]} was padded from {frames} to {mask.shape[1]} frames, and that changes its loss"
    *_, differ = losses(_made_up(*jax.eval_shape(run, sides)))
    if differ:
        raise InputError(
            f"{said}, also where the model's outputs are the same in every frame that exists: the loss must leave out "
            "the frames where its mask is False"
        )
    if forward.layout.mode == "scan":
        return
    without, padded = run(sides)
    expected, actual, differ = losses((without, padded))
    if differ:
        changed = [name for name in without if _differ(without[name], padded[name], tolerance)]
        raise InputError(
            f"{said} from {expected:.6g} to {actual:.6g}, through output {(changed or list(without))[0]!r}: the model "
            "looks ahead, takes a mean over time, or gives its last state. Train it on examples of one length, with "
            "batch_size=1 and bucket=1, in mode 'scan' if it has a state, or through an input of the file that takes "
            "lengths"
        )


def _cut(array: np.ndarray, axis: int | None, frames: int, padded: int) -> np.ndarray:
    if axis is None:
        return array
    return array.take(np.arange(array.shape[axis] * frames // padded), axis)


def _made_up(short: Mapping[str, Any], long: Mapping[str, Any]) -> tuple[Outputs, Outputs]:
    """Outputs of these shapes that agree where both exist, as those of a scan do; zeros where only the longer one does.

    The numbers are between 0 and 1, where every loss is defined.
    """
    rng, without, padded = np.random.default_rng(0), {}, {}
    for name, shape in short.items():
        values = rng.uniform(0.1, 0.9, shape.shape)
        without[name] = values.astype(shape.dtype)
        widths = [(0, more - less) for less, more in zip(shape.shape, long[name].shape, strict=True)]
        padded[name] = np.pad(without[name], widths)
    return without, padded


def _differ(without: Any, padded: Any, tolerance: float) -> bool:
    expected, actual = np.asarray(without, np.float64), np.asarray(padded, np.float64)
    actual = actual[tuple(slice(0, size) for size in expected.shape)]
    scale = np.abs(expected).max(initial=0.0) + 1e-6
    return actual.shape != expected.shape or not np.allclose(
        actual, expected, rtol=0, atol=tolerance * scale, equal_nan=True
    )
