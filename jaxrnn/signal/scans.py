"""JAX's `associative_scan`, extended to the symbolic lengths of `stream`.

For a symbolic length, sums become ``jax.lax.cumsum``, which `stream` runs with exact totals. Other functions become a
loop that carries the prefix. The body of this loop contains a marker primitive, so `stream` recognises the loop and may
run the loop in parallel.

Source: Blelloch, "Prefix Sums and Their Applications", 1990.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn, Primitive
from jax.interpreters import ad, batching, mlir
from numpy.lib.array_utils import normalize_axis_index

from jaxrnn._jax import varying
from jaxrnn._jax.versions import Scan
from jaxrnn.errors import InputError
from jaxrnn.jaxprs.equations import bind, needed, read_by, shape_of, type_of, variables


def associative_scan(fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0) -> Any:
    """Combine each element with all elements before it, like ``jax.lax.associative_scan``, also for symbolic sizes.

    `stream` and ``jax.export`` can trace the function over an axis of symbolic size. State space models and linear
    recurrences are associative scans, such as S5 (Smith, Warrington and Linderman, "Simplified State Space Layers for
    Sequence Modeling", 2023) and Mamba (Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces",
    2023)::

        def affine(first, second):  # h -> a * h + b, applied twice
            return first[0] * second[0], second[0] * first[1] + second[1]

        _, h = jaxrnn.signal.associative_scan(affine, (a, b))  # h[t] = a[t] * h[t - 1] + b[t], from h[-1] = 0

    For a fixed size, the function calls JAX. For a symbolic size, the function is a loop, which `stream` runs in
    parallel over the frames of a pulse, except on CPUs, where the loop is faster.

    Args:
        fn: an associative function ``(elements, elements) -> elements`` of pytrees like ``elems`` with any number of
            elements. `fn` must combine each pair of elements separately. For a symbolic size, `fn` is called on arrays
            with a single element.
        elems: a pytree of arrays of the same size along `axis`.
        reverse: True to begin with the last element. `stream` refuses a reverse scan along time.
        axis: the axis of the elements.

    Returns:
        The prefixes: a pytree like ``elems``, with the same shapes and dtypes.

    Raises:
        ValueError: the arrays have different sizes along the axis.
        InputError: the size is symbolic, and `fn` changes the shapes or dtypes.
    """
    leaves, structure = jax.tree.flatten(elems)
    if not leaves or not callable(fn):
        return lax.associative_scan(fn, elems, reverse=reverse, axis=axis)
    along = normalize_axis_index(axis, np.ndim(leaves[0]))
    sizes = [np.shape(leaf)[along] if along < np.ndim(leaf) else None for leaf in leaves]
    if not any(size is not None and jax.export.is_symbolic_dim(size) for size in sizes):
        return lax.associative_scan(fn, elems, reverse=reverse, axis=along)  # JAX takes no negative axis with reverse
    if len(set(map(str, sizes))) > 1:
        raise ValueError(
            f"associative_scan needs arrays of one size along axis {axis}, not {', '.join(map(str, sizes))}: "
            "repeat the smaller arrays with jnp.broadcast_to"
        )

    def joined(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
        """Apply `fn` to leaves of size 1 along the axis."""
        operands = [jax.tree.unflatten(structure, part) for part in (first, second)]
        return _checked(fn(*operands), operands[1])

    def combine(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
        """Apply `fn` to single elements without their axis."""
        operands = [[jnp.expand_dims(leaf, along) for leaf in part] for part in (first, second)]
        return [jnp.squeeze(leaf, along) for leaf in joined(*operands)]

    element = [jax.eval_shape(lambda leaf: lax.slice_in_dim(leaf, 0, 1, axis=along), leaf) for leaf in leaves]
    frames = [jnp.moveaxis(leaf, along, 0) for leaf in leaves]
    with jax.named_scope("associative_scan"):
        if not reverse and _is_sum(joined, element):
            return jax.tree.unflatten(structure, [lax.cumsum(leaf, along) for leaf in leaves])
        prefixes = _in_a_loop(combine, frames, reverse)
    return jax.tree.unflatten(structure, [jnp.moveaxis(leaf, 0, along) for leaf in prefixes])


def _checked(result: Any, like: Any) -> list[Any]:
    """Check the structure, shapes and dtypes of a result, and return the leaves."""
    described = [
        jax.tree.map(lambda leaf: f"{jnp.result_type(leaf)}{list(np.shape(leaf))}", tree) for tree in (like, result)
    ]
    if described[0] != described[1]:
        raise InputError(
            f"the function of associative_scan must return the shapes and types that it takes, {described[0]}; "
            f"it returned {described[1]}"
        )
    return jax.tree.leaves(result)


def _is_sum(joined: Callable[..., list[Any]], element: Sequence[Any]) -> bool:
    """Return True if the function adds, leaf by leaf."""
    jaxpr = jax.make_jaxpr(joined)(element, element).jaxpr
    pairs = zip(jaxpr.invars[: len(element)], jaxpr.invars[len(element) :], strict=True)
    made = {equation.outvars[0]: {*equation.invars} for equation in jaxpr.eqns if equation.primitive is lax.add_p}
    return [made.get(out) for out in jaxpr.outvars] == [{*pair} for pair in pairs]


def _in_a_loop(combine: Callable[..., list[Any]], frames: Sequence[Any], reverse: bool) -> list[Any]:
    """Compute the prefixes of frames ``[time, ...]`` in a loop."""

    def step(carry: Any, frame: list[Any]) -> tuple[Any, list[Any]]:
        started, prefix = carry
        # The first frame has no prefix. The frame serves as a valid argument of the function; the result is ignored.
        before = [lax.select(started, *pair) for pair in zip(prefix, frame, strict=True)]
        combined = [lax.select(started, *pair) for pair in zip(combine(before, frame), frame, strict=True)]
        marked = _associative.bind(*combined, *prefix, *frame, count=len(frame))
        return (jnp.array(True), marked), marked

    start = jnp.array(False), [jnp.zeros(frame.shape[1:], frame.dtype) for frame in frames]
    return varying.scan(step, start, list(frames), reverse=reverse)[1]


#: The marker returns the first ``count`` operands, the new prefix. The other operands are the old prefix and the frame.
#: So all parts of a prefix stay in the loop, even if the result needs only some parts.
_associative = Primitive("associative")
_associative.multiple_results = True
_associative.def_impl(lambda *operands, count: list(operands[:count]))
_associative.def_abstract_eval(lambda *operands, count: list(operands[:count]))
mlir.register_lowering(_associative, lambda context, *operands, count: list(operands[:count]))


def _batched(operands: Any, axes: Any, *, count: int) -> Any:
    # In a batched loop, the batch axis of a carry is the first axis.
    front = [
        operand if axis is None else jnp.moveaxis(operand, axis, 0)
        for operand, axis in zip(operands[:count], axes[:count], strict=True)
    ]
    results = _associative.bind(*front, *operands[count:], count=count)
    return results, [None if axis is None else 0 for axis in axes[:count]]


def _jvp(primals: Any, tangents: Any, *, count: int) -> Any:
    # The combination of pairs (element, tangent) is also associative.
    results = _associative.bind(*primals, count=count)
    moving = [index for index, tangent in enumerate(tangents[:count]) if not isinstance(tangent, ad.Zero)]
    others = [tangent for tangent in tangents[count:] if not isinstance(tangent, ad.Zero)]
    marked = _associative.bind(*(tangents[index] for index in moving), *others, count=len(moving))
    derivatives = list(tangents[:count])
    for index, tangent in zip(moving, marked, strict=True):
        derivatives[index] = tangent
    return results, derivatives


def _transpose(cotangents: Any, *operands: Any, count: int) -> list[Any]:
    passed = [*cotangents, *[None] * (len(operands) - count)]
    return [
        (ad.Zero(operand.aval) if cotangent is None else cotangent) if ad.is_undefined_primal(operand) else None
        for operand, cotangent in zip(operands, passed, strict=True)
    ]


batching.primitive_batchers[_associative] = _batched
ad.primitive_jvps[_associative] = _jvp
ad.primitive_transposes[_associative] = _transpose


def is_mark(equation: JaxprEqn) -> bool:
    """Return True for the marker."""
    return equation.primitive is _associative


def without_mark(equation: JaxprEqn, operands: list[Any]) -> list[Any]:
    """Apply an equation like `bind`, and remove the marker."""
    if is_mark(equation):
        return operands[: equation.params["count"]]
    return bind(equation, operands)


class PrefixParts(NamedTuple):
    """The parts of the carry of an associative scan: a flag (True after the first frame) and the prefix."""

    outputs: list[int]  # for each output, the equal part of the carry
    #: parts that outputs of later frames depend on. For the prefix ``(a, h)`` of a linear recurrence, the next ``h``
    #: needs no ``a``; ``a`` matters within a chunk only.
    needed: list[int]


def parts_of_carry(equation: JaxprEqn) -> PrefixParts | None:
    """Return the parts of the carry if a loop is from `associative_scan`, or None."""
    body = equation.params["jaxpr"].jaxpr
    counts = Scan.of(equation)
    marks = [inner for inner in body.eqns if inner.primitive is _associative]
    _, carry, frame = counts.split(body.invars)
    new, outputs = body.outvars[: counts.carry], body.outvars[counts.carry :]
    made = {variable for mark in marks for variable in mark.outvars}
    read = {atom for mark in marks for atom in variables(mark.invars[mark.params["count"] :])}
    if not marks or made != set(variables(new[1:])) or read != {*carry[1:], *frame}:
        return None
    kinds = [[(shape_of(atom), type_of(atom)) for atom in part] for part in (carry[1:], frame)]
    if kinds[0] != kinds[1] or not made.issuperset(variables(outputs)):
        return None
    # A marker connects each result to all operands, so the analysis splits the marker.
    equations = [part for inner in body.eqns for part in (_apart(inner) if inner in marks else [inner])]
    targets = {0, *map(new.index, outputs)}
    while True:
        sources = read_by(needed(equations, [new[part] for part in targets]))
        grown = targets | {part for part, variable in enumerate(carry) if variable in sources}
        if grown == targets:
            return PrefixParts([new.index(output) for output in outputs], sorted(targets))
        targets = grown


def _apart(mark: JaxprEqn) -> Iterator[JaxprEqn]:
    """Split a marker into markers with a single result."""
    for operand, result in zip(mark.invars, mark.outvars, strict=False):
        yield mark.replace(invars=[operand], outvars=[result], params={"count": 1})
