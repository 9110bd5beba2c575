"""Functions between JAX and a file: exported with their parameters as arguments, loaded and called."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import jax

from jaxrnn.errors import ModelError
from jaxrnn.guards import exact_types
from jaxrnn.runtime.compiled.format import Archive
from jaxrnn.runtime.pickling import on_device, on_host
from jaxrnn.version import __version__


def export(function: Callable[..., Any], platforms: Sequence[str] | None, *arguments: Any) -> bytes:
    """A function, serialised for arguments of these shapes."""
    with exact_types():
        return bytes(jax.export.export(jax.jit(function), platforms=platforms)(*arguments).serialize())


def shape_of(array: Any, lead: Sequence[Any] = ()) -> jax.ShapeDtypeStruct:
    """The shape and element type of an array, behind leading axes."""
    return jax.ShapeDtypeStruct((*lead, *array.shape), array.dtype)


class Functions:
    """The functions of a file, and the parameters that they take first. They are pure: threads may call them at once.

    Attributes:
        label: what the file was compiled from.
        params: the parameters. A function that is called with None in their place has them compiled into it: what
            depends on nothing else is then computed once, which makes steps much faster.
    """

    def __init__(self, archive: Archive):
        self.label: str = archive.manifest["label"]
        self.params = tuple(archive.params)
        self._archive = archive
        self._jax: str = archive.manifest["jax"]
        self._serialised = archive.functions
        self._loaded: dict[str, Any] = {}
        self._bound: dict[str, Any] = {}

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
                self._bound[name] = jax.jit(functools.partial(function, list(self.params)))
            try:
                return self._bound[name](*arguments) if params is None else function(list(params), *arguments)
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
                    f"{self.label} was compiled for {made}, but JAX runs on {here} here; compile it for that"
                )
            self._loaded[name] = jax.jit(exported.call)
        return self._loaded[name]

    def _unusable(self, name: str, error: Exception) -> ModelError:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        return ModelError(
            f"{self.label}: the function {name!r} of the compiled file cannot be used: {said[:300]}. It was compiled "
            f"with JAX {self._jax}, and this is JAX {jax.__version__}: compile it again with this one, or upgrade JAX"
        )


def _read_again(kind: Callable[[Archive], Any], archive: Archive) -> Any:
    return kind(archive._replace(params=on_device(archive.params)))


def facts_of(label: str) -> Mapping[str, Any]:
    """What the manifest of every file says."""
    return {"jaxrnn": __version__, "jax": jax.__version__, "label": label}
