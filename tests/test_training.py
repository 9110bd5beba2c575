"""Training: every update against a loop written out by hand, whatever the mode, the lengths and the chunks."""

from __future__ import annotations

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from onnx import helper
from small_models import graph_of, layers_model, make_model
from tiers import of_tiers
from training_cases import examples, flat_fit, furthest, in_order, jax_tree, mean_square, recurrent_model, same

import jaxrnn
from jaxrnn.demo import PACKAGED
from jaxrnn.training import Checkpoints, EarlyStopping, Optimizer, Sequences, Validation, fit, validate
from jaxrnn.training.batches import drawn_order, example_order, made_ahead
from jaxrnn.training.examples import NpzFiles, make_source
from jaxrnn.training.layout import make_layout
from jaxrnn.training.losses import ctc
from jaxrnn.training.optimizers import learning_rate
from jaxrnn.training.sharding import Placement
from jaxrnn.training.updates import Forward

RATE = 0.05


@functools.cache
def gradient_of(model):
    """Loss of one example without padding, by `Model.scan` or `Model.step`; with the new state, and its gradient."""

    def loss(params, state, example):
        run = model.scan if example["x"].ndim == 4 else model.step
        outputs, state = run(params, state, {"x": example["x"]})
        count = example["x"].shape[0 if example["x"].ndim == 4 else 1]
        return mean_square(outputs, example, jnp.ones(count, bool)), state

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


def descend(params, gradients, rate=RATE):
    """One step against the mean of some gradients; in NumPy, which compiles nothing."""
    means = {name: np.mean([each[name] for each in gradients], 0) for name in params}
    return {name: (np.asarray(value) - rate * means[name]).astype(value.dtype) for name, value in params.items()}


def cut(example, start, stop):
    axis = 0 if example["x"].ndim == 4 else 1
    return {name: array.take(range(start, min(stop, array.shape[axis])), axis) for name, array in example.items()}


@pytest.fixture(scope="module", params=of_tiers(["scan", "step"], ["step"], []))
def mode(request):
    return request.param


@pytest.fixture(scope="module")
def model(mode):
    return recurrent_model("time" if mode == "step" else None)


def data_for(mode, lengths):
    return examples(lengths, stacked=mode == "scan")


def axis_of(mode):
    return {"scan": 0, "step": 1}[mode]


@pytest.mark.thorough
def test_whole_sequences_equal_full_back_propagation(model, mode):
    """Of unequal lengths, in one chunk or in none: plain gradients of each example alone, averaged by hand."""
    data = data_for(mode, (9, 9, 5))  # which leaves batches of one shape, with and without padding
    expected = model.params
    for batch in in_order(3, 2, 2):
        gradients = [gradient_of(model)(expected, model.init(), data[index])[1] for index in batch]
        expected = descend(expected, gradients)
    options = {"epochs": 2, "batch_size": 2, "optimizer": "sgd", "learning_rate": RATE, "time_axis": axis_of(mode)}
    fitted = flat_fit(model, data, mean_square, **options)
    assert fitted.step == 4
    assert furthest(fitted.params, expected) < 1e-6
    assert furthest(flat_fit(model, data, mean_square, chunk=12, **options).params, expected) < 1e-6
    assert furthest(flat_fit(model, data, mean_square, bucket=12, **options).params, expected) < 1e-6
    # and it is not what chunks give
    assert furthest(flat_fit(model, data, mean_square, chunk=4, **options).params, expected) > 1e-3


@pytest.mark.thorough
def test_chunks_equal_the_loop_written_out_by_hand(model, mode):
    """One update for each chunk; the state goes on without its gradient; who has ended counts no more."""
    data, chunk = data_for(mode, (5, 9, 3, 8)), 3
    expected, losses = model.params, []
    for batch in in_order(4, 2, 2):
        states = [model.init() for _ in batch]
        longest = max(data[index]["x"].shape[axis_of(mode)] for index in batch)
        for start in range(0, longest, chunk):
            alive = [row for row, index in enumerate(batch) if data[index]["x"].shape[axis_of(mode)] > start]
            pieces = {row: cut(data[batch[row]], start, start + chunk) for row in alive}
            found = {row: gradient_of(model)(expected, states[row], pieces[row]) for row in alive}
            for row, ((_, state), _) in found.items():
                states[row] = state
            losses.append(np.mean([float(value) for (value, _), _ in found.values()]))
            expected = descend(expected, [gradient for _, gradient in found.values()])
    fitted = flat_fit(
        model,
        data,
        mean_square,
        epochs=2,
        batch_size=2,
        chunk=chunk,
        optimizer="sgd",
        learning_rate=RATE,
        time_axis=axis_of(mode),
    )
    assert [record["step"] for record in fitted.history] == list(range(1, len(losses) + 1))
    np.testing.assert_allclose([record["loss"] for record in fitted.history], losses, rtol=1e-5)
    assert furthest(fitted.params, expected) < 1e-6


