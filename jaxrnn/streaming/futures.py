"""Bounded futures: an offline function as another function of whole recordings, which streams.

Two sentences define the result. An operation that needs all later frames sees the frames up to `future` after the last
frame of its block, as if the recording ended there. An operation that needs all earlier pairs of frames sees `past` of
them. The canonical program gets other functions in place of these operations, in the vocabulary that `stream` knows:

- A reversed loop runs in windows: for each block, the frames of the block and `future` frames after it, backwards
  (Zhang et al. 2016, Xue and Yan 2017, latency-controlled BLSTM).
- A statistic over all of time that frames use, such as the mean of a norm, becomes a statistic for each block (Luo and
  Mesgarani 2019, cumulative layer norm). `stream` itself turns the statistic into a step that adds a frame and a flush
  that returns the statistic as if the recording ended; a loop over frames runs both.
- The scores of an attention to all frames are masked outside of `past` and `future` (Zhang et al. 2020). The analysis
  of `stream` finds this attention, as for the argument `past` of `stream`.

The plan of the stream of the result proves that no operation needs all later frames.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr

from jaxrnn.cells.forms import Types
from jaxrnn.errors import InputError, is_count
from jaxrnn.jaxprs.canonical import rewritten
from jaxrnn.jaxprs.equations import evaluate
from jaxrnn.steps.stepper import NO_NOTES
from jaxrnn.streaming.bounding import BoundedPlace, Bounding, Futures, unwrapped
from jaxrnn.streaming.dimensions import SYMBOL, is_symbolic, value_of
from jaxrnn.streaming.rewriting import at_sizes, bind_in_place, with_time_apart
from jaxrnn.streaming.statistics import Analysis
from jaxrnn.streaming.transform import TracedProgram, bounded_plan, offline_program


def bounded(
    function: Callable[..., Any],
    example: Any,
    *,
    axes: Any,
    params: Any = None,
    future: int | Mapping[str, int] = 0,
    past: int | None = None,
    block: int | None = None,
    multiple: int = 1,
    constraints: Sequence[str] = (),
    substitute: bool = False,
) -> Bounded:
    """Bound the future of an offline function, so that the function streams.

    The result is a function of whole recordings with the same arguments, for `jax.jit`, `jax.grad`, `jax.vmap`,
    `stream` and training. An operation that needs all later frames sees the frames up to `future` after the last frame
    of its block, as if the recording ended there: a backward recurrence, and a statistic over all of time that frames
    use, such as the mean of a norm. An attention to all frames sees `past` frames before the block of the query, too.
    For `future` and `past` at least as long as a recording, the result equals the function.

    Example::

        def centred(x):  # about the mean of the whole recording
            return x - x.mean(0)

        live = jaxrnn.bounded(centred, jnp.zeros((8, 2)), axes=0, future=2)
        streamed = jaxrnn.stream(live, jnp.zeros((8, 2)), axes=0, pulse=4)

    Args:
        function: as in `stream`.
        example: as in `stream`.
        axes: as in `stream`.
        params: as in `stream`.
        future: frames after a block, in frames of each operation; or a dict of frames by the start of the name of an
            ONNX node or scope, with the default under ``""``. Look-aheads add over layers.
        past: frames before a block that attention to all frames, or to all earlier frames, sees.
        block: frames that share their end; by default 1, and for recurrences `future`, so that each frame is computed
            twice.
        multiple: as in `stream`.
        constraints: as in `stream`.
        substitute: as in `stream`.

    Raises:
        StreamError: an operation needs all of time in a way that cannot be bounded, or `stream` would refuse the result
            for another reason; the error names the place.
        InputError: an argument is not a number of frames.
    """
    given = dict(future) if isinstance(future, Mapping) else {"": future}
    for name, frames in {**given, "past": past or 0}.items():
        if not is_count(frames):
            raise InputError(f"the frames of {name or 'future'!r} must be a whole number from 0 on, not {frames!r}")
    if block is not None and not is_count(block, 1):
        raise InputError(f"block must be a whole number of frames from 1 on, not {block!r}")
    options = {"axes": axes, "params": params, "multiple": multiple, "constraints": constraints}
    options["substitute"] = substitute
    limits = Futures({"": 0, **given}, past, block)
    return Bounded(function, example, limits, options, takes_params=params is not None)


class Bounded:
    """A function with bounded futures, called like the function that was bounded.

    Attributes:
        places: the operations that were changed; empty if the function needed no bound.
    """

    places: tuple[BoundedPlace, ...]

    def __init__(self, function: Any, example: Any, limits: Futures, options: Mapping[str, Any], *, takes_params: bool):
        structure = jax.tree.structure(example)
        self.__name__ = f"{getattr(function, '__name__', type(function).__name__)} with bounded futures"
        #: The operators of an ONNX file by scope, and its texts for readers, as the function has them.
        self.operators, self.notes = getattr(function, "operators", None), getattr(function, "notes", NO_NOTES)
        self.output_names = getattr(function, "output_names", None)
        self.length_name = getattr(function, "length_name", SYMBOL)
        self._options, self._takes_params, self._limits = options, takes_params, limits
        self._structure, self._wide, self._traced = structure, Types.here().wide, dict[Any, _Traced]()
        self._compiled = jax.jit(self._evaluate, static_argnums=(0, 1))
        self._function, self._example = function, example
        self.places = self._here.places
        if unused := [name for name in limits.future if name and name not in limits.used]:
            places = ", ".join(dict.fromkeys(each.where for each in self.places)) or "none"
            raise InputError(f"future: no bounded operation is in a scope or node {unused[0]!r}; operations: {places}")

    def __call__(self, *arguments: Any) -> Any:
        """Apply the function to ``(params, x)``, or to ``x`` if it has no parameters."""
        if len(arguments) != 1 + self._takes_params:
            raise InputError(
                f"call the function with {'params and x' if self._takes_params else 'x only'}, as in bounded"
            )
        params, x = arguments if self._takes_params else (None, *arguments)
        if (found := jax.tree.structure(x)) != self._structure:
            raise InputError(f"x must be a tree like the example, {self._structure}, and not {found}")
        with jax.enable_x64(self._wide):
            leaves, program = list(map(jnp.asarray, jax.tree.leaves(x))), self._here.program
        frames = _frames_in(leaves, program)
        if not is_symbolic(frames):
            program.lengths.check(self.__name__, frames, 1, self.length_name)
        for leaf, each in zip(leaves, program.leaves, strict=True):
            if leaf.dtype != each.dtype or any(
                str(here) != str(there) for here, there in zip(leaf.shape, each.frames(frames), strict=True)
            ):
                raise InputError(
                    f"{each.name} must be {each.dtype.name}{list(each.frames(frames))}, as in the example, and not "
                    f"{leaf.dtype.name}{list(leaf.shape)}"
                )
        evaluate_ = self._evaluate if is_symbolic(frames) else self._compiled
        results = evaluate_(Types.here(), frames, [*jax.tree.leaves(params), *leaves])
        return jax.tree.unflatten(program.outputs, results)

    def _evaluate(self, types: Types, frames: Any, arrays: Sequence[Any]) -> list[Any]:
        """Evaluate the program; `types` is a part of the key of the compiled function."""
        with dataclasses.replace(types, wide=self._wide).in_force():
            size = functools.partial(value_of, length=frames)
            if is_symbolic(frames):
                return evaluate(self._here.closed, arrays, functools.partial(bind_in_place, size))
            # In an empty recording is nothing to bound, and no last frame.
            return at_sizes(self._here.closed if frames else self._here.program.closed, arrays, size)

    @property
    def _here(self) -> _Traced:
        """The program in the current compute type."""
        types = dataclasses.replace(Types.here(), wide=self._wide, plain=False)
        if types not in self._traced:
            with types.in_force():
                self._traced[types] = self._bounded()
        return self._traced[types]

    def _bounded(self) -> _Traced:
        """Trace the function, bound the futures, and refuse what the stream of the result would refuse."""
        program = offline_program(self._function, self._example, **self._options)
        analysis = Analysis(with_time_apart(rewritten(program.closed, unwrapped)))
        works: list[Bounding] = []

        def live(*arguments: Any) -> Any:
            params, x = arguments if self._takes_params else (None, *arguments)
            arrays = [*jax.tree.leaves(params), *jax.tree.leaves(x)]
            frames = _frames_in(jax.tree.leaves(x), program)
            size = functools.partial(value_of, length=frames)
            if not is_symbolic(frames) and frames == 0:
                return jax.tree.unflatten(program.outputs, at_sizes(program.closed, arrays, size))
            works.append(Bounding(analysis, self._limits, size))
            return jax.tree.unflatten(program.outputs, works[-1].run(*arrays))

        live.__name__ = self.__name__
        options = {name: each for name, each in self._options.items() if name != "substitute"}  # the program is traced
        plan = bounded_plan(live, self._example, **options, bands=self._limits.band_of)
        places = [*works[-1].places, *map(self._limits.place_of, plan.masks)]
        return _Traced(program, ClosedJaxpr(plan.closed.jaxpr, plan.closed.consts), tuple(places))

    def table(self) -> str:
        """Return the changed operations as a table."""
        if not self.places:
            return "nothing to bound: no operation needs all later frames"
        counts = collections.Counter(self.places)
        rows = [
            ("operation", "became", "look-ahead"),
            *(
                (f"{count} times {each.where}" if count > 1 else each.where, each.became, str(each.look_ahead))
                for each, count in counts.items()
            ),
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        return "\n".join(
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
        )


def _frames_in(leaves: Sequence[Any], program: TracedProgram) -> Any:
    """Return the number of frames of an input, in frames of the program."""
    pairs = zip(leaves, program.leaves, strict=True)
    return next(leaf.shape[each.axis] // each.times for leaf, each in pairs if each.axis is not None)


class _Traced(NamedTuple):
    """A program, and the program with bounded futures, both of arrays with a symbolic length."""

    program: TracedProgram
    closed: Any
    places: tuple[BoundedPlace, ...]
