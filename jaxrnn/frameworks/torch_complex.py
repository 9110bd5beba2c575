"""Complex numbers of PyTorch as pairs of real tensors, and other functions, in forms that the exporter writes."""

# pyright: reportMissingImports=false

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from jaxrnn.errors import ModelError

#: Functions that move or add elements, and so act on the real and the imaginary part alike.
_BY_PARTS = re.compile(
    "transpose|permute|reshape|view|unsqueeze|squeeze|flatten|contiguous|clone|detach|movedim|swapaxes|unflatten|flip|"
    "roll|narrow|select|index_select|expand|repeat|repeat_interleave|chunk|split|unbind|pad|sum|mean|neg|cat|stack|t|"
    "__getitem__|diff|broadcast_to"
)
#: The name under which a function is written here, by its other names in PyTorch.
_NAMES = {
    "fft_irfft": "irfft",
    "multiply": "mul",
    "subtract": "sub",
    "divide": "div",
    "true_divide": "div",
    "absolute": "abs",
    "truediv": "div",
}


class ComplexTensor:
    """A complex tensor while a module is traced: the real and the imaginary part."""

    def __init__(self, real: torch.Tensor, imag: torch.Tensor):
        self.real, self.imag = torch.broadcast_tensors(real, imag)
        self.shape, self.ndim, self.device, self.dtype = real.shape, real.ndim, real.device, torch.complex64

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **options: _apply(name, (self, *arguments), options)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        return _apply(function.__name__, arguments, options or {}, function)


def _operator(name: str) -> Callable[..., Any]:
    return lambda self, *arguments: _apply(name, (self, *arguments), {})


for _name in ("mul", "add", "sub", "truediv", "rmul", "radd", "rsub", "rtruediv", "pow", "neg", "abs", "getitem"):
    setattr(ComplexTensor, f"__{_name}__", _operator(f"__{_name}__"))


