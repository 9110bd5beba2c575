"""The examples that a configuration names: files read one at a time, or what a function makes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxrnn.arrays import read_arrays
from jaxrnn.errors import InputError
from jaxrnn.messages import near
from jaxrnn.onnx.values import describe

TimeAxis = int | Mapping[str, int] | None


class NpzExamples(Sequence[dict[str, np.ndarray]]):
    """Examples in ``.npz`` files, one in each, its arrays by name; a file is read whenever its example is asked for.

    Args:
        files: a folder, or a pattern with ``*``, ``?`` or ``**``; in the order of their names.
        time_axis: as for `jaxrnn.training.fit`: files may differ in their length along it, and in nothing else.

    Raises:
        InputError: there is no such file. When an example is asked for: its file is no such archive, or has other
            names, types or sizes than the first.
    """

    def __init__(self, files: Path, time_axis: TimeAxis = None):
        found = files.glob("*.npz") if files.is_dir() else _glob(files)
        self.files = sorted(path for path in found if path.is_file())
        if not self.files:
            raise InputError(f"there are no .npz files in {files}" if files.is_dir() else f"there is no file {files}")
        self._time_axis = time_axis
        self._first: dict[str, np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: Any) -> Any:
        path = self.files[index]
        if isinstance(path, list):
            raise TypeError("examples are read one at a time: the index must be a number")
        example = read_npz(path)
        if self._first is None:
            self._first = example if index == 0 else read_npz(self.files[0])
        self._check(path, example, self._first)
        return example

    def _check(self, path: Path, example: dict[str, np.ndarray], first: dict[str, np.ndarray]) -> None:
        for name in [*first, *example]:
            if name not in example:
                raise InputError(
                    f"{path} has no array {name!r}{near(name, example)}, which {self.files[0].name} has; there are: "
                    f"{', '.join(example)}"
                )
            if name not in first:
                raise InputError(f"{path} has an array {name!r}, which {self.files[0].name} has not")
            if self._kind(name, example[name]) != self._kind(name, first[name]):
                mend = "" if self._time_axis is not None else "; for unequal lengths say which axis is time: time_axis"
                raise InputError(
                    f"{path}: {name!r} is {describe(example[name])}, but {describe(first[name])} in "
                    f"{self.files[0].name}{mend}"
                )

    def _kind(self, name: str, array: np.ndarray) -> tuple[Any, ...]:
        axis = self._time_axis.get(name) if isinstance(self._time_axis, Mapping) else self._time_axis
        if axis is None or not -array.ndim <= axis < array.ndim:
            return array.dtype, array.shape
        return array.dtype, array.shape[: axis % array.ndim], array.shape[axis % array.ndim + 1 :]


def _glob(pattern: Path) -> Iterable[Path]:
    """The files of a pattern; what stands before its first sign is a folder, whatever its name."""
    parts = pattern.absolute().parts
    for place, part in enumerate(parts):
        if "*" in part or "?" in part:
            return Path(*parts[:place]).glob("/".join(parts[place:]))
    return [pattern]


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a ``.npz`` file by name.

    Raises:
        InputError: it cannot be read, or is no such file; names it.
    """
    loaded = read_arrays(path)
    if isinstance(loaded, np.ndarray):
        raise InputError(f"{path} holds one array without a name; write it with numpy.savez(path, name=array)")
    return loaded


def check_data(data: Any, name: str, *, drawn: bool) -> Any:
    """What a function made, if it is a sequence of examples or, where that may be, a function that draws one.

    Raises:
        InputError: it is neither.
    """
    if isinstance(data, Mapping) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        if drawn and callable(data):
            return data
        also = ", or a function of a NumPy generator that draws one" if drawn else ""
        raise InputError(f"{name} must return a sequence of examples{also}, not {_kind_of(data)}")
    return data


def _kind_of(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
