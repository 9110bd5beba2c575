"""The other engines at their best settings, one module each, with one interface.

Each module has ``open_network(network, threads)``, which returns a `Stepper`. Results list engines that are not
installed, and engines that refuse a network.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np

#: The package to import, the package to install, and the module here, by engine.
ENGINES = {
    "ONNX Runtime": ("onnxruntime", "onnxruntime", "onnx_runtime"),
    "tract": ("tract", "tract", "tract"),
    "LiteRT": ("ai_edge_litert", "ai-edge-litert", "litert"),
    "OpenVINO": ("openvino", "openvino", "openvino"),
    "PyTorch": ("torch", "torch", "pytorch"),
}

#: Engines that read networks from files.
READERS = ("ONNX Runtime", "tract", "LiteRT", "OpenVINO")


def is_installed(engine: str) -> bool:
    """Return True if the package of an engine is installed."""
    return importlib.util.find_spec(ENGINES[engine][0]) is not None


def absent() -> dict[str, str]:
    """Return engines that are not installed, with the packages to install."""
    return {engine: package for engine, (_, package, _) in ENGINES.items() if not is_installed(engine)}


def engine_module(engine: str) -> ModuleType:
    """Import the module of an engine, and with it the engine."""
    return importlib.import_module(f"benchmarks.peers.{ENGINES[engine][2]}")


def open_all(
    network: Network, threads: int, engines: Sequence[str] = READERS
) -> tuple[dict[str, Stepper], dict[str, str]]:
    """Open the network in each installed engine; return the opened networks, and the reasons of the others."""
    opened: dict[str, Stepper] = {}
    refused: dict[str, str] = {}
    for engine in engines:
        if is_installed(engine):
            try:
                stepper = engine_module(engine).open_network(network, threads)
                stepper(network.frame)
                stepper.reset()
                opened[engine] = stepper
            except Exception as error:  # errors of engines have no common type
                refused[engine] = one_line(error)
    return opened, refused


Arrays = Mapping[str, np.ndarray]

_LONGEST = 200


class RefusedError(RuntimeError):
    """An error for a network that an engine refuses."""


@dataclass(frozen=True)
class Network:
    """A file with the roles of its inputs and outputs, for processes without JAX too.

    Attributes:
        path: the ONNX file; files for other engines are beside it.
        frame: an example of the inputs of one call by name, without state and fixed inputs.
        declared: names of all outputs, in the file's order.
        outputs: names of the outputs that are not state.
        state: pairs of a state input and the output with its updated value.
        start: the state before the first call, by input.
        fixed: inputs that are the same in every call.
    """

    path: Path
    frame: Arrays
    declared: tuple[str, ...]
    outputs: tuple[str, ...]
    state: tuple[tuple[str, str], ...] = ()
    start: Arrays = field(default_factory=dict)
    fixed: Arrays = field(default_factory=dict)

    @property
    def wanted(self) -> list[str]:
        """The names of the outputs of a frame, then of the state."""
        return [*self.outputs, *(updated for _, updated in self.state)]

    @property
    def feeds(self) -> dict[str, np.ndarray]:
        """The arrays of the first call, by input."""
        return {**self.frame, **self.start, **self.fixed}


class Stepper(Protocol):
    """A network in an engine, with its state; without state, a plain function."""

    def __call__(self, frame: Arrays) -> dict[str, Any]:
        """Return the outputs of one call by name, as NumPy arrays that later calls do not change."""
        ...

    def reset(self) -> None:
        """Restore the state before the first call."""
        ...


def outputs_over(stepper: Stepper, frames: Sequence[Arrays]) -> dict[str, np.ndarray]:
    """Return the outputs of a fresh stream over some frames, stacked along a new first axis."""
    stepper.reset()
    found = [stepper(frame) for frame in frames]
    return {name: np.stack([np.asarray(values[name]) for values in found]) for name in found[0]}


def one_line(error: BaseException) -> str:
    """Shorten the message of an engine to one line, because engines append whole stacks."""
    text = str(error).split("Stack backtrace")[0]
    line = " ".join(text.split()) or type(error).__name__
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
