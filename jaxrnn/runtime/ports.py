"""The inputs and outputs of a streamed function by name: for pools and files, whose arrays go by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxrnn.errors import InputError
from jaxrnn.onnx.values import describe
from jaxrnn.streaming import StreamInput
from jaxrnn.streaming.arguments import in_type

if TYPE_CHECKING:
    from jaxrnn.streaming import Streamed

Arrays = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Port:
    """One named input of a streamed function.

    Attributes:
        name: its name.
        dtype: its element type.
        shape: of one pulse.
        axis: the time axis; None for an input that is held constant.
    """

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    axis: int | None

    def array(self, value: Any, lead: Sequence[Any] = (), *, partial: bool = False) -> Any:
        """The value as a JAX array of one pulse, behind the axes in ``lead``; with ``partial``, of no more frames.

        Raises:
            InputError: it has another type or shape.
        """
        array = in_type(value, self.dtype)
        open_axis = self.axis + len(lead) if partial and self.axis is not None else None
        shape = (*lead, *self.shape)
        fits = len(shape) == array.ndim and all(
            have <= want if axis == open_axis else have == want
            for axis, (have, want) in enumerate(zip(array.shape, shape, strict=True))
        )
        if fits and array.dtype == self.dtype:
            return array
        shown = ", ".join(f"up to {size}" if axis == open_axis else str(size) for axis, size in enumerate(shape))
        raise InputError(f"input {self.name!r} must be {self.dtype.name}[{shown}], not {describe(array)}")


def input_ports(streamed: Streamed) -> tuple[Port, ...]:
    """The inputs of a streamed function that takes a dict.

    Raises:
        InputError: it takes another tree.
    """
    inputs = _by_name(streamed.inputs, "takes", StreamInput)
    return tuple(Port(name, each.dtype, each.shape, each.axis) for name, each in sorted(inputs.items()))


def output_axes(streamed: Streamed) -> dict[str, int | None]:
    """The time axis of every output of a streamed function that gives a dict; None where it is known at the end.

    Raises:
        InputError: it gives another tree.
    """
    return _by_name(streamed.axes, "gives", (int, type(None)))


def fill_pulse(
    ports: Sequence[Port],
    pulse: int,
    tail: Arrays | None,
    valid: Any,
    lead: Sequence[Any] = (),
    *,
    multiple: int,
) -> dict[str, Any]:
    """A tail of at most a pulse made as long as one, so that one compiled flush serves every tail.

    Args:
        ports: the inputs.
        pulse: input frames in a pulse.
        tail: arrays by name; inputs with a time axis may all be missing.
        valid: how many of its frames exist; held against the tail where it is known.
        lead: the batch in front of every array.
        multiple: what every number of frames is a multiple of.

    Raises:
        InputError: the tail does not fit, or ``valid`` is no number of frames that it can have.
    """
    given = {} if tail is None else tail
    if not isinstance(given, Mapping):
        raise InputError(f"the tail must be a dict of arrays by name, not a {type(given).__name__}")
    unknown = [name for name in given if name not in {port.name for port in ports}]
    if unknown:
        raise InputError(f"there is no input {unknown[0]!r}; the inputs are: {', '.join(port.name for port in ports)}")
    arrays, frames = {}, {}
    for port in ports:
        value = given.get(port.name)
        if port.axis is None:
            if value is None:
                raise InputError(f"input {port.name!r} is held constant: the tail must have it")
            arrays[port.name] = port.array(value, lead)
            continue
        axis, whole = port.axis + len(lead), port.shape[port.axis]
        empty = (*lead, *(0 if place == port.axis else size for place, size in enumerate(port.shape)))
        array = jnp.zeros(empty, port.dtype) if value is None else port.array(value, lead, partial=True)
        frames[port.name] = array.shape[axis] * pulse / whole
        widths = [(0, whole - array.shape[axis]) if place == axis else (0, 0) for place in range(array.ndim)]
        arrays[port.name] = jnp.pad(array, widths)
    if len(set(frames.values())) > 1 or not next(iter(frames.values())).is_integer():
        raise InputError(f"the inputs of the tail have different numbers of input frames: {frames}")
    count = int(next(iter(frames.values())))
    if not isinstance(valid, Tracer):
        known = np.asarray(valid)
        if np.any((known < 0) | (known > count) | (known % multiple != 0)):
            of = "" if multiple == 1 else f" and a multiple of {multiple}"
            raise InputError(f"valid must be from 0 to the {count} frame(s) of the tail{of}, not {valid}")
    return arrays


def _by_name(tree: Any, verb: str, leaf: Any) -> dict[str, Any]:
    """A tree that is a flat dict by name."""
    if isinstance(tree, dict) and all(isinstance(k, str) and isinstance(v, leaf) for k, v in tree.items()):
        return tree
    raise InputError(
        f"the streamed function {verb} {jax.tree.structure(tree)}; arrays go by name here: stream a function that "
        f"{verb} one dict of arrays with strings for keys"
    )
