"""The scale-invariant signal-to-distortion ratio: its energies, of whole signals or of sums, in NumPy and in JAX.

An estimate is split into its projection on the reference and the rest; the ratio is that of their energies. Source: Le
Roux, Wisdom, Erdogan and Hershey, "SDR - half-baked or well done?", ICASSP 2019, equation 5. The paper assumes signals
without a mean; who calls these takes it off.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def inner(x: Any, y: Any) -> Any:
    """The sum of products of two arrays; of complex numbers, of their real and of their imaginary parts."""
    return (x * y.conj()).real.sum()


def energies_of_sums(scale: Any, reference: Any, difference: Any, cross: Any) -> tuple[Any, Any]:
    """The energies of the signal and of the distortion in an estimate, ``scale * reference + difference``.

    They are the same whatever the scale; the smaller the difference, the fewer digits are lost.

    Args:
        scale: any number.
        reference: the energy of the reference, above 0.
        difference: the energy of the difference.
        cross: the inner product of difference and reference.
    """
    return (scale + cross / reference) ** 2 * reference, difference - cross**2 / reference


def energies(estimate: Any, reference: Any) -> tuple[Any, Any]:
    """The energies of the signal and of the distortion in an estimate.

    Args:
        estimate: any array of floats, or of complex numbers, of NumPy or JAX.
        reference: another of its shape and type, which is not zero everywhere.
    """
    energy = inner(reference, reference)
    scale = inner(estimate, reference) / energy
    difference = estimate - scale.astype(reference.dtype) * reference
    return energies_of_sums(scale, energy, inner(difference, difference), inner(difference, reference))


def si_sdr(estimate: NDArray[np.floating], reference: NDArray[np.floating]) -> float:
    """The ratio in dB of two signals ``[samples]`` without their means, in float64."""
    estimate, reference = (x.astype(np.float64) - x.mean(dtype=np.float64) for x in (estimate, reference))
    signal, distortion = energies(estimate, reference)
    return float(10 * np.log10(signal / distortion))
