"""Checkpoints: a training that was killed, interrupted, or robbed of a file or the disk ends as if it never was."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import optax
import pytest
from refusals import check_refused
from tiers import of_tiers
from training_cases import examples, flat_fit, mean_square, recurrent_model, same

import jaxrnn
from jaxrnn.demo import PACKAGED
from jaxrnn.training import (
    Checkpoints,
    Optimizer,
    Sequences,
    TrainingError,
    Validation,
    fit,
    load_checkpoint,
    losses,
    validate,
)

SCRIPT = Path(__file__).parent / "training_cases.py"
DATA = examples([5, 9, 7, 4, 6, 8, 3])
#: Chunks, so that most checkpoints fall inside a batch; 3 batches in an epoch, the last one of one example.
OPTIONS = {"batch_size": 3, "time_axis": 1, "chunk": 3, "every": 4, "learning_rate": 0.02, "clip_norm": 0.5}


@pytest.fixture(scope="module")
def model():
    return recurrent_model("time")


@pytest.fixture(scope="module")
def whole(model):
    """A training that was never interrupted."""
    return flat_fit(model, DATA, mean_square, steps=23, **OPTIONS)


def command(**options):
    return [
        sys.executable,
        str(SCRIPT),
        json.dumps({**options, "folder": str(options["folder"]), "out": str(options["out"])}),
    ]


def read(path):
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


@pytest.mark.nightly
def test_killed_it_ends_as_if_it_never_was(model, tmp_path):
    """SIGKILL at a random moment, perhaps in the middle of writing a checkpoint. The tests of hosts resume twice."""
    lengths, fit_options = [5, 9, 7, 4, 6], {**OPTIONS, "steps": 12, "batch_size": 2, "every": 2, "bucket": 9}
    whole = flat_fit(model, examples(lengths), mean_square, validation=examples([4, 6, 5], seed=5), **fit_options)
    del fit_options["time_axis"]
    options = {"lengths": lengths, "validate": True, "folder": tmp_path / "killed", "out": tmp_path / "out.npz"}
    process = subprocess.Popen(command(fit=fit_options, delay=0.2, **options))  # or it would be over before
    # Until it has gone on a little, and then some milliseconds more: about what a checkpoint takes to be written.
    while process.poll() is None and len(_steps(options["folder"])) < 2:
        time.sleep(0.002)
    time.sleep(random.uniform(0, 0.15))
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not options["out"].exists()
    result = subprocess.run(command(fit=fit_options, **options), check=True, capture_output=True, text=True)
    assert result.stdout == ""
    assert re.fullmatch(r"Resumed from update \d+\n", result.stderr)
    found = read(options["out"])
    assert same({n.removeprefix("best/"): found[n] for n in found if n.startswith("best/")}, whole.params)
    assert same({n.removeprefix("last/"): found[n] for n in found if n.startswith("last/")}, whole.last_params)
    assert list(found["losses"]) == [record["loss"] for record in whole.history]
    assert list(found["steps"]) == list(range(1, 13))


def _steps(folder):
    return {entry for entry in os.listdir(folder) if entry.isdigit()} if folder.exists() else set()


@pytest.mark.thorough
@pytest.mark.usefixtures("no_new_thread")
def test_resumed_wherever_it_stopped(model, whole, tmp_path, capfd):
    """In the same process, after each of some numbers of updates, inside batches and at their ends."""
    for steps in (4, 6, 23):
        flat_fit(model, DATA, mean_square, steps=steps, checkpoints=tmp_path, keep=2, **OPTIONS)
    fitted = flat_fit(model, DATA, mean_square, steps=23, checkpoints=tmp_path, keep=2, **OPTIONS)
    assert same(fitted.params, whole.params)
    assert [r["loss"] for r in fitted.history] == [r["loss"] for r in whole.history]
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.isdigit()) == ["20", "23"]
    assert same(load_checkpoint(tmp_path, model), whole.params)
    said = "".join(f"Resumed from update {steps}\n" for steps in (4, 6, 23))
    assert capfd.readouterr() == ("", said)
    assert logging.getLogger("absl").level == logging.NOTSET or logging.getLogger("absl").level < logging.CRITICAL


def test_the_best_is_kept_and_loaded(model, tmp_path):
    held_out = examples([6, 4], seed=3)
    options = {**OPTIONS, "learning_rate": 0.2, "validation": held_out, "every": 3, "freeze": "B"}
    start = {**model.params, "B": model.params["B"] + 0.25}
    fitted = flat_fit(model, DATA, mean_square, steps=40, params=start, checkpoints=tmp_path, keep=1, **options)
    assert fitted.best_step < 37
    assert sorted(int(p.name) for p in tmp_path.iterdir() if p.name.isdigit()) == [fitted.best_step, 40]
    assert same(load_checkpoint(tmp_path, model), fitted.params)
    assert same(load_checkpoint(tmp_path), fitted.params)  # the frozen parameter too: it is not the file's
    assert same(load_checkpoint(tmp_path, model, best=False), fitted.last_params)
    assert same(load_checkpoint(tmp_path, model, step=fitted.best_step), fitted.params)
    measured = validate(
        model, load_checkpoint(tmp_path, model), held_out, mean_square, sequences=Sequences(time_axis=1)
    )
    assert measured["loss"] == pytest.approx(min(r.get("validation_loss", 9) for r in fitted.history), rel=1e-6)
    again = flat_fit(model, DATA, mean_square, steps=40, params=start, checkpoints=tmp_path, keep=1, **options)
    assert same(again.params, fitted.params)
    assert again.best_step == fitted.best_step
    check_refused(jaxrnn.InputError, "no checkpoint after update 5", load_checkpoint, tmp_path, model, step=5)
    check_refused(jaxrnn.InputError, "no folder", load_checkpoint, tmp_path / "other", model)
    check_refused(jaxrnn.InputError, "another model", load_checkpoint, tmp_path, jaxrnn.load(PACKAGED))


@pytest.mark.parametrize(("every", "lost"), of_tiers([(4, (12, 16, 20, 24)), (7, (21, 24))], [], [(7, (21, 24))]))
def test_validations_and_checkpoints_each_in_their_own_time(model, tmp_path, every, lost):
    """Resumed between two validations, with the best parameters in a checkpoint after another update than theirs."""
    options = {
        "steps": 24,
        "batch_size": 3,
        "optimizer": Optimizer(learning_rate=0.2),
        "sequences": Sequences(time_axis=1, chunk=3),
        "validation": Validation(examples([6, 4], seed=3), every=3),
    }
    whole = fit(model, DATA, mean_square, **options)
    measured = {r["step"]: r["validation_loss"] for r in whole.history if "validation_loss" in r}
    assert list(measured) == list(range(3, 25, 3))
    kept = Checkpoints(tmp_path, every=every, keep=9)
    fit(model, DATA, mean_square, checkpoints=kept, **options)
    for step in lost:
        shutil.rmtree(tmp_path / str(step))
    again = fit(model, DATA, mean_square, checkpoints=kept, **options)
    assert {r["step"]: r["validation_loss"] for r in again.history if "validation_loss" in r} == measured
    assert again.best_step == whole.best_step
    assert same(again.params, whole.params)
    assert same(again.last_params, whole.last_params)


def _truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _garble(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))


# Orbax gives up on the first file that it cannot read while its threads read the others.
# Orbax gives up on the first file that it cannot read while its threads read the others.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("damage", of_tiers([_truncate, _garble, Path.unlink], [_garble], thorough=[_truncate]))
def test_a_damaged_checkpoint_is_passed_over(model, whole, tmp_path, damage):
    """Each file of the newest checkpoint in turn: the one before is used, and the end is the same."""
    flat_fit(model, DATA, mean_square, steps=20, checkpoints=tmp_path / "good", **OPTIONS)
    files = [p.relative_to(tmp_path / "good") for p in sorted((tmp_path / "good" / "20").rglob("*")) if p.is_file()]
    assert len(files) > 5
    passed_over = 0
    for index, file in enumerate([*random.Random(1).sample(files, 3), Path("20/facts/metadata")]):
        folder = tmp_path / str(index)
        subprocess.run(["cp", "-r", tmp_path / "good", folder], check=True)
        damage(folder / file)
        with warnings.catch_warnings(record=True, action="always") as caught:
            load_checkpoint(folder, model)
        if not caught:
            continue  # this file did not matter
        passed_over += 1
        with pytest.warns(UserWarning, match=r"20 cannot be read .* going back to that after update 16"):
            fitted = flat_fit(model, DATA, mean_square, steps=23, checkpoints=folder, **OPTIONS)
        assert same(fitted.params, whole.params)
        assert {"16", "20", "23", "unreadable-20"} <= {p.name for p in folder.iterdir()}
    assert passed_over


@pytest.mark.parametrize(
    "foreign",
    of_tiers(
        ["900/default/x", "900/_CHECKPOINT_METADATA", "3/default/x", "2/other/x"], ["3/default/x"], ["900/default/x"]
    ),
)
def test_what_is_no_checkpoint_is_left_alone(model, whole, tmp_path, foreign):
    """Whatever Orbax takes it for: it hides no checkpoint, is counted for none, and stays."""
    options = {**OPTIONS, "checkpoints": tmp_path, "keep": 1}
    flat_fit(model, DATA, mean_square, steps=20, **options)
    (tmp_path / foreign).parent.mkdir(parents=True)
    (tmp_path / foreign).write_text("mine")
    place = foreign.partition("/")[0]
    said = rf"/{place} is not a checkpoint of a training: the folder has neither arrays nor facts; it is skipped"
    with pytest.warns(UserWarning, match=said):
        load_checkpoint(tmp_path, model)
    with pytest.warns(UserWarning, match=said):
        fitted = flat_fit(model, DATA, mean_square, steps=23, **options)
    assert same(fitted.params, whole.params)
    assert (tmp_path / foreign).read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([place, "23", "history.jsonl", "lock"])
    with pytest.raises(jaxrnn.InputError, match=rf"no checkpoint after update {place} .* there are: \[23\]"):
        load_checkpoint(tmp_path, model, step=int(place))


def test_a_checkpoint_with_a_fifo_in_it_is_passed_over(model, tmp_path):
    """Reading it would never end."""
    flat_fit(model, DATA, mean_square, steps=8, checkpoints=tmp_path, **OPTIONS)
    (tmp_path / "8" / "facts" / "metadata").unlink()
    os.mkfifo(tmp_path / "8" / "facts" / "metadata")
    with pytest.warns(UserWarning, match="8 cannot be read .*FIFO.* going back to that after update 4"):
        load_checkpoint(tmp_path, model)


def test_with_nothing_left_to_read_it_stops(model, tmp_path):
    flat_fit(model, DATA, mean_square, steps=4, checkpoints=tmp_path, **OPTIONS)
    _truncate(tmp_path / "4" / "facts" / "metadata")
    with pytest.raises(TrainingError, match="none of the 1 checkpoint"):
        flat_fit(model, DATA, mean_square, steps=8, checkpoints=tmp_path, **OPTIONS)
    assert (tmp_path / "4").is_dir()


@pytest.mark.nightly
def test_a_full_disk_stops_and_loses_nothing(model, whole, tmp_path):
    """No file may grow beyond some bytes any more."""
    options = {"lengths": [5, 9, 7, 4, 6, 8, 3], "fit": {k: v for k, v in OPTIONS.items() if k != "time_axis"}}
    out, folder = tmp_path / "out.npz", tmp_path / "folder"
    options["fit"] |= {"steps": 23, "every": 4}
    flat_fit(model, DATA, mean_square, steps=8, checkpoints=folder, **OPTIONS)
    largest = max(p.stat().st_size for p in (folder / "8").rglob("*") if p.is_file())
    failed = subprocess.run(
        command(folder=folder, out=out, file_limit=largest // 2, **options), capture_output=True, text=True
    )
    assert failed.returncode != 0
    assert "TrainingError: the checkpoint after update 12 could not be written" in failed.stderr
    assert f"The last good checkpoint is {folder}/8" in failed.stderr
    assert sorted(p.name for p in folder.iterdir() if p.is_dir()) == ["4", "8"]
    assert same(flat_fit(model, DATA, mean_square, steps=23, checkpoints=folder, **OPTIONS).params, whole.params)


@pytest.mark.thorough
@pytest.mark.usefixtures("no_new_thread")
def test_interrupted_it_writes_a_checkpoint_and_hands_back_control(model, whole, tmp_path):
    class Interrupted(list):
        asked = 0

        def __getitem__(self, index):
            self.asked += 1
            if self.asked == 12:  # in the second batch of the second epoch
                raise KeyboardInterrupt
            return super().__getitem__(index)

    with pytest.raises(KeyboardInterrupt):
        flat_fit(model, Interrupted(DATA), mean_square, steps=23, checkpoints=tmp_path, **OPTIONS)
    steps = sorted(int(p.name) for p in tmp_path.iterdir() if p.name.isdigit())
    assert steps[-1] % OPTIONS["every"]  # not one that was due
    assert same(flat_fit(model, DATA, mean_square, steps=23, checkpoints=tmp_path, **OPTIONS).params, whole.params)


def test_an_interrupt_in_the_middle_of_writing_comes_behind_it(model, whole, tmp_path, monkeypatch):
    import orbax.checkpoint as ocp

    save = ocp.CheckpointManager.save

    def interrupted(manager, step, **options):
        if step == 8:
            signal.raise_signal(signal.SIGINT)  # which a process that was started in the background ignores
        return save(manager, step, **options)

    monkeypatch.setattr(ocp.CheckpointManager, "save", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            flat_fit(model, DATA, mean_square, steps=23, checkpoints=tmp_path, **OPTIONS)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    monkeypatch.undo()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["4", "8", "history.jsonl", "lock"]
    assert same(flat_fit(model, DATA, mean_square, steps=23, checkpoints=tmp_path, **OPTIONS).params, whole.params)


def test_other_settings_and_models_are_refused(model, tmp_path):
    flat_fit(model, DATA, mean_square, steps=2, checkpoints=tmp_path, **OPTIONS)
    before = sorted(p.name for p in tmp_path.rglob("*"))

    def refused(match, trained=model, loss=mean_square, **options):
        with pytest.raises(TrainingError, match=match):
            flat_fit(trained, DATA, loss, steps=4, checkpoints=tmp_path, **{**OPTIONS, **options})

    refused("batch_size is 3 in the checkpoint and 2 here", batch_size=2)
    refused("chunk is 3 in the checkpoint and absent here", chunk=None)
    refused("learning_rate is 0.02 in the checkpoint and 0.01 here", learning_rate=0.01)
    refused("options.b1 is absent in the checkpoint and 0.8 here", options={"b1": 0.8})
    refused('optimizer is "adam" in the checkpoint and "sgd" here', optimizer="sgd")
    refused("trained: 'P' only in the checkpoint", freeze="P")
    refused("seed is 0 in the checkpoint and 1 here", seed=1)
    refused("the starting parameters have other values", trained=recurrent_model("time", seed=1))
    other = recurrent_model("frames")
    refused(r"model.inputs: 'x: .*time, 3\]' only in the checkpoint, 'x: .*frames, 3\]' only here", trained=other)
    refused("loss is", loss=lambda outputs, example, mask: mean_square(outputs, example, mask))
    refused("learning_rate is 0.02 in the checkpoint and a schedule here", learning_rate=lambda update: 0.02)
    refused("resume=False", resume=False)
    assert sorted(p.name for p in tmp_path.rglob("*")) == before
    longer = flat_fit(model, DATA, mean_square, steps=4, checkpoints=tmp_path, **{**OPTIONS, "every": 1})
    assert longer.step == 4


def test_a_folder_has_one_training_at_a_time(model, whole, tmp_path):
    """A second one, here in the middle of the first, is refused, and disturbs nothing."""
    options, refused = {**OPTIONS, "checkpoints": tmp_path}, []

    class Watched(list):
        asked = 0

        def __getitem__(self, index):
            self.asked += 1
            if self.asked == 5:  # the first example is read before the folder is opened
                words = rf"another process keeps the checkpoints of a training in {tmp_path}: wait for its end"
                check_refused(jaxrnn.InputError, words, flat_fit, model, DATA, mean_square, steps=8, **options)
                refused.append(index)
            return super().__getitem__(index)

    flat_fit(model, DATA, mean_square, steps=4, **options)
    assert same(flat_fit(model, Watched(DATA), mean_square, steps=23, **options).params, whole.params)
    assert refused


def test_options_may_be_numbers_of_numpy(model, tmp_path):
    numbers = {name: np.int64(OPTIONS[name]) for name in ("batch_size", "chunk")} | {
        "clip_norm": np.float32(OPTIONS["clip_norm"])
    }
    flat_fit(model, DATA, mean_square, steps=2, checkpoints=tmp_path, **{**OPTIONS, **numbers})
    assert flat_fit(model, DATA, mean_square, steps=4, checkpoints=tmp_path, **OPTIONS).step == 4


@pytest.mark.thorough
def test_another_loss_is_told_by_its_options(model, tmp_path):
    flat_fit(model, DATA, losses.mse("y", "target", time_axis=0), steps=2, checkpoints=tmp_path, **OPTIONS)
    match = r"loss is \"mse\(output='y', target='target', time_axis=0\)\" in the checkpoint"
    for other in (losses.si_sdr("y", "target", time_axis=0), losses.mse("y", "target", times="x", time_axis=0)):
        check_refused(TrainingError, match, flat_fit, model, DATA, other, steps=4, checkpoints=tmp_path, **OPTIONS)


def test_another_schedule_is_told_by_its_first_update(model, tmp_path):
    def schedule(late):
        return optax.piecewise_constant_schedule(0.02, {50: late / 0.02})

    flat_fit(model, DATA, mean_square, steps=2, checkpoints=tmp_path, **{**OPTIONS, "learning_rate": schedule(0.01)})
    options = {**OPTIONS, "learning_rate": schedule(0.005)}
    said = "another training: learning_rate at update 100 is 0.01 in the checkpoint and 0.005 here. Choose another"
    with pytest.raises(TrainingError, match=said):
        flat_fit(model, DATA, mean_square, steps=4, checkpoints=tmp_path, **options)
