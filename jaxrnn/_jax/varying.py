"""Loops and branches that work inside `jax.shard_map`, where types contain the mesh axes over which values vary.

Inside a ``shard_map``, the type of a value lists the mesh axes over which the value can differ between devices. The
carry of a loop, the results of branches and the operands of a primitive must agree in these axes. Functions of
``jax.numpy`` cast their operands. A loop that starts from constants, such as zeros before the first frame, does not
agree: the frames vary, but the zeros do not.

All loops and branches of the library therefore use this module, which applies a single rule: **carries, branches and
operands are cast to the union of their axes.** Parameters are cast before a loop, so that their gradients are summed
over the devices once, outside of loops and branches.

Outside of a ``shard_map``, and with ``check_vma=False``, the functions of this module equal the functions of JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

Axes = frozenset[Any]


def axes_of(*trees: Any) -> Axes:
    """Return the union of the mesh axes over which arrays or types in the trees vary."""
    axes: Axes = frozenset()
    for leaf in jax.tree.leaves(trees):
        manual = getattr(jax.typeof(leaf) if isinstance(leaf, jax.Array) else leaf, "manual_axis_type", None)
        if manual is not None:
            axes |= manual.varying
    return axes


def vary(tree: Any, axes: Axes) -> Any:
    """Cast all arrays of a tree to vary over these axes; numbers and NumPy arrays become JAX arrays."""
    return jax.tree.map(lambda leaf: _cast(leaf, axes), tree) if axes else tree


def _cast(leaf: Any, axes: Axes) -> Any:
    missing = axes - jax.typeof(leaf).manual_axis_type.varying
    return lax.pcast(leaf, tuple(missing), to="varying") if missing else leaf


def alike(*trees: Any) -> Any:
    """Cast all JAX arrays of the trees to the union of their axes.

    Other leaves do not change, because NumPy arrays are constants that a trace can need.
    """
    axes = axes_of(trees)
    if not axes:
        return trees
    return jax.tree.map(lambda leaf: _cast(leaf, axes) if isinstance(leaf, jax.Array) else leaf, trees)


def scan(
    step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, frames: Any = None, **options: Any
) -> tuple[Any, Any]:
    """Run ``lax.scan`` with a carry that varies over all axes of the frames and of the step."""
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
    """Return an example of a frame, even if there are zero frames."""
    return jax.tree.map(lambda array: lax.full_like(array, 0, shape=array.shape[1:]), frames)


def while_loop(test: Callable[[Any], Any], body: Callable[[Any], Any], state: Any) -> Any:
    """Run ``lax.while_loop`` with a state that varies over all axes of the loop."""
    if not _inside():
        return lax.while_loop(test, body, state)
    axes = axes_of(state, jax.eval_shape(test, state), jax.eval_shape(body, state))
    return lax.while_loop(test, lambda state: vary(body(state), axes), vary(state, axes))


def cond(test: Any, then: Callable[..., Any], otherwise: Callable[..., Any], *operands: Any) -> Any:
    """Run ``lax.cond`` with results that vary over all axes of the condition and of the branches."""
    return lax.cond(test, *_agreeing([then, otherwise], test, operands), *operands)


def switch(index: Any, branches: list[Callable[..., Any]], *operands: Any) -> Any:
    """Run ``lax.switch``, cast as in `cond`."""
    return lax.switch(index, _agreeing(branches, index, operands), *operands)


def platform_dependent(*operands: Any, default: Callable[..., Any] | None = None, **platforms: Any) -> Any:
    """Run ``lax.platform_dependent``, cast as in `cond`."""
    names = list(platforms)
    branches = _agreeing([*platforms.values(), *([] if default is None else [default])], None, operands)
    default = None if default is None else branches[-1]
    return lax.platform_dependent(*operands, default=default, **dict(zip(names, branches, strict=False)))


def _agreeing(branches: list[Callable[..., Any]], choice: Any, operands: Any) -> list[Callable[..., Any]]:
    """Return branches with results that vary over the same axes."""
    if not _inside():
        return branches
    axes = axes_of(choice, operands)
    if axes < _inside():
        axes |= axes_of([jax.eval_shape(branch, *operands) for branch in branches])
    return [lambda *operands, branch=branch: vary(branch(*operands), axes) for branch in branches]


def _inside() -> Axes:
    """Return the axes of the surrounding `shard_map`, or no axes."""
    return frozenset(jax.sharding.get_abstract_mesh().manual_axes)


def struct_of(kind: Any) -> jax.ShapeDtypeStruct:
    """Return a struct of this type that varies over the same axes."""
    axes = {"sharding": kind.sharding, "manual_axis_type": kind.manual_axis_type} if axes_of(kind) else {}
    return jax.ShapeDtypeStruct(kind.shape, kind.dtype, **axes)
