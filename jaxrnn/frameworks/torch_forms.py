"""Functions of PyTorch that the TorchScript exporter refuses, written with functions that the exporter takes.

An entry of `FORMS` is a plain function with the arguments of the function in PyTorch. To add an entry, write the
function with slices, products and sums, so that open sizes stay open. `int(x.shape[axis])` makes a size a number.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from jaxrnn.errors import ModelError


def _along(dim: int, rank: int, part: slice) -> tuple[slice, ...]:
    """Return an index that cuts one axis."""
    return tuple(part if axis == dim % rank else slice(None) for axis in range(rank))


def _diff(
    input: torch.Tensor,
    n: int = 1,
    dim: int = -1,
    prepend: torch.Tensor | None = None,
    append: torch.Tensor | None = None,
) -> torch.Tensor:
    """`torch.diff` as differences of slices."""
    parts = [each for each in (prepend, input, append) if each is not None]
    x = torch.cat(parts, dim) if len(parts) > 1 else input
    for _ in range(n):
        later, earlier = (x[_along(dim, x.dim(), part)] for part in (slice(1, None), slice(None, -1)))
        x = torch.logical_xor(later, earlier) if x.dtype == torch.bool else later - earlier
    return x


def _cumsum(input: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """`torch.cumsum` of booleans and small integers as a sum of integers of 64 bits, as PyTorch computes."""
    small = not input.dtype.is_floating_point and not input.dtype.is_complex
    return torch.cumsum(input.to(torch.int64) if small and dtype is None else input, dim, dtype=dtype)


def _unfold(input: torch.Tensor, dimension: int, size: int, step: int) -> torch.Tensor:
    """`torch.Tensor.unfold` as a stack of slices with a step, one for each place of a window."""
    ends = (slice(place, place - size + 1 or None, step) for place in range(size))
    return torch.stack([input[_along(dimension, input.dim(), part)] for part in ends], -1)


def _histc(input: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> torch.Tensor:
    """`torch.histc` as sums of comparisons; numbers outside of the range are not counted."""
    if min >= max:
        raise ModelError("torch.histc with the range of the data has no other form here; give `min` and `max`")
    x = input.reshape(-1, 1)
    places = torch.clamp(torch.floor((x - min) * bins / (max - min)), max=bins - 1)
    counted = (places == torch.arange(bins).to(x)) & (x >= min) & (x <= max)
    return counted.to(input.dtype).sum(0)


def _solve_triangular(
    A: torch.Tensor, B: torch.Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> torch.Tensor:
    """`torch.linalg.solve_triangular` by substitution, one half of the rows after the other."""
    if not left:
        return _solve_triangular(A.mT, B.mT, upper=not upper, unitriangular=unitriangular).mT
    rows = int(A.shape[-1])
    if rows == 1:
        return B if unitriangular else B / A
    cut = rows // 2
    low, high = slice(None, cut), slice(cut, None)
    first, second = (high, low) if upper else (low, high)
    options = {"upper": upper, "unitriangular": unitriangular}
    known = _solve_triangular(A[..., first, first], B[..., first, :], **options)
    rest = B[..., second, :] - torch.matmul(A[..., second, first], known)
    solved = _solve_triangular(A[..., second, second], rest, **options)
    return torch.cat([solved, known] if upper else [known, solved], -2)


def _repeat_interleave(input: torch.Tensor, repeats: Any, dim: int | None = None, **options: Any) -> torch.Tensor:
    """`torch.repeat_interleave` by a number as a new axis that is merged."""
    if dim is None or (isinstance(repeats, torch.Tensor) and repeats.dim()):
        return torch.repeat_interleave(input, repeats, dim, **options)
    axis = dim % input.dim()
    sizes = [-1] * (axis + 1) + [int(repeats)] + [-1] * (input.dim() - axis - 1)
    return input.unsqueeze(axis + 1).expand(sizes).flatten(axis, axis + 1)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *arguments: Any,
    enable_gqa: bool = False,
    **options: Any,
) -> torch.Tensor:
    """`scaled_dot_product_attention` with a head of keys and values for each head of queries."""
    if enable_gqa:
        count = int(query.shape[-3]) // int(key.shape[-3])
        key, value = (_repeat_interleave(each, count, -3) for each in (key, value))
    return functional.scaled_dot_product_attention(query, key, value, *arguments, **options)


def _fold(
    input: torch.Tensor, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> torch.Tensor:
    """`torch.nn.functional.fold` as a transposed convolution, for sizes that depend on the input."""
    pairs = [
        each if isinstance(each, tuple | list) else (each, each) for each in (kernel_size, dilation, padding, stride)
    ]
    kernel, spread, pads, steps = (tuple(map(int, pair)) for pair in pairs)
    height, width = output_size if isinstance(output_size, tuple | list) else (output_size, output_size)
    if input.dim() < 3 or not any(isinstance(each, torch.Tensor) for each in (height, width)):
        return functional.fold(input, (height, width), kernel, spread, pads, steps)
    count, rows = kernel[0] * kernel[1], int(input.shape[1])
    columns = (width + 2 * pads[1] - spread[1] * (kernel[1] - 1) - 1) // steps[1] + 1
    basis = torch.eye(count).to(input).reshape(count, 1, *kernel).repeat(rows // count, 1, 1, 1)
    x = input.reshape(input.shape[0], rows, -1, columns)
    sums = functional.conv_transpose2d(x, basis, stride=steps, groups=rows // count, dilation=spread)
    sums = functional.pad(sums, (0, steps[1], 0, steps[0]))
    return sums[:, :, pads[0] : pads[0] + height, pads[1] : pads[1] + width]


def _group_norm(input: torch.Tensor, num_groups: Any, *arguments: Any, **options: Any) -> torch.Tensor:
    """`torch.nn.functional.group_norm` with the number of groups as an integer, which the exporter needs."""
    return functional.group_norm(input, int(num_groups), *arguments, **options)


@torch.jit.script
def _log_sums(x: torch.Tensor) -> torch.Tensor:
    """Return the logarithms of running sums of exponentials along the first axis, as a loop that stays a loop."""
    total = torch.full_like(x[0], -float("inf"))
    outputs: list[torch.Tensor] = []
    for index in range(x.size(0)):
        frame = x[index]
        largest = torch.maximum(total, frame)
        largest = torch.where(torch.isinf(largest), torch.zeros_like(largest), largest)
        total = largest + torch.log(torch.exp(total - largest) + torch.exp(frame - largest))
        outputs.append(total)
    return torch.stack(outputs)


def _logcumsumexp(input: torch.Tensor, dim: int) -> torch.Tensor:
    """`torch.logcumsumexp` as a loop."""
    return _log_sums(input.movedim(dim, 0)).movedim(0, dim)


class FrameWrites:
    """Tensors into which a loop writes each frame, ``y[:, t] = frame``, as stacks of these frames.

    The exporter would write an operation on the whole tensor for each frame. Frames are kept until another function
    reads the tensor. If some frames are missing then, the assignments are made as they were written.
    """

    def __init__(self) -> None:
        #: By the identity of the tensor: the tensor, the axis, and the frames that are written.
        self._frames: dict[int, tuple[torch.Tensor, int, dict[int, torch.Tensor]]] = {}
        #: Tensors with all frames, and the stacks.
        self._stacks: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def keep(self, x: Any, key: Any, value: Any) -> bool:
        """Keep a frame, or return False if the assignment is another one."""
        *whole, frame = key if isinstance(key, tuple) else (key,)
        if type(frame) is not int or frame < 0 or any(each != slice(None) for each in whole):
            return False
        if not isinstance(value, torch.Tensor) or value.dim() != x.dim() - 1 or id(x) in self._stacks:
            return False
        _, axis, frames = self._frames.setdefault(id(x), (x, len(whole), {}))
        if axis == len(whole):
            frames[frame] = self.read(value).clone()  # the tensor may change afterwards
        return axis == len(whole)

    def read(self, value: Any) -> Any:
        """Return an argument of a function, with stacks in place of tensors whose frames are written."""
        if type(value) in (list, tuple):
            return type(value)(map(self.read, value))
        if id(value) in self._frames:
            x, axis, frames = self._frames.pop(id(value))
            if sorted(frames) == [*range(int(x.shape[axis]))]:
                stack = torch.stack([frames[number] for number in sorted(frames)], axis)
                self._stacks[id(x)] = x, stack if stack.dtype == x.dtype else stack.to(x.dtype)
            else:
                for number, frame in frames.items():
                    x[(slice(None),) * axis + (number,)] = frame
        return self._stacks[id(value)][1] if id(value) in self._stacks else value


#: The forms, keyed by the functions of PyTorch.
FORMS: dict[Any, Callable[..., Any]] = {
    torch.diff: _diff,
    torch.Tensor.diff: _diff,
    torch.cumsum: _cumsum,
    torch.Tensor.cumsum: _cumsum,
    torch.Tensor.unfold: _unfold,
    torch.histc: _histc,
    torch.Tensor.histc: _histc,
    torch.linalg.solve_triangular: _solve_triangular,
    torch.repeat_interleave: _repeat_interleave,
    torch.Tensor.repeat_interleave: _repeat_interleave,
    torch.logcumsumexp: _logcumsumexp,
    torch.Tensor.logcumsumexp: _logcumsumexp,
    functional.fold: _fold,
    functional.group_norm: _group_norm,
    functional.scaled_dot_product_attention: _attention,
}
