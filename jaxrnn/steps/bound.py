"""A stepper bound to parameters, a batch, and sizes of open dimensions."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from jaxrnn._files.arguments import argument, called
from jaxrnn._files.messages import describe
from jaxrnn.errors import InputError, StateError
from jaxrnn.jaxprs.schedule import Packed
from jaxrnn.steps.recordings import scan_steps
from jaxrnn.steps.specs import taken
from jaxrnn.steps.stepper import ExportForm, Flushed, State, Stepper, missing_parts, whole_pulse
from jaxrnn.steps.stepspec import lead_of

Arrays = Mapping[str, Any]


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

    def with_params(self, params: Any) -> Bound:
        """Return the step with other parameters, such as traced parameters."""
        other = copy.copy(self)
        other.params = params
        vars(other).pop("_flush", None)
        return other

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
        """Check that `dims` has exactly the open dimensions other than the batch."""
        spec = self.stepper.spec
        arrays = (*spec.inputs, *spec.state)
        places: dict[str, str] = {}
        for each in arrays:
            for axis, name in enumerate(each.shape or ()):
                if isinstance(name, str) and name != spec.batch_symbol:
                    places.setdefault(name, f"axis {axis} of {each.name!r}")
        if missing := [name for name in places if name not in self.dims]:
            raise InputError(
                f"{spec.label}: a file of a step has fixed sizes: give the size of "
                f"{', '.join(f'{name} ({places[name]})' for name in missing)}, as in "
                f"{argument('dims', dict.fromkeys(missing, 16))}"
            )
        if unknown := [name for name in self.dims if name not in places]:
            raise InputError(
                f"{spec.label}: {called('dims')} gives {unknown[0]!r}; the open dimensions besides the batch: "
                f"{', '.join(places) or 'none'}"
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
        given["constants"] = None if constants is None else dict(constants)
        state = self.stepper.init(self.batch, params=self.params, **given)
        if lead_of([each.batched(self.lead) for each in self.spec.carried], state):
            count = "" if self.batch is None else self.batch
            raise StateError(f"{self.spec.label}: init({count}) returns a state with an extra leading axis")
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
        return self.ready("flush") or jax.jit(self.flush)

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
        """Allow recordings of every length."""

    def ready(self, name: str, device: Any = None) -> Callable[..., Any] | None:
        """Return None: no function of the stepper exists as machine code."""
        return None


def _member(stepper: Stepper, name: str) -> Any:
    """Return an optional member of a stepper, or the default."""
    own = getattr(stepper, name, None)
    default = getattr(_Defaults, name)
    return functools.partial(default, stepper) if own is None and callable(default) else own
