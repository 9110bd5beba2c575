"""Comparison of two values, and the verdict on many comparisons: the rules of every verification.

A comparison has three results: the values agree, the values differ, or no element was compared. Two values without a
finite element hold no number that could differ, so a verdict never counts such values as equal. A `Check` compares
values on one set of inputs, and a `Verdict` is the result of several checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrnn._files.messages import as_json, short_repr
from jaxrnn.errors import InputError

#: Tolerances of float32 and float64; at least `STEPS` rounding steps of types with fewer digits.
ATOL, RTOL, STEPS = 1e-5, 1e-4, 8
NORMAL = "standard normal"
#: Ways to draw floats, in the order in which a verification tries them. Roots and logarithms have finite results for
#: positive numbers, probabilities and cosines lie between bounds, and an inverse cosh takes numbers above 1.
FLOATS: dict[str, Callable[[np.random.Generator, Sequence[int]], np.ndarray]] = {
    NORMAL: lambda random, shape: random.standard_normal(shape),
    "positive": lambda random, shape: np.abs(random.standard_normal(shape)) + 1 / 64,
    "between 0 and 1": lambda random, shape: random.uniform(1 / 64, 63 / 64, shape),
    "above 1": lambda random, shape: np.abs(random.standard_normal(shape)) + 65 / 64,
}
#: The reason if neither value has an element that can be compared, before the cause.
NOTHING = "nothing was compared"


@short_repr
@dataclass(frozen=True)
class Comparison:
    """The result of comparing a value with the value of a peer, such as a second engine.

    Attributes:
        name: name of the value.
        dtype: element type of the value.
        shape: shape of the value.
        max_abs: largest ``|here - peer|``; infinite if only one side is NaN or infinite, None if both are strings.
        max_rel: largest ``|here - peer| / |peer|`` over the elements with ``|peer| > atol``.
        scale: largest finite ``|peer|``; None if the values are strings.
        compared: number of compared elements: elements that are finite on at least one side.
        ok: True if element type, shape and all elements agree, and an element was compared.
        differs: True if element type, shape or an element differs. If also ``ok`` is False, no element was compared.
        reason: description of the difference, or the reason why no element was compared; None if the values agree.
        wrong: number of elements that differ by more than the tolerance.
        worst: index of the element with the largest difference beyond the tolerance.
        first_frame: first frame with a difference beyond the tolerance, if the value has a time axis.
        nearer: where the values differ, the side that is nearer to the same graph in float64: ``"here"`` or ``"peer"``;
            ``"unknown"`` if the graph does not run in float64. None if float64 was not needed, or does not decide.
        arbiter: the result of the graph in float64 for values that differ; None if float64 was not needed.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    max_abs: float | None = 0.0
    max_rel: float | None = 0.0
    scale: float | None = 0.0
    compared: int = 0
    ok: bool = False
    differs: bool = False
    reason: str | None = None
    wrong: int = 0
    worst: tuple[int, ...] | None = None
    first_frame: int | None = None
    nearer: str | None = None
    arbiter: str | None = None

    def accepted(self, reason: str) -> Comparison:
        """Return the comparison of values that count as equal in spite of a difference, for this reason."""
        return replace(self, ok=True, differs=False, reason=reason, wrong=0, worst=None, first_frame=None)


def agree(comparisons: Iterable[Comparison]) -> bool:
    """Return the verdict on comparisons: True if no value differs, and an element of each value was compared.

    Comparisons with the same name compare one value on several inputs. The value may be empty or not finite on some of
    these inputs, such as a recording of a single frame. Without any comparison, the verdict is False.
    """
    by_name: dict[str, list[Comparison]] = {}
    for each in comparisons:
        by_name.setdefault(each.name, []).append(each)
    return bool(by_name) and all(map(value_agrees, by_name.values()))


def value_agrees(comparisons: Sequence[Comparison]) -> bool:
    """Return True if no comparison of a value differs, and an element was compared in at least one comparison."""
    return not any(each.differs for each in comparisons) and any(each.compared for each in comparisons)


@short_repr
@dataclass(frozen=True)
class Check:
    """The comparison of values on one set of inputs.

    Attributes:
        dims: sizes of open dimensions of the inputs, such as ``{"frames": 5}``.
        outputs: comparison of each value.
        against: a name for the reference.
        problem: the error of the reference, if the reference does not run on these inputs.
    """

    dims: Mapping[str, int]
    outputs: tuple[Comparison, ...] = ()
    against: str = ""
    problem: str | None = None

    @property
    def ok(self) -> bool:
        """True if all values agree. False also if the reference does not run, and if nothing was compared."""
        return agree(self.outputs)

    @property
    def differs(self) -> bool:
        """True if a value differs."""
        return any(each.differs for each in self.outputs)

    def to_json(self) -> dict[str, Any]:
        """Return the check in JSON's types; the length of a recording also stands by itself."""
        frames = {"frames": self.dims["frames"]} if [*self.dims] == ["frames"] else {}
        return {"ok": self.ok, **frames, **as_json(self)}


