"""What goes wrong in a training: numbers that are not finite, and mistakes of the caller, each told where it is."""

from __future__ import annotations

import io
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from onnx import TensorProto, helper
from refusals import check_refused
from small_models import graph_of, layers_model, make_model
from tiers import of_tiers
from training_cases import examples, flat_fit, mean_square, recurrent_model, same

import jaxrnn
from jaxrnn.training import TrainingError, fit, load_checkpoint, validate

OPTIONS = {"batch_size": 2, "time_axis": 1, "every": 2}


@pytest.fixture(scope="module")
def model():
    return recurrent_model("time")


def spoil(data, index, frame, value):
    """The data with one number of one example's input in another place."""
    stacked = data[index]["x"].ndim == 4
    x = data[index]["x"].copy()
    x[(frame, 0, 0, 0) if stacked else (0, frame, 0)] = value
    return [{**example, "x": x} if place == index else example for place, example in enumerate(data)]


@pytest.mark.parametrize("time", of_tiers([None, "time"], [None]), ids=["scan", "step"])
def test_the_first_node_that_is_not_finite(time, tmp_path):
    """The root of a number below 0: named, with its frame where frames go one by one, and nothing of it saved."""
    nodes = [
        helper.make_node("ReduceMin", ["x"], ["least"], name="least", axes=[2], keepdims=1),
        helper.make_node("Sqrt", ["least"], ["root"], name="the_root"),
        helper.make_node("Add", ["hidden", "root"], ["rooted"], name="add_root"),
    ]
    model = recurrent_model(time, nodes=nodes)
    data = [{**example, "x": np.abs(example["x"])} for example in examples([6, 6, 6, 6], stacked=time is None)]
    options = {**OPTIONS, "time_axis": 0 if time is None else 1, "checkpoints": tmp_path}
    good = flat_fit(model, data, mean_square, steps=2, **options)
    calls = []

    class Turning(list):
        """Goes bad in the second epoch."""

        def __getitem__(self, index):
            calls.append(index)
            return super().__getitem__(index) if len(calls) < 6 else spoil(data, index, 4, -1.0)[index]

    where = "in frame 4" if time is None else ""
    with pytest.raises(TrainingError) as caught:
        flat_fit(model, Turning(data), mean_square, steps=40, **options)
    text = str(caught.value)
    assert re.match(r"update \d+ is not finite \(loss nan\): the loss of example \d is NaN; ", text)
    assert "the first node whose output is not finite is 'the_root' (Sqrt" in text
    assert where in text
    newest = max(int(path.name) for path in tmp_path.iterdir() if path.name.isdecimal())
    assert text.endswith(f"The last good checkpoint is {tmp_path / str(newest)}.")
    assert all(np.isfinite(value).all() for value in load_checkpoint(tmp_path, model).values())
    assert good.step == 2


@pytest.mark.usefixtures("no_new_thread")
def test_data_loss_gradient_and_update_that_are_not_finite(model):
    data = examples([6, 6, 6, 6])

    def failure(data=data, loss=mean_square, **options):
        with pytest.raises(TrainingError) as caught:
            flat_fit(model, data, loss, steps=12, **{**OPTIONS, **options})
        return str(caught.value)

    assert "'x' of example 2 holds NaN" in failure(spoil(data, 2, 1, np.nan))
    endless = [*data[:3], {**data[3], "target": np.full((1, 6, 2), np.inf, np.float32)}]
    assert "'target' of example 3 holds infinity" in failure(endless)
    assert "it is the loss function that is not" in failure(
        loss=lambda outputs, example, mask: jnp.log(mean_square(outputs, example, mask) * 0 - 1)
    )
    # the square root has a finite value at 0, and no finite slope
    text = failure(loss=lambda outputs, example, mask: jnp.sqrt(mean_square(outputs, example, mask) * 0))
    assert re.search(r"finite \(0\), but the first parameter whose gradient is not is '\w+' \((NaN|infinity)\)", text)
    text = failure(
        loss=lambda outputs, example, mask: 1e4 * mean_square(outputs, example, mask),
        optimizer="sgd",
        learning_rate=3e38,
        freeze=["W", "R", "B"],
    )
    assert "update 1 is not finite" in text
    assert (
        "the update makes parameters infinite or NaN, the first of them 'P'; the learning rate may be too high" in text
    )
    assert text.endswith("No checkpoint was kept: give checkpoints=FOLDER.")
    with pytest.raises(TrainingError, match="validation loss after update 2 is nan, though"):
        flat_fit(model, data, mean_square, steps=12, validation=spoil(data, 0, 0, np.nan), **OPTIONS)


