"""`stream` on JAX functions: exact for every length, chunking and pulse; gradients; facts; arguments."""

from __future__ import annotations

import pytest
from stream_functions import CASES
from streaming_verifier import check_gradients, check_values

_FOR_GRADIENTS = ("multiple", "constraints")


@pytest.mark.parametrize("name", CASES)
def test_values(name):
    case = CASES[name]
    check_values(case.function, (20, 3), **case.options)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.gradients])
def test_gradients(name):
    case = CASES[name]
    check_gradients(case.function, (20, 3), **{k: v for k, v in case.options.items() if k in _FOR_GRADIENTS})