@pytest.mark.nightly
def test_apply_follows_a_joined_optax_chain():
    """Mode apply of a model without state, adam with a schedule and clipping: optax's own loop, called by hand."""
    model = jaxrnn.load(layers_model())
    rng = np.random.default_rng(0)
    data = [
        {"x": rng.standard_normal((6, 1, 3)).astype(np.float32), "target": rng.standard_normal((6, 1, 2))}
        for _ in range(5)
    ]

    def loss(outputs, example, mask):
        return 100 * jnp.mean(jnp.square(outputs["logits"] - example["target"]))

    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 6)
    adam = Optimizer(learning_rate=schedule, clip_norm=1.0, freeze=["W", "sc*"])
    fitted = fit(model, data, loss, steps=6, batch_size=2, optimizer=adam, seed=3)
    start = dict(model.params)
    trained = {name: start[name] for name in ("R", "B", "P")}
    one = jax.jit(jax.value_and_grad(lambda params, e: loss(model.apply(params, {"x": e["x"]}), e, None)))
    data = [jax_tree(example) for example in data]
    with jax.numpy_dtype_promotion("standard"):
        optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))
        state = optimizer.init(trained)
        for batch, record in zip(in_order(5, 2, 2, seed=3), fitted.history, strict=True):
            both = [one({**start, **trained}, data[index]) for index in batch]
            value = np.mean([each[0] for each in both])
            gradients = jax.tree.map(lambda *g: sum(g) / len(g), *(each[1] for each in both))
            gradients = {name: gradients[name] for name in trained}
            np.testing.assert_allclose(record["loss"], value, rtol=1e-5)
            np.testing.assert_allclose(record["grad_norm"], optax.tree.norm(gradients), rtol=1e-5)
            np.testing.assert_allclose(record["learning_rate"], schedule(record["step"] - 1), rtol=1e-6)
            assert record["grad_norm"] > 1  # so that it was clipped
            updates, state = optimizer.update(gradients, state, trained)
            trained = optax.apply_updates(trained, updates)
    assert furthest({name: fitted.params[name] for name in trained}, trained) < 1e-4
    assert same({n: fitted.params[n] for n in ("W", "scale")}, {n: start[n] for n in ("W", "scale")})
    assert list(fitted.params) == list(model.params)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["adafactor", "adamw", "lamb", "rprop", "sgd", "sm3"])
def test_a_named_optimizer_is_that_of_optax(name):
    """With its learning rate in its state, and nothing else of it."""
    rng = np.random.default_rng(0)
    draws = [{"a": rng.standard_normal((4, 3)), "b": rng.standard_normal(3)} for _ in range(4)]
    start, *gradients = [jax.device_put(jax.tree.map(np.float32, each)) for each in draws]
    optimizer, plain = Optimizer(name, learning_rate=0.05), getattr(optax, name)(0.05)
    found, expected = start, start
    with jax.numpy_dtype_promotion("standard"):
        state, plain_state = optimizer.init(start), plain.init(start)
        for gradient in gradients:
            found, state = optimizer.update(gradient, state, found, jnp.float32(1))
            updates, plain_state = plain.update(gradient, plain_state, expected)
            expected = optax.apply_updates(expected, updates)
            assert float(learning_rate(state)) == np.float32(0.05)
    assert furthest(found, expected) < 1e-6


