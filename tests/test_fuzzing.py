"""A fixed number of cases of every kind of fuzzing, in processes of their own."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest
from fuzzing import campaign
from fuzzing.cases import make
from fuzzing.networks import random_network
from tiers import of_tiers
from verifier import peer_outputs

import jaxrnn

#: Cases of each kind from seed 0: most end when they are loaded, a few are traced and compiled.
COUNTS = {"bytes": 60, "structure": 20, "nodes": 30, "real": 3, "odd": 25, "compiled": 1000, "files": 150}


@pytest.mark.parametrize("kind", of_tiers(COUNTS, (), ("structure",)))
def test_a_result_or_our_own_error(kind):
    found = campaign.run(kind, 0, 0, COUNTS[kind])
    assert found.cases == COUNTS[kind]
    assert not found.defects, json.dumps(found.defects, indent=1)
    # Cases that all fail early would find nothing.
    step, error = ("results", "InputError") if kind == "files" else ("load", "ModelError")
    assert found.outcomes[f"{step}: a result"], found.outcomes
    assert found.outcomes[f"{step}: {error}"], found.outcomes


@pytest.mark.nightly
def test_a_case_is_the_same_every_time():
    for kind in COUNTS:
        (first, how), (again, too) = make(kind, 5, 3), make(kind, 5, 3)
        assert (first, how) == (again, too)


@pytest.mark.parametrize("seed", of_tiers(range(8), (0,), ()))
def test_random_networks(seed):
    """Networks of recurrent layers, loops and branches against ONNX Runtime."""
    proto, inputs = random_network(seed)
    expected = peer_outputs(proto, inputs)["y"]
    model = jaxrnn.load(proto)
    result = jax.jit(model.apply)(model.params, inputs)["y"]
    assert result.shape == expected.shape
    # Up to six layers of up to five steps add a few hundred roundings of 6e-8 of the largest number on the way, which
    # is that of the result unless layers shrink it.
    tolerance = 300 * np.finfo(np.float32).eps * max(1.0, np.abs(expected).max(initial=0))
    np.testing.assert_allclose(result, expected, rtol=0, atol=tolerance)
