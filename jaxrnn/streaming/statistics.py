"""Statistics over all of time that frames use, as streams: for `jaxrnn.bounded`.

A statistic is a value without time that depends on all frames, such as a mean, a variance, or the final state of a
recurrence. `stream` turns its program into a step that adds a frame, and a flush that returns the statistic as if the
recording ended. A loop over frames runs both, and so returns the statistic of all frames up to each frame.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn, Var
from jax.extend.core.primitives import dot_general_p, gather_p, pad_p, reshape_p, scan_p, slice_p

from jaxrnn._jax import varying
from jaxrnn.cells.forms import Types
from jaxrnn.errors import StreamError
from jaxrnn.jaxprs.equations import inner_jaxprs, read_by, run, shape_of, type_of, variables, walk
from jaxrnn.jaxprs.primitives import entry_of
from jaxrnn.streaming.diagnostics import describe_equation
from jaxrnn.streaming.dimensions import as_multiple, is_symbolic, symbolic_axes
from jaxrnn.streaming.rewriting import bind_at_sizes
from jaxrnn.streaming.transform import stream_in_types


def has_time(equation: JaxprEqn) -> bool:
    """Return True if a result of an equation has a time axis."""
    return any(symbolic_axes(shape_of(each)) for each in equation.outvars)


def runs_over_time(equation: JaxprEqn) -> bool:
    """Return True for a loop over frames, and for a running sum, product or extreme along time."""
    if entry_of(equation).kind == "cumulative":
        return equation.params["axis"] in symbolic_axes(shape_of(equation.outvars[0]))
    return equation.primitive is scan_p and is_symbolic(equation.params["length"])


def keeps_frames(equation: JaxprEqn, axis: int) -> bool:
    """Return True if an equation works on single frames along an axis, and time stays an axis.

    Such an equation commutes with a flip of time.
    """
    params, entry, old = equation.params, entry_of(equation), list(map(shape_of, equation.invars))
    over_time = [shape for shape in old if symbolic_axes(shape)]
    new = [shape_of(each) for each in equation.outvars]
    if any(len(symbolic_axes(shape)) != 1 for shape in (*over_time, *new)):
        return False
    if len({str(shape[symbolic_axes(shape)[0]]) for shape in (*over_time, *new)}) != 1:
        return False
    if entry.kind == "elementwise" or (is_call(equation) and is_of_elements(equation)):
        return True
    if entry.kind == "reduction" or "axes" in params:
        return axis not in params.get("axes", (axis,))
    if equation.primitive is dot_general_p:
        (first, second), _ = params["dimension_numbers"]
        return len(over_time) == 1 and axis not in (first if symbolic_axes(old[0]) else second)
    along = params.get("axis", params.get("dimension"))  # of a part, a join, a running sum or an order
    if along is not None and entry.kind in ("movement", "cumulative", "order"):
        return along != axis
    if equation.primitive is gather_p:  # elements of other axes, at the same places in all frames
        numbers = params["dimension_numbers"]
        return bool(symbolic_axes(old[0])) and axis not in (*numbers.start_index_map, *numbers.operand_batching_dims)
    if equation.primitive is pad_p:
        return params["padding_config"][axis] == (0, 0, 0)
    if equation.primitive is reshape_p:  # the same elements before and behind time
        (place,) = symbolic_axes(new[0])
        return math.prod(old[0][:axis]) == math.prod(new[0][:place])
    return entry.ordered


def is_call(equation: JaxprEqn) -> bool:
    """Return True for a call of a function with a derivative rule, or of a checkpoint."""
    return entry_of(equation).kind in ("custom rule", "checkpoint")


def is_of_elements(equation: JaxprEqn) -> bool:
    """Return True for a call whose equations all work on elements."""
    equations = (each for inner in inner_jaxprs(equation) for each in walk(inner))
    return all(entry_of(each).kind == "elementwise" for each in equations)


class Analysis:
    """The statistics of a program: values without time that depend on frames, and that frames use.

    Attributes:
        equations: the equations that the bounded program evaluates, in order.
        statistics: the statistics that an equation with a time axis reads.
    """

    def __init__(self, closed: ClosedJaxpr):
        self.closed, self.jaxpr = closed, closed.jaxpr
        jaxpr = self.jaxpr
        self.made: dict[Var, JaxprEqn] = {each: equation for equation in jaxpr.eqns for each in equation.outvars}
        #: Variables that depend on frames, and on the length.
        self.from_frames = {each for each in jaxpr.invars if symbolic_axes(shape_of(each))}
        self.from_length: set[Var] = set()
        #: Variables that depend on no argument and no length.
        self.constant = set(jaxpr.constvars)
        #: Variables without time that depend on all frames, and how often frames between the input and a variable use
        #: such a variable.
        self.final: set[Var] = set()
        self.level: collections.Counter[Var] = collections.Counter()
        for equation in jaxpr.eqns:
            operands, is_over_time = set(variables(equation.invars)), has_time(equation)
            if operands <= self.constant and not is_over_time and entry_of(equation).kind != "size":
                self.constant.update(equation.outvars)
            if operands & self.from_frames:
                self.from_frames.update(equation.outvars)
                if operands & self.final or not self._reads_fixed_frames(equation):
                    self.final.update(each for each in equation.outvars if not symbolic_axes(shape_of(each)))
            if operands & self.from_length or entry_of(equation).kind == "size" or is_over_time:
                self.from_length.update(equation.outvars)
            level = max((self.level[each] + (is_over_time and each in self.final) for each in operands), default=0)
            self.level.update(dict.fromkeys(equation.outvars, level))
        #: Variables that frames use, and not only statistics.
        self.used_by_frames = self._used_by_frames()
        self.statistics: dict[Var, Statistic] = {}
        live = self._live()
        self._merge()
        self.equations = [equation for equation in jaxpr.eqns if equation in live]
        self.read = {*read_by(self.equations), *variables(jaxpr.outvars)}

    def _reads_fixed_frames(self, equation: JaxprEqn) -> bool:
        """Return True if results without time depend on a fixed number of frames from the start, or on no frames."""
        if equation.primitive is slice_p:
            return not any(map(is_symbolic, equation.params["limit_indices"]))
        if entry_of(equation).moved == slice(1):  # the other operands are positions
            return self.constant.issuperset(variables(equation.invars[1:]))
        # The carry of a reversed loop is the carry after the first block.
        is_reversed = runs_over_time(equation) and equation.params["reverse"]
        return is_reversed or not any(symbolic_axes(shape_of(each)) for each in equation.invars)

    def _used_by_frames(self) -> set[Var]:
        used: set[Var] = set()
        open_ = [each for each in variables(self.jaxpr.outvars) if symbolic_axes(shape_of(each))]
        while open_:
            each = open_.pop()
            if each not in used:
                used.add(each)
                equation = self.made.get(each)
                operands = [] if equation is None else variables(equation.invars)
                open_ += [operand for operand in operands if operand not in self.final]
        return used

    def _live(self) -> set[JaxprEqn]:
        """Return the equations that outputs need; frames need the inputs of a statistic in place of its equations."""
        live: set[JaxprEqn] = set()
        open_ = variables(self.jaxpr.outvars)
        while open_:
            equation = self.made.get(open_.pop())
            if equation is None or equation in live:
                continue
            live.add(equation)
            for each in variables(equation.invars):
                if not (has_time(equation) and each in self.final):
                    open_.append(each)
                elif each not in self.statistics:
                    self.statistics[each] = found = self.statistic(each)
                    open_ += [*found.frames, *found.others]
        return live

    def _merge(self) -> None:
        """Merge the programs of statistics of the same frames, such as the mean and the variance of a norm."""
        together: dict[Any, list[Statistic]] = {}
        for each in self.statistics.values():
            key = frozenset(each.frames), frozenset(each.others), each.ignores_order
            together.setdefault(key, []).append(each)
        for first, *more in together.values():
            if more:
                results = [variable for each in (first, *more) for variable in each.variables]
                needed = {equation for each in (first, *more) for equation in each.equations}
                own = [equation for equation in self.jaxpr.eqns if equation in needed]
                merged = dataclasses.replace(first, variables=results, equations=own)
                self.statistics.update(dict.fromkeys(results, merged))

    def statistic(self, variable: Var) -> Statistic:
        """Return the program of a statistic.

        Values between two statistics belong to the program, as far as the program streams. Otherwise values of a low
        level are bounded frames like others.
        """
        for level in range(self.level[variable]):
            try:
                found = self._statistic(variable, level)
                found.streamed  # noqa: B018, an error if the program does not stream
                return found
            except StreamError:
                continue
        return self._statistic(variable, self.level[variable])

    def _statistic(self, variable: Var, level: int) -> Statistic:
        """Return the program of a statistic of frames up to a level."""
        frames: list[Var] = []
        others: list[Var] = []
        needed: set[JaxprEqn] = set()
        seen: set[Var] = set()

        def visit(each: Var, about: bool) -> None:
            """Include the equation of a variable, or make the variable an input; `about` a statistic."""
            if each in seen:
                return
            seen.add(each)
            equation, is_over_time = self.made.get(each), bool(symbolic_axes(shape_of(each)))
            if equation is None and is_over_time:
                frames.append(each)
                return
            if each in self.jaxpr.constvars:
                return
            if equation is None or each not in self.from_frames | self.from_length | self.constant:
                others.append(each)
                return
            if is_over_time and each in self.from_frames:
                inside = self.level[each] > level and about and self._is_about(equation, each)
                if not inside:
                    frames.append(each)
                    return
            needed.add(equation)
            for operand in variables(equation.invars):
                visit(operand, True)

        visit(variable, True)
        own = [equation for equation in self.jaxpr.eqns if equation in needed]
        constants = dict(zip(self.jaxpr.constvars, self.closed.consts, strict=True))
        return Statistic((variable,), own, frames, others, constants, self.made[variable])

    def _is_about(self, equation: JaxprEqn, result: Var) -> bool:
        """Return True for an equation on elements between two statistics about the same frames.

        Examples are the distance from the mean in a variance, and the exponentials in a logsumexp. The result of a
        norm, which frames use, is not between two statistics of this norm.
        """
        entry = entry_of(equation)
        if entry.kind not in ("elementwise", "movement"):
            return False
        is_sum = bool(entry.signs) or entry.arithmetic == "convert"
        return result not in self.used_by_frames or entry.kind == "movement" or is_sum


@dataclass(frozen=True, eq=False)
class Statistic:
    """The program of statistics of the same frames, on these frames and on values that are constant in time."""

    variables: Sequence[Var]
    equations: Sequence[JaxprEqn]
    frames: Sequence[Var]
    others: Sequence[Var]
    constants: Mapping[Var, Any]
    origin: JaxprEqn

    @property
    def axes(self) -> list[int]:
        """The time axis of each array of frames."""
        return [symbolic_axes(shape_of(each))[0] for each in self.frames]

    @property
    def ignores_order(self) -> bool:
        """True if the statistic is the same for frames in another order."""
        for each in self.equations:
            axes = [axis for atom in each.invars for axis in symbolic_axes(shape_of(atom))[:1]]
            entry = entry_of(each)
            is_sum = entry.kind == "reduction" and bool(entry.monoid)
            if axes and not is_sum and not keeps_frames(each, axes[0]):
                return False
        return True

    @functools.cached_property
    def streamed(self) -> Any:
        """The statistic as a stream of single frames."""
        sizes = {str(shape_of(each)[axis]) for each, axis in zip(self.frames, self.axes, strict=True)}
        if len(sizes) != 1 or any(len(symbolic_axes(shape_of(each))) != 1 for each in self.frames):
            self.refuse("it combines frames of several lengths")
        (size,) = sizes

        def function(others: Any, frames: Any) -> Any:
            count = frames[0].shape[self.axes[0]]

            def at(spelling: Any) -> Any:
                if not is_symbolic(spelling):
                    return spelling
                if (found := as_multiple(spelling, size)) is None:
                    return self.refuse(f"it needs the length {spelling} beside {size}")
                factor, offset = found
                return factor * count + offset

            environment = {**self.constants, **dict(zip((*self.others, *self.frames), (*others, *frames), strict=True))}
            run(self.equations, environment, functools.partial(bind_at_sizes, at))
            return [environment[each] for each in self.variables]

        # Two frames for each length, so that the length of the statistic is a symbol of its own.
        frames = [
            jax.ShapeDtypeStruct([2 if place == axis else each for place, each in enumerate(shape_of(v))], type_of(v))
            for v, axis in zip(self.frames, self.axes, strict=True)
        ]
        others = [jax.ShapeDtypeStruct(shape_of(each), type_of(each)) for each in self.others]
        options = {"multiple": 1, "constraints": (), "past": None, "pulse": 1, "types": Types.here(), "compares": False}
        try:
            return stream_in_types(function, frames, axes=self.axes, params=others, **options)
        except StreamError as error:
            raise StreamError(f"{describe_equation((self.origin,))} cannot be bounded: {error}") from error

    def refuse(self, why: str) -> Any:
        """Refuse the statistic."""
        raise StreamError(f"{describe_equation((self.origin,))} cannot be bounded: {why}")

    def of_each(self, others: Sequence[Any], frames: Sequence[Any]) -> list[Any]:
        """Return the statistics of all frames up to each frame, each ``[time, ...]``."""
        streamed = self.streamed

        def step(state: Any, frame: Sequence[Any]) -> tuple[Any, Any]:
            pulse = [jnp.expand_dims(x, axis) for x, axis in zip(frame, self.axes, strict=True)]
            _, state = streamed.step(list(others), state, pulse)
            return state, streamed.flush(list(others), state)[0]

        moved = [jnp.moveaxis(x, axis, 0) for x, axis in zip(frames, self.axes, strict=True)]
        return varying.scan(step, streamed.init(params=list(others)), moved)[1]
