"""Peers: ONNX Runtime and the reference evaluator of ONNX behind a common interface."""

from __future__ import annotations

import functools
import importlib.util
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import jax
import numpy as np
import onnx

from jaxrnn._files.messages import first_line
from jaxrnn.errors import InputError, JaxrnnError, MissingPackageError, install_command
from jaxrnn.onnx.reading import Source, read_source
from jaxrnn.onnx.tensors import graphs_below
from jaxrnn.onnx.values import is_text
from jaxrnn.steps.specs import ArraySpec


class PeerError(JaxrnnError, RuntimeError):
    """A peer rejects a model or fails to run the model, so that a comparison is impossible."""


class Peer(Protocol):
    """An engine with a loaded model; `name` includes the version of the engine."""

    name: str

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return all outputs of the model as a dict of NumPy arrays, or raise `PeerError`."""
        ...


#: A model that contains all tensor data, or a file with external data.
Loadable = onnx.ModelProto | Path
OpenPeer = Callable[[Any], Peer]
Result = TypeVar("Result")


def complete_proto(source: Source) -> onnx.ModelProto:
    """Return a copy of the model that contains all tensor data."""
    proto, _, folder = read_source(source)
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    if folder is not None:
        onnx.load_external_data_for_model(copy, os.fspath(Path(folder)))
    return copy


def expose(proto: onnx.ModelProto, names: Sequence[str]) -> None:
    """Add values of the outer graph to the outputs of the model."""
    outputs = {value.name for value in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in outputs)


def candidates(engine: str, *, optimized: bool = False) -> list[OpenPeer]:
    """Return the engines to try in order: ``ort``, ``reference``, or both for ``auto`` if ONNX Runtime is installed.

    With `optimized`, ONNX Runtime optimizes the graph, as it does by default. Otherwise ONNX Runtime runs the nodes of
    the file unchanged.
    """
    installed = importlib.util.find_spec("onnxruntime") is not None
    if engine == "ort" and not installed:
        raise MissingPackageError(
            f"ONNX Runtime is not installed: {install_command('verify')}, or use engine 'reference'"
        )
    runtime = functools.partial(OnnxRuntime, optimized=optimized)
    if engine == "ort":
        return [runtime]
    if engine == "reference":
        return [Reference]
    if engine == "auto":
        return [runtime, Reference] if installed else [Reference]
    raise InputError(f"engine must be 'ort', 'reference' or 'auto', not {engine!r}")


def first_to_run(
    openers: Iterable[OpenPeer], use: Callable[[OpenPeer], Result], what: str
) -> tuple[Result, tuple[str, ...]]:
    """Return the result of the first engine for which `use` raises no PeerError, and the errors of the engines before.

    If no engine is left, the PeerError begins with `what` and lists the errors of all engines.
    """
    failures: list[str] = []
    for opener in openers:
        try:
            return use(opener), tuple(failures)
        except PeerError as error:
            failures.append(str(error))
    raise PeerError(f"{what}: {'; '.join(failures)}")


class OnnxRuntime:
    """ONNX Runtime on the CPU, by default without graph optimizations."""

    def __init__(self, model: Loadable, *, optimized: bool = False):
        import onnxruntime

        self.name = f"ONNX Runtime {onnxruntime.__version__}"
        proto = onnx.load(model, load_external_data=False) if isinstance(model, Path) else model
        for value in (*proto.graph.input, *proto.graph.output):
            # NumPy lacks types such as bfloat16, so ONNX Runtime cannot exchange them with Python.
            kind = value.type.tensor_type.elem_type
            if kind and np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind)).isbuiltin != 1:
                name = onnx.TensorProto.DataType.Name(kind).lower()
                raise PeerError(f"{self.name} cannot exchange {name} arrays with Python (the type of {value.name!r})")
        graphs = (inner for graph in (proto.graph, *proto.functions) for inner in graphs_below(graph))
        self._recurrent = any(node.op_type in ("GRU", "LSTM") for graph in graphs for node in graph.node)
        options = onnxruntime.SessionOptions()
        if not optimized:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        source = os.fspath(model) if isinstance(model, Path) else model.SerializeToString()
        try:
            self._session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise PeerError(f"{self.name} rejects the model: {first_line(error)}") from error

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return all outputs of the model as a dict of NumPy arrays."""
        taken = {value.name for value in self._session.get_inputs()}
        names = [value.name for value in self._session.get_outputs()]
        empty = [name for name, value in feeds.items() if name in taken and getattr(value, "size", 1) == 0]
        if self._recurrent and empty:
            # ONNX Runtime would end the process.
            raise PeerError(f"{self.name} runs no GRU or LSTM without frames or streams, and {empty[0]!r} is empty")
        try:
            values = self._session.run(None, {name: value for name, value in feeds.items() if name in taken})
        except Exception as error:
            raise PeerError(f"{self.name} fails: {first_line(error)}") from error
        return dict(zip(names, values, strict=True))


class Reference:
    """The reference evaluator of the onnx package, which is slow and supports the newest operators."""

    def __init__(self, model: Loadable):
        from onnx.reference import ReferenceEvaluator

        self.name = f"ONNX reference evaluator {onnx.__version__}"
        proto = onnx.load(model) if isinstance(model, Path) else model
        self._names = [value.name for value in proto.graph.output]
        try:
            self._evaluator = ReferenceEvaluator(proto)
        except Exception as error:
            raise PeerError(f"the {self.name} rejects the model: {first_line(error)}") from error

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return all outputs of the model as a dict of NumPy arrays."""
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                values: Any = self._evaluator.run(None, dict(feeds))
        except Exception as error:
            raise PeerError(f"the {self.name} fails: {first_line(error)}") from error
        return dict(zip(self._names, values, strict=True))


def feed(info: ArraySpec, value: Any) -> Any:
    """Convert an argument to a NumPy array of the declared type, or to a list of arrays."""

    def plain(each: Any) -> np.ndarray:
        array = np.asarray(each)
        return array.astype(object) if is_text(array) else array  # engines exchange strings as objects

    if info.dtype is not None:
        return plain(value)
    return jax.tree.map(plain, list(value) if isinstance(value, (list, tuple)) else value)
