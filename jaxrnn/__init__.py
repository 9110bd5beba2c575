"""jaxrnn: recurrent networks from ONNX files as pure JAX functions.

``jaxrnn.load("model.onnx")`` returns a `Model`; ``model.apply(params, inputs)`` is a function that ``jax.jit``,
``jax.grad`` and ``jax.vmap`` take. Importing this package is cheap: onnx is imported when a model is loaded.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import warnings
from typing import TYPE_CHECKING, Any

from jaxrnn.errors import (
    InputError,
    JaxrnnError,
    LimitError,
    MissingPackageError,
    ModelError,
    NodeError,
    NonFiniteError,
    StateError,
    StaticValueError,
    StoreError,
    StreamError,
    TrainingError,
    UnsupportedError,
)
from jaxrnn.version import __version__ as __version__
from jaxrnn.version import why_unsupported, why_untested

if TYPE_CHECKING:
    from jaxrnn import audio as audio
    from jaxrnn import demo as demo
    from jaxrnn import evaluation as evaluation
    from jaxrnn import export as export
    from jaxrnn import inspection as inspection
    from jaxrnn import nnx as nnx
    from jaxrnn import profiling as profiling
    from jaxrnn import signal as signal
    from jaxrnn import streaming as streaming
    from jaxrnn import training as training
    from jaxrnn import verification as verification
    from jaxrnn.export import export_onnx
    from jaxrnn.frameworks import from_keras, from_torch, to_keras, to_torch
    from jaxrnn.model import Model
    from jaxrnn.model.cached import load_cached
    from jaxrnn.model.loading import load
    from jaxrnn.onnx.limits import Limits
    from jaxrnn.onnx.state import StateVar
    from jaxrnn.runtime.compiled import CompiledStepper, load_compiled, save_compiled
    from jaxrnn.runtime.pool import StreamPool
    from jaxrnn.runtime.runner import Runner
    from jaxrnn.streaming import Streamed, bounded, stream

# In the order of the README: files, steps, streams, live use, other frameworks.
__all__ = [  # noqa: RUF022
    "load",
    "Model",
    "StateVar",
    "export_onnx",
    "stream",
    "Streamed",
    "bounded",
    "Runner",
    "StreamPool",
    "save_compiled",
    "load_compiled",
    "CompiledStepper",
    "load_cached",
    "from_torch",
    "to_torch",
    "from_keras",
    "to_keras",
    "Limits",
    "JaxrnnError",
    "InputError",
    "LimitError",
    "MissingPackageError",
    "ModelError",
    "NodeError",
    "NonFiniteError",
    "StateError",
    "StaticValueError",
    "StoreError",
    "StreamError",
    "TrainingError",
    "UnsupportedError",
]

#: The module of each name that is imported when the name is first used.
_LAZY = {
    "Model": "jaxrnn.model",
    "load": "jaxrnn.model.loading",
    "load_cached": "jaxrnn.model.cached",
    "Limits": "jaxrnn.onnx.limits",
    "StateVar": "jaxrnn.onnx.state",
    "Runner": "jaxrnn.runtime.runner",
    "StreamPool": "jaxrnn.runtime.pool",
    "export_onnx": "jaxrnn.export",
    **dict.fromkeys(("CompiledStepper", "load_compiled", "save_compiled"), "jaxrnn.runtime.compiled"),
    **dict.fromkeys(("Streamed", "bounded", "stream"), "jaxrnn.streaming"),
    **dict.fromkeys(("from_keras", "from_torch", "to_keras", "to_torch"), "jaxrnn.frameworks"),
}

#: Subpackages that are attributes of ``jaxrnn`` without a separate import.
_PACKAGES = (
    "audio",
    "demo",
    "evaluation",
    "export",
    "inspection",
    "nnx",
    "profiling",
    "signal",
    "streaming",
    "training",
    "verification",
)

#: Modules of names that were attributes of ``jaxrnn`` in earlier versions.
_MOVED = dict.fromkeys(
    ("associative_scan", "convolve", "correlate", "fftconvolve", "interp", "lfilter", "sosfilt"), "jaxrnn.signal"
)


def _check_jax() -> None:
    try:
        installed = importlib.metadata.version("jax")
    except importlib.metadata.PackageNotFoundError:  # importing jax fails later, or works without metadata
        return
    if (message := why_unsupported(installed)) is not None:
        raise MissingPackageError(message)
    if (message := why_untested(installed)) is not None:
        warnings.warn(message, UserWarning, stacklevel=2)


_check_jax()


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"jaxrnn.{name}")
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    place = f": it is now {_MOVED[name]}.{name}" if name in _MOVED else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{place}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_PACKAGES, "__version__"])
