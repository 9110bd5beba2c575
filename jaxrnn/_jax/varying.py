"""Inside `jax.shard_map`: the mesh axes over which values vary, and loops and branches that get along with them.

There the type of a value says over which axes of the mesh it may differ from device to device, and the carry of a
loop, the results of branches and the operands of a primitive have to agree in that. Functions of ``jax.numpy`` see to
it. What begins with constants, such as the zeros before the first frame, does not: frames vary, and zeros do not.

One rule settles it: **what is computed together varies over all axes over which any of it varies.** Loops and branches
of the library are those of this module, which go by the rule. Parameters follow it where they enter: their gradients
are then summed over the devices once, and never inside a loop or a branch.

Outside of a ``shard_map``, and in one with ``check_vma=False``, nothing varies and nothing is done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

Axes = frozenset[Any]


def axes_of(*trees: Any) -> Axes:
    """The mesh axes over which any array of the trees varies, also one of which only the type is known."""
    axes: Axes = frozenset()
    for leaf in jax.tree.leaves(trees):
        manual = getattr(jax.typeof(leaf) if isinstance(leaf, jax.Array) else leaf, "manual_axis_type", None)
        if manual is not None:
            axes |= manual.varying
    return axes


def vary(tree: Any, axes: Axes) -> Any:
    """The tree, every array of which varies over these axes too; numbers and arrays of NumPy become such arrays."""
    return jax.tree.map(lambda leaf: _cast(leaf, axes), tree) if axes else tree


def _cast(leaf: Any, axes: Axes) -> Any:
    missing = axes - jax.typeof(leaf).manual_axis_type.varying
    return lax.pcast(leaf, tuple(missing), to="varying") if missing else leaf


def alike(*trees: Any) -> Any:
    """The trees, all arrays of which vary over one set of axes: those over which any of them does.

    What is no array of JAX stays as it is: arrays of NumPy are constants, and may have to be known while tracing.
    """
    axes = axes_of(trees)
    if not axes:
        return trees
    return jax.tree.map(lambda leaf: _cast(leaf, axes) if isinstance(leaf, jax.Array) else leaf, trees)


def scan(
    step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, frames: Any = None, **options: Any
) -> tuple[Any, Any]:
    """``lax.scan``, whose carry varies over all axes over which the frames and what the step reads do."""
    if not _inside():
        return lax.scan(step, carry, frames, **options)
    axes = axes_of(carry, frames)
    if axes < _inside():
        axes |= axes_of(jax.eval_shape(lambda *both: step(both[0], _one_of(both[1])), carry, frames))

    def typed(carry: Any, frame: Any) -> tuple[Any, Any]:
        after, outputs = step(carry, frame)
        return vary(after, axes), outputs

    return lax.scan(typed, vary(carry, axes), vary(frames, axes), **options)


def _one_of(frames: Any) -> Any:
    """What stands for one of the frames, of which there may be none."""
    return jax.tree.map(lambda array: lax.full_like(array, 0, shape=array.shape[1:]), frames)


def while_loop(test: Callable[[Any], Any], body: Callable[[Any], Any], state: Any) -> Any:
    """``lax.while_loop``, whose state varies over all axes over which what the loop reads does."""
    if not _inside():
        return lax.while_loop(test, body, state)
    axes = axes_of(state, jax.eval_shape(test, state), jax.eval_shape(body, state))
    return lax.while_loop(test, lambda state: vary(body(state), axes), vary(state, axes))


def cond(test: Any, then: Callable[..., Any], otherwise: Callable[..., Any], *operands: Any) -> Any:
    """``lax.cond``, whose results vary over all axes over which the condition and what the branches read do."""
    return lax.cond(test, *_agreeing([then, otherwise], test, operands), *operands)


def switch(index: Any, branches: list[Callable[..., Any]], *operands: Any) -> Any:
    """``lax.switch``, as `cond`."""
    return lax.switch(index, _agreeing(branches, index, operands), *operands)


def platform_dependent(*operands: Any, default: Callable[..., Any] | None = None, **platforms: Any) -> Any:
    """``lax.platform_dependent``, as `cond`."""
    names = list(platforms)
    branches = _agreeing([*platforms.values(), *([] if default is None else [default])], None, operands)
    default = None if default is None else branches[-1]
    return lax.platform_dependent(*operands, default=default, **dict(zip(names, branches, strict=False)))


def _agreeing(branches: list[Callable[..., Any]], choice: Any, operands: Any) -> list[Callable[..., Any]]:
    """Branches whose results vary over the same axes."""
    if not _inside():
        return branches
    axes = axes_of(choice, operands)
    if axes < _inside():
        axes |= axes_of([jax.eval_shape(branch, *operands) for branch in branches])
    return [lambda *operands, branch=branch: vary(branch(*operands), axes) for branch in branches]


def _inside() -> Axes:
    """The axes over which values may vary here: those of the `shard_map` around, if there is one."""
    return frozenset(jax.sharding.get_abstract_mesh().manual_axes)


def struct_of(kind: Any) -> jax.ShapeDtypeStruct:
    """An array of this type, which varies over the same axes."""
    axes = {"sharding": kind.sharding, "manual_axis_type": kind.manual_axis_type} if axes_of(kind) else {}
    return jax.ShapeDtypeStruct(kind.shape, kind.dtype, **axes)
