"""A step or a stream as an ONNX file of its own: ``jaxrnn export`` without parameters, or with ``--symbol``."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from jaxrnn.cli.errors import MISMATCH
from jaxrnn.cli.export_params import ParamsOptions
from jaxrnn.cli.export_report import facts_of, report
from jaxrnn.cli.options import ModelFile
from jaxrnn.cli.output import busy, show
from jaxrnn.cli.pulses import PulseOptions
from jaxrnn.errors import InputError, ModelError, StateError
from jaxrnn.export import Exported, export_onnx
from jaxrnn.export.verification import verify_export
from jaxrnn.model import Model
from jaxrnn.model.inspection import time_symbols
from jaxrnn.runtime.compiled import is_compiled
from jaxrnn.steps.stepper import Stepper
from jaxrnn.verification.sampling import index_limits


def write_step(
    file: ModelFile,
    output: Path,
    pulses: PulseOptions,
    flush: Path | None,
    params: ParamsOptions,
    dims: Mapping[str, int],
    seed: int | None,
    **options: Any,
) -> None:
    """Write the step of a model, or with a symbol of its stream, and show what was written.

    Args:
        file: the model.
        output: the file to write.
        pulses: how to stream it.
        flush: the file for the flush.
        params: where the parameters are.
        dims: sizes of open dimensions.
        seed: of the recordings to verify with; None to verify nothing.
        options: of `jaxrnn.export_onnx`.
    """
    if is_compiled(file.path):
        raise ModelError(f"{file.path} is compiled, and holds no equations to write: export the ONNX file")
    if flush is not None and pulses.symbol is None:
        raise click.UsageError("--flush is for a stream: a step keeps nothing back. Give --symbol NAME")
    name = file.path.name
    with busy(f"tracing {name}"):
        model = file.load()
        arrays = params.of(model)
        stepper = _step_of(model, dims) if pulses.symbol is None else pulses.stream(model, dims)
    if pulses.symbol is None:
        options |= {"step": True, "dims": dims or None}

    def write(path: Path, flush: Path | None) -> Exported:
        exported = export_onnx(stepper, arrays, path, flush=flush, label=name, **options)
        assert exported is not None  # only of a whole graph
        return exported

    checked = None
    if seed is not None:
        with tempfile.TemporaryDirectory(prefix=".jaxrnn.", dir=output.parent) as folder:
            with busy(f"writing {output.name}"):
                trial = write(Path(folder, output.name), flush and Path(folder, f"flush.{flush.name}"))
            offline = None if pulses.symbol is None else functools.partial(model.apply, arrays)
            limits = index_limits(model)
            with busy(f"verifying {output.name}"):
                checked = verify_export(
                    stepper,
                    arrays,
                    trial.step.path,
                    offline=offline,
                    limits=limits,
                    shortest=pulses.shortest,
                    longest=pulses.longest,
                    seed=seed,
                )
            if not checked.ok:
                show(facts_of(file.path, trial, checked), report)
                click.get_current_context().exit(MISMATCH)
    with busy(f"writing {output.name}"):
        written = write(output, flush)
    show(facts_of(file.path, written, checked, written.files), report)


def _step_of(model: Model, dims: Mapping[str, int]) -> Stepper:
    """A model that has steps of its own.

    Raises:
        StateError: it has none; says how to stream it.
        InputError: it has no state, and time is left open.
    """
    try:
        _ = model.spec
    except StateError as error:
        symbols = time_symbols(model)
        mend = f"--symbol {symbols[0]}" if symbols else "export FILE with a symbolic dimension for time, for --symbol"
        raise StateError(f"{error}. Here, as a stream: {mend}") from error
    opened = [symbol for symbol in time_symbols(model) if symbol not in dims]
    if opened and not model.state:
        raise InputError(
            f"{model.label} has no state, and leaves {opened[0]} open: give --symbol {opened[0]} for a stream, or "
            f"--dim {opened[0]}=SIZE for a graph of one size"
        )
    return model
