"""Imported models as Flax NNX modules, and filters of imported parameters."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Generator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Self, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.nnx import reprlib

from jaxrnn._files.messages import describe, near_or_all
from jaxrnn._jax.context import check_names, check_param, compute_type, exact_types
from jaxrnn.errors import InputError, StateError
from jaxrnn.model import Model

Method = TypeVar("Method", bound=Callable[..., Any])


class Imported(nnx.Module):
    """Base of modules with an imported model, which is static, and the parameters as ``nnx.Param``.

    The parameters are in a dict with ONNX names as keys. As attributes, ONNX names could hide methods.
    """

    model: Model
    dtype: np.dtype | None
    weights: dict[str, nnx.Param[jax.Array]]

    def __init__(self, model: Model, *, dtype: Any = None):
        if not isinstance(model, Model):
            raise InputError(f"expected a model as jaxrnn.load gives it, not {type(model).__name__}")
        self.model, self.dtype = model, compute_type(dtype)
        with exact_types():
            # Copies: a training step that donates the module must not delete the arrays of the model.
            arrays = {name: jax.device_put(array, may_alias=False) for name, array in model.params.items()}
            # A parameter keeps its ONNX name at any depth of nested modules.
            self.weights = nnx.data({name: nnx.Param(array, onnx_name=name) for name, array in arrays.items()})

    @property
    def params(self) -> dict[str, jax.Array]:
        """Return the current parameters as a dict for `jaxrnn.Model.apply` and ``jaxrnn.export_onnx``."""
        with exact_types():
            return {name: jnp.asarray(self.weights[name].get_value()) for name in self.model.program.parameters}

    def update(self, params: Mapping[str, Any]) -> None:
        """Set some or all parameters in place.

        Args:
            params: A dict of arrays, in the shapes and dtypes of the file, or in the compute dtype.

        Raises:
            InputError: A name is unknown, or an array has a wrong shape or dtype. No parameter changes in this case.
        """
        expected = self.model.program.parameters
        check_names(params, expected, some=True)
        with exact_types():
            for name, value in params.items():
                check_param(f"params[{name!r}]", value, expected[name], self.dtype)
            for name, value in params.items():
                self.weights[name].set_value(jnp.array(value))

    def __copy__(self) -> Self:
        # By default, a shallow copy goes through the pickled form, and does not share the variables.
        result = object.__new__(type(self))
        vars(result).update(vars(self))
        return result

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), **self._variables(np.asarray)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        # Without jax_enable_x64, a pickled JAX array of 64 bits is restored with 32 bits; a NumPy array keeps 64 bits.
        with exact_types():
            vars(self).update(self._variables(jnp.asarray))

    def _variables(self, change: Callable[[Any], Any]) -> dict[str, dict[str, nnx.Variable]]:
        return {
            attribute: {name: variable.copy(change(variable.get_value())) for name, variable in value.items()}
            for attribute, value in vars(self).items()
            if attribute in ("weights", "carry")
        }

    def __nnx_repr__(self) -> Generator[reprlib.Object | reprlib.Attr, Any, None]:
        yield reprlib.Object(type=type(self))
        for name, value in self._facts().items():
            yield reprlib.Attr(name, value)

    def _facts(self) -> dict[str, Any]:
        count = sum(array.size for array in self.model.program.parameters.values())
        dtype = {} if self.dtype is None else {"dtype": self.dtype.name}
        return {"model": self.model.label, **dtype, "weights": f"{count:,} parameters in {len(self.weights)} arrays"}


class _Untabulated:
    """A method that ``nnx.tabulate`` does not wrap. Wrapped functions run on a copy of the module."""

    def __init__(self, function: Callable[..., Any]):
        functools.update_wrapper(self, function)
        self._function = function

    def __get__(self, module: Any, owner: type | None = None) -> Any:
        return self if module is None else types.MethodType(self._function, module)

    def __call__(self, module: Any, *args: Any, **kwargs: Any) -> Any:
        return self._function(module, *args, **kwargs)


def untabulated(function: Method) -> Method:
    """Keep ``nnx.tabulate`` from wrapping a method.

    The wrapper loses in-place changes, and fails on some arguments of ``initialize_carry``, even in cells of Flax.
    """
    return cast(Method, _Untabulated(function))


def inputs_by_name(inputs: Mapping[str, Any] | None, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of a call, given as keywords or as a dict."""
    if inputs is not None and not isinstance(inputs, Mapping):
        raise InputError(f"pass inputs by name or as one dict, not a {type(inputs).__name__}")
    return {**(inputs or {}), **named}


def onnx_name(value: Any) -> str | None:
    """Return the ONNX name of an imported parameter, or None if the value is not an imported parameter."""
    return value.get_metadata("onnx_name", None) if isinstance(value, nnx.Param) else None


@dataclasses.dataclass(frozen=True)
class Named:
    """An NNX filter for imported parameters with ONNX names that match a pattern.

    Attributes:
        patterns: Patterns as in ``fnmatch``, or exact names.
    """

    patterns: tuple[str, ...]

    def __call__(self, path: tuple[Any, ...], value: Any) -> bool:
        """Return True if the variable at a path is an imported parameter that matches."""
        name = onnx_name(value)
        return name is not None and any(_matches(name, pattern) for pattern in self.patterns)

    def __repr__(self) -> str:
        return f"named({', '.join(map(repr, self.patterns))})"


