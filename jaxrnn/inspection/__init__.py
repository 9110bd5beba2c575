"""The page of a file: its graph, state, streams and parameters in one HTML file that opens anywhere."""

from __future__ import annotations

from jaxrnn.inspection.writing import write_page

__all__ = ["write_page"]


def __dir__() -> list[str]:
    return sorted(__all__)
