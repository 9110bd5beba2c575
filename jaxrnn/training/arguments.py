"""What a caller may ask of a training, checked; and what of it a checkpoint must have in common with a training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrnn.cells import matrix_products_in
from jaxrnn.errors import InputError
from jaxrnn.training.forward import Function
from jaxrnn.training.layout import ExampleLayout
from jaxrnn.training.optimizers import Optimizer
from jaxrnn.training.options import check_count
from jaxrnn.training.snapshots import digest_of_all

if TYPE_CHECKING:
    from jaxrnn.model import Model

#: Updates whose learning rates tell one schedule from another.
_PROBED = (0, 1, 10, 100, 1_000, 10_000, 100_000)


def check_functions(loss: Any, metrics: Any) -> dict[str, Function]:
    """The metrics, none if there are none.

    Raises:
        InputError: the loss or a metric is no function, or a name is taken.
    """
    if not callable(loss):
        raise InputError(f"loss must be a function of outputs, example and mask, not a {type(loss).__name__}")
    taken = {"loss", "step", "grad_norm", "learning_rate", "seconds", "validation_loss"}
    for name, metric in (metrics or {}).items():
        if not callable(metric):
            raise InputError(f"metric {name!r} must be a function of outputs, example and mask, not {metric!r}")
        if name in taken:
            raise InputError(f"a metric cannot be called {name!r}: the history has another number of that name")
    return dict(metrics or {})


def check_precision(compute_dtype: Any) -> str | None:
    """The name of the type of matrix products, None for their own.

    Raises:
        InputError: it is no such type.
    """
    try:
        with matrix_products_in(compute_dtype):
            return None if compute_dtype is None else np.dtype(compute_dtype).name
    except TypeError as error:
        raise InputError(f"compute_dtype must be None or 'bfloat16', not {compute_dtype!r}") from error


def check_end(steps: int | None, epochs: int | None, size: int | None) -> None:
    """See that a training ends.

    Raises:
        InputError: neither or both of steps and epochs are given, or epochs of examples that are drawn without end.
    """
    if (steps is None) == (epochs is None):
        raise InputError("give either steps=, the number of updates, or epochs=, passes over the data; not both")
    if steps is not None:
        check_count("steps", steps)
    if epochs is not None:
        check_count("epochs", epochs)
        if size is None:
            raise InputError("epochs= needs a sequence of examples; for a function that draws them give steps=")


def training_facts(
    model: Model,
    layout: ExampleLayout,
    start: Mapping[str, Any],
    trained: tuple[str, ...],
    optimizer: Optimizer,
    loss: Function,
    **plain: Any,
) -> dict[str, Any]:
    """What decides the course of a training, in JSON's types: it must be the same where a checkpoint goes on.

    Not in it is what may change: how long the training runs, how often it is validated, where its files are, on which
    devices it runs.
    """
    rates = None
    if optimizer.schedule is not None:
        import jax

        with jax.numpy_dtype_promotion("standard"):
            rates = [float(optimizer.schedule(count)) for count in _PROBED]
    return {
        "model": {
            "inputs": [str(info) for info in model.inputs],
            "outputs": [str(info) for info in model.outputs],
            "parameters": {name: [array.dtype.name, *array.shape] for name, array in model.program.parameters.items()},
        },
        "starting parameters": digest_of_all(start),
        "trained": list(trained),
        "optimizer": optimizer.name,
        "learning_rate": rates,
        "clip_norm": optimizer.clip_norm,
        "loss": getattr(loss, "__qualname__", type(loss).__name__),
        "mode": layout.mode,
        "time_axis": layout.axes,
        "chunk": layout.chunk,
        "bucket": layout.bucket,
        **plain,
    }
