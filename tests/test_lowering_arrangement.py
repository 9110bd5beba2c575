"""Movements of elements around other operators, in as few nodes as there can be."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from tests.lowering_verifier import verify_lowering

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)

#: By name: a function of X, and the operators it needs.
TAKEN = {
    "first axis": (lambda x: x[1], {"Gather": 1}),
    "middle axis": (lambda x: jnp.sin(x[:, 2]), {"Gather": 1, "Sin": 1}),
    "last axis": (lambda x: x[..., 0], {"Gather": 1}),
    "beside an axis of one element": (lambda x: x[:1, 1:2].reshape(1, 4), {"Slice": 1, "Reshape": 1}),
    "of an axis that stays": (lambda x: x[:, 1:2], {"Slice": 1}),
    "into another shape": (lambda x: x[:, 1:2].reshape(8), {"Slice": 1, "Reshape": 1}),
    "and as it was": (lambda x: (x[:, 1], x[:, 1:2]), {"Slice": 1, "Reshape": 1}),
}


@pytest.mark.parametrize("name", TAKEN)
def test_one_element_along_an_axis_is_taken_by_its_index(name):
    function, operators = TAKEN[name]
    verify_lowering(function, X, operators=operators)


def test_masks_are_broadcast_by_what_they_choose_for():
    def masked(x, exists):
        return jnp.where(exists[None, None], x, 0), jnp.where(exists[None, :3, None], x, 0)

    # Only the mask of the middle axis needs another shape.
    operators = {"Where": 2, "Slice": 1, "Reshape": 1}
    verify_lowering(masked, X, np.array([True, False, True, True]), operators=operators)
