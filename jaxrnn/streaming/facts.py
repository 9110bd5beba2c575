"""The facts about a streaming function, for programs and for people."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import jax
import numpy as np

from jaxrnn._files.messages import describe
from jaxrnn.errors import InputError
from jaxrnn.steps.specs import ArraySpec
from jaxrnn.steps.stepspec import OutputSpec, StateSpec, StepSpec
from jaxrnn.streaming.plan import Plan
from jaxrnn.streaming.values import Chunk, FinalValue


def flat_spec(plan: Plan, units: int, multiple: int, *, needs_params: bool) -> StepSpec:
    """The facts about pulses of so many units, with the arrays in the order of their trees, by their paths."""
    pulse = units * plan.clock.unit * multiple
    kinds = plan.facts.kinds
    fields = [extent.field for extent in plan.extents]
    field = None if None in fields else max((each for each in fields if each is not None), default=0)
    return StepSpec(
        plan.label,
        inputs=tuple(
            ArraySpec(leaf.name, leaf.dtype, leaf.frames(units * plan.clock.unit), leaf.axis) for leaf in plan.leaves
        ),
        outputs=tuple(_outputs(plan, pulse, multiple)),
        state=tuple(
            StateSpec(name, place.dtype, place.shape, kind=kinds.get(name, "counter"))
            for name, place in plan.layout.places.items()
        ),
        pulse=pulse,
        multiple=multiple,
        smallest_pulse=plan.clock.unit * multiple,
        look_ahead=max([0, *(extent.last for extent in plan.extents)]),
        receptive_field=field,
        joined=plan.layout.joined,
        needs_params=needs_params,
    )


def _outputs(plan: Plan, pulse: int, multiple: int) -> list[OutputSpec]:
    """Every output of a pulse; one that only a flush gives as it is there."""
    tree = jax.tree.unflatten(plan.output_structure, range(len(plan.outputs)))
    names = [jax.tree_util.keystr(path) or "output" for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    specs = []
    for name, kind, result in zip(names, plan.outputs, plan.results, strict=True):
        spec = OutputSpec(name, np.dtype(result.dtype), tuple(result.shape), at_end=isinstance(kind, FinalValue))
        if isinstance(kind, Chunk):
            rate: Fraction = kind.timeline.rate / multiple
            moving = dataclasses.replace(spec, time_axis=kind.axis, delay=kind.delay, rate=rate)
            spec = moving.with_frames(int(rate * pulse))
        specs.append(spec)
    return specs


def named_spec(flat: StepSpec, structure: Any, output_structure: Any, constants: Sequence[bool]) -> StepSpec:
    """The facts with the arrays by the keys of their dicts.

    Args:
        flat: the facts with the arrays by their paths.
        structure: the tree of the input.
        output_structure: the tree of the output.
        constants: of every input without a time axis, whether the state before the first frame depends on it.

    Raises:
        InputError: the function takes or gives another tree than one dict of arrays by name.
    """
    inputs = _by_name(structure, flat.inputs, "takes")
    outputs = _by_name(output_structure, flat.outputs, "gives")
    depends = iter(constants)
    return dataclasses.replace(
        flat,
        inputs=tuple(dataclasses.replace(each, name=name) for name, each in inputs.items()),
        outputs=tuple(dataclasses.replace(each, name=name) for name, each in outputs.items()),
        constants=tuple(name for name, each in inputs.items() if each.time_axis is None and next(depends)),
    )


def _by_name(structure: Any, specs: Sequence[Any], verb: str) -> Mapping[str, Any]:
    """The arrays of a tree that is a flat dict by name."""
    tree = jax.tree.unflatten(structure, specs)
    if isinstance(tree, dict) and all(isinstance(k, str) and isinstance(v, ArraySpec) for k, v in tree.items()):
        return tree
    raise InputError(
        f"the streamed function {verb} {jax.tree.structure(tree)}; arrays have names here: stream a function that "
        f"{verb} one dict of arrays with strings for keys"
    )


def table_of(spec: StepSpec) -> str:
    """The facts as lines of text."""
    field = spec.receptive_field
    lines = [
        f"pulse            {spec.pulse} input frame(s); the smallest that fits: {spec.smallest_pulse}",
        f"look-ahead       {spec.look_ahead} input frame(s)",
        f"receptive field  {'all of the past' if field is None else f'{field} input frame(s)'}",
        "",
        f"{'output':<24} {'frames a pulse':>14} {'rate':>8} {'delay':>8}",
    ]
    for output in spec.outputs:
        if output.rate is None:
            lines.append(f"{output.name:<24} {'at the end':>14} {'':>8} {'':>8}")
        else:
            frames = output.rate * spec.pulse
            lines.append(f"{output.name:<24} {frames!s:>14} {output.rate!s:>8} {output.delay:>8}")
    state = spec.state
    total = sum(entry.nbytes for entry in state)
    width = max((len(entry.name) for entry in state), default=5)
    lines += ["", f"{'state':<{width}}  {'kind':<10} {'dtype':<8} {'shape':<20} {'bytes':>8}"]
    for entry in state:
        dtype, _, shape = describe(entry).partition("[")
        lines.append(f"{entry.name:<{width}}  {entry.kind:<10} {dtype:<8} {'[' + shape:<20} {entry.nbytes:>8,}")
    lines.append(f"{len(state)} arrays, {total:,} bytes")
    return "\n".join(line.rstrip() for line in lines)
