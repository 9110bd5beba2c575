"""Export: a stepper in one file that needs neither ONNX nor tracing to run."""

from __future__ import annotations

from jaxrnn.runtime.compiled.files import load_compiled, save_compiled
from jaxrnn.runtime.compiled.format import is_compiled
from jaxrnn.runtime.compiled.stepper import CompiledStepper

__all__ = ["CompiledStepper", "is_compiled", "load_compiled", "save_compiled"]
