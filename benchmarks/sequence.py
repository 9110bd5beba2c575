"""Recurrent layers over whole sequences: as operators, as ``Scan`` over a cell of plain operators, and one iteration.

A layer goes to all engines as a file of fixed sizes, to PyTorch as a module with the same weights.
"""

from __future__ import annotations

import functools
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx

import jaxrnn
from benchmarks.layers import GATES, onnx_layer, scan_layer, weights
from benchmarks.peers import READERS, Network, engine_module, is_installed, open_all
from benchmarks.plan import Cases, Plan, timed
from benchmarks.results import Row
from benchmarks.timing import Call

TITLE = "a layer over a sequence, NumPy in and out"
UNIT = "ms"

#: Hidden units of a layer in which nothing but the iteration itself takes time, and how many iterations.
TINY, MANY = 4, 2000


def cases(plan: Plan) -> Cases:
    """A size each: layers, cells as bodies of Scan, and iterations of both."""
    hidden, frames, batches = ((64, 128), (50,), (1,)) if plan.quick else ((64, 128, 256, 512), (50, 500), (1, 32))
    found: Cases = {}
    for kind, h, t, b in itertools.product(GATES, hidden, frames, batches):
        found[f"{kind} H{h} T{t} B{b}"] = functools.partial(_layer, plan, kind, h, t, b)
    for kind, h, t, b in itertools.product(GATES, hidden[:1] if plan.quick else (64, 256), frames, batches):
        found[f"{kind} as Scan H{h} T{t} B{b}"] = functools.partial(_scan, plan, kind, h, t, b)
    many = MANY // 10 if plan.quick else MANY
    for kind in GATES:
        found[f"{kind}, one iteration"] = functools.partial(_layer, plan, kind, TINY, many, 1, each=many)
        found[f"{kind} as Scan, one iteration"] = functools.partial(_scan, plan, kind, TINY, many, 1, each=many)
    return found


def _layer(plan: Plan, kind: str, hidden: int, frames: int, batch: int, each: int = 1) -> Iterator[Row]:
    x = sequence(hidden, frames, batch)
    peers: dict[str, Call] = {}
    if is_installed("PyTorch"):
        module = engine_module("PyTorch").Layer(kind, weights(kind, hidden), plan.threads)
        peers["PyTorch"] = lambda: {"Y": module.forward(x)}
    name = f"{kind}, one iteration" if each > 1 else f"{kind} H{hidden} T{frames} B{batch}"
    yield _row(plan, name, kind, onnx_layer(kind, hidden, frames, batch), x, peers, each)


def _scan(plan: Plan, kind: str, hidden: int, frames: int, batch: int, each: int = 1) -> Iterator[Row]:
    x = sequence(hidden, frames, batch)
    name = f"{kind} as Scan, one iteration" if each > 1 else f"{kind} as Scan H{hidden} T{frames} B{batch}"
    yield _row(plan, name, f"{kind} as Scan", scan_layer(kind, hidden, frames, batch), x, {}, each)


def sequence(hidden: int, frames: int, batch: int) -> np.ndarray:
    """Random ``float32[frames, batch, hidden]``."""
    return np.random.default_rng(1).standard_normal((frames, batch, hidden), np.float32)


def _row(
    plan: Plan, name: str, kind: str, proto: onnx.ModelProto, x: np.ndarray, peers: dict[str, Call], each: int
) -> Row:
    model = jaxrnn.load(proto)
    compiled, arguments = (
        jax.jit(function, compiler_options=jaxrnn.compiler_options())
        for function in (
            lambda x: _apply(model, model.pack(model.params), x),
            functools.partial(_apply, model),
        )
    )
    calls: dict[str, Call] = {
        "jaxrnn": lambda: {"Y": np.asarray(compiled(x))},
        "jaxrnn, parameters passed": lambda: {"Y": np.asarray(arguments(model.params, x))},
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layer.onnx"
        onnx.save(proto, path)
        # Without LiteRT, which reads no ONNX files.
        readers = [engine for engine in READERS if engine != "LiteRT"]
        opened, refused = open_all(Network(path, {"X": x}, ("Y",), ("Y",)), plan.threads, readers)
        calls |= {engine: functools.partial(stepper, {"X": x}) for engine, stepper in opened.items()}
        calls |= peers
        group = f"{kind}, one iteration" if each > 1 else kind
        row = timed(name, group, calls, plan.effort(11), refused=refused, each=each)
    if each > 1:
        row.unit = "us"
    return row


def _apply(model: jaxrnn.Model, params: Any, x: jax.Array) -> jax.Array:
    return model.apply(params, {"X": x})["Y"]
