"""The lowering to ONNX: a translator with rules that write the nodes of an equation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from jax.extend.core import JaxprEqn

from jaxrnn.export.small import PAIRS, SMALL
from jaxrnn.export.translator import Rule, Translator
from jaxrnn.export.writer import Operand, Writer, make_value
from jaxrnn.jaxprs.primitives import Rules
from jaxrnn.streaming.diagnostics import Path, node_scope_of
from jaxrnn.streaming.interpreter import EXPORTS

#: The rules of equations on real numbers, and of equations with complex numbers or random keys.
RULES: Rules[Rule] = Rules(SMALL)
COMPLEX: Rules[Rule] = Rules(PAIRS)

_NO_RULE = (
    "it has no export rule; compute it outside, write it with other functions, or add a rule with "
    "jaxrnn.streaming.register(..., export=rule)"
)


class Lowering(Translator):
    """The interface of the rules: the graph's writer, and a translator of jaxprs."""

    engine, rules, of_complex, keeps_quantized = "ONNX", RULES, COMPLEX, True

    def __init__(self, writer: Writer, path: Path = (), problems: list[str] | None = None):
        super().__init__(writer.made, path, problems)
        self.writer = writer

    def inside(self) -> Lowering:
        """Return a translator that writes into a subgraph."""
        return Lowering(self.writer.inside(), self.path, self.problems)

    def placeholder(self, shape: Sequence[int], dtype: np.dtype) -> Operand:
        """Return a value without a node."""
        return make_value("", shape, dtype)

    def rule_of(self, equation: JaxprEqn) -> Any:
        """Return the rule of an equation; a user's rule comes first."""
        return EXPORTS.get(equation.primitive.name) or super().rule_of(equation) or self.refuse(_NO_RULE)

    @contextlib.contextmanager
    def at(self, equation: JaxprEqn) -> Iterator[None]:
        """Write the nodes of an equation, with names in its scope, inside of a ``with`` block."""
        outer = self.writer.scope
        with super().at(equation):
            self.writer.scope = node_scope_of(self.path)
            try:
                yield
            finally:
                self.writer.scope = outer


#: The shape and the dtype of a value.
Kind = tuple[Sequence[int], Any]


def subgraph(
    lowering: Lowering, name: str, inputs: Sequence[Kind], write: Callable[..., Sequence[Operand]]
) -> ir.Graph:
    """Write the body of a branch or loop, and return the graph.

    ``inputs`` are shapes and types. ``write(lowering, *values)`` returns the results.
    """
    inside = lowering.inside()
    writer = inside.writer
    values = [make_value(writer.unused(f"{writer.scope}/{name}"), *kind) for kind in inputs]
    # Each result must be computed inside of the body.
    ends = [writer.node("Identity", result) for result in write(inside, *values)]
    return ir.Graph(values, ends, nodes=writer.nodes, name=name)
