"""The optimizer and the learning rate that a configuration names: optax's, by name, with their arguments."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax

from jaxrnn.errors import InputError
from jaxrnn.messages import near
from jaxrnn.settings.functions import check_options
from jaxrnn.settings.problems import at, problem
from jaxrnn.settings.source import Source
from jaxrnn.training.config import Config, Schedule
from jaxrnn.training.optimizers import optimizer_names


def optimizer_options(config: Config, source: Source) -> dict[str, Any]:
    """The algorithm and the learning rate of an `Optimizer`."""
    import optax

    name, options, rate = config.optimizer.name, config.optimizer.options, config.learning_rate
    known = optimizer_names()
    if name not in known:
        message = f"there is no optimizer {name!r} in optax{near(name, known)}; there are: {', '.join(known)}"
        raise problem(source, ("optimizer", "name"), message)
    schedule = _schedule(rate, source) if isinstance(rate, Schedule) else rate
    if not options:
        return {"algorithm": name, "learning_rate": schedule}
    make = getattr(optax, name)
    with at(source, ("optimizer",)):
        if "learning_rate" in options:
            raise InputError("learning_rate stands beside the optimizer, not in it")
        check_options(f"optax.{name}", make, {"learning_rate": schedule, **options})
        # With its learning rate in its state, where the history finds it.
        with jax.numpy_dtype_promotion("standard"), _told(f"optax.{name}"):
            watched = optax.inject_hyperparams(make, static_args=tuple(options))
            return {"algorithm": watched(learning_rate=schedule, **options), "learning_rate": None}


def _schedule(section: Schedule, source: Source) -> Callable[[Any], Any]:
    import optax

    known = [name for name in dir(optax.schedules) if name.endswith("schedule")]
    if section.schedule not in known:
        name = section.schedule
        message = f"there is no schedule {name!r} in optax{near(name, known)}; there are: {', '.join(known)}"
        raise problem(source, ("learning_rate", "schedule"), message)
    make = getattr(optax.schedules, section.schedule)
    with at(source, ("learning_rate",)):
        check_options(f"optax.{section.schedule}", make, section.options)
        with jax.numpy_dtype_promotion("standard"), _told(f"optax.{section.schedule}"):
            schedule = make(**section.options)
            float(schedule(0))
    return schedule


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Inside, what a library finds wrong with its arguments is the user's to mend."""
    try:
        yield
    except (TypeError, ValueError, AssertionError, AttributeError, KeyError) as error:
        raise InputError(f"{what} does not take these arguments: {error}") from error
