"""A function of arrays by name as a jaxpr, with what a file needs to know of its inputs and results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr

from jaxrnn.cells import plain_forms
from jaxrnn.errors import InputError
from jaxrnn.exporting.names import Key

Arrays = Mapping[Key, Any]
Structs = Mapping[Key, jax.ShapeDtypeStruct]


@dataclass(frozen=True)
class Traced:
    """A function by names.

    Attributes:
        closed: the function, of the leaves of its parameters, then of its inputs.
        params: the values of these leaves.
        paths: their paths.
        inputs: shape and type of each input.
        results: the same of each result.
    """

    closed: ClosedJaxpr
    params: Sequence[np.ndarray]
    paths: Sequence[Any]
    inputs: Structs
    results: Structs


def trace(function: Callable[[Any, Arrays], Arrays], params: Any, inputs: Structs) -> Traced:
    """Trace a function in plain forms; to be called where types are those of the function.

    Engines of ONNX have no complex numbers: in a file they are pairs of numbers along a last axis, the real part first.

    Args:
        function: of the parameters and of arrays by name; gives arrays by name.
        params: the parameters.
        inputs: shape and type of each array.

    Raises:
        InputError: the function closes over values that are being traced.
    """
    with_paths, structure = jax.tree_util.tree_flatten_with_path(params)
    leaves = [leaf for _, leaf in with_paths]
    results: list[Key] = []

    def flat(leaves: Any, arrays: Sequence[Any]) -> list[Any]:
        given = {
            key: _from_pairs(array) if is_complex(struct) else array
            for (key, struct), array in zip(inputs.items(), arrays, strict=True)
        }
        outputs = function(structure.unflatten(leaves), given)
        results[:] = outputs
        return [_to_pairs(jnp.asarray(array)) for array in outputs.values()]

    paired = {key: _paired(struct) for key, struct in inputs.items()}
    with plain_forms():
        closed = jax.make_jaxpr(flat)(list(map(_without_values, leaves)), list(paired.values()))
    if any(isinstance(value, Tracer) for value in closed.consts):
        raise InputError("the function closes over values that are being traced; call export_onnx outside of jit")
    values = [np.asarray(leaf).astype(aval.dtype) for leaf, aval in zip(leaves, closed.in_avals, strict=False)]
    paths = [path for path, _ in with_paths]
    # Not the shapes above: without 64-bit types, JAX takes other types than those it is given.
    taken, given = closed.in_avals[len(leaves) :], closed.out_avals
    return Traced(closed, values, paths, _named(paired, taken), _named(results, given))


def _named(keys: Iterable[Key], avals: Sequence[Any]) -> Structs:
    return {key: jax.ShapeDtypeStruct(aval.shape, aval.dtype) for key, aval in zip(keys, avals, strict=True)}


def is_complex(array: Any) -> bool:
    """Whether the elements of an array are complex numbers."""
    return jnp.issubdtype(array.dtype, jnp.complexfloating)


def to_pairs(array: np.ndarray) -> np.ndarray:
    """An array as a file has it: complex numbers as pairs."""
    return np.stack([np.real(array), np.imag(array)], -1) if is_complex(array) else array


def _without_values(leaf: Any) -> Any:
    """The shape of a leaf; a Python number as it is, because its type is weak."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if hasattr(leaf, "dtype") else leaf


def _paired(struct: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    if not is_complex(struct):
        return struct
    return jax.ShapeDtypeStruct((*struct.shape, 2), np.finfo(struct.dtype).dtype)


def _from_pairs(array: Any) -> Any:
    return lax.complex(array[..., 0], array[..., 1])


def _to_pairs(array: Any) -> Any:
    return jnp.stack([lax.real(array), lax.imag(array)], -1) if is_complex(array) else array
