"""The scale-invariant signal-to-distortion ratio and the two energies of the ratio, for NumPy and JAX arrays.

The ratio compares the energy of an estimate's projection on the reference with the energy of the rest. Source: Le Roux,
Wisdom, Erdogan and Hershey, "SDR - half-baked or well done?", ICASSP 2019, equation 5. The paper assumes zero-mean
signals, so callers subtract the mean.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jaxrnn.errors import InputError


def inner(x: Any, y: Any) -> Any:
    """Return the real part of the inner product of two arrays."""
    return (x * y.conj()).real.sum()


def energies_of_sums(scale: Any, reference: Any, difference: Any, cross: Any) -> tuple[Any, Any]:
    """Return the energies of signal and distortion in the estimate ``scale * reference + difference``.

    Mathematically, the result does not depend on how the estimate is split. A small difference loses the fewest digits.

    Args:
        scale: any number.
        reference: the energy of the reference, above 0.
        difference: the energy of the difference.
        cross: the inner product of difference and reference.
    """
    return (scale + cross / reference) ** 2 * reference, difference - cross**2 / reference


def energies(estimate: Any, reference: Any) -> tuple[Any, Any]:
    """Return the energies of signal and distortion in an estimate.

    Args:
        estimate: a NumPy or JAX array of real or complex floats.
        reference: a nonzero array of equal shape and dtype.
    """
    energy = inner(reference, reference)
    scale = inner(estimate, reference) / energy
    difference = estimate - scale.astype(reference.dtype) * reference
    return energies_of_sums(scale, energy, inner(difference, difference), inner(difference, reference))


def si_sdr(estimate: ArrayLike, reference: ArrayLike) -> float:
    """Return the ratio in dB of two signals ``[samples]`` after removal of the mean, in float64.

    A scaled copy has infinity, up to rounding; an orthogonal estimate has minus infinity.

    Raises:
        InputError: the signals differ in shape, are not real numbers, or have no ratio: they are empty, or one is
            constant (silent).
    """
    given = {"estimate": np.asarray(estimate), "reference": np.asarray(reference)}
    if given["estimate"].shape != given["reference"].shape:
        shapes = " and ".join(str(list(x.shape)) for x in given.values())
        raise InputError(f"SI-SDR compares two signals of one shape, not {shapes}")
    for name, x in given.items():
        if x.dtype.kind in "cOSUmM":
            raise InputError(f"SI-SDR compares signals of real numbers, but the {name} is {x.dtype}")
        if not x.size or (x == x.flat[0]).all():
            raise InputError(f"the {name} is {'constant' if x.size else 'empty'}: such signals have no SI-SDR")
    # JAX would keep its arrays in float32.
    doubles = (x.astype(np.float64) for x in given.values())
    centred, target = (x - x.mean() for x in doubles)
    signal, distortion = energies(centred, target)
    with np.errstate(divide="ignore"):
        return float(10 * np.log10(signal / distortion))
