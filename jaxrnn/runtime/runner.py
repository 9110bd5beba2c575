"""One live stream with as little around each step as can be: for a microphone, not for a server."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxrnn._jax.context import exact_types, own_transfers
from jaxrnn.runtime.bound import Bound
from jaxrnn.runtime.live import JoinedStep, LiveStep, ReadyStep
from jaxrnn.runtime.pickling import on_device, on_host
from jaxrnn.steps.specs import bind
from jaxrnn.steps.stepper import Stepper

Arrays = Mapping[str, Any]

_AS_IT_IS = contextlib.nullcontext()


class Runner:
    """One live stream, NumPy in and NumPy out; it holds its state and is not a pure function.

    The parameters are compiled in. Of a compiled file with machine code, which is then all that runs, nothing is
    compiled.

    Example::

        run = jaxrnn.Runner(offline.stream(pulse=4), offline.params)
        for pulse in microphone:
            outputs = run({"input": pulse})
        rest = run.flush()

    Threads may share it: their calls take turns, each a whole step. A copy is another stream, which goes on from the
    same state; a pickle holds function, parameters and state.

    On CPU, a step is faster still in a process that begins with ``jax.config.update("jax_cpu_enable_async_dispatch",
    False)``: it then runs in the calling thread.

    Args:
        stepper: a model whose state is external, a streamed function, a compiled file, or one's own `Stepper`.
        params: its parameters, plain or packed; the stepper's own by default.
        constants: inputs without a time axis, where the state before the first frame is computed from them.

    Raises:
        StateError: the model forgets its state, so it has no steps; `Model.stream` turns it into a streamed function.
        InputError: the parameters do not fit, or the object is no stepper of arrays by name.
    """

    def __init__(self, stepper: Stepper, params: Any = None, constants: Arrays | None = None):
        self._arguments = {"stepper": stepper, "params": params, "constants": constants}
        self._stream = Bound(stepper, params)
        self._turn = threading.Lock()
        self._start = self._stream.start(constants)
        ready = self._stream.ready("step")
        self._step: LiveStep = (
            JoinedStep(self._stream.step, self._start) if ready is None else ReadyStep(ready, self._stream.spec.bind)
        )
        self._dtypes = {spec.name: spec.dtype for spec in self._stream.spec.inputs}
        # 64-bit types, which JAX narrows elsewhere, take a context, and entering it takes time.
        self._wide = any(each.is_wide for each in (*self._stream.spec.inputs, *self._stream.spec.state))
        self.reset()

    def __repr__(self) -> str:
        return f"Runner({self._stream.spec.summary})"

    def __copy__(self) -> Runner:
        result = object.__new__(Runner)
        # What is compiled is shared; the arrays of the state are never written to.
        vars(result).update(vars(self), _turn=threading.Lock())
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> Runner:
        return self.__copy__()

    def __getstate__(self) -> dict[str, Any]:
        return {"arguments": on_host(self._arguments), "state": on_host(self._state)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**on_device(state["arguments"]))
        self._state = on_device(state["state"])

    def reset(self) -> None:
        """Begin a new stream."""
        with self._turn, exact_types():
            self._state = self._step.pack(self._start)

    def __call__(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """One step.

        Args:
            inputs: the arrays of one step by name, without a batch; anything that is no NumPy array of the declared
                type and shape is converted first, which takes longer.

        Returns:
            The outputs by name, read-only views of one fresh buffer.

        Raises:
            InputError: an input is missing, unknown, or of another type or shape; the stream stays as it was.
        """
        for name, array in inputs.items():
            if type(array) is not np.ndarray or array.dtype != self._dtypes.get(name):
                inputs = self._bound(inputs)
                break
        with self._turn:
            # Contexts, `exact_types` among them, take as long as a small network computes: only what is needed.
            if not self._wide:
                try:
                    outputs, self._state = self._step(self._state, inputs)
                    return outputs
                except jax.errors.JaxRuntimeError as error:
                    if "transfer" not in str(error):
                        raise
            with own_transfers(), jax.enable_x64(True) if self._wide else _AS_IT_IS:
                outputs, self._state = self._step(self._state, inputs)
                return outputs

    def _bound(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """The inputs as arrays of the declared types."""
        with exact_types():
            return {name: np.asarray(value) for name, value in bind(self._stream.spec.inputs, inputs).items()}

    def flush(self, tail: Arrays | None = None, valid: int = 0) -> dict[str, np.ndarray]:
        """What is left when the recording has ended, by name; then a new stream begins.

        These are the frames that a delay has kept back, and what is known at the end; of a model in steps, nothing.

        Args:
            tail: input frames that do not fill a pulse.
            valid: how many of them exist.
        """
        with self._turn, exact_types():
            results = self._stream.flush(self._step.unpack(self._state), tail, valid)
            self._state = self._step.pack(self._start)
        return results

    @property
    def state(self) -> dict[str, Any]:
        """The state after the last step, by the names that ``spec.state`` of the stepper lists."""
        with exact_types():
            entries = self._stream.spec.entries(self._step.unpack(self._state))
            return {name: jax.device_put(array) for name, array in entries.items()}
