"""Steppers bound to parameters and sizes, as functions of named arrays."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from jaxrnn._files.messages import describe
from jaxrnn._jax.context import own_arithmetic
from jaxrnn.errors import InputError, UnsupportedError
from jaxrnn.jaxprs.equations import is_key
from jaxrnn.jaxprs.scanning import step_with_layers
from jaxrnn.jaxprs.schedule import Packed
from jaxrnn.onnx.stepfile import FLUSH, StateNames, StepFile
from jaxrnn.steps.finite import is_float
from jaxrnn.steps.specs import Arrays
from jaxrnn.steps.stepper import Bound, Stepper
from jaxrnn.steps.stepspec import Layout, StateSpec, StepSpec


class Exportable:
    """A stepper with parameters and sizes, for a single stream or a batch.

    ``spec`` describes a single stream without open dimensions. ``batch`` is the number of streams that the file
    states, or None without a batch axis. ``state`` describes the arrays of the state in the file, and ``parts`` the
    entries in each array if the state is joined. Entries of the kinds ``apart`` are joined separately. With ``guard``,
    a step and a flush take NaN and infinities of inputs for zeros.
    """

    def __init__(
        self,
        stepper: Stepper,
        params: Any,
        batch: int | None,
        dims: Mapping[str, int],
        label: str | None = None,
        *,
        join_state: bool = False,
        apart: Collection[str] = (),
        guard: bool = False,
    ):
        bound = Bound(stepper, params, batch=batch, dims=dims)
        self._form = form = bound.export_form()
        self.guard = guard
        declared = bound.stepper.spec
        check_params(bound.params)
        if declared.constants:
            raise UnsupportedError(
                f"{declared.label}: the state before the first frame depends on the input(s) "
                f"{', '.join(declared.constants)}, and a file contains one first state. If the model returns the next "
                f"value of this input, export its step (without --symbol, in Python with step=True). Otherwise give "
                f"its value, such as 0: `jaxrnn.load(path, static={ {declared.constants[0]: 0} })`; for a function, "
                "stream one that closes over the value"
            )
        bound.check_sizes()
        self._bound = bound = Bound(form.stepper, bound.params, batch=batch, dims=dims)
        self.params, self.batch, self.lead = bound.params, batch, bound.lead
        spec, file = dataclasses.replace(bound.spec, batch_symbol=None), form.step_file
        if file is not None and file.kind == FLUSH:
            raise InputError(f"{declared.label} is a flush, not a step: export the step and its flush together")
        if file is not None:
            file = file.of_streams(batch or 1)
            spec, self.batch = _in_time(spec, file), batch or file.batch
        name = label or PurePath(spec.label).name or type(stepper).__name__
        self.spec = dataclasses.replace(spec, label=name.encode(errors="replace").decode())
        stored = [(each, paired(each.struct())) for each in self.spec.state]
        entries = [
            dataclasses.replace(each, dtype=np.dtype(struct.dtype), shape=struct.shape) for each, struct in stored
        ]
        vectors = _vectors(entries, apart) if join_state else None
        self._layout = Layout({each.name: each.struct() for each in entries}, joined=join_state, vectors=vectors)
        self.state = tuple(entries)
        own = {} if file is None else {file.state[name].input: parts for name, parts in file.parts.items()}
        self.parts = {each.name: own[each.name] for each in entries if each.name in own}
        if vectors is not None:
            self.parts = {
                name: tuple(each for each in entries if vectors[each.name] == name) for name in self._layout.vectors
            }
            self.state = tuple(
                StateSpec(name, np.dtype(each.dtype), each.shape, kind=_kind(self.parts[name], apart))
                for name, each in self._layout.vectors.items()
            )
        #: The names of a model's state in the original file; None for other steppers and a joined state.
        self.state_names = None
        if form.state_names is not None and not join_state:
            self.state_names = {name: StateNames(*pair) for name, pair in form.state_names.items()}
        #: The texts of the file that a model was loaded from.
        self.notes = form.notes
        #: The operators of the model that is traced, by scope; None for functions and other steppers.
        self.operators = form.operators

    def types(self) -> contextlib.AbstractContextManager[None]:
        """Keep 64-bit types in a ``with`` block if the stepper keeps or declares 64-bit types."""
        specs = (*self.spec.inputs, *self.spec.outputs, *self.spec.state)
        return exact(self._form.keeps_types or any(each.is_wide for each in specs))

    def first(self) -> dict[str, np.ndarray]:
        """Return the state before the first frame, as the file stores the state."""
        with self.types():
            entries = self.spec.entries(self._bound.start())
            return self._layout.pack({each.name: to_pairs(np.asarray(entries[each.name])) for each in self.spec.state})

    def step(self, params: Any, state: Arrays, inputs: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
        """Run a step of the stream or the batch on the file's state; return the outputs and the new state."""
        bound = self._bound.with_params(params)

        def one(state: Arrays, inputs: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
            def step(state: Any, inputs: Any) -> tuple[Any, Any]:
                outputs, new = bound.step(state, inputs)
                return new, outputs

            run = step if self._form.has_layers else functools.partial(step_with_layers, step)
            new, outputs = run(self._carried(state), dict(inputs))
            after = self.spec.entries(new)
            return outputs, self._layout.pack({name: to_pairs(jnp.asarray(array)) for name, array in after.items()})

        return bound.mapped(one)(state, guarded(inputs) if self.guard else inputs)

    def flush(self, params: Any, state: Arrays, *tail: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Flush the stream or the batch; return the outputs, and the number of existing frames in each output."""
        bound = self._bound.with_params(params)
        if self.guard and tail:
            tail = (guarded(tail[0]), *tail[1:])
        return bound.mapped(lambda state, *tail: tuple(bound.flush(self._carried(state), *tail)))(state, *tail)

    def _carried(self, state: Arrays) -> dict[str, Any]:
        """Convert the file's state to the state of the step."""
        entries = self._layout.unpack(dict(state))
        layout = Layout({each.name: each.struct() for each in self.spec.state}, joined=self.spec.joined)
        return layout.pack({each.name: from_pairs(entries[each.name], each) for each in self.spec.state})


def _vectors(entries: Iterable[StateSpec], apart: Collection[str]) -> dict[str, str]:
    """Return the name of the vector of each entry: ``state``, or with several types ``state_DTYPE``."""
    kinds = {each.name: str(each.dtype) for each in entries}
    kinds |= {each.name: f"{each.dtype}_total" for each in entries if each.kind in apart and each.dtype == np.float32}
    several = len({*kinds.values()}) > 1
    return {name: f"state_{kind}" if several else "state" for name, kind in kinds.items()}


def _kind(parts: Collection[StateSpec], apart: Collection[str]) -> str:
    """Return the kind of a vector: the common kind of the entries, ``total`` for kinds apart, or ``joined``."""
    kinds = {each.kind for each in parts}
    if len(kinds) == 1:
        return kinds.pop()
    return "total" if kinds <= {*apart} else "joined"


@contextlib.contextmanager
def exact(wide: bool) -> Iterator[None]:
    """Keep 64-bit types in a ``with`` block if ``wide``, and allow moves of the library's own arrays."""
    with jax.enable_x64(True) if wide else contextlib.nullcontext(), own_arithmetic():
        yield


def guarded(inputs: Arrays) -> dict[str, Any]:
    """Return inputs with zeros in place of NaN and infinities."""
    return {
        name: jnp.where(jnp.isfinite(array), array, jnp.zeros((), array.dtype)) if is_float(array) else array
        for name, array in inputs.items()
    }


def is_complex(array: Any) -> bool:
    """Return True for arrays of complex numbers, and for their specs."""
    return jnp.issubdtype(array.dtype, jnp.complexfloating)


def to_pairs(array: Any) -> Any:
    """Convert an array to the form in a file: complex numbers as pairs along a last axis, the real part first."""
    if not is_complex(array):
        return array
    if isinstance(array, np.ndarray):
        return np.stack([array.real, array.imag], -1)
    return jnp.stack([lax.real(array), lax.imag(array)], -1)


def from_pairs(array: Any, spec: Any) -> Any:
    """Convert an array of a file to the form for the stepper, complex if ``spec`` is complex."""
    return lax.complex(array[..., 0], array[..., 1]) if is_complex(spec) else array


def paired(struct: Any) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of an array in a file."""
    if not is_complex(struct):
        return jax.ShapeDtypeStruct(struct.shape, struct.dtype)
    return jax.ShapeDtypeStruct((*struct.shape, 2), np.finfo(struct.dtype).dtype)


def check_params(params: Any) -> None:
    """Check that parameters are arrays of numbers with values, not packed."""
    if isinstance(params, Packed):
        raise InputError("params are packed: pass packed.params")
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        where = f"params{jax.tree_util.keystr(path)}"
        if isinstance(leaf, Tracer):
            raise InputError(f"{where} is being traced and has no values; call export_onnx outside of jit")
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise InputError(f"{where} is a shape without values: give the parameters")
        dtype = getattr(leaf, "dtype", None)
        numbers = dtype.kind not in "OSUMm" if isinstance(dtype, np.dtype) else dtype is not None and is_key(dtype)
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
