"""Streaming of models: inputs that move in time, and their shapes in the trace."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrnn._files.messages import SIZE, describe, first_line, near
from jaxrnn._jax.context import exact_types
from jaxrnn.errors import InputError, JaxrnnError, NodeError, StateError, StreamError, check_kind, is_count
from jaxrnn.model.opening.search import Opening
from jaxrnn.onnx.evaluate import Block
from jaxrnn.onnx.graph import is_batch_name
from jaxrnn.onnx.reading import labelled
from jaxrnn.steps.specs import Arrays, ArraySpec
from jaxrnn.streaming import Streamed, bounded, stream
from jaxrnn.streaming.diagnostics import error_in_words_of_file, of_file
from jaxrnn.streaming.dimensions import SYMBOL

if TYPE_CHECKING:
    from jaxrnn.model import Model
    from jaxrnn.steps.stepper import Notes


#: A size that is computed from a dimension, such as ``4*S``, is not a dimension.
_FORMULA = re.compile(r".*[*+/()].*")


@dataclasses.dataclass(frozen=True)
class GraphFunction:
    """The whole graph of a model as a function of parameters and inputs."""

    model: Model
    #: The name of the number of frames, for messages.
    length_name: str = SYMBOL

    @property
    def __name__(self) -> str:
        return self.model.label

    @property
    def operators(self) -> dict[str, str]:
        """The operators of the model by scope."""
        return operators_by_scope(self.model.program.block)

    @property
    def output_names(self) -> list[str]:
        """The outputs in the order of the file; JAX sorts dicts."""
        return [str(each.name) for each in self.model.outputs]

    @property
    def notes(self) -> Notes:
        """The texts for readers in the model's file."""
        return self.model._notes

    def first_states(self, inputs: Sequence[ArraySpec]) -> dict[str, Any]:
        """Return the first values of state inputs."""
        return first_states(self.model, inputs)

    def __call__(self, params: Any, inputs: Any) -> dict[str, Any]:
        """Apply the model."""
        return self.model.apply(params, inputs)


def first_states(model: Model, inputs: Sequence[ArraySpec], given: Arrays = MappingProxyType({})) -> dict[str, Any]:
    """Return the first values, as in `Model.init`, of the state inputs that are not given, with the sizes of the given.

    A state input of another size has no value, and neither has any if the state of the model is not known: then the
    caller asks for the inputs.
    """
    try:
        states = {variable.input for variable in model.state}
    except StateError:
        return {}
    shapes = {each.name: each.shape or () for each in inputs}
    sizes = {
        size: length
        for name, array in given.items()
        for size, length in zip(shapes.get(name, ()), np.shape(array), strict=False)
        if isinstance(size, str)
    }
    found = {}
    for each in (info.sized(sizes) for info in inputs if info.name in states and info.name not in given):
        if each.shape is not None and all(isinstance(size, int) for size in each.shape):
            start = model.initial_values.get(each.name, np.zeros((), each.dtype))
            found[each.name] = np.broadcast_to(start, each.sizes).copy()
    return found


#: The name that says that a dimension is time, as `jaxrnn.from_torch(time=)` writes it.
_TIME = "time"


def open_dimensions(model: Model) -> list[str]:
    """Return the names of the open dimensions of the inputs."""
    sizes = (size for info in model.inputs for size in info.shape or ())
    return list(dict.fromkeys(size for size in sizes if isinstance(size, str)))


def time_symbols(model: Model) -> tuple[str, ...]:
    """Return the open dimensions of a model's inputs that could be time: names unlike a batch."""
    return tuple(size for size in open_dimensions(model) if not is_batch_name(size) and not _FORMULA.match(size))


def only_symbol(model: Model, dims: Mapping[str, Any]) -> str:
    """Return the only open dimension that could be time and has no size in `dims`, or the dimension ``S``."""
    symbols = [name for name in time_symbols(model) if name not in dims]
    tied = model.dimensions
    if SYMBOL in symbols or len({tied.get(name, name) for name in symbols}) == 1:
        return SYMBOL if SYMBOL in symbols else symbols[0]
    if not symbols and (lines := how_to_open(model)):
        raise InputError(f"{model.label}: no dimension of the inputs that could be time is open. {lines}")
    raise InputError(
        f"{model.label}: name the time dimension with `symbol=NAME`; "
        f"possible dimensions: {', '.join(symbols) or 'none'}"
    )


