"""A file as one pure function: its whole graph, of parameters and inputs."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from jaxrnn._files.messages import describe
from jaxrnn._jax.context import exact_types, is_staged
from jaxrnn._jax.precision import cast_params, check_params
from jaxrnn._jax.varying import alike
from jaxrnn.cells.chunks import Remat, recomputing
from jaxrnn.cells.products import matrix_products_in, product_type
from jaxrnn.errors import InputError, NodeError, StaticValueError
from jaxrnn.jaxprs.eager import compiled
from jaxrnn.jaxprs.packing import computing_type, plain
from jaxrnn.onnx.evaluate import BoundNode, Scope, all_hold, collecting, evaluate
from jaxrnn.onnx.graph import normal_domain
from jaxrnn.onnx.interface import bind_inputs, bind_static, spec_of
from jaxrnn.onnx.program import Program, fingerprint_of
from jaxrnn.onnx.reading import SourceFile
from jaxrnn.onnx.state import check_pairs
from jaxrnn.onnx.stepfile import StepFile
from jaxrnn.onnx.text import holds_text
from jaxrnn.onnx.values import is_text, traced, unstacked
from jaxrnn.steps.specs import ArraySpec

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
        step_file: StepFile | None = None,
    ):
        self._file, self.proto = file, file.proto
        self.program, self.label = program, label
        self.initial_values, self.step_file = dict(initial or {}), step_file
        self.opsets = {normal_domain(entry.domain): entry.version for entry in file.proto.opset_import}
        declared = tuple(map(spec_of, program.block.inputs))
        self.outputs: tuple[ArraySpec, ...] = tuple(map(spec_of, program.block.outputs))
        self.static = bind_static(declared, static)
        self.inputs: tuple[ArraySpec, ...] = tuple(info for info in declared if info.name not in self.static)
        self.declared_state = None if state is None else check_pairs(self.inputs, self.outputs, state)
        #: Why the graph cannot be compiled as a whole, once that is known.
        self._uncompilable: str | None = None
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

    def apply(self, params: Arrays, inputs: Arrays, *, remat: Remat = None, dtype: Any = None) -> dict[str, Any]:
        """The whole graph, as a pure function: it can be jitted, differentiated, mapped and exported.

        Args:
            params: arrays by name, as in `params`.
            inputs: arrays by name, as in `inputs`.
            remat: for less memory in the backward pass, which then computes recurrences again in chunks of so many
                frames: a number, or ``"sqrt"`` for the square root of the sequence's length. Results are equal.
            dtype: ``"bfloat16"`` or ``"float16"``: the operands of matrix products and convolutions are rounded to that
                type, sums are float32, and so is everything else. Parameters may then have that type. None computes in
                the file's own types.

        Returns:
            Arrays by name, as in `outputs`, each in the file's element type: an int64 output is int64 whatever
            ``jax_enable_x64`` says.

        Raises:
            InputError: a name, dtype, rank or dimension of an input or a parameter does not fit.
            NodeError: a node cannot be evaluated on these values.
            StaticValueError: under a transformation, a shape depends on data.
        """
        with recomputing(remat), exact_types(), self._computing(params, dtype):
            self._check_params(params)
            plain_params, arguments = alike(plain(params, self), self._bind(inputs))
            return (self._evaluate if is_staged() else self._eagerly)(plain_params, arguments)

    @contextlib.contextmanager
    def _computing(self, params: Any, dtype: Any) -> Iterator[None]:
        """Products in the compute dtype of a call or of packed parameters, else as they are computed around it."""
        chosen = computing_type(params, dtype)
        if chosen is None:
            yield
            return
        types = {array.dtype.name for array in self.program.parameters.values()}
        if types and "float32" not in types:
            raise InputError(
                f"dtype={chosen.name!r} is for products of float32, but the parameters of {self.label} are "
                f"{', '.join(sorted(types))}"
            )
        with matrix_products_in(chosen):
            yield

    def _eagerly(self, params: Arrays, arguments: Arrays) -> dict[str, Any]:
        """The graph in a call that is no part of a program: compiled as a whole if that can be, else node by node."""
        if self._uncompilable is not None or any(map(is_text, jax.tree.leaves(arguments))):
            return self._evaluate(params, arguments)
        why = None
        try:
            results, sound = self._compiled(params, arguments)
            if sound is None or isinstance(sound, Tracer) or sound:
                return {info.name: results[info.name] for info in self.outputs}  # jit sorts the names
        except NodeError as error:
            why = str(error)  # the error itself holds all that was traced
        # An operator that sees its values knows which branch to take, how long a loop is, and what is wrong with them.
        results = self._evaluate(params, arguments)
        self._uncompilable = why
        return results

    def __call__(self, inputs: Arrays | None = None, /, **named: Any) -> dict[str, Any]:
        """`apply` with the file's own parameters, compiled; inputs by keyword, or as a dict.

        A model whose shapes depend on data cannot be compiled and is evaluated node by node, of which a `UserWarning`
        tells once; so is one of strings.
        """
        if inputs is not None and not isinstance(inputs, Mapping):
            raise InputError(f"pass inputs by name or as one dict, not {describe(inputs)}")
        before = self._uncompilable
        results = self.apply(self.params, {**(inputs or {}), **named})
        strings = not all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(results))  # which leave no choice
        if before is None and self._uncompilable is not None and not strings:
            warnings.warn(
                f"{self.label} cannot be compiled and is evaluated node by node, which is slower: {self._uncompilable}",
                stacklevel=2,
            )
        return results

    @compiled
    def _compiled(self, params: Arrays, arguments: Arrays) -> tuple[dict[str, Any], jax.Array | None]:
        """The outputs, and whether the values were such that they mean anything; None where that is always so."""
        with exact_types(), collecting() as conditions:
            return self._evaluate(params, arguments), all_hold(conditions)

    def intermediates(self, params: Arrays, inputs: Arrays) -> dict[str, tuple[BoundNode, Any]]:
        """Every value that a node of the outer graph computes, by name, with its node: shows where results differ."""
        seen: dict[str, tuple[BoundNode, Any]] = {}

        def watch(node: BoundNode, outputs: Sequence[Any]) -> None:
            for key, value in zip(node.outputs, outputs, strict=False):
                if key.name:
                    seen[key.name] = (node, value)

        with exact_types():
            self._check_params(params)
            self._evaluate(plain(params, self), self._bind(inputs), watch)
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

    def _bind(self, inputs: Arrays) -> dict[str, Any]:
        """All inputs of the graph but those that ``static`` bound, held against what is declared."""
        return bind_inputs(self.inputs, {**self.initial_values, **inputs} if self.initial_values else inputs)

    def _evaluate(self, params: Arrays, arguments: Arrays, watch: Any = None) -> dict[str, Any]:
        """The graph node by node, where types are exact."""
        params = cast_params(params, self.program.parameters)
        bound = {**self.static, **arguments}
        values = [bound[str(key.name)] for key in self.program.block.inputs]
        outputs = evaluate(self.program.block, values, Scope(params, watch=watch))
        self._check_strings(outputs, (params, values))
        named = zip((info.name for info in self.outputs), outputs, strict=True)
        return {name: jax.tree.map(_as_array, unstacked(value)) for name, value in named}

    def _check_strings(self, outputs: Sequence[Any], arguments: Any) -> None:
        """Refuse outputs that hold strings where they would have to pass through a transformation."""
        with_text = [info for info, value in zip(self.outputs, outputs, strict=True) if holds_text(value)]
        if with_text and (is_staged() or any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(arguments))):
            raise StaticValueError(
                f"output {with_text[0].name!r} holds strings, which no function under jit, grad or vmap can give, as "
                "JAX has none; call apply outside them"
            )

    def _check_params(self, params: Any) -> None:
        """Hold parameters, plain or packed, against the model's and the compute dtype.

        Raises:
            InputError: one is missing, unknown, of another shape or type, or they were packed for another model.
        """
        check_params(plain(params, self), self.program.parameters, product_type())


def _traceable(dtype: np.dtype) -> np.dtype:
    """The element type in which JAX hands over an argument: without ``jax_enable_x64``, integers have 32 bits."""
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype)) if dtype.kind in "iu" else dtype


def _as_array(value: Any) -> Any:
    return value.astype(object) if is_text(value) else traced(value)
