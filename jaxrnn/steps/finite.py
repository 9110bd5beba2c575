"""What must be finite in a live stream, and how a step tells that it is not."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args

import jax.numpy as jnp
import numpy as np

from jaxrnn.errors import NonFiniteError
from jaxrnn.steps.specs import Arrays
from jaxrnn.steps.stepspec import LARGE, State, StepSpec

#: What a live stream does with a step whose state or outputs are not finite.
OnNonFinite = Literal["keep", "raise", "reset"]
ON_NONFINITE: tuple[OnNonFinite, ...] = get_args(OnNonFinite)


def is_float(array: Any) -> bool:
    """Return True for an array of real or complex floats."""
    return _is_inexact(array.dtype)


@functools.cache
def _is_inexact(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.inexact))


def lost(array: Any, first: Any, *, infinities: bool) -> int:
    """Return the number of elements of a state that have been lost: NaN, and infinities if these count.

    An entry whose first value has NaN can have NaN, and an entry whose first value has NaN or an infinity, such as a
    running maximum, can have infinities.
    """
    if not is_float(array):
        return 0
    array, first = np.asarray(array), np.asarray(first)
    has_nan = bool(np.any(first != first))
    found = np.zeros(array.shape, bool) if has_nan else array != array
    if infinities and bool(np.all(np.isfinite(first))):
        found = ~np.isfinite(array)
    return int(np.count_nonzero(found))


def mark_of(outputs: Mapping[str, Any]) -> str:
    """Return the name of the output whose first element is the mark; ``""`` is an output for the mark only."""
    return min((name for name, array in outputs.items() if is_float(array) and 0 not in array.shape), default="")


class Watch:
    """The check of each step of a live stream: outputs and state must be finite.

    A state entry that is not finite before the first frame is judged as in `lost`, and outputs beside an entry that can
    have infinities or NaN can have these too: a running maximum of no frames is -inf. Infinities that a network
    computes from finite frames, such as the logarithm of silence, look like a fault, because nobody can tell these
    apart.
    """

    def __init__(
        self,
        spec: StepSpec,
        start: State,
        entries: Callable[[Any], Mapping[str, Any]] | None = None,
        *,
        apart: bool = False,
    ):
        self._label = spec.label
        #: By default the entries of the spec; an exported file can join entries.
        self._entries = spec.entries if entries is None else entries
        self._first = {name: np.asarray(x) for name, x in self._entries(start).items()}
        floats = {name: array for name, array in self._first.items() if is_float(array)}
        #: The entries that can have infinities but not NaN, and the entries that can have both.
        self.infinite = frozenset(name for name, array in floats.items() if np.isinf(array).any())
        self.free = frozenset(name for name, array in floats.items() if np.isnan(array).any())
        #: True if a traced step must be finite everywhere, and has the mark apart, so that it can be judged again.
        self.apart = apart

    def marked(self, outputs: dict[str, Any], state: State, packed: Iterable[Any] | None = None) -> dict[str, Any]:
        """Return the outputs of a traced step, with NaN in the first element of `mark_of` if the step is not finite.

        A mark inside of an output takes less time than another result, and ``packed``, the state as it leaves the step,
        less time than its entries.
        """
        infinite, free = (frozenset(), frozenset()) if self.apart else (self.infinite, self.free)
        judged = [_only_nan(array) if infinite else array for array in outputs.values() if is_float(array) and not free]
        if packed is None or infinite or free:
            for name, array in self._entries(state).items():
                if is_float(array) and name not in free:
                    judged.append(_only_nan(array) if name in infinite else array)
        else:
            judged += filter(is_float, packed)
        finite = _all_finite(judged)
        # Outputs that can have NaN of their own have no mark.
        name = "" if self.free or self.apart else mark_of(outputs)
        array = outputs.get(name, jnp.zeros(()))
        return {**outputs, name: jnp.where(finite, array, jnp.asarray(jnp.nan, array.dtype))}

    def _is_output(self, array: Any) -> bool:
        """Return True for an output of a finite step."""
        return bool(self.free) or (not np.isnan(array).any() if self.infinite and is_float(array) else _finite(array))

    def places(self, outputs: Arrays, state: State, inputs: Arrays | None = None) -> list[str]:
        """Return what is not finite in a step, whose outputs may be marked, in words.

        ``inputs`` are judged too if given, for engines in which NaN can turn into numbers.
        """
        given = (inputs or {}).values()
        if not self.infinite and not self.free and all(map(_finite, (*given, *outputs.values(), *state.values()))):
            return []  # the usual case, without the entries
        places = [f"input {name!r}" for name, array in (inputs or {}).items() if not _finite(array)]
        for name, array in self._entries(state).items():
            if count := lost(array, self._first[name], infinities=True):
                places.append(f"state {name!r} ({count} of {array.size} elements)")
        if not places and not all(map(self._is_output, outputs.values())):
            return ["the outputs"]
        return places

    def error(self, outputs: Arrays, state: State, inputs: Arrays | None = None) -> NonFiniteError | None:
        """Return the error about a step of one stream, or None for a finite step; arguments as of `places`."""
        places = self.places(outputs, state, inputs)
        if not places:
            return None
        error = NonFiniteError(
            f"{self._label}: a step gave NaN or infinities, in {', '.join(places)}. A frame had such "
            "values, or the arithmetic overflowed. The stream is as before this step: leave the frame out and go on, "
            'or let it start again with `on_nonfinite="reset"`, or accept such values with `on_nonfinite="keep"`'
        )
        error.outputs = {name: np.zeros_like(array) for name, array in outputs.items() if name}
        return error


def _only_nan(array: Any) -> Any:
    return jnp.where(jnp.isnan(array), array, 0)


def _finite(array: Any) -> bool:
    return not is_float(array) or bool(np.isfinite(np.asarray(array)).all())


def _all_finite(arrays: Iterable[Any]) -> Any:
    """Return a traced bool; small arrays are joined, because XLA takes a third of a microsecond for each reduction."""
    parts: dict[Any, list[Any]] = {}
    finite: Any = jnp.bool_(True)
    for array in arrays:
        for part in (array.real, array.imag) if jnp.iscomplexobj(array) else (array,):
            large = part.size * part.dtype.itemsize >= LARGE
            parts.setdefault(len(parts) if large else part.dtype, []).append(part.ravel())
    for joined in parts.values():
        # Not by the maximum, in which XLA loses NaN from a few thousand elements on.
        finite &= jnp.all(jnp.isfinite(jnp.concatenate(joined) if len(joined) > 1 else joined[0]))
    return finite
