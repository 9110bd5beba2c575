"""Compiled files: a stepper in a file that runs without ONNX and without tracing."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxrnn.runtime.compiled.format import is_compiled
    from jaxrnn.runtime.compiled.saving import save_compiled
    from jaxrnn.runtime.compiled.stepper import CompiledStepper, load_compiled

__all__ = ["CompiledStepper", "is_compiled", "load_compiled", "save_compiled"]
__dir__ = __all__.copy

#: Lazy, because a process that reads a file should not wait for the imports of `save_compiled`.
_LAZY = {"CompiledStepper": "stepper", "is_compiled": "format", "load_compiled": "stepper", "save_compiled": "saving"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
