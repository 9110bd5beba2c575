"""`stream` on JAX functions: exact for every length, chunking and pulse; gradients; facts; arguments."""

from __future__ import annotations

import pytest
from facts_verifier import check_facts
from stream_functions import CASES, DIFFERENTIATED, VARIANTS
from streaming_verifier import check_gradients, check_values
from tiers import of_tiers

#: Facts that are larger than what is measured, and why.
LARGER = {
    "bits of all frames": "one changed frame changes no bit of all",
    "branch": "it looks ahead in the branch that is not taken",
}
#: Outputs that no frame changes, or that another value of a single frame does not change.
CONSTANT = (
    "bits of all frames",
    "transposed, outputs that see no frame",
    "a recurrence of nothing",
    "a count of frames",
)
_FOR_GRADIENTS = ("multiple", "constraints")
#: Where there is a rule for gradients, or a mask without which they are wrong.
GRADIENTS = (
    "devices that are one",
    "tridiagonal systems",
    "LSTM and its final state",
    "parallel resistors",
    "many pads into a recurrence",
    "transposed by 2",
    "known at the end",
    "log of what may be absent",
    "recurrence on logs",
    "checkpointed",
    "a gradient rule of its own",
    "a forward rule of its own",
    "max pooling",
)
QUICK_GRADIENTS = (GRADIENTS[0], GRADIENTS[7], GRADIENTS[12])
THOROUGH_GRADIENTS = ("parallel resistors", "known at the end", "recurrence on logs", "a forward rule of its own")
#: Cases whose rules other cases run too.
COMBINED = (
    "devices that are one",
    "layers with look-ahead in a loop",
    "positions as running sums",
    "scans of a length",
    "while frames are left",
    "branch",
    "matrices",
    "tridiagonal systems",
    "derivatives of pooling in a frame",
    "LSTM and its final state",
    "a forward rule of its own",
    "a loop that counts",
    "a recurrence of nothing",
    "activations",
    "causal",
    "counted loop",
    "cut, then padded",
    "depthwise",
    "every second frame",
    "frames by a table of numbers",
    "frames merge",
    "frames split",
    "joined branches",
    "linear recurrence",
    "many pads into a recurrence",
    "one buffer, a stream and its differences",
    "over frequency",
    "positions",
    "recurrence",
    "recurrence in a loop",
    "recurrence on logs",
    "repeated",
    "running logsumexp",
    "running maximum",
    "running product",
    "slices of one buffer",
    "stride 2",
    "strides of several layers",
    "the first frames at the end",
    "transposed with stride",
    "checkpointed",
    "differences",
    "first and last frames",
    "interior pad",
    "joined with constants",
    "many pads",
    "a count of frames",
    "a length of its own for very short recordings",
    "a loop beside what it began with",
    "bits of all frames",
    "branches of different delay",
    "element-wise",
    "embedding",
    "known at the end",
    "loop with a condition",
    "mirrored edges",
    "numbers that wrap around",
    "one buffer, frames of two lengths",
    "parallel resistors",
    "positions that choose",
    "running softmax",
    "sorted in a frame",
    "spectrum of overlapping frames",
    "stride 3, dilation 2",
    "transposed by 2",
)
#: Combinations of several rules, of which others are nightly.
THOROUGH = (
    "layers with look-ahead in a loop",
    "while frames are left",
    "branches of different delay",
    "tridiagonal systems",
    "many pads into a recurrence",
    "recurrence in a loop",
    "transposed with stride",
    "mirrored edges",
    "running softmax",
)
LATER = (*VARIANTS, *COMBINED)


@pytest.mark.parametrize("name", of_tiers(CASES, [name for name in CASES if name not in LATER], THOROUGH))
def test_values(name):
    """Delay, look-ahead and receptive field are those of the same trace."""
    case = CASES[name]
    tailless = name in VARIANTS or name in GRADIENTS
    streamed = check_values(case.function, (20, 3), tailless=tailless, **case.options)
    check_facts(case.function, streamed, larger=name in LARGER, something=name not in CONSTANT)


@pytest.mark.parametrize("name", of_tiers(DIFFERENTIATED, QUICK_GRADIENTS, THOROUGH_GRADIENTS))
def test_gradients(name):
    case = CASES[name]
    check_gradients(case.function, (20, 3), **{k: v for k, v in case.options.items() if k in _FOR_GRADIENTS})
