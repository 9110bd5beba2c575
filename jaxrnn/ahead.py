"""Ahead of time: a model's step and scan, exported with packed parameters into one file that needs no ONNX to run.

A file is a line of magic, a line with the SHA-256 of the rest, and a zip archive: ``manifest.json``, the packed
parameters as ``.npy`` entries, and functions serialised by ``jax.export``. Nothing in it is executed or unpickled
before the digest has been seen to be right.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

import jaxrnn
from jaxrnn.errors import InputError, ModelError, StateError
from jaxrnn.onnx.values import describe, exact_types
from jaxrnn.packing import Packed

if TYPE_CHECKING:
    from jaxrnn.model import Model

MAGIC = b"jaxrnn compiled model, format 1\n"

Arrays = Mapping[str, Any]


def save_compiled(
    model: Model,
    path: str | os.PathLike[str],
    *,
    params: Arrays | None = None,
    dims: Mapping[str, int] | None = None,
    platforms: Sequence[str] | None = None,
) -> None:
    """Write a model's packed parameters and its exported step and scan to a file, whole or not at all.

    The number of frames is symbolic, and so is the batch: the model's own where the file left it open, else a leading
    axis as `Model.init_state` gives it.

    Args:
        model: a model that runs in steps.
        path: where to write; ``.jaxrnn`` is the customary ending.
        params: parameters to pack; the model's own by default.
        dims: sizes of dimensions of the inputs that the file leaves open, other than the batch.
        platforms: for which to compile, such as ``("cpu", "cuda")``; by default the one that JAX uses here.

    Raises:
        StateError: the model has no steps.
        InputError: a dimension is missing.
    """
    from jaxrnn.steps import example_of

    dims = dict(dims or {})
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
    chosen = model.params if params is None else params
    packed = model.pack(chosen, dims=dims)
    if model.batch_symbol is not None:
        dims[model.batch_symbol] = 1
    frame = example_of(model.step_inputs, dims)
    functions = _export(model, packed, frame, platforms)
    manifest = {
        "jaxrnn": jaxrnn.__version__,
        "jax": jax.__version__,
        "label": Path(model.label).name,
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
        "params": len(packed.folded),
        "dtypes": [array.dtype.name for array in packed.folded],
    }
    _write(Path(path), manifest, packed.folded, functions)


def _entry(name: str, array: np.ndarray, declared: Any, batch_symbol: str | None) -> dict[str, Any]:
    shape = [
        batch_symbol if d == batch_symbol and d is not None else s for d, s in zip(declared, array.shape, strict=True)
    ]
    return {"name": name, "dtype": array.dtype.name, "shape": shape}


def _export(model: Model, packed: Packed, frame: Arrays, platforms: Sequence[str] | None) -> dict[str, bytes]:
    """Serialised functions of ``(folded, state, inputs)`` by name."""

    def step(folded: Any, state: Arrays, inputs: Arrays) -> Any:
        return model.step(Packed(packed.params, tuple(folded)), state, inputs)

    def scan(folded: Any, state: Arrays, inputs: Arrays) -> Any:
        return model.scan(Packed(packed.params, tuple(folded)), state, inputs)

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

    def stacked(inputs: Any) -> Any:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((time, *x.shape), x.dtype), inputs)

    variants = {"": shapes((), 1 if symbol is None else batch)}
    if symbol is None:
        variants["_lifted"] = shapes((batch,), 1)
    folded = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in packed.folded]
    functions = {}
    with exact_types():
        for ending, (state, inputs) in variants.items():
            for name, function, given in (("step", step, inputs), ("scan", scan, stacked(inputs))):
                exported = jax.export.export(jax.jit(function), platforms=platforms)(folded, state, given)
                functions[name + ending] = bytes(exported.serialize())
    return functions


def _write(
    path: Path, manifest: Mapping[str, Any], arrays: Sequence[jax.Array], functions: Mapping[str, bytes]
) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest, indent=1))
        for index, array in enumerate(arrays):
            raw = np.asarray(array)
            with archive.open(f"params/{index}.npy", "w") as entry:
                np.lib.format.write_array(entry, raw.view(f"V{raw.dtype.itemsize}"), allow_pickle=False)
        for name, data in functions.items():
            archive.writestr(f"functions/{name}", data)
    body = buffer.getvalue()
    digest = hashlib.sha256(body).hexdigest().encode() + b"\n"
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(MAGIC + digest + body)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def load_compiled(path: str | os.PathLike[str]) -> Compiled:
    """Read a file that `save_compiled` wrote. Neither onnx nor tracing of the model is needed.

    Raises:
        ModelError: no such file, another kind of file, or one that has been damaged.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ModelError(f"{os.fspath(path)}: the file cannot be read: {error.strerror or error}") from error
    if not data.startswith(MAGIC):
        raise ModelError(
            f"{os.fspath(path)} is not a model compiled by this version of jaxrnn; write it with 'jaxrnn compile'"
        )
    digest, _, body = data[len(MAGIC) :].partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise ModelError(
            f"{os.fspath(path)} is damaged: its contents do not have the digest that it gives; compile it again"
        )
    with exact_types(), zipfile.ZipFile(io.BytesIO(body)) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        arrays = []
        for index in range(manifest["params"]):
            with archive.open(f"params/{index}.npy") as entry:
                raw = np.lib.format.read_array(entry, allow_pickle=False)
            arrays.append(jnp.asarray(raw.view(_dtype(manifest["dtypes"][index]))))
        functions = {
            name.removeprefix("functions/"): archive.read(name)
            for name in archive.namelist()
            if name.startswith("functions/")
        }
    return Compiled(manifest, tuple(arrays), functions)


