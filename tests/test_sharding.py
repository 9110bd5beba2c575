"""Data-parallel training by `jax.shard_map` and by `NamedSharding`: the gradients of four devices are those of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from quick_compiling import QUICK_COMPILER

SCRIPT = Path(__file__).parent / "sharded_run.py"


@pytest.mark.thorough
def test_gradients_of_four_devices_are_those_of_one():
    flags = f"{os.environ.get('XLA_FLAGS', '')} {QUICK_COMPILER} --xla_force_host_platform_device_count=4"
    compiled = {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "XLA_FLAGS": flags}
    ran = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env={**os.environ, **compiled},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    differences = json.loads(ran.stdout)
    assert {name.split(", ")[0] for name in differences} >= {"apply", "step", "scan", "stream.step", "stream.flush"}
    # Devices sum the same float32 terms in another order.
    assert {name: value for name, value in differences.items() if not value < 1e-6} == {}