def how_to_open(model: Model) -> str:
    """Return the lines that open the fixed axes along which the graph runs, or an empty string without such an axis.

    Axes of which this is not known are named with the reason.
    """
    found, unknown = [], dict[str, list[str]]()
    for info in model.inputs:
        for axis, size in enumerate(info.shape or ()):
            if isinstance(size, int) and size > 1:
                try:
                    opening = Opening(model.program, {info.name: {axis: _TIME}}, static=model.static)
                    opening.read()
                    finder = opening.tried({}).finder
                except JaxrnnError as error:
                    unknown.setdefault(first_line(error), []).append(f"axis {axis} of {info.name!r}")
                    continue
                if finder.runs:
                    found.append((not finder.recurs, info.name, axis, size, finder.runs))
    lines = []
    for _, name, axis, size, runs in sorted(found, key=lambda each: each[:3]):
        nodes = ", ".join(f"{operator} {node!r}" for node, operator in [*runs.items()][:2])
        more = f" and {len(runs) - 2} more" if len(runs) > 2 else ""
        line = f"`jaxrnn.load(path, dims={ {name: {axis: _TIME}} })`"
        verb = "runs" if len(runs) == 1 else "run"
        lines.append(
            f"{nodes}{more} {verb} along axis {axis} of {name!r}, which the file fixes to {size}: {line} opens it"
        )
    lines += [f"what runs along {', '.join(axes)} is not known: {reason}" for reason, axes in unknown.items()]
    return "; ".join(lines)


def check_time(model: Model, symbol: str) -> str:
    """Refuse a dimension without a recurrence or window, if a recurrence or window runs along a fixed axis.

    Return why this is not known, or an empty string.
    """
    try:
        trial = Opening(model.program, {}, static=model.static, along=symbol).tried({})
        unknown = "" if trial.failed is None else first_line(trial.failed.cause)
    except JaxrnnError as error:
        return f"it is not known whether a recurrence, window or sum runs along {symbol!r}: {first_line(error)}"
    if trial.finder.runs or not (lines := how_to_open(model)):
        return ""
    said = f"no recurrence, window or sum runs along {symbol!r}"
    if unknown:
        return f"{said} before a node of which this is not known ({unknown}). {lines}"
    raise InputError(
        f"{model.label}: {said}, so it may be a batch of separate "
        f"recordings. {lines}. If each entry of {symbol!r} is a frame, say so: `symbol={symbol!r}`"
    )


def check_symbol(model: Model, symbol: str) -> list[str]:
    """Return the names of all open dimensions; raise InputError if no dimension is a multiple of the symbol."""
    names = open_dimensions(model)
    if not isinstance(symbol, str) or not any(_times(name, symbol) for name in names):
        listed = ", ".join(names) or "none"
        raise InputError(f"no input has a dimension {symbol!r}{near(symbol, names)}; dimensions left open: {listed}")
    return names


def warn_of_batch(model: Model, symbol: str) -> None:
    """Warn if the name of the dimension that is time suggests a batch, unless a recurrence or window runs along it."""
    runs = {}
    if is_batch_name(symbol):
        with contextlib.suppress(JaxrnnError):  # unknown: the name decides
            runs = Opening(model.program, {}, static=model.static, along=symbol).tried({}).finder.runs
    if is_batch_name(symbol) and not runs:
        warnings.warn(
            f"{symbol!r} looks like a batch axis: as time, its entries are frames of one recording; if they are "
            "separate recordings, give another `symbol=NAME`",
            stacklevel=4,  # the caller of `Model.stream`
        )


