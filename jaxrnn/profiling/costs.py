"""What an instruction costs, from shapes alone: floating-point operations, transcendental functions, and bytes.

Operations are counted as XLA's cost analysis counts them: a multiplication with an addition is two, an element-wise
operation one for each element, a transcendental function is counted apart. Unlike XLA's, the count of a loop is that
of all its trips, where XLA knows how many there are; that of a branch is its dearest case's.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

import numpy as np

from jaxrnn._files.messages import brief
from jaxrnn.profiling.hlo import Computation, HloModule, Instruction, Shape

_TRANSCENDENTAL = {
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan2",
    "atanh",
    "cbrt",
    "cosine",
    "cosh",
    "erf",
    "exponential",
    "exponential-minus-one",
    "log",
    "log-plus-one",
    "logistic",
    "power",
    "rsqrt",
    "sine",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
}
_ARITHMETIC = {
    "abs",
    "add",
    "and",
    "ceil",
    "clamp",
    "clz",
    "compare",
    "complex",
    "convert",
    "divide",
    "floor",
    "imag",
    "is-finite",
    "maximum",
    "minimum",
    "multiply",
    "negate",
    "not",
    "or",
    "popcnt",
    "real",
    "reduce-precision",
    "remainder",
    "round-nearest-afz",
    "round-nearest-even",
    "select",
    "shift-left",
    "shift-right-arithmetic",
    "shift-right-logical",
    "sign",
    "stochastic-convert",
    "subtract",
    "xor",
}
#: They hand on what is there, or are no work of their own.
_FREE = {"after-all", "bitcast", "constant", "get-tuple-element", "parameter", "partition-id", "replica-id", "tuple"}
_SLICES = {"slice", "dynamic-slice", "gather"}
#: They call functions: as often as they say themselves, or on elements of their operands.
_CALLS = {"fusion", "call", "while", "map"}
_APPLIED = {"reduce", "reduce-window", "scatter", "select-and-scatter"}
#: Operands of a loop or a branch are carried, not read; what runs inside reads them.
_CONTROL = {"while", "conditional", "call"}


@brief
@dataclass(frozen=True)
class Cost:
    """Operations, transcendental functions and bytes read or written; of one execution unless said otherwise."""

    flops: float = 0.0
    transcendentals: float = 0.0
    nbytes: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.transcendentals + other.transcendentals,
            self.nbytes + other.nbytes,
        )

    def __mul__(self, times: float) -> Cost:
        return Cost(self.flops * times, self.transcendentals * times, self.nbytes * times)


def cost_of(module: HloModule, computation: Computation, item: Instruction) -> Cost:
    """The cost of one execution of an instruction, of what it calls too."""
    operations = _operations(module, computation, item)
    if item.opcode in _CONTROL:
        inner = [sum(cost_of(module, body, part).nbytes for part in _work(body)) for body in module.called(item)]
        nbytes = item.trips * (max if item.opcode == "conditional" else sum)(inner)
    else:
        nbytes = _bytes(module, computation, item)
    return replace(operations, nbytes=nbytes)


def _work(computation: Computation) -> list[Instruction]:
    return [item for item in computation.instructions.values() if item.opcode not in _FREE]


def _operations(module: HloModule, computation: Computation, item: Instruction) -> Cost:
    """Floating-point operations and transcendental functions, without bytes."""
    opcode = item.opcode
    if opcode in _TRANSCENDENTAL:
        return Cost(transcendentals=item.elements)
    if opcode in _ARITHMETIC:
        return Cost(item.elements)
    operands = [computation.instructions[name] for name in item.operands if name in computation.instructions]
    if opcode == "dot":
        return Cost(2.0 * item.elements * math.prod(_contracted(item, operands[0].shape)))
    if opcode == "convolution":
        return Cost(convolution_flops(item, operands[0].shape, operands[1].shape))
    bodies = [sum((_operations(module, body, part) for part in _work(body)), Cost()) for body in module.called(item)]
    if opcode == "conditional":
        dearest = [max((getattr(body, kind) for body in bodies), default=0.0) for kind in ("flops", "transcendentals")]
        return Cost(*dearest)
    if opcode in _APPLIED:
        times = _applications(item, operands)
    elif opcode in _CALLS:
        times = item.trips if opcode == "while" else item.elements if opcode == "map" else 1
    else:
        return Cost()
    return sum(bodies, Cost()) * times


def _contracted(item: Instruction, left: Shape) -> list[int]:
    return [left.dims[axis] for axis in _numbers(item.attributes, "lhs_contracting_dims")]


def _numbers(text: str, key: str) -> list[int]:
    match = re.search(rf"\b{key}=\{{([\d,]*)\}}", text)
    return [int(number) for number in match[1].split(",") if number] if match else []


def _applications(item: Instruction, operands: list[Instruction]) -> float:
    """How often the function of a reduction is applied."""
    if item.opcode == "reduce":
        return max(operands[0].elements - item.elements, 0)
    if item.opcode == "reduce-window":
        size = re.search(r"window=\{size=([\dx]+)", item.attributes)
        return item.elements * (math.prod(map(int, size[1].split("x"))) - 1) if size else item.elements
    return operands[-1].elements


def convolution_flops(item: Instruction, image: Shape, kernel: Shape) -> float:
    """Two for every product of an element of the image and one of the kernel; places of the pad are none."""
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", item.attributes)
    if labels is None:
        return 2.0 * item.elements * kernel.size
    left, right, out = labels[1], labels[2], labels[3]
    spatial = sorted(letter for letter in out if letter.isdigit())
    places = 1.0
    for axis, letter in enumerate(spatial):
        places *= _valid_places(
            image.dims[left.index(letter)],
            kernel.dims[right.index(letter)],
            item.shape.dims[out.index(letter)],
            _window(item.attributes, axis, len(spatial)),
        )
    groups = re.search(r"batch_group_count=(\d+)", item.attributes)
    batch = item.shape.dims[out.index("b")] if groups is None else image.dims[left.index("b")] // int(groups[1])
    return 2.0 * places * batch * kernel.dims[right.index("i")] * kernel.dims[right.index("o")]


def _window(attributes: str, axis: int, rank: int) -> tuple[int, int, int, int]:
    """Stride, low pad, dilation of the image and of the kernel along a spatial axis."""
    window = re.search(r"window=\{([^}]*)\}", attributes)
    entries = dict(part.split("=") for part in window[1].split()) if window else {}

    def entry(key: str, default: str) -> str:
        parts = entries[key].split("x") if key in entries else [default] * rank
        return parts[axis]

    low = int(entry("pad", "0_0").split("_")[0])
    return int(entry("stride", "1")), low, int(entry("lhs_dilate", "1")), int(entry("rhs_dilate", "1"))


def _valid_places(image: int, kernel: int, result: int, window: tuple[int, int, int, int]) -> int:
    stride, low, image_dilation, kernel_dilation = window
    places = np.arange(result)[:, None] * stride - low + np.arange(kernel)[None, :] * kernel_dilation
    inside = (places >= 0) & (places <= (image - 1) * image_dilation) & (places % image_dilation == 0)
    return int(inside.sum())


def _bytes(module: HloModule, computation: Computation, item: Instruction) -> float:
    """The bytes of the operands that are read, and of the result that is written."""
    if item.opcode in _FREE:
        return 0.0
    operands = [computation.instructions.get(name) for name in item.operands]
    if item.opcode in _SLICES:
        rest = sum(operand.nbytes for operand in operands[1:] if operand is not None)
        return 2.0 * item.nbytes + rest
    if item.opcode == "dynamic-update-slice":
        update = operands[1]
        return 2.0 * (update.nbytes if update is not None else item.nbytes)
    bodies = module.called(item) if item.opcode == "fusion" else []
    if not bodies:
        return float(item.nbytes + sum(operand.nbytes for operand in operands if operand is not None))
    body = bodies[0]
    total = float(_written(body, body.root))
    for index in range(len(operands)):
        parameter = body.parameter(index)
        if parameter is not None:
            total += min(parameter.nbytes, _read(body, parameter))
    return total


def _read(body: Computation, value: Instruction) -> float:
    """The bytes that a fused computation reads of a value: what it cuts out of it, where it uses no more."""
    total = 0.0
    for user in body.users(value.name):
        if user.opcode in _SLICES and user.operands[0] == value.name:
            total += user.nbytes
        elif user.opcode == "dynamic-update-slice" and user.operands[0] == value.name:
            continue  # written in place
        elif user.opcode == "bitcast":
            total += _read(body, user)
        else:
            return float(value.nbytes)
    return total


def _written(body: Computation, root: Instruction) -> float:
    """The bytes of a fused computation's result; what is updated in place counts its update alone."""
    if root.opcode in ("bitcast", "tuple"):
        parts = [body.instructions[name] for name in root.operands if name in body.instructions]
        return sum(_written(body, part) for part in parts)
    if root.opcode == "dynamic-update-slice" and root.operands[1] in body.instructions:
        return float(body.instructions[root.operands[1]].nbytes)
    return float(root.nbytes)