def test_a_loss_that_raises_is_let_through(model):
    def loss(outputs, example, mask):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        flat_fit(model, examples([6, 6]), loss, steps=1, **OPTIONS)
    assert caught.value.__notes__[-1] == "in update 1 of the training"


def test_padding_that_would_change_results(model):
    data = examples([6, 4])
    with pytest.raises(jaxrnn.InputError, match=r"example 1 was padded from 4 to 6 frames.* where its mask is False"):
        flat_fit(model, data, lambda o, e, mask: jnp.mean(jnp.square(o["y"] - e["target"])), steps=1, **OPTIONS)
    stacked = examples([6, 4], stacked=True), lambda o, e, mask: jnp.mean(jnp.log(jnp.abs(o["y"])))
    with pytest.raises(jaxrnn.InputError, match=r"example 1 was padded from 4 to 6 frames.* where its mask is False"):
        # Zeros in missing frames make this loss infinite, which shows nothing.
        flat_fit(recurrent_model(None), *stacked, steps=1, **{**OPTIONS, "time_axis": 0})
    layers = jaxrnn.load(layers_model())
    ragged = [{"x": np.ones((length, 1, 3), np.float32)} for length in (5, 3)]
    with pytest.raises(jaxrnn.InputError, match=r"through output 'Y_h': the model looks ahead"):
        flat_fit(layers, ragged, lambda o, e, mask: jnp.mean(o["Y_h"]), steps=1, batch_size=2, time_axis=0)
    flat_fit(layers, ragged, lambda o, e, mask: jnp.mean(o["Y_h"]), steps=2, batch_size=1, time_axis=0)


