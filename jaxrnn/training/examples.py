"""Examples: sources by number, ``.npz`` files, and arrays in the types of the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrnn._files.arrays import read_npz, read_shapes
from jaxrnn._files.messages import describe, near_or_all
from jaxrnn._files.stores import Location
from jaxrnn.audio.checking import examine_example, faults_within
from jaxrnn.audio.contents import facts_of, recordings_at
from jaxrnn.errors import InputError
from jaxrnn.steps.specs import ArraySpec, widens

#: An example: the arrays of the model's inputs and further arrays, by name.
Example = dict[str, np.ndarray]

#: JAX's conversion of 64-bit types without ``jax_enable_x64``.
_NARROW = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}


@dataclasses.dataclass(frozen=True)
class ExampleSource:
    """A source of numbered examples. ``size`` is None without an end; ``label`` names an example in messages.

    ``outline`` returns arrays of the shapes of an example, where these are known without the example.
    """

    size: int | None
    label: Callable[[int], str]
    make: Callable[[int], Any]
    outline: Callable[[int], Any] | None = None

    def get(self, number: int) -> tuple[str, Any]:
        """Return the label of an example, and the example."""
        label = self.label(number)
        try:
            return label, self.make(number)
        except Exception as error:
            error.add_note(f"in getting {label}")
            raise


def make_source(data: Any, seed: int | None, *, what: str = "data") -> ExampleSource:
    """Return a source for a sequence of examples, or with a seed for a function that draws an example.

    ``what`` names the argument in an InputError for anything else.
    """
    if isinstance(data, Mapping):
        raise InputError(f"{what} must be a sequence of examples, not one dict: [{{name: array}}, ...]")
    if hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        if not len(data):
            raise InputError(f"{what} is empty: it must have at least one example")
        label, outline = getattr(data, "label", "example {}".format), getattr(data, "outline", None)
        return ExampleSource(len(data), label, data.__getitem__, outline)
    if callable(data) and seed is not None:
        # A generator per example: an example depends only on the seed and its number.
        return ExampleSource(
            None, "drawn example {}".format, lambda number: data(np.random.default_rng([seed, number]))
        )
    forms = "a sequence of examples" + ("" if seed is None else ", or a function that draws one from a NumPy generator")
    raise InputError(f"{what} must be {forms}, not a {type(data).__name__}")


def read_example(value: Any, infos: Sequence[ArraySpec], state: Iterable[str], *, wide: bool) -> Example:
    """Return an example as NumPy arrays: model inputs in the types of the file, other arrays as JAX converts them.

    ``state`` lists the names of state inputs, which an example must not have. ``wide`` keeps 64-bit types. An
    InputError names a missing or unsuitable array.
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
    if info.dtype is None or info.is_text:
        raise InputError(
            f"{info.as_input}: strings, sequences and optionals cannot be batched, so they cannot be trained on"
        )
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
    if array.dtype.kind in "OUSTMm":
        raise InputError(f"{name!r} must be an array of numbers, not {type(value).__name__} of {array.dtype}")
    return array if wide else array.astype(_NARROW.get(array.dtype.name, array.dtype), copy=False)


class NpzFiles(Sequence[dict[str, np.ndarray]]):
    """A sequence of examples in ``.npz`` files, one per file, read on access.

    ``files`` is a folder, or a pattern with ``*``, ``?`` or ``**``, as a path or URL. Files are sorted by name. A
    missing file is an InputError, an unreachable store a StoreError. ``trust_names``, ``check``, ``skip`` and
    ``left_out`` are as in `Mixtures`.
    """

    def __init__(self, files: Location, *, trust_names: bool = False, check: bool = False, skip: float = 0.0):
        self.files, self.trust_names = recordings_at(files, ["*.npz"], "examples"), trust_names
        self.left_out = faults_within(self.files, examine_example, check, skip)
        self.files = [path for path in self.files if path not in self.left_out]

    @property
    def identity(self) -> dict[str, Any]:
        """A digest of the names and contents, as in `Mixtures`."""
        return facts_of({"npz": self.files}, "examples")

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            raise TypeError("examples are read one at a time: the index must be a number")
        return read_npz(self.files[index])

    def outline(self, index: int) -> dict[str, np.ndarray]:
        """Return zeros of the shapes of an example, read from the headers."""
        return {name: np.broadcast_to(0, shape) for name, shape in read_shapes(self.files[index]).items()}

    def label(self, index: int) -> str:
        """Return the name of an example for messages."""
        return f"example {index} ({self.files[index].name})"
