"""Data parallelism: two devices train to what one device does with the same batches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from training_cases import examples, flat_fit, furthest, mean_square, recurrent_model

SCRIPT = Path(__file__).parent / "training_run.py"
LENGTHS = [5, 9, 7, 4, 6, 8]
OPTIONS = {"steps": 11, "batch_size": 4, "chunk": 4, "every": 4, "learning_rate": 0.02, "clip_norm": 0.5}


@pytest.mark.thorough
def test_two_devices_train_as_one(tmp_path):
    """Batches of 4, and of 2 at the end of an epoch. In the tests of hosts, batches do not divide."""
    out = tmp_path / "out.npz"
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    ran = subprocess.run(
        [
            sys.executable,
            str(SCRIPT),
            json.dumps({"lengths": LENGTHS, "validate": True, "out": str(out), "fit": OPTIONS}),
        ],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    assert "Warning" not in ran.stdout + ran.stderr
    with np.load(out) as file:
        found = {name: file[name] for name in file.files}
    assert json.loads(str(found["extra"]))["devices"] == 2
    expected = flat_fit(
        recurrent_model("time"),
        examples(LENGTHS),
        mean_square,
        time_axis=1,
        devices=jax.devices()[:1],
        validation=examples([4, 6, 5], seed=5),
        **OPTIONS,
    )
    for part, params in (("best", expected.params), ("last", expected.last_params)):
        assert furthest(params, {name: found[f"{part}/{name}"] for name in params}) < 1e-5
    np.testing.assert_allclose(found["losses"], [record["loss"] for record in expected.history], rtol=0, atol=1e-5)
