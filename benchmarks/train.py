"""Forward and backward pass of one recurrent layer, beside PyTorch: gradients of the weights and of the input.

A layer goes to jaxrnn as an ONNX file with one node, to PyTorch as ``torch.nn.LSTM`` or ``torch.nn.GRU`` with the same
weights. Loss and gradients are compared before anything is timed.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import jaxrnn
from benchmarks.timing import Call, Timing, interleaved

#: ONNX's gates in PyTorch's order: i, f, g, o of i, o, f, c; r, z, n of z, r, h.
ORDER = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2)}

#: What gradients may differ by, relative to the largest value of each: sums of some 10^4 products in float32.
AGREEMENT = 1e-4


def sizes(quick: bool) -> list[tuple[str, int, int, int]]:
    """Operator, hidden units, frames and batch."""
    grid = itertools.product(("LSTM", "GRU"), (64, 128, 256), (100, 500), (8, 32))
    return [(kind, 128, 100, 8) for kind in ORDER] if quick else list(grid)


def weights(kind: str, hidden: int) -> dict[str, np.ndarray]:
    """Weights of one direction by ONNX's names, as PyTorch initialises them."""
    rng, gates = np.random.default_rng(0), len(ORDER[kind])
    shapes = {"W": (1, gates * hidden, hidden), "R": (1, gates * hidden, hidden), "B": (1, 2 * gates * hidden)}
    bound = hidden**-0.5
    return {name: rng.uniform(-bound, bound, shape).astype(np.float32) for name, shape in shapes.items()}


def onnx_layer(kind: str, hidden: int) -> onnx.ModelProto:
    """One node, its input and output ``[time, batch, hidden]``."""
    attributes: dict[str, Any] = {"hidden_size": hidden} | ({"linear_before_reset": 1} if kind == "GRU" else {})
    value = functools.partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT)
    graph = helper.make_graph(
        [helper.make_node(kind, ["X", "W", "R", "B"], ["Y"], **attributes)],
        "layer",
        [value("X", shape=["time", "batch", hidden])],
        [value("Y", shape=["time", 1, "batch", hidden])],
        [numpy_helper.from_array(array, name) for name, array in weights(kind, hidden).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class Here:
    """Loss and gradients by jaxrnn."""

    def __init__(self, kind: str, x: np.ndarray, wanted: np.ndarray):
        model = jaxrnn.load(onnx_layer(kind, x.shape[-1]))

        def loss(params: Any, x: jax.Array) -> jax.Array:
            return jnp.mean((model.apply(params, {"X": x})["Y"][:, 0] - wanted) ** 2)

        self._both = jax.jit(jax.value_and_grad(loss, (0, 1)))
        self._arguments = model.params, x

    def __call__(self) -> dict[str, Any]:
        """One forward and backward pass."""
        return jax.block_until_ready(self._both(*self._arguments))

    def gradients(self) -> dict[str, np.ndarray]:
        """The gradients of a pass by ONNX's names."""
        _, (params, inputs) = self()
        return {name: np.asarray(array) for name, array in {"X": inputs, **params}.items()}


class Torch:
    """Loss and gradients by PyTorch."""

    def __init__(self, torch: Any, kind: str, x: np.ndarray, wanted: np.ndarray):
        torch.set_num_threads(1)
        self._order, self._hidden = list(ORDER[kind]), x.shape[-1]
        self._layer = getattr(torch.nn, kind)(self._hidden, self._hidden)
        self._inputs, self._wanted = torch.from_numpy(x).requires_grad_(True), torch.from_numpy(wanted)
        given = weights(kind, self._hidden)
        parts = [given["W"][0], given["R"][0], *np.split(given["B"][0], 2)]
        for name, array in zip(self._names, parts, strict=True):
            blocks = array.reshape(len(self._order), -1)[self._order]
            getattr(self._layer, name).data = torch.from_numpy(blocks.reshape(array.shape))

    _names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")

    def __call__(self) -> dict[str, Any]:
        """One forward and backward pass."""
        self._layer.zero_grad(set_to_none=True)
        self._inputs.grad = None
        loss = ((self._layer(self._inputs)[0] - self._wanted) ** 2).mean()
        loss.backward()
        return {"loss": loss}

    def gradients(self) -> dict[str, np.ndarray]:
        """The gradients of a pass by ONNX's names."""
        self()
        back = np.argsort(self._order)
        w, r, *biases = (
            grad.reshape(len(back), -1)[back].reshape(grad.shape)
            for grad in (getattr(self._layer, name).grad.numpy() for name in self._names)
        )
        return {"X": self._inputs.grad.numpy(), "W": w[None], "R": r[None], "B": np.concatenate(biases)[None]}


def run(quick: bool) -> dict[str, dict[str, Timing | float]]:
    """Timings by layer and engine, with the largest difference between gradients, relative to the largest of each."""
    results: dict[str, dict[str, Timing | float]] = {}
    torch = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
    for kind, hidden, frames, batch in sizes(quick):
        rng = np.random.default_rng(1)
        x, wanted = (rng.normal(size=(frames, batch, hidden)).astype(np.float32) for _ in range(2))
        here = Here(kind, x, wanted)
        calls: dict[str, Call] = {"jaxrnn": here}
        apart = 0.0
        if torch is not None:
            peer = Torch(torch, kind, x, wanted)
            found = here.gradients()
            apart = max(
                float(np.max(np.abs(found[name] - grad)) / np.max(np.abs(grad)))
                for name, grad in peer.gradients().items()
            )
            if apart > AGREEMENT:
                raise RuntimeError(f"{kind}: the gradients differ by {apart}; nothing is timed that is not the same")
            calls["PyTorch"] = peer
        timings = interleaved(calls, rounds=3 if quick else 7, calls_a_round=2)
        results[f"{kind} H{hidden} T{frames} B{batch}"] = {**timings, "difference": apart}
    return results