@short_repr
@dataclass(frozen=True)
class Verdict:
    """The comparison of values on several sets of inputs.

    Attributes:
        label: name of the compared object.
        engine: name and version of the peer.
        notes: errors of the engines that were tried before.
        cases: a comparison for each set of inputs, and for each reference.
    """

    label: str
    engine: str
    notes: tuple[str, ...]
    cases: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """True if no case differs, and each value was compared with each reference in at least one case."""
        by_reference: dict[str, list[Comparison]] = {}
        for case in self.cases:
            by_reference.setdefault(case.against, []).extend(case.outputs)
        agrees = bool(by_reference) and all(map(agree, by_reference.values()))
        return agrees and not any(case.differs for case in self.cases)

    @property
    def compared(self) -> int:
        """The number of compared elements in all cases."""
        return sum(output.compared for case in self.cases for output in case.outputs)

    def to_json(self) -> dict[str, Any]:
        """Return the report in JSON's types."""
        cases = [case.to_json() for case in self.cases]
        return {"ok": self.ok, "compared": self.compared, **as_json(self), "cases": cases}


def tolerances(
    dtype: np.dtype, atol: float | None, rtol: float | None, precision: np.dtype | None = None
) -> tuple[float, float]:
    """Return the tolerances for an element type, computed with at least `precision`; the defaults of integers are 0."""
    for name, tolerance in (("atol", atol), ("rtol", rtol)):
        if tolerance is not None and not tolerance >= 0:
            raise InputError(f"{name} must be a number of at least 0, not {tolerance}")
    if not jnp.issubdtype(dtype, jnp.inexact):
        return atol or 0.0, rtol or 0.0
    least = STEPS * max(float(jnp.finfo(each).eps) for each in (dtype, precision) if each is not None)
    return max(ATOL, least) if atol is None else atol, max(RTOL, least) if rtol is None else rtol


def compare(
    name: str,
    here: Any,
    peer: Any,
    *,
    atol: float | None = None,
    rtol: float | None = None,
    scaled: bool = False,
    time_axis: int | None = None,
    precision: np.dtype | None = None,
    require_finite: bool = True,
) -> Comparison:
    """Compare a value with the value of a peer: each element must satisfy ``|here - peer| <= atol + rtol * |peer|``.

    Element types and shapes must agree. NaNs must be at the same positions, and infinities must be equal. If no element
    is finite on either side, no element was compared, and the result is neither ``ok`` nor ``differs``. Sequences are
    compared item by item, and the comparison of the worst item is returned.

    Args:
        name: name of the value in the result.
        here: array, tuple of values, or None if an optional is absent.
        peer: the value of the other engine.
        atol: absolute tolerance; by default 1e-5, but at least 8 rounding steps of the element type, and 0 for
            integers, booleans and strings.
        rtol: relative tolerance; by default 1e-4, with the same exceptions.
        scaled: multiply ``atol`` by the largest finite ``|peer|`` if that is above 1. Useful for values inside a
            graph, where large terms may cancel.
        time_axis: axis of frames, for `Comparison.first_frame`.
        precision: the float type with the fewest digits in which the value was computed, if that is not the type of the
            value. The default tolerances are then at least 8 rounding steps of that type.
        require_finite: False if the caller compares NaN and infinities, such as results for odd inputs. All
            elements then count as compared.

    Raises:
        InputError: a tolerance is negative or NaN.
    """
    if here is None or peer is None or isinstance(here, (list, tuple)) or isinstance(peer, (list, tuple)):
        options = {"atol": atol, "rtol": rtol, "scaled": scaled}
        return _compare_items(name, here, peer, **options, precision=precision, require_finite=require_finite)
    here, peer = np.asarray(here), np.asarray(peer)
    text = here.dtype.kind in "OUST" and peer.dtype.kind in "OUST"
    result = Comparison(name, "string" if text else here.dtype.name, here.shape)
    if not text and here.dtype.name == peer.dtype.name:
        peer = peer.astype(here.dtype, copy=False)  # a recording may have another byte order
    elif not text:
        return _different(result, f"the element type is {here.dtype.name} here, but {peer.dtype.name} in the peer")
    if here.shape != peer.shape:
        return _different(result, f"the shape is {list(here.shape)} here, but {list(peer.shape)} in the peer")
    if text:
        one, other = (array.astype(str) if array.dtype.kind == "S" else array for array in (here, peer))
        wrong = np.asarray(one.astype(object) != other.astype(object))
        result = replace(result, max_abs=None, max_rel=None, scale=None, compared=here.size)
        return _different(result, *_reason(wrong, wrong.astype(float), "")) if wrong.any() else _agreeing(result)
    limits = tolerances(here.dtype, atol, rtol, precision)
    return _compare_numbers(result, here, peer, *limits, scaled, time_axis, require_finite)


