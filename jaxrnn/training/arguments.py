"""What a caller may ask of a training, checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jaxrnn.errors import InputError, check_count

#: A loss or metric ``(outputs, example, mask) -> scalar`` of one example: arrays by name, and ``bool[frames]``.
Function = Callable[[dict[str, Any], dict[str, Any], jax.Array], Any]


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
