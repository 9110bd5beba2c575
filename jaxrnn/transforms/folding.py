"""A step with the work on its parameters done beforehand: the pack stage once, the other stages each time."""

from __future__ import annotations

from typing import Any

import jax

from jaxrnn.transforms.stages import AFTER, BEFORE, CORE, PACK, Stages, run_stage

Folded = tuple[jax.Array, ...]


def fold(stages: Stages, params: Any) -> Folded:
    """What the later stages read of the parameters: transposed, joined and scaled arrays."""

    def pack(leaves: list[Any]) -> Folded:
        results = run_stage(stages, PACK, dict(zip(stages.params, leaves, strict=True)))
        return tuple(results[variable] for variable in stages.folded)

    return jax.jit(pack)(jax.tree.leaves(params))


def fits(stages: Stages, folded: Folded) -> bool:
    """Whether arrays are what `fold` gives for this very step, and not for frames of another length."""
    variables: tuple[Any, ...] = stages.folded
    return [v.aval.shape for v in variables] == [array.shape for array in folded]


def run_folded(stages: Stages, folded: Folded, frame: Any, carry: Any) -> Any:
    """One step of folded parameters."""
    environment = dict(zip(stages.folded, folded, strict=True))
    environment |= dict(zip(stages.frame, jax.tree.leaves(frame), strict=True))
    environment |= dict(zip(stages.carry, jax.tree.leaves(carry), strict=True))
    for stage in (BEFORE, CORE, AFTER):
        environment |= run_stage(stages, stage, environment)
    return stages.results(environment)
