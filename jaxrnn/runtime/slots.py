"""The states of many streams in one array each, a slot for every stream: the functions of a pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Arrays = Mapping[str, Any]
Step = Callable[[Any, Arrays], tuple[Any, Any]]


class SlotFunctions(NamedTuple):
    """What a pool does with the states of all its streams.

    Attributes:
        run: ``(states, frames, active) -> (outputs, states)``: a step of every stream; the states of those that are not
            active stay.
        take: ``(states, slot) -> state``.
        clear: ``(states, state, slot) -> states`` with that state in the slot.
    """

    run: Callable[..., Any]
    take: Callable[..., Any]
    clear: Callable[..., Any]


#: The functions that may overwrite the states which they are given.
DONATING = ("run", "clear")


def slot_functions(step: Step) -> SlotFunctions:
    """The functions for a step of one stream, not compiled."""

    def run(states: Any, frames: Arrays, active: jax.Array) -> tuple[Any, Any]:
        outputs, new = jax.vmap(step)(states, frames)

        def choose(after: jax.Array, before: jax.Array) -> jax.Array:
            return jnp.where(active.reshape((-1,) + (1,) * (after.ndim - 1)), after, before)

        return outputs, jax.tree.map(choose, new, states)

    def take(states: Any, slot: jax.Array) -> Any:
        return jax.tree.map(lambda x: x[slot], states)

    def clear(states: Any, state: Any, slot: jax.Array) -> Any:
        return jax.tree.map(lambda x, fresh: x.at[slot].set(fresh), states, state)

    return SlotFunctions(run, take, clear)
