"""Optimizers and learning rates: optax, by name or as the caller made them, under any rule of type promotion."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxrnn.errors import InputError, optional_package
from jaxrnn.messages import near_or_all
from jaxrnn.training.parameters import Patterns

if TYPE_CHECKING:
    import optax

Schedule = Callable[[Any], Any]

#: The learning rate where the caller gives none.
LEARNING_RATE = 1e-3

#: Needs the loss as a function, for its line search, and not only its gradient.
_LINE_SEARCH = {"lbfgs"}


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """What an update does to which parameters: an optimizer of optax, as pure functions of its state.

    optax mixes element types and lets JAX promote them, so all of it runs where that is allowed, whatever the caller
    has chosen for their own code (``jax_numpy_dtype_promotion``).

    Attributes:
        algorithm: the name of one in optax, or an ``optax.GradientTransformation``, which has its own learning rate.
        learning_rate: a number or an optax schedule, for an algorithm by name; 1e-3 by default.
        clip_norm: the largest global norm of the gradients; None not to clip them.
        train: name patterns (as of files) of the parameters that are trained.
        freeze: name patterns of those among them that are not.

    Raises:
        InputError: optax has no such optimizer, or a number is out of range.
        MissingPackageError: optax is not installed.
    """

    algorithm: str | optax.GradientTransformation = "adam"
    learning_rate: float | Schedule | None = None
    clip_norm: float | None = None
    train: Patterns = "*"
    freeze: Patterns = ()

    def __post_init__(self):
        _ = self._transformation  # made now, so that what is wrong with it is said now

    @property
    def name(self) -> str:
        """What it is called in a checkpoint."""
        return self.algorithm if isinstance(self.algorithm, str) else "optax.GradientTransformation"

    @property
    def schedule(self) -> Schedule | None:
        """The learning rate of each update, counted from 0; None where the algorithm knows it alone."""
        if not isinstance(self.algorithm, str):
            return None
        return self._rate if callable(self._rate) else _optax().constant_schedule(self._rate)

    @property
    def _rate(self) -> float | Schedule:
        rate = LEARNING_RATE if self.learning_rate is None else self.learning_rate
        return rate if callable(rate) else _positive("learning_rate", rate)

    @functools.cached_property
    def _transformation(self) -> optax.GradientTransformationExtraArgs:
        """Optax's own, with clipping before it."""
        optax, core = _optax(), self.algorithm
        parts = [] if self.clip_norm is None else [optax.clip_by_global_norm(_positive("clip_norm", self.clip_norm))]
        if callable(made := getattr(core, "gradient_transformation", None)):
            core = made()  # optax.MultiSteps is none itself
        if not isinstance(core, optax.GradientTransformation):
            core = _named(core, self._rate)
        elif self.learning_rate is not None:
            raise InputError(
                "learning_rate goes with the name of an optimizer; an optax.GradientTransformation has its own"
            )
        return optax.with_extra_args_support(optax.chain(*parts, core))

    def init(self, params: Any) -> Any:
        """The state before the first update."""
        with jax.numpy_dtype_promotion("standard"):
            return jax.jit(self._transformation.init)(params)

    def update(self, gradients: Any, state: Any, params: Any, loss: jax.Array) -> tuple[Any, Any]:
        """New parameters and state, of the types of the old ones."""
        optax = _optax()
        with jax.numpy_dtype_promotion("standard"):
            changes, new = self._transformation.update(gradients, state, params, value=loss)
            params = optax.apply_updates(params, changes)
            return params, jax.tree.map(_in_type_of, new, state)

    def rate(self, count: jax.Array, state: Any) -> jax.Array | None:
        """The learning rate of update ``count``, if it is known."""
        with jax.numpy_dtype_promotion("standard"):
            if self.schedule is not None:
                return jnp.asarray(self.schedule(count), jnp.float32)
            try:  # of optax.inject_hyperparams
                return jnp.asarray(_optax().tree_utils.tree_get(state, "learning_rate"), jnp.float32)
            except (KeyError, TypeError, ValueError):
                return None


def optimizer_names() -> list[str]:
    """The names of optimizers in optax that need no more than a learning rate."""
    optax, names = _optax(), []
    for name in dir(optax):
        made = getattr(optax, name)
        if name.startswith(("_", "scale_by")) or name in _LINE_SEARCH or not inspect.isfunction(made):
            continue
        parameters = dict(inspect.signature(made).parameters)
        needs = [key for key, value in parameters.items() if value.default is inspect.Parameter.empty]
        if "learning_rate" in parameters and set(needs) <= {"learning_rate"}:
            names.append(name)
    return names


def _named(name: Any, rate: Any) -> optax.GradientTransformation:
    known = optimizer_names()
    if not isinstance(name, str):
        raise InputError(f"optimizer must be a name or an optax.GradientTransformation, not a {type(name).__name__}")
    if name not in known:
        raise InputError(f"optax has no optimizer {name!r} that needs only a learning rate{near_or_all(name, known)}")
    try:
        with jax.numpy_dtype_promotion("standard"):
            return getattr(_optax(), name)(learning_rate=rate)
    except TypeError as error:
        raise InputError(f"optimizer {name!r} does not take learning_rate={rate!r}: {error}") from error


def _in_type_of(after: Any, before: jax.Array) -> jax.Array:
    """A value of the optimizer's state in the type that it had: another one would be compiled anew."""
    return after if getattr(after, "dtype", None) == before.dtype else jnp.asarray(after, before.dtype)


def _positive(what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (math.isfinite(value) and value > 0):
        raise InputError(f"{what} must be a positive number, not {value!r}")
    return float(value)


def _optax() -> Any:
    with optional_package("optax", "training", "train"):
        import optax
    return optax
