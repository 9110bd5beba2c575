"""Which of the cases of a test are in the quick tier."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def of_tiers(cases: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """Parameters: those that are named are in the quick tier, all others are thorough. A tuple is one of several."""
    cases = list(cases)
    unknown = [case for case in quick if case not in cases]
    assert not unknown, f"there are no cases {unknown}"
    thorough = pytest.mark.thorough
    return [
        case if case in quick else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=thorough)
        for case in cases
    ]
