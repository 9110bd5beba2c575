"""TorchStream beside jaxrnn on two PyTorch networks: ``taskset -c 0 python -m benchmarks.torch_streams``.

Needs ``pip install -e '.[torch]' torchstream-lib``. The vocoder has a finite receptive field; the CRN has a GRU over
time. Times are the shortest of repeated chunks; docs/comparison.md shows these times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torchstream import SeqSpec, SlidingWindowStream, find_sliding_window_params, intercept_calls

import jaxrnn

FRAMES, ROUNDS = 384, 20


class Vocoder(nn.Module):
    """Mel spectrogram ``[1, 80, frames]`` to ``[1, 1, 64 * frames]`` samples, a small network like HiFi-GAN."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.first = nn.Conv1d(80, width, 7, padding=3)
        self.ups, self.dilated, self.plain = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for _ in range(2):
            self.ups.append(nn.ConvTranspose1d(width, width // 2, 16, 8, padding=4))
            width //= 2
            self.dilated.append(nn.ModuleList(nn.Conv1d(width, width, 3, padding=d, dilation=d) for d in (1, 3, 5)))
            self.plain.append(nn.ModuleList(nn.Conv1d(width, width, 3, padding=1) for _ in range(3)))
        self.last = nn.Conv1d(width, 1, 7, padding=3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the samples."""
        x = self.first(x)
        for up, dilated, plain in zip(self.ups, self.dilated, self.plain, strict=True):
            x = up(functional.leaky_relu(x, 0.1))
            for one, two in zip(dilated, plain, strict=True):  # type: ignore[arg-type]
                x = x + two(functional.leaky_relu(one(functional.leaky_relu(x, 0.1)), 0.1))
        return torch.tanh(self.last(functional.leaky_relu(x, 0.1)))


class CRN(nn.Module):
    """Magnitudes ``[1, 129, frames]`` to masks: convolutions with two frames of look-ahead, and a GRU over time."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 16, (3, 5), stride=(1, 2), padding=(1, 2))
        self.second = nn.Conv2d(16, 16, (3, 5), stride=(1, 2), padding=(1, 2))
        self.gru = nn.GRU(16 * 33, 128, batch_first=True)
        self.up = nn.Linear(128, 16 * 33)
        self.third = nn.ConvTranspose2d(16, 16, (1, 5), stride=(1, 2), padding=(0, 2))
        self.last = nn.ConvTranspose2d(16, 1, (1, 5), stride=(1, 2), padding=(0, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the masks."""
        x = functional.elu(self.second(functional.elu(self.first(x.transpose(1, 2).unsqueeze(1)))))
        batch, channels, frames, bands = x.shape
        x, _ = self.gru(x.permute(0, 2, 1, 3).reshape(batch, frames, channels * bands))
        x = functional.elu(self.up(x)).reshape(batch, frames, channels, bands).permute(0, 2, 1, 3)
        return torch.sigmoid(self.last(functional.elu(self.third(x)))).squeeze(1).transpose(1, 2)


def shortest(chunks: Iterable[np.ndarray | torch.Tensor], step: Callable[[], Callable]) -> float:
    """Return the shortest milliseconds of a chunk in the second half of a recording."""
    chunks, times = list(chunks), []
    for _ in range(ROUNDS):
        run = step()
        for place, chunk in enumerate(chunks):
            began = time.perf_counter()
            run(chunk)
            if 2 * place >= len(chunks):
                times.append(time.perf_counter() - began)
    return 1e3 * min(times)


def by_torchstream(network: nn.Module, x: torch.Tensor, channels: int, sizes: Iterable[int], patched: bool) -> None:
    """Print TorchStream's analysis and the time of a chunk, or the reason for a refusal."""
    ins, outs = SeqSpec(1, x.shape[1], -1), SeqSpec(1, channels, -1)
    began = time.perf_counter()
    try:
        if patched:
            with intercept_calls("torch.nn.GRU.forward", lambda self, y, h=None: (y[..., : self.hidden_size], None)):
                found = find_sliding_window_params(network, ins, outs)[0]
        else:
            found = find_sliding_window_params(network, ins, outs)[0]
    except RuntimeError as error:
        print(f"  TorchStream refuses after {time.perf_counter() - began:.1f} s: {error}")
        return
    print(f"  TorchStream: {time.perf_counter() - began:.1f} s, delay {found.output_delay_bounds}, "
          f"window {found.streaming_context_size} frames")  # fmt: skip
    whole = network(x)
    for size in sizes:
        stream = SlidingWindowStream(network, found, ins, outs)
        pieces = torch.cat([piece.data[0] for piece in stream.forward_in_chunks_iter(x, chunk_size=size)], -1)

        def step() -> Callable:
            fresh = SlidingWindowStream(network, found, ins, outs)
            return lambda chunk: fresh(chunk, allow_zero_size_outputs=True)

        took = shortest(x.split(size, -1), step)
        print(f"    chunk of {size}: {took:.3f} ms, largest difference {(pieces - whole).abs().max():.1e}")


class _Run:
    """A runner that takes the array of one input."""

    def __init__(self, runner: jaxrnn.Runner, name: str):
        self.runner, self.name = runner, name

    def same(self) -> _Run:
        """Return this runner: the time of a step does not depend on the position in a recording."""
        return self

    def __call__(self, chunk: np.ndarray) -> None:
        self.runner({self.name: chunk})


def by_jaxrnn(network: nn.Module, x: torch.Tensor, sizes: Iterable[int]) -> None:
    """Print the delay of the stream and the time of a chunk."""
    began = time.perf_counter()
    model = jaxrnn.from_torch(network, x[..., :40], time=2)
    print(f"  jaxrnn: from_torch {time.perf_counter() - began:.1f} s")
    whole, (name,) = network(x).numpy(), [each.name for each in model.inputs]
    for size in sizes:
        streamed = model.stream("time", pulse=size)
        (out,) = streamed.run(model.params, {name: x.numpy()}).values()
        run = _Run(jaxrnn.Runner(streamed, model.params), name)
        took = shortest([chunk.numpy() for chunk in x.split(size, -1)], run.same)
        print(f"    chunk of {size}: {took:.3f} ms, largest difference {np.abs(out - whole).max():.1e}, "
              f"delay {dict(streamed.delay)}")  # fmt: skip


def main() -> None:
    """Compare both tools on both networks."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with torch.inference_mode():
        for network, channels, out, sizes in ((Vocoder(), 80, 1, (8, 32)), (CRN(), 129, 129, (1, 8))):
            network, x = network.eval(), torch.rand(1, channels, FRAMES)
            weights = sum(weight.numel() for weight in network.parameters())
            print(f"{type(network).__name__}: {weights:,} weights")
            by_torchstream(network, x, out, sizes, patched=False)
            if isinstance(network, CRN):
                print("  TorchStream with the GRU taken out for the search:")
                by_torchstream(network, x, out, sizes, patched=True)
            by_jaxrnn(network, x, sizes)


if __name__ == "__main__":
    main()
