"""A model as a streaming function: which of its inputs move in time, and what their shapes are while it is traced."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax

from jaxrnn.checks import is_count
from jaxrnn.errors import InputError, NodeError, StreamError
from jaxrnn.guards import exact_types
from jaxrnn.onnx.reading import labelled
from jaxrnn.streaming import Streamed, stream
from jaxrnn.voices import SIZE, argument, called

if TYPE_CHECKING:
    from jaxrnn.model import Model


@dataclasses.dataclass(frozen=True)
class Graph:
    """The whole graph of a model as a function of parameters and inputs."""

    model: Model

    @property
    def __name__(self) -> str:
        return self.model.label

    def __call__(self, params: Any, inputs: Any) -> dict[str, Any]:
        """As `Model.apply`."""
        return self.model.apply(params, inputs)


def open_dimensions(model: Model) -> list[str]:
    """The names of the dimensions that the inputs leave open."""
    sizes = (size for info in model.inputs for size in info.shape or ())
    return list(dict.fromkeys(size for size in sizes if isinstance(size, str)))


def check_symbol(model: Model, symbol: str) -> list[str]:
    """The names of all open dimensions, of which the symbol is one.

    Raises:
        InputError: it is none of them.
    """
    names = open_dimensions(model)
    if not isinstance(symbol, str) or not any(_times(name, symbol) for name in names):
        listed = ", ".join(names) or "none"
        raise InputError(f"no input has a dimension {symbol!r}; dimensions left open: {listed}")
    return names


def stream_model(
    model: Model,
    symbol: str,
    pulse: int | None,
    *,
    dims: Mapping[str, int | str],
    multiple: int,
    constraints: Sequence[str],
) -> Streamed:
    """`Model.stream`."""
    with labelled(model.label):
        names = check_symbol(model, symbol)
    for name, size in dims.items():
        if name not in names or _times(name, symbol):
            raise InputError(
                f"{model.label}: {called('dims')} gives {name!r}; dimensions left open: {', '.join(names)}"
            )
        if not is_count(size, 1) and not _times(size, symbol):
            raise InputError(
                f"{model.label}: {called('dims')} must give {name!r} a size from 1 on, or a multiple of {symbol} "
                f"such as {f'4*{symbol}'!r}, not {size!r}"
            )
    example, axes = {}, {}
    for info in model.inputs:
        if info.shape is None or info.dtype is None:
            raise InputError(f"{model.label}: {info.as_input} has no declared rank, so its time axis is not known")
        sizes = [dims.get(size, size) if isinstance(size, str) else size for size in info.shape]
        times = {axis: _times(size, symbol) for axis, size in enumerate(sizes)}
        places = [axis for axis, count in times.items() if count]
        if len(places) > 1:
            raise InputError(
                f"{model.label}: {info.as_input} has {symbol} on {len(places)} axes; time can be on one only"
            )
        axes[info.name] = places[0] if places else None
        shape = [times[axis] or (1 if isinstance(size, str) else int(size)) for axis, size in enumerate(sizes)]
        example[info.name] = jax.ShapeDtypeStruct(shape, info.dtype)

    try:
        with exact_types():
            return stream(
                Graph(model),
                example,
                axes=axes,
                params=model.params,
                pulse=pulse,
                multiple=multiple,
                constraints=constraints,
            )
    except NodeError as error:
        others = ", ".join(name for name in names if name != symbol and name not in dims)
        example = {} if not others else {others.split(", ")[0]: SIZE}
        hint = f". Sizes taken as 1: {others}; {argument('dims', example)} gives another" if others else ""
        raise StreamError(f"{model.label} cannot be traced over {symbol} of any length: {error}{hint}") from error
    except StreamError as error:
        raise StreamError(f"{model.label}: {error}") from error


def _times(size: Any, symbol: str) -> int:
    """How many frames of an axis go with one of the symbol's: k for ``k*S``, 0 where it is not a time axis."""
    if not isinstance(size, str):
        return 0
    match = re.fullmatch(rf"(?:(\d+)\s*\*\s*)?{re.escape(symbol)}(?:\s*\*\s*(\d+))?", size.strip())
    return int(match[1] or 1) * int(match[2] or 1) if match else 0
