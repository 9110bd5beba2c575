"""The rules of `stream`, one for each primitive, and how one's own are added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax.extend.core import Primitive

from jaxrnn.errors import InputError

#: ``(run, equation, *operands) -> results``: what an equation does to the chunks of a pass.
Rule = Callable[..., Any]

#: The rules by the name of their primitive.
RULES: dict[str, Rule] = {}

#: Export rules that callers add, by the name of their primitive: ``(lowering, equation, *operands) -> results``.
EXPORTS: dict[str, Rule] = {}

#: Primitives whose rule is used wherever they stand; others are applied as they are where no stream enters.
ALWAYS: set[str] = set()


def register(
    primitive: str | Primitive,
    rule: Rule | None = None,
    *,
    export: Rule | None = None,
    replace: bool = False,
    always: bool = False,
) -> Any:
    """Say how a primitive runs on a stream, pulse by pulse.

    Example::

        @jaxrnn.streaming.register("double")
        def double(run, equation, x):
            (array,) = run.bind(equation, [x.array])
            return run.make(array, x.axis, x.timeline, x.delay, x.reach)

    Args:
        primitive: the primitive, or its name.
        rule: ``(run, equation, *operands) -> results``, called in every pass: the warm-up, where the state begins,
            each step, and the flush. ``run`` is the `Pass`. An operand is a `Chunk`, a `FinalValue` that is known when
            the stream ends, or an array that is the same in every step: a NumPy array where it is known while tracing.
            The rule returns a value of these kinds for each result, or the value itself where there is one result; it
            makes chunks with `Pass.make` alone, and keeps what must be remembered with `Pass.window` or `Pass.carry`.
            Without it, `register` is a decorator.
        export: ``(lowering, equation, *operands) -> results`` writes the primitive to an ONNX file. Operands and
            results are NumPy arrays, which become constants, or values of the graph. ``lowering.writer.node(operator,
            *operands)`` writes a node, and ``lowering.trace(function, *operands)`` a JAX function.
        replace: the primitive may have a rule, which this one takes the place of.
        always: use the rule where no stream enters the equation too; otherwise the primitive is applied there as it is.

    Returns:
        The rule, or the decorator.

    Raises:
        InputError: the primitive is none, or it has a rule already.
    """
    name = primitive.name if isinstance(primitive, Primitive) else primitive
    if not isinstance(name, str) or not name:
        raise InputError(f"register takes a JAX primitive or its name, not {primitive!r}")
    if rule is None:
        return lambda function: register(name, function, export=export, replace=replace, always=always)
    if not callable(rule):
        raise InputError(f"the rule of {name!r} must be a function (run, equation, *operands), not {rule!r}")
    if not callable(export) and export is not None:
        raise InputError(
            f"the export rule of {name!r} must be a function (lowering, equation, *operands), not {export!r}"
        )
    if name in RULES and not replace:
        raise InputError(
            f"the primitive {name!r} has a rule already, {getattr(RULES[name], '__qualname__', RULES[name])} of "
            f"{RULES[name].__module__}; register(..., replace=True) puts another in its place"
        )
    RULES[name] = rule
    if export is not None:
        EXPORTS[name] = export
    (ALWAYS.add if always else ALWAYS.discard)(name)
    return rule
