"""What is shown at a prompt is short: no arrays written out, a few lines, each within the window."""

from __future__ import annotations

import dataclasses
import inspect
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from onnx import TensorProto, helper
from plain_graphs import model, node

import jaxrnn
from jaxrnn import Limits, demo, evaluation, profiling, verification
from jaxrnn._files.messages import brief, short
from jaxrnn.model.inspection import inspect_model
from jaxrnn.streaming import Flushed

LINES, COLUMNS = 10, 120
MANY = [f"an_input_with_quite_a_long_name_{number}" for number in range(40)]


def frames(name, shape=("a_dimension_of_many_letters", 3)):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    """Whatever functions give and users print, by name."""
    large = model(
        *(node("Relu", [name], [f"{name}_out"], name=name) for name in MANY),
        inputs=[frames(name) for name in MANY],
        outputs=[frames(f"{name}_out") for name in MANY],
    )
    path = tmp_path_factory.mktemp("compiled") / "denoiser.jaxrnn"
    # Wherever a file lies, what is shown is its name.
    deep = path.parent / ("a_folder_with_a_long_name" * 6)
    deep.mkdir()
    denoiser = jaxrnn.load(shutil.copy(demo.PACKAGED, deep))
    inputs = {"magnitude": jnp.zeros((1, 4, 129)), "h": jnp.zeros((1, 1, 80))}
    streamed = denoiser.stream("time", pulse=4)
    state = streamed.init(constants={"h": inputs["h"]})
    wide = {name: jax.ShapeDtypeStruct((20, 3), np.float32) for name in MANY}
    jaxrnn.save_compiled(denoiser, path, dims={"time": 1})
    sound = demo.mixture(np.random.default_rng(0), 0.1, 5.0)
    return {
        "a model": denoiser,
        "a model of many inputs": jaxrnn.load(large, state={}),
        "an inspection": inspect_model(large),
        "a description": denoiser.inputs[0],
        "a state": denoiser.state[0],
        "facts": jaxrnn.load(large, state={}).spec,
        "a streamed function": streamed,
        "a streamed function of many inputs": jaxrnn.stream(lambda x: x, wide, axes=0),
        "facts of a stream": streamed.spec,
        "an entry of a state": streamed.state[-1],
        "packed parameters": denoiser.pack(denoiser.params, dims={"time": 1}),
        "a flush": streamed.flush(denoiser.params, state, inputs, 4),
        "a live stream": jaxrnn.Runner(denoiser, denoiser.params),
        "a pool": jaxrnn.StreamPool(denoiser, denoiser.params, 4),
        "a compiled file": jaxrnn.load_compiled(path),
        "limits": Limits(),
        "a comparison with another engine": verification.verify(demo.PACKAGED),
        "sound": sound,
        "sound without its noise": demo.denoise(sound.noisy),
    }


def test_values_are_short(values):
    for name, value in values.items():
        lines = repr(value).splitlines()
        assert len(lines) <= LINES, f"{name}: {value!r}"
        assert max(map(len, lines)) <= COLUMNS, f"{name}: {value!r}"
        assert lines[0].startswith(type(value).__name__), f"{name}: {value!r}"
    for name in ("a model", "a streamed function", "a live stream", "a pool", "a compiled file"):
        assert "denoiser" in repr(values[name])
        assert "a_folder" not in repr(values[name])


def test_public_records_have_short_representations():
    """None writes its fields out as they are, which may be arrays, or a table of a thousand rows."""
    records = {
        item
        for module in (jaxrnn, *(getattr(jaxrnn, name) for name in jaxrnn._PACKAGES))
        for item in (getattr(module, name) for name in module.__all__)
        if inspect.isclass(item) and (dataclasses.is_dataclass(item) or hasattr(item, "_fields"))
    }
    assert {Limits, profiling.Profile, Flushed, evaluation.Results} <= records
    generated = {each for each in records if hasattr(each.__repr__, "__wrapped__") or "_fields" in vars(each)}
    assert not sorted(each.__name__ for each in generated if each.__repr__ is not short)


def test_parts_are_shortened():
    @brief
    @dataclasses.dataclass
    class Record:
        text: str
        table: dict
        loss: float
        array: object = None
        count: int = 3

    shown = repr(Record("long " * 100, {n: [n] * 9 for n in range(9)}, 1 / 3, np.zeros((4, 5)), 3))
    assert "array=float64[4, 5]" in shown
    assert "loss=0.333333" in shown
    assert "3: (3, 3, 3, 3, ... 9 in all), ... 9 in all}" in shown.replace("\n ", "")
    assert "count" not in shown
    assert len(shown) < 300
