"""Which parameters are trained, by name patterns, and with what values a training begins."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxrnn._files.messages import near_or_all
from jaxrnn._jax.context import exact_types
from jaxrnn._jax.precision import cast_params, check_params
from jaxrnn.errors import InputError
from jaxrnn.model import Model

Patterns = str | Sequence[str]


def trained_names(model: Model, train: Patterns, freeze: Patterns) -> tuple[str, ...]:
    """The parameters that match a pattern of ``train`` and none of ``freeze``, in the file's order.

    Raises:
        InputError: a pattern matches nothing, or nothing is left.
    """
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
        # A name may hold characters that mean something in a pattern: it always matches itself.
        matches = {name for name in names if name == pattern or fnmatch.fnmatchcase(name, pattern)}
        if not matches:
            raise InputError(f"{what}: no parameter matches {pattern!r}{near_or_all(pattern, names)}")
        matched |= matches
    return matched


def start_values(
    model: Model, params: Mapping[str, Any] | None, trained: Sequence[str], dtype: np.dtype | None
) -> dict[str, jax.Array]:
    """The parameters to begin with: the caller's, or the file's.

    Raises:
        InputError: they do not fit the model, or one to be trained is not finite.
    """
    values = dict(model.params) if params is None else copied(model, params, dtype)
    for name in trained:
        if not finite(values[name]):
            raise InputError(f"parameter {name!r} is not finite everywhere, so it cannot be trained: freeze={name!r}")
    return values


def copied(model: Model, params: Mapping[str, Any], dtype: np.dtype | None) -> dict[str, jax.Array]:
    """Parameters as JAX arrays of the file's types, which the caller cannot change.

    Raises:
        InputError: they do not fit the model.
    """
    with exact_types():
        check_params(params, model.program.parameters, dtype)
        cast = cast_params(params, model.program.parameters)
        return {name: jax.device_put(np.array(value)) for name, value in cast.items()}


def finite(array: Any) -> bool:
    """Whether every element of an array of any type is finite."""
    array = np.asarray(array)
    if array.dtype.kind in "biuOSU":
        return True
    wide = array if array.dtype.kind in "fc" else array.astype(np.float32)
    return bool(np.isfinite(wide).all())