def stream_model(
    model: Model,
    symbol: str | None,
    pulse: int | None,
    *,
    dims: Mapping[str, int | str],
    multiple: int,
    constraints: Sequence[str],
    past: int | None,
    future: int | Mapping[str, int] | None,
    block: int | None,
    inputs: Mapping[str, Any],
) -> Streamed:
    """Implement `Model.stream`."""
    check_kind(f"{model.label}: `dims`", dims, Mapping, "a dict by name")
    check_kind(f"{model.label}: `inputs`", inputs, Mapping, "a dict of arrays by name")
    doubt = ""
    if symbol is None:
        symbol = only_symbol(model, dims)
        doubt = "" if symbol == _TIME else check_time(model, symbol)
    with labelled(model.label):
        names = check_symbol(model, symbol)
    warn_of_batch(model, symbol)
    for name, size in dims.items():
        if name not in names or _times(name, symbol):
            others = ", ".join(other for other in names if not _times(other, symbol)) or "none"
            missing = f"there is no dimension {name!r}{near(name, names)}"
            reason = missing if name not in names else f"{name!r} is time, and stays open"
            raise InputError(f"{model.label}: `dims`: {reason}; dimensions that take a size: {others}")
        least = 0 if name in _of_constant_inputs(model, symbol) else 1
        if not is_count(size, least) and not _times(size, symbol):
            raise InputError(
                f"{model.label}: `dims` must give {name!r} a size from {least} on, or a multiple of {symbol} "
                f"such as {f'4*{symbol}'!r}, not {size!r}"
            )
    # If time must be a constant, the trace names the node.
    tied = model.dimensions if isinstance(model.dimensions.get(symbol, symbol), str) else {}
    time = str(tied.get(symbol, symbol))
    given = {
        tied.get(name, name): f"{times}*{time}" if (times := _times(size, symbol)) else size
        for name, size in dims.items()
    }
    example, axes = {}, {}
    for info in (info.sized(tied) for info in model.inputs):
        if info.shape is None or info.dtype is None:
            raise InputError(f"{model.label}: {info.as_input} has no declared rank, so its time axis is not known")
        sizes = [given.get(size, size) if isinstance(size, str) else size for size in info.shape]
        times = {axis: _times(size, time) for axis, size in enumerate(sizes)}
        places = [axis for axis, count in times.items() if count]
        if len(places) > 1:
            raise InputError(
                f"{model.label}: {info.as_input} has {symbol} on {len(places)} axes; only one axis can be time"
            )
        axes[info.name] = places[0] if places else None
        shape = [times[axis] or (1 if isinstance(size, str) else int(size)) for axis, size in enumerate(sizes)]
        example[info.name] = jax.ShapeDtypeStruct(shape, info.dtype)
    for name, value in inputs.items():
        if axes.get(name, 0) is not None:
            constant = [each for each in axes if axes[each] is None]
            reason = f"it is no input{near(name, [*axes])}" if name not in axes else f"it has a time axis, {symbol}"
            raise InputError(
                f"{model.label}: `inputs` takes values of inputs that are constant in time, not {name!r}: {reason}; "
                f"constant inputs: {', '.join(constant) or 'none'}"
            )
        declared = example[name]
        example[name] = np.asarray(value, declared.dtype)
        if example[name].shape != declared.shape:
            raise InputError(f"{model.label}: `inputs`: {name!r} must be {describe(declared)}, not {describe(value)}")

    again = functools.partial(
        stream_model, model, symbol, pulse,
        multiple=multiple, constraints=constraints, past=past, future=future, block=block, inputs=inputs,
    )  # fmt: skip
    own = constraints if isinstance(constraints, str) else [_counted(symbol, each) for each in constraints]
    options = {"axes": axes, "params": model.params, "multiple": multiple, "constraints": own}
    options |= {"pulse": pulse, "past": past, "future": future, "block": block}
    others = [name for name in names if name != symbol and name not in dims]
    try:
        with exact_types(), of_file(operators_by_scope(model.program.block)):
            streamed = stream_within(model._graph_function(symbol), example, **options)
    except (NodeError, StreamError) as error:
        cause = error if isinstance(error, NodeError) else error.__cause__
        is_undecided = isinstance(cause, NodeError) and not getattr(error, "has_condition", False)
        if is_undecided and (relation := _relation(model, symbol, names, str(cause))):
            where = _in_terms_of(symbol, getattr(cause, "place", "") or str(cause))
            raise StreamError(f"{model.label}: {where}: two inputs have a time axis; {relation}") from error
        if isinstance(error, StreamError):
            said = _in_terms_of(symbol, f"{model.label}: {error}")
            empty = {name: 0 for name in _of_constant_inputs(model, symbol) if name in others}
            if empty and (remedy := _if_empty(again, {**dims, **empty}, str(error))):
                said += f". Assumed size 1: {', '.join(empty)}; {remedy}"
            raise StreamError(said) from error
        said = f"{model.label} cannot be traced for every length of {symbol}: {error_in_words_of_file(error)}"
        if others:
            said += f". Assumed size 1: {', '.join(others)}; `dims={ {others[0]: SIZE} }` sets another size"
        raise StreamError(_in_terms_of(symbol, said)) from error
    # Size 1 is broadcast, so a trace with this size does not show that a dimension is not time.
    if not model._ties_are_known and (unknown := [name for name in time_symbols(model) if name in others]):
        raise InputError(
            f"{model.label}: it is not known whether {unknown[0]} must be equal to {symbol}; "
            f"`dims={ {unknown[0]: symbol} }` if it is, `dims={ {unknown[0]: SIZE} }` if it is not"
        )
    # A state of more than counters shows that a recurrence or window runs along time.
    if doubt and all(each.kind == "counter" for each in streamed.spec.state):
        warnings.warn(f"{model.label}: {doubt}. Say which dimension is time: `symbol=NAME`", stacklevel=3)
    return streamed


