"""Random inputs for models with open dimensions, as in ``jaxrnn run --random`` and ``jaxrnn verify``.

A verification needs inputs on which the model has results. Integers come from the range in which the graph uses them.
Floats are standard normal, or positive or between bounds if the model has no finite results for negative numbers.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn._files.messages import SIZE, bytes_of, near, pairs_of
from jaxrnn._jax.context import exact_types
from jaxrnn.comparison import FLOATS, NORMAL
from jaxrnn.errors import InputError, JaxrnnError, is_count
from jaxrnn.model import Model
from jaxrnn.onnx.evaluate import BoundNode, Scope, call
from jaxrnn.onnx.graph import is_batch_name
from jaxrnn.onnx.limits import Limits
from jaxrnn.steps.live import restored
from jaxrnn.steps.specs import ArraySpec

#: Default sizes of open dimensions.
BATCH_SIZE, OTHER_SIZE = 1, 16

#: Numbers of random integers with an unknown use.
FLAGS = range(2)

#: The nodes of formulas of dimensions.
_FORMULA = (ast.Expression, ast.BinOp, ast.Name, ast.Load, ast.Constant, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv)


@dataclass(frozen=True)
class Sample:
    """The inputs of a call."""

    inputs: dict[str, Any]
    #: Sizes of all symbolic dimensions of the inputs.
    dims: dict[str, int]
    #: The dimensions with a default size.
    assumed: tuple[str, ...]
    #: For each random input, the way in which it is drawn, such as ``"standard normal"`` or ``"0 to 6"``.
    drawn: dict[str, str]

    @property
    def random(self) -> tuple[str, ...]:
        """The names of the random inputs."""
        return tuple(self.drawn)

    @contextlib.contextmanager
    def naming_assumptions(self) -> Iterator[None]:
        """Add the default sizes to errors of evaluation, since wrong sizes are a likely cause."""
        try:
            yield
        except JaxrnnError as error:
            if not self.assumed:
                raise
            sizes = pairs_of({name: self.dims[name] for name in self.assumed})
            raise type(error)(
                f"{error}\n(the random inputs have assumed sizes: {sizes}; if they do not fit, give others: "
                f"`dims={ {self.assumed[-1]: SIZE} }`)"
            ) from error


def symbols_of(infos: Sequence[ArraySpec]) -> tuple[str, ...]:
    """Return the names of open dimensions; the dimension ``4*S`` has the name ``S``."""
    names = (name for info in infos for size in info.shape or () if isinstance(size, str) for name in _formula(size)[0])
    return tuple(dict.fromkeys(names))


def restore_types(infos: Sequence[ArraySpec], arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Restore types such as bfloat16, which NPY files store as raw bytes."""
    dtypes = {info.name: info.dtype for info in infos if info.dtype is not None}
    known = {name: array for name, array in arrays.items() if isinstance(array, np.ndarray) and name in dtypes}
    return {**arrays, **{name: restored(array, dtypes[name]) for name, array in known.items()}}


def random_inputs(
    model: Model,
    inputs: Mapping[str, Any] | None = None,
    *,
    dims: Mapping[str, int] | None = None,
    seed: int = 0,
    floats: Mapping[str, str] | None = None,
) -> Sample:
    """Return inputs of a model: the arrays of the caller, and random arrays for missing inputs.

    Floats are standard normal. Integers are in the range in which the graph uses them, if the graph shows it: row
    numbers of a tensor, positions on an axis, and lengths from 1 to the size of an axis. Other integers are 0 or 1.

    Args:
        model: the model.
        inputs: a dict of arrays, which also fix the sizes of open dimensions.
        dims: sizes of open dimensions. The default size is 1 for names that look like a batch, else 16.
        seed: seed of the generator; equal seeds and shapes result in equal arrays.
        floats: other ways to draw floats, by input: "positive", "between 0 and 1" or "above 1".

    Raises:
        InputError: a dimension does not exist or has two sizes, or an input cannot be random.
    """
    sample = random_arrays(model.inputs, inputs or {}, dims=dims, seed=seed, floats=floats)
    ranges = integer_ranges(model, sample.dims, inputs)
    if not ranges:
        return sample
    return random_arrays(model.inputs, inputs or {}, dims=dims, seed=seed, floats=floats, ranges=ranges)


def random_arrays(
    infos: Sequence[ArraySpec],
    inputs: Mapping[str, Any],
    *,
    dims: Mapping[str, int] | None = None,
    seed: int = 0,
    ranges: Mapping[str, range] | None = None,
    floats: Mapping[str, str] | None = None,
    frames: int | None = None,
) -> Sample:
    """Return inputs as `random_inputs` for declarations without a model.

    `ranges` are the numbers of integer inputs, by default 0 and 1. With `frames`, all arrays, including the arrays of
    the caller, are recordings with a first axis of that size.
    """
    lead = () if frames is None else (frames,)
    missing = [info for info in infos if info.name not in inputs]
    shapes = {name: getattr(array, "shape", ())[len(lead) :] for name, array in inputs.items()}
    sizes, assumed = _sizes(infos, missing, shapes, dims or {})
    arrays, drawn = dict(inputs), {}
    for info in missing:
        numbers = (ranges or {}).get(info.name, FLAGS)
        way = (floats or {}).get(info.name, NORMAL)
        arrays[info.name] = _random_array(info, lead, sizes, seed, numbers, FLOATS[way])
        drawn[info.name] = way if arrays[info.name].dtype.kind not in "iub" else f"{numbers[0]} to {numbers[-1]}"
    return Sample(arrays, sizes, assumed, drawn)


