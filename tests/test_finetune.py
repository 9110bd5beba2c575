"""Fine-tuning from a file: what it says of mistakes, and the command from examples to an ONNX file."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
import onnxruntime
import pytest
import yaml
from click.testing import CliRunner
from refusals import check_refused
from small_models import FEATURES, layers_model
from stores import new_bucket, upload
from test_training_modes import normalised_model

import jaxrnn
from jaxrnn._files.stores import Url
from jaxrnn.cli import main
from jaxrnn.demo import PACKAGED
from jaxrnn.settings.files import SettingsFile
from jaxrnn.settings.models import reference
from jaxrnn.training import Checkpoints
from jaxrnn.training.examples import NpzFiles
from jaxrnn.training.settings import TrainingSettings, prepare_training

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
        "sequences": {"time_axis": 0, "bucket": 8},
        "steps": 12,
        "batch_size": 3,
        "optimizer": {"learning_rate": 0.05},
        **changes,
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in content.items() if value is not None}))
    return path


def read(path: Path, overrides: Any = ()) -> TrainingSettings:
    return SettingsFile(TrainingSettings, path, overrides).settings


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
        prepare_training(write(folder, **changes), overrides)
    return str(caught.value)


def test_a_run_trains_and_writes(folder):
    metrics = {"right": {"name": "binary_accuracy", "output": "logits", "target": "wanted", "threshold": 0.0}}
    config = write(
        folder,
        validation={"npz": "examples/?.npz", "every": 4},
        metrics=metrics,
        export="out/trained.onnx",
        plot="out/loss.png",
        checkpoints="out/checkpoints",
        optimizer={
            "name": "adamw",
            "weight_decay": 0.001,
            "nesterov": True,
            "freeze": "P",
            "learning_rate": {
                "schedule": "linear_schedule",
                "init_value": 0.1,
                "end_value": 0.01,
                "transition_steps": 40,
            },
        },
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
    training = prepare_training(config)
    judged = training.evaluate(trained.params)
    assert judged is not None
    assert judged["loss"] == pytest.approx(after["loss"], rel=1e-6)
    x = np.load(folder / "examples" / "5.npz")["x"]
    (expected,) = onnxruntime.InferenceSession(folder / "out" / "trained.onnx").run(["logits"], {"x": x})
    np.testing.assert_allclose(trained({"x": x})["logits"], expected, rtol=0, atol=1e-5)
    # A second run finds all done.
    said = call(config).stdout
    for words in ("40 updates", "On the validation examples", "right", "model: ", "loss curve: ", "checkpoints: "):
        assert words in said


@pytest.mark.thorough
def test_a_run_cut_short_goes_on_to_the_same_file(folder):
    (folder / "whole").mkdir()
    config = write(folder, checkpoints={"folder": "checkpoints", "every": 4}, export="net.trained.onnx")
    call(config, "--set", "checkpoints=null", "--set", "export=whole/net.trained.onnx")
    call(config, "--set", "steps=5")
    assert "--fresh" not in call(config, "--resume").stdout
    assert (folder / "net.trained.onnx").read_bytes() == (folder / "whole" / "net.trained.onnx").read_bytes()
    (error,) = call_json(config, "--fresh", status=2).values()
    assert error.startswith("--fresh, but ")
    assert "has checkpoints already" in error
    (error,) = call_json(config, "--set", "checkpoints.resume=false", status=2).values()
    assert "has checkpoints already" in error
    started = prepare_training(config, {"checkpoints": None, "params": folder / "checkpoints"})
    trained = jaxrnn.load(folder / "net.trained.onnx")
    jax.tree.map(np.testing.assert_array_equal, dict(started.arguments["params"]), dict(trained.params))


def test_an_interrupted_run_says_how_to_go_on(folder, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxrnn.training.settings.fit", interrupted)
    assert "the same command again to continue from" in call(write(folder, checkpoints="kept"), status=130).stderr
    assert call(write(folder), status=130).stderr == "error: interrupted\n"


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
    training = prepare_training(write(folder, data=data, loss=loss, steps=2))
    value = training.arguments["loss"]({"logits": np.ones((3, 1, 2))}, {}, np.ones(3, bool))
    assert value == 2
    fitted = training.run()
    assert fitted.history[1]["loss"] < fitted.history[0]["loss"]


def test_paths_are_relative_to_the_file_and_hold_variables(folder, monkeypatch, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("NETS", str(folder))
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.delenv("UNKNOWN", raising=False)
    odd = "größer: (a), 'b'; #~\\c"
    path = write(
        folder,
        model={"file": "${NETS}/net.onnx"},
        data={"npz": f"${{UNKNOWN:-{odd}}}/x"},
        export="${EMPTY:-here}/out.onnx",
        plot="${UNKNOWN:-}loss.png",
    )
    settings = read(path)
    assert settings.model.file == folder / "net.onnx"
    assert settings.data.npz == folder / odd / "x"
    assert settings.export == folder / "here" / "out.onnx"
    assert settings.plot == folder / "loss.png"
    assert "the environment variable UNKNOWN is not set" in refused(folder, model="${UNKNOWN}/net.onnx")
    assert "export: '$NETS/x' cannot be a path; a variable" in refused(folder, export="$NETS/x")


def test_overrides_take_the_place_of_values(folder):
    path = write(folder, steps=None, epochs=2)
    texts = ["loss.time_axis=null", "optimizer={name: sgd, learning_rate: 1e-3, train: [R, W]}"]
    settings = read(path, [*texts, "metrics.a.name=mse", "metrics.a.output=logits", "loss.scale="])
    assert (settings.loss.options["time_axis"], settings.loss.options["scale"]) == (None, None)
    optimizer = settings.optimizer
    assert (optimizer.learning_rate, optimizer.train, optimizer.name) == (1e-3, ["R", "W"], "sgd")
    assert settings.metrics["a"].options == {"output": "logits"}
    same = read(path, {"loss.time_axis": None, "optimizer.learning_rate": 1e-3, "export": Path("/tmp/x.onnx")})
    assert (same.loss.options["time_axis"], same.export) == (None, Path("/tmp/x.onnx"))
    named = read(path, [r"sequences.time_axis={}", r"sequences.time_axis.a\.b=1"])
    assert named.sequences["time_axis"] == {"a.b": 1}


def test_the_printed_settings_are_a_file_that_means_the_same(folder, tmp_path_factory):
    config = write(folder, data={"function": "functions.py:make", "arguments": {"count": 3}}, plot="${NONE:-a}.png")
    printed = call(config, "--set", "optimizer.weight_decay=0.5", "--set", "steps=7", "--print-config").stdout
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "printed.yaml"
    elsewhere.write_text(printed)
    settings = read(elsewhere)
    assert settings.data.function == f"{folder}/functions.py:make"
    assert (settings.steps, settings.seed, settings.plot) == (7, 0, folder / "a.png")
    assert settings.optimizer.options == {"weight_decay": 0.5}
    assert call(elsewhere, "--print-config").stdout.splitlines()[1:] == printed.splitlines()[1:]
    assert not (folder / "a.png").exists()


def test_printed_urls_are_read_again(folder):
    recordings = {"clean": "s3://bucket/clean", "noise": ["noise", "https://host/x.wav"]}
    printed = folder / "printed.yaml"
    printed.write_text(call(write(folder, data={"recordings": recordings}), "--print-config").stdout)
    found = read(printed).data.recordings
    assert (found["clean"], found["noise"]) == (Url("s3://bucket/clean"), [folder / "noise", Url("https://host/x.wav")])


def test_the_command_explains_every_key():
    said = " ".join(call("--keys").stdout.split())
    for words in ("optimizer.learning_rate", "metrics.NAME.name", "A checkpoint also follows the last update. [100]"):
        assert words in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batch_sizes": 1}, "batch_sizes: unknown key (did you mean 'batch_size'?); there are: model, data"),
        ({"steps": "many"}, "steps: Input should be a valid integer, not 'many'"),
        ({"dtype": "bfloat"}, "'bfloat16' or 'float16', not 'bfloat' (did you mean 'bfloat16'?)"),
        ({"steps": 10.5}, "steps: Input should be a valid integer, not 10.5"),
        ({"steps": True}, "steps: Input should be a valid integer, not True"),
        ({"steps": 0}, "steps: Input should be greater than 0, not 0"),
        ({"epochs": 1}, "expected either steps or epochs, not both; null takes one out"),
        ({"clip_norm": 1.0}, "clip_norm: unknown key"),
        (
            {"optimizer": {"learning_rate": "high"}},
            "learning_rate: Input should be a valid number or a valid dictionary",
        ),
        ({"optimizer": {"learning_rate": -1.0}}, "optimizer.learning_rate: Input should be greater than 0"),
        ({"optimizer": {"learning_rate": {"schedul": "x"}}}, "optimizer.learning_rate.schedule: missing"),
        (
            {"optimizer": {"learning_rate": {"schedule": "cosin_decay_schedule"}}},
            "did you mean 'cosine_decay_schedule'?",
        ),
        (
            {"optimizer": {"learning_rate": {"schedule": "linear_schedule", "end": 1}}},
            "optimizer.learning_rate.end: unknown option of linear_schedule (did you mean 'end_value'?)",
        ),
        ({"optimizer": {"learning_rate": {"schedule": "constant_schedule"}}}, "learning_rate.value: missing"),
        (
            {"optimizer": {"name": "adam", "b1": "x"}},
            "optimizer.b1: Input should be a valid boolean or a valid integer or a valid number, not 'x'",
        ),
        ({"data": {"recordings": {"clean": "a", "snr": [1.0]}}}, "data.recordings.snr.1: missing"),
        ({"optimizer": {"learning_rate": {"schedule": "x"}}}, "no schedule 'x' in optax; there are: constant_schedule"),
        ({"optimizer": {"clip_norm": float("inf")}}, "clip_norm: Input should be a finite number, not inf"),
        (
            {"sequences": {"time_axis": "x"}},
            "time_axis: Input should be a valid integer or a valid dictionary, not 'x'",
        ),
        ({"sequences": {"time_axis": {"x": "y"}}}, "sequences.time_axis.x: Input should be a valid integer, not 'y'"),
        ({"sequences": {"remat": "x"}}, "sequences.remat: Input should be 'sqrt' or a valid integer, not 'x'"),
        ({"sequences": {"mode": "stpe"}}, "mode: Input should be 'apply', 'step' or 'scan', not 'stpe'"),
        ({"checkpoints": {"folder": "a", "resume": "no"}}, "checkpoints.resume: Input should be a valid boolean"),
        ({"checkpoints": {"every": 3}}, "checkpoints.folder: missing"),
        ({"optimizer": {"train": ["R", 1]}}, "optimizer.train.1: Input should be a valid string, not 1"),
        ({"sequences": {"chunk": 3}}, "sequences: chunk= needs time_axis="),
        ({"devices": 1_000}, "devices: JAX sees"),
        ({"model": {"file": "net.onnx", "statics": {}}}, "unknown key (did you mean 'static'?)"),
        ({"model": "absent.onnx"}, "model: "),
        ({"data": {"npz": "examples", "function": "x:y"}}, "data: expected one of npz, function and recordings"),
        ({"data": {"npz": "absent/*.npz"}}, "data.npz: there is no folder"),
        ({"data": {"npz": "."}}, "has no examples: no files match *.npz"),
        ({"data": {"function": "functions.py:mak"}}, "has no function 'mak' (did you mean 'make'?)"),
        ({"data": {"function": "functions.py"}}, "is not of the form"),
        ({"data": {"function": "functions.py:make"}}, "data.arguments.count: missing"),
        (
            {"data": {"function": "functions.py:make", "arguments": {"count": "3"}}},
            "data.arguments.count: Input should be a valid integer, not '3'",
        ),
        (
            {"data": {"function": "functions.py:nothing", "arguments": {"cuont": 1}}},
            "data.arguments.cuont: unknown option of nothing (did you mean 'count'?)",
        ),
        (
            {"data": {"function": "functions.py:nothing"}},
            "data.function: data must be a sequence of examples, or a function",
        ),
        (
            {"validation": {"function": "functions.py:drawing"}},
            "validation.function: validation must be a sequence of examples, not a function",
        ),
        ({"validation": {"every": 3}}, "validation: expected one of npz, function and recordings"),
        ({"validation": {"npz": "examples", "every": 0}}, "validation.every: Input should be greater than 0, not 0"),
        ({"loss": "mean_squared"}, "loss: there is no loss 'mean_squared'"),
        ({"loss": {"output": "logits"}}, "loss.name: missing"),
        ({"loss": {"name": "mse", "output": "y"}}, "loss.target: missing"),
        (
            {"loss": {"name": "mse", "output": "y", "targte": "x"}},
            "loss.targte: unknown option of mse (did you mean 'target'?)",
        ),
        (
            {"loss": {"name": "mse", "output": 3, "target": "x"}},
            "loss.output: Input should be a valid string or callable, not 3",
        ),
        ({"loss": {"name": "spectral_mse", "output": "y", "target": "x", "power": 0}}, "loss: power must be above 0"),
        (
            {"loss": {"name": "functions.py:louder", "facto": 2}},
            "loss.facto: unknown option of louder (did you mean 'factor'?)",
        ),
        ({"loss": {"name": "nomodule.here:f"}}, "loss: 'nomodule.here' cannot be imported"),
        ({"metrics": {"a": {"name": "acuracy"}}}, "no metric 'acuracy' (did you mean 'accuracy'"),
        ({"metrics": {"a": 3}}, "metrics.a: Input should be a valid dictionary, not 3"),
        ({"metrics": ["a"]}, "metrics: Input should be a valid dictionary, not ['a']"),
        ({"optimizer": "adaam"}, "optimizer: optax has no optimizer 'adaam' that needs only a"),
        (
            {"optimizer": {"name": "adam", "beta": 1}},
            "optimizer.beta: unknown option of adam; there are: learning_rate, b1",
        ),
        ({"params": "absent"}, "params: "),
        (
            {"model": {"file": "net.onnx", "dims": {"tmie": "S"}}},
            "net.onnx: dims: {tmie: S}: no input has an open dimension of this name",
        ),
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
        ("steps=x", "config.yaml: steps: Input should be a valid integer, not 'x'"),
        ("stesp=3", "config.yaml: stesp: unknown key (did you mean 'steps'?)"),
        ("los.name=mse", "config.yaml: los: unknown key (did you mean 'loss'?)"),
        ("steps.a=1", "--set steps.a=1: steps is 12, without keys of its own"),
        ("model.static.sr=1", "--set model.static.sr=1: model is 'net.onnx', without keys of its own"),
        ("steps", "--set steps: expected KEY=VALUE"),
        ("a..b=1", "--set a..b=1: expected KEY=VALUE"),
        ("=1", "--set =1: expected KEY=VALUE"),
        ("steps=[1", "--set steps=[1, line 1: "),
        ("data.npz=absent", "config.yaml: data.npz: there is no folder or file"),
        ("1=2", "config.yaml: 1: "),
    ],
)
def test_mistakes_in_overrides_are_named(folder, override, said):
    assert said in refused(folder, override)


def keys_of(message: str, folder: Path) -> list[str]:
    """The key of each line, all of which begin with the file."""
    start = f"{folder / 'config.yaml'}: "
    assert all(line.startswith(start) for line in message.splitlines()), message
    return [line.removeprefix(start).partition(":")[0] for line in message.splitlines()]


def test_mistakes_of_every_kind_are_told_at_once(folder):
    """Unknown keys, wrong types, names without a function, options, files that are missing: one message."""
    message = refused(
        folder,
        batch_sizes=1,
        steps="x",
        loss="mean_squared",
        metrics={"a": "acuracy", "b": "accuracy", "c": {"name": "mse", "output": "y", "targte": "x"}},
        optimizer={"name": "adam", "beta": 1},
        sequences={"chunk": 3},
        devices=1_000,
        model="absent.onnx",
        data={"npz": "absent/*.npz"},
        validation={"function": "functions.py:mak"},
    )
    assert keys_of(message, folder) == [
        *("steps", "batch_sizes", "loss", "metrics.a", "metrics.b.output", "metrics.b.target", "metrics.c.target"),
        *("metrics.c.targte", "optimizer.beta", "sequences", "devices", "model", "data.npz", "validation.function"),
    ]


@pytest.mark.thorough
def test_parts_of_a_key_with_a_mistake_are_not_judged(folder):
    """The loss reads the time axis of the sequences: while that is wrong, nothing is said of the loss."""
    message = refused(folder, sequences={"time_axis": "x"}, loss="mean_squared", model="absent.onnx")
    assert keys_of(message, folder) == ["sequences.time_axis", "model"]


def test_rules_between_keys_are_told_with_the_rest(folder):
    """A rule waits for no other key, but is silent while an unknown key may be the one that it misses."""
    assert keys_of(refused(folder, steps=None, batch_size=0), folder) == [
        "batch_size",
        "expected either steps or epochs",
    ]
    assert keys_of(refused(folder, steps=None, epoch=1), folder) == ["epoch"]
    assert keys_of(refused(folder, steps=-1), folder) == ["steps"]


def test_mistakes_of_overrides_are_told_at_once(folder):
    lines = refused(folder, "steps", "=1", "steps=5").splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["--set steps", "--set =1"]


def test_the_command_tells_all_mistakes(folder):
    shown = call(write(folder, loss="mean_squared", batch_size=0, model="absent.onnx"), status=2).stderr
    assert keys_of(shown.removeprefix("error: ").strip(), folder) == ["batch_size", "loss", "model"]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.write_bytes(b"PK\x03\x04 cut"), "does not hold NumPy arrays of numbers"),
        (lambda path: path.write_bytes(b""), "does not hold NumPy arrays of numbers"),
        (lambda path: np.savez(path, x=np.zeros((3, 1, FEATURES), np.float32)), "'wanted' is missing, which example"),
        (
            lambda path: np.savez(path, x=np.zeros((3, 1, FEATURES)), wanted=np.ones((3, 2), bool)),
            "got float64[3, 1, 3]; convert it",
        ),
        (
            lambda path: np.savez(path, x=np.zeros((3, 1, 9), np.float32), wanted=np.ones((3, 2), bool)),
            "'x' is float32[3, 1, 9], but float32[",
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
    data = NpzFiles(folder / "examples")
    assert len(data) == 6
    assert [len(example["x"]) for example in data] == [3, 4, 5, 6, 7, 8]
    (folder / "examples" / "3.npz").unlink()
    assert len(data[-1]["x"]) == 8
    with pytest.raises(jaxrnn.InputError, match=r"3\.npz cannot be read: No such file"):
        data[3]
    with pytest.raises(TypeError, match="one at a time"):
        data[:2]


@pytest.mark.thorough
def test_examples_in_a_store_are_those_on_disk(folder):
    url = upload(folder / "examples", new_bucket() / "examples")
    here = {"npz": "examples"}
    runs = [
        call_json(write(folder, data=data, steps=3))
        for data in (here, {"npz": f"{url}"}, {"npz": f"{url.parent}/*/?.npz"})
    ]
    assert len({run["loss_last_tenth"] for run in runs}) == 1
    assert [path.name for path in NpzFiles(url.parent / "**/[12].npz").files] == ["1.npz", "2.npz"]
    check_refused(jaxrnn.InputError, f"there is no folder or file {url}/9.npz", NpzFiles, url / "9.npz")
    check_refused(jaxrnn.InputError, "none has no examples: no files match", NpzFiles, url.parent / "none" / "*")
    (error,) = call_json(write(folder, checkpoints="s3://bucket/run"), status=2).values()
    assert "checkpoints: expected a file or folder on this machine, not the URL s3://bucket/run" in error
    check_refused(jaxrnn.InputError, "Orbax writes to folders", Checkpoints, "s3://bucket/run")


@pytest.mark.parametrize("name", ["demo_denoiser", "finetune_denoiser", "finetune_vad", "train_denoiser"])
def test_settings_that_come_along_are_good(name):
    settings = read(CONFIGS / f"{name}.yaml")
    assert settings.data.function is not None or settings.data.recordings is not None


def shown_on_the_page() -> str:
    """The file of settings in the documentation of training."""
    page = (CONFIGS.parent / "docs/training.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```yaml title=\S+\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return block


def test_the_page_shows_every_key():
    shown = shown_on_the_page()
    keys = {key.rpartition(".")[2] for key, *_ in reference(TrainingSettings)} - {"NAME"}
    assert [key for key in sorted(keys) if not re.search(rf"\b{key}:\s", shown)] == []
    assert keys.issuperset(re.findall(r"^ *# (\w+):", shown, re.MULTILINE))


def test_the_page_shows_valid_settings(tmp_path):
    shutil.copy(PACKAGED, tmp_path / "denoiser.onnx")
    for folder in ("training", "validation"):
        (tmp_path / folder).mkdir()
        np.savez(tmp_path / folder / "0.npz", magnitude=np.ones((1, 7, 129), np.float32))
    (tmp_path / "shown.yaml").write_text(shown_on_the_page())
    training = prepare_training(tmp_path / "shown.yaml")
    assert training.settings.optimizer.options == {"weight_decay": 0.01}


@pytest.mark.filterwarnings("default:this trains")
def test_examples_and_warnings_are_answered_as_settings(folder):
    """What is wrong with an example, which a thread reads; and a basis that is trained, which is no mistake."""
    said = call(write(folder, sequences=None, batch_size=1), status=2).stderr
    assert "say where time is: sequences: {mode: apply, time_axis: {'x': 0, 'wanted': 0}}" in said
    onnx.save(normalised_model().proto, folder / "net.onnx")
    np.savez(folder / "0.npz", x=np.ones((1, 64), np.float32), wanted=np.ones((1, 1), np.float32))
    changes = {"loss": {"name": "mse", "output": "y", "target": "wanted"}, "sequences": None, "optimizer": None}
    said = call(write(folder, data={"npz": "0.npz"}, steps=1, batch_size=1, **changes)).stderr
    assert "warning: this trains parameters that are buffers in most models: 'basis' (a Fourier basis), " in said
    assert "unchanged: optimizer: {freeze: ['basis', 'norm.mean', 'norm.var']}; " in said
