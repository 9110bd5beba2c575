"""A stepper with its parameters: one stream, arrays by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from jaxrnn._files.messages import describe
from jaxrnn.errors import InputError, StateError
from jaxrnn.jaxprs.packing import Packed
from jaxrnn.steps.specs import taken
from jaxrnn.steps.stepper import State, Stepper, whole_pulse
from jaxrnn.steps.stepspec import lead_of

Arrays = Mapping[str, Any]


def packed(stepper: Stepper, params: Any, dims: Mapping[str, int] | None = None) -> Any:
    """Parameters with the work done that depends on nothing else, where a step without a time axis can do it.

    A flush takes plain parameters, so those of a stream stay as they are.

    Args:
        stepper: what takes them.
        params: plain or packed.
        dims: sizes of the dimensions that the stepper leaves open, other than the batch.
    """
    if stepper.spec.streams or isinstance(params, Packed) or not hasattr(stepper, "pack"):
        return params
    return stepper.pack(params, **({"dims": dims} if dims else {}))  # pyright: ignore[reportAttributeAccessIssue]


class Bound:
    """One stream of a stepper, whose parameters are closed over: what depends on nothing else is compiled once.

    Attributes:
        spec: that of the stepper, with a batch of 1 where its arrays have one.
        params: its parameters.

    Raises:
        StateError: the model forgets its state, so it has no steps.
        InputError: the object is no stepper, or the parameters do not fit.
    """

    def __init__(self, stepper: Stepper, params: Any = None):
        missing = [name for name in ("spec", "init", "step", "flush") if not hasattr(stepper, name)]
        if missing:
            raise InputError(
                f"expected a model, a streamed function, a compiled file or another stepper, not "
                f"{type(stepper).__name__}, which has no {', '.join(missing)}"
            )
        self._stepper = stepper
        self.params = getattr(stepper, "params", None) if params is None else params
        if self.params is None and stepper.spec.needs_params:
            raise InputError(f"{stepper.spec.label} has no parameters of its own: give params")
        symbol = stepper.spec.batch_symbol
        self.spec = stepper.spec if symbol is None else stepper.spec.sized({symbol: 1})
        flush = self.ready("flush")
        self._flush = flush or jax.jit(lambda state, tail, valid: stepper.flush(self.params, state, tail, valid))

    def ready(self, name: str) -> Callable[..., Any] | None:
        """A function of the stepper that is machine code already, its parameters in it; None where there is none.

        Args:
            name: of the function, as `CompiledStepper.ready` takes it.
        """
        ready = getattr(self._stepper, "ready", None)
        own = self.params is getattr(self._stepper, "params", None)
        return ready(name) if ready is not None and own else None

    def start(self, constants: Arrays | None = None) -> State:
        """As `Stepper.init`, of one stream.

        Raises:
            StateError: it is not what the spec says.
        """
        state = self._stepper.init(params=self.params, constants=None if constants is None else dict(constants))
        if lead_of(self.spec.carried, state):
            raise StateError(f"{self.spec.label}: init() gives a state with a batch axis, but one stream has none")
        return state

    def example_constants(self) -> dict[str, np.ndarray] | None:
        """Zeros for the inputs that the first state is computed from, with which `start` can check the parameters."""
        return {
            each.name: np.zeros(each.sizes, each.dtype) for each in self.spec.inputs if each.name in self.spec.constants
        } or None

    def step(self, state: State, frame: Arrays) -> tuple[dict[str, Any], State]:
        """As `Stepper.step`, less the outputs that only a flush gives.

        It is traced once, so the checks are no part of a live step.

        Raises:
            StateError: the state after the step has other entries, shapes or types than before, as a cache that grows.
            InputError: an input does not fit.
        """
        whole, symbol = self._stepper.spec, self.spec.batch_symbol
        spec = self.spec if symbol is None else whole.sized({symbol: whole.batch(state) or 1})
        outputs, new = self._stepper.step(self.params, state, spec.bind(frame))
        for name, before in state.items():
            after = new.get(name)
            if after is None or (after.shape, after.dtype) != (before.shape, before.dtype):
                raise StateError(
                    f"{self.spec.label}: the state {name!r} is {describe(before)} before a step, and "
                    f"{'missing' if after is None else describe(after)} after it; here, a state keeps its shape"
                )
        return {name: value for name, value in outputs.items() if value is not None}, new

    def flush(self, state: State, tail: Arrays | None, valid: int) -> dict[str, np.ndarray]:
        """As `Stepper.flush`, without the frames that do not exist."""
        filled = whole_pulse(self.spec, tail, valid, convert=taken)
        if filled is None:
            outputs, counts = self._stepper.flush(self.params, state)
        else:
            outputs, counts = self._flush(state, filled, np.int32(valid))
            if valid and not outputs:
                raise InputError(
                    f"{self.spec.label} has a flush without outputs: the {valid} frame(s) of the tail would be lost; "
                    "push whole pulses"
                )
        axes = {output.name: output.time_axis for output in self.spec.outputs}
        return {name: _trimmed(value, axes[name], counts.get(name)) for name, value in outputs.items()}


def _trimmed(value: Any, axis: int | None, count: Any) -> np.ndarray:
    array = np.asarray(value)
    # Not a view, which would keep the rest alive.
    return array.copy() if axis is None else array[(slice(None),) * axis + (slice(int(count)),)].copy()
