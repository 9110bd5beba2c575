"""Parameters that nobody means to train: running statistics, and bases, windows and filterbanks that are computed.

A file does not say which of its float tensors were buffers of the model. The inputs of an operator do for running
statistics; the others are known by what they are. The tests are narrow: each looks for a structure that training
destroys at once.
"""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrnn.model import Model
from jaxrnn.onnx.evaluate import Block
from jaxrnn.training.optimizers import Optimizer
from jaxrnn.training.options import optimizer_argument

#: Buffers that a warning lists.
_LISTED = 4
#: A basis has this many rows and samples at least; fewer samples look like a sinusoid whatever they are.
_ROWS, _SAMPLES = 8, 32
#: How much of the energy of a windowed sinusoid is around its peak, and how far from it, in bins.
_SHARE, _LOBE = 0.95, 3
#: Points of the spectrum for each bin.
_FINE = 4


def warn_of_buffers(model: Model, params: Mapping[str, Any], trained: Sequence[str], optimizer: Optimizer) -> None:
    """Warn of buffers among the parameters that are trained, but for those that the caller names in full."""
    named = {optimizer.train} if isinstance(optimizer.train, str) else set(optimizer.train)
    buffers = untrained_buffers(model, params, [name for name in trained if name not in named])
    if not buffers:
        return
    listed = ", ".join(f"{name!r} ({kind})" for name, kind in list(buffers.items())[:_LISTED])
    more = f" and {len(buffers) - _LISTED} more" if len(buffers) > _LISTED else ""
    given = [optimizer.freeze] if isinstance(optimizer.freeze, str) else [*optimizer.freeze]
    patterns = [*given, *patterns_for(buffers, list(model.program.parameters))]
    warnings.warn(
        f"this trains what is a buffer in most models: {listed}{more}. To keep them as they are: "
        f"{optimizer_argument(freeze=patterns)}; those that `train` names in full are trained without this warning",
        UserWarning,
        stacklevel=3,
    )


def untrained_buffers(model: Model, params: Mapping[str, Any], names: Sequence[str]) -> dict[str, str]:
    """Which of these parameters are buffers by their role in the graph or by their values, and what they are."""
    statistics = set(_statistics(model.program.block, {}))
    buffers = {}
    for name in names:
        if name in statistics:
            buffers[name] = "running statistics"
        elif kind := kind_of(np.asarray(params[name])):
            buffers[name] = kind
    return buffers


def kind_of(array: np.ndarray) -> str | None:
    """What an array was computed as: a Fourier basis, a window or a filterbank; None for anything else."""
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
    """Whether the rows are windowed sinusoids at evenly spaced frequencies, no more than two at each.

    Rows of zeros are the sines of the frequency 0. Near both ends of the spectrum the lobes of a frequency and of its
    mirror image are one, wherever its peak is.
    """
    sizes = np.abs(matrix).max(1)
    rows = matrix[sizes > 1e-5 * sizes.max()]
    if len(rows) < _ROWS or matrix.shape[1] < _SAMPLES:
        return False
    if any(_peak(row) is None for row in rows[:: max(1, len(rows) // 4)]):
        return False  # most matrices, at the price of a few rows
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
    """Where the spectrum of a windowed sinusoid has its peak; None where the row is none."""
    power = np.abs(np.fft.rfft(row, _FINE * len(row))) ** 2
    peak = int(power.argmax())
    near = power[max(0, peak - _LOBE * _FINE) : peak + _LOBE * _FINE + 1].sum()
    return peak if near >= _SHARE * power.sum() else None


def is_window(vector: np.ndarray) -> bool:
    """Whether a vector, or its square, is a sum of a few cosines, as the windows of Hann, Hamming and Blackman are."""
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
    """Whether each row is a band, 0 or more, that rises and falls once, most of several bins, going up with the rows.

    A band that is narrower than a bin may be empty.
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
    """Name patterns that match these buffers and none of the other names; one for all that end alike."""
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
    """The parameters that are running statistics in a block and in those inside of it."""
    parameters = {**outer, **block.parameters}
    for node in block.nodes:
        for place in node.operator.traits.statistics:
            if node.inputs[place] in parameters:
                yield parameters[node.inputs[place]]
        for inner in node.blocks:
            yield from _statistics(inner, parameters)
