"""`load_cached`: the compiled steps of an ONNX file, kept beside the file for the next start."""

from __future__ import annotations

import contextlib
import inspect
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from jaxrnn._files.messages import first_line, near_or_all
from jaxrnn._files.stores import digests, local_path
from jaxrnn.cells.forms import Types
from jaxrnn.errors import InputError, ModelError, check_kind
from jaxrnn.jaxprs.numbering import fingerprint
from jaxrnn.runtime.compiled.format import Archive, read, write
from jaxrnn.runtime.compiled.native import environment
from jaxrnn.runtime.compiled.stepper import CompiledStepper

#: The folder beside an ONNX file that holds its compiled steps.
FOLDER = "__jaxrnn__"


def load_cached(
    path: str | os.PathLike[str],
    *,
    load: Mapping[str, Any] | None = None,
    stream: Mapping[str, Any] | None = None,
    dims: Mapping[str, int] | None = None,
    batches: Sequence[int] = (),
    folder: str | os.PathLike[str] | None = None,
) -> CompiledStepper:
    """Load an ONNX file as compiled steps, and keep the machine code for the next start.

    The first call loads the file, streams the model if `stream` is given, compiles the steps, and writes a compiled
    file. A later call, also in another process, reads the compiled file, and does not load, trace or compile. The
    compiled file belongs to these options, this processor, and these versions of jaxrnn and JAX, and to the content of
    the ONNX file and of its external data. If the content has changed, the compiled file is written again. A later call
    repeats the warnings of the first call about the file and the stream.

    Machine code runs unchecked, with all rights of the process. Whoever can write to the folder can run code here, as
    with Python's ``__pycache__``.

    Example::

        denoiser = jaxrnn.load_cached("denoiser.onnx", dims={"time": 1})
        run = jaxrnn.Runner(denoiser)

    Args:
        path: the path of the ONNX file.
        load: options of `load`, such as ``{"static": {"sr": 16000}}``. Own operators are functions, which cannot be
            compared with the functions of an earlier process.
        stream: options of `Model.stream`, such as ``{"pulse": 4}``; ``{}`` streams with the defaults. By default, the
            model is called in steps.
        dims: sizes of open dimensions of a step, except the batch.
        batches: further numbers of streams for machine code, as in `save_compiled`.
        folder: the folder of the compiled files; by default ``__jaxrnn__`` beside the ONNX file. If the folder cannot
            be written, a `UserWarning` names the reason.

    Raises:
        InputError: an option does not fit, or `load` has own operators.
        ModelError: the file is missing or cannot be loaded; as `load`.
        StateError: as `save_compiled`.
        StreamError: as `Model.stream`.
        UnsupportedError: as `load` and `save_compiled`.
    """
    source = local_path(path)
    check_kind("load", load, Mapping | None, "a dict of options of `jaxrnn.load`")
    check_kind("stream", stream, Mapping | None, "a dict of options of `Model.stream`")
    if (load or {}).get("operators"):
        raise InputError(
            "own operators are functions, which `load_cached` cannot compare with the functions of an earlier process: "
            "use `jaxrnn.load` with `operators`, and `jaxrnn.save_compiled`"
        )
    precision = jax.config.jax_default_matmul_precision  # pyright: ignore[reportAttributeAccessIssue]
    key = fingerprint(dict(load or {}), stream, dims, list(batches), Types.here(), precision, environment())
    kept = (source.parent / FOLDER if folder is None else local_path(folder)) / f"{source.stem}-{key[:16]}.jaxrnn"
    found = _read(kept, source)
    if found is None:
        found = _made(kept, source, load or {}, stream, dims or {}, batches)
    for text in found.warnings or ():
        warnings.warn(text, stacklevel=2)
    return CompiledStepper(found)


def _read(kept: Path, source: Path) -> Archive | None:
    """Return the compiled steps of a file, or None if the steps are missing, damaged or of different content."""
    if not kept.exists():
        return None
    try:
        found = read(kept, native=True)
        is_same = found.sources == digests(source.parent, found.sources)
    except (ModelError, OSError):  # a damaged file is written again, and `load` reports missing data
        return None
    return found if is_same and source.name in found.sources and found.warnings is not None else None


def _made(
    kept: Path,
    source: Path,
    load: Mapping[str, Any],
    stream: Mapping[str, Any] | None,
    dims: Mapping[str, int],
    batches: Sequence[int],
) -> Archive:
    """Compile the steps of a file, and write the compiled steps."""
    # Not at the top: a process that finds its compiled steps does not wait for these imports.
    from jaxrnn.model import Model
    from jaxrnn.model.loading import digests_of
    from jaxrnn.model.loading import load as load_model
    from jaxrnn.runtime.compiled.saving import archive, checked_batches, machine_code

    for what, options, function in (("load", load, load_model), ("stream", stream, Model.stream)):
        known = list(inspect.signature(function).parameters)[1:]
        for name in options or ():
            if name not in known:
                raise InputError(f"`{what}` has no option {name!r}{near_or_all(name, known)}")
    counts = checked_batches(batches)
    with _collected() as texts:
        model = load_model(source, **load)
        before = digests_of(model, source.name)
        stepper = model if stream is None else model.stream(**stream)
        made = archive(stepper, model.params, dims, None, None)
    made = made._replace(native=machine_code(made, counts), sources=before, warnings=list(dict.fromkeys(texts)))
    # Arrays outside of the ONNX file are read when they are needed.
    if digests_of(model, source.name) != before:
        raise ModelError(f"{source}: its external data changed while the file was compiled: call again")
    try:
        kept.parent.mkdir(exist_ok=True)
        return write(kept, made)
    except (OSError, InputError) as error:
        warnings.warn(
            f"the compiled steps of {source} cannot be kept for the next start ({first_line(error)}); give a folder "
            "that can be written, as in `load_cached(path, folder=...)`",
            stacklevel=4,
        )
        return made._replace(digest=fingerprint(before, kept.name))


@contextlib.contextmanager
def _collected() -> Iterator[list[str]]:
    """Collect the texts of user warnings; other warnings, and all warnings before an error, are given at the end."""
    texts: list[str] = []
    caught: list[warnings.WarningMessage] = []
    failed = True
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")  # a filter of this process is not for the next start
            yield texts
        failed = False
    finally:
        for each in caught:
            if failed or each.category is not UserWarning:
                warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
            else:
                texts.append(str(each.message))
