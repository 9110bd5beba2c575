"""Writing compiled files: `save_compiled`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrnn._files.files import check_replaceable
from jaxrnn.errors import InputError, check_count
from jaxrnn.runtime.compiled.archive import archive
from jaxrnn.runtime.compiled.format import write
from jaxrnn.runtime.compiled.making import native as machine_code
from jaxrnn.steps.stepper import Stepper


def save_compiled(
    stepper: Stepper,
    path: str | os.PathLike[str],
    *,
    params: Any = None,
    dims: Mapping[str, int] | None = None,
    platforms: Sequence[str] | None = None,
    label: str | None = None,
    native: bool = False,
    batches: Sequence[int] = (),
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
        native: whether the file also holds machine code for one stream, so that nothing is compiled where it is loaded
            with ``native=True``. It is for this processor and these versions of jaxrnn and JAX; elsewhere the rest of
            the file serves. The parameters are in each function once more.
        batches: numbers of streams that machine code is for, too: batches, and pools of that capacity.

    Raises:
        StateError: the model has no steps, or its state grows from step to step.
        InputError: a dimension or parameters are missing or do not fit, arrays do not go by name, or there is no such
            platform, or batches are no numbers of streams or given without native.
        UnsupportedError: there is no machine code for a step that calls back into Python.
    """
    check_replaceable(Path(path))
    counts = [check_count("batches, the numbers of streams,", batch) for batch in dict.fromkeys(batches)]
    if counts and not native:
        raise InputError("batches are for machine code: a file without it serves any number of streams; give native")
    made = archive(stepper, params, dims or {}, platforms, label)
    write(Path(path), made._replace(native=machine_code(made, counts)) if native else made)
