"""The carries of Scan and Loop, declared for the search for state."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from jax.core import Tracer

from jaxrnn.jaxprs.recurrences import Carried, are_visible, visible
from jaxrnn.onnx.blocks import origin
from jaxrnn.onnx.evaluate import Subgraph
from jaxrnn.onnx.values import Value, is_sequence, traced


def visible_body(
    results: Sequence[Value],
    carried: Sequence[Value],
    body: Subgraph,
    steps: Any,
    *,
    head: int = 0,
    forward: bool = True,
    chosen: Collection[int] | None = None,
) -> list[Value]:
    """Return the results of a Scan or Loop, wrapped by `visible` with its carries.

    Args:
        results: final values of the carry, and what is collected.
        carried: initial values of the carry.
        body: has ``head`` outputs, and twice as many inputs, before its carry.
        steps: the number of trips, None where data decides.
        head: of the body.
        forward: whether a later call can go on from the final values.
        chosen: the numbers of what is carried, without counters and values that only grow; None for all.
    """
    if not are_visible():
        return list(results)
    results, starts, slots, handed = list(results), [], [], set[int]()
    inputs, outputs, makers = body.block.inputs[2 * head :], body.block.outputs[head:], body.block.makers()
    followed = [
        place
        for place, start in enumerate(carried)
        if start is not None and not is_sequence(start) and np.shape(results[place]) == tuple(start.shape)
    ]
    for place in followed:
        if origin(outputs[place], makers) is inputs[place]:
            results[place] = carried[place]
            handed.add(place)
    computed = [place for place, value in enumerate(results) if isinstance(value, Tracer) and place not in handed]
    for place in followed:
        if place in computed and (chosen is None or place in chosen):
            slots.append(Carried(str(inputs[place].name), computed.index(place), len(starts), forward))
            starts.append(traced(carried[place]))
    shown = visible([results[place] for place in computed], starts, slots, steps if isinstance(steps, int) else None)
    for place, value in zip(computed, shown, strict=True):
        results[place] = value
    return results