def _compare_numbers(
    result: Comparison,
    here: np.ndarray,
    peer: np.ndarray,
    atol: float,
    rtol: float,
    scaled: bool,
    time_axis: int | None,
    require_finite: bool,
) -> Comparison:
    equal = np.asarray(here == peer)
    inexact = jnp.issubdtype(here.dtype, jnp.inexact)
    wide = np.complex128 if np.issubdtype(here.dtype, np.complexfloating) else np.float64
    a, b = here.astype(wide), peer.astype(wide)
    with np.errstate(all="ignore"):
        equal = equal | (np.isnan(a) & np.isnan(b))
        distance = np.where(equal, 0.0, np.abs(a - b))
        distance = np.where(np.isnan(distance), np.inf, distance)
        if not inexact:
            # Large integers may differ by less than float64 resolves.
            distance = np.where(equal, 0.0, np.maximum(distance, 1.0))
        size = np.abs(b)
        scale = float(size.max(initial=0.0, where=np.isfinite(size)))
        if scaled:
            atol *= max(1.0, scale)
        ratio = np.where(np.isfinite(distance), distance / size, np.inf)
        ratio = np.where(equal | (size <= atol), 0.0, ratio)
        wrong = ~equal & ~(np.isfinite(distance) & (distance <= atol + rtol * size))
        nans = int(np.isnan(a).sum()), int(np.isnan(b).sum())
        compared = int((np.isfinite(a) | np.isfinite(b)).sum()) if require_finite else a.size
    largest = {"max_abs": float(distance.max(initial=0.0)), "max_rel": float(ratio.max(initial=0.0)), "scale": scale}
    result = replace(result, **largest, compared=compared)
    if not wrong.any():
        return _agreeing(result)
    moved = bool((np.isnan(a) != np.isnan(b)).any())
    note = f", and NaNs are elsewhere ({nans[0]} here, {nans[1]} in the peer)" if moved else ""
    first = None if time_axis is None else int(np.argwhere(wrong)[:, time_axis].min())
    different = _different(result, *_reason(wrong, distance, note))
    return replace(different, **largest, first_frame=first)


def _reason(wrong: np.ndarray, distance: np.ndarray, note: str) -> tuple[str, tuple[int, ...], int]:
    worst = np.unravel_index(int(np.argmax(np.where(wrong, distance, -1.0))), wrong.shape)
    count = int(wrong.sum())
    return f"{count:,} of {wrong.size:,} elements differ{note}", tuple(int(index) for index in worst), count


def _different(result: Comparison, reason: str, worst: tuple[int, ...] | None = None, wrong: int = 0) -> Comparison:
    unknown = {"max_abs": None, "max_rel": None, "scale": None}
    return replace(result, **unknown, differs=True, reason=reason, worst=worst, wrong=wrong)


def _agreeing(result: Comparison) -> Comparison:
    """Return the result for values without a difference: they agree if an element was compared."""
    if result.compared:
        return replace(result, ok=True)
    cause = "no element is finite" if all(result.shape) else "the value has no elements"
    return replace(result, reason=f"{NOTHING}: {cause}")


def _compare_items(name: str, here: Any, peer: Any, **options: Any) -> Comparison:
    result = Comparison(name, "absent" if here is None else "sequence", ())
    if here is None and peer is None:
        return replace(result, compared=1, ok=True)  # the absence is all that the value says
    if not (isinstance(here, (list, tuple)) and isinstance(peer, (list, tuple))):
        return _different(result, f"it is {_kind(here)} here, but {_kind(peer)} in the peer")
    if len(here) != len(peer):
        return _different(result, f"the sequence has {len(here)} items here, but {len(peer)} in the peer")
    items: Sequence[Comparison] = [
        compare(f"{name}[{index}]", *pair, **options) for index, pair in enumerate(zip(here, peer, strict=True))
    ]
    result = replace(result, shape=(len(items),), compared=sum(item.compared for item in items))
    worst = max(items, key=lambda item: (item.differs, item.max_abs or 0.0), default=result)
    result = replace(result, max_abs=worst.max_abs, max_rel=worst.max_rel, scale=worst.scale, worst=worst.worst)
    if not worst.differs:
        return _agreeing(result)
    return replace(result, differs=True, reason=f"{worst.name}: {worst.reason}")


def _kind(value: Any) -> str:
    return "absent" if value is None else "a sequence" if isinstance(value, (list, tuple)) else "an array"
