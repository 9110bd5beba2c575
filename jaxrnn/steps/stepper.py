"""`Stepper`: the protocol of a pure step, which models, streamed functions, compiled files and user objects share.

A stepper has four parts: ``spec`` describes the arrays, ``init`` returns the state before the first frame, ``step``
processes one pulse of input frames, and ``flush`` returns the frames that are left at the end of a recording. All
functions are pure. A model of a single step has pulse 1, delay 0 and an empty flush.

`Bound` is a stepper with parameters, a batch, and sizes of open dimensions.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxrnn._files.messages import describe, near, short_repr
from jaxrnn._jax.context import exact_types, program
from jaxrnn.errors import InputError, StateError, UnsupportedError
from jaxrnn.jaxprs.schedule import Packed
from jaxrnn.steps.recordings import scan_steps
from jaxrnn.steps.specs import Arrays, ArraySpec, bind, check_names, converted, taken
from jaxrnn.steps.stepspec import StepSpec, batch_note, joined_layout, lead_of

State = dict[str, Any]
"""The state that a step passes to the next step: a dict of arrays, as in `StepSpec.carried`."""


@short_repr
class Flushed(NamedTuple):
    """The result of a flush.

    Attributes:
        outputs: the same structure as the outputs of a step: the remaining frames of each stream, existing frames
            first, and results for the whole recording, such as a sum over time. Empty if a step keeps no frames back.
        counts: the same tree with the number of existing frames (``int32``), or None if an output has no time axis.
    """

    outputs: Any
    counts: Any


jax.export.register_namedtuple_serialization(Flushed, serialized_name="jaxrnn.Flushed")


class Stepper(Protocol):
    """A pure step, as `jaxrnn.Runner`, `jaxrnn.StreamPool`, `jaxrnn.save_compiled` and the profiler accept it.

    A stepper can have more members: ``params``, the default parameters; ``scan(params, state, inputs)``, many steps in
    one call; ``pack(params)``, the parameters for `step` and `scan` after the work that depends only on parameters;
    ``with_pulse(frames)``, the same function on the same state with a different pulse; and ``fingerprint``, a string
    that identifies the computation without the values of the parameters.

    Example::

        class Smoother:
            \"\"\"An exponential mean of float32[channels].\"\"\"

            spec = StepSpec(
                "smoother",
                inputs=(ArraySpec("x", np.dtype("float32"), (2,)),),
                outputs=(OutputSpec("y", np.dtype("float32"), (2,)),),
                state=(StateSpec("mean", np.dtype("float32"), (2,)),),
            )

            def init(self, batch=None, *, params=None, constants=None):
                return in_batch(self.spec, {"mean": jnp.zeros(2)}, batch)

            def step(self, params, state, inputs):
                mean = params * state["mean"] + (1 - params) * inputs["x"]
                return {"y": mean}, {"mean": mean}

            def flush(self, params, state, tail=None, valid=None):
                return nothing_left(self.spec, tail, valid)
    """

    @property
    def spec(self) -> StepSpec:
        """The arrays and the timing of a step."""
        ...

    def init(self, batch: int | None = None, *, params: Any = None, constants: Any = None) -> State:
        """Return the state before the first frame.

        Args:
            batch: the number of streams, or None for one stream. A number, also 1, adds a leading axis to each array,
                or sizes the batch dimension of the spec.
            params: the parameters, which are checked against the parameters of the step if given.
            constants: the inputs in `StepSpec.constants`.

        Raises:
            InputError: parameters or constants do not fit, or are needed and missing.
        """
        ...

    def step(self, params: Any, state: State, inputs: Any) -> tuple[Any, State]:
        """Return the outputs of one step as a dict, with None in place of outputs of the flush, and the new state.

        Raises:
            InputError: an input does not fit.
            StateError: the state does not fit.
        """
        ...

    def flush(self, params: Any, state: State, tail: Any = None, valid: Any = None) -> Flushed:
        """Return the frames that are left at the end of a recording.

        Args:
            params: as in `step`.
            state: the state after the last step.
            tail: input frames that do not fill a pulse, with any padding, and the inputs without a time axis.
            valid: the number of existing frames in the tail, ``int32``; can be traced. By default, all frames.
        """
        ...


class Notes(NamedTuple):
    """Texts of a file for its readers: the metadata, and doc strings by array, with the key ``""`` for the file."""

    metadata: Mapping[str, str]
    docs: Mapping[str, str]


NO_NOTES = Notes({}, {})


@dataclasses.dataclass(frozen=True)
class ExportForm:
    """A stepper as `jaxrnn.export_onnx` traces it.

    Attributes:
        stepper: the stepper to trace, with arithmetic in plain forms.
        step_file: the facts of the file that a model was loaded from (`jaxrnn.onnx.stepfile.StepFile`), or None.
        state_names: by entry, the names of the state's input and output in that file, or None.
        operators: the ONNX operators by scope, for messages, or None.
        keeps_types: True if the functions keep 64-bit types under any configuration of JAX.
        has_layers: True if the cells of recurrences are layers already.
        notes: the metadata of that file, and its doc strings by array.
    """

    stepper: Any
    step_file: Any = None
    state_names: Mapping[str, tuple[str, str]] | None = None
    operators: Mapping[str, str] | None = None
    keeps_types: bool = False
    has_layers: bool = False
    notes: Notes = NO_NOTES


def missing_parts(value: Any) -> list[str]:
    """Return the names of the parts that an object lacks to be a `Stepper`."""
    return [name for name in ("spec", "init", "step", "flush") if not hasattr(value, name)]


def check_valid(valid: Any, room: int, multiple: int) -> None:
    """Check the number of existing frames of a tail, unless the number is traced; otherwise raise InputError."""
    if isinstance(valid, Tracer):
        return
    known = np.asarray(valid)
    if known.dtype.kind not in "iu" or np.any((known < 0) | (known > room) | (known % multiple != 0)):
        also = "" if multiple == 1 else f" and a multiple of {multiple}"
        raise InputError(f"valid must be from 0 to the {room} frame(s) of the tail{also}, not {valid}")


def nothing_left(spec: StepSpec, tail: Any = None, valid: Any = None) -> Flushed:
    """Return the empty flush of a step that keeps no frames back.

    Raises:
        InputError: the tail has frames, which would be lost.
    """
    _, existing = whole_pulse(spec, tail, valid)
    if not isinstance(existing, Tracer) and np.any(np.asarray(existing) != 0):
        raise InputError(f"{spec.label} keeps nothing back, so that a tail would be lost: pass whole pulses to step")
    return Flushed({}, {})


def whole_pulse(
    spec: StepSpec,
    tail: Any,
    valid: Any = None,
    lead: tuple[Any, ...] = (),
    convert: Callable[[ArraySpec, Any], Any] = converted,
    fill: float = 0.0,
) -> tuple[dict[str, Any] | None, Any]:
    """Pad a tail to a whole pulse, so that a single compiled flush serves all tails.

    Args:
        spec: the spec of the stream.
        tail: a dict of frames that do not fill a pulse, with any padding up to a pulse, or None if no frames are left.
        valid: the number of existing frames; by default, all frames of the tail.
        lead: the batch of the state.
        convert: converts a value to the declared dtype.
        fill: the value of the padding in arrays of floats; other arrays are padded with 0.

    Returns:
        The arrays, or None if the step has no time axis and thus no tail; and the number of existing frames.

    Raises:
        InputError: an array does not fit, or the tail cannot have ``valid`` frames.
    """
    if not spec.streams:
        if tail is not None or isinstance(valid, Tracer) or np.any(np.asarray(0 if valid is None else valid) != 0):
            raise InputError(f"{spec.label} has no tail: a step takes a whole frame, and keeps nothing back")
        return None, 0
    parts = {} if tail is None else tail
    check_names(spec.inputs, parts, "the tail")
    arrays = {}
    for each in spec.inputs:
        value = parts.get(each.name)
        if value is None and each.time_axis is None:
            raise InputError(f"input {each.name!r} is constant in time: the tail must contain this input")
        if value is None:
            value = np.zeros(each.with_frames(0).batched(lead).sizes, each.dtype)
        arrays[each.name] = value if hasattr(value, "dtype") else converted(each, value)
    count = spec.count_frames(arrays, lead) or 0
    filled = {each.name: _filled(each, arrays[each.name], len(lead), fill) for each in spec.inputs}
    bound = bind([each.batched(lead) for each in spec.inputs], filled, convert=convert, note=batch_note(lead))
    existing = count if valid is None else valid
    check_valid(existing, count, spec.multiple)
    return bound, existing


def _filled(each: ArraySpec, array: Any, lead: int, fill: float) -> Any:
    """Pad the frames of a tail to a pulse; return an array of a wrong rank unchanged."""
    if each.time_axis is None or len(array.shape) != len(each.sizes) + lead:
        return array
    axis = each.time_axis + lead
    missing = each.sizes[each.time_axis] - array.shape[axis]
    if missing < 0:
        raise InputError(f"{each.as_input} got {array.shape[axis]} frames: a tail has at most the frames of a pulse")
    widths = [(0, missing if place == axis else 0) for place in range(len(array.shape))]
    value = fill if jnp.issubdtype(array.dtype, jnp.floating) else 0
    # With NumPy if possible, because JAX would compile a function for each length of a tail.
    return (np if isinstance(array, np.ndarray) else jnp).pad(array, widths, constant_values=value)


class Bound:
    """A stepper with parameters, a batch and sizes.

    `step`, `scan` and `flush` are pure functions of one stream, or of all streams in the batch dimension of the spec.
    If the spec has no batch dimension, `mapped` lifts a function to the batch.

    The parameters are plain or packed, by default ``stepper.params``. ``batch`` is a number of streams, which can be a
    symbol. Without ``batch``, there is one stream and no batch axis. ``dims`` maps open dimensions to sizes; a size of
    the batch dimension has the effect of ``batch``. `open_spec` is the spec with these sizes and an open batch
    dimension, and `spec` also has the number of streams. `lead` is the shape of the leading batch axis of all arrays:
    ``(batch,)``, or ``()``.
    """

    def __init__(
        self, stepper: Stepper, params: Any = None, *, batch: Any = None, dims: Mapping[str, int] | None = None
    ):
        if missing := missing_parts(stepper):
            raise InputError(
                f"expected a model, a streamed function, a compiled file or another stepper, not "
                f"{type(stepper).__name__}, which has no {', '.join(missing)}"
            )
        self.stepper, self.dims = stepper, dict(dims or {})
        #: The parameters as given, which are None for the parameters of the stepper.
        self.given = params
        self.params = _member(stepper, "params") if params is None else params
        spec = stepper.spec
        if self.params is None and spec.needs_params:
            raise InputError(f"{spec.label} has no parameters of its own: give params")
        symbol = spec.batch_symbol
        self.batch = self.dims.get(symbol) if symbol is not None and batch is None else batch
        self.lead = () if batch is None or symbol is not None else (batch,)
        self.open_spec = spec.sized({name: size for name, size in self.dims.items() if name != symbol})
        streams = 1 if self.batch is None else self.batch
        self.spec = self.open_spec if symbol is None else self.open_spec.sized({symbol: streams})
        #: Programs with the parameters as arguments, shared after `exchanged`; None: the parameters are constants.
        self._programs: dict[Any, Callable[..., Any]] | None = None

    def with_params(self, params: Any) -> Bound:
        """Return the step with other parameters, such as traced parameters."""
        other = copy.copy(self)
        other.params = other.given = params
        vars(other).pop("_flush", None)
        return other

    def exchanged(self, params: Any) -> Bound:
        """Return the step with other parameters, which are arguments of programs that later exchanges share."""
        other = Bound(self.stepper, params, batch=self.batch, dims=self.dims)
        other._programs = {} if self._programs is None else self._programs
        return other

    def jitted(
        self,
        name: Any,
        make: Callable[[Bound], Callable[..., Any]],
        device: Any = None,
        *,
        packed: bool = False,
        **options: Any,
    ) -> Callable[..., Any]:
        """Return a jitted function of the step, ``make(self)``, of arguments other than the parameters.

        The parameters are constants of the program, which is fastest, or arguments after `exchanged`. Small arrays are
        then joined, because JAX passes each argument separately. Parameters with other values than arrays stay
        constants. The name identifies the function and the options for `jax.jit` among the programs.
        """
        params = self.params
        if packed and self._programs is not None and not isinstance(params, Packed):
            params = _member(self.stepper, "pack")(params, **({"dims": self.dims} if self.dims else {}))
        leaves, structure = jax.tree.flatten(params)
        if self._programs is None or not all(map(_is_plain_array, leaves)):
            return program(make(self), **options)
        layout = joined_layout({str(place): leaf for place, leaf in enumerate(leaves)}, _SMALL)
        key = name, structure, tuple((leaf.dtype, leaf.shape) for leaf in leaves)
        if key not in self._programs:

            def run(vectors: tuple[Any, ...], *arguments: Any) -> Any:
                entries = layout.unpack(dict(zip(layout.vectors, vectors, strict=True)))
                return make(self.with_params(structure.unflatten(entries.values())))(*arguments)

            self._programs[key] = program(run, **options)
        with exact_types():
            vectors = layout.pack({str(place): np.asarray(leaf) for place, leaf in enumerate(leaves)})
            given = tuple(jax.device_put(np.array(vector), device) for vector in vectors.values())
        return functools.partial(self._programs[key], given)

    def with_pulse(self, pulse: int) -> Bound:
        """Return the step with pulses of this length; with packed parameters, return the step itself."""
        if isinstance(self.params, Packed):
            return self
        return Bound(_member(self.stepper, "with_pulse")(pulse), self.params, batch=self.batch, dims=self.dims)

    def packed(self) -> Bound:
        """Return the step with packed parameters; return a stream or a packed step unchanged.

        A flush takes plain parameters, so the parameters of a stream are not packed.
        """
        if self.spec.streams or isinstance(self.params, Packed):
            return self
        sizes = {"dims": self.dims} if self.dims else {}
        return self.with_params(_member(self.stepper, "pack")(self.params, **sizes))

    def check_sizes(self) -> None:
        """Check that a file can hold the arrays, and `dims` has exactly the open dimensions other than the batch."""
        spec = self.stepper.spec
        places: dict[str, str] = {}
        for each in (*spec.inputs, *spec.state):
            if each.dtype is None or each.is_text or each.shape is None:
                raise UnsupportedError(f"{spec.label}: {each.as_input} needs a numeric type and a known rank in a file")
            for axis, name in enumerate(each.shape or ()):
                if isinstance(name, str) and name != spec.batch_symbol:
                    places.setdefault(name, f"axis {axis} of {each.name!r}")
        if missing := [name for name in places if name not in self.dims]:
            raise InputError(
                f"{spec.label}: a file of a step has fixed sizes: give the size of "
                f"{', '.join(f'{name} ({places[name]})' for name in missing)}, as in "
                f"`dims={dict.fromkeys(missing, 16)}`"
            )
        if unknown := [name for name in self.dims if name not in places]:
            raise InputError(
                f"{spec.label}: `dims` gives {unknown[0]!r}{near(unknown[0], places)}; the open dimensions besides "
                f"the batch: {', '.join(places) or 'none'}"
            )

    def ready(self, name: str, device: Any = None) -> Callable[..., Any] | None:
        """Return a function of the stepper as machine code with the parameters, as `CompiledStepper.ready`, or None."""
        function = _member(self.stepper, "ready")(name, device)
        return function if function is not None and self.params is _member(self.stepper, "params") else None

    def start(self, constants: Arrays | None = None) -> State:
        """Return the state before the first frame, as `Stepper.init`; raise StateError if it does not fit the spec."""
        spec = self.stepper.spec
        names = {name for each in spec.state for name in each.symbols if name != spec.batch_symbol}
        sizes = {name: size for name, size in self.dims.items() if name in names}
        given: dict[str, Any] = {"dims": sizes} if sizes else {}
        if constants is not None:
            check_names(spec.inputs, constants, "the constants")
        given["constants"] = None if constants is None else dict(constants)
        state = self.stepper.init(self.batch, params=self.params, **given)
        if lead_of([each.batched(self.lead) for each in self.spec.carried], state):
            count = "" if self.batch is None else self.batch
            raise StateError(f"{self.spec.label}: `init({count})` returns a state with an extra leading axis")
        return state

    def export_form(self) -> ExportForm:
        """Return the stepper as `jaxrnn.export_onnx` traces it."""
        return _member(self.stepper, "_export_form")()

    def example_constants(self) -> dict[str, np.ndarray] | None:
        """Return zeros for the constant inputs of the first state, with which `start` can check the parameters."""
        specs = [each for each in self.spec.inputs if each.name in self.spec.constants]
        return {each.name: np.zeros(each.sizes, each.dtype) for each in specs} or None

    def mapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Map a function of a single stream over the batch."""
        return jax.vmap(function) if self.lead else function

    def step(self, state: State, inputs: Arrays) -> tuple[dict[str, Any], State]:
        """Return the outputs of one step, without outputs of the flush, and the state after the step.

        All checks run while JAX traces the step, so a live step does not pay for the checks. A state that changes shape
        or dtype, such as a cache that grows, raises StateError. Inputs and outputs that do not fit the spec raise
        InputError.
        """
        outputs, after = self.stepper.step(self.params, state, self.spec.bind(inputs))
        for name, before in state.items():
            array = after.get(name)
            if array is None or (array.shape, array.dtype) != (before.shape, before.dtype):
                raise StateError(
                    f"{self.spec.label}: the state {name!r} is {describe(before)} before a step and "
                    f"{'missing' if array is None else describe(array)} after it; a state must keep its shape and dtype"
                )
        return self._named(outputs), after

    def scan(self, state: State, inputs: Arrays) -> tuple[dict[str, Any], State]:
        """Run many steps in one call; return the outputs, and the state after the last step."""
        return _member(self.stepper, "scan")(self.params, state, inputs)

    def flush(self, state: State, tail: Arrays | None = None, valid: Any = None) -> Flushed:
        """Return the rest of a recording; ``tail`` is padded to a whole pulse and has ``valid`` existing frames."""
        given = (tail, valid) if self.spec.streams else ()
        outputs, counts = self.stepper.flush(self.params, state, *given)
        return Flushed(self._named(outputs), {name: count for name, count in counts.items() if count is not None})

    @functools.cached_property
    def _flush(self) -> Callable[..., Any]:
        return self.ready("flush") or self.jitted("flush", lambda bound: bound.flush)

    def warm_up_flush(self, state: State, tail: Arrays) -> None:
        """Compile and call the flush of a stream, without a check of the length."""
        if self.spec.streams:
            filled, _ = whole_pulse(self.spec, tail, 0, convert=taken)
            jax.block_until_ready(self._flush(state, filled, np.int32(0)))

    def rest(self, state: State, tail: Arrays | None, valid: int | None) -> dict[str, np.ndarray]:
        """Return the rest of a recording as NumPy arrays of the existing frames; compiled once for all tails."""
        filled, existing = whole_pulse(self.spec, tail, valid, convert=taken)
        _member(self.stepper, "_check_length")(state, existing)
        if filled is None:
            outputs, counts = self.flush(state)
        else:
            outputs, counts = self._flush(state, filled, np.int32(existing))
            if existing and not outputs:
                raise InputError(
                    f"{self.spec.label} has a flush without outputs, so that the {existing} frame(s) of the tail would "
                    "be lost: push whole pulses"
                )
        axes, rest = {output.name: output.time_axis for output in self.spec.outputs}, {}
        for name, value in outputs.items():
            axis, array = axes[name], np.asarray(value)
            part = () if axis is None else (slice(None),) * axis + (slice(int(counts[name])),)
            rest[name] = array[part].copy()  # because a view would keep the other frames alive
        return rest

    def _named(self, outputs: Any) -> dict[str, Any]:
        """Check that outputs are a dict of arrays in the spec; drop outputs that are None."""
        label = self.spec.label
        if not isinstance(outputs, Mapping) or not all(isinstance(name, str) for name in outputs):
            raise InputError(
                f"{label} returns {jax.tree.structure(outputs)}; expected one dict of arrays with strings for keys"
            )
        known = {each.name for each in self.spec.outputs}
        for name, value in outputs.items():
            if name not in known:
                raise InputError(f"{label} returns {name!r}, which its spec does not list as an output")
            if value is not None and not jax.tree_util.all_leaves([value]):
                raise InputError(f"{label} returns {name!r} as {jax.tree.structure(value)}, not as an array")
        return {name: value for name, value in outputs.items() if value is not None}


