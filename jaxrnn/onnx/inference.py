"""Shape and type inference by the onnx package, which reports a node with operands that do not fit.

Inference is C++ code that trusts the file: an axis of 2**31, a batch of negative rank or a shape of 2**62 dimensions
crashes the process, or takes all time and memory. A check of the file cannot find such numbers, because inference
computes new sizes. Inference therefore runs in a separate process with limited memory and time
(`inference_process.py`). If that process crashes or cannot start, evaluation reports errors later.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError
from onnx import onnx_cpp2py_export

from jaxrnn.errors import ModelError
from jaxrnn.onnx import inference_process
from jaxrnn.onnx.graph import graphs_of, is_of_onnx
from jaxrnn.onnx.inference_process import HEADER, LENGTH, PATIENCE

#: Whether the system has process groups.
_GROUPS = hasattr(os, "killpg")


class InferenceServer:
    """The process that answers requests; it starts with the first request and restarts after a crash.

    Threads take turns. A fork of the caller's process starts a new server, because the pipes belong to the parent.
    The server ends when its input closes, at the latest with the caller's process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.stop)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def ask(self, model: bytes, *options: bool) -> bytes:
        """Return the answer to a request in the format of `inference_process`; empty without an answer."""
        with self._lock:
            was_running = self._process is not None
            answer = self._answer(model, options)
            if answer is None and was_running:  # the process may have died since the last request
                answer = self._answer(model, options)
            return answer or b""

    def stop(self) -> None:
        """End the process; the next request starts a new process."""
        with self._lock:
            self._stop()

    def _answer(self, model: bytes, options: tuple[bool, ...]) -> bytes | None:
        """Return the answer, or None if the process cannot start or died."""
        answer = None
        try:
            process = self._process = self._process or _started()
            patience = threading.Timer(PATIENCE + 5, _kill, (process,))
            patience.daemon = True
            patience.start()
            try:
                answer = _exchange(process, HEADER.pack(len(model), *options) + model)
            finally:
                patience.cancel()
        except (OSError, RuntimeError):
            pass  # no process or no thread can be started, or the process has died
        finally:
            if answer is None:  # also after an interrupt: the rest of the answer must not reach the next request
                self._stop()
        return answer

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _kill(process)
            process.communicate()

    def _forget(self) -> None:
        """Leave the process to the parent after a fork."""
        process, self._process, self._lock = self._process, None, threading.Lock()
        if process is not None:
            process.returncode = 0  # not a child of this process, which therefore cannot wait
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()


#: Constants up to this size are passed to inference, which reads shapes and axes from such constants.
_SMALL = 256

_SERVER = InferenceServer()


def check_shapes(proto: onnx.ModelProto, *, strict: bool) -> dict[str, onnx.TypeProto]:
    """Run inference on a sorted copy without the data of weights, and raise ModelError for operands that do not fit.

    Returns the inferred types of outputs that the file declares otherwise, which are errors if ``strict``.
    """
    model = ir.serde.deserialize_model(_without_weights(proto))
    for graph in (*graphs_of(model.graph), *model.functions.values()):
        graph.sort()
    copy = ir.serde.serialize_model(model)
    kind, answer = _inferred(copy, check_type=True, strict_mode=True)
    if kind != inference_process.MISFIT:
        return {}
    if not strict and (found := _undeclared_outputs(copy)):
        return found
    message = answer.decode(errors="replace")
    places = re.findall(r"\(op_type:(\w+)", message)
    if len(places) > 1 and places[0] not in {function.name for function in proto.functions}:
        return {}  # an error in ONNX's own function body of an operator, and not in the file
    raise ModelError(f"inconsistent shapes or types: {_plain(message)}; correct the file or export it again")


