"""Functions between JAX and a file: exported with their parameters as arguments, loaded and called."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp

from jaxrnn import compiling
from jaxrnn.errors import InputError, JaxrnnError, ModelError
from jaxrnn.guards import exact_types
from jaxrnn.messages import first_line
from jaxrnn.runtime.compiled.format import Archive
from jaxrnn.runtime.compiled.manifest import BATCHED
from jaxrnn.runtime.pickling import on_device, on_host


class Functions:
    """The functions of a file, and the parameters that they take first. They are pure: threads may call them at once.

    Attributes:
        spec: the facts about the stepper.
        params: the parameters. A function that is called with None in their place has them compiled into it: what
            depends on nothing else is then computed once, which makes steps much faster.
    """

    def __init__(self, archive: Archive):
        self.spec = archive.spec
        self.params = tuple(archive.params)
        self._archive = archive
        self._jax = archive.jax
        self._serialised = archive.functions
        self._loaded: dict[str, Any] = {}
        self._bound: dict[str, Any] = {}

    @property
    def fingerprint(self) -> str:
        """What tells the file from others: the digest of its content."""
        return self._archive.digest

    def __copy__(self) -> Self:
        return self  # nothing of it changes

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[Any, ...]]:
        return _read_again, (type(self), self._archive._replace(params=on_host(self._archive.params)))

    def _call(self, name: str, params: Sequence[Any] | None, *arguments: Any) -> Any:
        with exact_types():
            function = self._function(name)
            if params is None and name not in self._bound:
                self._bound[name] = compiling.jit(functools.partial(function, list(self.params)))
            try:
                return self._bound[name](*arguments) if params is None else function(list(params), *arguments)
            except JaxrnnError:
                raise
            except (ValueError, jax.errors.JaxRuntimeError) as error:
                # What a caller gave was held against the manifest: what does not fit now is in the file itself.
                if isinstance(error, jax.errors.JaxRuntimeError) and "INVALID_ARGUMENT" not in str(error):
                    raise  # of the machine, such as a lack of memory
                raise self._unusable(name, error) from error

    def _function(self, name: str) -> Any:
        if name not in self._loaded:
            try:
                exported = jax.export.deserialize(bytearray(self._serialised[name]))
            except Exception as error:  # of whatever kind: JAX looks at versions, and believes the rest
                raise self._unusable(name, error) from error
            here = jax.export.default_export_platform()
            if here not in exported.platforms:
                made = ", ".join(exported.platforms)
                raise ModelError(
                    f"{self.spec.label} was compiled for {made}, but JAX runs on {here} here; compile it for that"
                )
            call = exported.call
            if not name.endswith(BATCHED) and name + BATCHED in self._serialised:
                call = _mappable(call, lambda *arguments: self._function(name + BATCHED)(*arguments))
            self._loaded[name] = compiling.jit(call)
        return self._loaded[name]

    def _unusable(self, name: str, error: Exception) -> ModelError:
        return ModelError(
            f"{self.spec.label}: the function {name!r} of the compiled file cannot be used: "
            f"{first_line(error, 300)}. It was compiled with JAX {self._jax}, and this is JAX "
            f"{jax.__version__}: compile it again with this one, or upgrade JAX"
        )


def _read_again(kind: Callable[[Archive], Any], archive: Archive) -> Any:
    return kind(archive._replace(params=on_device(archive.params)))


def _mappable(one: Callable[..., Any], many: Callable[..., Any]) -> Callable[..., Any]:
    """A function of parameters and arrays of one stream, for which ``jax.vmap`` takes the function of many."""
    mapped = jax.custom_batching.custom_vmap(one)

    @mapped.def_vmap
    def _rule(size: int, batched: Any, params: Any, *arguments: Any) -> tuple[Any, Any]:
        if any(jax.tree.leaves(batched[0])):
            raise InputError("a compiled file has one set of parameters: map over state and inputs alone")
        whole = jax.tree.map(
            lambda array, is_batched: array if is_batched else jnp.broadcast_to(array, (size, *array.shape)),
            arguments,
            tuple(batched[1:]),
        )
        results = many(params, *whole)
        return results, jax.tree.map(lambda _: True, results)

    return mapped
