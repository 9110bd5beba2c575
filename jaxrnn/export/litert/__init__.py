"""Export as LiteRT files."""

from __future__ import annotations

from jaxrnn.export.litert import complexes as _complexes  # noqa: F401  (registers its rules)
from jaxrnn.export.litert.files import export_litert

__all__ = ["export_litert"]
__dir__ = __all__.copy
