"""Small programs: equations as equal programs of fewer primitives, the same for all engines.

A rule is a function of a translator, an equation and operands, and evaluates a JAX function of the operands. The
lowering to ONNX and the forms of LiteRT begin with these rules, and replace those that an engine has in an own form.
"""

from __future__ import annotations

from jaxrnn.export.small import complexes, control, functions, systems  # noqa: F401  (register their rules)
from jaxrnn.export.translator import PAIRS, SMALL

__all__ = ["PAIRS", "SMALL"]