def _of_constant_inputs(model: Model, symbol: str) -> list[str]:
    """Return the open dimensions of inputs without time only, such as the frames in a cache."""
    shapes = [info.shape or () for info in model.inputs]
    moving = {size for shape in shapes if any(_times(size, symbol) for size in shape) for size in shape}
    return [name for name in open_dimensions(model) if name not in moving and not is_batch_name(name)]


def _if_empty(again: Callable[..., Streamed], dims: Mapping[str, Any], error: str) -> str:
    """Return what happens if caches are empty when a recording begins, if this is another error or none."""
    line = f"`dims={dims}` begins without earlier frames"
    try:
        again(dims=dims)
    except StreamError as other:
        (_, _, reason) = str(other).partition(": ")
        return "" if error in str(other) else f"{line}, and then: {reason}"
    return line


def stream_within(
    function: GraphFunction,
    example: Any,
    *,
    pulse: int | None,
    past: int | None,
    future: int | Mapping[str, int] | None,
    block: int | None,
    **options: Any,
) -> Streamed:
    """Stream a function, with `future` the function with bounded futures; ``options`` are those of both."""
    if future is None:
        if block is not None:
            raise InputError("`block` is the number of frames that share their end: it goes with `future`")
        return stream(function, example, pulse=pulse, past=past, **options)
    live = bounded(function, example, future=future, past=past, block=block, **options)
    return stream(live, example, pulse=pulse, **options)


def _relation(model: Model, symbol: str, others: Sequence[str], problem: str) -> str:
    """Return advice that relates a dimension to time so that the graph can be traced, or an empty string."""
    shapes = [info.shape or () for info in model.inputs]
    own = {size: axis for shape in shapes if symbol in shape for axis, size in enumerate(shape)}
    places = {size: axis for shape in shapes for axis, size in enumerate(shape)}
    others = sorted((name for name in others if name not in own), key=lambda name: places[name] != own.get(symbol))
    rates = sorted({int(number) for number in re.findall(r"\d+", problem)} & set(range(2, 65)))[:8]
    for other in others:
        for times in (1, *rates):
            for time, faster in ((symbol, other), (other, symbol)):
                size = time if times == 1 else f"{times}*{time}"
                if size == faster:
                    return f"stream over the slower one: `model.stream({time!r})`"
                if _fits(model, {time: SYMBOL, faster: f"{times}*{SYMBOL}"}):
                    return f"`model.stream({time!r}, dims={ {faster: size} })` says that {faster} is {size}"
    return ""


def _fits(model: Model, sizes: Mapping[str, str]) -> bool:
    """Return True if the graph can be traced with these dimensions and size 1 for the rest."""
    dims = {name: sizes.get(name, "1") for name in open_dimensions(model)}
    try:
        with exact_types():
            jax.eval_shape(model.apply, model.params, model.symbolic_inputs(dims))
    except Exception:  # operators may raise any error on sizes that do not fit
        return False
    return True


def operators_by_scope(block: Block, outer: str = "") -> dict[str, str]:
    """Return the operators of a graph by the scope that each node is traced in: the enclosing nodes, and the node."""
    found: dict[str, str] = {}
    for node in block.nodes:
        path = f"{outer}{'/' if outer and not node.name.startswith('/') else ''}{node.name}"
        found[path] = str(node.operator)
        for inner in node.blocks:
            found |= {name: kind for name, kind in operators_by_scope(inner, path).items() if name not in found}
    return found


def _in_terms_of(symbol: str, message: str) -> str:
    """Replace S in a message by the file's name of the length, except in names; a comparison is no name."""
    parts = re.split(r"('[^'<>=]*')", message)
    return "".join(
        part if at % 2 else re.sub(rf"\b{SYMBOL}\b", lambda _: symbol, part) for at, part in enumerate(parts)
    )


def _counted(symbol: str, constraint: Any) -> Any:
    """Write a constraint on the length, in the file's name, with S."""
    return re.sub(rf"\b{re.escape(symbol)}\b", SYMBOL, constraint) if isinstance(constraint, str) else constraint


def _times(size: Any, symbol: str) -> int:
    """Return the frames of an axis for each frame of the symbol: k for ``k*S``, 0 for other axes."""
    if not isinstance(size, str):
        return 0
    match = re.fullmatch(rf"(?:(\d+)\s*\*\s*)?{re.escape(symbol)}(?:\s*\*\s*(\d+))?", size.strip())
    return int(match[1] or 1) * int(match[2] or 1) if match else 0
