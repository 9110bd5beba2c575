"""Examples: where they come from, by number, and as which arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrnn._files.messages import describe, near_or_all
from jaxrnn.errors import InputError
from jaxrnn.steps.specs import ArraySpec, widens

#: One example: arrays by name, those of the model's inputs and any others.
Example = dict[str, np.ndarray]

#: What JAX makes of wide types without ``jax_enable_x64``.
_NARROW = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}


@dataclasses.dataclass(frozen=True)
class ExampleSource:
    """Examples by number.

    Attributes:
        size: how many there are; None if they are drawn without end.
        label: what messages call an example.
        make: an example, as the caller gives it.
    """

    size: int | None
    label: Callable[[int], str]
    make: Callable[[int], Any]

    def get(self, number: int) -> tuple[str, Any]:
        """What an example is called, and the example."""
        label = self.label(number)
        try:
            return label, self.make(number)
        except Exception as error:
            error.add_note(f"in getting {label}")
            raise


def make_source(data: Any, seed: int | None, *, what: str = "data") -> ExampleSource:
    """The source of what a caller gave: a sequence of examples, or a function that draws one.

    Args:
        data: the examples.
        seed: of what is drawn; None where only a sequence will do.
        what: the name of the argument, for messages.

    Raises:
        InputError: it is neither, or empty.
    """
    if isinstance(data, Mapping):
        raise InputError(f"{what} must be a sequence of examples, not one dict: [{{name: array}}, ...]")
    if hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        if not len(data):
            raise InputError(f"{what} is empty: it must have at least one example")
        return ExampleSource(len(data), getattr(data, "label", "example {}".format), data.__getitem__)
    if callable(data) and seed is not None:
        # Each example has a generator of its own, so that it depends on the seed and its number alone.
        return ExampleSource(
            None, "drawn example {}".format, lambda number: data(np.random.default_rng([seed, number]))
        )
    forms = "a sequence of examples" + ("" if seed is None else ", or a function that draws one from a NumPy generator")
    raise InputError(f"{what} must be {forms}, not a {type(data).__name__}")


def read_example(value: Any, infos: Sequence[ArraySpec], state: Iterable[str], *, wide: bool) -> Example:
    """An example as NumPy arrays: the model's inputs in the types of the file, the others as JAX would take them.

    Args:
        value: what the source gave.
        infos: the model's inputs.
        state: names that are state, and so no part of an example.
        wide: whether 64-bit types stay so, as ``jax_enable_x64`` says.

    Raises:
        InputError: an input is missing or of another type, or an array cannot be one.
    """
    if not isinstance(value, Mapping):
        raise InputError(f"an example is a dict of arrays by name, not a {type(value).__name__}")
    extra = {name: array for name, array in value.items() if name not in {info.name for info in infos}}
    missing = [info for info in infos if info.name not in value]
    if missing:
        raise InputError(f"the model's {missing[0].as_input} is missing{near_or_all(missing[0].name, extra)}")
    stray = [name for name in state if name in value]
    if stray:
        raise InputError(f"{stray[0]!r} is state, which training carries itself: leave it out of the examples")
    example = {info.name: _as_input(info, value[info.name]) for info in infos}
    return example | {name: _as_extra(name, array, wide) for name, array in extra.items()}


def _as_input(info: ArraySpec, value: Any) -> np.ndarray:
    if info.dtype is None:
        raise InputError(f"{info.as_input}: sequences and optionals cannot be batched, so they cannot be trained on")
    array = np.asarray(value)
    if not hasattr(value, "dtype") or widens(array.dtype, info.dtype):
        array = array.astype(info.dtype)
    if array.dtype != info.dtype:
        raise InputError(f"{info.as_input} got {describe(array)}; convert it with .astype({info.dtype.name!r})")
    return array


def _as_extra(name: Any, value: Any, wide: bool) -> np.ndarray:
    if not isinstance(name, str):
        raise InputError(f"the arrays of an example go by strings, not by {name!r}")
    array = np.asarray(value)
    if array.dtype.kind in "OUSMm":
        raise InputError(f"{name!r} must be an array of numbers, not {type(value).__name__} of {array.dtype}")
    return array if wide else array.astype(_NARROW.get(array.dtype.name, array.dtype), copy=False)
