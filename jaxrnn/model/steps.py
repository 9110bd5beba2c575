"""A model in steps: the state as an explicit dict, a pure step, and scans over whole recordings."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn._files.messages import SIZE, describe
from jaxrnn._jax.context import exact_types, jitted
from jaxrnn.errors import InputError, StateError, check_count
from jaxrnn.jaxprs.scanning import scan as hoisted_scan
from jaxrnn.jaxprs.schedule import Packed, folded_for, run_packed
from jaxrnn.model.streaming import how_to_open, time_symbols
from jaxrnn.onnx.graph import bind_inputs
from jaxrnn.onnx.operators.shaping import on_axis
from jaxrnn.onnx.state import StateVar, open_sizes
from jaxrnn.steps.recordings import cut_frames, join_frames
from jaxrnn.steps.specs import Arrays, ArraySpec, check_names, converted
from jaxrnn.steps.stepspec import OutputSpec, StateSpec, StepSpec, check_batch, in_batch, zeros

if TYPE_CHECKING:
    from jaxrnn.model import Model


class ModelSteps:
    """The steps of a `Model`: the inputs and outputs that are state, and the batch.

    If the file has a fixed batch of 1, a batch of streams is a leading axis of all states, inputs and outputs, and the
    step is mapped over this axis.
    """

    def __init__(self, model: Model):
        internal = [variable for variable in model.state if variable.kind == "internal"]
        if internal:
            nodes = ", ".join(sorted({str(variable.node) for variable in internal}))
            known = {each.input: each.output for each in model.state if each.kind == "external"} or "{INPUT: OUTPUT}"
            lines = "" if time_symbols(model) else how_to_open(model)
            fixed = f" The file fixes the length: {lines}." if lines else ""
            raise StateError(
                f"{model.label} cannot be run in steps: it forgets its state after every call (node(s) {nodes}). Run "
                f"whole sequences with `model.apply`, or turn it into a streaming model with `model.stream`.{fixed} "
                "If the caller carries all state, and these nodes begin again in every step, say so: "
                f"`jaxrnn.load(path, state={known})`"
            )
        self._model = model
        self.state: dict[str, StateVar] = {variable.name: variable for variable in model.state}
        self._input_of = {str(variable.input): name for name, variable in self.state.items()}
        self._dresses = model._findings.dresses
        plain = {str(variable.output) for name, variable in self.state.items() if name not in self._dresses}
        #: The outputs that are only state.
        self._updated = plain.union(*(dress.replaced for dress in self._dresses.values()))
        batch_symbol, self._open = open_sizes(model.state, model.growing_dimensions)
        # One name for open dimensions that the nodes need to be equal.
        outputs = [info.sized(model.dimensions) for info in model.outputs if info.name not in self._updated]
        self.spec = StepSpec(
            model.label,
            inputs=tuple(info.sized(model.dimensions) for info in model.inputs if info.name not in self._input_of),
            outputs=tuple(OutputSpec(info.name, info.dtype, info.shape) for info in outputs),
            state=tuple(StateSpec(v.name, v.dtype, tuple(v.shape), kind=v.kind) for v in model.state),
            batch_symbol=batch_symbol,
        )

    def output_name(self, variable: StateVar) -> str:
        """Return a name for the updated value of an external variable in a file, where the value is one array."""
        dress = self._dresses.get(variable.name)
        return f"{variable.input}_next" if dress is not None and len(dress.pieces) > 1 else str(variable.output)

    def init(self, batch: int | None, dims: Mapping[str, int] | None = None) -> dict[str, jax.Array]:
        """Return zeros, or the file's values, for each state variable."""
        check_batch(batch)
        symbol = self.spec.batch_symbol
        # Sizes of unknown dimensions, and of dimensions that equations fix or tie, would be ignored.
        known = {size for info in (*self.spec.inputs, *self.spec.state) for size in info.shape or ()}
        for given, size in (dims or {}).items():
            if given not in known:
                value = self._model.dimensions.get(given)
                reason = f"the nodes need this dimension to be {value!r}"
                why = "no array has this open dimension" if value is None else reason
                listed = ", ".join(sorted(size for size in known if isinstance(size, str))) or "none"
                raise InputError(f"`init(dims={ {given: SIZE} })`: {why}; open dimensions: {listed}")
            check_count(f"init: the size of {given!r} in dims", size, 0)
        sizes = {**({} if symbol is None else {symbol: 1 if batch is None else batch}), **(dims or {})}
        missing = [name for name in self._open if name not in sizes]
        if missing:
            raise StateError(
                "the state has open dimensions besides the batch; give their sizes: "
                f"`init(dims={dict.fromkeys(missing, SIZE)})`"
            )
        state = {}
        with exact_types():
            for name, start in zeros(self.spec.state, sizes).items():
                values = self._model.initial_values.get(name, np.zeros((), start.dtype))
                try:
                    state[name] = jax.device_put(np.broadcast_to(values, start.shape).copy())
                except ValueError as error:
                    raise StateError(
                        f"the first value of {name!r} in the file is {describe(values)}, which does not fit a state "
                        f"of shape {list(start.shape)}"
                    ) from error
            return in_batch(self.spec, state, batch)

    def step(self, params: Any, state: Arrays, inputs: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
        """Run one step, mapped over the leading axis of the state, if any."""
        with exact_types():
            self._check_inputs(inputs)
            lead = self.lead(state, inputs)
            if not lead:
                return self.one_step(params, state, inputs)
            return jax.vmap(self.one_step, (None, 0, 0))(params, dict(state), self.spec.bind(inputs, lead))

    def bind_recording(self, state: Arrays, inputs: Arrays) -> dict[str, Any]:
        """Return the inputs of many steps as arrays of the declared types, without a check of shapes."""
        self._check_inputs(inputs)
        self.lead(state, inputs, frames=1)
        return {each.name: converted(each, inputs[each.name]) for each in self.spec.inputs if each.name in inputs}

    def lead(self, state: Arrays, inputs: Arrays, frames: int = 0) -> tuple[Any, ...]:
        """Return the leading batch of a state; without state, of the inputs, which have ``frames`` axes before."""
        lead = self.spec.lead(state)
        if self.state:
            return lead
        shapes = ((np.shape(inputs[each.name]), each.shape) for each in self.spec.inputs if each.name in inputs)
        sizes = (have[frames] for have, want in shapes if want is not None and len(have) == len(want) + frames + 1)
        return tuple(itertools.islice(sizes, 1))

    def pack(self, params: Arrays, dims: Mapping[str, int]) -> Packed:
        """Precompute the work of a step that depends only on parameters; types must be exact."""
        symbol = self.spec.batch_symbol
        sizes = {**dims, **({} if symbol is None else {symbol: 1})}
        try:
            frame, state = zeros(self.spec.inputs, sizes), zeros(self.spec.state, sizes)
        except KeyError:
            return self._model._packed(params)  # the foldable work depends on the open length
        return self._pack(dict(params), frame, state)

    @jitted
    def _pack(self, params: Arrays, frame: Arrays, state: Arrays) -> Packed:
        with exact_types():
            return self._model._packed(params, *folded_for(self._plain_step, params, frame, state))

    def one_step(self, params: Any, state: Arrays, inputs: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
        """Run one step of arrays without a leading axis, without checks."""
        if not isinstance(params, Packed):
            return self._plain_step(params, inputs, state)
        return self._packed_step(params, dict(state), bind_inputs(self.spec.inputs, inputs))

    @jitted
    def _packed_step(self, params: Packed, state: Arrays, inputs: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
        with exact_types():
            return run_packed(self._plain_step, params, inputs, dict(state))

    def _plain_step(self, params: Arrays, inputs: Arrays, state: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
        carried = {str(variable.input): state[name] for name, variable in self.state.items()}
        results = self._model.apply(params, {**inputs, **carried})
        outputs = {name: value for name, value in results.items() if name not in self._updated}
        new = {name: results[str(each.output)] for name, each in self.state.items() if name not in self._dresses}
        new |= {name: dress.updated(results, state[name]) for name, dress in self._dresses.items()}
        return outputs, {name: new[name] for name in self.state}

    def _check_inputs(self, inputs: Any) -> None:
        stray = [name for name in inputs if name in self._input_of] if isinstance(inputs, Mapping) else []
        if stray:
            raise InputError(f"{stray[0]!r} is state: pass it in the state, not among the inputs")
        check_names(self.spec.inputs, inputs)


def scan(
    steps: ModelSteps,
    params: Any,
    state: Arrays,
    inputs: Arrays,
    time_axis: int | Mapping[str, int],
    lengths: jax.Array | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run steps over a time axis, with carry-independent work at once."""
    with exact_types():
        lead = steps.lead(state, inputs, frames=1)
        batched = bool(lead)
        frames = {
            info.name: _frames(info, inputs, _axis_of(time_axis, info.name), batched) for info in steps.spec.inputs
        }
        counts = {name: array.shape[0] for name, (array, _) in frames.items()}
        if not counts:
            raise InputError("a model without inputs besides its state has no time axis to scan")
        first, *others = counts.values()
        if any(count != first for count in others):
            raise InputError(f"the inputs must have equal numbers of frames, not {counts}")
        stacked = all(is_stacked for _, is_stacked in frames.values())
        arrays = {name: array for name, (array, _) in frames.items()}
        places = {
            name: 0 if batched else next((a for a, size in enumerate(v.shape) if size == steps.spec.batch_symbol), None)
            for name, v in steps.state.items()
        }
        exists = None
        if lengths is not None:
            batch = lead[0] if lead else steps.spec.batch(state) or 1
            if lengths.shape != (batch,) or not jnp.issubdtype(lengths.dtype, jnp.integer):
                raise InputError(f"lengths must be {batch} integers, one for each stream, not {describe(lengths)}")
            exists = jnp.arange(next(iter(counts.values())), dtype=lengths.dtype)[:, None] < lengths[None, :]
            _refuse_shared(places, batch)

        def masked(here: jax.Array, new: Arrays, old: Arrays) -> dict[str, Any]:
            """Keep the carry of a stream in frames that do not exist."""
            return {name: jnp.where(on_axis(here, places[name], new[name].ndim), new[name], old[name]) for name in new}

        results, final = hoisted_scan(
            lambda p, frame, carry: steps.step(p, carry, frame),
            params,
            arrays,
            dict(state),
            exists=exists,
            masked_update=None if exists is None else masked,
        )
        if exists is not None:
            example = {name: jax.ShapeDtypeStruct(array.shape[1:], array.dtype) for name, array in arrays.items()}
            axes = dict.fromkeys(results, 0) if batched else _batch_axes_of_outputs(steps, params, state, example)
            _refuse_shared(axes, exists.shape[1])
            for name, value in results.items():
                mask = jax.vmap(lambda here, axis=axes[name], rank=value.ndim - 1: on_axis(here, axis, rank))(exists)
                results[name] = jnp.where(mask, value, jnp.zeros((), value.dtype))
        return {name: _unstack(value, _axis_of(time_axis, name), stacked) for name, value in results.items()}, final


def _frames(info: ArraySpec, inputs: Arrays, axis: int, batched: bool) -> tuple[jax.Array, bool]:
    """Return an input as ``[frames, ...]``, and True if the frames were stacked on a separate axis."""
    if info.name not in inputs:
        raise InputError(f"missing input: {info}")
    if info.shape is None:
        raise InputError(f"{info.as_input} has no declared rank, so its time axis is unknown")
    value = converted(info, inputs[info.name])
    rank = len(info.shape) + batched
    if value.ndim == rank + 1:
        if not -value.ndim <= axis < value.ndim:
            raise InputError(f"{info.as_input} got {describe(value)}, which has no axis {axis} of frames")
        return jnp.moveaxis(value, axis, 0), True
    if value.ndim != rank or not -rank <= axis < rank:
        raise InputError(
            f"{info.as_input} got {describe(value)}: a recording has an additional axis for frames, or frames "
            f"concatenated along axis {axis}"
        )
    axis %= rank
    size = None if batched and axis == 0 else info.shape[axis - batched]
    if isinstance(size, int) and size and not value.shape[axis] % size:
        return cut_frames(value, axis, size), False
    why = {
        int: f"axis {axis} cannot be cut into frames of {size}",
        str: f"the file leaves axis {axis} open, so that one step takes all of these frames",
    }.get(type(size), f"axis {axis} is the batch of streams")
    raise InputError(f"{info.as_input} got {describe(value)}: {why}; to scan, stack the frames along a new axis")


def _batch_axes_of_outputs(steps: ModelSteps, params: Any, state: Arrays, example: Arrays) -> dict[str, int | None]:
    """Find the batch axis of each output by tracing with an additional stream."""
    if steps.spec.batch_symbol is None:
        return {info.name: None for info in steps.spec.outputs}

    def shapes(extra: int) -> dict[str, tuple[int, ...]]:
        def grown(shape: Sequence[Any], declared: Sequence[Any] | None) -> tuple[int, ...]:
            names = declared or shape
            return tuple(s + extra if n == steps.spec.batch_symbol else s for s, n in zip(shape, names, strict=True))

        carry = {n: jax.ShapeDtypeStruct(grown(state[n].shape, v.shape), v.dtype) for n, v in steps.state.items()}
        declared = {info.name: info.shape for info in steps.spec.inputs}
        frame = {n: jax.ShapeDtypeStruct(grown(e.shape, declared[n]), e.dtype) for n, e in example.items()}
        outputs, _ = jax.eval_shape(steps.one_step, params, carry, frame)
        return {name: value.shape for name, value in outputs.items()}

    one, more = shapes(0), shapes(1)
    return {
        name: next((a for a, (x, y) in enumerate(zip(one[name], more[name], strict=True)) if x != y), None)
        for name in one
    }


def _axis_of(time_axis: int | Mapping[str, int], name: str) -> int:
    return time_axis if isinstance(time_axis, int) else time_axis.get(name, 0)


def _refuse_shared(axes: Mapping[str, int | None], batch: int) -> None:
    """Refuse lengths of several streams if the streams share an array, which has no batch axis."""
    shared = [name for name, axis in axes.items() if axis is None]
    if shared and batch > 1:
        raise InputError(
            f"lengths: all streams share {shared[0]!r}, which has no batch axis; scan each stream by itself"
        )


def _unstack(value: jax.Array, axis: int, stacked: bool) -> jax.Array:
    """Return outputs with frames as in the caller's inputs: on a separate axis, or joined."""
    rank = value.ndim if stacked else value.ndim - 1
    if not -rank <= axis < rank:
        return value  # an output without this axis keeps the frames on axis 0
    return jnp.moveaxis(value, 0, axis) if stacked else join_frames(value, axis % rank)
