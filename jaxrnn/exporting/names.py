"""The names of a file's arrays: the stepper's own, where no other array of the file has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jaxrnn.errors import InputError
from jaxrnn.onnx.stepfile import StateNames
from jaxrnn.steps.stepspec import StepSpec

#: What an array of a file is: an input or output of the stepper, an entry of the state before or after the step, the
#: number of frames of a tail that exist, or that of an output, a parameter; and the stepper's name for it.
Key = tuple[str, str]
INPUT, OUTPUT, BEFORE, AFTER = "input", "output", "before", "after"
VALID, COUNT, PARAM = "valid", "count", "param"


class Names:
    """Names that are each given once, the same in a step and in its flush.

    Inputs come first, then outputs, the state and the rest: what comes later and would have a name that is taken gets
    one with an ending, so that equal steppers have equal names.

    Args:
        spec: of the stepper.
        own: the names that the state has in the file that a model came from; by default it goes in under its own name
            and comes out with ``_next``.
    """

    def __init__(self, spec: StepSpec, own: Mapping[str, StateNames] | None = None):
        self._taken: set[str] = set()
        self._names: dict[Key, str] = {}
        for each in spec.inputs:
            self._names[INPUT, each.name] = self._unused(each.name, "in")
        for each in spec.outputs:
            self._names[OUTPUT, each.name] = self._unused(each.name, "out")
        own = own or {each.name: StateNames(each.name, None) for each in spec.state}
        for name, names in own.items():
            self._names[BEFORE, name] = self._unused(names.input, "state")
        for name, names in own.items():
            self._names[AFTER, name] = self._unused(names.output or f"{self[BEFORE, name]}_next", "state")
        self._names[VALID, ""] = self._unused("valid", "frames")
        for each in spec.outputs:
            if each.time_axis is not None:
                self._names[COUNT, each.name] = self._unused(f"{self[OUTPUT, each.name]}_count", "frames")

    def __getitem__(self, key: Key) -> str:
        """The name of an array in the file."""
        return self._names[key]

    def of(self, kind: str, keys: Mapping[Key, Any]) -> dict[str, str]:
        """The names of arrays of one kind, by the stepper's."""
        return {key[1]: self[key] for key in keys if key[0] == kind}

    def state(self, after: bool) -> dict[str, StateNames]:
        """Where every entry of the state goes in, and comes out if it does."""
        entries = [name for kind, name in self._names if kind == BEFORE]
        return {name: StateNames(self[BEFORE, name], self[AFTER, name] if after else None) for name in entries}

    def of_params(self, paths: Sequence[Any]) -> list[str]:
        """The names of parameters by their paths, such as ``encoder.0.kernel``."""
        for path in paths:
            key = PARAM, jax.tree_util.keystr(path)
            if key not in self._names:
                self._names[key] = self._unused(".".join(map(_part, _of_variable(path))) or "params", "param")
        return [self[PARAM, jax.tree_util.keystr(path)] for path in paths]

    def _unused(self, name: str, ending: str) -> str:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"the name {name!r} is no text that a file can hold: {error.reason}") from error
        candidates = [name, f"{name}_{ending}"] if name else [ending]
        candidates += [f"{candidates[-1]}_{count}" for count in range(2, len(self._taken) + 3)]
        chosen = next(each for each in candidates if each not in self._taken)
        self._taken.add(chosen)
        return chosen


def _of_variable(path: Sequence[Any]) -> Sequence[Any]:
    """A path without the last step of Flax, from a variable to its value."""
    return path[:-1] if path and path[-1] == jax.tree_util.GetAttrKey("value") else path


def _part(key: Any) -> str:
    """One step of a path into a tree."""
    if isinstance(key, (jax.tree_util.DictKey, jax.tree_util.FlattenedIndexKey)):
        return str(key.key)
    if isinstance(key, jax.tree_util.SequenceKey):
        return str(key.idx)
    return str(getattr(key, "name", key))