#: Parameters with fewer bytes are joined.
_SMALL = 1 << 10


def _is_plain_array(leaf: Any) -> bool:
    """Return True for an array that keeps its type as an argument: no key of JAX, and not weakly typed."""
    return isinstance(getattr(leaf, "dtype", None), np.dtype) and not getattr(leaf, "weak_type", False)


class _Defaults:
    """Defaults for the optional members of a `Stepper`, each as if it were a member of that stepper."""

    params = None

    def scan(self: Any, params: Any, state: State, inputs: Arrays) -> tuple[Any, State]:
        """Return the outputs of a recording of whole steps, and the state after the last step."""
        return scan_steps(self.spec, functools.partial(self.step, params), state, inputs)

    def pack(self, params: Any, *, dims: Mapping[str, int] | None = None) -> Any:
        """Return the parameters unchanged."""
        return params

    def with_pulse(self, pulse: int) -> Any:
        """Return the stepper unchanged, because no other pulse is possible."""
        return self

    def _export_form(self) -> ExportForm:
        return ExportForm(self)

    def _check_length(self, state: State, valid: Any) -> None:
        """Allow recordings of all lengths."""

    def ready(self, name: str, device: Any = None) -> Callable[..., Any] | None:
        """Return None: no function of the stepper exists as machine code."""
        return None


def _member(stepper: Stepper, name: str) -> Any:
    """Return an optional member of a stepper, or the default."""
    own = getattr(stepper, name, None)
    default = getattr(_Defaults, name)
    return functools.partial(default, stepper) if own is None and callable(default) else own
