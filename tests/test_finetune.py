"""Fine-tuning from a file: what it says of mistakes, and the command from examples to an ONNX file."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
import onnxruntime
import pytest
import yaml
from click.testing import CliRunner
from small_models import FEATURES, layers_model

import jaxrnn
from jaxrnn.cli import main
from jaxrnn.settings.source import read_source
from jaxrnn.training.config import read_config
from jaxrnn.training.recipe import read_recipe
from jaxrnn.training.recipe_data import NpzExamples

CONFIGS = Path(__file__).parent.parent / "configs"
FUNCTIONS = f"""
from pathlib import Path
import jax.numpy as jnp
import numpy as np

def draw(rng: np.random.Generator):
    x = rng.standard_normal((4, 1, {FEATURES})).astype(np.float32)
    return {{"x": x, "wanted": x[:, 0, :2] > 0}}

def make(count: int, size: tuple[int, int] = (3, 5), folder: Path | None = None, **rest):
    assert folder is None or folder.is_absolute()
    assert isinstance(size, tuple)
    return [draw(np.random.default_rng(seed)) for seed in range(count)]

def drawing():
    return draw

def nothing(count=1):
    return None

def louder(outputs, example, mask, *, factor=1.0):
    return factor * jnp.mean(outputs["logits"] ** 2, where=mask[:, None, None])