@pytest.mark.thorough
def test_padding_changes_nothing_even_where_it_is_not_finite():
    """Whatever stands behind the end: the packaged denoiser takes logarithms, and its loss divides by a target."""
    model = jaxrnn.load(PACKAGED)
    rng = np.random.default_rng(0)
    data = [
        {"magnitude": rng.uniform(0.1, 1, (1, t, 129)).astype(np.float32), "clean": rng.uniform(0.1, 1, (t, 129))}
        for t in (4, 11)
    ]

    def loss(outputs, example, mask):
        ratio = jnp.log(outputs["mask"][0] * example["magnitude"][0] / example["clean"].astype(jnp.float32))
        return jnp.sum(jnp.where(mask[:, None], jnp.square(ratio), 0.0)) / jnp.sum(mask, dtype=jnp.float32)

    options = {"time_axis": {"magnitude": 1, "clean": 0}, "optimizer": "sgd", "learning_rate": 1e-3}
    both = flat_fit(model, data, loss, steps=1, batch_size=2, bucket=16, **options)
    alone = [flat_fit(model, [example], loss, steps=1, batch_size=1, **options) for example in data]
    mean = {name: np.mean([each.params[name] for each in alone], 0) for name in both.params}
    assert both.history[0]["loss"] == pytest.approx(np.mean([each.history[0]["loss"] for each in alone]), rel=1e-5)
    assert furthest(both.params, mean) < 1e-5 * max(float(np.abs(x).max()) for x in mean.values())
    sequences = Sequences(time_axis=options["time_axis"])
    measured = validate(model, model.params, data, loss, batch_size=2, sequences=sequences, metrics={"again": loss})
    assert measured["loss"] == pytest.approx(both.history[0]["loss"], rel=1e-5)
    assert measured["again"] == measured["loss"]


@pytest.mark.thorough
def test_no_update_without_a_frame(model, mode):
    """A bucket of several chunks adds none."""
    data, options = data_for(mode, (6, 5)), {"batch_size": 2, "chunk": 3, "time_axis": axis_of(mode)}
    plain, padded = (
        flat_fit(model, data, mean_square, epochs=2, bucket=bucket, optimizer="adam", **options) for bucket in (1, 12)
    )
    assert len(plain.history) == len(padded.history) == 4
    assert same(plain.params, padded.params)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", of_tiers([np.int32, np.uint16], [np.int32], thorough=()))
@pytest.mark.parametrize("blank", of_tiers([0, 1, -1], [-1], thorough=()))
def test_labels_of_any_length(blank, kind):
    """The loss of a batch is the mean of the losses of the examples alone, whatever pads labels and frames."""
    rng = np.random.default_rng(0)
    model = jaxrnn.load(
        make_model(
            graph_of(
                [helper.make_node("MatMul", ["x", "W"], ["y"])],
                {"x": ["T", 4]},
                {"y": ["T", 6]},
                {"W": rng.standard_normal((4, 6)).astype(np.float32)},
            )
        )
    )
    data = [
        {"x": rng.standard_normal((frames, 4)).astype(np.float32), "text": np.array(text, kind)}
        for frames, text in ((20, [2, 3]), (20, [3, 2, 4, 2, 3]), (12, [4, 2, 4]), (8, [3, 4]))
    ]
    loss, axes = ctc("y", "text", blank=blank, time_axis=0), {"x": 0, "text": 0}
    alone = [float(loss({"y": each["x"] @ model.params["W"]}, each, np.ones(len(each["x"]), bool))) for each in data]
    for batch_size, bucket in ((1, 32), (2, 1), (4, 32)):
        sequences = Sequences(time_axis=axes, bucket=bucket)
        measured = validate(model, model.params, data, loss, batch_size=batch_size, sequences=sequences)
        assert measured["loss"] == pytest.approx(np.mean(alone), rel=1e-5)
    fitted = fit(model, data, loss, steps=1, batch_size=4, sequences=sequences, progress=False)
    assert fitted.history[0]["loss"] == pytest.approx(np.mean(alone), rel=1e-5)


