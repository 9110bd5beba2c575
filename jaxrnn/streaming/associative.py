"""`associative_scan`: the one of JAX, over lengths that are symbols too, so that `stream` can trace it.

Where the length is a number, it is JAX's own. Where it is a symbol, sums are ``jax.lax.cumsum``, whose totals `stream`
keeps from drifting, and the rest is a loop that carries the prefix, which JAX can transform like any other. The body of
that loop bears a mark, by which `stream` knows that it may run in parallel.

Source: Blelloch, "Prefix Sums and Their Applications", 1990.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn, Primitive
from jax.interpreters import ad, batching, mlir
from numpy.lib.array_utils import normalize_axis_index

from jaxrnn._jax import varying
from jaxrnn.errors import InputError
from jaxrnn.jaxprs.equations import bind, needed, read_by, shape_of, type_of, variables
from jaxrnn.streaming.dimensions import is_symbolic


def associative_scan(fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0) -> Any:
    """``jax.lax.associative_scan``, which `stream` and ``jax.export`` can also trace over an axis of symbolic size.

    State space models and linear recurrences are scans with an associative function, such as S5 (Smith, Warrington and
    Linderman, "Simplified State Space Layers for Sequence Modeling", 2023) and Mamba (Gu and Dao, "Mamba: Linear-Time
    Sequence Modeling with Selective State Spaces", 2023)::

        def affine(first, second):  # of h -> a * h + b, the first and then the second
            return first[0] * second[0], second[0] * first[1] + second[1]

        _, h = jaxrnn.associative_scan(affine, (a, b))  # h[t] = a[t] * h[t - 1] + b[t], from h[-1] = 0

    Over a number of elements, it is JAX's own function. Over a symbolic size it is a loop, which `stream` runs in
    parallel over the frames of a pulse, except on CPUs, where a loop is faster.

    Args:
        fn: associative, ``(elements, elements) -> elements``, of pytrees like ``elems`` with any number of elements. It
            works on each element alone; where the size is symbolic, it is called with one.
        elems: a pytree of arrays with an axis of one size.
        reverse: begin with the last element. It cannot be streamed along time.
        axis: the axis of the elements.

    Returns:
        The elements combined with all before them: a pytree like ``elems``, of the same shapes and dtypes.

    Raises:
        ValueError: the arrays have several sizes along the axis.
        InputError: the size is symbolic, and `fn` returns no elements like those it takes.
    """
    leaves, structure = jax.tree.flatten(elems)
    if not leaves or not callable(fn):
        return lax.associative_scan(fn, elems, reverse=reverse, axis=axis)
    place = normalize_axis_index(axis, np.ndim(leaves[0]))
    sizes = [np.shape(leaf)[place] if place < np.ndim(leaf) else None for leaf in leaves]
    if not any(size is not None and is_symbolic(size) for size in sizes):
        return lax.associative_scan(fn, elems, reverse=reverse, axis=place)  # it takes no negative axis in reverse
    if len(set(map(str, sizes))) > 1:
        raise ValueError(
            f"associative_scan needs arrays of one size along axis {axis}, not {', '.join(map(str, sizes))}: "
            "repeat the smaller arrays with jnp.broadcast_to"
        )

    def joined(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
        """`fn` on leaves with one element each."""
        operands = [jax.tree.unflatten(structure, part) for part in (first, second)]
        return _checked(fn(*operands), operands[1])

    def combine(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
        """`fn` on one element each, without their axis."""
        operands = [[jnp.expand_dims(leaf, place) for leaf in part] for part in (first, second)]
        return [jnp.squeeze(leaf, place) for leaf in joined(*operands)]

    element = [jax.eval_shape(lambda leaf: lax.slice_in_dim(leaf, 0, 1, axis=place), leaf) for leaf in leaves]
    frames = [jnp.moveaxis(leaf, place, 0) for leaf in leaves]
    with jax.named_scope("associative_scan"):
        if not reverse and _is_sum(joined, element):
            return jax.tree.unflatten(structure, [lax.cumsum(leaf, place) for leaf in leaves])
        prefixes = _in_a_loop(combine, frames, reverse)
    return jax.tree.unflatten(structure, [jnp.moveaxis(leaf, 0, place) for leaf in prefixes])


def _checked(result: Any, like: Any) -> list[Any]:
    """The leaves of a result that has the tree, the shapes and the types of what it is made of."""
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
    """Whether an associative function adds each leaf of two elements, and does nothing else."""
    jaxpr = jax.make_jaxpr(joined)(element, element).jaxpr
    pairs = zip(jaxpr.invars[: len(element)], jaxpr.invars[len(element) :], strict=True)
    made = {equation.outvars[0]: {*equation.invars} for equation in jaxpr.eqns if equation.primitive is lax.add_p}
    return [made.get(out) for out in jaxpr.outvars] == [{*pair} for pair in pairs]


def _in_a_loop(combine: Callable[..., list[Any]], frames: Sequence[Any], reverse: bool) -> list[Any]:
    """The prefixes of frames ``[time, ...]``, one after the other."""

    def step(carry: Any, frame: list[Any]) -> tuple[Any, list[Any]]:
        started, prefix = carry
        # The first frame stands for the prefix that it does not have: a value that the function is made for.
        before = [lax.select(started, *pair) for pair in zip(prefix, frame, strict=True)]
        combined = [lax.select(started, *pair) for pair in zip(combine(before, frame), frame, strict=True)]
        marked = _associative.bind(*combined, *prefix, *frame, count=len(frame))
        return (jnp.array(True), marked), marked

    start = jnp.array(False), [jnp.zeros(frame.shape[1:], frame.dtype) for frame in frames]
    return varying.scan(step, start, list(frames), reverse=reverse)[1]


#: The mark: the first ``count`` operands, a new prefix, as they are. The others are the prefix and the frame that it is
#: made of. So all parts of a prefix stay in the loop, where only some of them are asked for.
_associative = Primitive("associative")
_associative.multiple_results = True
_associative.def_impl(lambda *operands, count: list(operands[:count]))
_associative.def_abstract_eval(lambda *operands, count: list(operands[:count]))
mlir.register_lowering(_associative, lambda context, *operands, count: list(operands[:count]))


def _batched(operands: Any, axes: Any, *, count: int) -> Any:
    # In front, a new prefix has its axis where loops have it.
    front = [
        operand if axis is None else jnp.moveaxis(operand, axis, 0)
        for operand, axis in zip(operands[:count], axes[:count], strict=True)
    ]
    results = _associative.bind(*front, *operands[count:], count=count)
    return results, [None if axis is None else 0 for axis in axes[:count]]


def _jvp(primals: Any, tangents: Any, *, count: int) -> Any:
    # Tangents with their elements are combined associatively, too.
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


def without_mark(equation: JaxprEqn, operands: list[Any]) -> list[Any]:
    """As `bind`; of a mark, nothing is left."""
    if equation.primitive is _associative:
        return operands[: equation.params["count"]]
    return bind(equation, operands)


class Parts(NamedTuple):
    """The parts of the carry of an associative scan, which are whether it has started, and the prefix.

    Attributes:
        outputs: by output, the part that it is.
        needed: the parts that an output depends on by way of later frames. The prefix ``(a, h)`` of a linear recurrence
            needs no ``a`` for the next ``h``, only within a chunk.
    """

    outputs: list[int]
    needed: list[int]


def scan_parts(equation: JaxprEqn) -> tuple[int, int]:
    """Return the number of constants and of carries of a scan, which are the first operands."""
    if "num_consts" in equation.params:
        return equation.params["num_consts"], equation.params["num_carry"]
    consts, carry, _ = equation.params["ft_in"].unpack()
    return len(consts), len(carry)


def parts_of_carry(equation: JaxprEqn) -> Parts | None:
    """The parts of the carry of a loop, if it is an associative scan as it is written here.

    JAX may have transformed it into another loop: then, and for every other one, None.
    """
    body = equation.params["jaxpr"].jaxpr
    consts, carries = scan_parts(equation)
    marks = [inner for inner in body.eqns if inner.primitive is _associative]
    carry, frame = body.invars[consts : consts + carries], body.invars[consts + carries :]
    new, outputs = body.outvars[:carries], body.outvars[carries:]
    made = {variable for mark in marks for variable in mark.outvars}
    read = {atom for mark in marks for atom in variables(mark.invars[mark.params["count"] :])}
    if not marks or made != set(variables(new[1:])) or read != {*carry[1:], *frame}:
        return None
    kinds = [[(shape_of(atom), type_of(atom)) for atom in part] for part in (carry[1:], frame)]
    if kinds[0] != kinds[1] or not made.issuperset(variables(outputs)):
        return None
    # A mark keeps together what each of its results does not need.
    equations = [part for inner in body.eqns for part in (_apart(inner) if inner in marks else [inner])]
    targets = {0, *map(new.index, outputs)}
    while True:
        sources = read_by(needed(equations, [new[part] for part in targets]))
        grown = targets | {part for part, variable in enumerate(carry) if variable in sources}
        if grown == targets:
            return Parts([new.index(output) for output in outputs], sorted(targets))
        targets = grown


def _apart(mark: JaxprEqn) -> Iterator[JaxprEqn]:
    for operand, result in zip(mark.invars, mark.outvars, strict=False):
        yield mark.replace(invars=[operand], outvars=[result], params={"count": 1})
