"""One stream of whatever a pool runs, behind one interface: a model in steps, or a streamed function in pulses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import jax
import numpy as np

from jaxrnn.errors import InputError
from jaxrnn.model import Model
from jaxrnn.runtime.ports import fill_pulse, input_ports, output_axes
from jaxrnn.specs import ArraySpec
from jaxrnn.streaming import Streamed

Arrays = Mapping[str, Any]
State = dict[str, Any]


class Single(Protocol):
    """One stream, with its parameters: arrays by name, without a batch in front.

    Parameters are closed over, so that what depends on nothing else is computed when a pool is compiled.
    """

    @property
    def inputs(self) -> tuple[ArraySpec, ...]:
        """Declarations of the inputs of one step."""
        ...

    @property
    def batch_symbol(self) -> str | None:
        """The name of an open dimension that is 1 for one stream."""
        ...

    def start(self, held: Arrays | None) -> State:
        """The state before the first step."""
        ...

    def step(self, state: State, frame: Arrays) -> tuple[dict[str, Any], State]:
        """One step, pure and traceable; outputs that are known only at the end are not in the dict."""
        ...

    def flush(self, state: State, tail: Arrays | None, valid: int) -> dict[str, np.ndarray]:
        """What has been kept back, and what is known at the end."""
        ...

    def entries(self, state: State) -> dict[str, Any]:
        """The state by the names that people know."""
        ...


def single(function: Model | Streamed, params: Any) -> Single:
    """One stream of a model in steps, or of a streamed function.

    Raises:
        StateError: a model without steps.
        InputError: neither of them, a streamed function of other trees than dicts by name, or other parameters than it
            has.
    """
    if isinstance(function, Streamed):
        return SingleStreamed(function, params)
    if isinstance(function, Model):
        return SingleModel(function, params)
    raise InputError(f"expected a model or a streamed function, not {type(function).__name__}")


class SingleModel:
    """One stream of a model in steps: it keeps nothing back."""

    def __init__(self, model: Model, params: Any):
        self._model, self._params = model, params
        self.inputs, self.batch_symbol = model.step_inputs, model.batch_symbol
        model._check_params(params)

    def start(self, held: Arrays | None) -> State:
        """As `Model.init_state`."""
        if held is not None:
            raise InputError("a model in steps holds no input constant: every frame has all of its inputs")
        return dict(self._model.init_state(1))

    def step(self, state: State, frame: Arrays) -> tuple[dict[str, Any], State]:
        """As `Model.step`."""
        return self._model.step(self._params, state, frame)

    def flush(self, state: State, tail: Arrays | None, valid: int) -> dict[str, np.ndarray]:
        """Nothing: every step has given all that it had."""
        if tail is not None or valid:
            raise InputError("a model in steps has no tail: push whole frames")
        return {}

    def entries(self, state: State) -> dict[str, Any]:
        """The state itself."""
        return state


class SingleStreamed:
    """One stream of a streamed function."""

    batch_symbol: str | None = None

    def __init__(self, streamed: Streamed, params: Any):
        self._streamed, self._params = streamed, params
        streamed.check_params(params)
        self._ports, self._axes = input_ports(streamed), output_axes(streamed)
        self.inputs = tuple(ArraySpec(port.name, port.dtype, port.shape) for port in self._ports)
        self._flush = jax.jit(lambda state, tail, valid: streamed.flush(self._params, state, tail, valid))

    def start(self, held: Arrays | None) -> State:
        """As `Streamed.init`."""
        return self._streamed.init(1, self._params, None if held is None else dict(held))

    def step(self, state: State, frame: Arrays) -> tuple[dict[str, Any], State]:
        """As `Streamed.step`."""
        outputs, state = self._streamed.step(self._params, state, dict(frame))
        return {name: value for name, value in outputs.items() if value is not None}, state

    def flush(self, state: State, tail: Arrays | None, valid: int) -> dict[str, np.ndarray]:
        """As `Streamed.flush`, without the frames that do not exist."""
        if isinstance(valid, bool) or not isinstance(valid, (int, np.integer)):
            raise InputError(f"valid must be a number of frames, not {valid!r}")
        filled = fill_pulse(self._ports, self._streamed.pulse, tail, valid, multiple=self._streamed.multiple)
        outputs, counts = self._flush(state, filled, np.int32(valid))
        return {name: _trimmed(outputs[name], axis, counts[name]) for name, axis in self._axes.items()}

    def entries(self, state: State) -> dict[str, Any]:
        """As `Streamed.entries`."""
        return self._streamed.entries(state)


def _trimmed(value: Any, axis: int | None, count: Any) -> np.ndarray:
    array = np.asarray(value)
    # Not a view, which would keep the rest alive.
    return array.copy() if axis is None else array[(slice(None),) * axis + (slice(int(count)),)].copy()
