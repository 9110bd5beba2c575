"""`Model`: a file as pure functions of parameters, state and inputs."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxrnn._files.messages import COLUMNS, LINES, describe, near_or_all, part_of, shortened, without_folders
from jaxrnn._jax.context import cast_params, check_params, exact_types, is_staged, jitted, without_collector
from jaxrnn._jax.varying import alike
from jaxrnn.cells.forms import Remat, matrix_products_in, product_type, recomputing
from jaxrnn.errors import InputError, NodeError, StaticValueError, check_kind
from jaxrnn.jaxprs.schedule import Packed, Purpose, computing_type, folded_for, run_packed, unpack
from jaxrnn.model.steps import ModelSteps, scan
from jaxrnn.model.streaming import GraphFunction, open_dimensions, operators_by_scope, stream_model
from jaxrnn.onnx.binding import BoundGraph, fingerprint_of
from jaxrnn.onnx.evaluate import BoundNode, Caller, Scope, call, collecting, evaluate
from jaxrnn.onnx.graph import bind_inputs, bind_static, normal_domain, spec_of
from jaxrnn.onnx.reading import SourceFile
from jaxrnn.onnx.state import FoundState, StateSearch, StateVar, are_plain, check_pairs, stated_state
from jaxrnn.onnx.stepfile import StepFile
from jaxrnn.onnx.values import Stacked, holds_text, is_text, traced
from jaxrnn.steps.specs import Arrays, ArraySpec, Dimension
from jaxrnn.steps.stepper import ExportForm, Flushed, Notes, nothing_left
from jaxrnn.steps.stepspec import StepSpec, zeros
from jaxrnn.streaming import Streamed

#: The beginnings of keys of metadata that programs write for themselves.
_OF_TOOLS = ("jaxrnn", "onnx.")


class Model:
    """An imported model of pure functions: parameters and state are arguments and results.

    A model with its state among inputs and outputs is a `Stepper`: `spec`, `init`, `step`, `flush`. A copy of a model
    is the model itself; a pickle contains the file with external data.

    Example::

        outputs, state = jax.jit(model.step)(model.params, model.init(), {"magnitude": frame})
        outputs, state = model.scan(model.params, model.init(), {"magnitude": frames})
        outputs = model.apply(model.params, {"magnitude": frame, "h": h})  # the whole graph, state among arrays

    Attributes:
        inputs: name, dtype and shape of each input that ``static`` does not fix.
        outputs: name, dtype and shape of each output.
        static: the values fixed by ``static``, by input.
        declared_state: the pairs of input and output given to ``load(..., state=...)``, or None.
        initial_values: the first values of state inputs, if the file has such values; other state starts from zeros.
        step_file: the metadata of a step that ``jaxrnn.export_onnx`` wrote: pulse, delay and rate, names of the state,
            first state. None if a different program wrote the file.
        opsets: opset version by domain (``""`` is ONNX's default domain).
        corrected: descriptions of outputs that the file declares with other shapes than the nodes give.
        opened: descriptions of the axes that ``load(path, dims={"x": {0: "time"}})`` opened, and of the comparisons.
        proto: the content of the file.
    """

    def __init__(
        self,
        file: SourceFile,
        program: BoundGraph,
        *,
        static: Arrays,
        state: Mapping[str, str] | None,
        label: str,
        initial: dict[str, np.ndarray],
        step_file: StepFile | None,
        options: Mapping[str, Any],
    ):
        self._file, self.proto = file, file.proto
        self.program, self.label = program, label
        self.initial_values, self.step_file = initial, step_file
        self.opsets = {normal_domain(entry.domain): entry.version for entry in file.proto.opset_import}
        declared = tuple(map(spec_of, program.block.inputs))
        self.outputs: tuple[ArraySpec, ...] = tuple(map(spec_of, program.block.outputs))
        self.static = bind_static(declared, static)
        self.inputs: tuple[ArraySpec, ...] = tuple(info for info in declared if info.name not in self.static)
        self.declared_state = None if state is None else check_pairs(self.inputs, self.outputs, state)
        self.corrected: tuple[str, ...] = ()
        self.opened: tuple[str, ...] = ()
        #: The reason why the graph cannot be compiled as a whole, after a call has failed to compile.
        self._uncompilable: str | None = None
        #: The other options of `load`, without ``static`` and ``state``, to restore the model from a pickle.
        self._load_options = dict(options)
        if self.declared_state and not are_plain(self.inputs, self.outputs, self.declared_state):
            _ = self._search  # the flow tells how an output holds a value of another shape or type

    @functools.cached_property
    def fingerprint(self) -> str:
        """A fingerprint of the graph and of the options of `load`; values of parameters do not count."""
        return fingerprint_of(self.program, (self.static, self.declared_state, self.initial_values))

    def with_static(self, static: Mapping[str, Any]) -> Model:
        """Return the model with further inputs fixed, as by ``load(path, static=...)``, without reading the file again.

        A file of several phases, such as a merged decoder with its flag for a cache, is a model for each phase, with
        the same parameters and state::

            first, later = (decoder.with_static({"use_cache_branch": [flag]}) for flag in (False, True))
            outputs, state = first.step(params, first.init(dims={"past": 0}), prompt)
            outputs, state = later.step(params, state, token)

        Raises:
            InputError: a name is not an input, or a value does not fit the input.
        """
        initial = {name: value for name, value in self.initial_values.items() if name not in static}
        options = {"state": self.declared_state, "label": self.label, "options": self._load_options}
        fixed = {**self.static, **static}
        model = Model(self._file, self.program, static=fixed, initial=initial, step_file=self.step_file, **options)
        model.corrected, model.opened, vars(model)["params"] = self.corrected, self.opened, self.params
        return model

    @functools.cached_property
    def params(self) -> dict[str, jax.Array]:
        """The parameters as a dict of arrays, in the file's layout and element types."""
        # The arrays are concrete, even if the first access is inside of a trace.
        with exact_types(), jax.ensure_compile_time_eval():
            # `jnp.asarray` would compile a program for each shape.
            return {name: jax.device_put(array) for name, array in self.program.parameters.items()}

    @property
    def state(self) -> tuple[StateVar, ...]:
        """All state variables: external variables that callers carry, and internal variables that calls forget.

        Raises:
            StateError: the state is ambiguous; the message lists candidates and the declaration to write.
        """
        return self._findings.variables

    @property
    def dimensions(self) -> Mapping[str, Dimension]:
        """The open dimensions of the inputs, each with the first name among the dimensions that must be equal.

        Some exporters name the batch differently in each input; `state` and `spec` show a single name. A dimension
        that nodes need to be a constant maps to that number.
        """
        return self._findings.dimensions if self._search is None else self._search.probe.dimensions

    @property
    def _ties_are_known(self) -> bool:
        """Return True if `dimensions` knows all dimensions that must be equal."""
        return self._search is None or self._search.probe.are_solved

    @property
    def growing_dimensions(self) -> frozenset[str]:
        """The open dimensions along which a state becomes longer in each step, such as a cache of keys and values."""
        return self._findings.growing

    @property
    def frame_recurrences(self) -> tuple[str, ...]:
        """Recurrences that restart in each step and that no state continues, such as a GRU over frequency.

        For a declared state (``load(..., state={...})``), these are all recurrences that the declaration leaves out.
        """
        return self._findings.of_frame

    @property
    def undeclared_pairs(self) -> tuple[tuple[str, str], ...]:
        """Pairs of an input and an output that could be state, but are data by the declared state.

        Empty without ``load(..., state={...})``, and for ``state={}``, which declares all inputs data.
        """
        return self._findings.undeclared

    @property
    def spec(self) -> StepSpec:
        """One step as a `Stepper`: inputs and outputs without state, the state, and the batch.

        Raises:
            StateError: the model forgets its state after each call, so it has no steps; use `stream`.
        """
        return self._steps.spec

    def apply(self, params: Arrays, inputs: Arrays, *, remat: Remat = None, dtype: Any = None) -> dict[str, Any]:
        """Evaluate the whole graph, as a pure function that can be jitted, differentiated, mapped and exported.

        Args:
            params: a dict of arrays, as in `params`.
            inputs: a dict of arrays, as in `inputs`.
            remat: frames in each chunk of a recurrence: a number, or ``"sqrt"`` for the square root of the sequence's
                length. The backward pass computes the chunks again, which saves memory. Results are equal.
            dtype: ``"bfloat16"`` or ``"float16"``: the operands of matrix products and convolutions are rounded to that
                type. Sums and all other arithmetic are float32. Parameters may then have that type. None computes in
                the file's types.

        Returns:
            A dict of arrays, as in `outputs`, each in the file's element type: an int64 output is int64 with and
            without ``jax_enable_x64``.

        Raises:
            InputError: a name, dtype, rank or dimension of an input or a parameter does not fit.
            NodeError: a node cannot be evaluated on these values.
            StaticValueError: under a transformation, a shape depends on data.
        """
        with recomputing(remat), exact_types(), self._computing(params, dtype):
            self._check_params(params)
            given, arguments = alike(params, self._bind(inputs))
            if not is_staged():
                return self._eagerly(unpack(given, self), arguments)
            if isinstance(given, Packed) and given.folded:
                return run_packed(self._whole, given, arguments, {})[0]
            return self._evaluate(unpack(given, self), arguments)

    def __call__(self, inputs: Arrays | None = None, /, **named: Any) -> dict[str, Any]:
        """Apply the model with the file's own parameters, compiled; inputs by keyword, or as a dict.

        A model with shapes that depend on data cannot be compiled. Such a model is evaluated node by node, with a
        single `UserWarning`. Models of strings are also evaluated node by node, without a warning.
        """
        if inputs is not None and not isinstance(inputs, Mapping):
            raise InputError(f"pass inputs by name or as one dict, not {describe(inputs)}")
        before = self._uncompilable
        results = self.apply(self.params, {**(inputs or {}), **named})
        strings = not all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(results))  # never compiled
        if before is None and self._uncompilable is not None and not strings:
            warnings.warn(
                f"{self.label} cannot be compiled and is evaluated node by node, which is slower: {self._uncompilable}",
                stacklevel=2,
            )
        return results

    def intermediates(self, params: Arrays, inputs: Arrays, compute: Caller = call) -> dict[str, tuple[BoundNode, Any]]:
        """Return all values of the outer graph and their nodes, by value name, to find where results differ.

        ``compute`` computes a node, also of a subgraph, in place of `jaxrnn.onnx.evaluate.call`.
        """
        seen: dict[str, tuple[BoundNode, Any]] = {}

        def caller(node: BoundNode, arguments: Sequence[Any], scope: Scope) -> tuple[Any, ...]:
            outputs = compute(node, arguments, scope)
            pairs = zip(node.outputs, outputs, strict=False)
            if scope.outer is None:
                seen.update({key.name: (node, value) for key, value in pairs if key.name})
            return outputs

        with exact_types():
            self._check_params(params)
            self._evaluate(unpack(params, self), self._bind(inputs), caller)
        return seen

    def symbolic_inputs(
        self, dims: Mapping[str, str] | None = None, *, constraints: Sequence[str] = ()
    ) -> dict[str, jax.ShapeDtypeStruct]:
        """Return input shapes with symbolic dimensions, for ``jax.make_jaxpr``, ``jax.eval_shape`` or export.

        Args:
            dims: expressions that replace dimensions of the file: ``{"S": "64*S"}`` for lengths divisible by 64.
            constraints: assumptions for JAX, such as ``"S >= 2"``. The error about an inconclusive comparison asks for
                a constraint.
        """
        opened, result = open_dimensions(self), {}
        check_kind("dims", dims, Mapping | None, "a dict by name")
        for name in dims or {}:
            if name not in opened:
                listed = ", ".join(opened) or "none"
                raise InputError(f"dims: no input has an open dimension {name!r}; the open dimensions are: {listed}")
        scope = jax.export.SymbolicScope(constraints)
        for info in self.inputs:
            if info.dtype is None or info.shape is None or info.is_text:
                raise InputError(f"{info.as_input} has no declared rank or holds strings, so it has no symbolic shape")
            spelled = ", ".join((dims or {}).get(str(size), str(size)) for size in info.shape)
            shape = jax.export.symbolic_shape(spelled, scope=scope) if info.shape else ()
            # Without ``jax_enable_x64``, the integers of JAX's arguments have 32 bits.
            dtype = np.dtype(jax.dtypes.canonicalize_dtype(info.dtype)) if info.dtype.kind in "iu" else info.dtype
            result[info.name] = jax.ShapeDtypeStruct(shape, dtype)
        return result

    def init(
        self,
        batch: int | None = None,
        *,
        params: Any = None,
        constants: Any = None,
        dims: Mapping[str, int] | None = None,
    ) -> dict[str, jax.Array]:
        """Return the state before the first step as a dict of arrays: zeros, or the file's `initial_values`.

        Args:
            batch: the number of streams. None means one stream, with size 1 for an open batch dimension. If the file
                has a fixed batch, a number, also 1, adds a leading axis to each array, and `step` and `scan` map over
                that axis.
            params: checked against the model's if given; the state does not depend on parameters.
            constants: part of the `Stepper` protocol; a step of a model has no constant inputs.
            dims: sizes of other open dimensions of the state, such as the length of a decoder's memory.

        Raises:
            StateError: the model forgets its state after each call, so it has no steps; or a size is missing.
            InputError: an argument does not fit.
        """
        if constants is not None:
            raise InputError(f"{self.label} has no constant inputs: every step takes all inputs")
        state = self._steps.init(batch, dims)
        if params is not None:
            with exact_types(), self._computing(params, None):
                self._check_params(params)
        return state

    def step(
        self, params: Any, state: Arrays, inputs: Arrays, *, dtype: Any = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Run one step: return outputs and the new state. Inputs and outputs do not contain the state.

        Args:
            params: as in `params`, or packed by `pack`.
            state: from `init`, or from the step before.
            inputs: the other inputs as a dict of arrays.
            dtype: as in `apply`. The state keeps its types.

        Raises:
            StateError: an entry of the state is missing or unknown, or has a wrong dtype, shape or batch.
            InputError: an input does not fit.
        """
        with self._computing(params, dtype):
            unpack(params, self)  # refuses parameters that were packed for a different program
            return self._steps.step(params, state, inputs)

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
        """Run `step` over a whole recording in one call: return all outputs, and the state after the last frame.

        Work without state, such as input projections and convolutions, runs for all frames at once before or after the
        loop. The result equals the loop of steps up to rounding, and chunks with carried state equal one call.

        Args:
            params: as in `params`, or packed by `pack`.
            state: from `init`.
            inputs: the other inputs, with frames along ``time_axis``: either stacked on a new axis, or joined along an
                axis of the step, such as ``[1, frames * 160]`` for steps of ``[1, 160]``.
            time_axis: the axis of the frames, or a dict with the axis of each input and output.
            lengths: ``int[batch]``, frames of each stream. Later frames keep the state, and their outputs are zero.
            remat: as in `apply`; the backward pass keeps no values from inside of a chunk.
            dtype: as in `apply`.

        Returns:
            Outputs with frames on the same axes as the inputs, and the new state.
        """
        axes = time_axis.values() if isinstance(time_axis, Mapping) else [time_axis]
        if not all(isinstance(axis, (int, np.integer)) for axis in axes):
            raise InputError(
                f"time_axis must be the number of an axis, or a dict of numbers by name, not {time_axis!r}"
            )
        places = tuple(time_axis.items()) if isinstance(time_axis, Mapping) else int(time_axis)
        if isinstance(time_axis, Mapping):
            known = [each.name for each in (*self.inputs, *self.outputs)]
            for name in set(time_axis) - set(known):
                raise InputError(f"time_axis: the model has no input or output {name!r}{near_or_all(name, known)}")
        with recomputing(remat), exact_types(), self._computing(params, dtype):
            self._check_params(params)
            arrays = self._steps.bind_recording(state, inputs)
            counts = None if lengths is None else jnp.asarray(lengths)
            return self._scan(params, dict(state), arrays, counts, time_axis=places)

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
        """Run a whole recording: `init`, and `scan` over all frames.

        Args:
            params: as in `scan`.
            inputs: as in `scan`.
            batch: as in `init`.
            time_axis: as in `scan`.
            lengths: as in `scan`.
            dims: as in `init`.
            dtype: as in `apply`.

        Returns:
            Outputs with frames on the same axes as the inputs.
        """
        state = self.init(batch, dims=dims)
        return self.scan(params, state, inputs, time_axis=time_axis, lengths=lengths, dtype=dtype)[0]

    def flush(self, params: Any, state: Arrays, tail: Any = None, valid: Any = None) -> Flushed:
        """Return an empty result, because a step keeps no frames back.

        Raises:
            InputError: there is a tail; a step takes whole frames.
        """
        return nothing_left(self.spec, tail, valid)

    def stream(
        self,
        symbol: str | None = None,
        pulse: int | None = None,
        *,
        dims: Mapping[str, int | str] | None = None,
        multiple: int = 1,
        constraints: Sequence[str] = (),
        past: int | None = None,
        future: int | Mapping[str, int] | None = None,
        block: int | None = None,
        inputs: Mapping[str, Any] | None = None,
        dtype: Any = None,
    ) -> Streamed:
        """Turn a model of whole recordings into an exact streaming model that runs on pulses of frames.

        `Streamed.step` takes and returns dicts by the names of the file, and equals `apply` from the first to the last
        frame. The batch of the file is 1; `Streamed.init` returns states for several streams.

        Args:
            symbol: the name of the dimension that is time; by default the only open dimension that is not a batch and
                is not in `dims`, or ``S``. Inputs without this dimension are constant in time.
            pulse: frames in each step; by default the smallest possible number.
            dims: sizes of other open dimensions, 1 by default. A multiple of the symbol, such as ``{"samples":
                "160*frames"}``, is time at a different rate.
            multiple: a number that divides the length of each recording in frames, for models that need such lengths.
            constraints: assumptions about the number of frames, in units of ``multiple``, in the name of the dimension
                or with S, such as ``"time >= 3"`` or ``"S >= 3"``.
            past: for causal attention without a bound: the largest number of earlier frames that a frame sees. **It
                changes the model**: the stream equals `Streamed.offline`, and not `apply`; see `jaxrnn.stream`.
            future: the frames that backward recurrences, statistics over all of time and attention to all frames see
                after their block. **It changes the model** in the same way; see `jaxrnn.bounded`. `past` then bounds
                attention to all frames.
            block: with `future`, the frames that share their end; see `jaxrnn.bounded`.
            inputs: values of inputs that are constant in time, such as ``{"fmin": 50.0}``, if the model has no finite
                outputs for random numbers: `stream` compares traces on these values. Other values stream, too.
            dtype: as in `apply`, for all functions of the result.

        Raises:
            InputError: no input has this dimension, several dimensions could be time, or the compute dtype does not
                exist.
            StreamError: part of the model needs the whole future, or has no rule; the message names the node and a
                remedy. Or the pulse does not fit the strides; the message names the smallest pulses.
        """
        with self._computing(None, dtype):
            options = {"multiple": multiple, "constraints": constraints, "past": past, "future": future, "block": block}
            given = {"dims": {} if dims is None else dims, "inputs": {} if inputs is None else inputs}
            return stream_model(self, symbol, pulse, **given, **options)

    def pack(self, params: Arrays, *, dims: Mapping[str, int] | None = None, dtype: Any = None) -> Packed:
        """Precompute the work that depends only on parameters; `apply`, `step` and `scan` accept the result.

        In a model with steps, `step` and `scan` save this work. In a model without steps, jitted calls of `apply` save
        this work. Gradients with respect to the plain parameters need the plain parameters.

        Args:
            params: as in `params`.
            dims: sizes of open dimensions of the inputs, without the batch of a model with steps. Without sizes, or if
                the work depends on a size that differs, a call does all work as with plain parameters.
            dtype: as in `apply`, and the default type of calls. The weights of products are rounded once, and take half
                the bytes. Batches of streams, `step` and `scan` become faster. A single stream on a CPU becomes slower:
                a product with a vector is bound by reading weights, and low-precision weights must be widened.
                ``jaxrnn profile --dtype bfloat16`` shows the effect on outputs.

        Raises:
            InputError: a parameter does not fit, or the compute dtype does not exist. Calls raise this error for
                parameters that were packed for a different graph.
        """
        with exact_types(), self._computing(params, dtype):
            self._check_params(params)
            params = unpack(params, self)
            if all(variable.kind != "internal" for variable in self.state):
                return self._steps.pack(params, dims or {})
            try:
                arguments = zeros(self.inputs, dims or {})
            except KeyError:  # an open dimension
                return self._packed(params)
            return self._pack_whole(dict(params), arguments)

    def _graph_function(self, symbol: str) -> GraphFunction:
        """Return the graph as a function, one object for each time axis, so that a second stream finds the plan."""
        return self._functions.setdefault(symbol, GraphFunction(self, symbol))

    @functools.cached_property
    def _functions(self) -> dict[str, GraphFunction]:
        return {}

    @functools.cached_property
    def _stated(self) -> FoundState | None:
        """The state that an exported step declares, or None."""
        if self.step_file is None or self.declared_state is not None:
            return None
        return stated_state(self.step_file, self.proto, self.static)

    @functools.cached_property
    def _search(self) -> StateSearch | None:
        """The search for the state, or None if the file declares its state."""
        if self._stated is not None:
            return None
        with without_collector():
            return StateSearch(self.program, self.declared_state, self.static, self.initial_values)

    @functools.cached_property
    def _findings(self) -> FoundState:
        if self._stated is not None:
            return self._stated
        assert self._search is not None
        with without_collector():
            return self._search.find()

    @functools.cached_property
    def _steps(self) -> ModelSteps:
        return ModelSteps(self)

    @jitted
    def _scan(self, params: Any, state: Arrays, inputs: Arrays, lengths: jax.Array | None, *, time_axis: Any) -> Any:
        axes = time_axis if isinstance(time_axis, int) else dict(time_axis)
        return scan(self._steps, params, state, inputs, axes, lengths)

    def _packed(self, params: Arrays, folded: tuple[jax.Array, ...] = (), folding: str = "") -> Packed:
        """Return parameters packed for this model, with folded arrays if some work can be done beforehand."""
        dtype = product_type()
        name = None if dtype is None else dtype.name
        return Packed(dict(params), folded, Purpose(self.fingerprint, folding, dtype=name, label=self.label))

    def __copy__(self) -> Model:
        return self  # a model is immutable

    def __deepcopy__(self, memo: dict[int, Any]) -> Model:
        return self

    def __reduce__(self) -> tuple[Callable[..., Model], tuple[Any, ...]]:
        from jaxrnn.model.loading import contents_of, reloaded  # reads models

        return reloaded, contents_of(self)

    def __repr__(self) -> str:
        parameters = self.program.parameters
        count = sum(array.size for array in parameters.values())
        opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in self.opsets.items())
        size = f"{count:,} parameters in {len(parameters)} arrays"
        lines = [f"Model {shortened(without_folders(self.label))} ({opsets}; {size})"]
        lines += [f"  input   {info}" for info in self.inputs]
        lines += [
            f"  static  {name} = {value.tolist() if value.size <= 8 else part_of(value)}"
            for name, value in self.static.items()
        ]
        lines += [f"  output  {info}" for info in self.outputs]
        lines += [f"  state   {source} <- {updated}" for source, updated in (self.declared_state or {}).items()]
        if len(lines) > LINES:
            lines[LINES:] = [f"  ... and {len(lines) - LINES} more of inputs, outputs and state"]
        return "\n".join(shortened(line, COLUMNS) for line in lines)

    @contextlib.contextmanager
    def _computing(self, params: Any, dtype: Any) -> Iterator[None]:
        """Set the compute dtype of a call or of packed parameters, if there is one."""
        chosen = computing_type(params, dtype)
        if chosen is None:
            yield
            return
        types = {array.dtype.name for array in self.program.parameters.values()}
        if types and "float32" not in types:
            raise InputError(
                f"`dtype={chosen.name!r}` is for products of float32, but the parameters of {self.label} are "
                f"{', '.join(sorted(types))}"
            )
        with matrix_products_in(chosen):
            yield

    def _eagerly(self, params: Arrays, arguments: Arrays) -> dict[str, Any]:
        """Evaluate a call outside of programs: compiled as a whole if possible, else node by node."""
        if self._uncompilable is not None or any(map(is_text, jax.tree.leaves(arguments))):
            return self._evaluate(params, arguments)
        why = None
        try:
            results, sound = self._compiled(params, arguments)
            if sound is None or isinstance(sound, Tracer) or sound:
                return {info.name: results[info.name] for info in self.outputs}  # jit sorts the names
        except NodeError as error:
            why = str(error)  # the error itself would keep the traced values alive
        # With concrete values, operators can choose branches and lengths of loops, and name invalid values.
        results = self._evaluate(params, arguments)
        self._uncompilable = why
        return results

    @jitted
    def _compiled(self, params: Arrays, arguments: Arrays) -> tuple[dict[str, Any], jax.Array | None]:
        """Return the outputs, and True if all values were valid, or None if values cannot be invalid."""
        with exact_types(), collecting() as conditions:
            return self._evaluate(params, arguments), jnp.stack(conditions).all() if conditions else None

    def _bind(self, inputs: Arrays) -> dict[str, Any]:
        """Check all inputs that are not static against their declarations."""
        return bind_inputs(self.inputs, {**self.initial_values, **inputs} if self.initial_values else inputs)

    def _whole(self, params: Arrays, arguments: Arrays, state: Arrays) -> tuple[dict[str, Any], Arrays]:
        """Evaluate the graph as a step without state, for `run_packed`."""
        return self._evaluate(params, arguments), state

    @jitted
    def _pack_whole(self, params: Arrays, arguments: Arrays) -> Packed:
        with exact_types():
            return self._packed(params, *folded_for(self._whole, params, self._bind(arguments), {}))

    def _evaluate(self, params: Arrays, arguments: Arrays, caller: Any = None) -> dict[str, Any]:
        """Evaluate the graph node by node, with exact types."""
        params = cast_params(params, self.program.parameters)
        bound = {**self.static, **arguments}
        values = [bound[str(key.name)] for key in self.program.block.inputs]
        outputs = evaluate(self.program.block, values, Scope(params, caller=caller))
        # JAX has no strings, so transformed functions cannot return strings.
        with_text = [info for info, value in zip(self.outputs, outputs, strict=True) if holds_text(value)]
        if with_text and (is_staged() or any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((params, values)))):
            raise StaticValueError(
                f"output {with_text[0].name!r} has strings, which JAX does not support; call apply outside of jit, "
                "grad and vmap"
            )
        results = {}
        for info, value in zip(self.outputs, outputs, strict=True):
            parts = value.elements() if isinstance(value, Stacked) else value
            results[info.name] = jax.tree.map(
                lambda leaf: leaf.astype(object) if is_text(leaf) else traced(leaf), parts
            )
        return results

    def _export_form(self) -> ExportForm:
        return ExportForm(
            self,
            step_file=self.step_file if self.declared_state is None else None,
            state_names={each.name: (str(each.input), self._steps.output_name(each)) for each in self.state},
            operators=operators_by_scope(self.program.block),
            keeps_types=True,
            notes=self._notes,
        )

    @property
    def _notes(self) -> Notes:
        """Return the texts for readers in the file, except texts that jaxrnn wrote."""
        proto, is_foreign = self.proto, self.step_file is None
        metadata = {each.key: each.value for each in proto.metadata_props if not each.key.startswith(_OF_TOOLS)}
        docs = {"": proto.doc_string or proto.graph.doc_string}
        docs |= {each.name: each.doc_string for each in (*proto.graph.input, *proto.graph.output)}
        return Notes(metadata, {name: text for name, text in docs.items() if text} if is_foreign else {})

    def _check_params(self, params: Any) -> None:
        """Check parameters, plain or packed, against the model's and the compute dtype; otherwise raise InputError."""
        check_params(unpack(params, self), self.program.parameters, product_type())
