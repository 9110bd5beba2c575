"""Marks of tests that need packages which the extra `test` does not have."""

from __future__ import annotations

import importlib.util

import pytest


def needs(*names: str) -> pytest.MarkDecorator:
    """Return the mark that skips a test without these packages."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


#: Files are written by the converter and run by LiteRT; weights of 8 bits need the quantizer too.
needs_litert = needs("litert_converter", "ai_edge_litert")
needs_quantizer = needs("litert_converter", "ai_edge_litert", "ai_edge_quantizer")
