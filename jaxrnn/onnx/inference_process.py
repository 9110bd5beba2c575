"""A script of its own: ONNX's inference over the model on standard input, in a process that a file may bring down.

    python -I -S inference_process.py LIBRARY CHECK_TYPE STRICT_MODE DATA_PROP

LIBRARY is the compiled part of onnx. It is loaded by its path, without the package around it and without NumPy, which
takes 30 ms in place of some hundred. The first byte of the answer says what follows it: `RESULT`, `MISFIT`, or
`FAILURE`. There may be no answer, and that is what this process is for.
"""

from __future__ import annotations

import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader

#: The model with inferred shapes; what does not fit, in words; why inference gave up, in words.
RESULT, MISFIT, FAILURE = b"=", b"!", b"?"

#: What a model without its weights needs for inference is far below these, and hostile ones stop there.
MEMORY, CPU_SECONDS = 2**30, 5


def _limit() -> None:
    try:
        import resource
    except ImportError:
        return  # not on Windows, where the caller's patience alone limits it
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _main(library: str, *options: str) -> None:
    _limit()
    loader = ExtensionFileLoader("onnx_cpp2py_export", library)
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None, "a loader was given"
    onnx = module_from_spec(spec)
    loader.exec_module(onnx)
    model = sys.stdin.buffer.read()
    try:
        answer = RESULT + onnx.shape_inference.infer_shapes(model, *(option == "True" for option in options))
    except Exception as error:
        misfit = isinstance(error, onnx.shape_inference.InferenceError)
        answer = (MISFIT if misfit else FAILURE) + str(error).encode(errors="replace")
    sys.stdout.buffer.write(answer)


if __name__ == "__main__":
    _main(*sys.argv[1:])
