"""What becomes of a file, and a process that tries cases with little memory and little patience."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import jax
import numpy as np
import onnx

import jaxrnn
from fuzzing import cases, compiled
from jaxrnn.model.inspection import inspect_model
from jaxrnn.model.streaming import time_symbols
from jaxrnn.onnx.limits import Limits

#: Small enough that what they let through takes seconds: the limits themselves are under test.
LIMITS = Limits(value_bytes=2**26, constant_bytes=2**25, nodes=5_000, evaluations=5_000)
#: Inputs larger than this are the caller's doing, and none is made.
_LARGEST_INPUT = 100_000
#: What lies behind an error that says little: a mistake of ours, caught by chance and not on purpose.
_CLUMSY = (RecursionError, MemoryError, AttributeError, AssertionError, UnboundLocalError, KeyError)


class Defect(Exception):
    """Something other than a result or an error of the project."""


def try_file(source, *, size=2, streams=False, eager=False):
    """Try everything on one file.

    Args:
        source: what `jaxrnn.load` takes.
        size: of open dimensions.
        streams: also try to stream it.
        eager: also node by node.

    Returns:
        What came of each step, in words.

    Raises:
        Defect: another outcome.
    """
    said = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said["inspect"], _ = _tried("inspect", lambda: inspect_model(source, limits=LIMITS))
        said["load"], model = _tried("load", lambda: jaxrnn.load(source, limits=LIMITS))
        if model is None:
            return said
        said["state"], _ = _tried("state", lambda: model.state)
        inputs = sample(model, size)
        if inputs is not None:
            call = jax.jit(model.apply)
            with jax.enable_x64(size == 3):
                said["apply"], _ = _tried("apply", lambda: jax.block_until_ready(call(model.params, inputs)))
                if eager or said["apply"].startswith("StaticValueError"):
                    said["eager"], _ = _tried("eager", lambda: model.apply(model.params, inputs))
        if streams:
            for symbol in time_symbols(model)[:1]:
                said["stream"], _ = _tried("stream", lambda symbol=symbol: model.stream(symbol, None))
    return said


def try_compiled(data, *, batch):
    """Run a compiled file, as `try_file` runs an ONNX file, with this number of streams."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder, "compiled")
        path.write_bytes(data)
        said, stepper = _tried("load", lambda: jaxrnn.load_compiled(path))
        if stepper is None:
            return {"load": said}
        return {"load": said, "run": _tried("run", lambda: compiled.run(stepper, batch))[0]}


def try_other(named):
    """Read a file that is not a model, as a user would."""
    from fuzzing import files

    name, data = named
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name.partition("/")[0]: _tried(name, lambda: files.run(name, data))[0]}


#: The function that tries the cases of a kind, if they are not ONNX files.
TRIALS = {"compiled": try_compiled, "files": try_other}


def try_case(kind, source, how):
    """Try a case of `cases.make`, as `try_file` does."""
    return TRIALS.get(kind, try_file)(source, **how)


def sample(model, size):
    """Small inputs of the declared shapes; None where they would be large, or have no shape."""
    inputs = {}
    rng = np.random.default_rng(0)
    for info in model.inputs:
        if info.dtype is None or info.shape is None or info.dtype.kind in "OUS":
            return None
        shape = [each if isinstance(each, int) else size for each in info.shape]
        if any(each < 0 for each in shape) or np.prod(shape, dtype=float) > _LARGEST_INPUT:
            return None
        numbers = rng.integers(0, 3, shape) if info.dtype.kind in "iub" else rng.normal(size=shape)
        inputs[info.name] = np.asarray(numbers).astype(info.dtype)
    return inputs


def _tried(step, function):
    try:
        return "a result", function()
    except jaxrnn.JaxrnnError as error:
        _check_words(step, error)
        return f"{type(error).__name__}: {error}", None
    except Exception as error:
        raise Defect(f"{step}: {type(error).__name__}: {str(error)[:300]}") from error


def _check_words(step, error):
    cause = error
    for _ in range(20):  # JAX hangs its note on filtered tracebacks into the chain, at times in a circle
        if isinstance(cause, _CLUMSY):
            raise Defect(f"{step}: clumsy {type(cause).__name__}: {str(cause)[:200]}; as {str(error)[:300]}") from error
        cause = None if cause is None else cause.__cause__


def describe(source):
    """A file in words, for a report."""
    try:
        data = source.read_bytes() if isinstance(source, Path) else source
        proto = data if isinstance(data, onnx.ModelProto) else onnx.ModelProto.FromString(data)
        return onnx.printer.to_text(proto)[:1500]
    except Exception as error:
        return f"(not printable: {error}), {sys.getsizeof(source)} bytes"


MEMORY = 6 * 2**30


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("seed", type=int)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--seconds", type=float, default=20, help="of the processor, for one case")
    options = parser.parse_args()
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    signal.signal(signal.SIGPROF, _out_of_time)
    for number in range(options.first, options.first + options.count):
        say(at=number)
        before, peak = time.perf_counter(), _peak()
        try:
            source, how = cases.make(options.kind, options.seed, number)
            signal.setitimer(signal.ITIMER_PROF, options.seconds)
            try:
                said = try_case(options.kind, source, how)
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            outcome = {step: words.split(":")[0] for step, words in said.items()}
        except Defect as defect:
            cause = defect.__cause__
            lines = traceback.format_exception(cause)[-12:]
            outcome = {
                "defect": str(defect),
                "trace": "".join(lines)[-2500:],
                "model": "" if options.kind in TRIALS else describe(source),
            }
        took, grew = time.perf_counter() - before, _peak() - peak
        if grew > 2**30:
            outcome.setdefault("defect", f"{grew / 2**30:.1f} GiB were allocated")
        say(done=number, took=round(took, 3), **outcome)
        if number % 25 == 24:
            jax.clear_caches()
            gc.collect()


def _peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class OutOfTimeError(BaseException):
    """Nothing may catch this as an error of a node."""


def _out_of_time(*_):
    faulthandler.dump_traceback(file=sys.stderr)
    raise OutOfTimeError


def say(**facts):
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
