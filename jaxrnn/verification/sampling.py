"""Random inputs for models with open dimensions, as in ``jaxrnn run --random`` and ``jaxrnn verify``."""

from __future__ import annotations

import ast
import contextlib
import math
import operator
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrnn._files.arguments import SIZE, argument
from jaxrnn._files.messages import bytes_of, pairs_of
from jaxrnn.errors import InputError, JaxrnnError, is_count
from jaxrnn.model import Model
from jaxrnn.onnx.graph import is_batch_name
from jaxrnn.onnx.limits import Limits
from jaxrnn.steps.specs import ArraySpec

#: Default sizes of open dimensions.
BATCH_SIZE, OTHER_SIZE = 1, 16

_OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}


@dataclass(frozen=True)
class Sample:
    """The inputs of a call."""

    inputs: dict[str, Any]
    #: Sizes of all symbolic dimensions of the inputs.
    dims: dict[str, int]
    #: The dimensions with a default size.
    assumed: tuple[str, ...]
    #: The names of the random inputs.
    random: tuple[str, ...]

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
                f"{argument('dims', {self.assumed[-1]: SIZE})})"
            ) from error


def symbols_of(infos: Sequence[ArraySpec]) -> tuple[str, ...]:
    """Return the names of open dimensions; the dimension ``4*S`` has the name ``S``."""
    names = (name for info in infos for size in info.shape or () if isinstance(size, str) for name in _names(size))
    return tuple(dict.fromkeys(names))


def restore_types(infos: Sequence[ArraySpec], arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Restore types such as bfloat16, which NPY files store as raw bytes."""
    declared = {info.name: info.dtype for info in infos}

    def restore(name: str, array: Any) -> Any:
        dtype = declared.get(name)
        raw = isinstance(array, np.ndarray) and array.dtype.type is np.void and array.dtype.names is None
        return array.view(dtype) if raw and dtype is not None and dtype.itemsize == array.dtype.itemsize else array

    return {name: restore(name, array) for name, array in arrays.items()}


def random_inputs(
    model: Model, inputs: Mapping[str, Any] | None = None, *, dims: Mapping[str, int] | None = None, seed: int = 0
) -> Sample:
    """Return inputs of a model: the arrays of the caller, and random arrays for missing inputs.

    Floats are standard normal. Integers are 0 or 1. Integers that index a constant table with Gather are row numbers.

    Args:
        model: the model.
        inputs: a dict of arrays, which also fix the sizes of open dimensions.
        dims: sizes of open dimensions. The default size is 1 for names that look like a batch, else 16.
        seed: seed of the generator; equal seeds and shapes result in equal arrays.

    Raises:
        InputError: a dimension does not exist or has two sizes, or an input cannot be random.
    """
    return random_arrays(model.inputs, inputs or {}, dims=dims, seed=seed, limits=index_limits(model))


def random_arrays(
    infos: Sequence[ArraySpec],
    inputs: Mapping[str, Any],
    *,
    dims: Mapping[str, int] | None = None,
    seed: int = 0,
    limits: Mapping[str, int] | None = None,
    frames: int | None = None,
) -> Sample:
    """Return inputs as `random_inputs` for declarations without a model.

    `limits` are exclusive upper bounds of integer inputs, by default 2. With `frames`, all arrays, including the
    arrays of the caller, are recordings with a first axis of that size.
    """
    lead = () if frames is None else (frames,)
    missing = [info for info in infos if info.name not in inputs]
    shapes = {name: getattr(array, "shape", ())[len(lead) :] for name, array in inputs.items()}
    sizes, assumed = _sizes(infos, missing, shapes, dims or {})
    highest = limits or {}
    drawn = {info.name: _random_array(info, lead, sizes, seed, highest.get(info.name, 2)) for info in missing}
    return Sample({**inputs, **drawn}, sizes, assumed, tuple(drawn))


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
            raise InputError(f"there is no dimension {name!r}; the open dimensions are: {', '.join(known) or 'none'}")
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
    info: ArraySpec, lead: tuple[int, ...], sizes: Mapping[str, int], seed: int, limit: int
) -> np.ndarray:
    if info.dtype is None or info.shape is None or info.dtype.kind in "OUS":
        what = "declared rank" if info.dtype is not None and info.shape is None else "random value"
        raise InputError(f"{info.as_input} has no {what}: it must be given")
    shape = lead + tuple(size if isinstance(size, int) else _size(size, sizes) for size in info.shape)
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
            return random.integers(0, limit, shape).astype(info.dtype)
        values = random.standard_normal(shape)
        if jnp.issubdtype(info.dtype, jnp.complexfloating):
            return (values + 1j * random.standard_normal(shape)).astype(info.dtype)
        return values.astype(info.dtype)
    except (MemoryError, ValueError) as error:
        raise InputError(f"{info.as_input} of shape {shape} cannot be made: {error}") from error


def index_limits(model: Model) -> dict[str, int]:
    """Return the number of table rows for each input that indexes a constant table with Gather."""
    block, limits = model.program.block, {}
    for node in block.nodes:
        if node.operator.name != "Gather" or node.inputs[0] is None or node.inputs[1] not in block.inputs:
            continue
        table, indices = node.inputs[0], node.inputs[1]
        array = model.program.parameters.get(block.parameters.get(table, ""), block.constants.get(table))
        if array is not None:
            rows = array.shape[node.attributes.get("axis", 0)]
            name = str(indices.name)
            limits[name] = min(rows, limits.get(name, rows))
    return {name: max(rows, 1) for name, rows in limits.items()}


def _expression(dimension: str) -> ast.expr | None:
    """Parse a formula of dimensions such as ``4*S`` or ``past + 1``, or return None if the dimension is a name."""
    if len(dimension) > 200:
        return None
    try:
        tree = ast.parse(dimension, mode="eval").body
    except (SyntaxError, ValueError):
        return None
    return tree if _is_formula(tree) else None


def _is_formula(tree: ast.expr) -> bool:
    if isinstance(tree, ast.BinOp):
        return type(tree.op) in _OPERATIONS and _is_formula(tree.left) and _is_formula(tree.right)
    return isinstance(tree, ast.Name) or (isinstance(tree, ast.Constant) and type(tree.value) is int)


def _names(dimension: str) -> list[str]:
    tree = _expression(dimension)
    return [dimension] if tree is None else [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]


def _size(dimension: str, sizes: Mapping[str, int]) -> int:
    def value(tree: ast.expr) -> int:
        if isinstance(tree, ast.BinOp):
            return _OPERATIONS[type(tree.op)](value(tree.left), value(tree.right))
        return sizes[tree.id] if isinstance(tree, ast.Name) else ast.literal_eval(tree)

    tree = _expression(dimension)
    try:
        return sizes[dimension] if tree is None else value(tree)
    except ZeroDivisionError as error:
        raise InputError(f"the dimension {dimension!r} divides by zero") from error
