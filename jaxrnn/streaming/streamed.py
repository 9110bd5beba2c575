"""What `stream` returns: a group of pure functions, and the facts about them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from jaxrnn._files.messages import part_of, wrapped
from jaxrnn._jax.context import own_arithmetic
from jaxrnn.errors import InputError
from jaxrnn.jaxprs.packing import Packed
from jaxrnn.steps.recordings import part, whole
from jaxrnn.steps.stepper import Flushed, State, in_batch
from jaxrnn.steps.stepspec import StateSpec, StepSpec
from jaxrnn.streaming.arguments import Arguments
from jaxrnn.streaming.facts import named_spec, table_of
from jaxrnn.streaming.plan import Plan, check_pulse
from jaxrnn.streaming.pulses import Pulses
from jaxrnn.streaming.values import Chunk


def _in_its_types(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method inside which types are those of the trace: 64 bits wide if they were so there."""

    @functools.wraps(method)
    def inside(self: Streamed, *arguments: Any, **named: Any) -> Any:
        with self._context(), own_arithmetic():
            return method(self, *arguments, **named)

    return inside


Arrays = Mapping[str, Any]


class Streamed:
    """A function in streaming form: pure functions of parameters, state and one pulse of input, a `Stepper`.

    They can be jitted, differentiated, mapped and exported. A batch of streams has a leading axis on every array of
    state, input and output; `init` makes such a state, and the functions recognise it.

    A copy is the same object; a pickle holds the function that was streamed, which must be one that can be pickled: of
    a model, or defined by a module.

    Attributes:
        pulse: input frames in each step.
        multiple: what every number of input frames is a multiple of.
    """

    def __init__(
        self,
        plan: Plan,
        structure: Any,
        params: Any,
        *,
        pulse: int | None,
        multiple: int,
        context: Callable[[], AbstractContextManager[Any]],
        again: Callable[..., Streamed],
    ):
        self._plan, self._structure, self._context, self._again = plan, structure, context, again
        units = 1 if pulse is None else check_pulse(pulse, plan.clock.unit, multiple)
        self._pulses = Pulses(plan, params, units, multiple)
        #: The facts, with the arrays by their paths: an input or output may be any tree.
        self._flat = self._pulses.spec
        self._arguments = Arguments(self._flat, structure, plan.lengths)
        self.pulse, self.multiple = self._flat.pulse, multiple

    def with_pulse(self, pulse: int) -> Streamed:
        """The same function in pulses of another size; one state serves all.

        Raises:
            StreamError: the pulse does not fit the strides.
        """
        return Streamed(
            self._plan,
            self._structure,
            self._pulses.example,
            pulse=pulse,
            multiple=self.multiple,
            context=self._context,
            again=self._again,
        )

    def __copy__(self) -> Streamed:
        return self  # nothing of it changes

    def __deepcopy__(self, memo: dict[int, Any]) -> Streamed:
        return self

    def __reduce__(self) -> tuple[Callable[..., Streamed], tuple[Any, ...]]:
        return self._again, (self.pulse,)

    # -- functions

    @_in_its_types
    def init(self, batch: int | None = None, *, params: Any = None, constants: Any = None) -> State:
        """The state before the first frame.

        Args:
            batch: None for one stream; a number, 1 too, gives every array a leading axis of that size.
            params: only needed where the state begins with something computed from parameters, such as a trained
                initial carry; the error says so.
            constants: the input's leaves without a time axis (a pytree like x, the others None), only needed where the
                state begins with something computed from them.

        Raises:
            InputError: parameters or constants are needed and were not given, or do not fit.
        """
        leaves = None if constants is None else self._arguments.constants(constants)
        state = in_batch(self._flat, self._pulses.init(params, leaves), batch)
        # Without compiling anything, which ``jnp.asarray`` does.
        return {name: jax.device_put(each) if isinstance(each, np.ndarray) else each for name, each in state.items()}

    @_in_its_types
    def step(self, params: Any, state: State, x: Any) -> tuple[Any, State]:
        """One pulse.

        Args:
            params: the function's parameters; None where it has none.
            state: as `init` or the last step gave it. It is the same for every pulse size.
            x: the input, with `pulse` frames.

        Returns:
            The outputs of this pulse, of static shapes, None for those that are known only at the end; and the state.
        """
        lead = self._flat.lead(state)
        arrays = self._arguments.pulse(x, lead)
        self._pulses.check_params(params)
        self._check_most(state, self.pulse)
        outputs, state = self._pulses.step(params, dict(state), arrays, batched=bool(lead))
        return self._tree(outputs), state

    @_in_its_types
    def scan(self, params: Any, state: State, x: Any) -> tuple[Any, State]:
        """Many pulses in one call: as `step` after `step`, the outputs joined along their time axes.

        Args:
            params: as in `step`.
            state: as in `step`.
            x: the input, with the frames of one pulse or more.

        Raises:
            InputError: the frames are no whole number of pulses.
        """
        lead = self._flat.lead(state)
        arrays, frames = self._arguments.recording(self._arguments.leaves(x), lead)
        self._pulses.check_params(params)
        self._check_most(state, frames)
        outputs, state = self._pulses.scan(params, dict(state), arrays, batched=bool(lead))
        return self._tree(outputs), state

    @_in_its_types
    def pack(self, params: Any) -> Packed:
        """Do once what a step of this pulse does with the parameters alone; `step` takes the result in their place.

        Faster still is to close over the parameters, ``jax.jit(functools.partial(streamed.step, params))``, which
        compiles them in.

        Args:
            params: the function's parameters.

        Raises:
            InputError: they do not fit.
        """
        self._pulses.check_params(params)
        return self._pulses.pack(params)

    def _tree(self, outputs: Iterable[Any]) -> Any:
        return jax.tree.unflatten(self._plan.output_structure, outputs)

    @_in_its_types
    def flush(self, params: Any, state: State, tail: Any = None, valid: Any = 0) -> Flushed:
        """The rest, when the stream has ended: what the delay has kept back, and what is known at the end.

        Args:
            params: as in `step`.
            state: after the last step.
            tail: input frames that do not fill a pulse, any number of them, padded with anything.
            valid: how many frames of the tail exist; may be traced.

        Raises:
            InputError: an argument does not fit; or the recording has a length that the constraints do not allow.
        """
        lead = self._flat.lead(state)
        arrays, frames = self._arguments.tail(tail, lead)
        units = self._plan.rest(frames // self.multiple)
        existing = self._arguments.existing(valid, frames)
        self._check_length(state, existing)
        padded = self._pulses.padded(arrays, units, len(lead))
        self._pulses.check_params(params)
        flushed = self._pulses.flush(params, dict(state), padded, existing, units=units, batched=bool(lead))
        return Flushed(*map(self._tree, flushed))

    @_in_its_types
    def run(self, params: Any, x: Any) -> Any:
        """A whole recording through `init`, `step` after `step` and `flush`: what the function gives on all of it.

        Args:
            params: as in `step`.
            x: the input, with any number of frames that the constraints of `stream` allow.
        """
        arrays, total = self._arguments.whole(x)
        state = self.init(params=params, constants=self._arguments.tree(arrays))
        end = total - total % self.pulse
        bodies = [None] * len(self._flat.outputs)
        if end:
            outputs, state = self.scan(params, state, self._arguments.tree(part(self._flat, arrays, 0, end)))
            bodies = self._plan.output_structure.flatten_up_to(outputs)
        tail = self._arguments.tree(part(self._flat, arrays, end))
        last = self._plan.output_structure.flatten_up_to(self.flush(params, state, tail, total - end).outputs)
        lengths = [
            int(kind.timeline.length(total // self.multiple)) if isinstance(kind, Chunk) else None
            for kind in self._plan.outputs
        ]
        return self._tree(whole(*parts) for parts in zip(self._flat.outputs, bodies, last, lengths, strict=True))

    def _check_most(self, state: State, frames: int) -> None:
        """Refuse frames that no recording has, by the constraints, where the state is known."""
        most = self._plan.lengths.most
        if most is None or any(isinstance(each, Tracer) for each in state.values()):
            return
        total = int(np.max(self._plan.total(self._flat.entries(state), frames // self.multiple), initial=0))
        if total > most:
            raise InputError(
                f"{self._flat.label}: this pulse exceeds {most * self.multiple} frames, the limit of "
                f"{self._plan.lengths}"
            )

    def _check_length(self, state: State, existing: Any) -> None:
        """Refuse a recording that the constraints do not allow, where its length is known."""
        known = not any(isinstance(each, Tracer) for each in (*state.values(), existing))
        if known and self._plan.lengths.constraints:
            for total in np.atleast_1d(self._plan.total(self._flat.entries(state), existing)):
                self._plan.lengths.check(self._flat.label, int(total) * self.multiple, self.multiple)

    # -- facts

    @property
    def fingerprint(self) -> str:
        """What tells the function, as it was traced, from others; values of parameters do not count."""
        return self._plan.fingerprint

    @property
    def delay(self) -> Any:
        """For every output, the frames that come before its frame 0; None for what is known only at the end."""
        return self._tree(each.delay for each in self._flat.outputs)

    @property
    def rate(self) -> Any:
        """For every output, its frames for each input frame."""
        return self._tree(each.rate for each in self._flat.outputs)

    @property
    def inputs(self) -> Any:
        """What a step takes: a pytree like the input, of `ArraySpec`."""
        return jax.tree.unflatten(self._structure, self._flat.inputs)

    @property
    def axes(self) -> Any:
        """For every output, its time axis; None for what is known only at the end."""
        return self._tree(each.time_axis for each in self._flat.outputs)

    @property
    def look_ahead(self) -> int:
        """How many input frames after its own place an output frame depends on, at most."""
        return self._flat.look_ahead

    @property
    def receptive_field(self) -> int | None:
        """How many input frames an output frame depends on, at most; None where a recurrence remembers all of them."""
        return self._flat.receptive_field

    @property
    def smallest_pulse(self) -> int:
        """The smallest pulse that fits the strides, in input frames; its multiples fit too."""
        return self._flat.smallest_pulse

    @property
    def state(self) -> tuple[StateSpec, ...]:
        """Every entry of the state: its name, from the ONNX node, the scope or the primitive, and what it is for."""
        return self._flat.state

    @property
    def spec(self) -> StepSpec:
        """The arrays by name, and the facts.

        Raises:
            InputError: the function takes or gives another tree than one dict of arrays by name.
        """
        return self._spec

    @functools.cached_property
    def _spec(self) -> StepSpec:
        with self._context(), own_arithmetic():
            depends = self._pulses.initial_constants
        return named_spec(self._flat, self._structure, self._plan.output_structure, depends)

    @_in_its_types
    def entries(self, state: State) -> dict[str, jax.Array]:
        """The entries of a state by the names in `state`; `step` takes and gives them joined, which is faster."""
        self._flat.lead(state)
        return self._flat.entries(state)

    def table(self) -> str:
        """The facts, for people."""
        return table_of(self._flat)

    def __repr__(self) -> str:
        return wrapped(f"Streamed({self._flat.summary}, delay {part_of(self.delay)})")
