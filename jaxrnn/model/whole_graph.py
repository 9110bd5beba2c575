"""A file as one pure function: its whole graph, of parameters and inputs."""

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
from jaxrnn.jaxprs.packing import plain
from jaxrnn.onnx.blocks import BoundNode
from jaxrnn.onnx.evaluate import Scope, evaluate
from jaxrnn.onnx.fingerprint import fingerprint_of
from jaxrnn.onnx.graph import normal_domain
from jaxrnn.onnx.interface import bind_inputs, bind_static, spec_of
from jaxrnn.onnx.program import Program
from jaxrnn.onnx.reading import SourceFile
from jaxrnn.onnx.state import check_pairs
from jaxrnn.onnx.text import holds_text
from jaxrnn.onnx.values import is_text, traced, unstacked
from jaxrnn.specs import ArraySpec

Arrays = Mapping[str, Any]


class WholeGraph:
    """What a `Model` is without its state: one function of parameters and inputs.

    Attributes that a `Model` does not list for its users:
        program: the graph, bound to operators.
        label: what messages call it.
    """

    def __init__(
        self,
        file: SourceFile,
        program: Program,
        *,
        static: Arrays,
        state: Mapping[str, str] | None,
        label: str,
        initial: Mapping[str, np.ndarray] | None = None,
    ):
        self._file, self.proto = file, file.proto
        self.program, self.label = program, label
        self.initial_values = dict(initial or {})
        self.opsets = {normal_domain(entry.domain): entry.version for entry in file.proto.opset_import}
        declared = tuple(map(spec_of, program.block.inputs))
        self.outputs: tuple[ArraySpec, ...] = tuple(map(spec_of, program.block.outputs))
        self.static = bind_static(declared, static)
        self.inputs: tuple[ArraySpec, ...] = tuple(info for info in declared if info.name not in self.static)
        self.declared_state = None if state is None else check_pairs(self.inputs, self.outputs, state)
        self._compilable = True
        #: The other options of `load`, without ``static`` and ``state``: they make the model of a pickle again.
        self._load_options: dict[str, Any] = {}

    @functools.cached_property
    def fingerprint(self) -> str:
        """What tells the graph, and the options of `load`, from others; values of parameters do not count."""
        return fingerprint_of(self.program, (self.static, self.declared_state, self.initial_values))

    @functools.cached_property
    def params(self) -> dict[str, jax.Array]:
        """The parameters by name, in the file's layout and element types."""
        # Also when they are first asked for while something is being traced.
        with exact_types(), jax.ensure_compile_time_eval():
            # `jnp.asarray` would compile a program for every shape.
            return {name: jax.device_put(array) for name, array in self.program.parameters.items()}

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
                raise InputError(f"{info.as_input} has no declared rank or holds strings, so it has no symbolic shape")
            spelled = ", ".join((dims or {}).get(str(size), str(size)) for size in info.shape)
            shape = jax.export.symbolic_shape(spelled, scope=scope) if info.shape else ()
            result[info.name] = jax.ShapeDtypeStruct(shape, _traceable(info.dtype))
        return result

    def _evaluate(self, params: Arrays, inputs: Arrays, watch: Any) -> dict[str, Any]:
        with exact_types():
            self._check_params(params)
            complete = {**self.initial_values, **inputs} if self.initial_values else inputs
            bound = {**self.static, **bind_inputs(self.inputs, complete)}
            arguments = [bound[str(key.name)] for key in self.program.block.inputs]
            outputs = evaluate(self.program.block, arguments, Scope(params, watch=watch))
            self._check_strings(outputs, (params, arguments))
            named = zip((info.name for info in self.outputs), outputs, strict=True)
            return {name: jax.tree.map(_as_array, unstacked(value)) for name, value in named}

    def _check_strings(self, outputs: Sequence[Any], arguments: Any) -> None:
        """Refuse outputs that hold strings where they would have to pass through a transformation."""
        with_text = [info for info, value in zip(self.outputs, outputs, strict=True) if holds_text(value)]
        # Under jit, what is made anew is traced too.
        if with_text and any(isinstance(leaf, Tracer) for leaf in (*jax.tree.leaves(arguments), jnp.zeros(()))):
            raise StaticValueError(
                f"output {with_text[0].name!r} holds strings, which no function under jit, grad or vmap can give, because "
                "JAX has none; call apply outside them"
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


def _traceable(dtype: np.dtype) -> np.dtype:
    """The element type in which JAX hands over an argument: without ``jax_enable_x64``, integers have 32 bits."""
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype)) if dtype.kind in "iu" else dtype


def _as_array(value: Any) -> Any:
    return value.astype(object) if is_text(value) else traced(value)
