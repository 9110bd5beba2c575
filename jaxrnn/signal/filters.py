"""Convolutions, filters and changes of rate for symbolic lengths, which functions of JAX need as integers."""

from __future__ import annotations

import math
from typing import Any

import jax.export
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.lib.array_utils import normalize_axis_index

from jaxrnn._jax import varying
from jaxrnn.errors import InputError, is_count


def convolve(a: Any, v: Any, mode: str = "full", *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """Convolve a vector with a kernel, like ``jax.numpy.convolve``, also for a symbolic size of the vector.

    For n elements of `a` and k elements of `v`, the result has ``n + k - 1`` elements in mode "full", n in mode "same",
    and ``max(n - k + 1, 0)`` in mode "valid". JAX's function differs if ``n < k``: it exchanges the vector and the
    kernel.

    Args:
        a: the vector, such as samples over time.
        v: the kernel, of a fixed size of at least 1.
        mode: "full", "same" or "valid".
        precision: as in JAX.
        preferred_element_type: as in JAX.

    Raises:
        InputError: an operand is not a vector, the size of `v` is symbolic or 0, or the mode is unknown.
    """
    return _correlated("convolve", a, jnp.flip(v), mode, precision, preferred_element_type)


def correlate(a: Any, v: Any, mode: str = "valid", *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """Correlate a vector with a kernel, like ``jax.numpy.correlate``, also for a symbolic size of the vector.

    Sizes, arguments and errors are as in `convolve`.
    """
    return _correlated("correlate", a, jnp.conj(v), mode, precision, preferred_element_type)


def _correlated(name: str, a: Any, v: Any, mode: str, precision: Any, preferred_element_type: Any) -> Any:
    a, v = jnp.asarray(a), jnp.asarray(v)
    if a.ndim != 1 or v.ndim != 1:
        raise InputError(f"{name} takes vectors, not arrays of shapes {a.shape} and {v.shape}; use jax.vmap")
    pads = _pads_of(name, v.shape[0], mode)
    dtype = jnp.promote_types(a.dtype, v.dtype)
    if preferred_element_type is None and not jnp.issubdtype(dtype, jnp.inexact):
        dtype = jnp.result_type(float)
    return lax.conv_general_dilated(
        a.astype(dtype)[None, None],
        v.astype(dtype)[None, None],
        (1,),
        [pads],
        precision=precision,
        preferred_element_type=preferred_element_type,
    )[0, 0]


def _pads_of(name: str, size: Any, mode: str) -> tuple[int, int]:
    """Return the zeros before and after a signal that a kernel of a size reads, after a check."""
    if jax.export.is_symbolic_dim(size) or not size:
        raise InputError(f"the kernel of {name} must have a fixed size of at least 1, not {size}")
    pads = {"full": (size - 1, size - 1), "same": (size // 2, size - size // 2 - 1), "valid": (0, 0)}
    if mode not in pads:
        raise InputError(f"the mode of {name} must be 'full', 'same' or 'valid', not {mode!r}")
    return pads[mode]


def fftconvolve(in1: Any, in2: Any, mode: str = "full", axis: int = -1) -> Any:
    """Convolve arrays along an axis, like ``jax.scipy.signal.fftconvolve``, also for a symbolic size of `in1`.

    The function sums products, so that each sample of a stream is exact, and needs no Fourier transform. The other axes
    of the arrays broadcast. Sizes and modes are as in `convolve`.

    Args:
        in1: the signals, such as ``[channels, samples]``.
        in2: the kernels, with as many axes and a fixed size of at least 1 along the axis.
        mode: "full", "same" or "valid".
        axis: the axis of the convolution, such as time.

    Raises:
        InputError: the numbers of axes differ, or `convolve` refuses the kernel or the mode.
    """
    in1, in2 = _inexact(in1, in2)
    if in1.ndim != in2.ndim:
        raise InputError(f"fftconvolve takes arrays with as many axes, not of shapes {in1.shape} and {in2.shape}")
    axis = _time_axis("fftconvolve", in1, axis)
    signals, kernels = jnp.moveaxis(in1, axis, -1), jnp.moveaxis(in2, axis, -1)
    size, taps = signals.shape[-1], kernels.shape[-1]
    pads = _pads_of("fftconvolve", taps, mode)
    shape = jnp.broadcast_shapes(signals.shape[:-1], kernels.shape[:-1])
    # One kernel for all signals is a batch; a kernel for each signal is a group of channels.
    count = math.prod(kernels.shape[:-1])
    if count > 1:
        count = math.prod(shape)
        kernels = jnp.broadcast_to(kernels, (*shape, taps))
    signals = jnp.broadcast_to(signals, (*shape, size)).reshape(math.prod(shape) // count, count, size)
    kernels = jnp.flip(kernels, -1).reshape(count, 1, taps)
    result = lax.conv_general_dilated(signals, kernels, (1,), [pads], feature_group_count=count)
    return jnp.moveaxis(result.reshape(*shape, result.shape[-1]), -1, axis)


def lfilter(b: Any, a: Any, x: Any, axis: int = -1, zi: Any = None) -> Any:
    """Filter samples with a recursive filter, like ``scipy.signal.lfilter``.

    A pure function of all arguments: gradients with respect to the coefficients work, and `stream` carries the state.

    Args:
        b: the coefficients of the input, ``[taps]``.
        a: the coefficients of the output, ``[taps]``; all coefficients are divided by the first.
        x: the samples.
        axis: the axis of time.
        zi: the state before the first sample, with ``max(len(a), len(b)) - 1`` elements along the axis of time; None
            for zeros.

    Returns:
        The filtered samples; with `zi`, a pair of the samples and the state after the last sample.

    Raises:
        InputError: the coefficients or the state have wrong shapes.

    Source: Oppenheim and Schafer, "Discrete-Time Signal Processing", transposed direct form II.
    """
    x, b, a = _inexact(x, b, a)
    axis = _time_axis("lfilter", x, axis)
    for name, each in (("b", b), ("a", a)):
        if each.ndim != 1 or not each.size:
            raise InputError(f"`{name}` of lfilter must be a vector of coefficients, not of shape {each.shape}")
    frames = jnp.moveaxis(x, axis, 0)
    order = max(a.size, b.size) - 1
    b, a = (jnp.pad(each, (0, order + 1 - each.size)) / a[0] for each in (b, a))
    shape = (order, *frames.shape[1:])
    if zi is None:
        state = jnp.zeros(shape, x.dtype)
    else:
        state = jnp.asarray(zi, x.dtype)
        if state.ndim != x.ndim or str(jnp.moveaxis(state, axis, 0).shape) != str(shape):
            expected = (*frames.shape[1 : axis + 1], order, *frames.shape[axis + 1 :])
            raise InputError(f"`zi` of lfilter must have the shape {expected}, not {state.shape}")
        state = jnp.moveaxis(state, axis, 0)

    later_b, later_a = (each[1:].reshape(order, *[1] * (x.ndim - 1)) for each in (b, a))

    def step(state: Any, sample: Any) -> tuple[Any, Any]:
        y = b[0] * sample + (state[0] if order else 0)
        shifted = jnp.concatenate([state[1:], jnp.zeros_like(state[:1])])
        return shifted + later_b * sample - later_a * y, y

    state, filtered = varying.scan(step, state, frames)
    filtered = jnp.moveaxis(filtered, 0, axis)
    return filtered if zi is None else (filtered, jnp.moveaxis(state, 0, axis))


def sosfilt(sos: Any, x: Any, axis: int = -1, zi: Any = None) -> Any:
    """Filter samples with second-order sections, like ``scipy.signal.sosfilt``.

    Args:
        sos: the coefficients, ``[sections, 6]``, as from ``scipy.signal.butter(..., output="sos")``.
        x: the samples.
        axis: the axis of time.
        zi: the states before the first sample, with an axis of sections before the axes of ``x``, and 2 elements along
            the axis of time; None for zeros.

    Returns:
        The filtered samples; with `zi`, a pair of the samples and the states after the last sample.

    Raises:
        InputError: the coefficients or the states have wrong shapes.
    """
    x, sos = _inexact(x, sos)
    axis = _time_axis("sosfilt", x, axis)
    if sos.ndim != 2 or sos.shape[1] != 6:
        raise InputError(f"`sos` of sosfilt must have the shape [sections, 6], not {sos.shape}")
    if zi is None:
        for section in sos:
            x = lfilter(section[:3], section[3:], x, axis)
        return x
    if np.ndim(zi) != x.ndim + 1 or np.shape(zi)[0] != sos.shape[0]:
        raise InputError(
            f"`zi` of sosfilt must have {sos.shape[0]} states along a first axis, not the shape {np.shape(zi)}"
        )
    states = []
    for section, state in zip(sos, zi, strict=True):
        x, state = lfilter(section[:3], section[3:], x, axis, state)
        states.append(state)
    return x, jnp.stack(states)


def interp(x: Any, up: int, down: int = 1, axis: int = 0) -> Any:
    """Interpolate frames linearly at a fixed ratio, like ``jnp.interp`` at the places ``t * down / up``.

    For n frames, the result has ``ceil(n * up / down)`` frames. Places after the last frame have the value of the last
    frame. No filter is applied: for sound, low-pass the samples before a lower rate.

    Args:
        x: the frames.
        up: frames of the result for each `down` frames.
        down: frames for each `up` frames of the result.
        axis: the axis of time.

    Raises:
        InputError: a ratio that is not a fraction of positive integers.
    """
    (x,) = _inexact(x)
    if not is_count(up, 1) or not is_count(down, 1):
        raise InputError(f"`up` and `down` of interp must be positive integers, not {up!r} and {down!r}")
    axis, shared = _time_axis("interp", x, axis), math.gcd(up, down)
    up, down = up // shared, down // shared
    size = x.shape[axis]
    if isinstance(size, int) and not size:
        return x
    blocks, count = -(-size // down), -(-size * up // down)
    last = lax.slice_in_dim(x, size - 1, size, axis=axis)
    extended = jnp.concatenate([x, *[last] * down], axis)
    phases = []
    for phase in range(up):
        place, share = divmod(phase * down, up)
        before, after = (
            lax.slice_in_dim(extended, start, start + (blocks - 1) * down + 1, down, axis)
            for start in (place, place + 1)
        )
        share = np.asarray(share / up, x.dtype)
        phases.append(before * (1 - share) + after * share if share else before)
    result = jnp.stack(phases, axis + 1).reshape(*x.shape[:axis], blocks * up, *x.shape[axis + 1 :])
    return lax.slice_in_dim(result, 0, count, axis=axis)


def _inexact(*arrays: Any) -> list[Any]:
    """Return arrays of a common floating type."""
    dtype = jnp.result_type(*arrays)
    dtype = dtype if jnp.issubdtype(dtype, jnp.inexact) else jnp.result_type(float)
    return [jnp.asarray(each, dtype) for each in arrays]


def _time_axis(name: str, x: Any, axis: int) -> int:
    if not x.ndim:
        raise InputError(f"{name} takes an array with an axis of time, not a number")
    return normalize_axis_index(axis, x.ndim)
