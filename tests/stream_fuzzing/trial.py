"""One program: streamed in pulses of several sizes, held against the program itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from quick_compiling import QUICK

from jaxrnn import StreamError
from jaxrnn.streaming import Streamed, stream, transform
from jaxrnn.streaming.checking import POISON
from stream_fuzzing.vocabulary import NARROW
from stream_fuzzing.writing import INPUTS, Program


@dataclass(frozen=True)
class Outcome:
    """What became of a program: exact, refused, wrong, failed or differing, and why."""

    end: str
    why: str = ""

    @property
    def fine(self) -> bool:
        """Whether it is as it should be."""
        return self.end in ("exact", "refused")


def streamed_of(program: Program) -> Streamed:
    """The program as a stream, with poison in frames that do not exist."""
    with mock.patch.object(transform, "PLACEHOLDER", POISON):
        return stream(program.function(), INPUTS, axes=0, pulse=None, constraints=program.constraints)


def recording(frames: int) -> dict[str, np.ndarray]:
    """Whole numbers."""
    rng = np.random.default_rng(frames)
    return {name: rng.integers(-3, 5, (frames, *aval.shape[1:])).astype(aval.dtype) for name, aval in INPUTS.items()}


def reason_of(error: StreamError) -> str:
    """Why something was refused, without what is particular to the program."""
    text = re.sub(r" \((?:node [^()]*|[\w<>.]+:\d+) \([^()]*\)\)", "", str(error).split(";")[0])
    return re.sub(r"-?\d+", "#", re.sub(r"(mod|floordiv|max|min)\([^)]*\)|-?\d*\*?S( [+-] \d+)?", "S", text))[:200]


@dataclass(frozen=True)
class Cut:
    """How a recording is cut: `single` smallest pulses, then `triple` pulses of three, then a flush with the rest."""

    total: int
    single: int
    triple: int

    @property
    def done(self) -> int:
        """Smallest pulses before the flush."""
        return self.single + 3 * self.triple


def cuts_of(least: int, unit: int, place: int, empty: bool, long: int = 20) -> list[Cut]:
    """A short recording and a long one, in pulses of one size and of two, and one without frames."""
    cuts = [Cut(0, 0, 0)] if empty else []
    for total in (least + place % 3, max(long, 5 * unit + 1)):
        units = total // unit
        cuts += [Cut(total, units, 0), Cut(total, min(1, units), max(0, units - 1) // 3)]
        cuts += [Cut(total, max(0, units - 2), 0)]
    return cuts


def takes_nothing(program: Program, streamed: Streamed) -> bool:
    """Whether the program and its stream work on a recording without frames."""
    if not streamed._plan.lengths.allow(np.zeros((), int)):
        return False
    try:
        jax.eval_shape(program.function(), recording(0))
    except Exception:  # of any kind
        return False
    return True


def everything(function: Callable[..., Any], streamed: Streamed, cuts: list[Cut]) -> Callable[..., Any]:
    """A function of one recording that gives, for every cut of its beginning, all that steps and a flush give.

    It is one function so that it is compiled once. The cuts share their steps, and one flush serves all of them.
    """
    unit, longest = streamed.smallest_pulse, max(cut.total for cut in cuts)
    room = 3 * unit
    triples = max(cut.triple for cut in cuts)

    def steps(pulse: Any, state: Any, x: Any, first: int, count: int) -> Any:
        """The states behind pulses, the first one in front, and the outputs of the pulses."""

        def one(state: Any, frames: Any) -> Any:
            outputs, state = pulse.step(None, state, frames)
            return state, (state, outputs)

        size = pulse.pulse
        frames = jax.tree.map(lambda a: a[first : first + count * size].reshape(count, size, *a.shape[1:]), x)
        _, (states, outputs) = lax.scan(one, state, frames)
        return jax.tree.map(lambda s, later: jnp.concatenate([s[None], later]), state, states), outputs

    def run(x: Any) -> Any:
        offline = {total: function(jax.tree.map(lambda a, n=total: a[:n], x)) for total in {c.total for c in cuts}}
        states, singles = steps(streamed, streamed.init(), x, 0, longest // unit)
        after = jax.tree.map(lambda s: s[1], states)
        later, tripled = steps(streamed.with_pulse(room), after, x, unit, triples)
        behind = [
            jax.tree.map(lambda s, c=cut: s[c.single], states)
            if not cut.triple
            else jax.tree.map(lambda s, c=cut: s[c.triple], later)
            for cut in cuts
        ]
        tails = [
            jax.tree.map(lambda a, c=cut: jnp.resize(a[c.done * unit : c.total], (room, *a.shape[1:])), x)
            for cut in cuts
        ]
        stacked = [jax.tree.map(lambda *each: jnp.stack(each), *trees) for trees in (behind, tails)]
        valid = np.array([cut.total - cut.done * unit for cut in cuts])
        return offline, singles, tripled, streamed.flush(None, *stacked, valid)

    return run


def run(program: Program) -> Outcome:
    """Stream a program and see."""
    try:
        streamed = streamed_of(program)
    except StreamError as error:
        return Outcome("refused", reason_of(error))
    long = 300 if re.search("|".join(rf"\b{name}\b" for name in NARROW), program.source) else 20
    cuts = cuts_of(program.least, streamed.smallest_pulse, len(program.source), takes_nothing(program, streamed), long)
    whole = recording(max(cut.total for cut in cuts))
    compiled = jax.jit(everything(program.function(), streamed, cuts)).lower(whole).compile(QUICK)
    for cut, place, found, expected in joined_outputs(streamed, cuts, *jax.device_get(compiled(whole))):
        if found.shape != expected.shape or found.dtype != expected.dtype:
            found, expected = (f"{array.dtype}{list(array.shape)}" for array in (found, expected))
        elif _same(found, expected, at_end=streamed.axes[place] is None):
            continue
        return Outcome(
            "wrong", f"output {place}, {cut} in units of {streamed.smallest_pulse}: {found}, but {expected} offline"
        )
    return Outcome("exact")


def joined_outputs(
    streamed: Streamed, cuts: list[Cut], offline: Any, singles: Any, tripled: Any, last: Any
) -> Iterator[tuple[Cut, int, Any, Any]]:
    """Yield each cut and output, the joined frames of the stream, and the frames of the function."""
    flushed, counts = last
    for number, cut in enumerate(cuts):
        for place, expected in enumerate(offline[cut.total]):
            found = flushed[place][number]
            if counts[place] is not None:
                axis, delay = streamed.axes[place], streamed.delay[place]
                pieces = [*singles[place][: cut.single], *tripled[place][: cut.triple]]
                count = counts[place][number]
                pieces.append(np.take(found, range(max(count, 0)), axis))
                joined = np.concatenate(pieces, axis)
                found = np.take(joined, range(delay, joined.shape[axis] + min(count, 0)), axis)
            yield cut, place, found, expected


def _same(found: np.ndarray, expected: np.ndarray, at_end: bool) -> bool:
    """Return True for equal arrays, or for sums of distances from a final value that are only rounded.

    The state has the sums of distances from the mean so far, which is rounded. All results are whole numbers, so a
    wrong result is farther off.
    """
    if at_end and found.dtype == np.float32 and np.allclose(found, expected, 2**-20, 2**-6, equal_nan=True):
        return True
    return np.array_equal(found, expected, equal_nan=found.dtype.kind == "f")


def try_one(program: Program) -> Outcome:
    """Stream a program, and see that the order of its operands and outputs does not matter."""
    try:
        outcome = run(program)
    except Exception as error:  # whatever it is, it should not be
        return Outcome("failed", f"{type(error).__name__}: {error}")
    if not outcome.fine:
        return outcome
    try:
        streamed_of(program.swapped)
        other = Outcome("exact")
    except StreamError as error:
        other = Outcome("refused", reason_of(error))
    except Exception as error:
        return Outcome("failed", f"swapped: {type(error).__name__}: {error}")
    if other.end != outcome.end:
        return Outcome("differs", f"{outcome.end} {outcome.why}, swapped {other.end} {other.why}")
    return outcome
