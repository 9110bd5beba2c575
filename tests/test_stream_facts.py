"""Delay, look-ahead and receptive field are what a function needs: held against measurements from outside."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from facts_verifier import check_facts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stream_functions import CASES, VARIANTS
from test_stream_random import CHANNELS, chain, convolution, other_length, same_length, undecided_by_jax

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


@st.composite
def edged(draw):
    """A convolution behind repeated or mirrored frames, or a part of a network that mixes time with other axes."""
    seed, length = draw(st.integers(0, 99)), draw(st.integers(1, 5))
    front = draw(st.integers(0, length - 1))
    mode = draw(st.sampled_from(["edge", "symmetric"]))
    widths = ((front, length - 1 - front), (0, 0))
    dense = np.random.default_rng(seed).normal(size=(1, 2)).astype(np.float32)
    return draw(
        st.sampled_from(
            [
                lambda x: jnp.tanh(convolution(jnp.pad(x, widths, mode=mode), seed, length, (0, 0))),
                lambda x: (x.reshape(-1, 1) @ dense).reshape(x.shape[0], 2, 2).sum(-1),
            ]
        )
    )


NETWORKS = st.lists(st.one_of(edged(), edged(), same_length(), other_length()), min_size=1, max_size=4)


@pytest.mark.thorough
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(NETWORKS)
def test_facts_of_random_networks(layers):
    with undecided_by_jax():
        check_network(layers)


def check_network(layers):
    """Hold the facts of layers, one after the other, against what is measured."""
    function = functools.partial(chain, layers)
    streamed = jaxrnn.stream(function, jax.ShapeDtypeStruct((20, CHANNELS), np.float32), axes=0)
    total = max(30, 4 * streamed.smallest_pulse)
    total -= total % streamed.smallest_pulse
    check_facts(function, streamed, (total, CHANNELS), total=total, larger=False)
