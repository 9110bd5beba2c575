"""A model as a streaming function: which of its inputs move in time, and what their shapes are while it is traced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax

from jaxrnn.errors import InputError, StreamError
from jaxrnn.onnx.values import exact_types
from jaxrnn.packing import plain
from jaxrnn.transforms import Streamed, stream

if TYPE_CHECKING:
    from jaxrnn.model import Model


def open_dimensions(model: Model) -> list[str]:
    """The names of the dimensions that the inputs leave open."""
    sizes = (size for info in model.inputs for size in info.shape or ())
    return list(dict.fromkeys(size for size in sizes if isinstance(size, str)))


def stream_model(
    model: Model,
    symbol: str,
    pulse: int,
    *,
    dims: Mapping[str, int],
    multiple: int,
    constraints: Sequence[str],
) -> Streamed:
    """`Model.stream`."""
    names = open_dimensions(model)
    if symbol not in names:
        found = ", ".join(names) or "none"
        raise InputError(f"{model.label}: no input has a dimension {symbol!r}; dimensions left open: {found}")
    unknown = [name for name in dims if name not in names or name == symbol]
    if unknown:
        raise InputError(f"{model.label}: dims gives {unknown[0]!r}; dimensions to be given: {', '.join(names)}")
    example, axes = {}, {}
    for info in model.inputs:
        if info.shape is None or info.dtype is None:
            raise InputError(f"{model.label}: input {info} has no declared rank, so its time axis is not known")
        places = [axis for axis, size in enumerate(info.shape) if size == symbol]
        if len(places) > 1:
            raise InputError(f"{model.label}: input {info} has {symbol} on {len(places)} axes; time can be on one only")
        axes[info.name] = places[0] if places else None
        shape = [size if isinstance(size, int) else dims.get(size, 1) for size in info.shape]
        example[info.name] = jax.ShapeDtypeStruct(shape, info.dtype)

    def apply(params: Any, inputs: Any) -> dict[str, Any]:
        return model.apply(plain(params), inputs)

    try:
        with exact_types():
            return stream(
                apply,
                example,
                axes=axes,
                params=model.params,
                pulse=pulse,
                multiple=multiple,
                constraints=constraints,
            )
    except StreamError as error:
        raise StreamError(f"{model.label}: {error}") from error
