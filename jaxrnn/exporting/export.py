"""`export_onnx`: a model's graph with other parameters, or any pure step as a graph of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from jaxrnn.exporting.exported import Exported
from jaxrnn.model import Model
from jaxrnn.model.exporting import write_graph
from jaxrnn.stepper import Stepper

#: The opset of files that ask for no other: what every engine of the last years runs.
OPSET = 17


def export_onnx(
    stepper: Model | Stepper | Callable[..., Any],
    params: Any,
    path: str | os.PathLike[str],
    *,
    step: bool = False,
    flush: str | os.PathLike[str] | None = None,
    example: Any = None,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    opset: int | None = None,
    label: str | None = None,
) -> Exported | None:
    """Write an ONNX file.

    Args:
        stepper: a model, for its graph with other parameters, or with ``step`` for its step; a streamed function, one's
            own `Stepper`; or a function of arrays, ``function(params, x)`` or ``function(x)`` where params is None.
        params: its parameters; None for those that it has itself.
        path: the file to write.
        step: of a model, whether its step is written as a graph of its own.
        flush: the file for the flush.
        example: of a function, its input: an array, or arrays by name; ``jax.ShapeDtypeStruct`` will do.
        batch: streams that the file is for; None for one, without a batch axis of its own.
        dims: sizes of the dimensions that are left open, other than the batch.
        opset: the version of ONNX's operators; 17 by default.
        label: what the file calls itself; by default what messages call the stepper.

    Returns:
        What was written; None for the graph of a model, which is the file that it was.
    """
    write_graph(stepper, params, path)  # pyright: ignore[reportArgumentType]
    return None
