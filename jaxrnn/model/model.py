"""`Model`: a file as pure functions of parameters, state and inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxrnn._jax.context import exact_types
from jaxrnn.cells.chunks import Remat, recomputing
from jaxrnn.cells.products import product_type
from jaxrnn.errors import InputError
from jaxrnn.jaxprs.eager import compiled
from jaxrnn.jaxprs.packing import Packed, Purpose, plain
from jaxrnn.model.scanning import scan
from jaxrnn.model.showing import shown
from jaxrnn.model.steps import Steps
from jaxrnn.model.streaming import stream_model
from jaxrnn.model.whole_graph import WholeGraph
from jaxrnn.onnx.state import Findings, StateVar, find_state, stated_state
from jaxrnn.steps.specs import Dimension
from jaxrnn.steps.stepper import Flushed, nothing_left
from jaxrnn.steps.stepspec import StepSpec
from jaxrnn.streaming import Streamed

Arrays = Mapping[str, Any]


class Model(WholeGraph):
    """An imported model. Its functions are pure; parameters and state are passed in and handed back.

    Where its state is among its inputs and outputs, it is a `Stepper`: `spec`, `init`, `step`, `flush`.

    A copy of a model is the model itself; a pickle holds its file, external data included.

    Example::

        outputs, state = jax.jit(model.step)(model.params, model.init(), {"magnitude": frame})
        outputs, state = model.scan(model.params, model.init(), {"magnitude": frames})
        outputs = model.apply(model.params, {"magnitude": frame, "h": h})  # the whole graph, state among its arrays

    Attributes:
        inputs: name, dtype and shape of every input that is not bound by ``static``.
        outputs: the same of every output.
        static: the values that ``static`` bound, by input.
        declared_state: the pairs of input and output given to ``load(..., state=...)``; None where none were asked for.
        initial_values: the file's own values of state inputs before the first step; zeros where there is none.
        step_file: what a file that ``jaxrnn.export_onnx`` wrote of a step says of itself: pulse, delay and rate, the
            names of its state, its first state; None of other files.
        opsets: opset version by domain (``""`` is ONNX's own).
        proto: the file's content, as it was read.
    """

    @property
    def state(self) -> tuple[StateVar, ...]:
        """Every state variable: what a caller carries from call to call, and what each call starts anew and forgets.

        Raises:
            StateError: it is ambiguous; lists the candidates and shows how to name the right one.
        """
        return self._findings.variables

    @property
    def dimensions(self) -> Mapping[str, Dimension]:
        """For every open dimension of the inputs, the first name of those that the nodes need to be equal to it.

        Some exporters give the batch another name in every input; `state` and `spec` show one. If the nodes need a
        dimension to be a constant, it is that number.
        """
        return self._findings.dimensions

    @property
    def growing_dimensions(self) -> frozenset[str]:
        """The open dimensions along which a state becomes longer with every step, as a cache of keys and values."""
        return self._findings.growing

    @property
    def frame_recurrences(self) -> tuple[str, ...]:
        """Recurrences that start anew in every step and that no state carries on, such as a GRU over frequency.

        If the caller declared the state (``load(..., state={...})``), every recurrence beside it is listed here.
        """
        return self._findings.of_frame

    @functools.cached_property
    def _findings(self) -> Findings:
        stated = None if self.step_file is None else stated_state(self.step_file, self.proto, self.static)
        if stated is not None and self.declared_state is None:
            return stated
        return find_state(self.program, self.declared_state, self.static)

    @functools.cached_property
    def _steps(self) -> Steps:
        return Steps(self)

    @property
    def spec(self) -> StepSpec:
        """One step as a `Stepper`: its inputs and outputs without the state, the state, and where the batch is.

        Raises:
            StateError: the model forgets its state after every call, so it has no steps; `stream` makes one that has.
        """
        return self._steps.spec

    def init(
        self,
        batch: int | None = None,
        *,
        params: Any = None,
        constants: Any = None,
        dims: Mapping[str, int] | None = None,
    ) -> dict[str, jax.Array]:
        """The state before the first step, by the names that `state` shows: zeros, or the file's `initial_values`.

        Args:
            batch: None for one stream, where a batch dimension that the file leaves open is 1; a number of streams
                fills it. Where the file fixed its batch, a number, 1 too, gives every array a leading axis, and `step`
                and `scan` then take inputs with such an axis and map over it.
            params: held against the model's where they are given; the state does not depend on them.
            constants: as in every `Stepper`; a step holds no input constant, so there is none.
            dims: sizes of other open dimensions of the state, such as the length of the memory that a decoder attends
                to.

        Raises:
            StateError: the model forgets its state after every call, so it has no steps; or a size is missing.
            InputError: an argument does not fit.
        """
        if constants is not None:
            raise InputError(f"{self.label} holds no input constant: every step takes all of its inputs")
        state = self._steps.init(batch, dims)
        if params is not None:
            with exact_types(), self._computing(params, None):
                self._check_params(params)
        return state

    def step(
        self, params: Any, state: Arrays, inputs: Arrays, *, dtype: Any = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """One step, pure: outputs and the new state. State is neither among the inputs nor among the outputs.

        Args:
            params: as in `params`, or packed by `pack`.
            state: as `init` gives it, or as the step before did.
            inputs: the other inputs, by name.
            dtype: as in `apply`. The state keeps its types.

        Raises:
            StateError: an entry of the state is missing, unknown, or of another dtype, shape or batch.
            InputError: an input does not fit.
        """
        with self._computing(params, dtype):
            return self._steps.step(params, state, inputs)

    def flush(self, params: Any, state: Arrays, tail: Any = None, valid: Any = 0) -> Flushed:
        """What is left when a recording has ended: nothing, because a step keeps nothing back.

        Raises:
            InputError: there is a tail; a step takes whole frames.
        """
        return nothing_left(self.spec, tail, valid)

    def run(
        self,
        params: Any,
        inputs: Arrays,
        *,
        batch: int | None = None,
        time_axis: int | Mapping[str, int] = 0,
        lengths: Any = None,
        dims: Mapping[str, int] | None = None,
        dtype: Any = None,
    ) -> dict[str, Any]:
        """A whole recording: `init`, and `scan` over all of its frames.

        Args:
            params: as in `scan`.
            inputs: as in `scan`.
            batch: as in `init`.
            time_axis: as in `scan`.
            lengths: as in `scan`.
            dims: as in `init`.
            dtype: as in `apply`.

        Returns:
            Outputs with their frames where the inputs have them.
        """
        state = self.init(batch, dims=dims)
        return self.scan(params, state, inputs, time_axis=time_axis, lengths=lengths, dtype=dtype)[0]

    def scan(
        self,
        params: Any,
        state: Arrays,
        inputs: Arrays,
        *,
        time_axis: int | Mapping[str, int] = 0,
        lengths: Any = None,
        remat: Remat = None,
        dtype: Any = None,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """`step` over a whole recording in one call: outputs of all frames, and the state after the last.

        Work that needs no state, such as input projections and convolutions, runs for all frames at once before the
        loop, and what no state needs after it. The result equals the loop of steps up to rounding, and a recording in
        chunks with the state carried on equals one call.

        Args:
            params: as in `params`, or packed by `pack`.
            state: as `init` gives it.
            inputs: the other inputs, with frames along ``time_axis``: either stacked on an axis of their own, or joined
                along an axis that the step has, such as ``[1, frames * 160]`` for steps of ``[1, 160]``.
            time_axis: where the frames are, counted in the array; or one for each input and output by name.
            lengths: ``int[batch]``, frames of each stream. Beyond them the state does not change and outputs are zero.
            remat: as in `apply`; here a backward pass keeps nothing of the inside of a chunk.
            dtype: as in `apply`.

        Returns:
            Outputs with their frames where the inputs have them, and the new state.
        """
        places = time_axis if isinstance(time_axis, int) else tuple(time_axis.items())
        with recomputing(remat), exact_types(), self._computing(params, dtype):
            self._check_params(params)
            arrays = self._steps.bind_recording(state, inputs)
            counts = None if lengths is None else jnp.asarray(lengths)
            return self._scan(params, dict(state), arrays, counts, time_axis=places)

    @compiled
    def _scan(self, params: Any, state: Arrays, inputs: Arrays, lengths: jax.Array | None, *, time_axis: Any) -> Any:
        axes = time_axis if isinstance(time_axis, int) else dict(time_axis)
        return scan(self._steps, params, state, inputs, axes, lengths)

    def stream(
        self,
        symbol: str = "S",
        pulse: int | None = None,
        *,
        dims: Mapping[str, int | str] | None = None,
        multiple: int = 1,
        constraints: Sequence[str] = (),
        dtype: Any = None,
    ) -> Streamed:
        """Turn the model over a whole recording into one that runs on pulses of it, so many frames a step, exactly.

        `Streamed.step` takes and gives dicts by the names of the file, and equals `apply` from the first frame to the
        last. The batch of the file is 1; `Streamed.init` makes states of more streams.

        Args:
            symbol: the name of the dimension that is time. Inputs without it are constant in time.
            pulse: frames in each step; by default the fewest that fit.
            dims: sizes of other dimensions that the file leaves open; 1 by default. A multiple of the symbol, such as
                ``{"samples": "160*frames"}``, is time at another rate.
            multiple: what every number of frames is a multiple of, where the model works on such lengths only.
            constraints: what may be taken for granted of the number of frames, such as ``"S >= 3"``.
            dtype: as in `apply`, of every function of the result.

        Raises:
            InputError: no input has such a dimension, or there is no such compute dtype.
            StreamError: part of the model needs all of the future, or has no rule; names the node, and what to do. Or
                the pulse does not fit the strides; names the smallest pulses that do.
        """
        with self._computing(None, dtype):
            return stream_model(self, symbol, pulse, dims=dims or {}, multiple=multiple, constraints=constraints)

    def pack(self, params: Arrays, *, dims: Mapping[str, int] | None = None, dtype: Any = None) -> Packed:
        """Do once what depends on the parameters alone; `apply`, `step` and `scan` take the result in their place.

        Gradients with respect to the plain parameters need the plain ones.

        Args:
            params: as in `params`.
            dims: sizes of dimensions of the inputs that the file leaves open, other than the batch. Without them, or
                for frames of other sizes, a step does all of its work as with plain parameters.
            dtype: as in `apply`; what takes the result computes in it, if it is not asked for another. The weights of
                products are rounded once, and take half the bytes. It makes batches of streams faster, `step` and
                `scan`. A single stream on a CPU gets slower: there a product of a vector is as fast as its weights are
                read, and those in low precision are widened first. What it costs the outputs shows ``jaxrnn profile
                --dtype bfloat16``.

        Raises:
            InputError: a parameter does not fit, or there is no such compute dtype. What takes the result raises it
                where that was packed for another graph.
        """
        with exact_types(), self._computing(params, dtype):
            self._check_params(params)
            params = plain(params, self)
            if any(variable.kind == "internal" for variable in self.state):
                return self._packed(params)
            return self._steps.pack(params, dims or {})

    def _packed(self, params: Arrays, folded: tuple[jax.Array, ...] = (), folding: str = "") -> Packed:
        """Parameters packed for this model; without folded arrays where nothing can be done beforehand."""
        dtype = product_type()
        name = None if dtype is None else dtype.name
        return Packed(dict(params), folded, Purpose(self.fingerprint, folding, dtype=name, label=self.label))

    def __copy__(self) -> Model:
        return self  # nothing of it changes

    def __deepcopy__(self, memo: dict[int, Any]) -> Model:
        return self

    def __reduce__(self) -> tuple[Callable[..., Model], tuple[Any, ...]]:
        from jaxrnn.model.loading import contents_of, reloaded  # reads models

        return reloaded, contents_of(self)

    def __repr__(self) -> str:
        return shown(self)
