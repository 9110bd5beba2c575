"""Several processes and devices train as one, are refused where they differ, and end together."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import onnx
import pytest
import yaml
from click.testing import CliRunner
from quick_compiling import QUICK_COMPILER, QUICK_ENVIRONMENT
from refusals import check_refused
from training_cases import examples, flat_fit, furthest, in_order, mean_square, recurrent_model, same

import jaxrnn
from jaxrnn.cli import main
from jaxrnn.cli.finetune import Hosts, _agreed_interrupts
from jaxrnn.training import agreement, sharding
from jaxrnn.training.agreement import check_alike, check_shared
from jaxrnn.training.settings import prepare_training
from jaxrnn.training.sharding import AgreedInterrupt, Placement

LENGTHS = [5, 9, 7, 4, 6, 8]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--processes 2", "--processes and --process need --coordinator HOST:PORT"),
        ("--coordinator here --processes 2 --process 0", "HOST:PORT of process 0, 'auto' or 'none', not 'here'"),
        ("--coordinator here:1 --processes 2", "Give both --processes"),
        ("--coordinator here:1 --processes 2 --process 2", "--process 2: the last of 2 is 1"),
    ],
)
def test_bad_options_are_refused(options, said):
    result = CliRunner().invoke(main, ["finetune", "settings.yaml", *options.split()])
    assert result.exit_code == 2
    assert said in result.output


@pytest.mark.parametrize(
    ("options", "environment", "expected"),
    [
        ((None,), {}, False),
        ((None,), {"SLURM_NTASKS": "8", "SLURM_STEP_NODELIST": "a"}, True),
        ((None,), {"SLURM_NTASKS": "8"}, False),  # a batch script without srun
        ((None,), {"OMPI_COMM_WORLD_SIZE": "2"}, True),
        ((None,), {"OMPI_COMM_WORLD_SIZE": "1"}, False),
        (("none",), {"OMPI_COMM_WORLD_SIZE": "2"}, False),
        (("auto",), {}, True),
        (("here:1", 2, 0), {}, True),
    ],
)
def test_a_launcher_or_an_option_makes_several_processes(options, environment, expected, monkeypatch):
    for name in ("SLURM_NTASKS", "SLURM_STEP_NODELIST", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert Hosts(*(*options, None, None)[:3], 30).are_several is expected


def test_ctrl_c_is_agreed_once(capsys):
    """The first Ctrl-C is SIGTERM, which JAX tells all processes of; the second ends at once, as without."""
    caught = []
    # A process that was started in the background ignores SIGINT.
    before = [
        (each, signal.signal(each, handler))
        for each, handler in (
            (signal.SIGTERM, lambda number, frame: caught.append(number)),
            (signal.SIGINT, signal.default_int_handler),
        )
    ]
    try:
        with _agreed_interrupts():
            signal.raise_signal(signal.SIGINT)
            assert caught == [signal.SIGTERM]
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        for each, handler in before:
            signal.signal(each, handler)
    assert capsys.readouterr().err == "ending after this update; Ctrl-C again ends at once\n"


def test_processes_that_differ_are_refused(monkeypatch):
    placement = Placement(None, 2)
    placement.processes = 2
    facts = {"steps": 3, "trained": ["a"], "parameters": "12"}

    def others(**changes):
        def gather(text):
            return [text, json.dumps({**json.loads(text), **changes})]

        monkeypatch.setattr(agreement, "gather_texts", gather)
        check_alike(placement, facts)

    others()
    for change, said in (
        ({"steps": 4}, "process 1 differs from process 0: steps is 3 in process 0 and 4 in process 1"),
        ({"trained": []}, "trained: 'a' only in process 0"),
        ({"parameters": "21"}, "the parameters have other values"),
        ({"versions": {"jaxrnn": "0", "jax": jax.__version__}}, 'and "0" in process 1'),
    ):
        check_refused(jaxrnn.TrainingError, said, others, **change)
    monkeypatch.undo()
    assert sharding.gather_texts("alone") == ["alone"]


def test_a_folder_that_not_all_see_is_refused(tmp_path, monkeypatch):
    placement = Placement(None, 2)
    placement.processes = 2
    views = []

    def gather(text):
        views.append(text)
        return [text, text if len(views) % 2 else json.dumps(["/elsewhere", seen])]

    monkeypatch.setattr(agreement, "gather_texts", gather)
    monkeypatch.setattr(Placement, "agree", lambda *_: None)
    seen = True
    check_shared(placement, tmp_path / "run")
    seen = False
    with pytest.raises(
        jaxrnn.TrainingError, match=r"process 1 does not see in /elsewhere what process 0 writes to .*run:"
    ):
        check_shared(placement, tmp_path / "run")
    assert not any((tmp_path / "run").iterdir())


@pytest.mark.nightly
def test_an_agreed_interrupt_leaves_a_checkpoint(tmp_path, monkeypatch):
    """Of the update after which it came; the rerun ends as a training that nobody interrupted."""
    model, options = recurrent_model("time"), {"time_axis": 1, "batch_size": 3, "learning_rate": 0.02}

    def train(steps, **rest):
        return flat_fit(model, examples(LENGTHS), mean_square, steps=steps, **options, **rest)

    def interrupt(self, step):
        if step == 3:
            raise AgreedInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Placement, "check_interrupt", interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(6, checkpoints=tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").iterdir() if path.is_dir()) == ["3"]
    assert same(train(6, checkpoints=tmp_path / "run").params, train(6).params)


FUNCTIONS = """
import os
import time
from training_cases import examples

