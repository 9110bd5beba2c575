"""Equality of symbolic sizes while a function is traced for many lengths.

JAX answers ``==`` on symbolic sizes with False if the answer depends on the length, because JAX's own caches compare
and hash sizes. Code that branches on such an answer takes one branch for all lengths, and the numbers of other lengths
are wrong. Inside `deciding`, a comparison in code other than JAX's is True, False, or an error.

`lax.scan` takes a symbolic `length` inside `deciding`.

`x.shape` of a tracer contains objects of JAX's class, which cannot be replaced by a subclass, so methods of this
class are wrapped, when the first function is traced. A context variable, which is local to a thread, has the
decision. Without a decision, and in JAX's own code, each method calls JAX's method.
"""

from __future__ import annotations

import contextlib
import functools
import numbers
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from fractions import Fraction
from typing import Any

import jax
import numpy as np
from jax._src.lax.control_flow import loops
from jax.extend.core import InconclusiveDimensionOperation

from jaxrnn.answers import Answer, Unknown

#: Returns True if a symbolic dimension is zero for all lengths, False if for no length, else Unknown.
Decide = Callable[[Any], Answer]

#: Packages that compare sizes for caches and fast forms, or hash sizes: JAX, and the packages that JAX calls.
_JAX = frozenset({"jax", "jaxlib", "numpy", "opt_einsum"})

#: The folders of installed packages; an environment may use the packages of a different one.
PACKAGES = tuple(
    {
        f"{folder}{os.sep}"
        for folder in (*sys.path, *map(sysconfig.get_path, ("purelib", "platlib")))
        if os.path.basename(folder) in ("site-packages", "dist-packages")
    }
)

#: The decision in force, the scope of the sizes to decide on, and the differences of sizes that JAX took to be unequal.
_DECIDE: ContextVar[tuple[Decide, Any, dict[str, Any]] | None] = ContextVar("jaxrnn_sizes", default=None)


class UnhashableSizeError(InconclusiveDimensionOperation, TypeError):
    """Raised if code looks up a symbolic size in a dict or set. Libraries that catch TypeError skip their caches."""


@contextlib.contextmanager
def deciding(decide: Decide, example: Any) -> Iterator[dict[str, Any]]:
    """Refuse undecided comparisons, and hashes, of symbolic sizes in code that is traced inside the context.

    `example` is a symbolic size of the trace. Sizes of other scopes, as in JAX's caches of earlier traces, are JAX's.
    Yield the differences of sizes that JAX's own code took to be unequal, by their spelling.
    """
    _wrap()
    taken: dict[str, Any] = {}
    token = _DECIDE.set((decide, example.scope, taken))
    try:
        yield taken
    finally:
        _DECIDE.reset(token)


@functools.cache
def _wrap() -> None:
    """Wrap the methods of JAX's class of symbolic dimensions."""
    (example,) = jax.export.symbolic_shape("S")
    sizes: Any = type(example)
    equal, hashed, multiplied = sizes.__eq__, sizes.__hash__, sizes.__mul__

    def as_jax(self: Any, other: Any) -> bool:
        answer = equal(self, other)
        if not answer and (inside := _DECIDE.get()) is not None and self.scope is inside[1]:
            of_sizes = isinstance(other, int) or (isinstance(other, sizes) and other.scope is self.scope)
            difference = self - other if of_sizes else 1
            if jax.export.is_symbolic_dim(difference):
                inside[2][str(difference)] = difference
        return answer

    def eq(self: Any, other: Any) -> Any:
        return as_jax(self, other) if (decide := _asked(self)) is None else _is_equal(decide, self, other)

    def ne(self: Any, other: Any) -> Any:
        if (decide := _asked(self)) is None:
            return not as_jax(self, other)
        answer = _is_equal(decide, self, other)
        return answer if answer is NotImplemented else np.logical_not(answer) if np.ndim(answer) else not answer

    def hash_(self: Any) -> int:
        if _asked(self, packages=False) is not None:  # Flax puts equal lengths into a set
            raise UnhashableSizeError(
                f"the size '{self}' is looked up in a dict or set (or in a cache of a function), but the size depends "
                "on the length of the recording. Compute from the size instead"
            )
        return hashed(self)

    def bool_(self: Any) -> bool:
        return True if (decide := _asked(self)) is None else not _is_equal(decide, self, 0)

    def mul(self: Any, other: Any) -> Any:
        is_whole = isinstance(other, Fraction) and other.denominator == 1  # sequence-layers writes rates so
        return multiplied(self, other.numerator if is_whole else other)

    sizes.__eq__, sizes.__ne__, sizes.__hash__, sizes.__bool__, sizes.__mul__ = eq, ne, hash_, bool_, mul
    if hasattr(loops, "_infer_scan_length"):  # without this function, JAX refuses a symbolic `length`
        loops._infer_scan_length = _with_symbolic_length(loops._infer_scan_length)


