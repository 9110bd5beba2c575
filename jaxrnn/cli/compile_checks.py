"""A compiled file against what it was made of: what ``jaxrnn compile`` does before the file appears."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import numpy as np

from jaxrnn.verification.comparison import Comparison, compare
from jaxrnn.verification.sampling import index_limits, random_arrays

if TYPE_CHECKING:
    from jaxrnn.model import Model
    from jaxrnn.runtime.compiled import CompiledStepper
    from jaxrnn.stepper import Stepper

#: Steps that are compared: after the first, the state is no longer what it begins with.
STEPS = 3


def compare_steppers(model: Model, stepper: Stepper, compiled: CompiledStepper) -> list[Comparison]:
    """Some steps on random inputs and, of a stream, the flush of a tail, from the first state on.

    Args:
        model: what both were made of.
        stepper: what was compiled.
        compiled: the file, loaded again.
    """
    spec, params = compiled.spec, model.params
    # All that a compiled file leaves open is the batch.
    sizes = {} if spec.batch_symbol is None else {spec.batch_symbol: 1}
    specs, limits = [each.sized(sizes) for each in spec.inputs], index_limits(model)
    frames = [random_arrays(specs, {}, seed=seed, limits=limits).inputs for seed in range(STEPS + 1)]
    constant = {each.name: frames[0][each.name] for each in specs if spec.streams and each.time_axis is None}
    frames = [{**frame, **constant} for frame in frames]
    held = {name: constant[name] for name in spec.held} or None
    state, expected = compiled.init(held=held), stepper.init(params=params, held=held)
    outputs, peers, step = {}, {}, jax.jit(stepper.step)
    for frame in frames[:-1]:
        outputs, state = compiled.step(None, state, frame)
        peers, expected = step(params, expected, frame)
    pairs = {
        **{name: (outputs.get(name), value) for name, value in peers.items()},
        **{f"state {name}": (state[name], value) for name, value in expected.items()},
    }
    flush = jax.jit(stepper.flush)
    # A tail may be too short for any frame to come of it.
    for valid in (spec.pulse - spec.multiple, spec.pulse) if spec.streams else ():
        rest = compiled.flush(None, state, frames[-1], np.int32(valid))
        last = flush(params, expected, frames[-1], np.int32(valid))
        after = f"after {valid} frame(s)"
        pairs |= {f"flush of {name} {after}": (rest.outputs[name], x) for name, x in last.outputs.items()}
        pairs |= {f"frames of {name} {after}": (rest.counts[name], x) for name, x in last.counts.items()}
    return [
        compare(name, here, peer, scaled=True)
        for name, (here, peer) in pairs.items()
        # None is what only the other function gives.
        if here is not None or peer is not None
    ]
