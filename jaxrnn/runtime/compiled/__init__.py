"""Ahead of time: steps, exported into one file that needs neither ONNX nor tracing of the model to run.

A file holds the steps and scan of a model, or the step and flush of a streamed function.
"""

from __future__ import annotations

from jaxrnn.runtime.compiled.files import load_compiled, save_compiled
from jaxrnn.runtime.compiled.format import MAGIC, is_compiled
from jaxrnn.runtime.compiled.steps import Compiled

__all__ = ["MAGIC", "Compiled", "is_compiled", "load_compiled", "save_compiled"]