def _undeclared_outputs(proto: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """Return the inferred types of outputs in place of the types in the file; empty if nodes do not fit."""
    declared = {value.name: value.type.SerializeToString() for value in proto.graph.output}
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    kind, answer = _inferred(proto, check_type=True, strict_mode=True)
    if kind != inference_process.RESULT:
        return {}
    found = {value.name: value.type for value in onnx.ModelProto.FromString(answer).graph.output}
    return {
        name: inferred
        for name, inferred in found.items()
        if inferred.tensor_type.HasField("shape") and inferred.SerializeToString() != declared[name]
    }


def infer_shapes(model: ir.Model) -> None:
    """Set the shapes and types of values that inference finds."""
    proto = _without_weights(ir.serde.serialize_model(model))
    kind, answer = _inferred(proto, data_prop=True)
    if kind != inference_process.RESULT:
        return
    try:
        inferred_model = ir.serde.deserialize_model(onnx.ModelProto.FromString(answer))
    except (DecodeError, ir.serde.SerdeError):
        return
    for graph, inferred in zip(graphs_of(model.graph), graphs_of(inferred_model.graph), strict=False):
        values = {value.name: value for node in inferred for value in node.outputs}
        for value in (value for node in graph for value in node.outputs):
            known = values.get(value.name)
            if known is not None and known.shape is not None and known.dtype is not None:
                value.shape, value.dtype = known.shape, known.dtype


def _inferred(
    proto: onnx.ModelProto, *, check_type: bool = False, strict_mode: bool = False, data_prop: bool = False
) -> tuple[bytes, bytes]:
    """Return the kind and the content of an answer."""
    try:
        data = proto.SerializeToString()
    except (EncodeError, ValueError):
        data = b""
    too_large = not 0 < len(data) <= inference_process.MEMORY
    answer = b"" if too_large else _SERVER.ask(data, check_type, strict_mode, data_prop)
    return (answer[:1], answer[1:]) if answer else (inference_process.FAILURE, b"")


def _plain(message: str) -> str:
    """Format the messages of inference as ``node 'mm' (MatMul): Incompatible dimensions``."""
    text = re.sub(r"\[\w+\]\s*|Inference error\(s\):\s*", "", message)
    text = re.sub(r"\(op_type:(\w+), node name: ([^)]*)\)", r"node '\2' (\1)", text)
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())[:500]


def _without_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy in which large constants of the outer graph are inputs of the same types and shapes."""
    copy = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    graph = copy.graph
    graph.name = proto.graph.name
    graph.input.extend(proto.graph.input)
    graph.output.extend(proto.graph.output)
    inputs = {value.name for value in proto.graph.input}

    def is_left_out(name: str, tensor: onnx.TensorProto) -> bool:
        if sum(tensor.dims) <= _SMALL and tensor.data_location != onnx.TensorProto.EXTERNAL:
            return False
        if name not in inputs:
            graph.input.append(onnx.helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
        return True

    graph.initializer.extend(each for each in proto.graph.initializer if not is_left_out(each.name, each))
    for node in proto.graph.node:
        is_constant = is_of_onnx(node, "Constant") and node.output
        values = [each for each in node.attribute if each.name == "value" and each.HasField("t")] if is_constant else []
        if not values or not is_left_out(node.output[0], values[0].t):
            graph.node.append(node)
    return copy


def _started() -> subprocess.Popen[bytes]:
    if not sys.executable or getattr(sys, "frozen", False):
        raise OSError("a frozen program has no interpreter to start")
    command = [sys.executable, "-I", "-S", inference_process.__file__, str(onnx_cpp2py_export.__file__)]
    # A new process group can be killed with all forks, and does not receive interrupts of the terminal.
    return subprocess.Popen(
        command,
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        process_group=0 if _GROUPS else None,
    )


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        if _GROUPS:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _exchange(process: subprocess.Popen[bytes], request: bytes) -> bytes | None:
    """Send a request and return the answer, or None if the process ends before the answer is complete."""
    requests, answers = process.stdin, process.stdout
    assert requests is not None
    assert answers is not None
    view = memoryview(request)
    while view:
        view = view[requests.write(view) :]

    def received(count: int) -> bytes | None:
        content = b""
        while len(content) < count:
            part = answers.read(count - len(content))
            if not part:
                return None
            content += part
        return content

    header = received(LENGTH.size)
    return None if header is None else received(*LENGTH.unpack(header))