def test_rates_and_constants():
    """Frames joined along an axis, targets of another rate, label sequences and constants, each as it needs."""
    model = recurrent_model()
    seen = {}

    def loss(outputs, example, mask):
        seen[mask.shape[0]] = {name: array.shape for name, array in example.items()}
        slow = jnp.repeat(example["slow"], 2, total_repeat_length=mask.shape[0])
        error = outputs["y"][0, :, 0] - slow - example["level"]
        return jnp.sum(jnp.where(mask, jnp.square(error), 0.0)) / jnp.sum(mask, dtype=jnp.float32)

    def example(frames, labels):
        x = np.linspace(-1, 1, frames * 3, dtype=np.float32).reshape(1, frames, 3)
        slow = np.linspace(0, 1, frames // 2, dtype=np.float32)
        return {"x": x, "slow": slow, "labels": np.arange(labels) + 1, "level": np.float32(0.5)}

    axes = {"x": 1, "y": 1, "slow": 0, "labels": 0}
    flat_fit(model, [example(4, 3), example(10, 1)], loss, steps=1, batch_size=2, bucket=8, time_axis=axes)
    assert seen[16] == {"x": (1, 16, 3), "slow": (8,), "labels": (3,), "level": ()}
    axes.pop("labels")
    data = [example(4, 3), example(10, 3)]
    flat_fit(model, data, loss, steps=2, batch_size=2, chunk=6, time_axis=axes)
    assert seen[6] == {"x": (1, 6, 3), "slow": (3,), "labels": (3,), "level": ()}
    with pytest.raises(jaxrnn.InputError, match="multiple of 2, or leave 'slow' out"):
        flat_fit(model, data, loss, steps=1, batch_size=2, chunk=5, time_axis=axes)


@pytest.mark.nightly
def test_recomputing_and_narrow_products(model, mode):
    """Both reach the model: the one changes nothing but memory, the other rounds products and leaves float32."""
    data = data_for(mode, (8, 12))
    options = {"steps": 3, "batch_size": 2, "time_axis": axis_of(mode), "learning_rate": 0.02, "optimizer": "sgd"}
    plain = flat_fit(model, data, mean_square, **options)
    assert furthest(flat_fit(model, data, mean_square, remat=4, **options).params, plain.params) < 1e-6
    narrow = flat_fit(model, data, mean_square, dtype="bfloat16", **options)
    assert {value.dtype.name for value in narrow.params.values()} == {"float32"}
    assert 1e-6 < furthest(narrow.params, plain.params) < 1e-2
    arguments = (model.params, model.init(), jax_tree(data[0]), jnp.ones(8, bool))
    for remat in (None, "sqrt"):
        layout = make_layout(model, Sequences(mode=mode, time_axis=axis_of(mode), remat=remat), "", data[0])
        forward = Forward(model, layout, mean_square, {})
        jaxpr = str(jax.make_jaxpr(lambda *a, f=forward: f.measure(*a, True))(*arguments))
        assert any(name in jaxpr for name in ("checkpoint", "remat")) == (remat is not None)


@pytest.mark.parametrize("name", of_tiers(["predictor_net", "silero_vad_16k_op15"], [], ["predictor_net"]))
def test_a_real_network_takes_the_step_of_its_gradient(models, name):
    """Tokens of 64 bits and two layers with packed state; samples in frames, behind a convolutional front."""
    rng = np.random.default_rng(0)
    if name == "predictor_net":
        model, output = jaxrnn.load(models / "predictor_net.onnx"), "log_probs"
        example = {"encoder_frame": rng.standard_normal((3, 1, 1, 80)), "token": rng.integers(0, 30, (3, 1, 1))}
    else:
        model, output = jaxrnn.load(models / f"{name}.onnx", static={"sr": 16000}), "output"
        example = {"input": 0.1 * rng.standard_normal((3, 1, 512))}
    example = {key: array.astype("int64" if key == "token" else "float32") for key, array in example.items()}

    def loss(outputs, example, mask):
        value = outputs[output]
        return jnp.mean(jnp.square(value if output == "log_probs" else jnp.log(value)))

    def whole(params, inputs):
        return loss(model.scan(params, model.init(), inputs)[0], None, None)

    options = {"optimizer": "sgd", "learning_rate": 1e-3, "train": list(model.params), "mode": "scan", "time_axis": 0}
    fitted = flat_fit(model, [example], loss, steps=1, batch_size=1, **options)
    with jax.enable_x64(True):
        inputs = jax_tree(example)
    value, gradients = jax.jit(jax.value_and_grad(whole))(model.params, inputs)
    assert fitted.history[0]["loss"] == pytest.approx(float(value), rel=1e-5)
    expected = descend(model.params, [gradients], 1e-3)
    assert furthest(fitted.params, expected) < 1e-3 * furthest(fitted.params, model.params)


@pytest.mark.nightly
def test_drawn_examples_depend_on_seed_and_place_alone():
    model = recurrent_model("time")
    drawn = []

    def draw(rng):
        drawn.append(rng.integers(1 << 30))
        return examples([int(rng.integers(3, 6))], seed=drawn[-1])[0]

    options = {"batch_size": 2, "time_axis": 1, "bucket": 6}
    first = flat_fit(model, draw, mean_square, steps=3, **options)
    assert drawn[0] == drawn[1]  # the first one is also looked at beforehand
    assert len(set(drawn)) == len(drawn) - 1 >= 6
    again = flat_fit(model, draw, mean_square, steps=3, **options)
    other = flat_fit(model, draw, mean_square, steps=3, seed=1, **options)
    assert same(first.params, again.params)
    assert not same(first.params, other.params)


def test_validation_keeps_the_best_and_stops_early(tmp_path):
    model = recurrent_model("time")
    data, held_out = examples([6] * 4), examples([4, 7], seed=9)
    fitted = fit(
        model,
        data,
        mean_square,
        steps=500,
        batch_size=2,
        optimizer=Optimizer(learning_rate=0.1),
        sequences=Sequences(time_axis=1),
        metrics={"square": mean_square},
        validation=Validation(held_out, every=5),
        callbacks=[EarlyStopping(3)],
    )
    assert fitted.stopped == "patience"
    measured = {r["step"]: r["validation_loss"] for r in fitted.history if "validation_loss" in r}
    assert list(measured) == list(range(5, fitted.step + 1, 5))
    assert fitted.best_step == min(measured, key=measured.__getitem__) == fitted.step - 15
    found = validate(model, fitted.params, held_out, mean_square, sequences=Sequences(time_axis=1))
    assert found["loss"] == pytest.approx(measured[fitted.best_step], rel=1e-6)
    assert not same(fitted.params, fitted.last_params)
    assert fitted.history[4]["validation_square"] == measured[5]
    assert all(a["seconds"] <= b["seconds"] for a, b in zip(fitted.history, fitted.history[1:], strict=False))
    fitted.plot(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["curve.png"]


LENGTHS = np.random.default_rng(2).integers(1, 60, 41)
BY_FRAMES = Sequences(time_axis=1, batch_frames=130, bucket=12)


@pytest.fixture(scope="module")
def unequal(tmp_path_factory):
    """Examples of unequal lengths, in memory and in files."""
    folder, data = tmp_path_factory.mktemp("unequal"), examples(LENGTHS)
    for number, example in enumerate(data):
        np.savez(folder / f"{number:02d}.npz", **example)
    return data, NpzFiles(folder)


def test_batches_by_frames_have_each_example_once(unequal):
    layout, placement = make_layout(recurrent_model("time"), BY_FRAMES, "first", unequal[0][0]), Placement(None, 6)
    orders = [example_order(make_source(data, 0), layout, placement, seed=3, epochs=2) for data in unequal]
    batches, again = ([order[place] for place in range(len(order))] for order in orders)
    assert batches == again
    half = len(batches) // 2
    assert batches[:half] != batches[half:]
    for epoch in (batches[:half], batches[half:]):
        assert sorted(number for batch in epoch for number in batch) == list(range(41))
        padded = [-(-max(LENGTHS[list(batch)]) // 12) * 12 * len(batch) for batch in epoch]
        assert max(padded) <= 130
        assert max(map(len, epoch)) == 6
        assert sum(padded) < 1.5 * LENGTHS.sum()


@pytest.mark.thorough
def test_batches_by_frames_train_and_validate(unequal, tmp_path):
    """Results are those of batches of one, and a resumed training is the same to the last bit."""
    model, (data, files) = recurrent_model("time"), unequal
    measured = [
        validate(model, model.params, files, mean_square, sequences=sequences, batch_size=size)["loss"]
        for sequences, size in ((BY_FRAMES, 6), (Sequences(time_axis=1, bucket=12), 1))
    ]
    assert measured[0] == pytest.approx(measured[1], rel=1e-6)
    train = functools.partial(fit, model, files, mean_square, sequences=BY_FRAMES, batch_size=6, seed=3)
    whole = train(epochs=2)
    train(steps=7, checkpoints=tmp_path / "run")
    resumed = train(epochs=2, checkpoints=tmp_path / "run")
    assert (resumed.resumed_from, same(resumed.params, whole.params)) == (7, True)
    order = example_order(
        make_source(data, 0), make_layout(model, BY_FRAMES, "", data[0]), Placement(None, 6), seed=3, epochs=2
    )
    assert whole.step == len(order)
    few, options = [data[number] for number in order[0]], {"optimizer": Optimizer("sgd", learning_rate=0.1)}
    first = train(steps=1, **options)
    alone = fit(
        model, few, mean_square, steps=1, batch_size=len(few), sequences=Sequences(time_axis=1, bucket=12), **options
    )
    for name, array in alone.params.items():
        np.testing.assert_allclose(first.params[name], array, rtol=1e-5, atol=1e-6)


def test_batches_by_frames_that_cannot_be(unequal):
    model, data = recurrent_model("time"), unequal[0]
    for of, options, said in (
        (data, {"batch_frames": 50}, f"less than the {max(LENGTHS)} frames of example {LENGTHS.argmax()}"),
        (data, {"batch_frames": 200, "chunk": 4}, "batch_frames= needs time_axis=, and whole sequences"),
        (lambda rng: data[0], {"batch_frames": 200}, "batch_frames= needs a sequence of examples"),
    ):
        with pytest.raises(jaxrnn.InputError, match=said):
            fit(model, of, mean_square, steps=1, sequences=Sequences(time_axis=1, **options))


def test_early_stopping_counts_the_validations_of_the_history(tmp_path):
    """A training that was interrupted between validations stops after the same update, and does not go on later."""
    model, data, held_out = recurrent_model("time"), examples([6] * 4), examples([4, 7], seed=9)

    def train(steps, folder):
        options = {"optimizer": Optimizer(learning_rate=0.1), "sequences": Sequences(time_axis=1), "batch_size": 2}
        options |= {"checkpoints": folder and Checkpoints(tmp_path / folder, every=1)}
        options |= {"validation": Validation(held_out, every=5), "callbacks": [EarlyStopping(3)]}
        return fit(model, data, mean_square, steps=steps, **options)

    whole = train(500, None)
    train(whole.step - 8, "cut")
    train(whole.step - 3, "cut")
    cut = train(500, "cut")
    assert (cut.step, cut.best_step, cut.resumed_from) == (whole.step, whole.best_step, whole.step - 3)
    again = train(500, "cut")
    assert (again.stopped, again.step, again.resumed_from) == ("patience", whole.step, whole.step)
    with pytest.raises(jaxrnn.InputError, match="patience must be a whole number from 1 on"):
        EarlyStopping(0)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", of_tiers(["float64", "float16", "bfloat16"], ["float16"], ()))
def test_types_stay_those_of_the_file(kind):
    """A float64 model trains in float64 without ``jax_enable_x64``; small types get updates below their rounding."""
    from onnx import TensorProto

    model = jaxrnn.load(layers_model(getattr(TensorProto, {"float64": "DOUBLE"}.get(kind, kind.upper()))))
    dtype = model.inputs[0].dtype
    data = [{"x": np.full((3, 1, 3), 0.5).astype(dtype), "target": np.float64(0.1)}] * 2
    seen = set()

    def loss(outputs, example, mask):
        seen.add((outputs["logits"].dtype.name, example["target"].dtype.name))
        return jnp.mean(jnp.square(outputs["logits"].astype(example["target"].dtype) - example["target"]))

    fitted = flat_fit(model, data, loss, steps=40, batch_size=1, learning_rate=1e-4)
    assert seen == {(kind, "float64" if kind == "float64" else "float32")}
    assert {array.dtype for array in fitted.params.values()} == {dtype}
    # 40 updates of adam of 1e-4 each; one alone is less than half of the last bit of most weights of 16 bits
    assert 2e-3 < furthest(fitted.params, model.params) < 6e-3


@pytest.mark.thorough
def test_no_update_compiles_anew_and_none_waits(caplog):
    """Twenty updates of one shape: one compilation, however they are resumed, validated and padded."""
    model = recurrent_model("time")
    with jax.log_compiles(), caplog.at_level("WARNING", logger="jax"):
        sequences = Sequences(time_axis=1, bucket=8)
        fit(model, examples([5, 6, 7, 8]), mean_square, steps=20, batch_size=3, sequences=sequences, progress=False)
    compiled = [r.getMessage() for r in caplog.records if "XLA compilation of jit(_plain_update)" in r.getMessage()]
    assert len(compiled) == 1


def test_an_interrupted_start_of_the_background_thread_is_that_interrupt(monkeypatch):
    starts = threading.Thread.start

    def start(thread):
        starts(threading.Timer(0.05, starts, (thread,)))
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(KeyboardInterrupt):
        next(made_ahead(drawn_order(2, 3), 0, lambda number, rows: rows))
