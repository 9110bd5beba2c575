"""Choosing parameters by name, as a filter that all of NNX takes."""

from __future__ import annotations

import dataclasses
from fnmatch import fnmatchcase
from typing import Any

import jax
from flax import nnx

from jaxrnn._files.messages import near_or_all
from jaxrnn.errors import InputError


def parameter(array: jax.Array, name: str) -> nnx.Param[jax.Array]:
    """A parameter that knows its name in the file, wherever its module stands in another."""
    return nnx.Param(array, onnx_name=name)


def onnx_name(value: Any) -> str | None:
    """The name in the file of what is an imported parameter."""
    return value.get_metadata("onnx_name", None) if isinstance(value, nnx.Param) else None


@dataclasses.dataclass(frozen=True)
class Named:
    """A filter of NNX: the imported parameters whose names in the file match a pattern.

    Attributes:
        patterns: of ``fnmatch``, or names as they are.
    """

    patterns: tuple[str, ...]

    def __call__(self, path: tuple[Any, ...], value: Any) -> bool:
        """Whether the variable at a path is such a parameter."""
        name = onnx_name(value)
        return name is not None and any(_matches(name, pattern) for pattern in self.patterns)

    def __repr__(self) -> str:
        return f"named({', '.join(map(repr, self.patterns))})"


def named(*patterns: str, of: nnx.Module | None = None) -> Named:
    """A filter of parameters by their names in the file, for ``nnx.split``, ``nnx.state``, ``nnx.Optimizer`` and so on.

    It chooses parameters of imported models only, wherever in a module they stand, and no state, no gradient statistics
    and no layer of Flax. Combine it with Flax's own filters: ``nnx.All(nnx.Param, nnx.Not(named("encoder.*")))`` is all
    that is trained while the encoder is frozen.

    Example::

        frozen = jaxrnn.nnx.named("gru_*", of=denoiser)
        trained = nnx.All(nnx.Param, nnx.Not(frozen))

    Args:
        patterns: ``*`` stands for any text, dots and slashes included, ``?`` for one character and ``[ab]`` for one of
            several. A name that is written as it is always matches.
        of: the module that the filter is for: a pattern that matches no parameter of it is an error.

    Raises:
        InputError: no pattern is given, or one of them matches nothing in ``of``.
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