def named(*patterns: str, of: nnx.Module | None = None) -> Named:
    """Return a filter of parameters by ONNX name, for ``nnx.split``, ``nnx.state`` or ``nnx.Optimizer``.

    The filter matches parameters of imported models at any depth of a module, and does not match state, gradient
    statistics, or layers of Flax. Filters of Flax can contain the filter. For example,
    ``nnx.All(nnx.Param, nnx.Not(named("encoder.*")))`` selects the trained parameters with a frozen encoder.

    Example::

        frozen = jaxrnn.nnx.named("gru_*", of=denoiser)
        trained = nnx.All(nnx.Param, nnx.Not(frozen))

    Args:
        patterns: Patterns as in ``fnmatch``: ``*`` matches any text, including dots and slashes, ``?`` matches any
            character, and ``[ab]`` matches the character a or b. An exact name always matches.
        of: The module for which the filter is used. Each pattern must match a parameter of this module.

    Raises:
        InputError: No pattern was given, or a pattern matches no parameter of ``of``.
    """
    if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        raise InputError(f"named takes patterns such as 'encoder.*', not {patterns}")
    if of is not None:
        names = [name for _, value in nnx.to_flat_state(nnx.state(of)) if (name := onnx_name(value)) is not None]
        for pattern in patterns:
            if not any(_matches(name, pattern) for name in names):
                raise InputError(f"no imported parameter matches {pattern!r}{near_or_all(pattern, names)}")
    return Named(patterns)


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)


class RecurrentState(nnx.Variable):
    """A state variable of an imported model. Filters of ``nnx.Param`` do not match state variables."""


class Module(Imported):
    """An imported model as a Flax NNX module.

    ``module(inputs)`` is `jaxrnn.Model.apply` with the parameters of the module. ``module.step(inputs)`` and
    ``module.scan(inputs)`` advance the state of the module in place, under the rules of NNX also inside ``nnx.jit``,
    ``nnx.scan`` and ``nnx.grad``.

    Example::

        denoiser = jaxrnn.nnx.Module(model)
        mask = denoiser.step(magnitude=frame)["mask"]

    Args:
        model: A model from `jaxrnn.load`, which is static: modules of the same model have equal graph definitions.
        batch: Number of streams in the state, as in `jaxrnn.Model.init`.
        dtype: The compute dtype, as in `jaxrnn.Model.apply`. Weights cast to this dtype are also accepted.
        rngs: Unused, since the file has the parameters; Flax passes this argument to each constructor
            (``nnx.bridge.to_linen``).

    Attributes:
        weights: The parameters, a dict from ONNX names to ``nnx.Param``.
        carry: The state, a dict from the names in ``model.state`` to `RecurrentState`; empty for a model without
            external state.
    """

    carry: dict[str, RecurrentState]

    def __init__(self, model: Model, *, batch: int | None = None, dtype: Any = None, rngs: nnx.Rngs | None = None):
        super().__init__(model, dtype=dtype)
        try:
            state = model.init(batch)
        except StateError:
            state = {}  # calls on whole sequences need no state; `step` and `reset` raise the error
        with exact_types():
            self.carry = nnx.data({name: RecurrentState(value) for name, value in state.items()})

    def __call__(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> dict[str, jax.Array]:
        """Run the whole graph, with external state among inputs and outputs.

        Args:
            inputs: A dict of arrays, as in ``model.inputs``.
            named: Arrays as keywords.

        Raises:
            InputError: An input does not fit.
        """
        return self.model.apply(self.params, inputs_by_name(inputs, named), dtype=self.dtype)

    @property
    def state(self) -> dict[str, jax.Array]:
        """Return the current state as a dict for `jaxrnn.Model.step`."""
        with exact_types():
            types = {variable.name: variable.dtype for variable in self.model.state if variable.name in self.carry}
            return {name: _widened(jnp.asarray(self.carry[name].get_value()), dtype) for name, dtype in types.items()}

    @untabulated
    def reset(self, batch: int | None = None) -> None:
        """Set the state to the value before the first step, for ``batch`` streams, as in `jaxrnn.Model.init`.

        Raises:
            StateError: The model has no steps.
        """
        self._set_state(self.model.init(batch))

    def step(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> dict[str, jax.Array]:
        """Run one step: return the outputs, and advance the state in place.

        Args:
            inputs: A dict of arrays, as in ``model.spec.inputs``.
            named: Arrays as keywords.

        Raises:
            StateError: The model has no steps.
            InputError: An input does not fit, or the batch differs from the batch of the state.
        """
        outputs, state = self.model.step(self.params, self.state, inputs_by_name(inputs, named), dtype=self.dtype)
        self._set_state(state)
        return outputs

    def scan(
        self, inputs: Mapping[str, Any], *, time_axis: int | Mapping[str, int] = 0, lengths: Any = None
    ) -> dict[str, jax.Array]:
        """Run `step` over a whole recording in one call, as `jaxrnn.Model.scan`; the state advances in place.

        Args:
            inputs: A dict of arrays, as in ``model.spec.inputs``, with frames along ``time_axis``.
            time_axis: The axis of frames, or a dict with the axis of each input and output.
            lengths: ``int[batch]``, the number of frames of each stream.

        Raises:
            StateError: The model has no steps.
            InputError: An input does not fit.
        """
        outputs, state = self.model.scan(
            self.params, self.state, inputs, time_axis=time_axis, lengths=lengths, dtype=self.dtype
        )
        self._set_state(state)
        return outputs

    def _set_state(self, state: Mapping[str, jax.Array]) -> None:
        with exact_types():
            for name, value in state.items():
                self.carry[name].set_value(value)

    def _facts(self) -> dict[str, Any]:
        return {
            **super()._facts(),
            "carry": {name: describe(variable.get_value()) for name, variable in self.carry.items()},
        }


def _widened(array: jax.Array, dtype: np.dtype) -> jax.Array:
    return array.astype(dtype) if dtype.kind in "iu" and array.dtype.kind == dtype.kind else array
