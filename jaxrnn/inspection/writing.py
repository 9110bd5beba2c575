"""Writes the page of a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from jaxrnn._files.stores import in_place_of
from jaxrnn.errors import optional_package
from jaxrnn.model.inspection import Inspection, inspect_model
from jaxrnn.onnx.reading import Source


def write_page(source: Source, path: Path | str, *, symbol: str | None = None) -> None:
    """Write one HTML file that shows an ONNX file: its graph, state, streams and parameters.

    The bodies of Scan, Loop and If unfold in place, state is drawn as arrows from outputs back to inputs, and values
    that move in time have a colour. The page needs no network.

    Args:
        source: path, bytes or ``onnx.ModelProto``; operators that cannot be run are shown too.
        path: the page to write.
        symbol: the dimension that is time; without it, the first that the model can be streamed over.

    Raises:
        ModelError: the file is malformed, inconsistent or unsafe.
        UnsupportedError: its format is not supported.
        InputError: no input has that dimension.
        MissingPackageError: the packages of the extra ``graph`` are not installed.
    """
    write = page_writer()
    write(inspect_model(source, streams=symbol or True, graph=True), Path(path))


def page_writer() -> Callable[[Inspection, Path], None]:
    """Writes a page of a file whose nodes and values were gathered.

    Raises:
        MissingPackageError: the packages of the extra ``graph`` are not installed.
    """
    with optional_package(None, "the page of a file", "graph"):
        from jaxrnn.inspection.page import render

    def write(inspection: Inspection, path: Path) -> None:
        page = render(inspection)
        with in_place_of(path) as written:
            written.write_text(page, encoding="utf-8")

    return write
