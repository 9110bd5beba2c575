"""Delay, look-ahead and receptive field are what a function needs: held against measurements from outside."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from facts_verifier import check_facts
from stream_functions import CASES, VARIANTS

import jaxrnn

#: Facts that are larger than what is measured, and why.
LARGER = {
    "bits of all frames": "one changed frame changes no bit of all",
    "branch": "it looks ahead in the branch that is not taken",
    "frames by a table of numbers": "the window is zero at both ends",
    "running product": "later products are too small to differ",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough if name in VARIANTS else ()) for name in CASES]
)
def test_facts_are_what_is_measured(name):
    case = CASES[name]
    options = {key: case.options[key] for key in ("multiple", "constraints") if key in case.options}
    multiple = options.get("multiple", 1)
    example = jax.ShapeDtypeStruct((12 * multiple, 3), case.options.get("dtype", np.float32))
    streamed = jaxrnn.stream(case.function, example, axes=0, **options)
    lengths = range(0, max(36, 4 * streamed.smallest_pulse) + 1, streamed.smallest_pulse)
    total = max(length for length in lengths if streamed._plan.lengths.allow(length // multiple))
    check_facts(case.function, streamed, (total, 3), total=total, larger=name in LARGER)