def _dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


class Compiled:
    """A model from a compiled file: `init_state`, `step` and `scan` as `Model` has them, and `params` packed.

    Attributes:
        label: the name of the file that it was compiled from.
        params: the packed parameters.
        inputs, outputs, state: names, with dtypes and shapes where the file says them.
        batch_symbol: as `Model.batch_symbol`.
    """

    def __init__(self, manifest: Mapping[str, Any], params: tuple[jax.Array, ...], functions: Mapping[str, bytes]):
        self.label: str = manifest["label"]
        self.params = params
        self.inputs: list[dict[str, Any]] = manifest["inputs"]
        self.outputs: list[str] = manifest["outputs"]
        self.state: list[dict[str, Any]] = manifest["state"]
        self.batch_symbol: str | None = manifest["batch_symbol"]
        self._functions = functions

    @functools.cache  # noqa: B019 - as long-lived as the model itself
    def _function(self, name: str) -> Any:
        with exact_types():
            exported = jax.export.deserialize(bytearray(self._functions[name]))
            here = jax.export.default_export_platform()
            if here not in exported.platforms:
                made = ", ".join(exported.platforms)
                raise ModelError(
                    f"{self.label} was compiled for {made}, but JAX runs on {here} here; compile it for that"
                )
            return jax.jit(exported.call)

    def init_state(self, batch: int = 1) -> dict[str, jax.Array]:
        """As `Model.init_state`."""
        lead = () if self.batch_symbol is not None or batch == 1 else (batch,)
        state = {}
        with exact_types():
            for entry in self.state:
                shape = (*lead, *(batch if isinstance(size, str) else size for size in entry["shape"]))
                start = np.asarray(entry["initial"], _dtype(entry["dtype"]))
                state[entry["name"]] = jnp.array(jnp.broadcast_to(start, shape))
        return state

    def step(self, params: Sequence[Any], state: Arrays, inputs: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
        """As `Model.step`, with the packed `params`."""
        return self._call("step", params, state, inputs, 0)

    def scan(self, params: Sequence[Any], state: Arrays, inputs: Arrays) -> tuple[dict[str, Any], dict[str, Any]]:
        """As `Model.scan`, with frames stacked along the first axis."""
        return self._call("scan", params, state, inputs, 1)

    def _call(self, name: str, params: Sequence[Any], state: Arrays, inputs: Arrays, frames: int) -> Any:
        with exact_types():
            carry = {entry["name"]: self._checked("state", entry, state, 0, StateError) for entry in self.state}
            lifted = any(len(carry[entry["name"]].shape) > len(entry["shape"]) for entry in self.state)
            given = {
                entry["name"]: self._checked("input", entry, inputs, frames + lifted, InputError)
                for entry in self.inputs
            }
            return self._function(name + ("_lifted" if lifted else ""))(list(params), carry, given)

    def _checked(self, kind: str, entry: Mapping[str, Any], arrays: Arrays, lead: int, error: type[Exception]) -> Any:
        name, dtype, shape = entry["name"], _dtype(entry["dtype"]), entry["shape"]
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
