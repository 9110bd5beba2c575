"""Comparison of an imported model with the original module, at several lengths and batches."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxrnn.errors import InputError, JaxrnnError, ModelError
from jaxrnn.model import Model
from jaxrnn.verification.comparison import Comparison, agree, compare
from jaxrnn.verification.sampling import verifiable_inputs

Arrays = Mapping[str, np.ndarray]
#: Axis and name of the open dimensions of each input.
Axes = Mapping[str, Mapping[int, str]]
#: Runs the module on a dict of inputs, and returns the outputs in order.
Run = Callable[[Arrays], Sequence[np.ndarray]]


@dataclass(frozen=True)
class Agreement:
    """The comparison of a model with the original module at one choice of sizes."""

    sizes: Mapping[str, int]
    outputs: tuple[Comparison, ...]

    @property
    def ok(self) -> bool:
        """True if all outputs agree. False also if an output has no finite element to compare."""
        return agree(self.outputs)


def check_agreement(model: Model, run: Run, example: Arrays, axes: Axes, framework: str) -> tuple[Agreement, ...]:
    """Compare a model with the original module at the sizes of the example and at other sizes.

    A ModelError lists the outputs that differ, or names sizes at which the module runs and the model fails.
    """
    found = []
    for sizes in _choices(example, axes):
        inputs = resized(example, axes, sizes)
        try:
            there = run(inputs)
        except Exception:  # modules refuse sizes with errors of any type
            if not found:
                raise
            continue
        try:
            with jax.default_matmul_precision("highest"):
                here = model(inputs)
        except JaxrnnError as error:
            others = "; at the sizes of the example, the file runs" if found else ""
            raise ModelError(f"with {_listed(sizes)}, {framework} runs and the file fails: {error}{others}") from error
        found.append(Agreement(sizes, _compared(model, here, there)))
    wrong = [case for case in found if any(output.differs for output in case.outputs)]
    if wrong:
        raise ModelError(f"the file differs from {framework}: {_described(wrong, len(found))}")
    if not agree(output for case in found for output in case.outputs):
        unknown = [case for case in found if not case.ok]
        raise ModelError(
            f"the file could not be compared with {framework}, because the example gives no finite outputs: "
            f"{_described(unknown, len(found))}\nGive another example"
        )
    if len(found) == 1 and any(axes.values()):
        raise ModelError(
            f"{framework} runs the module only at the sizes of the example, {_listed(found[0].sizes)}, so an "
            "open dimension cannot be checked; give an example at which the module also runs twice as long, or "
            "leave out time"
        )
    return tuple(found)


def _compared(model: Model, here: Mapping[str, Any], there: Sequence[np.ndarray]) -> tuple[Comparison, ...]:
    pairs = zip(model.outputs, there, strict=True)
    return tuple(compare(info.name, here[info.name], value, scaled=True) for info, value in pairs)


def resized(example: Arrays, axes: Axes, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Repeat or cut an example along open axes, so that the values stay in the range of the example."""
    result = {}
    for name, array in example.items():
        for axis, symbol in axes.get(name, {}).items():
            factor, base = parsed(symbol)
            array = array.take(np.arange(sizes[base] * factor) % array.shape[axis], axis)
        result[name] = array
    return result


def sizes_of(example: Arrays, axes: Axes) -> dict[str, int]:
    """Return the sizes of the open dimensions in an example, which must agree in all inputs."""
    sizes: dict[str, int] = {}
    for name, array in example.items():
        for axis, symbol in axes.get(name, {}).items():
            factor, base = parsed(symbol)
            size = int(array.shape[axis])
            if size % factor:
                raise InputError(f"axis {axis} of {name!r} has size {size}, which is not a multiple as in {symbol!r}")
            expected = sizes.setdefault(base, size // factor) * factor
            if size != expected:
                raise InputError(
                    f"axis {axis} of {name!r} has size {size}, but {symbol!r} is {expected} elsewhere in the example; "
                    f"give the axis another name: time={{{name!r}: ({axis}, 'name')}}"
                )
    return sizes


def parsed(symbol: str) -> tuple[int, str]:
    """Split ``"4*T"`` into 4 and ``"T"``."""
    factor, star, base = symbol.partition("*")
    if not star:
        return 1, symbol
    if not re.fullmatch(r"\s*0*[1-9][0-9]*\s*", factor) or not base.strip().isidentifier():
        raise InputError(f"a dimension is a name, or a multiple of a name such as '4*T', not {symbol!r}")
    return int(factor), base.strip()


def _choices(example: Arrays, axes: Axes) -> list[dict[str, int]]:
    """Return the sizes of the example, these sizes doubled, these sizes plus 1, and all sizes 1."""
    start = sizes_of(example, axes)
    changes = (lambda size: size, lambda size: 2 * size, lambda size: size + 1, lambda size: 1)
    unique = {tuple((name, change(size)) for name, size in start.items()) for change in changes}
    return [start, *(dict(sizes) for sizes in sorted(unique - {tuple(start.items())}))]


def _described(wrong: Sequence[Agreement], total: int) -> str:
    lines = [f"{len(wrong)} of {total} sizes"]
    for case in wrong[:4]:
        for output in case.outputs:
            if not output.ok:
                size = "" if output.max_abs is None else f", by up to {output.max_abs:.2g}"
                lines.append(f"  with {_listed(case.sizes)}: output {output.name!r}: {output.reason}{size}")
    return "\n".join(lines)


def _listed(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items()) or "the sizes of the example"


def check_weights(
    params: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], owner: str, model: Model | None
) -> dict[str, np.ndarray]:
    """Return the arrays of a module's weights among parameters, after a check of names and shapes."""
    arrays = {name: np.asarray(params[name]) for name in shapes if name in params}
    for name, array in arrays.items():
        if array.shape != shapes[name]:
            raise InputError(f"params[{name!r}] has shape {array.shape}, but {owner} has {shapes[name]}")
    known = {} if model is None else model.params
    others = [name for name in params if name not in shapes]
    changed = [name for name in others if name not in known or not np.array_equal(params[name], known[name])]
    if changed:
        raise InputError(
            f"{owner} has no weight {changed[0]!r}, so its value cannot be put back. Make the model with "
            "from_torch or from_keras, which keep the names, and freeze parameters that are not weights of the module"
        )
    missing = [name for name in shapes if name not in params]
    if missing and model is None:
        raise InputError(
            f"params have no {missing[0]!r} of {owner}: the exporter folded it into another weight, or the module does "
            "not use it. Pass the model too, model=model, so that the result is checked by a run"
        )
    return arrays


def check_after(model: Model, params: Mapping[str, Any], run: Run, framework: str) -> None:
    """Compare a module with new weights with the model, on random inputs."""
    with jax.default_matmul_precision("highest"):
        inputs = verifiable_inputs(model).inputs
        here = model.apply(params, inputs)
    compared = _compared(model, here, run(inputs))
    if not agree(compared):
        wrong = [each for each in compared if not each.ok]
        raise ModelError(
            f"{framework} with these weights differs from the model: output {wrong[0].name!r}: {wrong[0].reason}; the "
            "weights were not kept"
        )
