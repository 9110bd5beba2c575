"""Recurrent layers over whole sequences: as operators, as ``Scan`` over a cell of plain operators, and one iteration.

All engines get a file of fixed sizes; PyTorch gets a module with the same weights.
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
from benchmarks.layers import GATES, name_of, onnx_layer, scan_layer, weights
from benchmarks.peers import READERS, Network, engine_module, is_installed, open_all
from benchmarks.plan import Cases, Plan, timed
from benchmarks.results import Row
from benchmarks.timing import Call

TITLE = "a layer over a sequence, NumPy in and out"
UNIT = "ms"

#: Hidden units of a layer in which only the iteration takes time, and the number of iterations.
TINY, MANY = 4, 2000

#: Hidden units, frames and batch of the layers.
SIZES = (
    (64, 50, 1),
    (64, 500, 1),
    (128, 50, 1),
    (128, 500, 1),
    (256, 50, 1),
    (256, 500, 1),
    (512, 500, 1),
    (64, 500, 32),
    (128, 500, 32),
    (256, 500, 32),
)


def cases(plan: Plan) -> Cases:
    """Return a case for each size: layers, cells as bodies of Scan, and training iterations of both."""
    sizes = SIZES[:1] if plan.quick else SIZES
    found: Cases = {}
    for kind, size in itertools.product(GATES, sizes):
        found[name_of(kind, *size)] = functools.partial(_layer, plan, kind, *size)
    for kind, size in itertools.product(GATES, sizes):
        if size[0] in (64, 256):
            found[name_of(f"{kind} as Scan", *size)] = functools.partial(_scan, plan, kind, *size)
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
    name = f"{kind}, one iteration" if each > 1 else name_of(kind, hidden, frames, batch)
    yield _row(plan, name, kind, onnx_layer(kind, hidden, frames, batch), x, peers, each)


def _scan(plan: Plan, kind: str, hidden: int, frames: int, batch: int, each: int = 1) -> Iterator[Row]:
    x = sequence(hidden, frames, batch)
    name = f"{kind} as Scan, one iteration" if each > 1 else name_of(f"{kind} as Scan", hidden, frames, batch)
    yield _row(plan, name, f"{kind} as Scan", scan_layer(kind, hidden, frames, batch), x, {}, each)


def sequence(hidden: int, frames: int, batch: int) -> np.ndarray:
    """Return a random array ``float32[frames, batch, hidden]``."""
    return np.random.default_rng(1).standard_normal((frames, batch, hidden), np.float32)


def _row(
    plan: Plan, name: str, kind: str, proto: onnx.ModelProto, x: np.ndarray, peers: dict[str, Call], each: int
) -> Row:
    model = jaxrnn.load(proto)
    compiled = jax.jit(functools.partial(_apply, model, model.params))
    arguments = jax.jit(functools.partial(_apply, model))
    packed = model.pack(model.params)
    calls: dict[str, Call] = {
        "jaxrnn": lambda: {"Y": np.asarray(compiled(x))},
        "jaxrnn, packed parameters passed": lambda: {"Y": np.asarray(arguments(packed, x))},
        "jaxrnn, parameters passed": lambda: {"Y": np.asarray(arguments(model.params, x))},
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layer.onnx"
        onnx.save(proto, path)
        # LiteRT reads no ONNX files.
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
