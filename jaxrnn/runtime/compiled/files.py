"""Compiled files: `save_compiled` and `load_compiled`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrnn.runtime.compiled.archive import archive
from jaxrnn.runtime.compiled.format import read, write
from jaxrnn.runtime.compiled.stepper import CompiledStepper
from jaxrnn.stepper import Stepper


def save_compiled(
    stepper: Stepper,
    path: str | os.PathLike[str],
    *,
    params: Any = None,
    dims: Mapping[str, int] | None = None,
    platforms: Sequence[str] | None = None,
    label: str | None = None,
) -> None:
    """Write a stepper to a file, whole or not at all: its step, its flush, and the scan of a model in steps.

    Parameters are in the file once; those of a model in steps packed. The number of streams stays open, and so is the
    number of frames of a scan. A streamed function is compiled for its pulse, the input frames of a step.

    Args:
        stepper: a model whose state is external, a streamed function, or one's own `Stepper`.
        path: where to write; ``.jaxrnn`` is the customary ending.
        params: the parameters; the stepper's own by default.
        dims: sizes of dimensions that the stepper leaves open, other than the batch.
        platforms: for which to compile, some of ``"cpu"``, ``"cuda"``, ``"rocm"`` and ``"tpu"``: one file serves them
            all, with one state. By default the one that JAX uses here. No device of theirs is needed to compile.
        label: what messages call it; by default the name of the model's file.

    Raises:
        StateError: the model has no steps, or its state grows from step to step.
        InputError: a dimension or parameters are missing or do not fit, arrays do not go by name, or there is no such
            platform.
    """
    write(Path(path), archive(stepper, params, dims or {}, platforms, label))


def load_compiled(path: str | os.PathLike[str]) -> CompiledStepper:
    """Read a file that `save_compiled` wrote. Neither onnx nor tracing of the model is needed.

    The digest in a file tells damage. It is no signature: whoever can write the file can write the digest. Run compiled
    files only from whom you trust, as you would a program.

    Raises:
        ModelError: no such file, another kind of file, or one that has been damaged or makes no sense. When a function
            is first called: it was compiled for another platform, or by a JAX that this one cannot read.
    """
    return CompiledStepper(read(path))
