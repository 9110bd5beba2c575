"""What a compute dtype gains and costs: the outputs of many steps beside those in full precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxrnn._files.messages import brief
from jaxrnn.profiling.table import microseconds, scaled

#: Steps that outputs are compared over, each with inputs of its own and the state carried on.
STEPS = 50

Step = Callable[[Any, Any], tuple[dict[str, Any], Any]]


@brief
@dataclass(frozen=True)
class OutputDifference:
    """How far an output is from that in full precision, over all steps.

    Attributes:
        name: of the output.
        largest: the largest absolute difference.
        scale: the largest magnitude of the output, in full precision.
        decibels: energy of the output over energy of the difference; infinite where they are equal.
    """

    name: str
    largest: float
    scale: float
    decibels: float


@brief
@dataclass(frozen=True)
class LowPrecision:
    """What a compute dtype gains and costs.

    Attributes:
        dtype: the compute dtype, which the weights of products have.
        nbytes: of the folded parameters.
        full_nbytes: of the same in full precision.
        full_seconds: of a call with those: the median.
        steps: calls that outputs were compared over.
        differences: of every output of floating-point numbers.
    """

    dtype: str
    nbytes: int
    full_nbytes: int
    full_seconds: float
    steps: int
    differences: tuple[OutputDifference, ...]

    def lines(self, seconds: float) -> list[str]:
        """Lines of text, beside the seconds of a call with them."""
        lines = [
            f"weights in {self.dtype}: {scaled(self.nbytes)}B instead of {scaled(self.full_nbytes)}B; a call takes "
            f"{microseconds(self.full_seconds)} µs in full precision, {self.full_seconds / seconds:.2f} times as long"
        ]
        return lines + [
            f"output {each.name}, over {self.steps} calls: differs by at most {each.largest:.2g}, where its largest "
            f"magnitude is {each.scale:.2g}; signal over error {each.decibels:.1f} dB"
            for each in self.differences
        ]


def differences_of(
    low: Step, full: Step, first: tuple[Any, Any], frames: Iterator[Any]
) -> tuple[OutputDifference, ...]:
    """Run two functions of a state and inputs over the same inputs, each with its own state carried on."""
    states = list(first)
    errors: dict[str, list[np.ndarray]] = {}
    outputs: dict[str, list[np.ndarray]] = {}
    for inputs in frames:
        results = []
        for place, step in enumerate((low, full)):
            values, states[place] = step(states[place], inputs)
            results.append(values)
        for name, value in results[1].items():
            if value is None or not jax.numpy.issubdtype(value.dtype, jax.numpy.floating):
                continue
            expected = np.asarray(value, np.float64)
            outputs.setdefault(name, []).append(expected)
            errors.setdefault(name, []).append(np.asarray(results[0][name], np.float64) - expected)
    return tuple(_difference(name, np.stack(errors[name]), np.stack(outputs[name])) for name in outputs)


def _difference(name: str, error: np.ndarray, output: np.ndarray) -> OutputDifference:
    noise, energy = float(np.square(error).sum()), float(np.square(output).sum())
    decibels = math.inf if noise == 0 else 10 * math.log10(energy / noise) if energy else -math.inf
    return OutputDifference(name, float(np.abs(error).max(initial=0)), float(np.abs(output).max(initial=0)), decibels)
