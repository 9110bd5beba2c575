"""Steppers bound to parameters and sizes, as functions of named arrays."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from jaxrnn._files.arguments import argument, static_argument
from jaxrnn._files.messages import describe
from jaxrnn._jax.context import own_arithmetic
from jaxrnn.errors import InputError, StateError, UnsupportedError
from jaxrnn.jaxprs.packing import Packed
from jaxrnn.jaxprs.scanning import step_with_layers
from jaxrnn.model import Model
from jaxrnn.model.streaming import operators_by_scope
from jaxrnn.onnx.stepfile import FLUSH, StateNames, StepFile
from jaxrnn.runtime.compiled.stepper import CompiledStepper
from jaxrnn.steps.stepper import Stepper
from jaxrnn.steps.stepspec import Layout, StepSpec, lead_of
from jaxrnn.streaming import Streamed
from jaxrnn.streaming.transform import in_plain_forms

Arrays = Mapping[str, Any]

_PARTS = ("spec", "init", "step", "flush")


def is_stepper(value: Any) -> bool:
    """Return True if an object has the members of a `Stepper`."""
    return all(inspect.getattr_static(value, name, None) is not None for name in _PARTS)


class Source:
    """A stepper with its parameters and sizes, for one stream or a batch.

    ``spec`` describes one stream without open dimensions. ``batch`` is the number of streams that the file states, or
    None without a batch axis.
    """

    def __init__(
        self, stepper: Stepper, params: Any, batch: int | None, dims: Mapping[str, int], label: str | None = None
    ):
        if isinstance(stepper, CompiledStepper):
            raise UnsupportedError(
                "a compiled file contains XLA programs, which cannot be written as ONNX: export the "
                "model or stream that it was made of"
            )
        self._stepper: Stepper = in_plain_forms(stepper) if isinstance(stepper, Streamed) else stepper
        self.batch = self._streams = batch
        whole = self._stepper.spec
        self.params = getattr(stepper, "params", None) if params is None else params
        check_params(self.params)
        if self.params is None and whole.needs_params:
            raise InputError(f"{whole.label} needs parameters: give params")
        if whole.constants:
            raise UnsupportedError(
                f"{whole.label}: the state before the first frame depends on the input(s) "
                f"{', '.join(whole.constants)}, and a file contains one first state: stream a function that closes "
                f"over their values, or fix an input of a model, {static_argument(whole.constants[0])}"
            )
        filled = {} if whole.batch_symbol is None else {whole.batch_symbol: 1 if batch is None else batch}
        spec = _sized(whole, dims, filled)
        file = stepper.step_file if isinstance(stepper, Model) and stepper.declared_state is None else None
        if file is not None and file.kind == FLUSH:
            raise InputError(f"{whole.label} is a flush, not a step: export the step and its flush together")
        if file is not None:
            spec, self.batch = _in_time(spec, file), batch or file.batch
        name = label or PurePath(spec.label).name or type(stepper).__name__
        self.spec = dataclasses.replace(spec, label=name.encode(errors="replace").decode())
        self._mapped_over = () if batch is None or whole.batch_symbol is not None else (batch,)
        self._dims = {name: dims[name] for each in whole.state for name in each.symbols if name in dims}

    @property
    def state_names(self) -> dict[str, StateNames] | None:
        """The names of a model's state in the file that it came from; None for other steppers."""
        if not isinstance(self._stepper, Model):
            return None
        return {each.name: StateNames(str(each.input), str(each.output)) for each in self._stepper.state}

    @property
    def operators(self) -> dict[str, str] | None:
        """The operators of the model that is traced, by scope; None for functions and other steppers."""
        model: Any = self._stepper
        if isinstance(model, Streamed):
            again: Any = model.__reduce__()[0]
            model = getattr(again.function, "model", None)
        return operators_by_scope(model) if isinstance(model, Model) else None

    @property
    def lead(self) -> tuple[int, ...]:
        """The leading batch axis that is added to every array; empty if the arrays have a batch axis."""
        return self._mapped_over

    def types(self) -> contextlib.AbstractContextManager[None]:
        """Keep 64-bit types in a ``with`` block if the stepper does so itself or declares one."""
        specs = (*self.spec.inputs, *self.spec.outputs, *self.spec.state)
        return exact(isinstance(self._stepper, (Model, Streamed)) or any(each.is_wide for each in specs))

    def first(self) -> dict[str, np.ndarray]:
        """Return the state before the first frame, by entry."""
        dims: dict[str, Any] = {"dims": self._dims} if self._dims else {}
        with self.types():
            state = self._stepper.init(self._streams, params=self.params, **dims)
            batched = [each.batched(self.lead) for each in self.spec.carried]
            if lead_of(batched, state):
                raise StateError(f"{self.spec.label}: init({self._streams}) returns a state with an extra leading axis")
            entries = self.spec.entries(state)
            return {each.name: np.asarray(entries[each.name]) for each in self.spec.state}

    def step(self, params: Any, state: Arrays, inputs: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
        """Run one step of one stream or of the batch; return the outputs and the new state."""

        def one(state: Arrays, inputs: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
            def step(state: Any, inputs: Any) -> tuple[Any, Any]:
                outputs, new = self._stepper.step(params, state, inputs)
                return new, outputs

            # The cells of a stream are layers already.
            run = step if isinstance(self._stepper, Streamed) else functools.partial(step_with_layers, step)
            new, outputs = run(self._joined(state), dict(inputs))
            _check_named(outputs, self.spec)
            return {name: value for name, value in outputs.items() if value is not None}, self.spec.entries(new)

        return self._mapped(one)(state, inputs)

    def flush(self, params: Any, state: Arrays, *tail: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Flush one stream or the batch; return the outputs, and the number of existing frames in each."""

        def one(state: Arrays, *tail: Any) -> tuple[dict[str, Any], dict[str, Any]]:
            given = tail if self._stepper.spec.streams else ()
            outputs, counts = self._stepper.flush(params, self._joined(state), *given)
            _check_named(outputs, self.spec)
            return (
                {name: value for name, value in outputs.items() if value is not None},
                {name: count for name, count in counts.items() if count is not None},
            )

        return self._mapped(one)(state, *tail)

    def _mapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.vmap(function) if self.lead else function

    def _joined(self, entries: Arrays) -> dict[str, Any]:
        if not self.spec.joined:
            return dict(entries)
        return Layout({each.name: each.struct() for each in self.spec.state}).pack(entries)


@contextlib.contextmanager
def exact(wide: bool) -> Iterator[None]:
    """Keep 64-bit types in a ``with`` block if ``wide``, and allow moves of the library's own arrays."""
    with jax.enable_x64(True) if wide else contextlib.nullcontext(), own_arithmetic():
        yield


def check_params(params: Any) -> None:
    """Check that parameters are plain arrays of numbers with values."""
    if isinstance(params, Packed):
        raise InputError("params are packed: pass the plain parameters, packed.params")
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        where = f"params{jax.tree_util.keystr(path)}"
        if isinstance(leaf, Tracer):
            raise InputError(f"{where} is being traced and has no values; call export_onnx outside of jit")
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise InputError(f"{where} is a shape without values: give the parameters")
        numbers = isinstance(getattr(leaf, "dtype", None), np.dtype) and leaf.dtype.kind not in "OSUMm"
        if not numbers and not isinstance(leaf, (bool, int, float, complex)):
            raise InputError(f"{where} must be an array of JAX or NumPy, not {describe(leaf)}")


def _sized(spec: StepSpec, dims: Mapping[str, int], filled: Mapping[str, int]) -> StepSpec:
    """Return the spec with sizes for all open dimensions."""
    arrays = (*spec.inputs, *spec.state)
    for each in arrays:
        if each.dtype is None or each.is_text or each.shape is None:
            raise UnsupportedError(f"{spec.label}: {each.as_input} needs a numeric type and a known rank in a file")
    names = list(dict.fromkeys(name for each in arrays for name in each.symbols if name not in filled))
    if missing := [name for name in names if name not in dims]:
        raise InputError(
            f"{spec.label}: the file of a step has fixed sizes: give the size of {', '.join(missing)}, as in "
            f"{argument('dims', dict.fromkeys(missing, 16))}"
        )
    if unknown := [name for name in dims if name not in names]:
        listed = ", ".join(names) or "none"
        raise InputError(f"{spec.label}: dims names {unknown[0]!r}; the open dimensions besides the batch: {listed}")
    return dataclasses.replace(spec.sized({**dims, **filled}), batch_symbol=None)


def _in_time(spec: StepSpec, file: StepFile) -> StepSpec:
    """Return the spec of a step that was loaded from an exported file, with the file's facts about time."""
    own = file.spec
    inputs = {file.inputs[each.name]: each for each in own.inputs}
    outputs = {file.outputs[each.name]: each for each in own.outputs if each.name in file.outputs}
    kinds = {file.state[each.name].input: each.kind for each in own.state}
    return dataclasses.replace(
        own,
        label=spec.label,
        inputs=tuple(dataclasses.replace(inputs.get(each.name, each), name=each.name) for each in spec.inputs),
        outputs=tuple(dataclasses.replace(outputs.get(each.name, each), name=each.name) for each in spec.outputs),
        state=tuple(dataclasses.replace(each, kind=kinds.get(each.name, each.kind)) for each in spec.state),
    )


def _check_named(outputs: Any, spec: StepSpec) -> None:
    """Check that outputs are a dict of the arrays that the spec names."""
    if not isinstance(outputs, Mapping) or not all(isinstance(name, str) for name in outputs):
        raise InputError(
            f"{spec.label} returns {jax.tree.structure(outputs)}; arrays have names in a file: return one dict of "
            "arrays with strings for keys"
        )
    known = {each.name for each in spec.outputs}
    for name, value in outputs.items():
        if name not in known:
            raise InputError(f"{spec.label} returns {name!r}, which its spec does not list as an output")
        if value is not None and not jax.tree_util.all_leaves([value]):
            raise InputError(f"{spec.label} returns {name!r} as {jax.tree.structure(value)}, not as an array")
