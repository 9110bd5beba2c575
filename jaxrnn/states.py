"""States by name, held against their descriptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxrnn.errors import StateError
from jaxrnn.messages import describe, near
from jaxrnn.specs import ArraySpec


def lead_of(specs: Sequence[ArraySpec], state: Any) -> tuple[Any, ...]:
    """The axes that every array of a state has in front of those described: the batch, or none.

    Raises:
        StateError: an array is missing, unknown, or of another dtype, shape or batch than the others ask for.
    """
    names = [spec.name for spec in specs]
    listed = ", ".join(names) or "nothing"
    if not isinstance(state, Mapping):
        raise StateError(f"the state must be a dict as init gives it, with {listed}, not {type(state).__name__}")
    for name in state:
        if name not in names:
            raise StateError(f"there is no state {name!r}{near(name, names)}; the state is: {listed}")
    missing = [name for name in names if name not in state]
    if missing:
        raise StateError(f"state {missing[0]!r} is missing; init gives all of: {listed}")
    leads: dict[str, tuple[Any, ...]] = {}
    sizes: dict[str, Any] = {}
    for spec in specs:
        value, shape = state[spec.name], spec.shape
        assert shape is not None
        if not hasattr(value, "dtype") or value.dtype != spec.dtype:
            raise StateError(f"state {_expected(spec)}, not {describe(value)}")
        extra = max(len(value.shape) - len(shape), 0)
        leads[spec.name], core = tuple(value.shape[:extra]), tuple(value.shape[extra:])
        fits = len(core) == len(shape) and all(
            isinstance(expected, str) or expected == size for expected, size in zip(shape, core, strict=True)
        )
        if not fits or extra > 1:
            more = "; map over all axes in front but one with jax.vmap" if fits else ""
            raise StateError(f"state {_expected(spec)}, not {describe(value)}{more}")
        named = ((expected, size) for expected, size in zip(shape, core, strict=True) if isinstance(expected, str))
        same = all(sizes.setdefault(expected, size) == size for expected, size in named)
        if leads[spec.name] != leads[names[0]] or not same:
            raise StateError(f"state {spec.name!r} is {describe(value)}, of another batch than the rest of the state")
    return next(iter(leads.values()), ())


def _expected(spec: ArraySpec) -> str:
    shown = ArraySpec.__str__(spec).partition(": ")[2]
    return f"{spec.name!r} must be {shown} (in a batch, with one axis in front)"


def zeros(specs: Sequence[ArraySpec], sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Zeros by name, with sizes for open dimensions.

    Raises:
        KeyError: the name of a dimension without a size.
    """
    return {
        spec.name: np.zeros([size if isinstance(size, int) else sizes[size] for size in spec.shape or ()], spec.dtype)
        for spec in specs
    }
