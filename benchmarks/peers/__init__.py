"""The other engines at their best settings, one module each, with one interface.

Each module has ``open_network(network, threads)``, which returns a `Stepper`. Results list engines that are not
installed, and engines that refuse a network.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from types import ModuleType

from benchmarks.peers.base import Arrays, Network, RefusedError, Stepper, one_line, outputs_over

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
