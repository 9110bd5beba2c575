"""Optimizers and learning rates: optax, by name or as the caller made them, under any rule of type promotion."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxrnn.errors import InputError, MissingPackageError
from jaxrnn.training.examples import near

if TYPE_CHECKING:
    import optax

Schedule = Callable[[Any], Any]

#: The learning rate where the caller gives none.
LEARNING_RATE = 1e-3

#: Needs the loss as a function, for its line search, and not only its gradient.
_LINE_SEARCH = {"lbfgs"}


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """An optimizer as the training loop uses it: pure functions of its state.

    optax mixes element types and lets JAX promote them, so all of it runs where that is allowed, whatever the caller
    has chosen for their own code (``jax_numpy_dtype_promotion``).

    Attributes:
        label: what it is called in a checkpoint.
        transformation: optax's own, with clipping before it.
        schedule: the learning rate of each update, counted from 0; None where the optimizer knows it alone.
    """

    label: str
    transformation: optax.GradientTransformationExtraArgs
    schedule: Schedule | None

    def init(self, params: Any) -> Any:
        """The state before the first update."""
        with jax.numpy_dtype_promotion("standard"):
            return jax.jit(self.transformation.init)(params)

    def update(self, gradients: Any, state: Any, params: Any, loss: jax.Array) -> tuple[Any, Any]:
        """New parameters and state, of the types of the old ones."""
        import optax

        with jax.numpy_dtype_promotion("standard"):
            changes, new = self.transformation.update(gradients, state, params, value=loss)
            params = optax.apply_updates(params, changes)
            return params, jax.tree.map(_in_type_of, new, state)

    def learning_rate(self, count: jax.Array, state: Any) -> jax.Array | None:
        """The learning rate of update ``count``, if it is known."""
        import optax

        with jax.numpy_dtype_promotion("standard"):
            if self.schedule is not None:
                return jnp.asarray(self.schedule(count), jnp.float32)
            try:  # of optax.inject_hyperparams
                return jnp.asarray(optax.tree_utils.tree_get(state, "learning_rate"), jnp.float32)
            except (KeyError, TypeError, ValueError):
                return None


def make_optimizer(optimizer: Any, learning_rate: Any, clip_norm: float | None) -> Optimizer:
    """The optimizer that a caller describes.

    Args:
        optimizer: a name in optax, or an ``optax.GradientTransformation``.
        learning_rate: a number or an optax schedule; None for the usual one.
        clip_norm: the largest global norm of gradients, or None.

    Raises:
        InputError: there is no such optimizer, or a number is out of range.
        MissingPackageError: optax is not installed.
    """
    optax = _optax()
    if callable(getattr(optimizer, "gradient_transformation", None)):
        optimizer = optimizer.gradient_transformation()  # optax.MultiSteps is none itself
    parts = [] if clip_norm is None else [optax.clip_by_global_norm(_positive("clip_norm", clip_norm))]
    if isinstance(optimizer, optax.GradientTransformation):
        if learning_rate is not None:
            raise InputError(
                "learning_rate goes with the name of an optimizer; an optax.GradientTransformation has its own"
            )
        label, schedule, core = "optax.GradientTransformation", None, optimizer
    else:
        rate = LEARNING_RATE if learning_rate is None else learning_rate
        schedule = rate if callable(rate) else _constant(_positive("learning_rate", rate))
        label, core = str(optimizer), _named(optimizer, rate)
    return Optimizer(label, optax.with_extra_args_support(optax.chain(*parts, core)), schedule)


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
        raise InputError(f"optax has no optimizer {name!r} that needs only a learning rate{near(name, known)}")
    try:
        with jax.numpy_dtype_promotion("standard"):
            return getattr(_optax(), name)(learning_rate=rate)
    except TypeError as error:
        raise InputError(f"optimizer {name!r} does not take learning_rate={rate!r}: {error}") from error


def _in_type_of(after: Any, before: jax.Array) -> jax.Array:
    """A value of the optimizer's state in the type that it had: another one would be compiled anew."""
    return after if getattr(after, "dtype", None) == before.dtype else jnp.asarray(after, before.dtype)


def _constant(rate: float) -> Schedule:
    return lambda count: rate


def _positive(what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (math.isfinite(value) and value > 0):
        raise InputError(f"{what} must be a positive number, not {value!r}")
    return float(value)


def _optax() -> Any:
    try:
        import optax
    except ImportError as error:
        raise MissingPackageError("training needs optax: pip install 'jaxrnn[train]'") from error
    return optax
