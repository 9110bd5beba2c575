"""Selection of parameters to train, initial values, and a warning about buffers.

A file does not record which float tensors were buffers of the model. Running statistics are recognised by the operator
that reads the tensor; Fourier bases, windows and filterbanks are recognised by their values. The tests are narrow: each
looks for a structure that training destroys at once.
"""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxrnn._files.messages import near_or_all
from jaxrnn._jax.context import cast_params, check_params, exact_types
from jaxrnn.errors import InputError
from jaxrnn.model import Model
from jaxrnn.onnx.evaluate import Block
from jaxrnn.training.optimizers import Optimizer, Patterns


def trained_names(model: Model, train: Patterns, freeze: Patterns) -> tuple[str, ...]:
    """Return the parameters that match ``train`` but not ``freeze``, in the order of the file."""
    names = list(model.program.parameters)
    matching = _matching(names, train, "train") - _matching(names, freeze, "freeze")
    trained = tuple(name for name in names if name in matching)
    if not trained:
        raise InputError(
            f"train={train!r} without freeze={freeze!r} leaves no parameter to train; the parameters are: "
            f"{', '.join(names[:20]) or 'none'}"
        )
    return trained


def _matching(names: Sequence[str], patterns: Patterns, what: str) -> set[str]:
    matched: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        # A name with special characters of patterns matches itself.
        matches = {name for name in names if name == pattern or fnmatch.fnmatchcase(name, pattern)}
        if not matches:
            raise InputError(f"{what}: no parameter matches {pattern!r}{near_or_all(pattern, names)}")
        matched |= matches
    return matched


def start_values(
    model: Model, params: Mapping[str, Any] | None, trained: Sequence[str], dtype: np.dtype | None
) -> dict[str, jax.Array]:
    """Return the initial parameters, from the caller or the file. Trained parameters must be finite."""
    values = dict(model.params) if params is None else copied(model, params, dtype)
    for name in trained:
        if not finite(values[name]):
            raise InputError(f"parameter {name!r} is not finite everywhere, so it cannot be trained: freeze={name!r}")
    return values


def copied(model: Model, params: Mapping[str, Any], dtype: np.dtype | None) -> dict[str, jax.Array]:
    """Return parameters as JAX arrays in the types of the file, independent of the caller's arrays."""
    with exact_types():
        check_params(params, model.program.parameters, dtype)
        cast = cast_params(params, model.program.parameters)
        return {name: jax.device_put(np.array(value)) for name, value in cast.items()}


def finite(array: Any) -> bool:
    """Return True if all elements of an array of any dtype are finite."""
    array = np.asarray(array)
    if array.dtype.kind in "biuOSU":
        return True
    wide = array if array.dtype.kind in "fc" else array.astype(np.float32)
    return bool(np.isfinite(wide).all())


#: Buffers that a warning lists.
_LISTED = 4
#: Least rows and samples of a basis; any few samples look like a sinusoid.
_ROWS, _SAMPLES = 8, 32
#: Least share of energy around the peak of a windowed sinusoid, and the distance from the peak in bins.
_SHARE, _LOBE = 0.95, 3
#: Points of the spectrum per bin.
_FINE = 4


def warn_of_buffers(model: Model, params: Mapping[str, Any], trained: Sequence[str], optimizer: Optimizer) -> None:
    """Warn of buffers among the trained parameters, apart from parameters that the caller names in full."""
    named = {optimizer.train} if isinstance(optimizer.train, str) else set(optimizer.train)
    buffers = untrained_buffers(model, params, [name for name in trained if name not in named])
    if not buffers:
        return
    listed = ", ".join(f"{name!r} ({kind})" for name, kind in list(buffers.items())[:_LISTED])
    more = f" and {len(buffers) - _LISTED} more" if len(buffers) > _LISTED else ""
    given = [optimizer.freeze] if isinstance(optimizer.freeze, str) else [*optimizer.freeze]
    patterns = [*given, *patterns_for(buffers, list(model.program.parameters))]
    warnings.warn(
        f"this trains parameters that are buffers in most models: {listed}{more}. To keep them unchanged: "
        f"`optimizer=Optimizer(freeze={patterns})`; to train them without this warning, name them in full in `train`",
        UserWarning,
        stacklevel=3,
    )


def untrained_buffers(model: Model, params: Mapping[str, Any], names: Sequence[str]) -> dict[str, str]:
    """Return the kind of each parameter that is a buffer, judged by its role in the graph or its values."""
    statistics = set(_statistics(model.program.block, {}))
    buffers = {}
    for name in names:
        if name in statistics:
            buffers[name] = "running statistics"
        elif kind := kind_of(np.asarray(params[name])):
            buffers[name] = kind
    return buffers


