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
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax
import pytest
from jax._src import compiler
from jax._src.interpreters import mlir
from jaxlib.mlir import ir

#: Options of XLA that compile in half the time. Results are rounded in other places than with the fusion emitters.
_WANTED = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
#: Starts XLA, which reads its flags.
_START = "from jaxlib import xla_client; xla_client.make_cpu_client()"


def _flags(options: dict[str, Any]) -> str:
    return " ".join(f"--{name}={str(value).lower()}" for name, value in options.items())


def _fall_back(why: str) -> None:
    """Tell why tests take longer than usual. Pytest would make an error of a warning here."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"tests/quick_compiling.py: {why}", file=sys.stderr)


def _known(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that the installed XLA has.

    XLA ends a process that has an unknown flag, without an exception, and names all unknown flags. So another process
    tries them.
    """
    environment = {**os.environ, "XLA_FLAGS": _flags(options)}
    tried = subprocess.run([sys.executable, "-c", _START], env=environment, capture_output=True, text=True)
    if not tried.returncode:
        return options
    gone = [name for name in options if f"--{name}=" in tried.stderr]
    if not gone:
        raise RuntimeError(f"XLA does not start with the flags of the tests, {_flags(options)}:\n{tried.stderr}")
    _fall_back(f"this XLA has no option {', '.join(gone)}")
    return {name: value for name, value in options.items() if name not in gone}


QUICK = _known(_WANTED)
#: The options in the form of the variable XLA_FLAGS.
QUICK_COMPILER = _flags(QUICK)
#: The option that rounds as users do, in a process that compiles quickly; without options, this XLA always does.
EMITTERS = {name: True for name, value in QUICK.items() if value is False}
#: Options of XLA that compile as users do, in a process that compiles quickly.
OPTIMISED = {**EMITTERS, "xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
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
        _fall_back("JAX has no make_ir_context: each program has a context of its own")
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
        _fall_back("JAX has no compile_or_get_cached: equal programs are compiled again")
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