"""


@pytest.fixture
def folder(tmp_path):
    """A small model, examples of unequal lengths in files, functions, and a configuration of them."""
    onnx.save(layers_model(), tmp_path / "net.onnx")
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    (tmp_path / "examples").mkdir()
    rng = np.random.default_rng(0)
    for index in range(6):
        x = rng.standard_normal((3 + index, 1, FEATURES)).astype(np.float32)
        np.savez(tmp_path / "examples" / f"{index}.npz", x=x, wanted=x[:, 0, :2] > 0)
    write(tmp_path)
    return tmp_path


def write(folder: Path, **changes: Any) -> Path:
    """The configuration, with other values; None leaves a key out."""
    loss = {"name": "binary_cross_entropy", "output": "logits", "target": "wanted", "scale": "logits", "time_axis": 0}
    content = {
        "model": "net.onnx",
        "data": {"npz": "examples"},
        "loss": loss,
        "time_axis": 0,
        "steps": 12,
        "batch_size": 3,
        "bucket": 8,
        "every": 4,
        "learning_rate": 0.05,
        **changes,
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in content.items() if value is not None}))
    return path


def call(*arguments, status: int = 0):
    result = CliRunner().invoke(main, ["finetune", *map(str, arguments)])
    assert not isinstance(result.exception, Exception), result.exception
    assert result.exit_code == status, result.output
    return result


def call_json(*arguments, status: int = 0):
    return json.loads(call(*arguments, "--json", status=status).stdout, parse_constant=pytest.fail)


def refused(folder: Path, *overrides: str, **changes: Any) -> str:
    """What is said of a configuration with these changes."""
    with pytest.raises(jaxrnn.JaxrnnError) as caught:
        read_recipe(write(folder, **changes), overrides)
    return str(caught.value)


def test_a_run_trains_and_writes(folder):
    metrics = {"right": {"name": "binary_accuracy", "output": "logits", "target": "wanted", "threshold": 0.0}}
    config = write(
        folder,
        validation={"npz": "examples/?.npz"},
        metrics=metrics,
        export="out/trained.onnx",
        plot="out/loss.png",
        checkpoints="out/checkpoints",
        freeze="P",
        optimizer={"name": "adamw", "weight_decay": 0.001, "nesterov": True},
        learning_rate={"schedule": "linear_schedule", "init_value": 0.1, "end_value": 0.01, "transition_steps": 40},
        steps=40,
    )
    result = call_json(config)
    assert (result["steps"], result["stopped"], result["config"]) == (40, "steps", str(config))
    assert result["loss_last_tenth"] < 0.8 * result["loss_first_tenth"]
    before, after = result["validation_before"], result["validation_after"]
    assert after["loss"] < before["loss"]
    assert after["right"] > before["right"]
    trained, original = jaxrnn.load(folder / "out" / "trained.onnx"), jaxrnn.load(folder / "net.onnx")
    changed = {name for name, array in original.params.items() if not np.array_equal(array, trained.params[name])}
    assert changed == set(original.params) - {"P"}
    assert (folder / "out" / "loss.png").read_bytes().startswith(b"\x89PNG")
    # The file has the best parameters, and ONNX Runtime computes from it what they give.
    recipe = read_recipe(config)
    assert recipe.evaluate(trained.params)["loss"] == pytest.approx(after["loss"], rel=1e-6)
    x = np.load(folder / "examples" / "5.npz")["x"]
    (expected,) = onnxruntime.InferenceSession(folder / "out" / "trained.onnx").run(["logits"], {"x": x})
    np.testing.assert_allclose(trained({"x": x})["logits"], expected, rtol=0, atol=1e-5)
    # A second run finds all done.
    said = call(config).stdout
    for words in ("40 updates", "On the validation examples", "right", "model: ", "loss curve: ", "checkpoints: "):
        assert words in said


def test_a_run_cut_short_goes_on_to_the_same_file(folder):
    (folder / "whole").mkdir()
    config = write(folder, checkpoints="checkpoints", export="net.trained.onnx")
    call(config, "--set", "checkpoints=null", "--set", "export=whole/net.trained.onnx")
    call(config, "--set", "steps=5")
    assert "--fresh" not in call(config, "--resume").stdout
    assert (folder / "net.trained.onnx").read_bytes() == (folder / "whole" / "net.trained.onnx").read_bytes()
    (error,) = call_json(config, "--fresh", status=2).values()
    assert "has checkpoints already" in error
    (error,) = call_json(config, "--set", "resume=false", status=2).values()
    assert "has checkpoints already" in error
    started = read_recipe(config, {"checkpoints": None, "params": folder / "checkpoints"})
    trained = jaxrnn.load(folder / "net.trained.onnx")
    jax.tree.map(np.testing.assert_array_equal, dict(started.params), dict(trained.params))


def test_an_interrupted_run_says_how_to_go_on(folder, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxrnn.training.recipe.fit", interrupted)
    assert "the same command goes on from" in call(write(folder, checkpoints="kept"), status=130).stderr
    assert "Aborted" in call(write(folder), status=1).stderr


@pytest.mark.parametrize("kind", ["functions.py:drawing", "functions.py:make", "elsewhere"])
def test_examples_and_losses_of_ones_own(folder, kind, monkeypatch):
    data = {"function": kind, "arguments": {}}
    if kind != "functions.py:drawing":
        data["arguments"] = {"count": 3, "size": [3, 5], "folder": "examples", "seed": 3}
    if kind == "elsewhere":
        (folder / "elsewhere").mkdir()
        (folder / "elsewhere" / "module_of_tests.py").write_text(FUNCTIONS)
        monkeypatch.syspath_prepend(folder / "elsewhere")
        data["function"] = "module_of_tests:make"
    loss = {"name": "functions.py:louder", "factor": 2.0}
    recipe = read_recipe(write(folder, data=data, loss=loss, steps=2))
    value = recipe.loss({"logits": np.ones((3, 1, 2))}, {}, np.ones(3, bool))
    assert value == 2
    fitted = recipe.run()
    assert fitted.history[1]["loss"] < fitted.history[0]["loss"]


def test_paths_are_relative_to_the_file_and_hold_variables(folder, monkeypatch, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("NETS", str(folder))
    monkeypatch.delenv("UNKNOWN", raising=False)
    config, _ = read_config(
        write(folder, model={"file": "${NETS}/net.onnx"}, export="$NETS/out.onnx", plot="${UNKNOWN:-here}/loss.png")
    )
    assert config.model.file == folder / "net.onnx"
    assert config.export == folder / "out.onnx"
    assert config.plot == folder / "here" / "loss.png"
    assert "model: the environment variable UNKNOWN is not set" in refused(folder, model="$UNKNOWN/net.onnx")


def test_overrides_take_the_place_of_values(folder):
    path = write(folder, steps=None, epochs=2)
    texts = ["loss.time_axis=null", "learning_rate=1e-3", "train=[R, W]", "optimizer.name=sgd", "metrics.a.name=mse"]
    config, _ = read_config(path, [*texts, "metrics.a.output=logits"])
    assert config.loss.options["time_axis"] is None
    assert (config.learning_rate, config.train, config.optimizer.name) == (1e-3, ["R", "W"], "sgd")
    assert config.metrics["a"].options == {"output": "logits"}
    same, _ = read_config(path, {"loss.time_axis": None, "learning_rate": 1e-3, "export": Path("/tmp/x.onnx")})
    assert (same.loss.options["time_axis"], same.export) == (None, Path("/tmp/x.onnx"))


def test_plain_values_are_those_of_yaml_1_2(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("a: [1e-3, 2E5, .5, 1., -3, 0x10, on, yes, 1:30, 2020-01-01, 010, .inf, true, null, ~]")
    values = read_source(path).values["a"]
    words = ["on", "yes", "1:30", "2020-01-01", "010"]
    assert values == [0.001, 2e5, 0.5, 1.0, -3, 16, *words, float("inf"), True, None, None]
    assert [type(value) for value in values[:6]] == [float, float, float, float, int, int]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3", "line 3: the key 'a' stands there twice"),
        ("a:\n  b: [1", "line 2: expected ',' or ']'"),
        ("- a", "expected keys and values"),
        ("a: !!python/object:os.x {}", "could not determine a constructor"),
        ("&a [*a]", "line 1: an alias stands for what it is itself a part of"),
        ("a: 1\nb: !!bool maybe", "line 2: 'maybe' is no bool"),
        ("a: " + "[" * 5000, "line 1: lists and mappings lie in each other more than 50 deep"),
        ("a: \0", "is no YAML"),
        ("? [1]\n: 2", "a key must be a word or a number"),
        (None, "cannot be read: No such file"),
    ],
)
def test_files_that_are_no_configuration(tmp_path, text, said):
    path = tmp_path / "bad.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(jaxrnn.InputError, match=r"bad\.yaml") as caught:
        read_source(path)
    assert said in str(caught.value)


def repeating(levels, line):
    """Lines of which each repeats the one before, and names of those."""
    names = [f"a{level}" for level in range(levels)]
    return "\n".join(line(*pair) for pair in itertools.pairwise(names))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "a0: &a0 [x]\n" + repeating(40, lambda one, two: f"{two}: &{two} [{', '.join([f'*{one}'] * 9)}]"),
            r"line 6: .* aliases repeat 1\d\d,\d\d\d characters, and no more than 100,000",
        ),
        (
            "a0: &a0 {k: 1}\n" + repeating(60, lambda one, two: f"{two}: &{two}\n  <<: [*{one}, *{one}]"),
            "no more than 100,000",
        ),
        ("a0: &a0 [x]\n" + repeating(60, lambda one, two: f"{two}: &{two} [*{one}]"), "line 50: .*more than 50 deep"),
        (f"a: &a {'x' * 60_000}\nb: *a\nc: [1, *a]", "line 3: .*100,000"),
    ],
    ids=["lists", "merges", "depth", "text"],
)
def test_what_aliases_repeat_is_limited(tmp_path, text, said):
    """A text of some hundred characters stands for more than there is memory for."""
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(jaxrnn.InputError, match=rf"bad\.yaml, {said}" if said[0] == "l" else said):
        read_source(path)
    path.write_text("a: 1")
    with pytest.raises(jaxrnn.InputError, match="--set"):
        read_source(path, ["b=&a [*a]"])


def test_aliases_and_merges(tmp_path):
    path = tmp_path / "good.yaml"
    path.write_text("base: &base {rate: 1, sizes: &sizes [2, 3]}\nother: {<<: *base, rate: 4, more: *sizes}")
    source = read_source(path, ["other.sizes=5"])
    assert source.values == {
        "base": {"rate": 1, "sizes": [2, 3]},
        "other": {"rate": 4, "sizes": 5, "more": [2, 3]},
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"leraning_rate": 1}, "line 7: leraning_rate: unknown key (did you mean learning_rate?)"),
        ({"steps": "many"}, "steps: expected a whole number, got 'many'"),
        ({"steps": 10.5}, "steps: expected a whole number, got 10.5"),
        ({"steps": True}, "steps: expected a whole number, got True"),
        ({"steps": 0}, "steps: expected a number above 0, got 0"),
        ({"epochs": 1}, "expected either steps or epochs"),
        ({"learning_rate": "high"}, "learning_rate: expected a number, got 'high'"),
        ({"learning_rate": -1.0}, "learning_rate: expected a number above 0, got -1.0"),
        ({"learning_rate": {"schedul": "x"}}, "learning_rate.schedule: missing"),
        ({"learning_rate": {"schedule": "cosin_decay_schedule"}}, "did you mean 'cosine_decay_schedule'?"),
        (
            {"learning_rate": {"schedule": "linear_schedule", "end": 1}},
            "no option 'end' (did you mean 'end_value'?)",
        ),
        ({"learning_rate": {"schedule": "constant_schedule"}}, "optax.constant_schedule needs value"),
        ({"clip_norm": float("inf")}, "clip_norm: expected a finite number, got inf"),
        ({"time_axis": "x"}, "time_axis: expected a whole number or keys and values, got 'x'"),
        ({"time_axis": {"x": "y"}}, "time_axis.x: expected a whole number, got 'y'"),
        ({"remat": "x"}, "remat: expected 'sqrt' or a whole number, got 'x'"),
        ({"mode": "stpe"}, "mode: expected 'apply', 'step' or 'scan', got 'stpe'"),
        ({"resume": "yes"}, "resume: expected true or false, got 'yes'"),
        ({"train": ["R", 1]}, "train.1: expected text, got 1"),
        ({"devices": 1_000}, "devices: JAX sees"),
        ({"model": {"file": "net.onnx", "statics": {}}}, "unknown key (did you mean model.static?)"),
        ({"model": "absent.onnx"}, "model: "),
        ({"data": {"npz": "examples", "function": "x:y"}}, "data: expected either npz or function"),
        ({"data": {"npz": "absent/*.npz"}}, "data.npz: there is no file"),
        ({"data": {"npz": "."}}, "data.npz: there are no .npz files in"),
        ({"data": {"function": "functions.py:mak"}}, "has no function 'mak' (did you mean 'make'?)"),
        ({"data": {"function": "functions.py"}}, "is not of the form"),
        ({"data": {"function": "functions.py:make"}}, "data.arguments.count: missing"),
        ({"data": {"function": "functions.py:make", "arguments": {"count": "3"}}}, "count: expected a whole number"),
        (
            {"data": {"function": "functions.py:nothing", "arguments": {"cuont": 1}}},
            "mean data.arguments.count?",
        ),
        ({"data": {"function": "functions.py:nothing"}}, "must return a sequence of examples"),
        ({"validation": {"function": "functions.py:drawing"}}, "validation.function: functions.py:drawing must return"),
        ({"loss": "mean_squared"}, "loss.name: there is no loss 'mean_squared'"),
        ({"loss": {"output": "logits"}}, "loss.name: missing"),
        ({"loss": {"name": "mse", "output": "y"}}, "loss.target: missing"),
        (
            {"loss": {"name": "mse", "output": "y", "targte": "x"}},
            "loss.targte: unknown key (did you mean loss.target?",
        ),
        ({"loss": {"name": "mse", "output": 3, "target": "x"}}, "loss.output: expected text or a function, got 3"),
        ({"loss": {"name": "spectral_mse", "output": "y", "target": "x", "power": 0}}, "loss: power must be above 0"),
        ({"loss": {"name": "functions.py:louder", "facto": 2}}, "loss.facto: unknown key (did you mean loss.factor?)"),
        ({"loss": {"name": "nomodule.here:f"}}, "loss.name: the module 'nomodule.here' cannot be imported"),
        (
            {"metrics": {"a": {"name": "acuracy"}}},
            "no metric 'acuracy' (did you mean 'accuracy'",
        ),
        ({"metrics": {"a": 3}}, "metrics.a: expected keys and values, got 3"),
        ({"metrics": ["a"]}, "metrics: expected keys and values, got ['a']"),
        ({"optimizer": "adaam"}, "optimizer.name: there is no optimizer 'adaam' in optax (did you mean 'adam'?)"),
        ({"optimizer": {"name": "adam", "beta": 1}}, "optimizer: optax.adam has no option 'beta'"),
        ({"optimizer": {"name": "adam", "learning_rate": 1}}, "optimizer: learning_rate stands beside"),
        ({"params": "absent"}, "params: "),
    ],
    ids=str,
)
def test_mistakes_are_named_with_their_place(folder, changes, said):
    message = refused(folder, **changes)
    assert said in message
    assert message.startswith(str(folder / "config.yaml"))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("steps=x", "--set steps=x: steps: expected a whole number, got 'x'"),
        ("stesp=3", "--set stesp=3: stesp: unknown key (did you mean steps?)"),
        ("los.name=mse", "--set los.name=mse: los: unknown key (did you mean loss?)"),
        ("steps.a=1", "--set steps.a=1: steps is 12, not a mapping"),
        ("steps", "--set steps: expected KEY=VALUE"),
        ("steps=[1", "--set steps=[1, line 1: expected ',' or ']'"),
        ("data.npz=absent", "--set data.npz=absent: data.npz: there is no file"),
    ],
)
def test_mistakes_in_overrides_are_named(folder, override, said):
    assert said in refused(folder, override)


def test_all_mistakes_are_told_at_once(folder):
    said = refused(folder, steps="x", mode=3, loss={"name": 1})
    assert len(said.splitlines()) == 3


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.write_bytes(b"PK\x03\x04 cut"), "does not hold NumPy arrays of numbers"),
        (lambda path: path.write_bytes(b""), "does not hold NumPy arrays of numbers"),
        (lambda path: np.savez(path, x=np.zeros((3, 1, FEATURES), np.float32)), "has no array 'wanted'"),
        (lambda path: np.savez(path, x=np.zeros((3, 1, FEATURES)), wanted=np.ones((3, 2), bool)), "'x' is float64"),
        (
            lambda path: np.savez(path, x=np.zeros((3, 1, 9), np.float32), wanted=np.ones((3, 2), bool)),
            f"'x' is float32[3, 1, 9], but float32[3, 1, {FEATURES}] in 0.npz",
        ),
        (lambda path: path.unlink() or path.symlink_to("nowhere.npz"), "the 5 examples in data"),
    ],
    ids=["cut", "empty", "missing", "type", "size", "gone"],
)
def test_bad_examples_are_named(folder, damage, said):
    path = folder / "examples" / "4.npz"
    damage(path)
    (error,) = call_json(write(folder, batch_size=6), status=2).values()
    assert said in error
    assert "4.npz" in error or "5 examples" in error


def test_examples_are_read_when_they_are_asked_for(folder):
    data = NpzExamples(folder / "examples", 0)
    assert len(data) == 6
    assert [len(example["x"]) for example in data] == [3, 4, 5, 6, 7, 8]
    (folder / "examples" / "3.npz").unlink()
    assert len(data[-1]["x"]) == 8
    with pytest.raises(jaxrnn.InputError, match=r"3\.npz cannot be read: No such file"):
        data[3]
    with pytest.raises(jaxrnn.InputError, match="for unequal lengths say which axis is time"):
        NpzExamples(folder / "examples" / "*.npz")[2]


@pytest.mark.parametrize("name", ["finetune_denoiser.yaml", "finetune_vad.yaml"])
def test_configurations_that_come_along_are_good(name):
    config, source = read_config(CONFIGS / name)
    assert config.export is not None
    assert set(source.values) <= set(type(config).model_fields)
