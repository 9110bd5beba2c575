"""Small models, examples and trainings; ``training_cases.py JSON`` trains in a process and writes to ``out``."""

from __future__ import annotations

import dataclasses
import json
import resource
import sys
import time
from pathlib import Path

import grain
import jax
import jax.numpy as jnp
import numpy as np
from onnx import TensorProto, helper
from small_models import graph_of, make_model

import jaxrnn
from jaxrnn.training import Checkpoints, Optimizer, Sequences, Validation, fit

HIDDEN, FEATURES, OUTPUTS = 4, 3, 2


def recurrent_model(time=None, kind=TensorProto.FLOAT, nodes=(), seed=0):
    """A GRU with external state ``h`` and a projection: sequences ``x[batch, time, features]`` or, without a name for
    time, steps of one frame ``x[1, 1, features]``. Further nodes come between the GRU and its projection ``P``.
    """
    rng = np.random.default_rng(seed)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    shapes = {"W": (1, 3 * HIDDEN, FEATURES), "R": (1, 3 * HIDDEN, HIDDEN), "B": (1, 6 * HIDDEN)}
    weights = {name: 0.5 * rng.standard_normal(shape) for name, shape in shapes.items()}
    weights |= {"P": 0.5 * rng.standard_normal((HIDDEN, OUTPUTS)), "gain": np.ones(OUTPUTS)}
    constants = {name: array.astype(dtype) for name, array in weights.items()} | {"one": np.array([1])}
    batch = 1 if time is None else "batch"
    hidden = "hidden" if not nodes else nodes[-1].output[0]
    graph = graph_of(
        [
            helper.make_node("Transpose", ["x"], ["x_by_time"], perm=[1, 0, 2], name="to_time"),
            helper.make_node(
                "GRU", ["x_by_time", "W", "R", "B", "", "h"], ["Y", "h_out"], hidden_size=HIDDEN, name="gru"
            ),
            helper.make_node("Squeeze", ["Y", "one"], ["by_time"], name="squeeze"),
            helper.make_node("Transpose", ["by_time"], ["hidden"], perm=[1, 0, 2], name="from_time"),
            *nodes,
            helper.make_node("MatMul", [hidden, "P"], ["product"], name="project"),
            helper.make_node("Mul", ["product", "gain"], ["y"], name="scale"),
        ],
        {"x": [batch, time or 1, FEATURES], "h": [1, batch, HIDDEN]},
        {"y": [batch, time or 1, OUTPUTS], "h_out": [1, batch, HIDDEN]},
        constants,
        "recurrent",
        kind,
    )
    return jaxrnn.load(make_model(graph))


def examples(lengths, *, seed=0, stacked=False):
    """Examples of these lengths: ``x[1, time, features]``, or ``[time, 1, 1, features]``, and a target for ``y``."""
    rng = np.random.default_rng(seed)
    result = []
    for length in lengths:
        x = rng.standard_normal((1, length, FEATURES)).astype(np.float32)
        target = rng.standard_normal((1, length, OUTPUTS)).astype(np.float32)
        if stacked:
            x, target = (np.moveaxis(array, 1, 0)[:, :, None] for array in (x, target))
        result.append({"x": x, "target": target})
    return result


def mean_square(outputs, example, mask):
    """Mean squared error over the frames that exist, wherever the frames are."""
    axis = outputs["y"].shape.index(mask.shape[0])
    error = jnp.moveaxis(outputs["y"] - example["target"], axis, 0).reshape(mask.shape[0], -1)
    squares = jnp.sum(jnp.where(mask[:, None], jnp.square(error), 0.0), axis=1)
    return jnp.sum(squares) / jnp.sum(mask, dtype=jnp.float32)


def same(a, b):
    """Whether two dicts of arrays are the same to the last bit."""
    return a.keys() == b.keys() and all(np.asarray(a[name]).tobytes() == np.asarray(b[name]).tobytes() for name in a)


def furthest(a, b):
    """The largest difference of two dicts of arrays."""
    return max(float(np.abs(np.asarray(a[n], np.float64) - np.asarray(b[n], np.float64)).max()) for n in a)


def in_order(length, batch_size, epochs, seed=0):
    """The indices of every batch, as a training takes them."""
    shuffled = grain.MapDataset.range(length).seed(seed).shuffle()
    for epoch in range(epochs):
        order = [shuffled[epoch * length + place] for place in range(length)]
        assert sorted(order) == list(range(length))
        for start in range(0, length, batch_size):
            yield order[start : start + batch_size]


def jax_tree(example):
    return jax.device_put(example)


def flat_fit(model, data, loss, **options):
    """`fit`, whose groups of options are given field by field: ``optimizer`` and ``learning_rate``, ``validation`` and
    ``every``, ``checkpoints`` and ``keep``, ``chunk`` and ``time_axis``.
    """
    groups = {}
    for key, kind in (("optimizer", Optimizer), ("validation", Validation), ("checkpoints", Checkpoints)):
        first, *others = (field.name for field in dataclasses.fields(kind))
        fields = {name: options[name] for name in others if name in options}
        if options.get(key) is not None or (fields and kind is Optimizer):
            groups[key] = kind(**({first: options[key]} if key in options else {}), **fields)
    fields = [field.name for field in dataclasses.fields(Sequences)]
    groups["sequences"] = Sequences(**{name: options[name] for name in fields if name in options})
    used = {f.name for kind in (Optimizer, Validation, Checkpoints, Sequences) for f in dataclasses.fields(kind)}
    rest = {name: value for name, value in options.items() if name not in {*used, *groups}}
    return fit(model, data, loss, **groups, **rest)


def main(options: dict) -> None:
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    # As in quick_compiling.py: other machine code rounds in other places, and results are compared to the last bit.
    jax.config.update("jax_disable_most_optimizations", True)
    if "file_limit" in options:
        resource.setrlimit(resource.RLIMIT_FSIZE, (options["file_limit"], options["file_limit"]))

    from training_cases import mean_square  # checkpoints hold the name of its module

    delay = options.get("delay", 0.0)

    class Slow(list):
        """Examples that take their time."""

        def __getitem__(self, index: int):
            time.sleep(delay)
            return super().__getitem__(index)

    fitted = flat_fit(
        recurrent_model("time"),
        Slow(examples(options["lengths"])),
        mean_square,
        time_axis=1,
        checkpoints=options.get("folder"),
        validation=examples([4, 6, 5], seed=5) if options.get("validate") else None,
        **options["fit"],
    )
    written = Path(options["out"])
    partial = written.with_suffix(".part.npz")
    np.savez(
        partial,
        steps=[record["step"] for record in fitted.history],
        losses=[record["loss"] for record in fitted.history],
        devices=len(jax.devices()),
        **{f"best/{name}": np.asarray(array) for name, array in fitted.params.items()},
        **{f"last/{name}": np.asarray(array) for name, array in fitted.last_params.items()},
    )
    partial.rename(written)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
