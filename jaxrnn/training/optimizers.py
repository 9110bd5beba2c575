"""Optimizers and learning rates: optax, by name or as the caller made them, under any rule of type promotion."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxrnn._files.messages import brief, near, near_or_all
from jaxrnn.errors import InputError, optional_package
from jaxrnn.training.parameters import Patterns

if TYPE_CHECKING:
    import optax

Schedule = Callable[[Any], Any]

#: The learning rate where the caller gives none.
LEARNING_RATE = 1e-3

#: Needs the loss as a function, for its line search, and not only its gradient.
_LINE_SEARCH = {"lbfgs"}

#: Updates whose learning rates tell one schedule from another.
PROBED = (0, 1, 10, 100, 1_000, 10_000, 100_000)


@brief
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
        options: further arguments of an algorithm by name, such as ``{"weight_decay": 0.01}``.

    Raises:
        InputError: optax has no such optimizer, it does not take these arguments, or a number is out of range.
        MissingPackageError: optax is not installed.
    """

    algorithm: str | optax.GradientTransformation = "adam"
    learning_rate: float | Schedule | None = None
    clip_norm: float | None = None
    train: Patterns = "*"
    freeze: Patterns = ()
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        _ = self._transformation  # made now, so that what is wrong with it is said now

    @property
    def facts(self) -> dict[str, Any]:
        """What tells one optimizer from another, in JSON's types. One of the caller's own only tells that it is."""
        clipping = {"clip_norm": self.clip_norm}
        if not isinstance(self.algorithm, str):
            return {"optimizer": "optax.GradientTransformation", **clipping}
        rate = self._rate
        with jax.numpy_dtype_promotion("standard"):
            rates = rate if isinstance(rate, (int, float)) else [float(rate(count)) for count in PROBED]
        plain = (bool, int, float, str, type(None))
        options = {name: x if isinstance(x, plain) else type(x).__name__ for name, x in self.options.items()}
        return {"optimizer": self.algorithm, "options": options, "learning_rate": rates, **clipping}

    @property
    def _rate(self) -> Any:
        """A number or a schedule."""
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
            core = _named(core, self._rate, self.options)
        elif self.learning_rate is not None or self.options:
            option = "options" if self.learning_rate is None else "learning_rate"
            raise InputError(
                f"{option} goes with the name of an optimizer; an optax.GradientTransformation has its own"
            )
        return optax.with_extra_args_support(optax.chain(*parts, core))

    def init(self, params: Any) -> Any:
        """The state before the first update."""
        with jax.numpy_dtype_promotion("standard"):
            return jax.jit(self._transformation.init)(params)

    def update(self, gradients: Any, state: Any, params: Any, loss: jax.Array) -> tuple[Any, Any]:
        """New parameters and state, of the types of the old ones."""
        with jax.numpy_dtype_promotion("standard"):
            changes, new = self._transformation.update(gradients, state, params, value=loss)
            params = _optax().apply_updates(params, changes)
            return params, jax.tree.map(_in_type_of, new, state)


def learning_rate(state: Any) -> jax.Array | None:
    """The learning rate of the update that gave this state, where ``optax.inject_hyperparams`` keeps it there."""
    # The state of its schedule goes by the same name.
    rates = _optax().tree_utils.tree_get_all_with_path(
        state, "learning_rate", filtering=lambda path, value: hasattr(value, "dtype")
    )
    return rates[0][1].astype(jnp.float32) if len(rates) == 1 else None


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


def find_optimizer(name: Any) -> Callable[..., optax.GradientTransformation]:
    """The function of optax that makes the optimizer of a name.

    Raises:
        InputError: there is none; names the nearest.
    """
    known = optimizer_names()
    if not isinstance(name, str):
        raise InputError(f"optimizer must be a name or an optax.GradientTransformation, not a {type(name).__name__}")
    if name not in known:
        raise InputError(f"optax has no optimizer {name!r} that needs only a learning rate{near_or_all(name, known)}")
    return getattr(_optax(), name)


def find_schedule(name: str) -> Callable[..., Schedule]:
    """The function of optax that makes the schedule of a name.

    Raises:
        InputError: there is none; names the nearest.
    """
    schedules = _optax().schedules
    known = [each for each in dir(schedules) if each.endswith("schedule")]
    if name not in known:
        raise InputError(f"there is no schedule {name!r} in optax{near(name, known)}; there are: {', '.join(known)}")
    return getattr(schedules, name)


@contextlib.contextmanager
def refusals_of(function: Callable[..., Any]) -> Iterator[None]:
    """Inside, what a function of optax finds wrong with its arguments is the caller's to mend."""
    try:
        with jax.numpy_dtype_promotion("standard"):
            yield
    except (TypeError, ValueError, AssertionError, AttributeError, KeyError) as error:
        raise InputError(f"optax.{function.__name__} does not take these arguments: {error}") from error


def _named(name: Any, rate: Any, options: Mapping[str, Any]) -> optax.GradientTransformation:
    """An optimizer with its learning rate in its state, where the history of a training finds it."""
    make = find_optimizer(name)
    others = inspect.signature(make).parameters.keys() - {"learning_rate"}
    with refusals_of(make):
        make(learning_rate=rate(0) if callable(rate) else rate, **options)  # what it refuses, it refuses now
        return _optax().inject_hyperparams(make, static_args=tuple(others))(learning_rate=rate, **options)


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
