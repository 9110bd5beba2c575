"""What determines results besides the corpus: the system with its parameters, and what it runs on."""

from __future__ import annotations

import hashlib
import platform
from pathlib import PurePath
from typing import Any

import jax
import numpy as np

from jaxrnn.evaluation.systems import System
from jaxrnn.steps.stepper import Stepper
from jaxrnn.version import __version__


def identity_of(system: System) -> dict[str, Any]:
    """The ``identity`` of a system as plain values; empty where it has none."""
    return {"system": system.identity} if hasattr(system, "identity") else {}  # pyright: ignore[reportAttributeAccessIssue]


def stepper_identity(stepper: Stepper, params: Any) -> dict[str, Any]:
    """A stepper with its parameters as plain values, which change with its program, its bound values and its weights.

    A stepper without a ``fingerprint`` is known by its spec.

    Args:
        stepper: what runs.
        params: the parameters that it runs with.
    """
    program = getattr(stepper, "fingerprint", None)
    return {
        "model": PurePath(stepper.spec.label).name,
        "program": stepper.spec.to_json() if program is None else program,
        "params": _digest(params),
    }


def _digest(arrays: Any) -> str:
    digest = hashlib.sha256()
    for place, array in jax.tree_util.tree_leaves_with_path(arrays):
        values = np.asarray(array)
        digest.update(f"{jax.tree_util.keystr(place)} {values.dtype} {values.shape}\n".encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def surroundings() -> dict[str, Any]:
    """What else results may depend on. Another version or kind of device makes another evaluation."""
    device = jax.devices()[0]
    return {
        "jaxrnn": __version__,
        "jax": jax.__version__,
        "device": device.platform,
        "kind of device": device.device_kind,
        "devices": jax.local_device_count(),
        "machine": platform.machine(),
    }
