"""The program of a bounded function: the canonical program, with other functions for operations that need all frames.

`Bounding` evaluates the equations in order. A flip of time stays behind the operations that work on single frames
(`Reversed`), and turns the direction of a loop. A reversed loop runs in windows of a block and the frames after it. A
statistic that frames use becomes the statistic of all frames up to the end that each block sees.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Var
from jax.extend.core.primitives import broadcast_in_dim_p, rev_p, scan_p

from jaxrnn._files.messages import short_repr
from jaxrnn._jax import varying
from jaxrnn._jax.versions import Scan
from jaxrnn.errors import StreamError
from jaxrnn.jaxprs.canonical import called
from jaxrnn.jaxprs.equations import bind, evaluate, inner_jaxprs, read, read_by, run, shape_of, variables
from jaxrnn.jaxprs.primitives import entry_of
from jaxrnn.signal.scans import is_mark, without_mark
from jaxrnn.streaming.diagnostics import Path, describe_equation, node_scope_of
from jaxrnn.streaming.dimensions import out_shape, symbolic_axes
from jaxrnn.streaming.rewriting import bind_at_sizes, bind_in_place, sized
from jaxrnn.streaming.statistics import (
    Analysis,
    has_time,
    is_call,
    is_of_elements,
    keeps_frames,
    runs_over_time,
)
from jaxrnn.streaming.values import Band, Mask

#: The value in frames that do not exist, at which few functions have a singular derivative.
_HARMLESS = 0.5


@short_repr
@dataclass(frozen=True)
class BoundedPlace:
    """An operation that `bounded` has changed.

    Attributes:
        where: the ONNX node, or the line of the user's code.
        became: the operation in its place.
        look_ahead: the largest number of later frames that a frame depends on, in frames of the operation.
    """

    where: str
    became: str
    look_ahead: int


@dataclass(frozen=True)
class Futures:
    """The arguments of `bounded`; `future` has the frames by the start of a name, and the default under ``""``."""

    future: Mapping[str, int]
    past: int | None
    block: int | None
    used: set[str] = field(default_factory=set)  # the names that equations have

    def future_of(self, path: Path) -> int:
        """Return the future of an equation: that of the longest name with which its scope begins."""
        scope = node_scope_of(path)
        name = max((name for name in self.future if scope.startswith(name)), key=len)
        self.used.add(name)
        return self.future[name]

    def band_of(self, path: Path) -> Band:
        """Return the band of the attention at a path."""
        future = self.future_of(path)
        return Band(self.past, future, self.block_of(future))

    def place_of(self, mask: Mask) -> BoundedPlace:
        """Return the place of attention with a band."""
        band = mask.band or Band(None)
        sides = [f"{band.past} frame(s) before"] * (band.past is not None)
        sides += [f"{band.future} after"] * (band.future is not None)
        ahead = 0 if band.future is None else band.block - 1 + band.future
        became = f"attention to {' and '.join(sides)} blocks of {band.block}"
        return BoundedPlace(describe_equation(mask.path), became, ahead)

    def block_of(self, future: int, *, recurrent: bool = False) -> int:
        """Return the frames that share an end; by default, a recurrence computes each frame at most twice."""
        return self.block or (max(1, future) if recurrent else 1)


def unwrapped(equation: JaxprEqn) -> Callable[..., Any] | None:
    """Return the function in a call or custom derivative rule that contains an operation over time, else None."""
    if not is_call(equation) or not _contains_bounds(equation):
        return None
    return lambda *operands: evaluate(called(equation), operands)


def _contains_bounds(equation: JaxprEqn) -> bool:
    """Return True if an operation inside of an equation may need all frames."""
    for inner in inner_jaxprs(equation):
        read = {*read_by(inner.eqns), *variables(inner.outvars)}
        if any(_needs_time(each, read) or _contains_bounds(each) for each in inner.eqns):
            return True
    return False


def _are_read(equation: JaxprEqn) -> list[bool]:
    """Return True for each operand that an equation reads: the body of a loop may not read all of them."""
    if equation.primitive is not scan_p:
        return [True] * len(equation.invars)
    body = equation.params["jaxpr"].jaxpr
    read = {*read_by(body.eqns), *variables(body.outvars)}
    return [each in read for each in body.invars]


def _needs_time(equation: JaxprEqn, read: Collection[Var]) -> bool:
    """Return True for an equation whose result in a frame may need all frames, or that reads frames without time."""
    if equation.primitive is rev_p:
        return any(axis in symbolic_axes(out_shape(equation)) for axis in equation.params["dimensions"])
    if runs_over_time(equation) and equation.params["reverse"]:
        return True
    results = [bool(symbolic_axes(shape_of(each))) for each in equation.outvars if each in read]
    return any(symbolic_axes(shape_of(each)) for each in equation.invars) and not all(results)


@dataclass(frozen=True)
class Reversed:
    """An array with time reversed along an axis; ``array`` is in the order of time, and `path` is that of the flip."""

    array: Any
    axis: int
    path: Path


@dataclass
class Bounding:
    """An evaluation of a bounded program, with sizes for the symbolic sizes."""

    analysis: Analysis
    limits: Futures
    size: Callable[[Any], Any]
    places: list[BoundedPlace] = field(default_factory=list)
    _path: tuple[JaxprEqn, ...] = ()
    _of_frames: dict[Var, Any] = field(default_factory=dict)
    _environment: dict[Any, Any] = field(default_factory=dict)

    def run(self, *arrays: Any) -> list[Any]:
        """Evaluate the program."""
        jaxpr = self.analysis.jaxpr
        self._environment.update(zip(jaxpr.constvars, self.analysis.closed.consts, strict=True))
        self._environment.update(zip(jaxpr.invars, arrays, strict=True))
        for equation in self.analysis.equations:
            for atom in variables(equation.invars):  # statistics come from `_of_each_block`
                if atom in self.analysis.statistics:
                    self._environment.setdefault(atom, None)
            run([equation], self._environment, self.apply)
        return [_in_order(read(atom, self._environment)) for atom in jaxpr.outvars]

    def apply(self, equation: JaxprEqn, operands: list[Any]) -> Sequence[Any]:
        """Evaluate an equation."""
        used = [isinstance(each, Var) and each in self.analysis.statistics for each in equation.invars]
        if any(used) and has_time(equation):
            return self._with_statistics(equation, operands, used)
        if any(isinstance(each, Reversed) for each in operands):
            if is_call(equation) and not is_of_elements(equation):
                outer, self._path = self._path, (*self._path, equation)
                try:
                    return evaluate(called(equation), operands, self.apply)
                finally:
                    self._path = outer
            results = self._reversed(equation, operands)
            if results is not None:
                return results
            operands = list(map(_in_order, operands))
        params = equation.params
        if entry_of(equation).kind == "loop" and not runs_over_time(equation) and _contains_bounds(equation):
            return bind(equation, operands, **{key: self._inside(each, equation) for key, each in params.items()})
        if equation.primitive is rev_p and equation.invars[0] in self.analysis.from_frames:
            axes = [axis for axis in params["dimensions"] if axis in symbolic_axes(out_shape(equation))]
            if len(axes) == 1:
                others = tuple(axis for axis in params["dimensions"] if axis != axes[0])
                x = lax.rev(operands[0], others) if others else operands[0]
                return [Reversed(x, axes[0], (*self._path, equation))]
        if runs_over_time(equation) and params["reverse"]:
            return self._windowed(equation, operands)
        return self._bound(equation, operands)

    def _inside(self, value: Any, equation: JaxprEqn) -> Any:
        """Bound the programs in a parameter of a loop over something else than time, or of a choice."""
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            return tuple(self._inside(each, equation) for each in value)
        if not isinstance(value, ClosedJaxpr):
            return sized(value, self.size)
        work = Bounding(Analysis(value), self.limits, self.size, self.places, (*self._path, equation))
        structs = [
            jax.ShapeDtypeStruct(sized(each.shape, self.size), each.dtype, weak_type=each.weak_type)
            for each in value.in_avals
        ]
        return jax.make_jaxpr(work.run)(*structs)

    # -- flips

    def _reversed(self, equation: JaxprEqn, operands: Sequence[Any]) -> list[Any] | None:
        """Return results with time reversed, in the order of time; None if the equation mixes frames or directions."""
        params, entry = equation.params, entry_of(equation)
        pairs = zip(equation.invars, operands, _are_read(equation), strict=True)
        over_time = [(atom, x) for atom, x, is_read in pairs if is_read and symbolic_axes(shape_of(atom))]
        if not over_time or not all(isinstance(x, Reversed) for _, x in over_time):
            return None
        if any(len(symbolic_axes(shape_of(atom))) > 1 for atom, _ in over_time):
            return None
        plain = [each.array if isinstance(each, Reversed) else each for each in operands]
        axis, path = next((each.axis, each.path) for each in operands if isinstance(each, Reversed))
        if equation.primitive is rev_p:
            others = tuple(each for each in params["dimensions"] if each != axis)
            x = lax.rev(plain[0], others) if others else plain[0]
            return [x if axis in params["dimensions"] else Reversed(x, axis, path)]
        if runs_over_time(equation):
            changed = equation.replace(params={**params, "reverse": not params["reverse"]})
            results = self._windowed(changed, plain) if changed.params["reverse"] else self._bound(changed, plain)
            carries = Scan.of(equation).carry if equation.primitive is scan_p else 0
            return [*results[:carries], *(Reversed(each, axis, path) for each in results[carries:])]
        if entry.kind == "reduction" and axis in params.get("axes", ()) and entry.monoid:
            return self._bound(equation, plain)
        if not keeps_frames(equation, axis):
            return None
        results = self._bound(equation, plain)
        axes = [symbolic_axes(shape_of(each))[0] for each in equation.outvars]
        return [Reversed(x, axis, path) for x, axis in zip(results, axes, strict=True)]

    def _bound(self, equation: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
        return list(bind_in_place(self.size, equation, operands))

    # -- windows

    def _note(self, equation: JaxprEqn, became: str, ahead: int) -> None:
        self.places.append(BoundedPlace(describe_equation((*self._path, equation)), became, ahead))

    def _ends(self, equation: JaxprEqn, *, recurrent: bool = False) -> tuple[int, int]:
        future = self.limits.future_of((*self._path, equation))
        return self.limits.block_of(future, recurrent=recurrent), future

    def _windowed(self, equation: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
        """Run a reversed loop or running sum over each block and the frames after it."""
        block, future = self._ends(equation, recurrent=True)
        self._note(equation, f"backwards over blocks of {block} and {future} later frame(s)", block - 1 + future)
        run_windows = self._windowed_loop if equation.primitive is scan_p else self._windowed_sum
        return run_windows(equation, operands, block, future)

    def _windowed_loop(self, equation: JaxprEqn, operands: Sequence[Any], block: int, future: int) -> list[Any]:
        fixed, carry, xs = Scan.of(equation).split(list(operands))
        count, body = len(carry), equation.params["jaxpr"]
        length = self.size(equation.params["length"])
        exists = windows(jnp.ones(length, bool), False, block, future, length)

        def step(carry: list[Any], frame: Any) -> tuple[list[Any], list[Any]]:
            here, x = frame
            results = evaluate(body, [*fixed, *carry, *x], functools.partial(_bind_unmarked, self.size))
            return [jnp.where(here, *pair) for pair in zip(results[:count], carry, strict=True)], results[count:]

        def of_window(here: Any, xs: Any) -> Any:
            return varying.scan(step, list(carry), (here, xs), reverse=True)

        frames = [windows(x, _HARMLESS, block, future, length) for x in xs]
        last, ys = jax.vmap(of_window)(exists, frames)
        # The carry after frame 0, which few functions read.
        is_read = [each in self.analysis.read for each in equation.outvars]
        firsts = [each[0] if reads else None for each, reads in zip(last, is_read, strict=False)]
        return [*firsts, *(joined(y, block, length) for y in ys)]

    def _windowed_sum(self, equation: JaxprEqn, operands: Sequence[Any], block: int, future: int) -> list[Any]:
        axis, (x,) = equation.params["axis"], operands
        x = jnp.moveaxis(x, axis, 0)
        y = windows(x, _identity(entry_of(equation).monoid, x.dtype), block, future, x.shape[0])
        (y,) = (equation.primitive.bind(y, **{**equation.params, "axis": 1}),)
        return [jnp.moveaxis(joined(y, block, x.shape[0]), 0, axis)]

    # -- statistics

    def _with_statistics(self, equation: JaxprEqn, operands: list[Any], used: Sequence[bool]) -> list[Any]:
        """Evaluate an equation that gives statistics to frames: each frame gets the statistic of its block."""
        shape, axes = [self.size(each) for each in out_shape(equation)], symbolic_axes(out_shape(equation))
        if len(axes) == 1 and entry_of(equation).kind == "product" and keeps_frames(equation, axes[0]):
            return self._frame_by_frame(equation, operands, used)
        if len(axes) != 1 or not (equation.primitive is broadcast_in_dim_p or entry_of(equation).kind == "elementwise"):
            raise StreamError(
                f"{describe_equation((*self._path, equation))} cannot be bounded: a value that depends on all frames "
                "meets frames in another operation than arithmetic on elements and products"
            )
        (axis,) = axes
        over_time = [x for x, atom in zip(operands, equation.invars, strict=True) if symbolic_axes(shape_of(atom))]
        is_turned = bool(over_time) and all(isinstance(x, Reversed) and x.axis == axis for x in over_time)
        path = over_time[0].path if is_turned else ()
        operands = [x.array if is_turned and isinstance(x, Reversed) else _in_order(x) for x in operands]
        for place, (atom, is_used) in enumerate(zip(equation.invars, used, strict=True)):
            if not is_used:
                continue
            x, dims = self._of_each_block(atom), equation.params.get("broadcast_dimensions", ())
            if equation.primitive is not broadcast_in_dim_p:
                dims = range(len(shape) - len(shape_of(atom)), len(shape))
            if axis in dims:  # the size 1 in place of time
                x = jnp.squeeze(x, 1 + list(dims).index(axis))
                dims = [each for each in dims if each != axis]
            order = np.argsort([axis, *dims]).tolist()
            operands[place] = lax.broadcast_in_dim(jnp.transpose(x, order), shape, sorted([axis, *dims]))
        if equation.primitive is broadcast_in_dim_p:
            return [operands[0]]
        results = self._bound(equation, operands)
        return [Reversed(x, axis, path) for x in results] if is_turned else list(results)

    def _frame_by_frame(self, equation: JaxprEqn, operands: Sequence[Any], used: Sequence[bool]) -> list[Any]:
        """Evaluate an equation that works on single frames, on each frame with the statistic of its block."""
        axes = [next(iter(symbolic_axes(shape_of(atom))), None) for atom in equation.invars]
        spread = [
            self._of_each_block(atom) if is_used else _in_order(x)
            for x, atom, is_used in zip(operands, equation.invars, used, strict=True)
        ]
        (axis,) = symbolic_axes(out_shape(equation))
        time = str(out_shape(equation)[axis])

        def single(*frame: Any) -> Any:
            parts = [x if place is None else jnp.expand_dims(x, place) for x, place in zip(frame, axes, strict=True)]
            (y,) = bind_at_sizes(lambda size: 1 if str(size) == time else self.size(size), equation, parts)
            return jnp.squeeze(y, axis)

        places = [0 if is_used else place for place, is_used in zip(axes, used, strict=True)]
        return [jax.vmap(single, places, axis)(*spread)]

    def _of_each_block(self, variable: Any) -> Any:
        """Return the statistic that each frame uses, ``[time, ...]``."""
        if variable not in self._of_frames:
            statistic = self.analysis.statistics[variable]
            others, frames = (
                [self._environment[each] for each in some] for some in (statistic.others, statistic.frames)
            )
            if statistic.ignores_order and all(isinstance(each, Reversed) for each in frames):
                frames = [each.array for each in frames]
            found = statistic.of_each(list(map(_in_order, others)), list(map(_in_order, frames)))
            for each, x in zip(statistic.variables, found, strict=True):
                block, future = self._ends(origin := self.analysis.made[each])
                self._note(origin, f"of all frames up to {future} after blocks of {block}", block - 1 + future)
                self._of_frames[each] = at_ends(x, block, future)
        return self._of_frames[variable]


def _in_order(value: Any) -> Any:
    """Return an array as it is, and refuse reversed time."""
    if isinstance(value, Reversed):
        raise StreamError(
            f"{describe_equation(value.path)} cannot be bounded: it reverses time, and an operation on the reversed "
            "frames needs their order; between two flips, or before a loop or statistic, work on single frames only"
        )
    return value


def _bind_unmarked(size: Callable[[Any], Any], equation: JaxprEqn, operands: list[Any]) -> Sequence[Any]:
    """Return the results of an equation in a window, in which an associative scan is a loop like others."""
    if is_mark(equation):
        return without_mark(equation, operands)
    return bind_at_sizes(size, equation, operands)


def windows(x: Any, fill: Any, block: int, future: int, length: Any) -> Any:
    """Return each block of frames and the `future` frames after it, ``[blocks, block + future, ...]``."""
    count, more = -(-length // block), -(-future // block)
    total = (count + more) * block
    widths = [(0, total - length, 0), *[(0, 0, 0)] * (x.ndim - 1)]
    x = lax.pad(x, jnp.asarray(fill, x.dtype), widths)
    blocks = x.reshape(count + more, block, *x.shape[1:]) if block > 1 else x[:, None]
    if more < 4:
        parts = [lax.slice_in_dim(blocks, start, start + count) for start in range(more + 1)]
        parts[-1] = lax.slice_in_dim(parts[-1], 0, block + future - more * block, axis=1)
        return jnp.concatenate(parts, 1)
    x = blocks[jnp.arange(count)[:, None] + np.arange(more + 1)]  # the same few equations for any future
    return lax.slice_in_dim(x.reshape(count, (more + 1) * block, *x.shape[3:]), 0, block + future, axis=1)


def joined(y: Any, block: int, length: Any) -> Any:
    """Return the frames of blocks in windows, ``[time, ...]``."""
    frames = lax.slice_in_dim(y, 0, block, axis=1).reshape(y.shape[0] * block, *y.shape[2:])
    return frames if block == 1 else lax.slice_in_dim(frames, 0, length)


def at_ends(x: Any, block: int, future: int) -> Any:
    """Return, for each frame, the row of the last frame that the frame sees: `future` after its block, or the last."""
    length = x.shape[0]
    if future:
        last = lax.slice_in_dim(x, length - 1, length)
        x = jnp.concatenate([x, jnp.broadcast_to(last, (future, *x.shape[1:]))])
        x = lax.slice_in_dim(x, future, length + future)
    if block == 1:
        return x
    exists = windows(jnp.ones(length, bool), False, block, 0, length)
    is_last = exists & ~jnp.pad(exists[:, 1:], ((0, 0), (0, 1)))
    rows = windows(x, 0, block, 0, length)
    ends = jnp.where(lax.broadcast_in_dim(is_last, rows.shape, (0, 1)), rows, jnp.zeros((), x.dtype))
    ends = jnp.any(ends, 1, keepdims=True) if x.dtype == bool else jnp.sum(ends, 1, keepdims=True, dtype=x.dtype)
    return joined(jnp.broadcast_to(ends, rows.shape), block, length)


def _identity(monoid: str, dtype: Any) -> Any:
    """Return the element that changes no result of a running sum, product or extreme."""
    if monoid in ("sum", "prod"):
        return int(monoid == "prod")
    is_float = jnp.issubdtype(dtype, jnp.inexact)
    lowest, highest = (-np.inf, np.inf) if is_float else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return {"max": lowest, "min": highest, "logsumexp": -np.inf}[monoid]
