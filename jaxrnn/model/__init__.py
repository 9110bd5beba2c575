"""Models as pure functions: loading, parameters, state, steps, scans, streams, and writing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxrnn.model.model import Model

__all__ = ["Model"]
__dir__ = __all__.copy


def __getattr__(name: str) -> Any:
    # `cached` reads compiled steps without an import of the interpreters of graphs and streams.
    if name != "Model":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from jaxrnn.model.model import Model

    return Model
