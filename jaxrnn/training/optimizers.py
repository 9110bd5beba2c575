"""Optimizers and learning rates of optax, as names or objects."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import math
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxrnn._files.messages import near, near_or_all, short_repr, whole_message
from jaxrnn.errors import InputError, JaxrnnError, optional_package

if TYPE_CHECKING:
    import optax

Schedule = Callable[[Any], Any]
#: One name pattern of parameters, or several.
Patterns = str | Sequence[str]

#: Optimizers with a line search, which needs the loss as a function.
LINE_SEARCHES = ("lbfgs",)

#: Updates whose learning rates identify a schedule.
PROBED = (0, 1, 10, 100, 1_000, 10_000, 100_000)


@short_repr
@dataclasses.dataclass(frozen=True)
class Optimizer:
    """An optimizer of optax, and the parameters that it trains.

    optax relies on JAX's type promotion. Calls of optax therefore use standard promotion, whatever
    ``jax_numpy_dtype_promotion`` is.

    Attributes:
        algorithm: The name of an optax optimizer, or an ``optax.GradientTransformation``, which has a learning rate.
        learning_rate: A number or an optax schedule, for a named algorithm; 1e-3 by default, or for a line search the
            rate that the search finds.
        clip_norm: The largest global norm of the gradients; None disables clipping.
        train: Name patterns (with ``*`` and ``?``) of the parameters to train.
        freeze: Name patterns of parameters to leave out of ``train``.
        options: Further arguments of a named algorithm, such as ``{"weight_decay": 0.01}``.
        average: The decay of a moving average of the parameters, such as 0.999; None to keep no average. The averages
            are validated and returned, and the last parameters are trained on.

    Raises:
        InputError: optax does not have this optimizer or these arguments, or a number is out of range.
        MissingPackageError: optax is missing.
    """

    algorithm: str | optax.GradientTransformation = "adam"
    learning_rate: float | Schedule | None = None
    clip_norm: float | None = None
    train: Patterns = "*"
    freeze: Patterns = ()
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    average: float | None = None

    def __post_init__(self):
        if self.average is not None and not 0 < _positive("average", self.average) < 1:
            raise InputError(f"average is a decay between 0 and 1, not {self.average!r}")
        _ = self._transformation  # raises errors now

    @property
    def facts(self) -> dict[str, Any]:
        """Return the options that identify an optimizer, in JSON's types."""
        clipping = {"clip_norm": self.clip_norm, **({} if self.average is None else {"average": self.average})}
        if not isinstance(self.algorithm, str):
            return {"optimizer": "optax.GradientTransformation", **clipping}
        rate: Any = self._rate
        with jax.numpy_dtype_promotion("standard"):
            rates = rate if rate is None or isinstance(rate, float) else [float(rate(count)) for count in PROBED]
        plain = (bool, int, float, str, type(None))
        options = {name: x if isinstance(x, plain) else type(x).__name__ for name, x in self.options.items()}
        return {"optimizer": self.algorithm, "options": options, "learning_rate": rates, **clipping}

    @property
    def _rate(self) -> Any:
        """Return the learning rate as a number or a schedule; None if a line search finds it."""
        rate = self.learning_rate
        if rate is None:
            return None if self.algorithm in LINE_SEARCHES else 1e-3
        return rate if callable(rate) else _positive("learning_rate", rate)

    @functools.cached_property
    def _transformation(self) -> optax.GradientTransformationExtraArgs:
        optax, core = _optax(), self.algorithm
        parts = [] if self.clip_norm is None else [optax.clip_by_global_norm(_positive("clip_norm", self.clip_norm))]
        if callable(made := getattr(core, "gradient_transformation", None)):
            core = made()  # optax.MultiSteps is not a GradientTransformation
        if not isinstance(core, optax.GradientTransformation):
            # The learning rate is in the state, where the history finds it.
            make, rate = find_optimizer(core), self._rate
            others = inspect.signature(make).parameters.keys() - {"learning_rate"}
            with refusals_of(make):
                core = make(learning_rate=rate(0) if callable(rate) else rate, **self.options)  # raises errors now
                if rate is not None:
                    injected = optax.inject_hyperparams(make, static_args=tuple(others))
                    core = injected(learning_rate=rate, **self.options)
        elif self.learning_rate is not None or self.options:
            option = "options" if self.learning_rate is None else "learning_rate"
            raise InputError(
                f"{option} goes with the name of an optimizer; an optax.GradientTransformation has its own"
            )
        parts += [core] if self.average is None else [core, _averaging(self.average)]
        return optax.with_extra_args_support(optax.chain(*parts))

    def init(self, params: Any) -> Any:
        """Return the state before the first update."""
        with jax.numpy_dtype_promotion("standard"):
            return jax.jit(self._transformation.init)(params)

    def update(
        self,
        gradients: Any,
        state: Any,
        params: Any,
        loss: jax.Array,
        objective: Callable[[Any], jax.Array] | None = None,
    ) -> tuple[Any, Any]:
        """Return new parameters and state, in the types of the old ones.

        A line search, as of ``optax.lbfgs``, needs the objective, which returns the loss of parameters.
        """
        promotion: Any = jax.config.jax_numpy_dtype_promotion  # pyright: ignore[reportAttributeAccessIssue]

        def value_fn(params: Any) -> jax.Array:
            if objective is None:
                raise InputError("the optimizer evaluates the loss again: pass objective, a function of the parameters")
            with jax.numpy_dtype_promotion(promotion):
                return objective(params)

        with jax.numpy_dtype_promotion("standard"):
            try:
                changes, new = self._transformation.update(
                    gradients, state, params, value=loss, grad=gradients, value_fn=value_fn
                )
            except JaxrnnError:
                raise
            except (TypeError, ValueError) as error:
                raise InputError(
                    f"the optimizer cannot compute an update from the gradients, the parameters, and the value, grad "
                    f"and value_fn of the loss: {whole_message(error)}"
                ) from error
            params = _optax().apply_updates(params, changes)

            def cast(after: Any, before: jax.Array) -> jax.Array:
                # A new dtype would be compiled again.
                return after if getattr(after, "dtype", None) == before.dtype else jnp.asarray(after, before.dtype)

            return params, jax.tree.map(cast, new, state)


