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
OPTIONS = {"steps": 11, "batch_size": 3, "chunk": 4, "every": 4, "learning_rate": 0.02, "clip_norm": 0.5}


def start(devices=1, **options):
    """A process with so many CPU devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), json.dumps({"lengths": LENGTHS, "validate": True, **options})],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(*processes):
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(outputs)
    assert not any("Warning" in output for output in outputs), "\n".join(outputs)


def read(path):
    with np.load(path) as file:
        found = {name: file[name] for name in file.files}
    return found, json.loads(str(found.pop("extra")))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    out = tmp_path_factory.mktemp("alone") / "out.npz"
    finish(start(out=str(out), fit=OPTIONS))
    return read(out)[0]


@pytest.mark.thorough
def test_two_devices_train_as_one(alone, tmp_path):
    """Batches of 4, and of 2 at the end of an epoch; and of 3, which do not divide, against one device here."""
    processes = [
        start(2, out=str(tmp_path / "odd.npz"), fit=OPTIONS),
        start(2, out=str(tmp_path / "even.npz"), fit={**OPTIONS, "batch_size": 4}),
    ]
    finish(*processes)
    found, extra = read(tmp_path / "odd.npz")
    assert extra["devices"] == 2
    assert furthest(alone, found) < 1e-5
    even, _ = read(tmp_path / "even.npz")
    options = {**OPTIONS, "batch_size": 4}
    expected = flat_fit(
        recurrent_model("time"), examples(LENGTHS), mean_square, time_axis=1, devices=jax.devices()[:1], **options
    )
    last = {name.removeprefix("last/"): value for name, value in even.items() if name.startswith("last/")}
    assert furthest(expected.last_params, last) < 1e-5
