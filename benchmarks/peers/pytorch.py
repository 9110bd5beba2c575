"""PyTorch's recurrent layers: forward, and forward and backward, on the CPU or, through cuDNN, on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.peers import Arrays, Network, RefusedError

#: ONNX's gates in PyTorch's order: i, f, g, o of i, o, f, c; r, z, n of z, r, h.
ORDER = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}

_NAMES = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


def open_network(network: Network, threads: int) -> Any:
    """Refuse the network, because PyTorch reads no ONNX files."""
    raise RefusedError("PyTorch reads no ONNX files")


def has_cuda() -> bool:
    """Return True if PyTorch sees an NVIDIA GPU."""
    return torch.cuda.is_available()


class Layer:
    """One recurrent layer with the weights of an ONNX node; its input and output are ``[time, batch, features]``.

    Args:
        kind: ``LSTM``, ``GRU`` (whose reset gate is applied behind the product) or ``RNN`` (tanh).
        weights: ``W``, ``R`` and ``B`` of one direction, as the ONNX operator has them.
        threads: the number of threads.
        device: ``cpu`` or ``cuda``.
    """

    def __init__(self, kind: str, weights: Arrays, threads: int, device: str = "cpu"):
        torch.set_num_threads(threads)
        self._order, self._device = list(ORDER[kind]), device
        _, gates, inputs = weights["W"].shape
        self._layer = getattr(torch.nn, kind)(inputs, gates // len(self._order))
        parts = [weights["W"][0], weights["R"][0], *np.split(weights["B"][0], 2)]
        for name, array in zip(_NAMES, parts, strict=True):
            blocks = array.reshape(len(self._order), -1)[self._order]
            getattr(self._layer, name).data = torch.from_numpy(blocks.reshape(array.shape).copy())
        self._layer.to(device)

    def place(self, array: np.ndarray) -> Any:
        """Copy an array to the device of the layer."""
        return torch.from_numpy(array).to(self._device)

    def forward(self, x: Any) -> Any:
        """Return the outputs of all frames, computed without gradients and ready.

        A NumPy array returns NumPy; the result of `place` returns a tensor.
        """
        with torch.inference_mode():
            result = self._layer(torch.from_numpy(x) if isinstance(x, np.ndarray) else x)[0]
        self.wait()
        return result.numpy() if isinstance(x, np.ndarray) else result

    def train(self, x: Any, wanted: Any) -> dict[str, Any]:
        """Return gradients of the mean squared error: of the input, and of the weights by PyTorch's names.

        ``x`` is a result of `place` with ``requires_grad_``; ``wanted`` are the target outputs.
        """
        self._layer.zero_grad(set_to_none=True)
        x.grad = None
        loss = ((self._layer(x)[0] - wanted) ** 2).mean()
        loss.backward()
        self.wait()
        return {"X": x.grad, **{name: getattr(self._layer, name).grad for name in _NAMES}}

    def gradients(self, x: Any, wanted: Any) -> dict[str, np.ndarray]:
        """Return the result of `train` by ONNX's names and in ONNX's layout."""
        found = {name: grad.cpu().numpy() for name, grad in self.train(x, wanted).items()}
        back = np.argsort(self._order)
        w, r, *biases = (found[name].reshape(len(back), -1)[back].reshape(found[name].shape) for name in _NAMES)
        return {"X": found["X"], "W": w[None], "R": r[None], "B": np.concatenate(biases)[None]}

    def wait(self) -> None:
        """Wait for the GPU."""
        if self._device != "cpu":
            torch.cuda.synchronize()