class Made:
    def __init__(self, lengths, log=None):
        self.examples, self.log = examples(lengths), log

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, index):
        time.sleep(float(os.environ.get("DELAY", 0)))
        if self.log is not None:
            with open(f"{self.log}.{os.environ['NUMBER']}", "a") as file:
                file.write(f"{index}\\n")
        return self.examples[index]
"""


@pytest.fixture
def settings(tmp_path):
    onnx.save(recurrent_model("time").proto, tmp_path / "net.onnx")
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    content = {
        "model": "net.onnx",
        "data": {"function": "functions.py:Made", "arguments": {"lengths": LENGTHS, "log": str(tmp_path / "read")}},
        "loss": {"name": "mse", "output": "y", "target": "target", "time_axis": 1},
        "sequences": {"time_axis": 1, "chunk": 4, "bucket": 12},
        "steps": 12,
        "batch_size": 3,
        "optimizer": {"learning_rate": 0.02, "clip_norm": 0.5},
        "validation": {"function": "functions.py:Made", "arguments": {"lengths": [4, 6, 5]}, "every": 4},
        "checkpoints": {"folder": "${RUN}/checkpoints", "every": 2},
        "export": "${RUN}/out.onnx",
    }
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def start(settings, run, count, devices, slurm=False, delay=0):
    """So many processes with so many CPU devices each; several find each other by options, or as Slurm starts them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    flags = f"{QUICK_COMPILER} --xla_force_host_platform_device_count={devices}"
    common = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "RUN": str(run)}
    common["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    processes = []
    for number in range(count):
        own = {"NUMBER": str(number), "DELAY": str(delay)}
        options = ["--coordinator", f"127.0.0.1:{port}", "--processes", str(count), "--process", str(number)]
        if slurm or count == 1:
            options = []
        if slurm:
            own |= {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_LOCALID": str(number)}
            own |= {"SLURM_NTASKS": str(count), "SLURM_PROCID": str(number), "JAX_COORDINATOR_PORT": port}
        command = [sys.executable, "-m", "jaxrnn", "finetune", str(settings), "--no-cache", "--json"]
        command += ["--lost-after", "10", *options]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen(command, env={**os.environ, **common, **own}, **pipes))
    return processes


def finish(processes):
    """What each process printed, its errors and its exit status."""
    outputs = [process.communicate(timeout=300) for process in processes]
    return [(*output, process.returncode) for output, process in zip(outputs, processes, strict=True)]


@pytest.mark.nightly
def test_processes_train_as_one(settings, tmp_path, monkeypatch):
    """Two with two devices each, one of which is interrupted, two that continue, the first of which is killed while it
    writes a checkpoint, and one with four devices that continues again: to what one process gives, up to rounding.
    """
    out = tmp_path / "ended"
    running = start(settings, out, 2, 2, slurm=True, delay=0.6)  # JAX looks for a signal every second
    while not (out / "checkpoints" / "6").exists():
        assert all(process.poll() is None for process in running), finish(running)
        time.sleep(0.001)
    running[1].send_signal(signal.SIGINT)
    (_, first, _), (said, second, _) = ends = finish(running)
    assert [status for *_, status in ends] == [130, 130]
    assert said == "", "process 0 alone prints"
    assert "interrupted; run the same command again" in first
    assert "ending after this update; Ctrl-C again ends at once" in second
    # Each makes its own rows of a batch of 3, which 4 devices fill up with the first. All look at examples first.
    batches = list(in_order(6, 3, 9))
    for number, rows in enumerate([(0, 1), (2, 0)]):
        own = [0, 0, 3, 5, *(batch[row] for batch in batches for row in rows)]
        read = [int(line) for line in (tmp_path / f"read.{number}").read_text().split()]
        assert read == own[: len(read)]
        assert len(read) > 4

    running = start(settings, out, 2, 2)
    while not any(out.glob("checkpoints/10.orbax-checkpoint-tmp*")):
        assert all(process.poll() is None for process in running), finish(running)
        time.sleep(0.001)
    running[0].kill()
    assert {status for *_, status in finish(running)} == {-signal.SIGKILL, -signal.SIGABRT}

    ((said, _, status),) = finish(start(settings, out, 1, 4))
    assert status == 0
    assert json.loads(said)["steps"] == 12

    monkeypatch.setenv("RUN", str(tmp_path / "one"))
    monkeypatch.setenv("NUMBER", "alone")
    expected = prepare_training(settings).run(progress=False).params
    found = jaxrnn.load(out / "out.onnx").params
    assert furthest(expected, found) < of_another_order(updates=12)


def of_another_order(updates):
    """The most that parameters may differ by if the gradients of a batch are added up in another order.

    A few roundings of a gradient, each 6e-8 of the gradient, which adam divides by its size: so many updates of 0.02
    with some roundings each, and the rounding of the parameter itself.
    """
    return updates * 0.02 * 8 * 6e-8 + 2e-7


SCRIPT = Path(__file__).parent / "training_cases.py"
OPTIONS = {"steps": 11, "batch_size": 4, "chunk": 4, "every": 4, "learning_rate": 0.02, "clip_norm": 0.5}


@pytest.mark.thorough
def test_two_devices_train_as_one(tmp_path):
    """Batches of 4, and of 2 at the end of an epoch. Above, batches do not divide."""
    out = tmp_path / "out.npz"
    flags = f"{QUICK_COMPILER} --xla_force_host_platform_device_count=2"
    ran = subprocess.run(
        [
            sys.executable,
            str(SCRIPT),
            json.dumps({"lengths": LENGTHS, "validate": True, "out": str(out), "fit": OPTIONS}),
        ],
        env={**os.environ, **QUICK_ENVIRONMENT, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    assert "Warning" not in ran.stdout + ran.stderr
    with np.load(out) as file:
        found = {name: file[name] for name in file.files}
    assert found["devices"] == 2
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
        assert furthest(params, {name: found[f"{part}/{name}"] for name in params}) < of_another_order(updates=11)
    losses, norms = (np.array([record[key] for record in expected.history]) for key in ("loss", "grad_norm"))
    # Some roundings of its own, and what the parameters differ by along the gradient.
    assert (np.abs(found["losses"] - losses) < 8 * 6e-8 * losses + norms * of_another_order(updates=11)).all()