class RealForms(TorchFunctionMode):
    """Runs complex functions of PyTorch on pairs of real tensors: transforms, arithmetic, magnitudes and phases."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in _MAKERS and not (name == "stft" and options.get("return_complex") is False):
            return _MAKERS[name](*args, **options)
        if any(isinstance(each, ComplexTensor | complex) for each in _operands(args)):
            return _apply(name, args, options, func)
        return func(*args, **options)


def _operands(arguments: Sequence[Any]) -> list[Any]:
    return [leaf for each in arguments for leaf in (each if isinstance(each, list | tuple) else [each])]


def _parts(value: Any) -> tuple[Any, Any]:
    if isinstance(value, ComplexTensor | complex):
        return value.real, value.imag
    return value, 0


def _apply(name: str, arguments: Sequence[Any], options: Mapping[str, Any], function: Any = None) -> Any:
    """Compute a function with a complex operand."""
    plain = name.strip("_") if name != "__getitem__" else name
    if plain.startswith("r") and plain[1:] in ("mul", "add", "sub", "truediv", "div", "pow"):
        plain, arguments = plain[1:], arguments[::-1]
    plain = _NAMES.get(plain, plain)
    first = arguments[0]
    if plain in _ARITHMETIC:
        return _ARITHMETIC[plain](*map(_parts, arguments))
    if isinstance(first, ComplexTensor) and plain in _OF_ONE:
        return _OF_ONE[plain](first, *arguments[1:], **options)
    if _BY_PARTS.fullmatch(plain):
        call = function or getattr(torch.Tensor, plain)

        def part(index: int) -> Any:
            chosen = [_parts(each)[index] if isinstance(each, ComplexTensor) else each for each in arguments]
            if isinstance(first, list | tuple):
                chosen[0] = [_parts(each)[index] for each in first]
            return call(*chosen, **options)

        real, imag = part(0), part(1)
        if isinstance(real, torch.Tensor):
            return ComplexTensor(real, imag)
        return tuple(ComplexTensor(*pair) for pair in zip(real, imag, strict=True))
    raise ModelError(f"the function {plain!r} of complex numbers has no real form here; write it with real tensors")


def _product(one: tuple[Any, Any], other: tuple[Any, Any]) -> Any:
    (a, b), (c, d) = one, other
    if isinstance(d, int):  # a real factor
        return ComplexTensor(a * c, b * c)
    if isinstance(b, int):
        return ComplexTensor(a * c, a * d)
    return ComplexTensor(a * c - b * d, a * d + b * c)


def _quotient(one: tuple[Any, Any], other: tuple[Any, Any]) -> Any:
    (a, b), (c, d) = one, other
    if isinstance(d, int):
        return ComplexTensor(a / c, b / c)
    size = c * c + d * d
    return ComplexTensor((a * c + b * d) / size, (b * c - a * d) / size)


def _sum(one: tuple[Any, Any], other: tuple[Any, Any], sign: int = 1) -> Any:
    (a, b), (c, d) = one, other
    real, imag = a + sign * c, b + sign * d
    return ComplexTensor(real, imag if isinstance(imag, torch.Tensor) else torch.full_like(real, imag))


_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "mul": _product,
    "div": _quotient,
    "add": _sum,
    "sub": lambda one, other: _sum(one, other, -1),
}


def _power(value: ComplexTensor, exponent: float) -> Any:
    if exponent == 2:
        return _product(_parts(value), _parts(value))
    size = (value.real.square() + value.imag.square()).pow(exponent / 2)
    return _polar(size, exponent * torch.atan2(value.imag, value.real))


def _polar(size: Any, angle: Any) -> ComplexTensor:
    return ComplexTensor(size * torch.cos(angle), size * torch.sin(angle))


_OF_ONE: dict[str, Callable[..., Any]] = {
    "abs": lambda value: torch.sqrt(value.real.square() + value.imag.square()),
    "angle": lambda value: torch.atan2(value.imag, value.real),
    "conj": lambda value: ComplexTensor(value.real, -value.imag),
    "exp": lambda value: _polar(torch.exp(value.real), value.imag),
    "pow": _power,
    "square": lambda value: _power(value, 2),
    "view_as_real": lambda value: torch.stack([value.real, value.imag], -1),
    "real": lambda value: value.real,
    "imag": lambda value: value.imag,
    "size": lambda value, *axis: value.real.size(*axis),
    "dim": lambda value: value.ndim,
    "is_complex": lambda value: True,
    "istft": lambda value, *arguments, **options: _inverse(value, *arguments, **options),
    "irfft": lambda value, *arguments, **options: _inverse_of_frames(value, *arguments, **options),
}


def _stft(
    input: torch.Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> ComplexTensor:
    """`torch.stft` as a convolution with the windowed sines and cosines, computed in float64."""
    hop = n_fft // 4 if hop_length is None else hop_length
    single = input.dim() == 1
    x = input[None, None] if single else input[:, None]
    if center:
        x = functional.pad(x, (n_fft // 2, n_fft // 2), mode=pad_mode)
    bins = n_fft // 2 + 1 if onesided is not False else n_fft
    basis = _sinusoids(n_fft, bins) * _window(n_fft, win_length, window)
    basis = basis / math.sqrt(n_fft) if normalized else basis
    spectrum = functional.conv1d(x, _kernel(basis, 2 * bins, n_fft, x), stride=hop)
    spectrum = spectrum[0] if single else spectrum
    return ComplexTensor(*spectrum.split(bins, -2))


def _kernel(basis: torch.Tensor, rows: int, n_fft: int, x: torch.Tensor) -> torch.Tensor:
    """Return rows as a kernel of a convolution, with a shape that the exporter knows."""
    return basis.to(x).reshape(rows, 1, n_fft)


def _sinusoids(n_fft: int, bins: int) -> torch.Tensor:
    """Return the real parts and then the imaginary parts of a Fourier transform: ``float64[2 * bins, n_fft]``."""
    turns = torch.outer(torch.arange(bins), torch.arange(n_fft)) % n_fft
    angles = turns.to(torch.float64) * (2 * math.pi / n_fft)
    return torch.cat([torch.cos(angles), -torch.sin(angles)])


def _window(n_fft: int, win_length: int | None, window: torch.Tensor | None) -> torch.Tensor:
    length = n_fft if win_length is None else win_length
    values = torch.ones(length) if window is None else window
    left = (n_fft - length) // 2
    return functional.pad(values.to(torch.float64), (left, n_fft - length - left))


def _back(n_fft: int, bins: int) -> torch.Tensor:
    """Return the inverse of a one-sided transform: ``float64[2 * bins, n_fft]``."""
    twice = torch.full((bins,), 2.0, dtype=torch.float64)
    twice[0] = 1
    if n_fft % 2 == 0:
        twice[n_fft // 2] = 1
    return _sinusoids(n_fft, bins) * torch.cat([twice, twice])[:, None] / n_fft


def _inverse(
    spectrum: ComplexTensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> torch.Tensor:
    """`torch.istft` as a transposed convolution, divided by the sum of the squared windows."""
    if onesided is False or return_complex:
        raise ModelError("torch.istft with onesided=False or return_complex=True has no real form here")
    hop = n_fft // 4 if hop_length is None else hop_length
    single = spectrum.ndim == 2
    x = torch.cat([spectrum.real, spectrum.imag], -2)
    x = x[None] if single else x
    shape = _window(n_fft, win_length, window)
    bins = n_fft // 2 + 1
    basis = _back(n_fft, bins) * shape * (math.sqrt(n_fft) if normalized else 1)
    sound = functional.conv_transpose1d(x, _kernel(basis, 2 * bins, n_fft, x), stride=hop)
    square = _kernel(shape * shape, 1, n_fft, x)
    cover = functional.conv_transpose1d(torch.ones_like(x[:1, :1]), square, stride=hop)
    begin = n_fft // 2 if center else 0
    end = -begin or None if length is None else None
    result = sound[:, 0, begin:end] / cover[:, 0, begin:end]
    if length is not None:  # PyTorch appends zeros
        result = functional.pad(result, (0, n_fft + hop))[:, :length]
    return result[0] if single else result


def _inverse_of_frames(
    spectrum: ComplexTensor, n: int | None = None, dim: int = -1, norm: str | None = None
) -> torch.Tensor:
    """`torch.fft.irfft` as a product with sines and cosines."""
    size = 2 * (spectrum.shape[dim] - 1) if n is None else n
    x = torch.cat([spectrum.real.movedim(dim, -1), spectrum.imag.movedim(dim, -1)], -1)
    scale = {"forward": size, "ortho": math.sqrt(size)}.get(norm or "", 1)
    return torch.matmul(x, (_back(size, size // 2 + 1) * scale).to(x)).movedim(-1, dim)


def _rfft(input: torch.Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> ComplexTensor:
    """`torch.fft.rfft` as a product with sines and cosines."""
    size = input.shape[dim] if n is None else n
    if int(input.shape[dim]) != int(size):
        raise ModelError("torch.fft.rfft with another `n` than the frame has no real form here; pad or cut the frame")
    basis = _sinusoids(int(size), int(size) // 2 + 1)
    scale = {"forward": 1 / size, "ortho": 1 / math.sqrt(size)}.get(norm or "", 1)
    result = torch.matmul(input.movedim(dim, -1), (basis * scale).t().to(input)).movedim(-1, dim)
    return ComplexTensor(*result.chunk(2, dim))


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


#: Functions that make complex numbers, and others that the exporter refuses.
_MAKERS: dict[str, Callable[..., Any]] = {
    "stft": _stft,
    "fft_rfft": _rfft,
    "rfft": _rfft,
    "complex": ComplexTensor,
    "polar": _polar,
    "fold": _fold,
    "group_norm": lambda input, num_groups, *rest, **options: functional.group_norm(
        input, int(num_groups), *rest, **options
    ),
    "logcumsumexp": lambda input, dim: _log_sums(input.movedim(dim, 0)).movedim(0, dim),
    "view_as_complex": lambda value: ComplexTensor(value[..., 0], value[..., 1]),
}