def inside_domain(draw: Callable[..., Sample], results: Callable[[Sample], Mapping[Any, Any]]) -> Sample:
    """Return a sample for which the results are finite, with as many standard normal inputs as possible.

    If no way to draw floats gives finite results only, return the sample with the most finite results.

    Args:
        draw: a function that returns a sample, with ``floats`` as in `random_inputs`.
        results: the function to verify, in jaxrnn.
    """
    sample = draw()
    best, most = sample, _finite(results(sample))
    names = [name for name, way in sample.drawn.items() if way == NORMAL]
    if most[0] or not names:
        return best
    for way in [*FLOATS][1:]:
        found = _finite_if_it_runs(results, sample := draw(floats=dict.fromkeys(names, way)))
        if found > most:
            best, most = sample, found
        if most[0]:
            break
    floats = {name: best.drawn[name] for name in names}
    for name in names:
        fewer = {**floats, name: NORMAL}
        if floats[name] != NORMAL and _finite_if_it_runs(results, sample := draw(floats=fewer)) >= most:
            best, floats = sample, fewer
    return best


def verifiable_inputs(
    model: Model, inputs: Mapping[str, Any] | None = None, *, dims: Mapping[str, int] | None = None, seed: int = 0
) -> Sample:
    """Return inputs as `random_inputs`, for which the results of the model are finite if possible."""

    def results(sample: Sample) -> Mapping[str, Any]:
        with sample.naming_assumptions():
            return model(sample.inputs)

    return inside_domain(functools.partial(random_inputs, model, inputs, dims=dims, seed=seed), results)


#: Whether all results are finite, how many results have a finite element, and the number of finite elements.
_Finite = tuple[bool, int, int]


def _finite(results: Mapping[Any, Any]) -> _Finite:
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(dict(results))]
    inexact = [array for array in arrays if jnp.issubdtype(array.dtype, jnp.inexact)]
    counts = [int(np.isfinite(array.astype(np.complex128)).sum()) for array in inexact]
    return counts == [array.size for array in inexact], sum(map(bool, counts)), sum(counts)


def _finite_if_it_runs(results: Callable[[Sample], Mapping[Any, Any]], sample: Sample) -> _Finite:
    """Return how many results are finite, and the least if the function refuses other inputs than the first."""
    try:
        return _finite(results(sample))
    except JaxrnnError:
        return False, -1, -1