MISTAKES = {
    "nothing": ({"data": []}, "data is empty"),
    "one dict": ({"data": {"x": 1}}, r"sequence of examples, not one dict"),
    "no data": ({"data": 3}, "data must be a sequence of examples, or a function"),
    "missing": (
        {"data": [{"X": np.zeros((1, 2, 3))}]},
        r"input x: float32\[batch, time, 3\] is missing \(did you mean 'X'",
    ),
    "state": ({"data": [{"x": np.zeros((1, 2, 3), "f4"), "h": 0}]}, "'h' is state, which training carries itself"),
    "dtype": ({"data": [{"x": np.zeros((1, 2, 3))}]}, r"input x: .* got float64\[1, 2, 3\]; convert it with"),
    "shape": ({"data": [{"x": np.zeros((1, 2, 4), "f4"), "target": np.zeros((1, 2, 2))}]}, r"input x: .*4"),
    "words": ({"data": [{"x": np.zeros((1, 2, 3), "f4"), "target": "speech"}]}, "'target' must be an array of numbers"),
    "unlike": (
        {"data": [*examples([4]), {"x": examples([4])[0]["x"]}], "steps": 9, "batch_size": 1},
        "example 1: 'target' is missing, which example 0 has",
    ),
    "no end": ({"steps": None}, "either steps=.* or epochs="),
    "two ends": ({"epochs": 2}, "either steps=.* or epochs="),
    "endless epochs": ({"data": lambda rng: None, "steps": None, "epochs": 2}, "epochs= needs a sequence"),
    "batch": ({"batch_size": 4}, "batch_size=4 is more than the 3 examples"),
    "zero": ({"batch_size": 0}, "batch_size must be a whole number from 1 on"),
    "truth": ({"every": True, "checkpoints": "unused"}, "every must be a whole number"),
    "seed": ({"seed": -1}, "seed must be a whole number from 0 on"),
    "chunk": ({"chunk": 2, "time_axis": None}, "chunk= needs time_axis="),
    "axis": ({"time_axis": {"X": 1}}, r"time_axis: no example and no output has 'X' \(did you mean 'x'"),
    "no axis": ({"time_axis": {"x": 5}}, r"'x' is float32\[1, 4, 3\] and has no axis 5"),
    "other axis": ({"time_axis": 2}, r"time is axis 1 in mode 'step'; .* time_axis={'x': 1, 'target': 2}"),
    "unequal": ({"time_axis": None, "data": examples([4, 5, 6])}, r"mode='step', time_axis={'x': 1, 'target': 1}"),
    "mode": ({"mode": "Step"}, "the mode must be one of apply, step, scan, not 'Step' .did you mean 'step'"),
    "drawn validation": ({"validation": lambda rng: None}, "validation must be a sequence of examples, not"),
    "train": ({"train": "w"}, r"train: no parameter matches 'w' \(did you mean|; there is: W"),
    "freeze": ({"freeze": ["W", "Q*"]}, r"freeze: no parameter matches 'Q\*'"),
    "all frozen": ({"freeze": "*"}, "leaves no parameter to train"),
    "params": ({"params": {"W": 1}}, "params: 'R' is missing"),
    "optimizer": ({"optimizer": "Adam"}, r"no optimizer 'Adam' .* \(did you mean 'adam'\?\)"),
    "average": ({"average": 1.0}, "average is a decay between 0 and 1, not 1.0"),
    "two rates": ({"optimizer": optax.sgd(0.1), "learning_rate": 0.2}, "learning_rate goes with the name"),
    "option": ({"options": {"b3": 1}}, "optax.adam does not take these arguments: .*'b3'"),
    "options of no name": ({"optimizer": optax.sgd(0.1), "options": {"momentum": 1}}, "options goes with the name"),
    "rate": ({"learning_rate": -1}, "learning_rate must be a positive number"),
    "clip": ({"clip_norm": float("nan")}, "clip_norm must be a positive number"),
    "remat": ({"remat": "all"}, "remat must be None, 'sqrt'"),
    "compute": ({"dtype": "bf16"}, "dtype must be 'bfloat16' or 'float16', or None .*, not 'bf16'"),
    "axis by symbol": ({"time_axis": "time"}, "time_axis must be a number, or a dict of numbers by name, not 'time'"),
    "devices": ({"devices": []}, "devices must be JAX devices"),
    "number of devices": ({"devices": 2}, r"devices must be JAX devices, as jax.devices\(\) gives them, not 2"),
    "loss": ({"loss": 3}, "loss must be a function"),
    "vector": (
        {"loss": lambda o, e, mask: o["y"][0, :, 0]},
        r"must be one float, a scalar, not float32\[4\]; take a mean",
    ),
    "whole": ({"loss": lambda o, e, mask: jnp.sum(mask, dtype=jnp.int32)}, "must be one float"),
    "number": (
        {"loss": lambda o, e, mask: float(mean_square(o, e, mask))},
        r"the loss must return a JAX scalar and compute with jax\.numpy: NumPy, float\(\), .*concrete value",
    ),
    "array of NumPy": (
        {"metrics": {"size": lambda o, e, mask: np.abs(np.asarray(o["y"])).max()}},
        "the metric 'size' must return a JAX scalar",
    ),
    "choice": ({"loss": lambda o, e, mask: mean_square(o, e, mask) or 0.0}, "the loss must return a JAX scalar"),
    "metrics": ({"metrics": [mean_square]}, "metrics must be a dict of functions by name, not a list"),
    "metric": ({"metrics": {"loss": mean_square}}, "a metric cannot be called 'loss'"),
    "another argument": (
        {"optimizer": optax.GradientTransformationExtraArgs(lambda p: (), lambda g, s, p=None, *, hessian: (g, s))},
        r"the optimizer cannot compute an update from .*value_fn of the loss: .*'?(value|hessian)",
    ),
    "no folder": ({"checkpoints": 3}, "a file or folder must be a path or a URL, not int"),
    "folder": ({"checkpoints": __file__}, "is a file, not a folder"),
    "wide buckets": ({"bucket": 10**12}, "1,000,000,000,000.* no more than 67,108,864 frames of padding"),
    "long chunks": ({"chunk": 10**12}, "1,000,000,000,000.* no more than 67,108,864 frames of padding"),
}


