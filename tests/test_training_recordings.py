"""Training on recordings: what mixtures are, from waveform to waveform, and what is logged."""

from __future__ import annotations

import csv
import itertools
import json
import re
import sys
import types

import jax
import numpy as np
import onnx
import pytest
import soundfile
import yaml
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper
from refusals import check_refused
from small_models import graph_of, make_model
from training_cases import examples, mean_square, recurrent_model, same

import jaxrnn
from jaxrnn.audio import Frames, Network, Waveform
from jaxrnn.cli import main
from jaxrnn.training import Callback, Mixtures, Optimizer, Validation, fit, load_checkpoint, logs, losses, validate

RATE = 8_000
FRAMES = {"size": 16, "hop": 8, "window": "sqrt_hann"}


def decibels(sound):
    return 10 * np.log10(np.mean(np.square(sound, dtype=np.float64)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three voices (a tone each), two noises, a room, a table, and a network from magnitudes to a mask."""
    folder = tmp_path_factory.mktemp("sounds")
    rng = np.random.default_rng(0)
    for kind in ("clean", "noise", "rooms"):
        (folder / kind).mkdir()
    for number, (suffix, rate, seconds) in enumerate((("wav", RATE, 1), ("flac", 2 * RATE, 0.5), ("wav", RATE, 0.1))):
        times = np.arange(round(rate * seconds)) / rate
        soundfile.write(folder / "clean" / f"{number}.{suffix}", 0.3 * np.sin(600 * (number + 1) * times), rate)
    for number, seconds in enumerate((1, 0.05)):
        noise = 0.1 * rng.standard_normal(round(RATE * seconds))
        soundfile.write(folder / "noise" / f"{number}.wav", noise, RATE, subtype="FLOAT")
    response = np.zeros(40)
    response[[3, 10]] = -0.5, 0.25
    soundfile.write(folder / "rooms" / "room.wav", response, RATE, subtype="FLOAT")
    (folder / "table.csv").write_text("path,note\nclean/0.wav,first\n")
    onnx.save(mask_network(), folder / "net.onnx")
    return folder


def mask_network():
    """A GRU from magnitudes ``[1, 1, 9]`` to a mask, with external state."""
    rng = np.random.default_rng(1)
    weights = {"W": (1, 18, 9), "R": (1, 18, 6), "P": (6, 9)}
    constants = {name: 0.3 * rng.standard_normal(shape).astype(np.float32) for name, shape in weights.items()}
    nodes = [
        helper.make_node("GRU", ["x", "W", "R", "", "", "h"], ["Y", "h_out"], hidden_size=6),
        helper.make_node("Squeeze", ["Y", "one"], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "P"], ["logit"]),
        helper.make_node("Sigmoid", ["logit"], ["mask"]),
    ]
    return make_model(
        graph_of(
            nodes,
            {"x": [1, 1, 9], "h": [1, 1, 6]},
            {"mask": [1, 1, 9], "h_out": [1, 1, 6]},
            constants | {"one": np.array([1])},
            "masking",
        )
    )


def mixtures(folder, **options):
    usual = {"clean": folder / "clean", "noise": folder / "noise", "rate": RATE, "seconds": 0.2}
    return Mixtures(**usual | options)


def test_mixtures_have_the_levels_that_are_asked_for(folder):
    draw = mixtures(folder, snr=(3, 3), level=(-30, -30))
    for number in range(8):
        mixed = draw(np.random.default_rng(number))
        clean, noise = mixed["clean"], mixed["samples"] - mixed["clean"]
        assert clean.dtype == mixed["samples"].dtype == np.float32
        assert clean.shape == mixed["samples"].shape == (1600,)
        np.testing.assert_allclose([decibels(clean), decibels(clean) - decibels(noise)], [-30, 3], atol=1e-3)
    again = draw(np.random.default_rng(7))
    assert same(again, mixed)
    assert not same(draw(np.random.default_rng(8)), mixed)


def test_parts_are_those_of_the_files(folder):
    whole, _ = soundfile.read(folder / "clean" / "0.wav")
    draw = mixtures(folder, clean=folder / "table.csv", snr=(200, 200))
    part = draw(np.random.default_rng(0))["clean"]
    places = np.lib.stride_tricks.sliding_window_view(whole, part.size)
    scaled = places * np.sqrt(np.mean(np.square(part)) / np.mean(np.square(places), axis=1))[:, None]
    assert np.abs(scaled - part).max(1).min() < 1e-4
    # A short voice is whole, with silence around it; a short noise fills the part.
    part = mixtures(folder, clean=folder / "clean" / "2.wav", noise=folder / "noise" / "1.wav")(
        np.random.default_rng(1)
    )
    there = np.flatnonzero(part["clean"])
    assert 790 <= np.ptp(there) + 1 <= 800
    noise = part["samples"] - part["clean"]
    np.testing.assert_allclose(noise[:400], noise[400:800], atol=1e-5)


def test_rooms_keep_the_direct_sound(folder):
    options = {"clean": folder / "clean" / "0.wav", "noise": None, "rooms": [folder / "rooms"], "dry": True}
    mixed = mixtures(folder, **options)(np.random.default_rng(3))
    # From the direct sound on, and with the echo of what is before the part.
    np.testing.assert_allclose(mixed["samples"][7:], (mixed["clean"][7:] - 0.5 * mixed["clean"][:-7]), atol=1e-6)
    assert np.abs(mixed["samples"][:7] - mixed["clean"][:7]).max() > 1e-3
    wet = mixtures(folder, **{**options, "noise": folder / "noise", "dry": False, "snr": (200, 200)})
    mixed = wet(np.random.default_rng(3))
    np.testing.assert_allclose(mixed["samples"], mixed["clean"], atol=1e-6)


def test_several_speakers_and_shapes(folder):
    draw = mixtures(folder, noise=None, speakers=3, balance=(-6, -6), input="x", shape=(1, 1, -1), level=(-20, -20))
    mixed = draw(np.random.default_rng(0))
    assert mixed["x"].shape == (1, 1, 1600)
    np.testing.assert_allclose(mixed["x"][0, 0], mixed["clean"].sum(0), atol=1e-6)
    np.testing.assert_allclose([decibels(voice) for voice in mixed["clean"]], [-20, -26, -26], atol=1e-3)
    peaks = {int(np.abs(np.fft.rfft(voice)).argmax()) for voice in mixed["clean"]}
    assert len(peaks) == 3, "three recordings"


def test_refusals(folder, tmp_path):
    soundfile.write(tmp_path / "silent.wav", np.zeros(RATE), RATE)
    (tmp_path / "table.csv").write_text("path\nnotes.txt\n")
    (tmp_path / "empty").mkdir()
    for words, options in (
        ("there is no folder", {"clean": folder / "cleen"}),
        ("`noise`: .* has no sounds", {"noise": tmp_path / "empty"}),
        ("has other files than sounds", {"clean": tmp_path / "table.csv"}),
        ("`snr` is the lowest and the highest", {"snr": (3, 1)}),
        ("`level` is the lowest", {"level": (float("nan"), 1)}),
        ("mixtures equal the clean sound", {"noise": None, "rooms": folder / "rooms"}),
        ("`reverberant` is a share", {"reverberant": 1.5}),
        ("`speakers=4` of 3 recordings", {"speakers": 4}),
        ("`seconds=0.0` must give", {"seconds": 0.0}),
        ("`shape=.* does not hold 1600 samples", {"shape": (7, -1)}),
        ("is the name of the clean sound", {"input": "clean"}),
    ):
        check_refused(jaxrnn.InputError, words, mixtures, folder, **options)
    draw = mixtures(folder, clean=tmp_path / "silent.wav")
    check_refused(jaxrnn.InputError, "`clean`: 100 parts of 0.2 s were silent", draw, np.random.default_rng(0))
    check_refused(jaxrnn.InputError, "have more than", mixtures(folder).drawn, 10**6)
