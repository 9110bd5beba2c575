"""Running a model a step at a time: its state as an explicit dict, and one pure step, of plain or packed parameters."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrnn._files.arguments import SIZE, argument, either
from jaxrnn._files.messages import describe
from jaxrnn._jax.context import exact_types
from jaxrnn.errors import InputError, StateError
from jaxrnn.jaxprs.eager import compiled
from jaxrnn.jaxprs.packing import Packed, fits, fold, folding_of, plain, run_folded
from jaxrnn.jaxprs.schedule import Step
from jaxrnn.onnx.interface import bind_inputs
from jaxrnn.onnx.state import StateVar, open_sizes
from jaxrnn.steps.specs import check_names, converted
from jaxrnn.steps.stepper import check_batch, in_batch
from jaxrnn.steps.stepspec import OutputSpec, StateSpec, StepSpec, zeros

if TYPE_CHECKING:
    from jaxrnn.model import Model

Arrays = Mapping[str, Any]


class Steps:
    """What `Model` knows of its own steps: which inputs and outputs are state, and where the batch is.

    Where the file froze its batch at 1, a state in a batch has a leading axis on every array, inputs and outputs too,
    and the step is mapped over it.
    """

    def __init__(self, model: Model):
        self.model = model
        internal = [variable for variable in model.state if variable.kind == "internal"]
        if internal:
            nodes = ", ".join(sorted({str(variable.node) for variable in internal}))
            raise StateError(
                f"{model.label} cannot be run in steps: it forgets its state after every call (node(s) {nodes}). Run "
                f"whole sequences with {either('apply', 'jaxrnn run')}, or turn it into a streaming model with "
                f"{either('stream', 'jaxrnn stream --symbol NAME')}"
            )
        self.state: dict[str, StateVar] = {variable.name: variable for variable in model.state}
        self._input_of = {str(variable.input): name for name, variable in self.state.items()}
        self._output_of = {str(variable.output): name for name, variable in self.state.items()}
        batch_symbol, self._open = open_sizes(model.state, model.growing_dimensions)
        # One name for open dimensions that the nodes need to be equal.
        inputs = [info.sized(model.dimensions) for info in model.inputs if info.name not in self._input_of]
        outputs = [info.sized(model.dimensions) for info in model.outputs if info.name not in self._output_of]
        self.spec = StepSpec(
            model.label,
            inputs=tuple(inputs),
            outputs=tuple(OutputSpec(info.name, info.dtype, info.shape) for info in outputs),
            state=tuple(StateSpec(v.name, v.dtype, tuple(v.shape), kind=v.kind) for v in model.state),
            batch_symbol=batch_symbol,
        )

    def init(self, batch: int | None, dims: Mapping[str, int] | None = None) -> dict[str, jax.Array]:
        """Zeros or the file's values for every state variable."""
        check_batch(batch)
        symbol = self.spec.batch_symbol
        self._check_dims(dims or {})
        sizes = {**({} if symbol is None else {symbol: 1 if batch is None else batch}), **(dims or {})}
        missing = [name for name in self._open if name not in sizes]
        if missing:
            raise StateError(
                f"the state has open dimensions that are no batch; say their sizes: "
                f"{argument('dims', dict.fromkeys(missing, SIZE), 'init()')}"
            )
        state = {}
        with exact_types():
            for name, start in zeros(self.spec.state, sizes).items():
                values = self.model.initial_values.get(name, np.zeros((), start.dtype))
                try:
                    state[name] = jax.device_put(np.broadcast_to(values, start.shape).copy())
                except ValueError as error:
                    raise StateError(
                        f"the file begins {name!r} with {describe(values)}, which does not fit a state of shape "
                        f"{list(start.shape)}"
                    ) from error
            return in_batch(self.spec, state, batch)

    def _check_dims(self, dims: Mapping[str, int]) -> None:
        """Refuse sizes that nothing reads: of unknown dimensions, and of those that equations fix or tie to others."""
        tied = self.model.dimensions
        known = {size for info in (*self.spec.inputs, *self.spec.state) for size in info.shape or ()}
        for name in dims:
            if name not in known:
                value = tied.get(name)
                why = "no array has it open" if value is None else f"the nodes need it to be {value!r}"
                listed = ", ".join(sorted(size for size in known if isinstance(size, str))) or "none"
                raise InputError(f"{argument('dims', {name: SIZE}, 'init()')}: {why}; open dimensions: {listed}")

    def step(self, params: Any, state: Arrays, inputs: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
        """One step, mapped over a leading axis where the state has one."""
        with exact_types():
            lead = self.lead(state, inputs)
            self._refuse_state(inputs)
            if not lead:
                return self.one_step(params, state, inputs)
            arrays = self.spec.bind(inputs, lead)
            return jax.vmap(self.one_step, in_axes=(None, 0, 0))(params, dict(state), arrays)

    def bind_recording(self, state: Arrays, inputs: Arrays) -> dict[str, Any]:
        """The inputs of many steps as arrays of the declared types; their shapes are not looked at."""
        self.check_names(inputs)
        self.lead(state, inputs, frames=1)
        return {each.name: converted(each, inputs[each.name]) for each in self.spec.inputs if each.name in inputs}

    def lead(self, state: Arrays, inputs: Arrays, frames: int = 0) -> tuple[Any, ...]:
        """The batch in front of a state; without any state, of the inputs, which have ``frames`` axes before it."""
        lead = self.spec.lead(state)
        if self.state or not isinstance(inputs, Mapping):
            return lead
        shapes = ((np.shape(inputs[each.name]), each.shape) for each in self.spec.inputs if each.name in inputs)
        sizes = (have[frames] for have, want in shapes if want is not None and len(have) == len(want) + frames + 1)
        return tuple(itertools.islice(sizes, 1))

    def check_names(self, inputs: Arrays) -> None:
        """Refuse inputs that a step does not have, state among them."""
        if isinstance(inputs, Mapping):
            self._refuse_state(inputs)
            check_names(self.spec.inputs, inputs)

    def pack(self, params: Arrays, dims: Mapping[str, int]) -> Packed:
        """Do once what a step does with the parameters alone; to be called where types are exact."""
        symbol = self.spec.batch_symbol
        sizes = {**dims, **({} if symbol is None else {symbol: 1})}
        try:
            frame, state = zeros(self.spec.inputs, sizes), zeros(self.spec.state, sizes)
        except KeyError:
            return self.model._packed(params)  # an array of open length: how a step folds depends on it
        return self._pack(dict(params), frame, state)

    @compiled
    def _pack(self, params: Arrays, frame: Arrays, state: Arrays) -> Packed:
        with exact_types():
            stages = self._cut(params, frame, state)
            return self.model._packed(params, fold(stages, params), folding_of(stages))

    def one_step(self, params: Any, state: Arrays, inputs: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
        """One step of arrays without a leading axis, not checked."""
        if not isinstance(params, Packed):
            return self._plain_step(params, inputs, state)
        plain(params, self.model)  # packed for this model
        return self._packed_step(params, dict(state), bind_inputs(self.spec.inputs, inputs))

    @compiled
    def _packed_step(self, params: Packed, state: Arrays, inputs: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
        with exact_types():
            stages = self._cut(params.params, inputs, state)
            if not fits(stages, params.folded, params.purpose.folding):
                return self._plain_step(params.params, inputs, state)
            return run_folded(stages, params.folded, inputs, dict(state))

    def _cut(self, params: Arrays, frame: Arrays, state: Arrays) -> Step:
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (dict(params), dict(frame), dict(state))
        )
        return Step.trace(self._plain_step, *shapes)

    def _plain_step(self, params: Arrays, inputs: Arrays, state: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
        carried = {str(variable.input): state[name] for name, variable in self.state.items()}
        results = self.model.apply(params, {**inputs, **carried})
        outputs = {name: value for name, value in results.items() if name not in self._output_of}
        return outputs, {name: results[str(variable.output)] for name, variable in self.state.items()}

    def _refuse_state(self, inputs: Any) -> None:
        stray = [name for name in inputs if name in self._input_of] if isinstance(inputs, Mapping) else []
        if stray:
            raise InputError(f"{stray[0]!r} is state: pass it in the state, not among the inputs")
