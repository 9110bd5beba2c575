"""What all modules that hold an imported model share: its parameters as ``nnx.Param``, and the model itself, static."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Generator, Mapping
from typing import Any, Self, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.nnx import reprlib

from jaxrnn._jax.context import exact_types
from jaxrnn._jax.precision import check_names, check_param, compute_type
from jaxrnn.errors import InputError
from jaxrnn.model import Model
from jaxrnn.nnx.filters import parameter

Method = TypeVar("Method", bound=Callable[..., Any])


class Imported(nnx.Module):
    """Base of the modules made of an imported model.

    The parameters stand in a dict, whose keys are ONNX names as they are, with their dots, slashes and colons: as
    attributes, some of them would hide methods.

    Attributes:
        model: the imported model, static; its own parameters stay as they were in the file.
        dtype: the compute dtype, as in `jaxrnn.Model.apply`, static; the weights may be cast to it. None computes in
            the file's own types.
        weights: the parameters by ONNX name, in the file's layout and element types.
    """

    model: Model
    dtype: np.dtype | None
    weights: dict[str, nnx.Param[jax.Array]]

    def __init__(self, model: Model, *, dtype: Any = None):
        if not isinstance(model, Model):
            raise InputError(f"expected a model as jaxrnn.load gives it, not {type(model).__name__}")
        self.model, self.dtype = model, compute_type(dtype)
        with exact_types():
            # Copies: a training step that donates the module must not delete the model's own arrays.
            arrays = {name: jax.device_put(array, may_alias=False) for name, array in model.params.items()}
            self.weights = nnx.data({name: parameter(array, name) for name, array in arrays.items()})

    @property
    def params(self) -> dict[str, jax.Array]:
        """The parameters as they are now, by name: what `jaxrnn.Model.apply` and ``jaxrnn.export_onnx`` take."""
        with exact_types():
            return {name: jnp.asarray(self.weights[name].get_value()) for name in self.model.program.parameters}

    def update(self, params: Mapping[str, Any]) -> None:
        """Set some or all parameters, in place.

        Args:
            params: arrays by name, of the file's shapes and element types, or of the compute dtype.

        Raises:
            InputError: a name is unknown, or an array has another shape or dtype; no parameter is changed then.
        """
        expected = self.model.program.parameters
        check_names(params, expected, some=True)
        with exact_types():
            for name, value in params.items():
                check_param(f"params[{name!r}]", value, expected[name], self.dtype)
            for name, value in params.items():
                self.weights[name].set_value(jnp.array(value))

    def __copy__(self) -> Self:
        # Without it, a shallow copy would go through the pickled form, and would not share the variables.
        result = object.__new__(type(self))
        vars(result).update(vars(self))
        return result

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), **self._variables(np.asarray)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        # A pickled JAX array of 64 bits comes back with 32 where jax_enable_x64 is off; a NumPy array does not.
        with exact_types():
            vars(self).update(self._variables(jnp.asarray))

    def _variables(self, change: Callable[[Any], Any]) -> dict[str, dict[str, nnx.Variable]]:
        """The dicts of variables, with changed values."""
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
        """What is shown of the module: not hundreds of arrays. Its variables may hold anything, shapes for instance."""
        count = sum(array.size for array in self.model.program.parameters.values())
        dtype = {} if self.dtype is None else {"dtype": self.dtype.name}
        return {"model": self.model.label, **dtype, "weights": f"{count:,} parameters in {len(self.weights)} arrays"}


class _Untabulated:
    """A method that ``nnx.tabulate`` does not run on a copy of its module: it does so with the functions of a class."""

    def __init__(self, function: Callable[..., Any]):
        functools.update_wrapper(self, function)
        self._function = function

    def __get__(self, module: Any, owner: type | None = None) -> Any:
        return self if module is None else types.MethodType(self._function, module)

    def __call__(self, module: Any, *args: Any, **kwargs: Any) -> Any:
        return self._function(module, *args, **kwargs)


def untabulated(function: Method) -> Method:
    """Keep ``nnx.tabulate`` from wrapping a method, as its wrapper loses what a method changes in place.

    It also fails on some arguments of ``initialize_carry``, those of Flax's own cells among them.
    """
    return cast(Method, _Untabulated(function))


def inputs_by_name(inputs: Mapping[str, Any] | None, named: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of a call that takes them by keyword or as one dict."""
    if inputs is not None and not isinstance(inputs, Mapping):
        raise InputError(f"pass inputs by name or as one dict, not a {type(inputs).__name__}")
    return {**(inputs or {}), **named}