@pytest.mark.usefixtures("no_new_thread")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(model, mistake):
    options, match = MISTAKES[mistake]
    given = {"data": examples([4, 4, 4]), "loss": mean_square, "steps": 5, **OPTIONS, **options}
    if len(given["data"] if isinstance(given["data"], list) else "xx") == 1:
        given["batch_size"] = 1
    check_refused(jaxrnn.InputError, match, flat_fit, model, given.pop("data"), given.pop("loss"), **given)


def test_arguments_of_other_kinds_are_named(model):
    data = examples([4])
    check_refused(jaxrnn.InputError, "model must be a Model, .*not NoneType", fit, None, data, mean_square, steps=1)
    words = r"sequences must be jaxrnn\.training\.Sequences, not str"
    check_refused(jaxrnn.InputError, words, fit, model, data, mean_square, steps=1, sequences="step")


def test_a_model_that_forgets_has_no_steps(models):
    keyword = jaxrnn.load(models / "keyword_net.onnx")
    data = [{"feats": np.zeros((1, 40, 50), np.float32)}]
    for mode in ("scan", "step"):
        with pytest.raises(jaxrnn.StateError, match="forgets its state after every call"):
            flat_fit(keyword, data, lambda o, e, m: jnp.mean(o["logits"]), steps=1, batch_size=1, mode=mode)
    recurrent = recurrent_model("time")
    data = [{"x": np.zeros((1, 4, 3), np.float32), "h": np.zeros((1, 1, 4), np.float32)}]
    with pytest.raises(jaxrnn.InputError, match="carries no state from chunk to chunk in mode 'apply'"):
        flat_fit(recurrent, data, mean_square, steps=1, batch_size=1, mode="apply", time_axis=1, chunk=2)


@pytest.mark.thorough
def test_progress_is_on_standard_error_of_a_terminal_only(model, monkeypatch, capsys):
    data = examples([4, 4])
    flat_fit(model, data, mean_square, steps=2, **OPTIONS)
    assert capsys.readouterr() == ("", "")

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    shown = flat_fit(model, data, mean_square, epochs=3, validation=data, **OPTIONS)
    text = sys.stderr.getvalue()
    assert "training" in text
    assert f"validation {shown.history[-1]['validation_loss']:.4g}" in text
    assert re.search(r"update 3", text)
    assert re.search(r"\d/s", text)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(sys, "stderr", Terminal())
    flat_fit(model, data, mean_square, steps=2, progress=False, **OPTIONS)
    assert sys.stderr.getvalue() == ""


def test_validate_checks_what_it_is_given(model):
    data = examples([4, 4])
    for params, given, words in (
        ({name: value for name, value in model.params.items() if name != "gain"}, data, "'gain' is missing"),
        (model.params, [], "data is empty"),
        (model.params, lambda rng: data[0], "must be a sequence of examples, not a function"),
    ):
        check_refused(jaxrnn.InputError, words, validate, model, params, given, mean_square)


