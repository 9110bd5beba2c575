"""Programs that need all frames, with bounds drawn at random: three properties of `jaxrnn.bounded`.

- Limit: for bounds longer than the recording, the result equals the function.
- Stream: the stream of the result equals the result, in pulses of several sizes.
- Definition: each block of a program with a single such operation equals the function on what the block may see.

All numbers are float64, and programs are smooth: rounding then never decides a comparison.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any
from unittest import mock

import jax
import numpy as np
from quick_compiling import QUICK

import jaxrnn
from jaxrnn import StreamError
from jaxrnn.streaming import transform
from jaxrnn.streaming.checking import POISON
from stream_fuzzing.frames import Line, alike
from stream_fuzzing.trial import Outcome, cuts_of, everything, joined_outputs, reason_of, takes_nothing
from stream_fuzzing.writing import INPUTS, Program, Writer

#: More frames than any recording has.
WHOLE = 64


def of_all(w: Writer) -> Line:
    """An operation that needs all later frames."""
    v = w.pick("f")
    if v is None:
        return None
    x, seed = f"small({v.in_order})", w.draw.randrange(9)
    forms = [f"remembered({x}, True)[1]", f"turned({x}, {seed})", f"jnp.flip(remembered(jnp.flip({x}, 0))[1], 0)"]
    forms += [f"lax.cum{kind}({x}, 0, reverse=True) / 9" for kind in ("sum", "max", "logsumexp")]
    forms += [f"jnp.flip(lax.cumsum(jnp.flip({x}, 0)), 0) / 9", f"normed({x})", f"normed({x}, None)", f"normed({x})"]
    forms += [f"jnp.flip(normed(jnp.flip({x}, 0)) + remembered(jnp.flip({x}, 0))[1], 0)"]
    forms += [f"{x} - {x}.mean(0)", f"{x} / (1 + jnp.abs({x}).max(0))", f"{x} - jax.nn.logsumexp({x}, 0)"]
    forms += [f"{x} + remembered({x})[0]", f"gated({x}, {seed})", f"{x} * jax.nn.softmax({x}, 0)", f"{x} - {x}[-1]"]
    forms += [f"{x} - (jax.nn.softmax({x}, 0) * {x}).sum(0)", f"correlated({x}, {seed})"]
    forms += [f"seen_by_all({x}, {seed}, {w.draw.randint(1, 2)}, {mask!r})" for mask in ("all", "all", "frames")]
    outer, inner = w.draw.choice(["scan", "cond", "checkpoint", "rule"]), w.draw.choice(["norm", "back", "all"])
    return w.draw.choice([*forms, *[f"in_layers({x}, {seed}, {f'{outer}/{inner}'!r})"] * 3]), 40


def smooth(w: Writer) -> Line:
    """Work on single frames."""
    v = w.pick("f")
    if v is None:
        return None
    x = v.in_order
    forms = [f"jnp.tanh({x})", f"jax.nn.relu({x}) + 0.1 * {x}", f"mixed({x}, {w.draw.randrange(9)})", f"-{x}"]
    return w.draw.choice(forms), 40


def joined(w: Writer) -> Line:
    pair = w.pair("f")
    texts = pair and alike(w, *pair)
    return (w.draw.choice(["{} + {}", "{} - {}", "0.2 * {} * {}"]).format(*texts[:2]), 40) if texts else None


def earlier(w: Writer) -> Line:
    """Work on earlier frames."""
    v = w.pick("f")
    if v is None:
        return None
    forms = [f"remembered({v.in_order})[1]", f"before({v.in_order}, 1)", f"lax.cummax({v.in_order}, 0)"]
    return w.draw.choice([*forms, f"seen_by_all({v.in_order}, 1, 1, 'causal')"]), 40


def moved(w: Writer) -> Line:
    """Work on later frames, and on other rates."""
    v = w.pick("f")
    if v is None:
        return None
    x = v.in_order
    forms = [f"{x}[1:]", f"ahead({x}, 1)", f"{x}[::2]", f"jnp.repeat({x}, 2, axis=0)"]
    return w.draw.choice([*forms, f"pool({x}, lax.max, 3, 1, (1, 1))"]), 40


@dataclass(frozen=True)
class Bounds:
    """The arguments of `bounded`; a program with a single operation is compared with the definition, too."""

    future: int
    past: int
    block: int | None
    single: bool

    def apply(self, program: Program, **changed: Any) -> Any:
        """Return the program with bounds."""
        options = {"future": self.future, "past": self.past, "block": self.block, **changed}
        return jaxrnn.bounded(program.function(), inputs(8), axes=0, constraints=program.constraints, **options)


def program_of(seed: int, number: int) -> tuple[Program, Bounds]:
    """Return a program with bounds; the same for the same numbers."""
    draw = random.Random(f"offline/{seed}/{number}")
    single = draw.random() < 0.3
    bounds = Bounds(draw.choice([0, 1, 2, 5, 16]), draw.choice([1, 4, 9]), draw.choice([None, 1, 4, 7]), single)
    writer = Writer(draw, 1 if single else 6)
    writer.values.pop()  # whole numbers
    if single:
        for kinds in ([earlier, smooth, joined], [of_all], [smooth]):
            for kind in draw.sample(kinds, draw.randint(int(kinds == [of_all]), 1)):
                if (line := kind(writer)) is not None:
                    writer.write(*line)
                    writer.values = writer.values[-1:]  # a chain
        return Program(tuple(writer.lines), (writer.values[-1].name,), writer.least), bounds
    kinds = {of_all: 8, smooth: 4, joined: 5, earlier: 2, moved: 2}
    wanted = draw.randint(2, 6)
    for _ in range(40):
        (kind,) = draw.choices(list(kinds), list(kinds.values()))
        if (line := kind(writer)) is not None:
            writer.write(*line)
        if len(writer.lines) == wanted:
            break
    return writer.finish(), bounds


def inputs(frames: int) -> dict[str, np.ndarray]:
    """Return a recording of float64 numbers."""
    rng = np.random.default_rng(frames)
    return {name: rng.normal(size=(frames, *aval.shape[1:])) for name, aval in INPUTS.items()}


def _differs(found: Any, expected: Any) -> bool:
    return found.shape != expected.shape or not np.allclose(found, expected, 1e-7, 1e-7)


def run(program: Program, bounds: Bounds) -> Outcome:
    """Bound a program, stream the result, and compare."""
    try:
        with mock.patch.object(transform, "PLACEHOLDER", POISON):
            live, far = bounds.apply(program), bounds.apply(program, future=WHOLE, past=WHOLE)
    except StreamError as error:
        return Outcome("refused", reason_of(error))
    with mock.patch.object(transform, "PLACEHOLDER", POISON):
        streamed = jaxrnn.stream(live, inputs(8), axes=0, constraints=program.constraints)
    function, least = program.function(), max(program.least, 1)
    cuts = cuts_of(least, streamed.smallest_pulse, len(program.source), takes_nothing(program, streamed))
    lengths = sorted({least, least + 4, 13})

    def everywhere(x: Any) -> Any:
        parts = {total: jax.tree.map(lambda a, n=total: a[:n], x) for total in lengths}
        return [(far(part), function(part)) for part in parts.values()], everything(live, streamed, cuts)(x)

    compiled = jax.jit(everywhere).lower(inputs(max(13, *(cut.total for cut in cuts)))).compile(QUICK)
    limits, streams = jax.device_get(compiled(inputs(max(13, *(cut.total for cut in cuts)))))
    for total, (found, expected) in zip(lengths, limits, strict=True):
        if any(map(_differs, found, expected)):
            return Outcome("wrong", f"limit, {total} frames")
    for cut, place, found, expected in joined_outputs(streamed, cuts, *streams):
        if _differs(found, expected):
            return Outcome("wrong", f"stream, output {place}, {cut}: {np.abs(found - expected).max()}")
    if bounds.single and len(live.places) == 1 and "attention" not in live.places[0].became:
        return _as_defined(function, live, bounds, 12)
    return Outcome("exact", f"{len(live.places)} places")


def _as_defined(function: Any, live: Any, bounds: Bounds, frames: int) -> Outcome:
    became, x = live.places[0].became, inputs(frames)
    block = bounds.block or (max(1, bounds.future) if became.startswith("backwards") else 1)
    (found,) = live(x)
    if found.shape[:1] != (frames,):
        return Outcome("exact", "1 place")
    for start in range(0, frames, block):
        end = min(start + block + bounds.future, frames)
        (seen,) = function(jax.tree.map(lambda a, end=end: a[:end], x))
        if _differs(np.asarray(found)[start : start + block], np.asarray(seen)[start : min(start + block, frames)]):
            return Outcome("wrong", f"definition, block from {start}, seen to {end}")
    return Outcome("exact", "1 place, as defined")


def try_one(case: tuple[Program, Bounds]) -> Outcome:
    """Try a program with bounds."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        try:
            return run(*case)
        except Exception as error:  # whatever it is, it should not be
            return Outcome("failed", f"{type(error).__name__}: {str(error)[:300]}")
