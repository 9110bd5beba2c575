"""`Model`: a file as pure functions of parameters, state and inputs."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
from jaxrnn.model.steps import Stepper
from jaxrnn.model.streaming import stream_model
from jaxrnn.onnx.blocks import BoundNode
from jaxrnn.onnx.evaluate import Scope, evaluate
from jaxrnn.onnx.fingerprint import fingerprint_of
from jaxrnn.onnx.graph import normal_domain
from jaxrnn.onnx.interface import TensorInfo, bind_inputs, bind_static, tensor_info
from jaxrnn.onnx.program import Program
from jaxrnn.onnx.reading import SourceFile
from jaxrnn.onnx.state import Findings, StateVar, check_pairs, find_state
from jaxrnn.onnx.text import holds_text
from jaxrnn.onnx.values import is_text, traced, unstacked
from jaxrnn.streaming import Streamed

if TYPE_CHECKING:
    from jaxrnn.runtime.runner import Runner

Arrays = Mapping[str, Any]


class Model:
    """An imported model. Its functions are pure; parameters and state are passed in and handed back.

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
        declared = tuple(map(tensor_info, program.block.inputs))
        self.outputs: tuple[TensorInfo, ...] = tuple(map(tensor_info, program.block.outputs))
        self.static = bind_static(declared, static)
        self.inputs: tuple[TensorInfo, ...] = tuple(info for info in declared if info.name not in self.static)
        self._compilable = True
        #: What `load` was told besides ``static`` and ``state``: it makes the model again of a pickle.
        self._told: dict[str, Any] = {}
        self.declared_state = None if state is None else check_pairs(self.inputs, self.outputs, state)

    @functools.cached_property
    def params(self) -> dict[str, jax.Array]:
        """The parameters by name, in the file's layout and element types."""
        # Also when they are first asked for while something is being traced.
        with exact_types(), jax.ensure_compile_time_eval():
            return {name: jnp.asarray(array) for name, array in self.program.parameters.items()}

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

        Some exporters give the batch another name in every input; `state`, `step_inputs` and `step_outputs` show one.
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
    def _stepper(self) -> Stepper:
        return Stepper(self)

    @property
    def step_inputs(self) -> tuple[TensorInfo, ...]:
        """The inputs of one step: `inputs` without the state."""
        return self._stepper.inputs

    @property
    def step_outputs(self) -> tuple[TensorInfo, ...]:
        """The outputs of one step: `outputs` without the state."""
        return self._stepper.outputs

    @property
    def batch_symbol(self) -> str | None:
        """The name of the batch dimension of the state; None where the file fixed it, so that a batch is lifted."""
        return self._stepper.batch_symbol

    def init_state(self, batch: int = 1, *, dims: Mapping[str, int] | None = None) -> dict[str, jax.Array]:
        """The state before the first step, by the names that `state` shows: zeros, or the file's `initial_values`.

        A file that fixed its batch at 1 is lifted where another batch is asked for: every array gets a leading axis of
        that size, and `step` and `scan` then take inputs with such an axis too and map over it.

        Args:
            batch: the number of streams.
            dims: sizes of other open dimensions of the state, such as the length of the memory that a decoder attends
                to.

        Raises:
            StateError: the model forgets its state after every call, so it has no steps; or a size is missing.
        """
        return self._stepper.init_state(batch, dims)

    def step(self, params: Any, state: Arrays, inputs: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
        """One step, pure: outputs and the new state. State is neither among the inputs nor among the outputs.

        Args:
            params: as in `params`, or packed by `pack`.
            state: as `init_state` gives it, or as the step before did.
            inputs: the other inputs, by name.

        Raises:
            StateError: an entry of the state is missing, unknown, or of another dtype, shape or batch.
            InputError: an input does not fit.
        """
        return self._stepper.step(params, state, inputs)

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
        """`step` over a whole recording in one call: outputs of all frames, and the state behind the last.

        Work that needs no state, such as input projections and convolutions, runs for all frames at once before the
        loop, and what no state needs behind it. The result equals the loop of steps up to rounding, and a recording in
        chunks with the state carried on equals one call.

        Args:
            params: as in `params`, or packed by `pack`.
            state: as `init_state` gives it.
            inputs: the other inputs, with frames along ``time_axis``: either stacked on an axis of their own, or joined
                along an axis that the step has, such as ``[1, frames * 160]`` for steps of ``[1, 160]``.
            time_axis: where the frames are, counted in the array; or one for each input and output by name.
            lengths: ``int[batch]``, frames of each stream. Beyond them the state does not change and outputs are zero.
            remat: as in `apply`; here a backward pass keeps nothing of the inside of a chunk.

        Returns:
            Outputs with their frames where the inputs have them, and the new state.
        """
        with recomputing(remat):
            return scan(self._stepper, params, state, inputs, time_axis, lengths)

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

    def runner(self, params: Any = None) -> Runner:
        """One live stream of steps, NumPy in and out: ``run = model.runner()``, then ``outputs = run(inputs)``.

        Args:
            params: plain or packed; the file's own by default. They are compiled in.

        Raises:
            StateError: the model forgets its state after every call; ``jaxrnn.Runner(model.stream(...), params)`` runs
                it as a stream.
        """
        from jaxrnn.runtime.runner import Runner  # stands on this module

        return Runner(self, self.params if params is None else params)

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
                weights are read, and narrow ones are widened first. The weights of convolutions, and of loops inside a
                step, keep their type. Rounding an operand changes it by at most one part in 512; what that costs the
                outputs shows ``jaxrnn profile --dtype bfloat16``.

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
        return self._stepper.pack(params, dims or {}, dtype)

    def _unfolded(self, params: Arrays) -> Packed:
        """Parameters packed for this model of which nothing can be done beforehand."""
        return Packed(dict(params), (), Purpose(self._fingerprint, label=self.label))

    @functools.cached_property
    def _fingerprint(self) -> str:
        """What tells the graph, and what `load` was told of it, from others; values of parameters do not count."""
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
            bound = dict(zip(self._input_names, bind_inputs(self.inputs, arguments), strict=True))
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

    @property
    def _input_names(self) -> list[str]:
        return [info.name for info in self.inputs]

    @functools.cached_property
    def _compiled(self) -> Callable[[Arrays, Arrays], dict[str, Any]]:
        return jax.jit(self.apply)

    def intermediates(self, params: Arrays, inputs: Arrays) -> dict[str, tuple[BoundNode, Any]]:
        """Every value that a node of the outer graph computes, by name, with its node: shows where results depart."""
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
            values = iter(
                bind_inputs(self.inputs, {**self.initial_values, **inputs} if self.initial_values else inputs)
            )
            arguments = [
                self.static[key.name] if key.name in self.static else next(values) for key in self.program.block.inputs
            ]
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
