"""What an export wrote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jaxrnn._files.messages import brief
from jaxrnn.onnx.stepfile import StepFile


@brief
@dataclass(frozen=True)
class ExportedGraph:
    """One file of an export.

    Attributes:
        path: where it is.
        facts: what its metadata says; `jaxrnn.load` reads the same.
        nodes: how many nodes its graph has, those inside of others included.
    """

    path: Path
    facts: StepFile
    nodes: int


@brief
@dataclass(frozen=True)
class Exported:
    """The files that an export wrote.

    Attributes:
        step: the step, or the function.
        flush: the flush; None where none was asked for.
        files: every file, in the order in which they appeared: external data, the first state, the flush, the step.
    """

    step: ExportedGraph
    flush: ExportedGraph | None
    files: tuple[Path, ...]
