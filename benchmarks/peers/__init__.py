"""The other engines, one file each, at their best settings, behind one small interface.

A file of an engine has ``open_network(network, threads)``, which gives a `Stepper`. An engine that is not installed is
left out, and so is one that refuses a network; both are said.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from types import ModuleType

from benchmarks.peers.base import Arrays, Network, RefusedError, Stepper, one_line, outputs_over

#: By engine: the package to import, what to install, and the file here.
ENGINES = {
    "ONNX Runtime": ("onnxruntime", "onnxruntime", "onnx_runtime"),
    "tract": ("tract", "tract", "tract"),
    "LiteRT": ("ai_edge_litert", "ai-edge-litert", "litert"),
    "OpenVINO": ("openvino", "openvino", "openvino"),
    "PyTorch": ("torch", "torch", "pytorch"),
}

#: Those that read networks from files.
READERS = ("ONNX Runtime", "tract", "LiteRT", "OpenVINO")


def is_installed(engine: str) -> bool:
    """Whether the engine's package is there."""
    return importlib.util.find_spec(ENGINES[engine][0]) is not None


def absent() -> dict[str, str]:
    """Engines that are not installed, and what to install."""
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
            except Exception as error:  # an engine's own errors have no common type
                refused[engine] = one_line(error)
    return opened, refused


__all__ = [
    "ENGINES",
    "READERS",
    "Arrays",
    "Network",
    "RefusedError",
    "Stepper",
    "absent",
    "engine_module",
    "is_installed",
    "one_line",
    "open_all",
    "outputs_over",
]
