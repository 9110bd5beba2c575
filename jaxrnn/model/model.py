"""`Model`: a file as pure functions of parameters, state and inputs."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxrnn.cells.chunks import Remat, recomputing
from jaxrnn.errors import InputError, StaticValueError
from jaxrnn.guards import exact_types
from jaxrnn.jaxprs.packing import Packed, Purpose, low_precision_type, plain
from jaxrnn.model.reloading import contents_of, reloaded
from jaxrnn.model.scanning import scan
from jaxrnn.model.steps import Steps
from jaxrnn.model.streaming import stream_model
from jaxrnn.onnx.blocks import BoundNode
from jaxrnn.onnx.evaluate import Scope, evaluate
from jaxrnn.onnx.fingerprint import fingerprint_of
from jaxrnn.onnx.graph import normal_domain
from jaxrnn.onnx.interface import bind_inputs, bind_static, spec_of
from jaxrnn.onnx.program import Program
from jaxrnn.onnx.reading import SourceFile
from jaxrnn.onnx.state import Findings, StateVar, check_pairs, find_state
from jaxrnn.onnx.text import holds_text
from jaxrnn.onnx.values import is_text, traced, unstacked
from jaxrnn.specs import ArraySpec
from jaxrnn.stepper import Flushed, StepSpec, nothing_left
from jaxrnn.streaming import Streamed

Arrays = Mapping[str, Any]


class Model:
    """An imported model. Its functions are pure; parameters and state are passed in and handed back.

    Where its state is among its inputs and outputs, it is a `Stepper`: `spec`, `init`, `step`, `flush`.

    A copy of a model is the model itself; a pickle holds its file, external data included.

    Attributes:
        inputs: name, dtype and shape of every input that is not bound by ``static``.
        outputs: the same of every output.
        static: the values that ``static`` bound, by input.
        declared_state: the pairs of input and output given to ``load(..., state=...)``; None where none were asked for.
        opsets: opset version by domain (``""`` is ONNX's own).
        proto: the file's content, as it was read.
    """

    def __init__(
        self,
        file: SourceFile,
        program: Program,
        *,
        static: Mapping[str, Any],
        state: Mapping[str, str] | None,
        label: str,
        initial: Mapping[str, np.ndarray] | None = None,
    ):
        self.proto = file.proto
        self._file = file
        #: The file's own values of state inputs before the first step; zeros where there is none.
        self.initial_values = dict(initial or {})
        self.label = label
        self.program = program
        self.opsets = {normal_domain(entry.domain): entry.version for entry in file.proto.opset_import}
        declared = tuple(map(spec_of, program.block.inputs))
        self.outputs: tuple[ArraySpec, ...] = tuple(map(spec_of, program.block.outputs))
        self.static = bind_static(declared, static)
        self.inputs: tuple[ArraySpec, ...] = tuple(info for info in declared if info.name not in self.static)
        self._compilable = True
        #: What `load` was given besides ``static`` and ``state``: it makes the model again of a pickle.
        self._told: dict[str, Any] = {}
        self.declared_state = None if state is None else check_pairs(self.inputs, self.outputs, state)

    @functools.cached_property
    def params(self) -> dict[str, jax.Array]:
        """The parameters by name, in the file's layout and element types."""
        # Also when they are first asked for while something is being traced.
        with exact_types(), jax.ensure_compile_time_eval():
            return {name: jnp.array(array) for name, array in self.program.parameters.items()}

    @property
    def state(self) -> tuple[StateVar, ...]:
        """Every state variable: what a caller carries from call to call, and what each call starts anew and forgets.

        Raises:
            StateError: it is ambiguous; lists the candidates and shows how to name the right one.
        """
        return self._findings.variables

    @property
    def dimensions(self) -> Mapping[str, str]:
        """For every open dimension of the inputs, the first name of those that the nodes need to be equal to it.

        Some exporters give the batch another name in every input; `state` and `spec` show one.
        """
        return self._findings.dimensions

    @property
    def growing_dimensions(self) -> frozenset[str]:
        """The open dimensions along which a state becomes longer with every step, as a cache of keys and values."""
        return self._findings.growing

    @functools.cached_property
    def _findings(self) -> Findings:
        return find_state(self.program, self.declared_state, self.static)

    def apply(self, params: Arrays, inputs: Arrays, *, remat: Remat = None) -> dict[str, Any]:
        """The whole graph, as a pure function: it can be jitted, differentiated, mapped and exported.

        Args:
            params: arrays by name, as in `params`.
            inputs: arrays by name, as in `inputs`.
            remat: for less memory in the backward pass, which then computes recurrences again in chunks of so many
                frames: a number, or ``"sqrt"`` for the square root of the sequence's length. Results are equal.

        Returns:
            Arrays by name, as in `outputs`, each in the file's element type: an int64 output is int64 whatever
            ``jax_enable_x64`` says.

        Raises:
            InputError: a name, dtype, rank or dimension does not fit.
            NodeError: a node cannot be evaluated on these values.
            StaticValueError: under a transformation, a shape depends on data.
        """
        with recomputing(remat):
            return self._evaluate(plain(params, self), inputs, None)

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
        self, batch: int | None = None, *, params: Any = None, held: Any = None, dims: Mapping[str, int] | None = None
    ) -> dict[str, jax.Array]:
        """The state before the first step, by the names that `state` shows: zeros, or the file's `initial_values`.

        Args:
            batch: None for one stream, where a batch dimension that the file leaves open is 1; a number of streams
                fills it. Where the file fixed its batch, a number, 1 too, gives every array a leading axis, and `step`
                and `scan` then take inputs with such an axis and map over it.
            params: held against the model's where they are given; the state does not depend on them.
            held: as in every `Stepper`; a step holds no input constant, so there is none.
            dims: sizes of other open dimensions of the state, such as the length of the memory that a decoder attends
                to.

        Raises:
            StateError: the model forgets its state after every call, so it has no steps; or a size is missing.
            InputError: an argument does not fit.
        """
        if held is not None:
            raise InputError(f"{self.label} holds no input constant: every step takes all of its inputs")
        state = self._steps.init(batch, dims)
        if params is not None:
            self._check_params(params)
        return state

    def step(self, params: Any, state: Arrays, inputs: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
        """One step, pure: outputs and the new state. State is neither among the inputs nor among the outputs.

        Args:
            params: as in `params`, or packed by `pack`.
            state: as `init` gives it, or as the step before did.
            inputs: the other inputs, by name.

        Raises:
            StateError: an entry of the state is missing, unknown, or of another dtype, shape or batch.
            InputError: an input does not fit.
        """
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
    ) -> dict[str, Any]:
        """A whole recording: `init`, and `scan` over all of its frames.

        Args:
            params: as in `scan`.
            inputs: as in `scan`.
            batch: as in `init`.
            time_axis: as in `scan`.
            lengths: as in `scan`.
            dims: as in `init`.

        Returns:
            Outputs with their frames where the inputs have them.
        """
        return self.scan(params, self.init(batch, dims=dims), inputs, time_axis=time_axis, lengths=lengths)[0]

    def scan(
        self,
        params: Any,
        state: Arrays,
        inputs: Arrays,
        *,
        time_axis: int | Mapping[str, int] = 0,
        lengths: Any = None,
        remat: Remat = None,
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

        Returns:
            Outputs with their frames where the inputs have them, and the new state.
        """
        with recomputing(remat):
            return scan(self._steps, params, state, inputs, time_axis, lengths)

    def stream(
        self,
        symbol: str = "S",
        pulse: int | None = 1,
        *,
        dims: Mapping[str, int] | None = None,
        multiple: int = 1,
        constraints: Sequence[str] = (),
    ) -> Streamed:
        """Turn the model over a whole recording into one that runs on pulses of frames, exactly.

        `Streamed.step` takes and gives dicts by the names of the file, and equals `apply` from the first frame to the
        last. The batch of the file is 1; `Streamed.init` makes states of more streams.

        Args:
            symbol: the name of the dimension that is time. Inputs without it are held constant.
            pulse: frames in each step; None for the fewest that fit.
            dims: sizes of other dimensions that the file leaves open; 1 by default.
            multiple: what every number of frames is a multiple of, where the model works on such lengths only.
            constraints: what may be taken for granted of the number of frames, such as ``"S >= 3"``.

        Raises:
            InputError: no input has such a dimension.
            StreamError: part of the model needs all of the future, or has no rule; names the node, and what to do. Or
                the pulse does not fit the strides; names the smallest pulses that do.
        """
        return stream_model(self, symbol, pulse, dims=dims or {}, multiple=multiple, constraints=constraints)

    def pack(self, params: Arrays, *, dims: Mapping[str, int] | None = None, dtype: Any = None) -> Packed:
        """Do once what depends on the parameters alone; `apply`, `step` and `scan` take the result in their place.

        Gradients with respect to the plain parameters need the plain ones.

        Args:
            params: as in `params`.
            dims: sizes of dimensions of the inputs that the file leaves open, other than the batch. Without them, or
                for frames of other sizes, a step does all of its work as with plain parameters.
            dtype: ``"bfloat16"`` keeps the weights of matrix products in half the bytes; the other operand of such a
                product is rounded too, its sums are float32, and so is all else. It makes batches of streams faster,
                `step` and `scan`. A single stream on a CPU gets slower: there a product of a vector is as fast as its
                weights are read, and those in low precision are widened first. The weights of convolutions, and of
                loops inside a step, keep their type. Rounding an operand changes it by at most one part in 512; what
                that costs the outputs shows ``jaxrnn profile --dtype bfloat16``.

        Raises:
            InputError: ``dtype`` is no type that gains anything, or there is nothing that it could be applied to. What
                takes the result raises it where that was packed for another graph.
        """
        if any(variable.kind == "internal" for variable in self.state):
            if low_precision_type(dtype) is not None:
                raise InputError(
                    f"{self.label} has no steps, and weights are narrowed for steps: stream(...).pack(params, dtype)"
                )
            return self._unfolded(params)
        return self._steps.pack(params, dims or {}, dtype)

    def _unfolded(self, params: Arrays) -> Packed:
        """Parameters packed for this model of which nothing can be done beforehand."""
        return Packed(dict(params), (), Purpose(self._fingerprint, label=self.label))

    @functools.cached_property
    def _fingerprint(self) -> str:
        """What tells the graph, and what `load` was given with it, from others; values of parameters do not count."""
        return fingerprint_of(self.program, (self.static, self.declared_state))

    def __call__(self, inputs: Arrays | None = None, /, **named: Any) -> dict[str, Any]:
        """`apply` with the file's own parameters, compiled; inputs by keyword, or as a dict.

        A model whose shapes depend on data cannot be compiled and is evaluated node by node, of which a `UserWarning`
        tells once; so is one of strings.
        """
        if inputs is not None and not isinstance(inputs, Mapping):
            raise InputError(f"pass inputs by name or as one dict, not a {type(inputs).__name__}")
        arguments = {**(inputs or {}), **named}
        with exact_types():
            bound = bind_inputs(self.inputs, arguments)
            reason = None
            if self._compilable and not any(map(is_text, jax.tree.leaves(bound))):
                try:
                    results = self._compiled(self.params, bound)
                    return {info.name: results[info.name] for info in self.outputs}  # jit sorts the names
                except StaticValueError as error:
                    reason = error
            results = self.apply(self.params, bound)
            if reason is not None:
                self._compilable = False
                if all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(results)):  # strings leave no choice
                    warnings.warn(
                        f"{self.label} cannot be compiled and is evaluated node by node, which is slower: {reason}",
                        stacklevel=2,
                    )
            return results

    @functools.cached_property
    def _compiled(self) -> Callable[[Arrays, Arrays], dict[str, Any]]:
        return jax.jit(self.apply)

    def intermediates(self, params: Arrays, inputs: Arrays) -> dict[str, tuple[BoundNode, Any]]:
        """Every value that a node of the outer graph computes, by name, with its node: shows where results differ."""
        seen: dict[str, tuple[BoundNode, Any]] = {}

        def watch(node: BoundNode, outputs: Sequence[Any]) -> None:
            for key, value in zip(node.outputs, outputs, strict=False):
                if key.name:
                    seen[key.name] = (node, value)

        self._evaluate(params, inputs, watch)
        return seen

    def symbolic_inputs(
        self, dims: Mapping[str, str] | None = None, *, constraints: Sequence[str] = ()
    ) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes of the inputs with JAX's symbolic dimensions, for ``jax.make_jaxpr``, ``jax.eval_shape`` or export.

        Args:
            dims: another expression for a dimension of the file: ``{"S": "64*S"}`` where lengths must divide.
            constraints: what JAX may assume, such as ``"S >= 2"``; an inconclusive comparison asks for one.
        """
        scope = jax.export.SymbolicScope(constraints)
        result = {}
        for info in self.inputs:
            if info.dtype is None or info.shape is None or info.is_text:
                raise InputError(f"input {info} has no declared rank or holds strings, so it has no symbolic shape")
            spelled = ", ".join((dims or {}).get(str(size), str(size)) for size in info.shape)
            shape = jax.export.symbolic_shape(spelled, scope=scope) if info.shape else ()
            result[info.name] = jax.ShapeDtypeStruct(shape, _traceable(info.dtype))
        return result

    def _evaluate(self, params: Arrays, inputs: Arrays, watch: Any) -> dict[str, Any]:
        with exact_types():
            self._check_params(params)
            given = {**self.initial_values, **inputs} if self.initial_values else inputs
            bound = {**self.static, **bind_inputs(self.inputs, given)}
            arguments = [bound[str(key.name)] for key in self.program.block.inputs]
            outputs = evaluate(self.program.block, arguments, Scope(params, watch=watch))
            self._check_strings(outputs, (params, arguments))
            named = zip((info.name for info in self.outputs), outputs, strict=True)
            return {name: jax.tree.map(_as_array, unstacked(value)) for name, value in named}

    def _check_strings(self, outputs: Sequence[Any], given: Any) -> None:
        """Refuse outputs that hold strings where they would have to pass through a transformation."""
        with_text = [info for info, value in zip(self.outputs, outputs, strict=True) if holds_text(value)]
        # Under jit, what is made anew is traced too.
        if with_text and any(isinstance(leaf, Tracer) for leaf in (*jax.tree.leaves(given), jnp.zeros(()))):
            raise StaticValueError(
                f"output {with_text[0]} holds strings, which no function under jit, grad or vmap can give, because JAX "
                "has none; call apply outside them"
            )

    def _check_params(self, params: Any) -> None:
        """Hold parameters, plain or packed, against the model's.

        Raises:
            InputError: a name is missing or unknown, a shape is another one, or they were packed for another model.
        """
        params, expected = plain(params, self), self.program.parameters
        if not isinstance(params, Mapping):
            raise InputError(f"params must be a dict of arrays by name, like model.params, not {type(params).__name__}")
        if params.keys() != expected.keys():
            missing, extra = sorted(expected.keys() - params.keys()), sorted(params.keys() - expected.keys())
            raise InputError(f"params do not fit the model: missing {missing[:5]}, unknown {extra[:5]}")
        for name, array in expected.items():
            if np.shape(params[name]) != array.shape:
                raise InputError(f"params[{name!r}] has shape {np.shape(params[name])}, but {array.shape} is expected")

    def __copy__(self) -> Model:
        return self  # nothing of it changes

    def __deepcopy__(self, memo: dict[int, Any]) -> Model:
        return self

    def __reduce__(self) -> tuple[Callable[..., Model], tuple[Any, ...]]:
        return reloaded, contents_of(self)

    def __repr__(self) -> str:
        count = sum(array.size for array in self.program.parameters.values())
        opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in self.opsets.items())
        lines = [f"Model {self.label} ({opsets}; {count:,} parameters in {len(self.program.parameters)} arrays)"]
        lines += [f"  input   {info}" for info in self.inputs]
        lines += [f"  static  {name} = {_brief(value)}" for name, value in self.static.items()]
        lines += [f"  output  {info}" for info in self.outputs]
        lines += [f"  state   {given} <- {updated}" for given, updated in (self.declared_state or {}).items()]
        return "\n".join(lines)


def _traceable(dtype: np.dtype) -> np.dtype:
    """The element type in which JAX hands over an argument: without ``jax_enable_x64``, integers have 32 bits."""
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype)) if dtype.kind in "iu" else dtype


def _as_array(value: Any) -> Any:
    return value.astype(object) if is_text(value) else traced(value)


def _brief(value: np.ndarray) -> str:
    return str(value.tolist()) if value.size <= 8 else f"{value.dtype}{list(value.shape)}"