def _sizes(
    infos: Sequence[ArraySpec],
    missing: Sequence[ArraySpec],
    shapes: Mapping[str, Sequence[int]],
    dims: Mapping[str, int],
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the sizes of all symbols, and the symbols with a default size."""
    known = symbols_of(infos)
    for name, size in dims.items():
        if name not in known:
            listed = ", ".join(known) or "none"
            raise InputError(f"there is no dimension {name!r}{near(name, known)}; the open dimensions are: {listed}")
        if not is_count(size):
            raise InputError(f"the size of the dimension {name!r} must be a whole number of at least 0, not {size!r}")
    sizes = {name: int(size) for name, size in dims.items()}
    for info in infos:
        for name, size in zip(info.shape or (), shapes.get(info.name, ()), strict=False):
            if isinstance(name, str) and name in known and sizes.setdefault(name, size) != size:
                raise InputError(f"{info.as_input} has {name}={size}, but {name}={sizes[name]} is given elsewhere")
    assumed = tuple(name for name in symbols_of(missing) if name not in sizes)
    for name in assumed:
        sizes[name] = BATCH_SIZE if is_batch_name(name) else OTHER_SIZE
    return sizes, assumed


def _random_array(
    info: ArraySpec,
    lead: tuple[int, ...],
    sizes: Mapping[str, int],
    seed: int,
    numbers: range,
    floats: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray],
) -> np.ndarray:
    if info.dtype is None or info.shape is None or info.dtype.kind in "OUS":
        what = "declared rank" if info.dtype is not None and info.shape is None else "random value"
        raise InputError(f"{info.as_input} has no {what}: it must be given")
    shape = lead + _shape(info, sizes)
    if min(shape, default=0) < 0:
        raise InputError(f"{info.as_input} would have the shape {shape}; give larger dimensions")
    needed = math.prod(shape) * np.dtype(np.float64).itemsize
    if needed > Limits.value_bytes:
        raise InputError(
            f"{info.as_input} of shape {shape} is too large: {bytes_of(needed)}, of at most "
            f"{bytes_of(Limits.value_bytes)}; give smaller dimensions"
        )
    try:
        random = np.random.default_rng([seed, zlib.crc32(info.name.encode())])
        if info.dtype == np.bool_:
            return random.integers(0, 2, shape).astype(np.bool_)
        if jnp.issubdtype(info.dtype, jnp.integer):
            return random.integers(numbers.start, numbers.stop, shape).astype(info.dtype)
        values = floats(random, shape)
        if jnp.issubdtype(info.dtype, jnp.complexfloating):
            return (values + 1j * random.standard_normal(shape)).astype(info.dtype)
        return values.astype(info.dtype)
    except (MemoryError, ValueError) as error:
        raise InputError(f"{info.as_input} of shape {shape} cannot be made: {error}") from error


def integer_ranges(model: Any, dims: Mapping[str, int], inputs: Mapping[str, Any] | None = None) -> dict[str, range]:
    """Return the numbers that integer inputs of a model take, at these sizes of open dimensions.

    Inputs are followed through casts and moves of elements to the operators that use them: positions on an axis,
    lengths of sequences, and comparisons with constants, as in a mask. Inputs without such a use are left out.
    """
    missing = [info for info in model.inputs if info.name not in (inputs or {}) and info.shape is not None]
    if not any(info.dtype is not None and info.dtype.kind in "iu" for info in missing):
        return {}
    sizes, _ = _sizes(
        model.inputs, missing, {}, {name: dims[name] for name in symbols_of(model.inputs) if name in dims}
    )
    structs = {info.name: jax.ShapeDtypeStruct(_shape(info, sizes), info.dtype) for info in missing if not info.is_text}
    watch = _Uses({value: str(value.name) for value in model.program.block.inputs})
    # A graph that needs values to be traced shows the uses up to the node that needs a value.
    with contextlib.suppress(JaxrnnError), exact_types():
        jax.eval_shape(
            lambda drawn: [*model.intermediates(model.params, {**(inputs or {}), **drawn}, watch)][:0], structs
        )
    return watch.ranges


class _Uses:
    """Computes nodes, and notes the numbers that the nodes accept from the inputs of the graph."""

    def __init__(self, inputs: Mapping[Any, str]):
        #: The values that hold elements of an input.
        self._inputs = dict(inputs)
        self.ranges: dict[str, range] = {}

    def __call__(self, node: BoundNode, arguments: Sequence[Any], scope: Scope) -> tuple[Any, ...]:
        for place, value in enumerate(node.inputs):
            if value in self._inputs and (numbers := _accepted(node, place, arguments)):
                name = self._inputs[value]
                known = self.ranges.get(name, numbers)
                least, most = max(known.start, numbers.start), min(known.stop, numbers.stop)
                self.ranges[name] = range(least, max(most, least + 1))
        if node.operator.traits.moves_first and node.inputs[0] in self._inputs:
            self._inputs[node.outputs[0]] = self._inputs[node.inputs[0]]
        return call(node, arguments, scope)


def _accepted(node: BoundNode, place: int, arguments: Sequence[Any]) -> range | None:
    """Return the numbers that a node accepts as an input, or None if all numbers mean something to the node."""
    slot, first = node.operator.slot(place), arguments[0]
    if node.operator.traits.compares not in ("", "="):
        other = arguments[1 - place]
        is_range = isinstance(other, np.ndarray) and other.dtype.kind in "iu" and other.size > 1
        return range(int(other.min()) + 1, int(other.max()) + 2) if is_range else None
    if slot is None or place == 0 or not getattr(first, "shape", ()):
        return None
    attributes = {**node.operator.attributes, **node.attributes}
    if slot.name == "indices":
        axis = attributes.get("axis", 0)
        return range(max(first.shape[axis], 1))
    if slot.name == "sequence_lens":
        return range(1, first.shape[attributes.get("time_axis", attributes.get("layout", 0))] + 1)
    return None


def _shape(info: ArraySpec, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else _size(size, sizes) for size in info.shape or ())


@functools.cache
def _formula(dimension: str) -> tuple[list[str], Any]:
    """Return the names in a dimension, and compiled code for a formula such as ``4*S`` or ``past + 1``, else None."""
    with contextlib.suppress(SyntaxError, ValueError):
        tree = ast.parse(dimension if len(dimension) <= 200 else "", mode="eval")
        nodes = list(ast.walk(tree))
        integers = all(type(node.value) is int for node in nodes if isinstance(node, ast.Constant))
        if integers and all(isinstance(node, _FORMULA) for node in nodes):
            return [node.id for node in nodes if isinstance(node, ast.Name)], compile(tree, "<dimension>", "eval")
    return [dimension], None


def _size(dimension: str, sizes: Mapping[str, int]) -> int:
    _, code = _formula(dimension)
    try:
        return sizes[dimension] if code is None else eval(code, {"__builtins__": {}}, dict(sizes))
    except ZeroDivisionError as error:
        raise InputError(f"the dimension {dimension!r} divides by zero") from error
