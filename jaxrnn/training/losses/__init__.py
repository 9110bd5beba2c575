"""Losses: functions that build ``loss(outputs, example, mask) -> scalar`` for one example.

Each reads its arrays by name and leaves out frames that do not exist: padding changes neither the value nor the
gradient. Where optax has the loss, optax computes it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxrnn.settings.functions import build
from jaxrnn.training.losses.classes import binary_cross_entropy, cross_entropy, ctc
from jaxrnn.training.losses.frames import Loss, Output, TimeAxis
from jaxrnn.training.losses.signals import mse, si_sdr, spectral_mse

__all__ = [
    "LOSSES",
    "Loss",
    "Output",
    "TimeAxis",
    "binary_cross_entropy",
    "by_name",
    "cross_entropy",
    "ctc",
    "mse",
    "si_sdr",
    "spectral_mse",
]

#: The losses by name.
LOSSES: dict[str, Callable[..., Loss]] = {
    "binary_cross_entropy": binary_cross_entropy,
    "cross_entropy": cross_entropy,
    "ctc": ctc,
    "mse": mse,
    "si_sdr": si_sdr,
    "spectral_mse": spectral_mse,
}


def by_name(name: str, /, *, folder: Path | None = None, **options: Any) -> Loss:
    """The loss of this name with these options: ``by_name("mse", output="y", target="clean")``.

    Args:
        name: one of `LOSSES`; or ``package.module:function`` or ``file.py:function``, a loss of one's own, to which
            the options go as further keyword arguments.
        folder: what the path of a file is relative to.
        options: those of the loss.

    Raises:
        InputError: there is no such loss or option; names the nearest.
    """
    return build("loss", name, LOSSES, options, folder)
