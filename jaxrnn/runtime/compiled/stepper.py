"""`CompiledStepper`: what a compiled file holds, as a `Stepper`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxrnn._jax.context import exact_types, placed
from jaxrnn.errors import InputError
from jaxrnn.runtime.compiled.format import Archive
from jaxrnn.runtime.compiled.functions import Functions
from jaxrnn.runtime.compiled.manifest import BATCHED
from jaxrnn.steps.recordings import recording_specs, scan_steps
from jaxrnn.steps.specs import bind, taken
from jaxrnn.steps.stepper import Flushed, State, batch_note, in_batch, nothing_left, whole_pulse
from jaxrnn.steps.stepspec import StepSpec

Arrays = Mapping[str, Any]


class CompiledStepper(Functions):
    """A stepper from a compiled file: `init`, `step`, `scan` and `flush`.

    The functions are compiled for one stream and for a batch of any size. Mapped once with ``jax.vmap``, they are those
    of a batch. They have no derivatives.

    Attributes:
        spec: the facts about the stepper.
        params: its parameters.
        native: the functions that run as machine code of the file, those of several streams with their number; none
            unless `load_compiled` was asked for them.
    """

    def __init__(self, archive: Archive):
        super().__init__(archive)
        self._start = archive.start

    def __repr__(self) -> str:
        return f"CompiledStepper({self.spec.summary})"

    def init(self, batch: int | None = None, *, params: Sequence[Any] | None = None, constants: Any = None) -> State:
        """The state before the first frame, as in every `Stepper`.

        Args:
            batch: None for one stream, or a number of them.
            params: as in `step`.
            constants: the inputs in ``spec.constants``.

        Raises:
            InputError: constants are needed and were not given, or do not fit.
        """
        with exact_types():
            if self._start is None:
                state = self._call("init", params, self._constants(constants))
                if batch is None or any(isinstance(array, Tracer) for array in state.values()):
                    return in_batch(self.spec, state, batch)
            else:
                sizes = {} if self.spec.batch_symbol is None else {self.spec.batch_symbol: 1}
                state = {
                    each.name: np.broadcast_to(array, each.sized(sizes).sizes)
                    for each, array in zip(self.spec.carried, self._start, strict=True)
                }
            # By NumPy: an operation of JAX would be compiled first, which takes longer than the step.
            state = {name: np.asarray(array) for name, array in state.items()}
            return {name: placed(array) for name, array in in_batch(self.spec, state, batch).items()}

    def _constants(self, constants: Any) -> dict[str, Any]:
        specs = [spec for spec in self.spec.inputs if spec.name in self.spec.constants]
        arrays = {name: array for name, array in (constants or {}).items() if array is not None}
        if any(spec.name not in arrays for spec in specs):
            raise InputError(
                f"the state before the first frame is computed from constants: call init(constants=...) with "
                f"{', '.join(self.spec.constants)}"
            )
        return bind(specs, {spec.name: arrays[spec.name] for spec in specs}, convert=taken)

    def step(self, params: Sequence[Any] | None, state: State, inputs: Arrays) -> tuple[dict[str, Any], State]:
        """One step.

        Args:
            params: as the attribute, or None for those compiled into the step, which is faster.
            state: as `init` or the last step gave it.
            inputs: one frame or pulse, by name.

        Returns:
            The outputs, None for those that only a flush gives, and the state after the step.

        Raises:
            InputError: an input does not fit.
            StateError: the state does not fit.
        """
        with exact_types():
            lead = self.spec.lead(state)
            arrays = self._of_batch(state).bind(inputs, lead, taken)
            outputs, after = self._call(f"step{BATCHED}" if lead else "step", params, dict(state), arrays)
        at_end = {output.name: None for output in self.spec.outputs if output.at_end}
        return {**outputs, **at_end}, after

    def scan(self, params: Sequence[Any] | None, state: State, inputs: Arrays) -> tuple[dict[str, Any], State]:
        """Many steps in one call: of a stream over whole pulses, else with the frames stacked along a first axis.

        Args:
            params: as in `step`.
            state: as in `step`.
            inputs: frames of a recording, by name.

        Raises:
            InputError: an input does not fit.
            StateError: the state does not fit.
        """
        with exact_types():
            lead = self.spec.lead(state)
            arrays = bind(recording_specs(self._of_batch(state), "frames", lead), inputs, note=batch_note(lead))
            if "scan" not in self._serialised:
                scan = functools.partial(scan_steps, self.spec, functools.partial(self.step, params))
                return (jax.vmap(scan) if lead and self.spec.streams else scan)(dict(state), arrays)
            if not lead:
                return self._call("scan", params, dict(state), arrays)
            swapped = {name: jnp.moveaxis(array, 0, 1) for name, array in arrays.items()}
            outputs, after = self._call(f"scan{BATCHED}", params, dict(state), swapped)
            return {name: jnp.moveaxis(array, 0, 1) for name, array in outputs.items()}, after

    def flush(self, params: Sequence[Any] | None, state: State, tail: Arrays | None = None, valid: Any = 0) -> Flushed:
        """What is left when a recording has ended, as in every `Stepper`.

        Args:
            params: as in `step`.
            state: after the last step.
            tail: input frames that do not fill a pulse, by name, padded with anything to no more than one.
            valid: how many frames of the tail exist, in a batch perhaps another number for each; may be traced.

        Raises:
            InputError: the tail does not fit.
            StateError: the state does not fit.
        """
        with exact_types():
            lead = self.spec.lead(state)
            if "flush" not in self._serialised:
                return nothing_left(self.spec, tail, valid)
            arrays = whole_pulse(self._of_batch(state), tail, valid, lead, taken)
            if isinstance(valid, jax.Array):
                existing = jnp.broadcast_to(valid.astype(jnp.int32), lead)
            else:
                existing = np.broadcast_to(np.asarray(valid, np.int32), lead)
            name = f"flush{BATCHED}" if lead else "flush"
            outputs, counts = self._call(name, params, dict(state), arrays or {}, existing)
        return Flushed(outputs, {name: counts.get(name) for name in outputs})

    def _of_batch(self, state: State) -> StepSpec:
        """The facts with the batch of a state, where it is a dimension of the arrays."""
        symbol, lead, batch = self.spec.batch_symbol, self.spec.lead(state), self.spec.batch(state)
        return self.spec if symbol is None or batch is None else self.spec.sized({symbol: 1 if lead else batch})
