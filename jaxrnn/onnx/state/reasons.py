"""Why a variable is state, in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxrnn.jaxprs.origins import DataFlow, Site
from jaxrnn.onnx.state.evidence import BUFFER, CARRIED, CELL, GROWN, KEPT, LAST_OUTPUT, PRODUCT, Edge

_EXTERNAL = {
    BUFFER: "{output!r} holds {input!r} moved along, with new elements at its end: a buffer of past frames",
    LAST_OUTPUT: "{output!r} is the last output of {sites}, which {start} from {input!r}",
    KEPT: "every element of {output!r} keeps a part of the same element of {input!r} and adds to it, as an average, a "
    "counter or the cell of an LSTM does",
    PRODUCT: "{output!r} has the shape of {input!r} and follows from it through one product with weights, as in a "
    "recurrent cell made of single operators",
    CELL: "{output!r} follows from {input!r} as the state of an LSTM made of single operators does",
    GROWN: "{output!r} is {input!r} with new elements joined to it: a cache that grows with every step",
    CARRIED: "{sites} {start} from {input!r} and {end} in {output!r}, at the same places",
}
_SAID = "{output!r} has the shape of {input!r} and a name that pairs with it by convention"


def external_reason(edge: Edge, sites: Sequence[Site]) -> str:
    """Why an output carries the updated value of an input; ``sites`` are the carries that start from the input."""
    start, end = ("starts", "ends") if len(sites) == 1 else ("start", "end")
    if edge.why:
        return f"{edge.output!r} has the shape of {edge.source!r} and {edge.why}"
    words = {"input": edge.source, "output": edge.output, "sites": _listed(sites), "start": start, "end": end}
    return _EXTERNAL.get(edge.rank, _SAID).format(**words)


def internal_reason(site: Site, flow: DataFlow) -> str:
    """Why every call forgets what a recurrence carries."""
    deps = sorted(site.initial.deps) if site.initial is not None else []
    if site.initial is None:
        start = "has no initial value, so it starts from zeros"
    elif deps:
        start = f"starts from what is computed from {', '.join(map(repr, deps))}"
    else:
        start = "starts from a constant"
    carry = f"{site.slot} of {site.operator} {site.label!r}"
    if not site.forward:
        return (
            f"{carry} {start} at every call and runs backwards from the last frame, so that no later call can go on "
            "from it"
        )
    ids = site.final.ids
    outputs = [
        name
        for name, output in flow.outputs.items()
        if ids is not None and output.ids is not None and bool(np.isin(output.ids, ids).any())
    ]
    end = f"becomes only the output {outputs[0]!r}, which no input takes back" if outputs else "becomes no output"
    return f"{carry} {start} at every call, and its final value {end}"


def _listed(sites: Sequence[Site]) -> str:
    """The carries of some recurrences: ``h and c of LSTM 'a', h of GRU 'b'``."""
    slots: dict[str, list[str]] = {}
    for site in sites:
        slots.setdefault(f"{site.operator} {site.label!r}", []).append(site.slot)
    parts = [f"{' and '.join(dict.fromkeys(names))} of {label}" for label, names in slots.items()]
    return ", ".join(parts if len(parts) <= 4 else [*parts[:3], f"and {len(parts) - 3} more"])