def test_strings_cannot_be_trained_on(model):
    nodes = [helper.make_node("Identity", ["s"], ["t"]), helper.make_node("Mul", ["x", "w"], ["y"])]
    inputs, outputs = {"s": (TensorProto.STRING, [2]), "x": [2]}, {"t": (TensorProto.STRING, [2]), "y": [2]}
    words = jaxrnn.load(make_model(graph_of(nodes, inputs, outputs, {"w": np.ones(2, np.float32)})))
    example = {"s": np.array(["a", "b"]), "x": np.ones(2, np.float32)}
    with pytest.raises(jaxrnn.InputError, match=r"input s: string\[2\]: strings, .* cannot be batched"):
        flat_fit(words, [example] * 2, mean_square, steps=1, **OPTIONS)
    data = [{**each, "text": np.array(["a"], np.dtypes.StringDType())} for each in examples([4, 4])]
    with pytest.raises(jaxrnn.InputError, match="'text' must be an array of numbers"):
        flat_fit(model, data, mean_square, steps=1, **OPTIONS)


@pytest.mark.thorough
def test_parameters_to_begin_with_stay_the_callers(model):
    """Changed after the training, they change no result: a device shares memory that begins at 64 bytes."""
    bias = np.asarray(model.params["B"])
    memory = np.zeros(bias.nbytes + 64, np.uint8)
    place = -memory.ctypes.data % 64
    own = memory[place : place + bias.nbytes].view(np.float32).reshape(bias.shape)
    own[...] = bias
    params = {**model.params, "B": own}
    fitted = flat_fit(model, examples([4, 4]), mean_square, steps=1, params=params, freeze="B", **OPTIONS)
    own += 1
    np.testing.assert_array_equal(fitted.params["B"], bias)


def test_an_optimizer_of_the_callers_own(model):
    """Its learning rate is told where its state has one; parameters are pulled to what optax makes of them alone."""
    data = examples([4, 4])
    schedule = optax.linear_schedule(0.25, 0.125, 2)
    optimizer = optax.inject_hyperparams(optax.sgd)(learning_rate=schedule, momentum=0.5)
    fitted = flat_fit(model, data, mean_square, steps=2, optimizer=optimizer, **OPTIONS)
    momentum = {"optimizer": "sgd", "options": {"momentum": 0.5}}
    named = flat_fit(model, data, mean_square, steps=2, learning_rate=schedule, **momentum, **OPTIONS)
    for each in (fitted, named):
        assert [record["learning_rate"] for record in each.history] == [0.25, 0.1875]
    assert same(fitted.params, named.params)
    silent = flat_fit(model, data, mean_square, steps=1, optimizer=optax.sgd(0.25), **OPTIONS)
    assert "learning_rate" not in silent.history[0]


def test_a_line_search_evaluates_the_loss_of_the_batch(model):
    """The parameters are those of optax.lbfgs by hand."""
    data, optimizer = examples([4, 4]), optax.lbfgs()
    fitted = flat_fit(model, data, mean_square, steps=2, optimizer="lbfgs", **OPTIONS)

    def objective(params):
        start = jnp.zeros((1, 1, 4), np.float32)
        losses = [
            mean_square(model.apply(params, {"x": each["x"], "h": start}), each, jnp.ones(4, bool)) for each in data
        ]
        return sum(losses) / np.float32(2)

    @jax.jit
    def update(params, state):
        value, gradients = jax.value_and_grad(objective)(params)
        changes, state = optimizer.update(gradients, state, params, value=value, grad=gradients, value_fn=objective)
        return optax.apply_updates(params, changes), state

    params = dict(model.params)
    with jax.numpy_dtype_promotion("standard"):
        state = optimizer.init(params)
        for _ in range(2):
            params, state = update(params, state)
    assert fitted.history[1]["loss"] < fitted.history[0]["loss"]
    for name, array in params.items():
        np.testing.assert_allclose(fitted.params[name], array, rtol=1e-4, atol=1e-5)
