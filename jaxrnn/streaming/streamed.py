"""`Streamed`: the result of `stream`, a group of pure functions and the facts about these functions."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxrnn._files.messages import describe, near, part_of, wrapped
from jaxrnn._jax.context import cast_param, check_names, check_param, is_staged, jitted, own_arithmetic
from jaxrnn.cells.forms import Types, product_type
from jaxrnn.errors import InputError, StreamError, is_count
from jaxrnn.jaxprs.schedule import Packed, Purpose, Step, fits, fold, folding_of, run_folded, unpack
from jaxrnn.steps.recordings import joined_output, padded, part, recording_specs, scan_first, scan_steps
from jaxrnn.steps.specs import Arrays, ArraySpec, bind, converted, taken
from jaxrnn.steps.stepper import NO_NOTES, ExportForm, Flushed, State, check_valid
from jaxrnn.steps.stepspec import OutputSpec, StateSpec, StepSpec, batch_note, in_batch, said_past
from jaxrnn.streaming.dimensions import SYMBOL
from jaxrnn.streaming.plan import Plan, as_struct
from jaxrnn.streaming.values import Chunk, FinalValue, along


def _in_its_types(method: Callable[..., Any]) -> Callable[..., Any]:
    """Run a method with the types of the trace, such as 64-bit integers."""

    @functools.wraps(method)
    def inside(self: Streamed, *arguments: Any, **named: Any) -> Any:
        with self._context(), own_arithmetic():
            return method(self, *arguments, **named)

    return inside


class Streamed:
    """A streaming function: pure functions of parameters, state and a pulse of input. A `Stepper`.

    The functions can be jitted, differentiated, mapped and exported. For a batch of streams, each array of state, input
    and output has a leading axis. `init` creates such a state, and the other functions recognise the axis.

    Copying returns the same object. A pickle contains the original function, which must be picklable: the function of
    a model, or a function that a module defines.

    Attributes:
        pulse: input frames in each step.
        multiple: the number of input frames is always a multiple of this number.
    """

    def __init__(
        self,
        plan: Plan,
        structure: Any,
        *,
        pulse: int | None,
        recipe: Any,
    ):
        #: How `stream` was called, a `jaxrnn.streaming.transform.Recipe`.
        self._recipe = recipe
        self._plan, self._structure, self._context = plan, structure, recipe.types.in_force
        self.multiple = plan.clock.multiple
        self._units = 1 if pulse is None else _units_of(pulse, plan.clock.unit, self.multiple)
        #: The facts, with arrays named by path: inputs and outputs may be any pytree.
        self._flat = plan.spec(self._units)
        self.pulse = self._flat.pulse
        self._traced = functools.cache(self._traced_step)

    def with_pulse(self, pulse: int) -> Streamed:
        """Return the same function with a new pulse; the state does not depend on the pulse.

        Raises:
            StreamError: the pulse does not fit the strides.
        """
        return Streamed(self._plan, self._structure, pulse=pulse, recipe=self._recipe)

    def __copy__(self) -> Streamed:
        return self  # immutable

    def __deepcopy__(self, memo: dict[int, Any]) -> Streamed:
        return self

    def __reduce__(self) -> tuple[Callable[..., Streamed], tuple[Any, ...]]:
        return self._recipe, (self.pulse,)

    def _export_form(self) -> ExportForm:
        function = self._recipe.arguments["function"]
        operators, notes = getattr(function, "operators", None), getattr(function, "notes", NO_NOTES)
        plain = self._recipe.in_types(plain=True)(self.pulse)
        return ExportForm(plain, operators=operators, keeps_types=True, has_layers=True, notes=notes)

    # -- functions

    @_in_its_types
    def init(self, batch: int | None = None, *, params: Any = None, constants: Any = None) -> State:
        """Return the state before the first frame.

        Args:
            batch: the number of streams, or None for a single stream. A number, even 1, adds a leading axis of this
                size to each array.
            params: the parameters. Required only if the state depends on parameters, such as a trained initial carry.
            constants: the leaves of the input without a time axis (a pytree like x, in which other leaves are None).
                Required only if the state depends on these leaves.

        Raises:
            InputError: required parameters or constants are missing, or do not fit.
        """
        if params is not None:
            self._check_params(params)
        initial, count = self._plan.initial, len(jax.tree.leaves(self._plan.params))
        groups = {
            "params": (None if params is None else self._param_leaves(params), slice(0, count)),
            "constants": (None if constants is None else self._constants(constants), slice(count, None)),
        }
        arguments: list[Any] = []
        for name, (leaves, own) in groups.items():
            needed = initial.depends[own]
            if leaves is None and any(needed):
                raise InputError(f"the state before the first frame depends on {name}: call `init({name}=...)`")
            arguments += [None] * len(needed) if leaves is None else leaves
        state = self._computed_state(arguments) if initial.known is None else initial.known
        # ``jnp.asarray`` would compile a program; ``device_put`` does not.
        return {
            name: jax.device_put(each) if isinstance(each, np.ndarray) else each
            for name, each in in_batch(self._flat, state, batch).items()
        }

    @_in_its_types
    def step(self, params: Any, state: State, x: Any) -> tuple[Any, State]:
        """Process a pulse.

        Args:
            params: the parameters of the function; None if the function has no parameters.
            state: the state from `init` or from the previous step, with any pulse.
            x: the input, with `pulse` frames.

        Returns:
            The outputs of this pulse, of static shapes, and the new state. An output that is known only when the
            stream ends is None.
        """
        lead = self._flat.lead(state)
        specs = [each.batched(lead) for each in self._flat.inputs]
        other = "; with_pulse takes pulses of other sizes"
        arrays = bind(specs, self._leaves(x), note=batch_note(lead), otherwise=other)
        self._check_params(params)
        self._check_most(state, self.pulse)
        outputs, state = self._step_arrays(params, dict(state), arrays, batched=bool(lead))
        return self._tree(outputs), state

    @_in_its_types
    def scan(self, params: Any, state: State, x: Any) -> tuple[Any, State]:
        """Process several pulses in a single call: repeated steps, with the outputs concatenated along time.

        Args:
            params: as in `step`.
            state: as in `step`.
            x: the input, with the frames of one or more pulses.

        Raises:
            InputError: the number of frames is not a multiple of the pulse.
        """
        lead = self._flat.lead(state)
        arrays, frames = self._recording(self._leaves(x), lead)
        self._check_params(params)
        self._check_most(state, frames)
        outputs, state = self._scan_arrays(params, dict(state), arrays, batched=bool(lead))
        return self._tree(outputs), state

    @_in_its_types
    def pack(self, params: Any) -> Packed:
        """Precompute the part of a step that depends on the parameters only.

        Pass the result to `step` in place of the parameters. Compiling the parameters into the program is faster still:
        ``jax.jit(functools.partial(streamed.step, params))``.

        Args:
            params: the parameters of the function.

        Raises:
            InputError: the parameters do not fit.
        """
        self._check_params(params)
        return self._packed(params)

    @_in_its_types
    def flush(self, params: Any, state: State, tail: Any = None, valid: Any = None) -> Flushed:
        """Return the remaining outputs after the stream has ended: delayed frames, and values known at the end.

        Args:
            params: as in `step`.
            state: the state after the last step.
            tail: the last input frames, which do not fill a pulse, with any padding.
            valid: the number of existing frames in the tail; can be traced. None: all frames of the tail.

        Raises:
            InputError: an argument does not fit, or the constraints do not allow the length of the recording.
        """
        lead = self._flat.lead(state)
        leaves = {} if tail is None else dict(self._leaves(tail))
        for each in self._flat.inputs:
            if each.name not in leaves and each.time_axis is None:
                raise InputError(f"{each.name} is constant in time: pass it in the tail, and None for other leaves")
            if each.name not in leaves:
                leaves[each.name] = np.zeros(each.with_frames(0).batched(lead).sizes, each.dtype)
        arrays, frames = self._recording(leaves, lead)
        units = self._plan.rest(frames // self.multiple)
        valid = frames if valid is None else valid
        check_valid(valid, frames, self.multiple)
        self._check_length(state, valid)
        existing = jnp.asarray(valid, jnp.int32)
        existing = existing if self.multiple == 1 else existing // np.int32(self.multiple)
        room = units * self._plan.clock.unit
        padded = [_padded_to(arrays[leaf.name], leaf.frames(room), len(lead)) for leaf in self._plan.leaves]
        self._check_params(params)
        flushed = self._flush_arrays(params, dict(state), padded, existing, units=units, batched=bool(lead))
        return Flushed(*map(self._tree, flushed))

    @_in_its_types
    def run(self, params: Any, x: Any) -> Any:
        """Process a whole recording with `init`, `scan` and `flush`; the result equals the original function.

        Args:
            params: as in `step`.
            x: the input, of any length that the constraints of `stream` allow. State inputs of a file that are left
                out are as in `Model.init`.
        """
        return self._whole(params, *self._recording(self._with_first_states(x), convert=taken))

    def run_prefixes(self, params: Any, recordings: Sequence[Any]) -> list[Any]:
        """Return the results of `run` for several recordings in two programs, also if their lengths differ much.

        Args:
            params: as in `step`.
            recordings: inputs as in `run`, as NumPy arrays.
        """
        found = [self._recording(self._with_first_states(x), convert=taken) for x in recordings]
        longest = max((length for _, length in found), default=0)
        return [self._whole(params, *each, longest) for each in found]

    @_in_its_types
    def _whole(self, params: Any, arrays: Arrays, total: int, longest: int = 0) -> Any:
        """Return the result for a recording; recordings on the host, up to the longest, share two programs."""
        self._check_total(total)
        flatten, count = self._plan.output_structure.flatten_up_to, total // self.pulse
        on_host = (
            not is_staged() and _is_host(arrays.values()) and not _has_tracers((params, *self._plan.closed.consts))
        )
        state = self.init(params=params, constants=self._input_tree(arrays))
        bodies: list[Any] = [None] * len(self._flat.outputs)
        end = count * self.pulse
        whole, rest = part(self._flat, arrays, 0, end), part(self._flat, arrays, end, total)
        if on_host and count:
            self._check_params(params)
            # JAX keeps a program for each shape, so that the number of pulses is rounded up to a power of two.
            room = 1 << (max(total, longest) // self.pulse - 1).bit_length()
            bodies, state = self._some_pulses(params, dict(state), padded(self._flat, whole, room), np.int32(count))
            bodies = [_first_frames(*each, count) for each in zip(self._flat.outputs, bodies, strict=True)]
        elif count:
            outputs, state = self.scan(params, state, self._input_tree(whole))
            bodies = flatten(outputs)
        tail = padded(self._flat, rest, 1) if on_host else rest
        flushed = self.flush(params, state, self._input_tree(tail), total % self.pulse)
        last, kinds = flatten(flushed.outputs), self._plan.facts.outputs
        if on_host:
            last = [None if each is None else np.asarray(each) for each in last]
        frames = total // self.multiple
        counts = [int(kind.timeline.length(frames)) if isinstance(kind, Chunk) else None for kind in kinds]
        joined = map(joined_output, self._flat.outputs, bodies, last, counts)
        return self._tree(map(jax.device_put, joined) if on_host else joined)

    def offline(self, params: Any, x: Any) -> Any:
        """Apply the function to a whole recording at once, without state: the function that `run` equals.

        With `past`, this is the function with the band, and not the function that was streamed. Train a model
        with this function, in parallel over all frames.

        Args:
            params: as in `step`.
            x: as in `run`.
        """
        if self.past is None:
            function = self._recipe.plain_function
            given = () if self._recipe.arguments["params"] is None else (unpack(params, self._plan),)
            return function(*given, x)
        return self._banded(params, x)

    @_in_its_types
    def _banded(self, params: Any, x: Any) -> Any:
        arrays, total = self._recording(self._leaves(x))
        self._check_total(total)
        self._check_params(params)
        return self._tree(self._offline(params, arrays, frames=total // self.multiple))

    # -- checks of arguments

    def _leaves(self, x: Any) -> Arrays:
        """Return the leaves of an input by path, without leaves that are None or missing in a dict."""
        names = [each.name for each in self._flat.inputs]
        if isinstance(x, dict):
            empty = jax.tree.unflatten(self._structure, [None] * len(names))
            if isinstance(empty, dict):
                if unknown := [name for name in x if name not in empty]:
                    listed = ", ".join(map(str, empty))
                    raise InputError(
                        f"there is no input {unknown[0]!r}{near(unknown[0], empty)}; the inputs are: {listed}"
                    )
                x = {**empty, **x}
        try:
            values = self._structure.flatten_up_to(x)
        except ValueError as error:
            # JAX's message has the numbers of an array, and only tells more about a part of a dict.
            given = f": {error}" if isinstance(x, dict) else f", not {describe(x)}"
            raise InputError(f"x must be a pytree like the example, with {', '.join(names)}{given}") from error
        return {name: value for name, value in zip(names, values, strict=True) if value is not None}

    def _with_first_states(self, x: Any) -> Arrays:
        """Return the leaves of an input, with first values for state inputs of a file that are left out."""
        leaves, start = self._leaves(x), getattr(self._recipe.arguments["function"], "first_states", None)
        if start is None or not isinstance(x, dict):
            return leaves
        missing = {
            leaf.name: each
            for leaf, each in zip(self._flat.inputs, self.spec.inputs, strict=True)
            if leaf.name not in leaves and leaf.time_axis is None
        }
        values = start([*missing.values()])
        return {**{name: values[each.name] for name, each in missing.items() if each.name in values}, **leaves}

    def _recording(
        self, arrays: Arrays, lead: tuple[int, ...] = (), convert: Callable[[ArraySpec, Any], Any] = converted
    ) -> tuple[Arrays, int]:
        """Return the checked leaves of an input of any length, and the number of frames."""
        bound = bind(recording_specs(self._flat, "frames", lead), arrays, convert=convert, note=batch_note(lead))
        return bound, self._flat.count_frames(bound, lead) or 0

    def _constants(self, constants: Any) -> list[Any]:
        specs = [each for each in self._flat.inputs if each.time_axis is None]
        names = {each.name for each in specs}
        arrays = {name: value for name, value in self._leaves(constants).items() if name in names}
        return [*bind(specs, arrays).values()]

    def _check_params(self, params: Any) -> None:
        unpacked, example = unpack(params, self._plan), self._plan.params
        expected, structure = jax.tree_util.tree_flatten_with_path(example)
        if unpacked is None and expected:
            raise InputError("the function was streamed with parameters: pass params")
        if isinstance(example, dict) and isinstance(unpacked, dict):
            check_names(unpacked, example)
        leaves, shape = jax.tree.flatten(unpacked)
        if shape != structure:
            raise InputError(f"params must be a pytree like those that the function was streamed with, {structure}")
        for (path, want), leaf in zip(expected, leaves, strict=True):
            check_param(f"params{jax.tree_util.keystr(path)}", leaf, want, product_type())

    def _check_most(self, state: State, frames: int) -> None:
        """Refuse a pulse beyond the largest length that the constraints allow, unless the state is traced."""
        most = self._plan.lengths.most
        if most is None or any(isinstance(each, Tracer) for each in state.values()):
            return
        total = int(np.max(self._plan.total(self._flat.entries(state), frames // self.multiple), initial=0))
        if total > most:
            raise InputError(
                f"{self._flat.label}: this pulse exceeds {most * self.multiple} frames, the limit of "
                f"{self._plan.lengths}"
            )

    def _check_length(self, state: State, valid: Any) -> None:
        """Refuse a recording that ends `valid` frames after this state if the constraints do not allow its length.

        A length that is traced is not checked.
        """
        known = not any(isinstance(each, Tracer) for each in (*state.values(), valid))
        if known and self._plan.lengths.constraints:
            units = np.asarray(valid, np.int32) // np.int32(self.multiple)
            entries = self._flat.entries({name: np.asarray(each) for name, each in state.items()})
            for total in np.atleast_1d(self._plan.total(entries, units)):
                self._check_total(int(total) * self.multiple)

    def _check_total(self, total: int) -> None:
        name = getattr(self._recipe.arguments["function"], "length_name", SYMBOL)
        self._plan.lengths.check(self._flat.label, total, self.multiple, name)

    # -- computations

    def _tree(self, outputs: Iterable[Any]) -> Any:
        tree = jax.tree.unflatten(self._plan.output_structure, outputs)
        names = getattr(self._recipe.arguments["function"], "output_names", None)  # JAX sorts the keys of a dict
        return tree if names is None else {name: tree[name] for name in names}

    def _input_tree(self, arrays: Arrays) -> Any:
        return jax.tree.unflatten(self._structure, [arrays.get(each.name) for each in self._flat.inputs])

    def _param_leaves(self, params: Any) -> list[Any]:
        """Return the leaves of parameters, packed or not, cast to the dtypes of the example."""
        return list(map(cast_param, jax.tree.leaves(unpack(params, self._plan)), jax.tree.leaves(self._plan.params)))

    @jitted
    def _computed_state(self, arguments: list[Any]) -> State:
        pairs = zip(arguments, self._plan.initial.closed.in_avals, strict=True)
        return self._plan.initial([jnp.zeros(aval.shape, aval.dtype) if leaf is None else leaf for leaf, aval in pairs])

    @jitted
    def _step_arrays(self, params: Any, state: State, arrays: Arrays, *, batched: bool) -> tuple[list[Any], State]:
        def one(state: State, arrays: Arrays) -> tuple[list[Any], State]:
            return self._one_step(params, [arrays[each.name] for each in self._flat.inputs], state)

        return (jax.vmap(one) if batched else one)(state, arrays)

    @jitted
    def _scan_arrays(self, params: Any, state: State, arrays: Arrays, *, batched: bool) -> tuple[list[Any], State]:
        def one(state: State, arrays: Arrays) -> tuple[list[Any], State]:
            outputs, state = scan_steps(self._flat, functools.partial(self._named_step, params), state, arrays)
            return [outputs[each.name] for each in self._flat.outputs], state

        return (jax.vmap(one) if batched else one)(state, arrays)

    @jitted
    def _some_pulses(self, params: Any, state: State, arrays: Arrays, count: Any) -> tuple[list[Any], State]:
        outputs, state = scan_first(self._flat, functools.partial(self._named_step, params), state, arrays, count)
        return [outputs[each.name] for each in self._flat.outputs], state

    def _named_step(self, params: Any, state: State, arrays: Arrays) -> tuple[Arrays, State]:
        outputs, state = self._one_step(params, [arrays[each.name] for each in self._flat.inputs], state)
        return {each.name: output for each, output in zip(self._flat.outputs, outputs, strict=True)}, state

    @jitted
    def _offline(self, params: Any, arrays: Arrays, *, frames: int) -> list[Any]:
        leaves = [arrays[each.name] for each in self._flat.inputs]
        return self._plan.offline(self._param_leaves(params), leaves, frames)

    def _one_step(self, params: Any, arrays: list[Any], state: State) -> tuple[list[Any], State]:
        """Process a pulse of a single stream; use the folded program if the parameters were packed for this pulse."""
        if isinstance(params, Packed) and params.purpose.pulse == self.pulse:
            stages = self._stages(params.params)
            if fits(stages, params.folded, params.purpose.folding):
                return run_folded(stages, params.folded, arrays, state)
        return self._plain_step(unpack(params, self._plan), arrays, state)

    def _plain_step(self, params: Any, arrays: list[Any], state: State) -> tuple[list[Any], State]:
        outputs, new = self._plan.step(self._param_leaves(params), state, arrays, self._units)
        outputs = _nan_unless(self._plan.is_within(state, self._units), outputs)
        return [
            None if isinstance(kind, FinalValue) else output
            for output, kind in zip(outputs, self._plan.facts.outputs, strict=True)
        ], new

    def _stages(self, params: Any) -> Step:
        """Return the step as a jaxpr, traced once for each combination of shapes, types and mesh."""
        leaves, structure = jax.tree.flatten(jax.tree.map(as_struct, params))
        return self._traced(structure, tuple(leaves), Types.here(), jax.sharding.get_abstract_mesh())

    def _traced_step(self, structure: Any, leaves: tuple[Any, ...], *_: Any) -> Step:
        arrays = [each.struct() for each in self._flat.inputs]
        return Step.trace(self._plain_step, structure.unflatten(leaves), arrays, self._plan.layout.vectors)

    @jitted
    def _packed(self, params: Any) -> Packed:
        unpacked = unpack(params, self._plan)
        stages = self._stages(unpacked)
        purpose = Purpose(self._plan.fingerprint, folding_of(stages), self.pulse, label=self._plan.label)
        return Packed(unpacked, fold(stages, unpacked), purpose)

    @jitted
    def _flush_arrays(
        self, params: Any, state: State, arrays: list[Any], existing: jax.Array, *, units: int, batched: bool
    ) -> tuple[list[Any], list[Any]]:
        """Return the outputs of a pass that ends after the existing frames, and their counts of frames."""
        leaves = self._param_leaves(params)

        def one(state: State, arrays: list[Any], existing: jax.Array) -> tuple[list[Any], list[Any]]:
            outputs = self._plan.flush(leaves, state, arrays, units, existing)
            counts = self._plan.counts(state, existing)
            outputs = _nan_unless(self._plan.is_allowed(state, existing), outputs)
            return [
                output if count is None else _zeros_after(output, kind.axis, count)
                for output, count, kind in zip(outputs, counts, self._plan.facts.outputs, strict=True)
            ], counts

        if not batched:
            return one(state, arrays, existing)
        return jax.vmap(one, in_axes=(0, 0, 0 if existing.ndim else None))(state, arrays, existing)

    # -- facts

    @property
    def fingerprint(self) -> str:
        """A text that identifies the traced function; the values of parameters do not count."""
        return self._plan.fingerprint

    @property
    def delay(self) -> Any:
        """For each output, the number of frames before frame 0; None if the output is known only at the end."""
        return self._tree(each.delay for each in self._flat.outputs)

    @property
    def rate(self) -> Any:
        """For each output, the number of frames for each input frame; None if the output is known only at the end."""
        return self._tree(each.rate for each in self._flat.outputs)

    @property
    def inputs(self) -> Any:
        """The input of a step: a pytree of `ArraySpec`."""
        return jax.tree.unflatten(self._structure, self._flat.inputs)

    @property
    def axes(self) -> Any:
        """For each output, the time axis; None if the output is known only at the end."""
        return self._tree(each.time_axis for each in self._flat.outputs)

    @property
    def look_ahead(self) -> int:
        """The largest number of future input frames that an output frame depends on."""
        return self._flat.look_ahead

    @property
    def receptive_field(self) -> int | None:
        """The largest number of input frames that an output frame depends on; None if unlimited."""
        return self._flat.receptive_field

    @property
    def past(self) -> int | None:
        """The most earlier frames that an attention without a bound sees, as given to `stream`; None if not given."""
        return self._flat.past

    @property
    def smallest_pulse(self) -> int:
        """The smallest pulse that fits the strides, in input frames; multiples also fit."""
        return self._flat.smallest_pulse

    @property
    def state(self) -> tuple[StateSpec, ...]:
        """The state entries, with names from the ONNX node, the scope or the primitive, and their kinds."""
        return self._flat.state

    @property
    def spec(self) -> StepSpec:
        """The specification of a step: the named arrays, and the facts.

        Raises:
            InputError: the input or output of the function is not a flat dict of arrays.
        """
        return self._spec

    @functools.cached_property
    def _spec(self) -> StepSpec:
        with self._context(), own_arithmetic():
            depends = iter(self._plan.initial.depends[len(jax.tree.leaves(self._plan.params)) :])
        inputs = _by_name(self._structure, self._flat.inputs, "takes")
        outputs = _by_name(self._plan.output_structure, self._flat.outputs, "gives")
        return dataclasses.replace(
            self._flat,
            inputs=tuple(dataclasses.replace(each, name=name) for name, each in inputs.items()),
            outputs=tuple(dataclasses.replace(each, name=name) for name, each in outputs.items()),
            constants=tuple(name for name, each in inputs.items() if each.time_axis is None and next(depends)),
        )

    @_in_its_types
    def entries(self, state: State) -> dict[str, jax.Array]:
        """Return the state entries, keyed by the names in `state`; `step` joins most entries in one array for speed."""
        self._flat.lead(state)
        return self._flat.entries(state)

    def table(self) -> str:
        """Return the facts as a table, and the outputs that `stream` could not compare with the function."""
        compared = [f"not compared     {name}: no finite number on drawn inputs" for name in self._plan.uncompared]
        return "\n".join([_table(self._flat), *compared])

    def __repr__(self) -> str:
        return wrapped(f"Streamed({self._flat.summary}, delay {part_of(self.delay)})")


def _units_of(pulse: int, smallest: int, multiple: int) -> int:
    """Return the number of units in a pulse; refuse a pulse that does not fit the strides."""
    step = smallest * multiple
    if not is_count(pulse, 1):
        raise StreamError(f"pulse must be a positive number of input frames, not {pulse!r}")
    if pulse % step:
        fitting = ", ".join(str(step * k) for k in (1, 2, 3))
        raise StreamError(
            f"a pulse of {pulse} frame(s) does not fit the strides of this function: it must be a multiple of "
            f"{step} frames, such as {fitting}"
        )
    return int(pulse) // step


def _is_host(arrays: Iterable[Any]) -> bool:
    """Return True if all arrays are in the memory of the host."""
    return all(
        isinstance(each, np.ndarray)
        or (not isinstance(each, Tracer) and {device.platform for device in each.devices()} == {"cpu"})
        for each in arrays
    )


def _has_tracers(tree: Any) -> bool:
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))


def _first_frames(output: OutputSpec, array: Any, pulses: int) -> np.ndarray | None:
    """Return the frames of an output in the first pulses, on the host."""
    if array is None or output.time_axis is None:
        return array
    frames = pulses * output.sizes[output.time_axis]
    return np.asarray(array)[(slice(None),) * output.time_axis + (slice(frames),)]


def _padded_to(array: Any, shape: tuple[int, ...], lead: int) -> Any:
    widths = [(0, size - have) for size, have in zip(shape, array.shape[lead:], strict=True)]
    return jnp.pad(array, [(0, 0)] * lead + widths) if any(map(any, widths)) else array


def _nan_unless(allowed: Any, outputs: Sequence[Any]) -> list[Any]:
    """Replace outputs by NaN, or 0 for integers, if the constraints do not allow the length of the recording."""
    if allowed is True:
        return [*outputs]
    nothing = [jnp.nan if jnp.issubdtype(each.dtype, jnp.inexact) else 0 for each in outputs]
    pairs = zip(outputs, nothing, strict=True)
    return [jnp.where(allowed, each, jnp.asarray(value, each.dtype)) for each, value in pairs]


def _zeros_after(output: Any, axis: int, count: Any) -> Any:
    """Replace frames from `count` on by zeros."""
    places = along(jnp.arange(output.shape[axis], dtype=jnp.int32), axis, output.ndim)
    return jnp.where(places < count, output, jnp.zeros((), output.dtype))


def _by_name(structure: Any, specs: Sequence[Any], verb: str) -> Mapping[str, Any]:
    """Return the specs of a pytree that is a flat dict, by key."""
    tree = jax.tree.unflatten(structure, specs)
    if isinstance(tree, dict) and all(isinstance(k, str) and isinstance(v, ArraySpec) for k, v in tree.items()):
        return tree
    raise InputError(
        f"the streamed function {verb} {jax.tree.structure(tree)}, but each array needs a name: stream a function that "
        f"{verb} one dict of arrays with string keys"
    )


def _table(spec: StepSpec) -> str:
    field = spec.receptive_field
    lines = [
        f"pulse            {spec.pulse} input frame(s); the smallest that fits: {spec.smallest_pulse}",
        f"look-ahead       {spec.look_ahead} input frame(s)",
        f"receptive field  {'all of the past' if field is None else f'{field} input frame(s)'}",
        *([] if spec.past is None else [f"past             {said_past(spec.past)}"]),
        "",
        f"{'output':<24} {'frames a pulse':>14} {'rate':>8} {'delay':>8}",
    ]
    for output in spec.outputs:
        if output.rate is None:
            lines.append(f"{output.name:<24} {'at the end':>14} {'':>8} {'':>8}")
        else:
            frames = output.rate * spec.pulse
            lines.append(f"{output.name:<24} {frames!s:>14} {output.rate!s:>8} {output.delay:>8}")
    state = spec.state
    total = sum(entry.nbytes for entry in state)
    width = max((len(entry.name) for entry in state), default=5)
    lines += ["", f"{'state':<{width}}  {'kind':<10} {'dtype':<8} {'shape':<20} {'bytes':>8}"]
    for entry in state:
        dtype, _, shape = describe(entry).partition("[")
        lines.append(f"{entry.name:<{width}}  {entry.kind:<10} {dtype:<8} {'[' + shape:<20} {entry.nbytes:>8,}")
    lines.append(f"{len(state)} arrays, {total:,} bytes")
    return "\n".join(line.rstrip() for line in lines)
