"""The rules of the lowering by family, and refusals of primitives without a counterpart in ONNX."""

from __future__ import annotations

from typing import Any, NoReturn

from jax.extend.core import JaxprEqn

from jaxrnn.export.lowering import RULES, Lowering
from jaxrnn.export.rules import (  # noqa: F401
    arithmetic,
    control,
    elementwise,
    fourier,
    layers,
    movement,
    products,
    random,
    reduction,
    windows,
)


@RULES.add(kind="callback")
def refuse_python(lowering: Lowering, equation: JaxprEqn, *operands: Any) -> NoReturn:
    """Refuse calls of Python."""
    lowering.refuse("it calls Python, which a file cannot contain; move the call out of the exported function")


@RULES.add("shard_map", kind="collective")
def refuse_devices(lowering: Lowering, equation: JaxprEqn, *operands: Any) -> NoReturn:
    """Refuse exchanges between devices."""
    lowering.refuse("it needs several devices, and a file runs on one; export the function outside of shard_map")


@RULES.add(kind="linear algebra")
def refuse_decompositions(lowering: Lowering, equation: JaxprEqn, *operands: Any) -> NoReturn:
    """Refuse decompositions of matrices."""
    lowering.refuse("ONNX has no matrix decompositions; compute it outside, and pass it as an input")
