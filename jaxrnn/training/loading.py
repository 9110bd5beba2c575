"""Parameters out of a folder of checkpoints."""

from __future__ import annotations

import os
from contextlib import closing

import jax
import ml_dtypes
import numpy as np

from jaxrnn._jax.context import exact_types
from jaxrnn.errors import InputError, TrainingError
from jaxrnn.model import Model
from jaxrnn.training.checkpoints import Folder
from jaxrnn.training.facts import digest_of_all
from jaxrnn.training.options import Checkpoints
from jaxrnn.training.snapshots import Snapshot


def load_checkpoint(
    folder: str | os.PathLike[str], model: Model | None = None, step: int | None = None, best: bool = True
) -> dict[str, jax.Array]:
    """The parameters that a training with ``checkpoints=folder`` has reached.

    Args:
        folder: the folder.
        model: the model that was trained. With it, all of its parameters are given; without it, only those that the
            training changed or began with other values of than the file's.
        step: after which update; the newest checkpoint that can be read by default.
        best: where there was validation, those with the best validation loss until then; False for the last ones. With
            ``step``, always those after that update.

    Returns:
        Arrays by name, of the file's types.

    Raises:
        InputError: there is no such folder or checkpoint, or it is of another model.
        TrainingError: the checkpoint is damaged.
        MissingPackageError: Orbax is not installed.
    """
    with closing(Folder(Checkpoints(folder), reading=True)) as opened:
        steps = opened.steps()
        if not steps:
            raise InputError(f"there is no checkpoint in {opened.path}")
        if step is None:
            snapshot = opened.newest(set_aside=False)
        elif step not in steps:
            raise InputError(f"there is no checkpoint after update {step} in {opened.path}; there are: {steps}")
        else:
            try:
                snapshot = opened.load(step)
            except Exception as error:
                raise TrainingError(f"the checkpoint {opened.where(step)} cannot be read: {error}") from error
        where = opened.path
    assert snapshot is not None, "there are checkpoints"
    trained = snapshot.best_or_last() if best and step is None else snapshot.trained
    with exact_types():
        types = {
            name: np.dtype(getattr(ml_dtypes, kind, kind))
            for name, (kind, *_) in snapshot.settings["model"]["parameters"].items()
        }
        arrays = {name: jax.device_put(x.astype(types[name])) for name, x in {**snapshot.frozen, **trained}.items()}
    return arrays if model is None else _completed(arrays, model, snapshot, f"the checkpoints in {where}")


def _completed(arrays: dict[str, jax.Array], model: Model, snapshot: Snapshot, what: str) -> dict[str, jax.Array]:
    """All parameters of the model, those of the checkpoint in place of the file's."""
    expected = model.program.parameters
    for name, array in arrays.items():
        if name not in expected or array.shape != expected[name].shape or array.dtype != expected[name].dtype:
            have = "has none" if name not in expected else f"has {expected[name].dtype}{list(expected[name].shape)}"
            raise InputError(
                f"{what} are of another model: they have {array.dtype}{list(array.shape)} for parameter {name!r}, and "
                f"{model.label} {have}"
            )
    values = {**model.params, **arrays}
    frozen = {name: values[name] for name in expected if name not in snapshot.trained}
    if digest_of_all(frozen) != snapshot.settings["frozen parameters"]:
        raise InputError(
            f"{what} were written for a model whose frozen parameters have other values than those of {model.label}"
        )
    return {name: values[name] for name in expected}