def _with_symbolic_length(infer: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap JAX's function for the length of `lax.scan`, which takes numbers for the argument `length` only."""

    @functools.wraps(infer)
    def length_of(xs: Any, avals: Any, length: Any) -> Any:
        inside = _DECIDE.get()
        if inside is None or not jax.export.is_symbolic_dim(length) or length.scope is not inside[1]:
            return infer(xs, avals, length)
        known = infer(xs, avals, None) if xs else length
        if not _is_equal(inside[0], length, known):
            raise ValueError(f"scan got a length of {length} and arrays with a leading axis of {known}")
        return length

    return length_of


def _asked(size: Any, *, packages: bool = True) -> Decide | None:
    """Return the decision if code other than JAX's, or without `packages` the caller's own code, calls the method."""
    inside = _DECIDE.get()
    if inside is None or size.scope is not inside[1]:
        return None
    decide = inside[0]
    frame: Any = sys._getframe(2)
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package not in sys.stdlib_module_names:  # functools and collections work for their callers
            is_other = package in _JAX or (not packages and frame.f_code.co_filename.startswith(PACKAGES))
            return None if is_other else decide
        frame = frame.f_back
    return decide


def _is_equal(decide: Decide, size: Any, other: Any) -> Any:
    """Return True if a symbolic size equals an object for all lengths, False if for none, or raise an error."""
    if isinstance(other, jax.Array):
        return NotImplemented  # the array compares its elements
    if isinstance(other, np.ndarray):
        return np.frompyfunc(functools.partial(_is_equal, decide, size), 1, 1)(other).astype(bool)
    if isinstance(other, numbers.Real) and not isinstance(other, numbers.Integral):
        if not float(other).is_integer():
            return False
        other = int(float(other))
    if not isinstance(other, numbers.Integral) and not (isinstance(other, type(size)) and other.scope is size.scope):
        return False
    answer = are_equal(size, other, decide)
    if isinstance(answer, Unknown):
        raise undecided(size, other)
    return answer


def undecided(first: Any, second: Any) -> InconclusiveDimensionOperation:
    """Return the error for two sizes that are equal for some lengths only."""
    return InconclusiveDimensionOperation(
        f"Whether '{first}' equals '{second}' depends on the length of the recording, so no branch is right for all "
        "lengths."
    )


def are_equal(first: Any, second: Any, decide: Decide | None = None) -> Answer:
    """Return True if two sizes are equal for all lengths, False if for no length, else Unknown.

    Without `decide`, the decision in force decides. Without any decision, the answer is Unknown if JAX cannot exclude
    that the sizes are equal.
    """
    difference = first - second
    if not jax.export.is_symbolic_dim(difference):
        return bool(difference == 0)
    inside = _DECIDE.get()
    if decide is None and inside is not None and difference.scope is inside[1]:
        decide = inside[0]
    return (decide or by_bounds)(difference)


def by_bounds(difference: Any) -> Answer:
    """Return False if JAX's bounds exclude that a symbolic dimension is zero, else Unknown."""
    try:
        if difference > 0 or difference < 0:
            return False
    except InconclusiveDimensionOperation:
        pass
    return Unknown(f"'{difference}' may be 0")
