"""Running a model a step at a time: its state as an explicit dict, and one pure step, of plain or packed parameters."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.errors import InputError, StateError
from jaxrnn.guards import exact_types
from jaxrnn.jaxprs.folding import fits, fold, folding_of, run_folded
from jaxrnn.jaxprs.packing import Packed, Purpose, low_precision_type, plain
from jaxrnn.jaxprs.step import Step
from jaxrnn.onnx.interface import TensorInfo, bind_inputs
from jaxrnn.onnx.state import StateVar, open_sizes
from jaxrnn.onnx.values import describe

if TYPE_CHECKING:
    from jaxrnn.model import Model

Arrays = Mapping[str, Any]


class Stepper:
    """What `Model` knows of its own steps: which inputs and outputs are state, and where the batch is.

    A file that froze its batch at 1 is lifted: with a batch of another size, every state array, input and output gets a
    leading axis of that size, and the step is mapped over it.
    """

    def __init__(self, model: Model):
        self.model = model
        internal = [variable for variable in model.state if variable.kind == "internal"]
        if internal:
            nodes = ", ".join(sorted({str(variable.node) for variable in internal}))
            raise StateError(
                f"{model.label} cannot be run in steps: it forgets its state after every call (node(s) {nodes}). Run "
                "whole sequences with apply, or turn it into a streaming model with stream"
            )
        self.state: dict[str, StateVar] = {variable.name: variable for variable in model.state}
        self._input_of = {str(variable.input): name for name, variable in self.state.items()}
        self._output_of = {str(variable.output): name for name, variable in self.state.items()}
        self.inputs = tuple(self._named(info) for info in model.inputs if info.name not in self._input_of)
        self.outputs = tuple(self._named(info) for info in model.outputs if info.name not in self._output_of)
        #: The name of the batch dimension, or None where the file froze it; and the other open dimensions of the state.
        self.batch_symbol, self.open = open_sizes(model.state, model.growing_dimensions)

    def _named(self, info: TensorInfo) -> TensorInfo:
        """An input or output, with one name for open dimensions that the nodes need to be equal."""
        if not info.shape:
            return info
        return dataclasses.replace(info, shape=tuple(self.model.dimensions.get(str(size), size) for size in info.shape))

    def init_state(self, batch: int, dims: Mapping[str, int] | None = None) -> dict[str, jax.Array]:
        """Zeros or the file's values for every state variable; with a leading axis where the batch must be lifted."""
        lead = () if self.batch_symbol is not None or batch == 1 else (batch,)
        sizes = {**({} if self.batch_symbol is None else {self.batch_symbol: batch}), **(dims or {})}
        missing = [symbol for symbol in self.open if symbol not in sizes]
        if missing:
            raise StateError(
                f"the state has open dimensions that are no batch; say their sizes: init_state(..., dims="
                f"{{{', '.join(f'{symbol!r}: SIZE' for symbol in missing)}}})"
            )
        state = {}
        with exact_types():
            for name, variable in self.state.items():
                shape = (*lead, *(sizes[size] if isinstance(size, str) else size for size in variable.shape))
                start = self.model.initial_values.get(name, np.zeros((), variable.dtype))
                state[name] = jnp.array(jnp.broadcast_to(start, shape))
        return state

    def step(self, params: Any, state: Arrays, inputs: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
        """One step, lifted over a leading axis where the state has one."""
        with exact_types():
            if self.is_lifted(state):
                self._check_lifted(state, inputs)
                arrays = {name: jnp.asarray(value) for name, value in inputs.items()}
                return jax.vmap(self.one_step, in_axes=(None, 0, 0))(params, dict(state), arrays)
            return self.one_step(params, state, inputs)

    def pack(self, params: Arrays, dims: Mapping[str, int], dtype: Any = None) -> Packed:
        """Do once what a step does with the parameters alone; weights of products in a narrower type, if it is given.

        Raises:
            InputError: weights cannot be of this type, or how they fold is not known without more sizes.
        """
        narrow = low_precision_type(dtype)
        with exact_types():
            sizes = {**dims, **({self.batch_symbol: 1} if self.batch_symbol else {})}
            try:
                frame = example_of(self.inputs, sizes)
            except KeyError as error:
                if narrow is not None:
                    raise InputError(
                        f"weights fold into {narrow.name} only for frames of known size: pack(..., "
                        f"dims={{{error.args[0]!r}: SIZE}})"
                    ) from error
                return self.model._unfolded(params)  # an input of open length: how a step folds depends on it
            stages = self._cut(params, frame, self.init_state(1))
            purpose = Purpose(self.model._fingerprint, folding_of(stages), label=self.model.label)
            return Packed(dict(params), fold(stages, dict(params), narrow), purpose)

    def one_step(self, params: Any, state: Arrays, inputs: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
        """One step of arrays without a leading axis, not checked."""
        if not isinstance(params, Packed):
            return self._plain_step(params, inputs, state)
        unpacked = plain(params, self.model)
        bound = dict(zip((info.name for info in self.inputs), bind_inputs(self.inputs, inputs), strict=True))
        stages = self._cut(unpacked, bound, state)
        if not fits(stages, params.folded, params.purpose.folding):
            return self._plain_step(unpacked, inputs, state)
        return run_folded(stages, params.folded, bound, dict(state))

    def _cut(self, params: Arrays, frame: Arrays, state: Arrays) -> Step:
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (dict(params), dict(frame), dict(state))
        )
        return Step.trace(self._plain_step, *shapes)

    def _plain_step(self, params: Arrays, inputs: Arrays, state: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
        stray = [name for name in inputs if name in self._input_of]
        if stray:
            raise InputError(f"{stray[0]!r} is state: pass it in the state, not among the inputs")
        given = {str(variable.input): state[name] for name, variable in self.state.items()}
        results = self.model.apply(params, {**inputs, **given})
        outputs = {name: value for name, value in results.items() if name not in self._output_of}
        return outputs, {name: results[str(variable.output)] for name, variable in self.state.items()}

    def is_lifted(self, state: Arrays) -> bool:
        """Whether a state, found to be right, has a leading batch axis.

        Raises:
            StateError: an entry is missing, unknown, or of another dtype or shape than the others ask for.
        """
        if not isinstance(state, Mapping):
            raise StateError(f"state must be a dict like that of init_state, not {type(state).__name__}")
        for name in state:
            if name not in self.state:
                close = difflib.get_close_matches(str(name), self.state, n=1)
                hint = f" (did you mean {close[0]!r}?)" if close else ""
                raise StateError(f"there is no state {name!r}{hint}; the state is: {', '.join(self.state) or 'empty'}")
        missing = [name for name in self.state if name not in state]
        if missing:
            raise StateError(f"state {missing[0]!r} is missing; init_state gives all of: {', '.join(self.state)}")
        lead: tuple[Any, ...] | None = None
        sizes: dict[str, Any] = {}
        for name, variable in self.state.items():
            value = state[name]
            expected = f"{variable.dtype.name}[{', '.join(map(str, variable.shape))}]"
            if not hasattr(value, "dtype") or value.dtype != variable.dtype:
                found = describe(value) if hasattr(value, "dtype") else type(value).__name__
                raise StateError(f"state {name!r} must be {expected}, not {found}")
            extra = len(value.shape) - len(variable.shape)
            own, core = tuple(value.shape[: max(extra, 0)]), tuple(value.shape[max(extra, 0) :])
            fits = extra in (0, 1) and all(
                isinstance(e, str) or e == s for e, s in zip(variable.shape, core, strict=True)
            )
            if not fits:
                raise StateError(
                    f"state {name!r} must be {expected} (one leading axis more in a batch), not {describe(value)}"
                )
            same = all(
                sizes.setdefault(e, s) == s for e, s in zip(variable.shape, core, strict=True) if isinstance(e, str)
            )
            if lead not in (None, own) or not same:
                raise StateError(f"state {name!r} is {describe(value)}, of another batch than the rest of the state")
            lead = own
        return bool(lead)

    def _check_lifted(self, state: Arrays, inputs: Arrays) -> None:
        size = next(iter(state.values())).shape[0]
        for info in self.inputs:
            value = inputs.get(info.name)
            if value is None or not hasattr(value, "shape"):
                continue  # `apply` says what is missing
            rank = None if info.shape is None else len(info.shape) + 1
            if (rank is not None and len(value.shape) != rank) or value.shape[:1] != (size,):
                raise InputError(
                    f"input {info} got {describe(value)}: the state is of a batch of {size}, so every input needs a "
                    f"leading axis of {size}"
                )


def example_of(infos: Sequence[TensorInfo], sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Zeros for inputs, of the given sizes of open dimensions."""
    return {
        info.name: np.zeros([size if isinstance(size, int) else sizes[size] for size in info.shape or ()], info.dtype)
        for info in infos
    }
