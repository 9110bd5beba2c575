"""How the tests compile: nearly all their time goes into lowering and compiling programs that run once.

Processes that tests start, those of commands among them, compile as users do, but where their programs are not the
matter (`QUICK_ENVIRONMENT`).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax
import pytest
from jax._src import compiler
from jax._src.interpreters import mlir
from jaxlib.mlir import ir

_TRY = "import os, sys; os.environ['XLA_FLAGS'] = sys.argv[1]; import jax; jax.devices()"
_EMITTERS, _ONE_PART = "xla_cpu_use_fusion_emitters", "xla_cpu_parallel_codegen_split_count"


def _known_flags() -> str:
    """Return the flags of XLA that compile quickly, without those that the installed XLA does not know.

    XLA ends a process that has an unknown flag, so another process tries them; processes that it starts inherit the
    answer.
    """
    if "JAXRNN_TEST_FLAGS" not in os.environ:
        flags = [f"--{_EMITTERS}=false", f"--{_ONE_PART}=1"]
        tried = [subprocess.run([sys.executable, "-c", _TRY, each], capture_output=True, text=True) for each in flags]
        for flag, process in zip(flags, tried, strict=True):
            if process.returncode:
                print(f"tests compile without {flag}: {process.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        known = [flag for flag, process in zip(flags, tried, strict=True) if not process.returncode]
        os.environ["JAXRNN_TEST_FLAGS"] = " ".join(known)
    return os.environ["JAXRNN_TEST_FLAGS"]


#: XLA without its fusion emitters compiles in half the time. Results are rounded in other places.
QUICK_COMPILER = _known_flags()
#: Options of XLA that compile as users do, in a process that compiles quickly.
OPTIMISED: dict[str, Any] = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
if _EMITTERS in QUICK_COMPILER:
    OPTIMISED[_EMITTERS] = True
#: For processes that a test starts: they compile as the tests do.
QUICK_ENVIRONMENT = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "XLA_FLAGS": QUICK_COMPILER}
#: Lowerings that share a context, which keeps their constants in memory.
_SHARED_BY = 100
#: Executables that `compile_once` keeps.
_KEPT = 500


def compile_quickly() -> None:
    """For this process: fewer optimisations, contexts that are shared, and no tracebacks in programs."""
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_traceback_in_locations_limit", 0)
    if (make_context := getattr(mlir, "make_ir_context", None)) is None:
        warnings.warn("JAX has no make_ir_context: each program has a context of its own", stacklevel=2)
    else:
        mlir.make_ir_context = _shared(make_context)
    flags = os.environ.get("XLA_FLAGS")
    os.environ["XLA_FLAGS"] = f"{QUICK_COMPILER} {flags or ''}"
    jax.devices()  # XLA reads its flags here, once
    if flags is None:
        del os.environ["XLA_FLAGS"]
    else:
        os.environ["XLA_FLAGS"] = flags


def as_users_compile(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the results of a function that is compiled with the optimisations that `compile_quickly` leaves out."""
    return jax.jit(function, compiler_options=OPTIMISED)(*arguments)


def _shared(make_context: Callable[[], Any]) -> Callable[[], Any]:
    """JAX makes a context of MLIR for every program that it lowers, in four times the time of a small program.

    A program that is lowered while another one is has a context of its own: it would become part of the other.
    """
    kept = threading.local()

    def context() -> Any:
        if ir.Context.current is not None:
            return make_context()
        uses = getattr(kept, "uses", 0)
        if uses % _SHARED_BY == 0:
            kept.context = make_context()
        kept.uses = uses + 1
        return kept.context

    return context


def compile_once() -> None:
    """For this process: equal programs share an executable, of the last ones that were compiled.

    JAX's cache in files does the same at ten times the price, which is more than it saves where all is new.
    """
    jax.config.update("jax_compilation_cache_dir", None)  # which a worker has from the process that started it
    compile_new = getattr(compiler, "compile_or_get_cached", None)
    if compile_new is None:
        warnings.warn("JAX has no compile_or_get_cached: equal programs are compiled again", stacklevel=2)
        return
    kept: OrderedDict[bytes, Any] = OrderedDict()

    def compiled(backend: Any, module: ir.Module, devices: Any, options: Any, callbacks: Any, *rest: Any) -> Any:
        if callbacks or jax.config.jax_compilation_cache_dir:
            return compile_new(backend, module, devices, options, callbacks, *rest)
        places = repr([device.id for device in devices.flat]).encode()
        content = mlir.module_to_bytecode(module) + options.SerializeAsString() + places
        key = hashlib.sha256(content).digest()
        if key in kept:
            kept.move_to_end(key)
        else:
            kept[key] = compile_new(backend, module, devices, options, callbacks, *rest)
            if len(kept) > _KEPT:
                kept.popitem(last=False)
        return kept[key]

    compiler.compile_or_get_cached = compiled


def keep_compiled(config: pytest.Config) -> None:
    """Let the processes that tests start share their programs, in pytest's own folder."""
    if hasattr(config, "cache"):
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(config.cache.mkdir("compiled"))
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
