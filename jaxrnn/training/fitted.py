"""What a training returns, and its loss curve."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrnn._files.stores import in_place_of
from jaxrnn.errors import InputError, optional_package
from jaxrnn.training.options import Sequences


@dataclasses.dataclass(frozen=True)
class Fitted:
    """The result of `fit`.

    Attributes:
        params: all parameters, trained and frozen, as `Model.apply` takes them: those with the best validation loss
            where there was validation, else the last.
        last_params: the parameters after the last update.
        history: one dict for each update: ``step``, ``loss``, ``grad_norm`` (before clipping), ``learning_rate`` where
            it is known and ``seconds`` since the training began, without pauses between runs. Metrics go by their own
            names; what was measured on the validation examples by ``validation_loss`` and ``validation_NAME``.
        step: updates done.
        best_step: the update after which `params` were taken.
        stopped: why it ended: ``"steps"`` for the end that was asked for, ``"patience"`` for early stopping.
        sequences: how the model ran over sequences, with the mode and the time axes that were inferred.
    """

    params: dict[str, jax.Array]
    last_params: dict[str, jax.Array]
    history: list[dict[str, Any]]
    step: int
    best_step: int
    stopped: str
    sequences: Sequences

    def __repr__(self) -> str:
        losses = [f"{record['loss']:.4g}" for record in self.history]
        loss = f"loss {losses[0]} to {losses[-1]}, " if losses else ""
        count = sum(array.size for array in self.params.values())
        return (
            f"Fitted(step={self.step}, {loss}best_step={self.best_step}, stopped={self.stopped!r}, "
            f"mode={self.sequences.mode!r}, {count:,} parameters in {len(self.params)} arrays)"
        )

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Write the loss curve as a PNG: the loss of every update, its running mean, and the validation loss.

        Raises:
            MissingPackageError: matplotlib is not installed.
            InputError: there was no update.
        """
        with optional_package("matplotlib", "drawing a loss curve", "plot"):
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        FigureCanvasAgg(figure)
        self.draw(figure.subplots())
        with in_place_of(Path(path)) as written:
            figure.savefig(written, format="png", dpi=120)

    def draw(self, axes: Any) -> None:
        """Draw what `plot` writes on matplotlib's axes, in their first colours.

        Raises:
            InputError: there was no update.
        """
        steps, losses = self._curve("loss")
        if not steps.size:
            raise InputError("there was no update, so there is no loss curve")
        window = max(1, steps.size // 50)
        axes.plot(steps, losses, color="C0", alpha=0.4 if window > 1 else 1, linewidth=0.8, label="loss")
        if window > 1:
            means = np.convolve(losses, np.full(window, 1 / window), "valid")
            axes.plot(steps[window - 1 :], means, color="C0", label=f"mean of {window} updates")
        at, validation = self._curve("validation_loss")
        if at.size:
            axes.plot(at, validation, color="C1", marker="o", markersize=3, label="validation")
            axes.axvline(self.best_step, color="C2", linestyle=":", label=f"best, update {self.best_step}")
        axes.set_xlabel("update")
        axes.set_ylabel("loss")
        axes.grid(alpha=0.3)
        axes.legend()

    def _curve(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """The updates for which a number was recorded, and the number."""
        points = [(record["step"], record[key]) for record in self.history if key in record]
        return np.array([step for step, _ in points]), np.array([value for _, value in points], np.float64)
