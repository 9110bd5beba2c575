"""LiteRT as an engine: packages, metadata of files, and signatures that run."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import os
import struct
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxrnn._files.messages import first_line
from jaxrnn.errors import InputError, MissingPackageError, ModelError, install_command
from jaxrnn.onnx.stepfile import METADATA, StepFile
from jaxrnn.verification.peers import PeerError

SUFFIX = ".tflite"
#: The keys of the sizes of quantisation steps in a quantised model, and of the types of the weights in the file.
STEPS, QUANTIZED = "quantisation", "quantize"
#: The kinds of quantisation whose error is measured as a whole.
ROUGH = ("dynamic", "static")
#: The float types of tensors, by the names in LiteRT's schema.
_FLOATS = {"FLOAT16": np.dtype(np.float16), "FLOAT32": np.dtype(np.float32)}


@dataclass(frozen=True)
class Signature:
    """A signature of a LiteRT file: ``step``, ``flush`` or ``function``."""

    path: Path
    name: str


def package(name: str) -> Any:
    """Import a module of LiteRT's packages, or raise MissingPackageError."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        with quiet():
            return importlib.import_module(name)
    except ImportError as error:
        raise MissingPackageError(
            f"LiteRT's packages are not installed ({first_line(error)}): {install_command('litert')}"
        ) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep messages of C++ code to standard error, and warnings of LiteRT's packages, out of the terminal."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file, warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="ai_edge_")
        before = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)


class LiteRt:
    """A signature in LiteRT on the CPU, by default in one thread, as a peer of `jaxrnn.verification`."""

    def __init__(self, model: Signature | bytes, name: str = "", *, threads: int = 1):
        litert = package("ai_edge_litert.interpreter")
        version = importlib.metadata.version("ai-edge-litert")
        self.name = f"LiteRT {version}"
        source = {"model_content": model} if isinstance(model, bytes) else {"model_path": os.fspath(model.path)}
        try:
            with quiet():
                interpreter = litert.Interpreter(**source, num_threads=threads)
                self._runner = interpreter.get_signature_runner(name or getattr(model, "name", ""))
        except (RuntimeError, ValueError) as error:
            raise PeerError(f"{self.name} rejects the file: {first_line(error)}") from error
        #: The shape and dtype of each input.
        self.inputs = {
            key: (tuple(map(int, each["shape"])), np.dtype(each["dtype"]))
            for key, each in self._runner.get_input_details().items()
        }

    def run(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return all outputs as a dict of NumPy arrays."""
        try:
            return dict(self._runner(**{name: np.asarray(feeds[name]) for name in self.inputs}))
        except (RuntimeError, ValueError) as error:
            raise PeerError(f"{self.name} fails: {first_line(error)}") from error


def read_metadata(path: Path) -> dict[str, str]:
    """Return the entries of the metadata of a LiteRT file that are text."""
    data = path.read_bytes()
    if data[4:8] != b"TFL3":
        raise ModelError(f"{path} is not a LiteRT file")
    schema, texts = package("ai_edge_litert.schema_py_generated"), {}
    try:
        model = schema.Model.GetRootAs(data)
        for index in range(model.MetadataLength()):
            entry = model.Metadata(index)
            buffer = model.Buffers(entry.Buffer())
            with contextlib.suppress(UnicodeDecodeError):
                texts[entry.Name().decode()] = buffer.DataAsNumpy().tobytes().decode() if buffer.DataLength() else ""
    except (struct.error, IndexError, ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} is damaged: {first_line(error)}; export it again") from error
    return texts


def read_signature(signature: Signature) -> StepFile:
    """Return the facts of a signature that jaxrnn wrote.

    Raises:
        InputError: jaxrnn did not write the file, or the file does not have this signature.
        ModelError: the facts are damaged.
    """
    path, kind = signature.path, signature.name
    text = read_metadata(path).get(f"{METADATA}.{kind}")
    if text is None:
        raise InputError(f"{path} has no {kind} written by jaxrnn.export.export_litert")
    try:
        return StepFile.from_json(json.loads(text))
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise ModelError(f"{path}: the metadata '{METADATA}.{kind}' are damaged ({error}): export again") from error


def read_steps(signature: Signature) -> dict[str, float]:
    """Return the size of a quantisation step by output, for the signature of a quantised model."""
    text = read_metadata(signature.path).get(f"{METADATA}.{signature.name}.{STEPS}", "{}")
    return dict(json.loads(text))


def operations(signature: Signature) -> Counter[str]:
    """Return how many operations of each name a signature runs."""
    schema = package("ai_edge_litert.schema_py_generated")
    model = schema.Model.GetRootAs(signature.path.read_bytes())
    names = {number: name for name, number in vars(schema.BuiltinOperator).items() if isinstance(number, int)}
    signatures = map(model.SignatureDefs, range(model.SignatureDefsLength()))
    index = next(each.SubgraphIndex() for each in signatures if each.SignatureKey().decode() == signature.name)
    graph = model.Subgraphs(index)
    codes = (model.OperatorCodes(graph.Operators(i).OpcodeIndex()) for i in range(graph.OperatorsLength()))
    return Counter(names[code.BuiltinCode()] for code in codes)


def precision(path: Path) -> tuple[list[np.dtype], bool]:
    """Return the float types of a file's tensors, and whether jaxrnn quantised its products."""
    schema = package("ai_edge_litert.schema_py_generated")
    model = schema.Model.GetRootAs(path.read_bytes())
    names = {number: name for name, number in vars(schema.TensorType).items() if isinstance(number, int)}
    graphs = map(model.Subgraphs, range(model.SubgraphsLength()))
    found = {names[graph.Tensors(index).Type()] for graph in graphs for index in range(graph.TensorsLength())}
    is_rough = read_metadata(path).get(f"{METADATA}.{QUANTIZED}") in ROUGH
    return [dtype for name, dtype in _FLOATS.items() if name in found], is_rough
