"""Steppers bound to parameters and sizes, as functions of named arrays."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from jaxrnn._files.arguments import static_argument
from jaxrnn._files.messages import describe
from jaxrnn._jax.context import own_arithmetic
from jaxrnn.errors import InputError, UnsupportedError
from jaxrnn.jaxprs.packing import Packed
from jaxrnn.jaxprs.scanning import step_with_layers
from jaxrnn.onnx.stepfile import FLUSH, StateNames, StepFile
from jaxrnn.steps.bound import Bound
from jaxrnn.steps.stepper import Stepper
from jaxrnn.steps.stepspec import Layout, StepSpec

Arrays = Mapping[str, Any]


class Source:
    """A stepper with its parameters and sizes, for one stream or a batch.

    ``spec`` describes one stream without open dimensions. ``batch`` is the number of streams that the file states, or
    None without a batch axis.
    """

    def __init__(
        self, stepper: Stepper, params: Any, batch: int | None, dims: Mapping[str, int], label: str | None = None
    ):
        bound = Bound(stepper, params, batch=batch, dims=dims)
        self._form = form = bound.export_form()
        whole = bound.stepper.spec
        check_params(bound.params)
        if whole.constants:
            raise UnsupportedError(
                f"{whole.label}: the state before the first frame depends on the input(s) "
                f"{', '.join(whole.constants)}, and a file contains one first state. If the model returns the next "
                f"value of this input, export its step (without --symbol, in Python with step=True). Otherwise stream "
                f"a function that closes over their values, or fix an input of a model, "
                f"{static_argument(whole.constants[0])}"
            )
        for each in (*whole.inputs, *whole.state):
            if each.dtype is None or each.is_text or each.shape is None:
                raise UnsupportedError(
                    f"{whole.label}: {each.as_input} needs a numeric type and a known rank in a file"
                )
        bound.check_sizes()
        self._bound = bound = Bound(form.stepper, bound.params, batch=batch, dims=dims)
        self.params, self.batch, self.lead = bound.params, batch, bound.lead
        spec, file = dataclasses.replace(bound.spec, batch_symbol=None), form.step_file
        if file is not None and file.kind == FLUSH:
            raise InputError(f"{whole.label} is a flush, not a step: export the step and its flush together")
        if file is not None:
            spec, self.batch = _in_time(spec, file), batch or file.batch
        name = label or PurePath(spec.label).name or type(stepper).__name__
        self.spec = dataclasses.replace(spec, label=name.encode(errors="replace").decode())
        #: The names of a model's state in the file that it came from; None for other steppers.
        self.state_names = None
        if form.state_names is not None:
            self.state_names = {name: StateNames(*pair) for name, pair in form.state_names.items()}
        #: The operators of the model that is traced, by scope; None for functions and other steppers.
        self.operators = form.operators

    def types(self) -> contextlib.AbstractContextManager[None]:
        """Keep 64-bit types in a ``with`` block if the stepper does so itself or declares one."""
        specs = (*self.spec.inputs, *self.spec.outputs, *self.spec.state)
        return exact(self._form.keeps_types or any(each.is_wide for each in specs))

    def first(self) -> dict[str, np.ndarray]:
        """Return the state before the first frame, by entry."""
        with self.types():
            entries = self.spec.entries(self._bound.start())
            return {each.name: np.asarray(entries[each.name]) for each in self.spec.state}

    def step(self, params: Any, state: Arrays, inputs: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
        """Run one step of one stream or of the batch; return the outputs and the new state."""
        bound = self._bound.with_params(params)

        def one(state: Arrays, inputs: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
            def step(state: Any, inputs: Any) -> tuple[Any, Any]:
                outputs, new = bound.step(state, inputs)
                return new, outputs

            run = step if self._form.has_layers else functools.partial(step_with_layers, step)
            new, outputs = run(self._carried(state), dict(inputs))
            return outputs, self.spec.entries(new)

        return bound.mapped(one)(state, inputs)

    def flush(self, params: Any, state: Arrays, *tail: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Flush one stream or the batch; return the outputs, and the number of existing frames in each."""
        bound = self._bound.with_params(params)
        return bound.mapped(lambda state, *tail: tuple(bound.flush(self._carried(state), *tail)))(state, *tail)

    def _carried(self, entries: Arrays) -> dict[str, Any]:
        """Return the state as a step carries it."""
        layout = Layout({each.name: each.struct() for each in self.spec.state}, joined=self.spec.joined)
        return layout.pack(entries)


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
