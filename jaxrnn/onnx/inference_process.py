"""A script that runs ONNX's inference on models from standard input, each in a forked process.

    python -I -S inference_process.py LIBRARY

LIBRARY is the compiled part of onnx. The script loads this file by path, without the Python package and without NumPy,
which takes 30 ms instead of more than 100. A request is a `HEADER` with length and options, and a model. The answer is
a length and that many bytes. The first byte is `RESULT`, `MISFIT` or `FAILURE`; an empty answer means that inference
crashed.

A fork with limits answers each model in about a millisecond. On systems without ``fork``, a model may crash this
process. The process ends when its input closes.
"""

from __future__ import annotations

import os
import struct
import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from typing import Any

#: Kinds of answers: the model with inferred shapes; a message about operands that do not fit; another error message.
RESULT, MISFIT, FAILURE = b"=", b"!", b"?"

#: The length of a model, and whether to check types, to be strict, and to propagate data.
HEADER = struct.Struct("<Q???")
#: The length of an answer.
LENGTH = struct.Struct("<Q")

#: Limits of inference, far above the needs of a model without its weights. Hostile models stop there.
MEMORY, CPU_SECONDS = 2**30, 5
#: Seconds that inference may take on a busy machine.
PATIENCE = 60


def _limit() -> None:
    import resource
    import signal

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(PATIENCE)


def _inferred(onnx: Any, model: bytes, options: tuple[bool, ...]) -> bytes:
    try:
        return RESULT + onnx.shape_inference.infer_shapes(model, *options)
    except Exception as error:
        misfit = isinstance(error, onnx.shape_inference.InferenceError)
        return (MISFIT if misfit else FAILURE) + str(error).encode(errors="replace")


def _inferred_by_fork(onnx: Any, model: bytes, options: tuple[bool, ...]) -> bytes:
    source, target = os.pipe()
    child = os.fork()
    if not child:
        try:
            _limit()
            with os.fdopen(target, "wb") as pipe:
                pipe.write(_inferred(onnx, model, options))
            os._exit(0)
        finally:
            os._exit(1)
    os.close(target)
    with os.fdopen(source, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    return b"" if status else answer


def _main(library: str) -> None:
    loader = ExtensionFileLoader("onnx_cpp2py_export", library)
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None, "a loader was given"
    onnx = module_from_spec(spec)
    loader.exec_module(onnx)
    onnx.defs.has_schema("Identity", "")  # create the table of operators here, and not in each fork
    infer = _inferred_by_fork if hasattr(os, "fork") else _inferred
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    while len(header := requests.read(HEADER.size)) == HEADER.size:
        length, *options = HEADER.unpack(header)
        answer = infer(onnx, requests.read(length), tuple(options))
        answers.write(LENGTH.pack(len(answer)) + answer)
        answers.flush()


if __name__ == "__main__":
    _main(*sys.argv[1:])
