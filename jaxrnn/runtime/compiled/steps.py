"""A model in steps: its step and scan, exported, and the model that a file of them makes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.errors import InputError, StateError
from jaxrnn.guards import exact_types
from jaxrnn.jaxprs.packing import Packed
from jaxrnn.onnx.values import describe
from jaxrnn.runtime.compiled.format import MAGIC, Archive
from jaxrnn.runtime.compiled.functions import Functions, export, facts_of, shape_of
from jaxrnn.runtime.compiled.manifest import dtype_named

if TYPE_CHECKING:
    from jaxrnn.model import Model

Arrays = Mapping[str, Any]


def archive_model(
    model: Model, params: Arrays, dims: Mapping[str, int], platforms: Sequence[str] | None, label: str
) -> Archive:
    """A model's packed parameters, step and scan.

    Raises:
        StateError: the model has no steps.
        InputError: a dimension is missing.
    """
    from jaxrnn.model.steps import example_of

    missing = [
        str(size)
        for info in model.step_inputs
        for size in info.shape or ()
        if isinstance(size, str) and size not in dims and size != model.batch_symbol
    ]
    if missing:
        raise InputError(
            f"{model.label}: give the size of {', '.join(dict.fromkeys(missing))}, as in dims={{{missing[0]!r}: 16}}"
        )
    packed = model.pack(params, dims=dims)
    sizes = {**dims, **({} if model.batch_symbol is None else {model.batch_symbol: 1})}
    frame = example_of(model.step_inputs, sizes)
    manifest = {
        **facts_of(label),
        "batch_symbol": model.batch_symbol,
        "inputs": [_entry(info.name, frame[info.name], info.shape, model.batch_symbol) for info in model.step_inputs],
        "outputs": [info.name for info in model.step_outputs],
        "state": [
            {
                "name": v.name,
                "dtype": v.dtype.name,
                "shape": list(v.shape),
                "reason": v.reason,
                "initial": model.initial_values[v.name].tolist() if v.name in model.initial_values else 0,
            }
            for v in model.state
        ],
    }
    return Archive(MAGIC, manifest, packed.folded, _export(model, packed, frame, platforms))


def _entry(name: str, array: np.ndarray, declared: Any, batch_symbol: str | None) -> dict[str, Any]:
    shape = [
        batch_symbol if d == batch_symbol and d is not None else s for d, s in zip(declared, array.shape, strict=True)
    ]
    return {"name": name, "dtype": array.dtype.name, "shape": shape}


def _export(model: Model, packed: Packed, frame: Arrays, platforms: Sequence[str] | None) -> dict[str, bytes]:
    """Serialised functions of ``(folded, state, inputs)`` by name."""

    def step(folded: Any, state: Arrays, inputs: Arrays) -> Any:
        return model.step(dataclasses.replace(packed, folded=tuple(folded)), state, inputs)

    def scan(folded: Any, state: Arrays, inputs: Arrays) -> Any:
        return model.scan(dataclasses.replace(packed, folded=tuple(folded)), state, inputs)

    time, batch = jax.export.symbolic_shape("time, batch")
    symbol = model.batch_symbol

    def shapes(lead: tuple[Any, ...], count: Any) -> tuple[Any, Any]:
        state = {
            v.name: jax.ShapeDtypeStruct((*lead, *(count if isinstance(s, str) else s for s in v.shape)), v.dtype)
            for v in model.state
        }
        inputs = {
            info.name: jax.ShapeDtypeStruct(
                (
                    *lead,
                    *(
                        count if n == symbol and n is not None else s
                        for n, s in zip(info.shape or (), frame[info.name].shape, strict=True)
                    ),
                ),
                frame[info.name].dtype,
            )
            for info in model.step_inputs
        }
        return state, inputs

    variants = {"": shapes((), 1 if symbol is None else batch)}
    if symbol is None:
        variants["_lifted"] = shapes((batch,), 1)
    folded = [shape_of(array) for array in packed.folded]
    functions = {}
    for ending, (state, inputs) in variants.items():
        stacked = {name: shape_of(array, (time,)) for name, array in inputs.items()}
        functions[f"step{ending}"] = export(step, platforms, folded, state, inputs)
        functions[f"scan{ending}"] = export(scan, platforms, folded, state, stacked)
    return functions


class Compiled(Functions):
    """A model from a compiled file: `init_state`, `step` and `scan` as `Model` has them, and `params` packed.

    Attributes:
        inputs, outputs, state: names, with dtypes and shapes where the file says them.
        batch_symbol: as `Model.batch_symbol`.
    """

    def __init__(self, archive: Archive):
        super().__init__(archive)
        self.inputs: list[dict[str, Any]] = archive.manifest["inputs"]
        self.outputs: list[str] = archive.manifest["outputs"]
        self.state: list[dict[str, Any]] = archive.manifest["state"]
        self.batch_symbol: str | None = archive.manifest["batch_symbol"]

    def init_state(self, batch: int = 1) -> dict[str, jax.Array]:
        """As `Model.init_state`."""
        lead = () if self.batch_symbol is not None or batch == 1 else (batch,)
        state = {}
        with exact_types():
            for entry in self.state:
                shape = (*lead, *(batch if isinstance(size, str) else size for size in entry["shape"]))
                start = np.asarray(entry["initial"], dtype_named(entry["dtype"]))
                # By NumPy: an operation of JAX would be compiled first, which takes longer than the step.
                state[entry["name"]] = jnp.asarray(np.broadcast_to(start, shape).copy())
        return state

    def step(
        self, params: Sequence[Any] | None, state: Arrays, inputs: Arrays
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """As `Model.step`, with the packed `params`, or None for those compiled into the step."""
        return self._run("step", params, state, inputs, 0)

    def scan(
        self, params: Sequence[Any] | None, state: Arrays, inputs: Arrays
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """As `Model.scan`, with frames stacked along the first axis; ``params`` as in `step`."""
        return self._run("scan", params, state, inputs, 1)

    def _run(self, name: str, params: Sequence[Any] | None, state: Arrays, inputs: Arrays, frames: int) -> Any:
        with exact_types():
            carry = {entry["name"]: self._checked("state", entry, state, 0, StateError) for entry in self.state}
            lifted = any(len(carry[entry["name"]].shape) > len(entry["shape"]) for entry in self.state)
            given = {
                entry["name"]: self._checked("input", entry, inputs, frames + lifted, InputError)
                for entry in self.inputs
            }
            return self._call(name + ("_lifted" if lifted else ""), params, carry, given)

    def _checked(self, kind: str, entry: Mapping[str, Any], arrays: Arrays, lead: int, error: type[Exception]) -> Any:
        name, dtype, shape = entry["name"], dtype_named(entry["dtype"]), entry["shape"]
        expected = f"{kind} {name!r} must be {dtype.name}[{', '.join(map(str, shape))}]"
        if name not in arrays:
            raise error(f"{expected}, and is missing")
        value = jnp.asarray(arrays[name])
        if value.dtype != dtype and (value.dtype.name, dtype.name) in (("int32", "int64"), ("uint32", "uint64")):
            value = value.astype(dtype)
        extra = len(value.shape) - len(shape)
        allowed = (0, 1) if kind == "state" and self.batch_symbol is None else (lead,)
        core = value.shape[max(extra, 0) :]
        fits = all(isinstance(e, str) or e == s for e, s in zip(shape, core, strict=False))
        if value.dtype != dtype or extra not in allowed or not fits:
            axes = f" with {lead} axis or axes in front" if lead else ""
            raise error(f"{expected}{axes}, not {describe(value)}")
        return value
