"""Limits on memory, unrolling and repetition, so that a small file cannot crash or block a process.

The data in a file is not limited, because the file was already read. But a few bytes can request zeros of a shape of
10**12 elements, a loop of 2**62 trips, or ten functions that each call the next function ten times. `Limits` are
checked before such memory is allocated or such work starts. The error shows how to raise the limit.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxrnn._files.arrays import MAX_ARRAY_BYTES
from jaxrnn._files.messages import bytes_of, short_repr
from jaxrnn._jax.context import exact_types
from jaxrnn.errors import LimitError, check_count
from jaxrnn.jaxprs.equations import walk
from jaxrnn.onnx.registry import Operator
from jaxrnn.onnx.values import Value, is_static, is_symbolic, is_text, settle

#: Values computed from constants while tracing may take this many times the bytes of the file's constants.
_FOLDED = 16
#: Arrays of at most this many elements are not counted: only a large file could have enough small arrays.
_SMALL = 64
#: Bytes of an object array count this many times: each item is a Python object.
_WEIGHT_OF_OBJECTS = 16
#: The deepest nesting of subgraphs. A loop in a branch has depth two. Each level takes dozens of nested Python calls
#: while tracing, and Python allows a thousand.
MAX_DEPTH = 12


@short_repr
@dataclass(frozen=True)
class Limits:
    """Limits on the memory and work that a file may request; an argument of `jaxrnn.load`.

    Example::

        model = jaxrnn.load("denoiser.onnx", limits=jaxrnn.Limits(value_bytes=2**30))

    Attributes:
        value_bytes: size of a single value that a node computes, also at run time. 8 GiB by default, 2**31 float32
            numbers: more than the activations of a network on one device, and far less than hostile files request.
        constant_bytes: total size of all values that follow from the file and are computed while loading and tracing,
            and of values held while the state is analysed. 512 MiB by default: real files fold shapes and masks. 16
            times the size of the file's own constants is allowed in addition.
        nodes: nodes that inlined local functions add, each call a copy. 100,000 by default; nodes in the graphs of the
            file are not counted.
        evaluations: nodes that Python evaluates in one call or trace, plus loop trips that Python runs. 250,000 by
            default, which take seconds to minutes. Loops that JAX runs count once.
    """

    value_bytes: int = MAX_ARRAY_BYTES
    constant_bytes: int = 2**29
    nodes: int = 100_000
    evaluations: int = 250_000

    def __post_init__(self) -> None:
        for field in fields(self):
            check_count(f"Limits: {field.name}", getattr(self, field.name))

    def for_file(self, size: int) -> Limits:
        """Return the limits for a file with ``size`` bytes of constants."""
        return replace(self, constant_bytes=self.constant_bytes + _FOLDED * size)


class Budget:
    """The part of the limits that a call or trace has spent; ``computing`` is set while JAX computes known values."""

    def __init__(self, limits: Limits, loading: bool = False):
        self.limits = limits
        self.loading, self.computing = loading, False
        self._evaluations = 0
        self._constant_bytes = 0

    def evaluate(self, count: int = 1) -> None:
        """Count nodes or trips that Python evaluates."""
        self._evaluations += count
        if self._evaluations > self.limits.evaluations:
            raise LimitError(
                f"{self._evaluations:,} evaluations of nodes and loop trips in Python exceed the limit of "
                f"{self.limits.evaluations:,}; {raised('evaluations')}"
            )

    def keep(self, size: int) -> None:
        """Count the bytes of a value that depends only on the file."""
        self._constant_bytes += size
        if self._constant_bytes > self.limits.constant_bytes:
            raise LimitError(
                f"values computed from the file's constants take {bytes_of(self._constant_bytes)}, more than the "
                f"limit of {bytes_of(self.limits.constant_bytes)}; {raised('constant_bytes')}"
            )

    def take(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
        """Check the results of a node against the limits; results that are views of inputs are not counted again."""
        for leaf in jax.tree.leaves(list(outputs)):
            if not isinstance(leaf, np.ndarray):
                self.check(leaf.shape, leaf.dtype)
            elif leaf.size > _SMALL and not any(leaf is value or leaf.base is value for value in inputs):
                self.keep(_WEIGHT_OF_OBJECTS * leaf.nbytes if leaf.dtype == object else leaf.nbytes)
            if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "T":
                self.keep(int(np.strings.str_len(leaf).sum()))

    def check(self, shape: Sequence[Any], dtype: Any, *, constant: bool = False) -> None:
        """Refuse a value by its shape before it is allocated; symbolic dimensions pass."""
        if not all(isinstance(size, (int, np.integer)) for size in shape):
            return
        needed = math.prod(map(int, shape)) * np.dtype(dtype).itemsize
        if not needed and math.prod(size or 1 for size in map(int, shape)) >= 2**63:
            # XLA ends the process: it multiplies the sizes of an empty array, too.
            sizes = ", ".join(map(str, shape))
            raise LimitError(f"an empty value has the sizes {sizes}, whose product has over 63 bits")
        constant = constant or self.loading
        spent = self._constant_bytes if constant else 0
        allowed = self.limits.constant_bytes if constant else self.limits.value_bytes
        if needed + spent > allowed:
            name = "string" if np.dtype(dtype).kind == "T" else np.dtype(dtype).name
            beside = f", of which {bytes_of(spent)} are used" if spent else ""
            raise LimitError(
                f"a value {name}[{', '.join(map(str, shape))}] takes {bytes_of(needed)}, and the limit is "
                f"{bytes_of(allowed)}{beside}; {raised('constant_bytes' if constant else 'value_bytes')}"
            )


_BUDGET: ContextVar[Budget | None] = ContextVar("jaxrnn_budget", default=None)


@contextlib.contextmanager
def spending(limits: Limits, *, loading: bool = False) -> Iterator[Budget]:
    """Charge all evaluations inside the context to one new budget."""
    budget = Budget(limits, loading)
    token = _BUDGET.set(budget)
    try:
        yield budget
    finally:
        _BUDGET.reset(token)


def current() -> Budget:
    """Return the current budget, or a new budget with default limits outside of evaluations."""
    return _BUDGET.get() or Budget(Limits())


def raised(field: str) -> str:
    """Return the part of a message about raising a limit."""
    return f"if you trust the file, `jaxrnn.load(path, limits=jaxrnn.Limits({field}=NUMBER))` raises the limit"


#: Bytes of a number of the widest type.
_WIDEST = 16
#: Axes of real networks are shorter.
_LARGE = 2**24


def check_ahead(operator: Operator, inputs: Sequence[Value], attributes: Mapping[str, Any], budget: Budget) -> None:
    """Trace the shapes of a node and refuse results beyond the limits, if the node would run at once."""
    leaves = [leaf for leaf in jax.tree.leaves(list(inputs)) if hasattr(leaf, "shape")]
    if not budget.computing and any(isinstance(leaf, Tracer) for leaf in leaves):
        return
    if any(map(is_text, leaves)):
        return  # JAX cannot trace strings; `moves_text` checks the limits for operators that repeat strings
    folded = is_static(*leaves)
    bound = math.prod(max(leaf.size, 1) for leaf in leaves) * _WIDEST
    allowed = budget.limits.constant_bytes if folded else budget.limits.value_bytes
    # Values of inputs or attributes could make a result larger than the product of all input sizes.
    has_values = bool(operator.attributes) or any(slot.static for slot in operator.slots)
    if bound <= allowed and (operator.traits.is_bounded or not has_values):
        return
    most = operator.traits.most  # computed, where a trace would take a thread and milliseconds
    if most is not None and not any(map(is_symbolic, leaves)) and most(*inputs) * _WIDEST <= allowed:
        return
    fixed = [_is_fixed(operator, index, value) for index, value in enumerate(inputs)]
    # A value computed only from numbers, such as a shape, is a JAX array unless small.
    constant = folded and not all(fixed)
    for shape, dtype in _results(operator, inputs, fixed, attributes):
        budget.check(shape, dtype, constant=constant)


def _is_fixed(operator: Operator, index: int, value: Value) -> bool:
    """Return True if an input keeps its value in the trace: its value is needed, or JAX cannot trace it."""
    slot = operator.slot(index)
    if value is None or (slot is not None and slot.static):
        return True
    return any(map(is_symbolic, jax.tree.leaves(value)))


def _results(
    operator: Operator, inputs: Sequence[Value], fixed: Sequence[bool], attributes: Mapping[str, Any]
) -> list[tuple[tuple[Any, ...], np.dtype]]:
    """Return shapes and dtypes of all intermediate values of an operator; an empty list if unknown.

    Errors of the trace are ignored, because the operator itself reports errors later. A trace with a huge number is an
    exception: the operator could exhaust the memory of the process.
    """
    pairs = list(zip(inputs, fixed, strict=True))
    free = [value for value, is_fixed in pairs if not is_fixed]

    def run(*arrays: Value) -> Any:
        remaining = iter(arrays)
        arguments = [value if is_fixed else next(remaining) for value, is_fixed in pairs]
        result = operator.function(*arguments, **attributes)
        outputs = [settle(value) for value in (result if isinstance(result, list) else [result])]
        return [leaf for leaf in jax.tree.leaves(outputs) if isinstance(leaf, jax.Array)]

    structs = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), free)

    def trace() -> Any:
        with exact_types():
            return jax.make_jaxpr(run)(*structs).jaxpr

    try:
        # JAX may be computing constants while tracing. This setting belongs to the thread, and a new thread has it off.
        with ThreadPoolExecutor(1) as pool:
            jaxpr = pool.submit(copy_context().run, trace).result()
    except LimitError:
        raise
    except Exception:
        if _has_large_number([*attributes.values(), *(value for value, is_fixed in pairs if is_fixed)]):
            raise  # the error may follow from an array that is too large
        return []
    avals: list[Any] = [variable.aval for equation in walk(jaxpr) for variable in equation.outvars]
    # Keys of random numbers have a dtype without bytes.
    arrays = [aval for aval in avals if hasattr(aval, "shape") and not jnp.issubdtype(aval.dtype, jax.dtypes.extended)]
    return [(aval.shape, aval.dtype) for aval in arrays]


def _has_large_number(values: Sequence[Any]) -> bool:
    numbers = [np.asarray(value) for value in values if isinstance(value, (int, float, tuple, list, np.ndarray))]
    return any(
        array.dtype.kind in "iuf" and bool((np.abs(array.astype(np.float64)) > _LARGE).any()) for array in numbers
    )