def learning_rate(state: Any) -> jax.Array | None:
    """Return the learning rate of the last update if ``optax.inject_hyperparams`` keeps it in the state, else None."""
    # The state of a schedule has the same name.
    rates = _optax().tree_utils.tree_get_all_with_path(
        state, "learning_rate", filtering=lambda path, value: hasattr(value, "dtype")
    )
    return rates[0][1].astype(jnp.float32) if len(rates) == 1 else None


#: The key of moving averages in the state of an optimizer.
_AVERAGE = "jaxrnn.average"


def _averaging(decay: float) -> optax.GradientTransformation:
    """Return a transformation that keeps a moving average of the parameters and changes no update.

    The decay grows with the number of updates n, ``min(decay, (1 + n) / (10 + n))``, as in TensorFlow's
    ``ExponentialMovingAverage``, so that the first parameters do not count for long.
    """
    optax = _optax()

    def init(params: Any) -> Any:
        return {_AVERAGE: params, "updates": jnp.zeros((), jnp.int32)}

    def update(changes: Any, state: Any, params: Any = None, **_: Any) -> tuple[Any, Any]:
        count = state["updates"] + 1
        share = 1 - jnp.minimum(decay, (1 + count) / (10 + count))
        average = optax.incremental_update(optax.apply_updates(params, changes), state[_AVERAGE], share)
        return changes, {_AVERAGE: average, "updates": count}

    return optax.GradientTransformationExtraArgs(init, update)


def averages(state: Any) -> dict[str, jax.Array] | None:
    """Return the moving averages in the state of an optimizer, or None without an average."""
    return _optax().tree_utils.tree_get(state, _AVERAGE)


def skips_updates(state: Any) -> bool:
    """Return True if ``optax.apply_if_finite`` leaves out updates that are not finite."""
    return bool(_optax().tree_utils.tree_get_all_with_path(state, "notfinite_count"))


def optimizer_names() -> list[str]:
    """Return the names of optax optimizers that need only a learning rate."""
    optax, names = _optax(), []
    for name in dir(optax):
        made = getattr(optax, name)
        if name.startswith(("_", "scale_by")) or not inspect.isfunction(made):
            continue
        parameters = dict(inspect.signature(made).parameters)
        needs = [key for key, value in parameters.items() if value.default is inspect.Parameter.empty]
        if "learning_rate" in parameters and set(needs) <= {"learning_rate"}:
            names.append(name)
    return names


def find_optimizer(name: Any) -> Callable[..., optax.GradientTransformation]:
    """Return the optax function for the name of an optimizer; an InputError suggests the nearest name."""
    known = optimizer_names()
    if not isinstance(name, str):
        raise InputError(f"optimizer must be a name or an optax.GradientTransformation, not a {type(name).__name__}")
    if name not in known:
        raise InputError(f"optax has no optimizer {name!r} that needs only a learning rate{near_or_all(name, known)}")
    return getattr(_optax(), name)


def find_schedule(name: str) -> Callable[..., Schedule]:
    """Return the optax function for the name of a schedule; an InputError suggests the nearest name."""
    schedules = _optax().schedules
    known = [each for each in dir(schedules) if each.endswith("_schedule") and each[0] != "_"]
    if name not in known:
        raise InputError(f"there is no schedule {name!r} in optax{near(name, known)}; there are: {', '.join(known)}")
    return getattr(schedules, name)


@contextlib.contextmanager
def refusals_of(function: Callable[..., Any]) -> Iterator[None]:
    """Turn errors of an optax function about arguments into InputErrors."""
    try:
        with jax.numpy_dtype_promotion("standard"):
            yield
    except (TypeError, ValueError, AssertionError, AttributeError, KeyError) as error:
        raise InputError(f"optax.{function.__name__} does not take these arguments: {error}") from error


def _positive(what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 < float(value) < math.inf:
        raise InputError(f"{what} must be a positive number, not {value!r}")
    return float(value)


def _optax() -> Any:
    with optional_package("optax", "training", "train"):
        import optax
    return optax
