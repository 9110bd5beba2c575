"""Ends of a training that nobody planned: each keeps what was trained, in a checkpoint and in the exception."""

from __future__ import annotations

import os
import signal

import jax.numpy as jnp
import numpy as np
import pytest
from quick_compiling import QUICK_ENVIRONMENT
from training_cases import examples, flat_fit, mean_square, recurrent_model, same

from jaxrnn.training import Callback, StopTraining, TrainingError
from tools.kills import KINDS, ends

DATA = examples([5, 9, 7, 4, 6, 8, 3])
OPTIONS = {"batch_size": 3, "time_axis": 1, "chunk": 3, "every": 100, "learning_rate": 0.02}
STEPS = 14


@pytest.fixture(scope="module")
def model():
    return recurrent_model("time")


@pytest.fixture(scope="module")
def whole(model):
    return flat_fit(model, DATA, mean_square, steps=STEPS, **OPTIONS)


class Spoiled(list):
    """Examples, of which one is replaced by an error or a signal, or spoiled, when it is read late in the training."""

    def __init__(self, items, act):
        super().__init__(items)
        self.act, self.asked = act, 0

    def __getitem__(self, index):
        self.asked += 1
        return self.act(super().__getitem__(index)) if self.asked == 12 else super().__getitem__(index)


def raised(example):
    raise OSError("the disk is gone")


def terminated(example):
    os.kill(os.getpid(), signal.SIGTERM)
    return example


class Broken(Callback):
    def update(self, record, training):
        if record["step"] == 6:
            raise ValueError("the logger is gone")


EXITS = {
    "an example": (raised, OSError, "error"),
    "a callback": (None, ValueError, "error"),
    "SIGTERM": (terminated, KeyboardInterrupt, "interrupt"),
}


@pytest.mark.parametrize("name", EXITS)
@pytest.mark.parametrize("keeps", [True, False])
def test_what_was_trained_is_kept(name, keeps, model, whole, tmp_path):
    act, error, reason = EXITS[name]
    data, callbacks = (DATA, [Broken()]) if act is None else (Spoiled(DATA, act), [])
    options = {**OPTIONS, "callbacks": callbacks, "checkpoints": tmp_path if keeps else None}
    with pytest.raises(error) as raised:
        flat_fit(model, data, mean_square, steps=STEPS, **options)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    fitted = raised.value.fitted
    assert (fitted.stopped, 0 < fitted.step < STEPS) == (reason, True)
    assert [record["step"] for record in fitted.history] == [*range(1, fitted.step + 1)]
    shorter = flat_fit(model, DATA, mean_square, steps=fitted.step, **OPTIONS)
    assert same(fitted.params, shorter.params)
    if keeps:
        assert [each.name for each in tmp_path.iterdir() if each.name.isdigit()] == [str(fitted.step)]
        assert len((tmp_path / "history.jsonl").read_text().splitlines()) == fitted.step
        again = flat_fit(model, DATA, mean_square, steps=STEPS, checkpoints=tmp_path, **OPTIONS)
        assert (again.resumed_from, same(again.params, whole.params)) == (fitted.step, True)


def test_an_update_that_is_not_finite_comes_after_a_checkpoint(model, tmp_path):
    data = Spoiled(DATA, lambda example: {name: np.asarray(value) * np.nan for name, value in example.items()})
    with pytest.raises(TrainingError, match=rf"The last good checkpoint is {tmp_path}/(\d+)") as raised:
        flat_fit(model, data, mean_square, steps=STEPS, checkpoints=tmp_path, **OPTIONS)
    assert (tmp_path / str(raised.value.fitted.step)).is_dir()
    assert all(bool(jnp.isfinite(each).all()) for each in raised.value.fitted.params.values())


@pytest.mark.thorough
def test_processes_that_end_lose_no_more_than_since_the_last_checkpoint(tmp_path, monkeypatch):
    """As ``python -m tools.kills`` shows for 50 ends."""
    for name, value in QUICK_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    assert {kind for kind, *_ in ends(len(KINDS), 1, tmp_path)} == {*KINDS}


def test_a_callback_stops_a_training(model, tmp_path):
    class AtFive(Callback):
        def update(self, record, training):
            if record["step"] >= 5:
                raise StopTraining

    fitted = flat_fit(model, DATA, mean_square, steps=STEPS, checkpoints=tmp_path, callbacks=[AtFive()], **OPTIONS)
    assert (fitted.stopped, fitted.step) == ("callback", 7)
    assert (tmp_path / "7").is_dir()
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 7
