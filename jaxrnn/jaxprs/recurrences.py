"""Recurrences as single equations, which declare their carries.

While jaxrnn looks for state, a recurrent operator wraps its results by `visible` and declares what it carries, whether
it is computed as a layer, as a loop or as one step without a loop. At all other times `visible` does nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

#: Whether recurrences are equations. Part of the key of every cache of JAX.
_visible = jax.make_user_context(False)


@contextlib.contextmanager
def visible_recurrences(wanted: bool = True) -> Iterator[None]:
    """Trace recurrences as equations of `recurrence_p` (or, if not wanted, as plain computations)."""
    with _visible(wanted):
        yield


def are_visible() -> bool:
    """Return True if recurrences are traced as equations."""
    return _visible.value


@dataclass(frozen=True)
class Carried:
    """One carry of a recurrence.

    Attributes:
        slot: its name.
        result: the number of the result that is its final value.
        start: the number of the operand that is its initial value, None for zeros.
        forward: whether a later call can go on from the final value.
        half: the axis of the directions, and the place of its own; None where it is the whole array.
    """

    slot: str
    result: int
    start: int | None
    forward: bool = True
    half: tuple[int, int] | None = None


#: Its operands are the results of the recurrence, which it gives back, and the initial values that `Carried.start`
#: counts. Parameters: ``carried``; ``steps``, None where data decides; ``shown``, the time axis of the first result if
#: its last frame is the final value of the first slot.
recurrence_p = Primitive("recurrence")
recurrence_p.multiple_results = True


def visible(
    results: Sequence[Any],
    starts: Sequence[Any],
    slots: Sequence[Carried],
    steps: int | None,
    *,
    shown: int | None = None,
) -> list[Any]:
    """Return the results of a recurrence, wrapped in an equation that declares its carries if recurrences are visible.

    Args:
        results: arrays.
        starts: the initial values, None where there is none.
        slots: what is carried; ``start`` counts among ``starts``.
        steps: the number of steps, None where data decides.
        shown: as in `recurrence_p`.
    """
    if not are_visible() or not slots:
        return list(results)
    present = [index for index, start in enumerate(starts) if start is not None]
    carried = tuple(
        Carried(s.slot, s.result, present.index(s.start) if s.start in present else None, s.forward, s.half)
        for s in slots
    )
    operands = [*results, *(starts[index] for index in present)]
    return recurrence_p.bind(*operands, carried=carried, steps=steps, shown=shown, count=len(results))


def _results(*operands: Any, count: int, **_: Any) -> list[Any]:
    return list(operands[:count])


recurrence_p.def_impl(_results)
recurrence_p.def_abstract_eval(_results)
batching.primitive_batchers[recurrence_p] = lambda operands, axes, count, **_: (operands[:count], axes[:count])
ad.primitive_jvps[recurrence_p] = lambda primals, tangents, count, **_: (primals[:count], tangents[:count])
