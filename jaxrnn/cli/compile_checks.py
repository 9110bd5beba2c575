"""A compiled file against what it was made of: what ``jaxrnn compile`` does before the file appears."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxrnn.model import Model
from jaxrnn.runtime.compiled import CompiledStepper
from jaxrnn.steps.recordings import one_step, recording_specs
from jaxrnn.steps.stepper import State, Stepper
from jaxrnn.steps.stepspec import StepSpec
from jaxrnn.verification.comparison import Comparison, compare
from jaxrnn.verification.sampling import index_limits, random_arrays

#: Steps that are compared: after the first, the state is no longer what it begins with.
STEPS = 3


def compare_steppers(model: Model, stepper: Stepper, compiled: CompiledStepper) -> list[Comparison]:
    """Some steps on random inputs and, of a stream, the flush of a tail, from the first state on.

    Args:
        model: what both were made of.
        stepper: what was compiled.
        compiled: the file, loaded again.
    """
    # All that a compiled file leaves open is the batch.
    spec = compiled.spec if compiled.spec.batch_symbol is None else compiled.spec.sized({compiled.spec.batch_symbol: 1})
    frames = (STEPS + 1) * spec.pulse
    recordings = random_arrays(recording_specs(spec, "frames"), {}, dims={"frames": frames}, limits=index_limits(model))
    steps = [one_step(spec, recordings.inputs, index) for index in range(STEPS + 1)]
    constants = {name: recordings.inputs[name] for name in spec.constants} or None
    params, step, flush = model.params, jax.jit(stepper.step), jax.jit(stepper.flush)
    here = _results(
        spec,
        compiled.init(constants=constants),
        steps,
        lambda *arguments: compiled.step(None, *arguments),
        lambda *arguments: compiled.flush(None, *arguments),
    )
    peers = _results(
        spec,
        stepper.init(params=params, constants=constants),
        steps,
        lambda *arguments: step(params, *arguments),
        lambda *arguments: flush(params, *arguments),
    )
    return [compare(name, here.get(name), peers.get(name), scaled=True) for name in {**here, **peers}]


def _results(
    spec: StepSpec, state: State, steps: list[dict[str, Any]], step: Callable[..., Any], flush: Callable[..., Any]
) -> dict[str, Any]:
    """The last outputs and the last state of some steps, and what flushes of the last of them give."""
    outputs = {}
    for inputs in steps[:-1]:
        outputs, state = step(state, inputs)
    results = {**outputs, **{f"state {name}": value for name, value in state.items()}}
    # A tail may be too short for any frame to come of it.
    for valid in (spec.pulse - spec.multiple, spec.pulse) if spec.streams else ():
        rest = flush(state, steps[-1], np.int32(valid))
        for what, values in (("flush", rest.outputs), ("frames", rest.counts)):
            results |= {f"{what} of {name} after {valid} frame(s)": value for name, value in values.items()}
    return {name: value for name, value in results.items() if value is not None}
