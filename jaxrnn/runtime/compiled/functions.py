"""Functions between JAX and a file: exported with their parameters as arguments, loaded and called.

Where the file has machine code for a call, that runs; any other call is compiled by JAX.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax.core import Tracer

from jaxrnn._files.messages import describe, first_line
from jaxrnn._jax.context import exact_types, placed
from jaxrnn.errors import InputError, JaxrnnError, ModelError
from jaxrnn.runtime.compiled.executables import CodeError, function_of
from jaxrnn.runtime.compiled.format import Archive
from jaxrnn.runtime.compiled.manifest import BATCHED
from jaxrnn.runtime.compiled.native import arguments_of, differences, structs_of


class Functions:
    """The functions of a file, and the parameters that they take first. They are pure: threads may call them at once.

    Attributes:
        spec: the facts about the stepper.
        native: the functions that run as machine code of the file, those of several streams with their number.
    """

    def __init__(self, archive: Archive):
        self.spec = archive.spec
        self._archive = archive
        self._jax = archive.jax
        self._serialised = archive.functions
        self._loaded: dict[str, Any] = {}
        self._bound: dict[str, Any] = {}
        self._ready: dict[str, Any] = {}
        self._code = {} if archive.native is None else dict(archive.native.code)
        if archive.native is not None and (changes := differences(archive.native.made)):
            self._code = {}
            # Said of the line that loads the file.
            self._tell(f"is for another machine or installation: {'; '.join(changes)}", stacklevel=5)

    @functools.cached_property
    def params(self) -> tuple[jax.Array, ...]:
        """The parameters, which are compiled into a function that is called with them or with None in their place.

        What depends on nothing else is then computed once, which makes steps much faster.
        """
        with exact_types(), jax.ensure_compile_time_eval():
            return tuple(placed(array) for array in self._archive.params)

    @property
    def native(self) -> tuple[str, ...]:
        """The functions for which there is machine code that can be used."""
        return tuple(self._code)

    def ready(self, name: str) -> Callable[..., Any] | None:
        """A function as machine code, its parameters in it; None where there is none for it.

        Args:
            name: of the function, with the number of streams after that of one that takes a batch.
        """
        if name not in self._ready and name in self._code and self._archive.native is not None:
            results = structs_of(self._archive.native.results[name])
            try:
                self._ready[name] = function_of(self._code[name], arguments_of(self.spec, name), results)
            except CodeError as error:
                del self._code[name]
                self._tell(f"cannot be used for {name!r}: {first_line(error, 300)}")
        return self._ready.get(name)

    def _tell(self, what: str, stacklevel: int = 2) -> None:
        warnings.warn(
            f"{self.spec.label}: the machine code of the compiled file {what}. Functions are compiled from its "
            "portable part, which gives the same",
            stacklevel=stacklevel,
        )

    @property
    def fingerprint(self) -> str:
        """What tells the file from others: the digest of its content."""
        return self._archive.digest

    def __copy__(self) -> Self:
        return self  # nothing of it changes

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[Any, ...]]:
        return type(self), (self._archive,)

    def _call(self, name: str, params: Sequence[Any] | None, *arguments: Any) -> Any:
        with exact_types():
            if params is vars(self).get("params"):
                params = None  # its own
            if params is None and (ready := self._ready_for(name, arguments)) is not None:
                # Arrays of other shapes, or on another device, are for JAX to compile.
                with contextlib.suppress(TypeError, ValueError):
                    return ready(*arguments)
            function = self.portable(name)
            if params is not None:
                params = self._checked(params)
            if params is None and name not in self._bound:
                self._bound[name] = jax.jit(functools.partial(function, list(self.params)))
            try:
                return self._bound[name](*arguments) if params is None else function(params, *arguments)
            except JaxrnnError:
                raise
            except (ValueError, jax.errors.JaxRuntimeError) as error:
                # What a caller gave was held against the manifest: what does not fit now is in the file itself.
                if isinstance(error, jax.errors.JaxRuntimeError) and "INVALID_ARGUMENT" not in str(error):
                    raise  # of the machine, such as a lack of memory
                raise self._unusable(name, error) from error

    def _checked(self, params: Any) -> list[Any]:
        """Parameters like those of the file, in its order.

        Raises:
            InputError: they are not.
        """
        own = self._archive.params
        if not isinstance(params, (list, tuple)) or len(params) != len(own):
            raise InputError(
                f"{self.spec.label}: parameters of a compiled file go in its order, as a list of {len(own)} array(s) "
                f"such as its attribute params, not {_kind_of(params)}; None takes those in the file"
            )
        for place, (each, want) in enumerate(zip(params, own, strict=True)):
            if describe(each) != describe(want):
                raise InputError(f"{self.spec.label}: params[{place}] must be {describe(want)}, not {describe(each)}")
        return list(params)

    def _ready_for(self, name: str, arguments: tuple[Any, ...]) -> Callable[..., Any] | None:
        """The machine code for a call, if there is any and nothing of the call is traced."""
        if not self._code or any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(arguments)):
            return None
        streams = None if name == "init" else self.spec.batch(arguments[0])
        of_one = streams is None or (streams == 1 and not name.endswith(BATCHED))
        return self.ready(name if of_one else f"{name}_{streams}")

    def portable(self, name: str) -> Callable[..., Any]:
        """A function of the file, which JAX compiles; it takes a list of the parameters first.

        Raises:
            ModelError: it cannot be read, or is for another platform.
        """
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
                call = _mappable(call, lambda *arguments: self.portable(name + BATCHED)(*arguments))
            self._loaded[name] = jax.jit(call)
        return self._loaded[name]

    def _unusable(self, name: str, error: Exception) -> ModelError:
        return ModelError(
            f"{self.spec.label}: the function {name!r} of the compiled file cannot be used: "
            f"{first_line(error, 300)}. It was compiled with JAX {self._jax}, and this is JAX "
            f"{jax.__version__}: compile it again with this one, or upgrade JAX"
        )


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


def _kind_of(params: Any) -> str:
    return f"{len(params)} of them" if isinstance(params, (list, tuple)) else f"a {type(params).__name__}"
