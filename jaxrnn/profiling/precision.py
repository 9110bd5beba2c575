"""What narrow weights cost: the outputs of many steps beside those with the parameters' own type."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

#: Steps that outputs are compared over, each with inputs of its own and the state carried on.
STEPS = 50

Call = Callable[[Any, Any], tuple[dict[str, Any], Any]]


@dataclass(frozen=True)
class Difference:
    """How far an output is from that with weights of their own type, over all steps.

    Attributes:
        name: of the output.
        largest: the largest absolute difference.
        scale: the largest magnitude of the output, with weights of their own type.
        decibels: energy of the output over energy of the difference; infinite where they are equal.
    """

    name: str
    largest: float
    scale: float
    decibels: float


@dataclass(frozen=True)
class Narrowed:
    """What narrower weights gain and cost.

    Attributes:
        dtype: of the weights.
        nbytes: of the folded weights.
        wide_nbytes: of the same in their own type.
        wide_seconds: of a call with those: the median.
        steps: calls that outputs were compared over.
        differences: of every output of floating-point numbers.
    """

    dtype: str
    nbytes: int
    wide_nbytes: int
    wide_seconds: float
    steps: int
    differences: tuple[Difference, ...]


def differences_of(narrow: Call, wide: Call, state: Any, frames: Iterator[Any]) -> tuple[Difference, ...]:
    """Run two functions of a state and inputs over the same inputs, each with its own state carried on."""
    states = [state, state]
    errors: dict[str, list[np.ndarray]] = {}
    outputs: dict[str, list[np.ndarray]] = {}
    for inputs in frames:
        results = []
        for place, call in enumerate((narrow, wide)):
            given, states[place] = call(states[place], inputs)
            results.append(given)
        for name, value in results[1].items():
            if value is None or not jax.numpy.issubdtype(value.dtype, jax.numpy.floating):
                continue
            expected = np.asarray(value, np.float64)
            outputs.setdefault(name, []).append(expected)
            errors.setdefault(name, []).append(np.asarray(results[0][name], np.float64) - expected)
    return tuple(_difference(name, np.stack(errors[name]), np.stack(outputs[name])) for name in outputs)


def _difference(name: str, error: np.ndarray, output: np.ndarray) -> Difference:
    noise, energy = float(np.square(error).sum()), float(np.square(output).sum())
    decibels = math.inf if noise == 0 else 10 * math.log10(energy / noise) if energy else -math.inf
    return Difference(name, float(np.abs(error).max(initial=0)), float(np.abs(output).max(initial=0)), decibels)
