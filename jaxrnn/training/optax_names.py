"""Optimizers and schedules of optax by name, with arguments of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from jaxrnn.errors import InputError
from jaxrnn.messages import near
from jaxrnn.settings.options import check_options
from jaxrnn.training.optimizers import optimizer_names


def named_algorithm(name: str, options: Mapping[str, Any], learning_rate: Any) -> Any:
    """An optimizer with its learning rate in its state, where the history of a training finds it.

    Raises:
        InputError: there is no such optimizer or option, or optax refuses it.
    """
    import optax

    make = _entry("optimizer", name, optax, optimizer_names())
    options = check_options(make, {**options, "learning_rate": learning_rate})
    with _refusals_of(f"optax.{name}"):
        return optax.inject_hyperparams(make, static_args=tuple(options.keys() - {"learning_rate"}))(**options)


def named_schedule(name: str, options: Mapping[str, Any]) -> Callable[[Any], Any]:
    """A schedule of optax.

    Raises:
        InputError: there is no such schedule or option, or optax refuses it.
    """
    import optax

    make = _entry("schedule", name, optax.schedules, [x for x in dir(optax.schedules) if x.endswith("schedule")])
    options = check_options(make, options)
    with _refusals_of(f"optax.{name}"):
        schedule = make(**options)
        float(schedule(0))
    return schedule


def _entry(kind: str, name: str, module: Any, known: list[str]) -> Callable[..., Any]:
    if name not in known:
        raise InputError(f"there is no {kind} {name!r} in optax{near(name, known)}; there are: {', '.join(known)}")
    return getattr(module, name)


@contextlib.contextmanager
def _refusals_of(what: str) -> Iterator[None]:
    """Inside, what a library finds wrong with its arguments is the user's to mend."""
    try:
        with jax.numpy_dtype_promotion("standard"):
            yield
    except (TypeError, ValueError, AssertionError, AttributeError, KeyError) as error:
        raise InputError(f"{what} does not take these arguments: {error}") from error
