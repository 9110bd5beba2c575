"""LSTM layers with projections for PyTorch's TorchScript exporter, which cannot export these layers."""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def projected_lstm(layer: torch.nn.LSTM) -> Callable[..., Any]:
    """Return a function equal to ``layer.forward``, with a loop over frames that the exporter keeps."""
    import torch

    @torch.jit.script
    def run(
        x: torch.Tensor,
        h: torch.Tensor,
        c: torch.Tensor,
        w_ih: torch.Tensor,
        w_hh: torch.Tensor,
        bias: torch.Tensor,
        w_hr: torch.Tensor,
        backwards: bool,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        outputs: list[torch.Tensor] = []
        gates = torch.matmul(x, w_ih.t()) + bias
        if backwards:
            gates = gates.flip(0)
        for index in range(gates.size(0)):
            i, f, g, o = (gates[index] + torch.matmul(h, w_hh.t())).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.matmul(torch.sigmoid(o) * torch.tanh(c), w_hr.t())
            outputs.append(h)
        y = torch.stack(outputs)
        if backwards:
            y = y.flip(0)
        return y, h, c

    def forward(x: torch.Tensor, hx: tuple[torch.Tensor, torch.Tensor] | None = None) -> Any:
        single = x.dim() == 2
        frames = x.unsqueeze(1) if single else x.transpose(0, 1) if layer.batch_first else x
        count = layer.num_layers * (2 if layer.bidirectional else 1)
        if hx is None:
            h0 = frames.new_zeros(count, frames.shape[1], layer.proj_size)
            c0 = frames.new_zeros(count, frames.shape[1], layer.hidden_size)
        else:
            h0, c0 = (state.unsqueeze(1) if single else state for state in hx)
        hidden, cells = [], []
        for index in range(layer.num_layers):
            ends = []
            for backwards in (False, True)[: 1 + layer.bidirectional]:
                suffix = f"l{index}" + ("_reverse" if backwards else "")
                w_ih, w_hh = getattr(layer, f"weight_ih_{suffix}"), getattr(layer, f"weight_hh_{suffix}")
                bias = w_ih.new_zeros(w_ih.shape[0])
                if layer.bias:
                    bias = getattr(layer, f"bias_ih_{suffix}") + getattr(layer, f"bias_hh_{suffix}")
                place = len(hidden)
                w_hr = getattr(layer, f"weight_hr_{suffix}")
                y, h, c = run(frames, h0[place], c0[place], w_ih, w_hh, bias, w_hr, backwards)
                ends.append(y)
                hidden.append(h)
                cells.append(c)
            frames = torch.cat(ends, 2)
        last = torch.stack(hidden), torch.stack(cells)
        if single:
            return frames.squeeze(1), tuple(state.squeeze(1) for state in last)
        return frames.transpose(0, 1) if layer.batch_first else frames, last

    return forward
