"""Each part of what makes `stream` exact, taken out one at a time: some function must then come out wrong.

These tests test the tests: a mask that could go without anyone noticing is either needless or not covered. Without a
mutation, the functions pass: `test_stream.py::test_values`.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import pytest
from stream_functions import CASES
from streaming_verifier import check_gradients, check_values

from jaxrnn.signal import scans
from jaxrnn.streaming import plan
from jaxrnn.streaming.dimensions import Timeline
from jaxrnn.streaming.facts import Collected
from jaxrnn.streaming.histories import History
from jaxrnn.streaming.instants import Instant
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.plan import Plan
from jaxrnn.streaming.rules import elementwise, recurrence
from jaxrnn.streaming.rules import time as time_rules
from jaxrnn.streaming.rules.control import Template

pytestmark = pytest.mark.thorough


def always_exists(original):
    return lambda run, timeline, delay: True


def exists_before_the_start(original):
    def exists(run, timeline, delay):
        end = run.now.end(timeline)
        return True if end is None else jnp.asarray(run.now.indices(timeline, delay) < end)

    return exists


def exists_behind_the_end(original):
    def exists(run, timeline, delay):
        return jnp.asarray(run.now.indices(timeline, delay) >= 0)

    return exists


def never_ends(original):
    return lambda now, timeline: None


def one_unit_of_warm_up(original):
    return lambda clock, notes, units, count, *more: original(
        clock, notes, units, -1 if isinstance(count, int) else count, *more
    )


def never_certain(original):
    def init(timeline, *arguments):
        original(timeline, *arguments)
        timeline.certain = -(10**6)

    return init


def one_unit_less(original):
    return lambda self, tail: max(1, original(self, tail) - 1)


def stops_counting_early(original):
    def wait_for(notes, timeline, frames):
        original(notes, timeline, frames)
        notes.facts = dataclasses.replace(notes.facts, horizon=max(0, notes.facts.horizon - 1))

    return wait_for


def no_fill(original):
    return lambda run, chunk, value: chunk


def history_of_nothing(original):
    """Buffers begin with placeholders, even if pads lie in front of the first frame."""
    return lambda history, run, kind, frames, place, start, growth: original(
        history, run, kind, frames, place, run.placeholder.of(frames.dtype), growth
    )


def first_frame_late(original):
    return lambda now, timeline, delay: original(now, timeline, delay) + 1


def keeps_nothing(original):
    return lambda run, name, value, *_: original(run, name, (run.begun if run.state is None else run.state)[name])


def shared_by_lineage(original):
    """Delay buffers told apart by what is in the array alone, which slices of it share at other delays."""
    first = {}

    def delayed(run, chunk, delay):
        if chunk.delay is None or chunk.delay >= delay:
            return original(run, chunk, delay)
        _, made = first.setdefault((id(run), chunk.lineage, delay), (run, original(run, chunk, delay)))
        return dataclasses.replace(chunk, array=made.array, delay=delay, lineage=made.lineage)

    return delayed


def facts_of_the_first(original):
    """A buffer that is shared with all that was known of the chunk that asked for it first."""
    first = {}

    def delayed(run, chunk, delay):
        if chunk.delay is None or chunk.delay >= delay:
            return original(run, chunk, delay)
        key = (run, chunk.lineage, chunk.delay, delay)
        return first.setdefault(tuple(map(id, key[:2])) + key[2:], (key, original(run, chunk, delay)))[1]

    return delayed


def lineage_of_the_first(original):
    """What a loop makes of its carry stands for what the carry was at first."""
    return lambda template, array, axis=0: (
        original(template, array, axis)
        if template.chunk is None
        else dataclasses.replace(template.chunk, array=array, axis=template.chunk.axis + axis)
    )


def never_waits(original):
    return lambda run, values, timeline: min(0, original(run, values, timeline))


def starts_anew(original):
    return lambda step, carry, *arguments: original(step, [jnp.array(False), *carry[1:]], *arguments)


def outputs_need_themselves(original):
    return lambda equations, targets: []


#: By mutation: what it replaces, with what, and functions of which at least one must come out wrong.
VALUES = {
    "every frame exists": (Pass, "exists", always_exists, ["many pads into a recurrence"]),
    "frames exist before the first": (Pass, "exists", exists_before_the_start, ["look-ahead", "recurrence on logs"]),
    "frames exist behind the last": (Pass, "exists", exists_behind_the_end, ["LSTM and its final state"]),
    "the stream never ends": (Instant, "end", never_ends, ["joined with constants", "known at the end"]),
    "a warm-up of one unit": (plan, "Instant", one_unit_of_warm_up, ["front pad into a recurrence"]),
    "frames handed out before they are certain": (Timeline, "__init__", never_certain, ["cut, then padded"]),
    "a flush one unit short": (Plan, "rest", one_unit_less, ["look-ahead", "many pads"]),
    "counting stops too early": (Collected, "wait_for", stops_counting_early, ["look-ahead", "recurrence on logs"]),
    "nothing is filled": (Pass, "fill", no_fill, ["causal", "known at the end"]),
    "buffers begin with placeholders": (History, "__init__", history_of_nothing, ["causal"]),
    "chunks begin a frame late": (Instant, "start", first_frame_late, ["positions", "many pads into a recurrence"]),
    "state is not carried on": (Pass, "store", keeps_nothing, ["recurrence"]),
    "delay buffers mixed up": (Pass, "delayed", shared_by_lineage, ["slices of one buffer"]),
    "facts shared with a buffer": (Pass, "delayed", facts_of_the_first, ["one buffer, frames of two lengths"]),
    "facts shared with a buffer, refused": (
        Pass,
        "delayed",
        facts_of_the_first,
        ["one buffer, a stream and its differences"],
    ),
    "a carry keeps its lineage": (Template, "with_array", lineage_of_the_first, ["a loop beside what it began with"]),
    "a carry keeps on counting": (Template, "with_array", lineage_of_the_first, ["a loop that counts"]),
    "values used before they are known": (elementwise, "earliest_delay", never_waits, ["beside the first frames"]),
    "an associative scan starts anew": (recurrence, "associative", starts_anew, ["linear recurrence"]),
    "an associative scan carries too little": (scans, "needed", outputs_need_themselves, ["running softmax"]),
    "slices begin at frame 0": (time_rules, "constant_value", lambda _: lambda start, size: 0, ["first frames cut"]),
}


def fails(name):
    case = CASES[name]
    try:
        check_values(case.function, (20, 3), **{**case.options, "tailless": True})
    except Exception:  # wrong values, wrong lengths, or an error: all are noticed
        return True
    return False


@pytest.mark.nightly
@pytest.mark.parametrize("mutation", VALUES)
def test_a_mutation_is_noticed(mutation, monkeypatch):
    owner, attribute, mutate, functions = VALUES[mutation]
    monkeypatch.setattr(owner, attribute, mutate(getattr(owner, attribute)))
    assert any(map(fails, functions)), f"{mutation}: nothing noticed"


def test_gradients_notice_harmful_frames(monkeypatch):
    """Without harmless values in frames that do not exist, gradients become NaN."""
    monkeypatch.setattr(Pass, "harmless", lambda run, value, replacement=None: value)
    with pytest.raises(AssertionError):
        check_gradients(CASES["log of what may be absent"].function, (20, 3))
