"""Read, check, bind and evaluate ONNX graphs as JAX functions."""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any


class _Later(types.ModuleType):
    """A module that is imported when an attribute is read."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def _import_onnx_ir() -> types.ModuleType:
    """Return onnx-ir, imported without SymPy, which takes 0.2 seconds and serves arithmetic on dimensions only."""
    later = {name: _Later(name) for name in ("sympy", "onnx_ir._symbolic_shapes") if name not in sys.modules}
    sys.modules.update(later)
    try:
        return importlib.import_module("onnx_ir")
    finally:
        for name, module in later.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


if TYPE_CHECKING:
    import onnx_ir as ir
else:
    ir = _import_onnx_ir()
