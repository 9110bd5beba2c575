"""One step of networks in steps: NumPy in, NumPy out, with the state carried by the caller."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import own
from benchmarks.networks import OTHERS, SPEECH, Entry, describe, load, random_frames
from benchmarks.peers import RefusedError, is_installed, open_all, outputs_over
from benchmarks.plan import Cases, Plan, timed
from benchmarks.results import Row

TITLE = "one step, state carried, NumPy in and out"
UNIT = "us"

#: Frames over which the outputs are compared.
COMPARED = 10


def cases(plan: Plan) -> Cases:
    """Return a case for each network."""
    return {
        entry.file: functools.partial(_rows, plan, entry, group)
        for group, entries in (("speech", SPEECH), ("other", OTHERS))
        for entry in entries
    }


def _rows(plan: Plan, entry: Entry, group: str) -> Iterator[Row]:
    model = load(entry)
    network = describe(entry, model)
    forms: dict[str, Any] = own.steppers(model, entry.dims)
    peers, refused = open_all(network, plan.threads)
    if is_installed("LiteRT") and importlib.util.find_spec("litert_converter") is not None:
        try:
            forms[own.IN_LITERT] = own.in_litert(model, network, plan.threads, entry.dims)
        except RefusedError as error:
            refused[own.IN_LITERT] = str(error)
    steppers = forms | peers
    frames = [random_frames(model, entry.dims, seed=seed) for seed in range(COMPARED)]
    outputs = {name: outputs_over(stepper, frames) for name, stepper in steppers.items()}
    calls: dict[str, Callable[[], Any]] = {
        name: functools.partial(stepper, network.frame) for name, stepper in steppers.items()
    }
    calls |= beside(model, entry, forms[own.RUNNER], network.frame)
    row = timed(entry.file, group, calls, plan.effort(41), outputs=outputs, refused=refused)
    if own.EXECUTABLE in row.margins:
        row.facts["us of the runner itself"] = row.margins[own.EXECUTABLE]
    yield row


def beside(model: Any, entry: Entry, runner: Any, frame: Any) -> dict[str, Callable[[], Any]]:
    """Return the forms of jaxrnn without NumPy outputs: with device arrays, and the executable without the runner."""
    placed = own.OnDevice(model, model.pack(model.params, dims=entry.dims), model.init())
    calls: dict[str, Callable[[], Any]] = {own.ON_DEVICE: functools.partial(placed, placed.place(frame))}
    bare = own.executable_of(runner, frame)
    if bare is not None:
        calls[own.EXECUTABLE] = functools.partial(bare, frame)
    return calls
