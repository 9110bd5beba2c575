"""Compiled files: `save_compiled` and `load_compiled`, for models in steps and for streamed functions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrnn.errors import InputError
from jaxrnn.runtime.compiled.format import STREAMED_MAGIC, read, write
from jaxrnn.runtime.compiled.steps import Compiled, archive_model

if TYPE_CHECKING:
    from jaxrnn.model import Model
    from jaxrnn.runtime.compiled.streamed import CompiledStream
    from jaxrnn.streaming import Streamed


def save_compiled(
    function: Model | Streamed,
    path: str | os.PathLike[str],
    *,
    params: Any = None,
    dims: Mapping[str, int] | None = None,
    platforms: Sequence[str] | None = None,
    label: str | None = None,
) -> None:
    """Write a model's step and scan, or a streamed function's step and flush, to a file, whole or not at all.

    Parameters are in the file once, a model's packed. The batch is symbolic: the model's own where its file left it
    open, else a leading axis as `Model.init_state` and `Streamed.init` give it. So is the number of frames of a scan;
    a streamed function is compiled for its pulse.

    Args:
        function: a model that runs in steps, or a streamed function whose input and result are dicts by name.
        path: where to write; ``.jaxrnn`` is the customary ending.
        params: the parameters; a model's own by default. A streamed function keeps none, so they must be given.
        dims: for a model, sizes of dimensions of the inputs that the file leaves open, other than the batch.
        platforms: for which to compile, such as ``("cpu", "cuda")``; by default the one that JAX uses here.
        label: what messages call it; by default the model's file, or the file that is written.

    Raises:
        StateError: the model has no steps.
        InputError: a dimension or parameters are missing, or a streamed function has other trees.
    """
    from jaxrnn.runtime.compiled.streamed import archive_streamed
    from jaxrnn.streaming import Streamed

    path = Path(path)
    if isinstance(function, Streamed):
        if dims:
            raise InputError("dims are for models in steps: the sizes of a streamed function were fixed by stream")
        archive = archive_streamed(function, params, platforms, label or path.name)
    else:
        chosen = function.params if params is None else params
        archive = archive_model(function, chosen, dims or {}, platforms, label or Path(function.label).name)
    write(path, archive)


def load_compiled(path: str | os.PathLike[str]) -> Compiled | CompiledStream:
    """Read a file that `save_compiled` wrote. Neither onnx nor tracing of the model is needed.

    The digest in a file tells damage. It is no signature: whoever can write the file can write the digest. Run compiled
    files only from whom you trust, as you would a program.

    Returns:
        A `Compiled` model in steps, or a `CompiledStream`.

    Raises:
        ModelError: no such file, another kind of file, or one that has been damaged or makes no sense. When a function
            is first called: it was compiled for another platform, or by a JAX that this one cannot read.
    """
    archive = read(path)
    if archive.magic != STREAMED_MAGIC:
        return Compiled(archive)
    # What streams needs more of jaxrnn: a model in steps is to start without waiting for it.
    from jaxrnn.runtime.compiled.streamed import CompiledStream

    return CompiledStream(archive)
