"""Frames that nothing reads, such as the wrapped frames of a roll, and frames in front of pads that are known late."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import check_refused
from streaming_verifier import check_gradients, check_values
from tiers import of_tiers

import jaxrnn

EXAMPLE = jax.ShapeDtypeStruct((12, 2), np.float32)


def numbers(x):
    return jnp.arange(x.shape[0])[:, None]


def shifted(x, k=1):
    return jnp.roll(x, k, 0)


#: Functions that stream with the smallest length, and the delay.
READ = {
    "cut": (lambda x: shifted(x)[1:], 1, 1),
    "three cut": (lambda x: shifted(x, 3)[3:], 3, 3),
    "one overwritten": (lambda x: shifted(x).at[0].set(0), 1, 0),
    "three overwritten": (lambda x: shifted(x, 3).at[:3].set(2), 3, 0),
    "two by number": (lambda x: shifted(x, 2).at[jnp.array([1, 0])].set(3), 2, 0),
    "chosen": (lambda x: jnp.where(numbers(x) == 0, 0, shifted(x)), 1, 0),
    "chosen by remainders": (lambda x: jnp.where((numbers(x) % 3 != 0) | (numbers(x) > 4), shifted(x), x), 1, 0),
    "behind a function": (lambda x: jax.nn.relu(jnp.abs(shifted(x)) + x).at[0].set(1), 1, 0),
    "of a transpose": (lambda x: jnp.roll(x.T, 1, -1).at[:, 0].set(0).T, 1, 0),
    "twice": (lambda x: shifted(shifted(x).at[0].set(0)).at[0].set(5), 1, 0),
    "read twice": (lambda x: shifted(x)[1:] + shifted(x).at[0].set(1)[1:], 1, 1),
    "in a recurrence": (lambda x: jnp.cumsum(jnp.where(numbers(x) > 0, shifted(x), 0), 0), 1, 0),
    "joined": (lambda x: jnp.concatenate([x[-2:], x[:-2]]).at[:2].set(0), 2, 0),
}

REFUSED = {
    "all": shifted,
    "another frame": lambda x: shifted(x).at[1].set(0),
    "a part of a frame": lambda x: shifted(x).at[0, 0].set(0),
    "a part by choice": lambda x: jnp.where((numbers(x) == 0) & jnp.array([True, False]), 0, shifted(x)),
    "a choice by the stream": lambda x: jnp.where((numbers(x) == 0) & (x > 0), 0, shifted(x)),
    "a product with 0": lambda x: shifted(x) * (numbers(x) > 0).astype(x.dtype),
    "read beside": lambda x: shifted(x).at[0].set(0) + shifted(x),
    "too few": lambda x: shifted(x, 2)[1:],
    "added": lambda x: shifted(x).at[0].add(1),
    "read before": lambda x: jnp.cumsum(shifted(x), 0)[1:],
}
RECURRENT = ["in a recurrence", "read twice", "of a transpose"]


@pytest.mark.parametrize(
    "name", of_tiers(READ, ["three overwritten", "chosen by remainders", "behind a function"], RECURRENT)
)
def test_wrapped_frames_that_nothing_reads(name):
    function, least, delay = READ[name]
    lengths = [length for length in (1, 2, 3, 4, 6, 11) if length >= least]
    streamed = check_values(function, EXAMPLE.shape, lengths=lengths, constraints=(f"S >= {least}",), something=False)
    assert (streamed.delay, streamed.look_ahead) == (delay, 0)


@pytest.mark.parametrize("name", of_tiers(READ, [], ["chosen"]))
def test_gradients(name):
    function, least, _ = READ[name]
    check_gradients(function, EXAMPLE.shape, constraints=(f"S >= {least}",))


@pytest.mark.parametrize("name", of_tiers(REFUSED, REFUSED))
def test_wrapped_frames_that_an_output_reads(name):
    options = {"axes": 0, "constraints": ["S >= 3"]}
    check_refused(
        jaxrnn.StreamError, "when the stream has ended|over", jaxrnn.stream, REFUSED[name], EXAMPLE, **options
    )


def deltas(x, mode):
    """Slopes over five frames, as delta features are."""
    wide = jnp.pad(x, ((2, 2), (0, 0)), mode=mode)
    return sum(k * (wide[2 + k : 2 + k + x.shape[0]] - wide[2 - k : 2 - k + x.shape[0]]) for k in (1, 2))


@pytest.mark.parametrize("mode", of_tiers(["edge", "reflect", "symmetric", "constant"], ["edge", "reflect"], []))
def test_slices_of_a_padded_array_wait_for_no_more_than_they_read(mode):
    streamed = check_values(lambda x: deltas(x, mode), EXAMPLE.shape, lengths=(3, 4, 11), constraints=("S >= 3",))
    assert (streamed.delay, streamed.look_ahead) == (2, 2)


#: Functions whose pads overlap, their delay and their look-ahead.
OVERLAPPING = {
    "a pad of a pad": (lambda x: jnp.pad(jnp.pad(x, ((2, 0), (0, 0)), mode="reflect"), ((1, 0), (0, 0)))[1:-1], 2),
    "every second frame": (lambda x: jnp.pad(x, ((3, 1), (0, 0)), mode="edge")[1::2], 0),
    "a window of late frames": (lambda x: deltas(jnp.pad(x, ((1, 0), (0, 0)), mode="symmetric")[1:], "edge"), 2),
}


@pytest.mark.parametrize("name", of_tiers(OVERLAPPING, [], ["a window of late frames"]))
def test_late_frames_of_pads(name):
    function, delay = OVERLAPPING[name]
    options = {"lengths": (2, 3, 11), "multiple": 2, "constraints": ("S >= 2",)}
    assert check_values(function, EXAMPLE.shape, **options).delay == delay
