"""Reading compiled files: `load_compiled`."""

from __future__ import annotations

import os
import warnings

from jaxrnn.runtime.compiled.format import read
from jaxrnn.runtime.compiled.stepper import CompiledStepper


def load_compiled(path: str | os.PathLike[str], *, native: bool = False) -> CompiledStepper:
    """Read a file that `save_compiled` wrote. Neither onnx nor tracing of the model is needed.

    The digest in a file tells damage. It is no signature: whoever can write the file can write the digest. Run compiled
    files only from whom you trust, as you would a program. That holds for machine code above all: JAX compiles the
    portable part and sees what it compiles, but machine code runs as it is, with all rights of the process.

    Example::

        jaxrnn.save_compiled(model, "denoiser.jaxrnn", dims={"time": 1})
        run = jaxrnn.Runner(jaxrnn.load_compiled("denoiser.jaxrnn"))

    Args:
        path: where it is.
        native: whether to run the machine code of the file, where it holds some for this machine; otherwise it is not
            read at all. Where it does not, a `UserWarning` says why, and the functions are compiled from the portable
            part. A call for which there is none, such as a scan, is compiled in any case.

    Raises:
        ModelError: no such file, another kind of file, or one that has been damaged or makes no sense. When a function
            is first called: it was compiled for another platform, or by a JAX that this one cannot read.
    """
    found = read(path, native)
    if native and found.native is None:
        warnings.warn(
            f"{os.fspath(path)} holds no machine code, so its functions are compiled here: write it with native=True",
            stacklevel=2,
        )
    return CompiledStepper(found)