def kind_of(array: np.ndarray) -> str | None:
    """Return "a Fourier basis", "a window" or "a fixed filterbank" for such an array, else None."""
    array = np.squeeze(array).astype(np.float64)
    if array.ndim not in (1, 2) or not array.size or not np.isfinite(array).all():
        return None
    if array.ndim == 1:
        return "a window" if is_window(array) else None
    for matrix in (array, array.T):
        if is_sinusoids(matrix):
            return "a Fourier basis"
        if is_filterbank(matrix):
            return "a fixed filterbank"
    return None


def is_sinusoids(matrix: np.ndarray) -> bool:
    """Return True if the rows are windowed sinusoids at evenly spaced frequencies, at most two per frequency.

    Rows of zeros are sines of frequency 0. Near both ends of the spectrum, the lobes of a frequency and of its mirror
    image merge, wherever the peak is.
    """
    sizes = np.abs(matrix).max(1)
    rows = matrix[sizes > 1e-5 * sizes.max()]
    if len(rows) < _ROWS or matrix.shape[1] < _SAMPLES:
        return False
    if any(_peak(row) is None for row in rows[:: max(1, len(rows) // 4)]):
        return False  # rejects most matrices after a few rows
    peaks = [_peak(row) for row in rows]
    if any(peak is None for peak in peaks):
        return False
    edge = _LOBE * _FINE
    inner = [peak for peak in peaks if peak is not None and edge < peak < _FINE * matrix.shape[1] // 2 - edge]
    places, counts = np.unique(np.asarray(inner, int), return_counts=True)
    # A sine and a cosine of one frequency may have their peaks at neighbouring points.
    starts = np.flatnonzero(np.diff(places, prepend=-edge) > 1)
    if len(starts) < _ROWS // 2:
        return False
    return np.add.reduceat(counts, starts).max() <= 2 and np.ptp(np.diff(places[starts])) <= 2


def _peak(row: np.ndarray) -> int | None:
    power = np.abs(np.fft.rfft(row, _FINE * len(row))) ** 2
    peak = int(power.argmax())
    near = power[max(0, peak - _LOBE * _FINE) : peak + _LOBE * _FINE + 1].sum()
    return peak if near >= _SHARE * power.sum() else None


def is_window(vector: np.ndarray) -> bool:
    """Return True if a vector, or its square, is a sum of a few cosines, such as the windows of Hann and Blackman."""
    size = len(vector)
    if size < _SAMPLES or vector.min() < -1e-6 * vector.max() or np.ptp(vector) <= 0.05 * vector.max():
        return False
    middle = (size - 1) / 2
    for centre, period in ((middle, size - 1), (middle, size), (middle, size + 1), (size / 2, size)):
        cosines = np.cos(2 * np.pi * (np.arange(size) - centre)[:, None] / period * np.arange(4))
        for shape in (vector, vector**2):
            weights, *_ = np.linalg.lstsq(cosines, shape, rcond=None)
            if np.abs(cosines @ weights - shape).max() <= 1e-5 * shape.max():
                return True
    return False


def is_filterbank(matrix: np.ndarray) -> bool:
    """Return True if each row is a nonnegative band that rises and falls once, with bands in ascending order.

    Most bands span several bins. A band narrower than a bin may be empty.
    """
    if min(matrix.shape) < 4 or max(matrix.shape) < _SAMPLES or matrix.min() < 0:
        return False
    bands = matrix[np.any(matrix > 0, axis=1)]
    inside, sizes = bands > 0, np.count_nonzero(bands, axis=1)
    if len(bands) < 4 or inside.mean() > 0.5 or np.median(sizes) < 2:
        return False
    first, last = inside.argmax(1), matrix.shape[1] - 1 - inside[:, ::-1].argmax(1)
    ordered = (np.diff(first) >= 0).all() and (np.diff(last) >= 0).all() and last[0] < last[-1]
    slopes = np.sign(np.diff(bands, axis=1))
    turns = [np.count_nonzero(np.diff(slope[slope != 0])) for slope in slopes]
    return bool(ordered and np.array_equal(sizes, last - first + 1) and max(turns) <= 1)


def patterns_for(buffers: Collection[str], names: Sequence[str]) -> list[str]:
    """Return name patterns that match these buffers and no other names, with one pattern per common ending."""
    patterns: list[str] = []
    for name in buffers:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            continue
        ends = {name[name.rindex(mark) :] for mark in "./_" if mark in name and not set("*?[]") & set(name)}
        for pattern in sorted((f"*{end}" for end in ends), key=len):
            matching = fnmatch.filter(names, pattern)
            if len(matching) > 1 and all(each in buffers for each in matching):
                patterns.append(pattern)
                break
        else:
            patterns.append(name)
    return patterns


def _statistics(block: Block, outer: Mapping[Any, str]) -> Iterator[str]:
    parameters = {**outer, **block.parameters}
    for node in block.nodes:
        for place in node.operator.traits.statistics:
            if node.inputs[place] in parameters:
                yield parameters[node.inputs[place]]
        for inner in node.blocks:
            yield from _statistics(inner, parameters)
