"""Which of the cases of a test are in the quick tier, and which are in the thorough or the nightly tier."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

#: The tiers; a test is in the last tier that a mark names, and without a mark in the first.
TIERS = ("quick", "thorough", "nightly")


def tier_of(item: pytest.Item) -> str:
    """Return the tier of a test."""
    return next((tier for tier in reversed(TIERS) if item.get_closest_marker(tier) is not None), TIERS[0])


def of_tiers(cases: Iterable[Any], quick: Collection[Any], thorough: Collection[Any] | None = None) -> list[Any]:
    """Return parameters with marks of their tiers. A tuple is several parameters.

    The named cases are quick or thorough. All other cases are nightly, or thorough if ``thorough`` is None.
    """
    cases = list(cases)
    unknown = [case for case in (*quick, *(thorough or ())) if case not in cases]
    assert not unknown, f"there are no cases {unknown}"
    return [case if case in quick else _marked(case, thorough is None or case in thorough) for case in cases]


def in_later_tier(cases: Iterable[Any], names: Collection[Any]) -> list[Any]:
    """Return parameters, of which the named cases are thorough and all others quick."""
    cases = list(cases)
    return of_tiers(cases, [case for case in cases if case not in names], thorough=[*names])


def _marked(case: Any, thorough: bool) -> Any:
    mark = pytest.mark.thorough if thorough else pytest.mark.nightly
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark)
