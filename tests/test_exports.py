"""What exporters write: state, steps, streams and gradients of small networks, against the frameworks' numbers."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import MODELS
from refusals import check_refused
from tiers import of_tiers
from verifier import assert_close

import jaxrnn
from jaxrnn._jax.context import exact_types

EXPORTS = MODELS / "exports"
EXPECTED = json.loads((EXPORTS / "expected.json").read_text()) if EXPORTS.is_dir() else {}
#: Sums of at most a hundred products of numbers around 1, in float32, through up to 14 frames.
TOLERANCE = 1e-5

pytestmark = pytest.mark.skipif(not EXPECTED, reason=f"no exports at {EXPORTS}; set JAXRNN_MODELS")


class Export:
    """A file, and the calls that its framework made of it."""

    def __init__(self, name: str):
        self.model = jaxrnn.load(EXPORTS / f"{name}.onnx")
        self.expected = EXPECTED[name]
        self.calls: list[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]] = []
        with np.load(EXPORTS / f"{name}.npz") as arrays:
            while inputs := self._arrays(arrays, f"in{len(self.calls)}."):
                self.calls.append((inputs, self._arrays(arrays, f"out{len(self.calls)}.")))

    @staticmethod
    def _arrays(arrays, prefix):
        return {key.removeprefix(prefix): arrays[key] for key in arrays.files if key.startswith(prefix)}

    @property
    def time(self) -> str:
        """The name of the open dimension that is time."""
        (info,) = self.model.inputs
        return next(size for size in reversed(info.shape) if isinstance(size, str))


def named(kind):
    """Return the networks of which the file of expectations says so; most are nightly."""
    names = [name for name, entry in EXPECTED.items() if kind(entry)]
    return of_tiers(names, names[::9], [])


@pytest.mark.thorough
@pytest.mark.parametrize("name", of_tiers(EXPECTED, [], list(EXPECTED)[::12]))
def test_values_state_and_gradients(name):
    """The framework's outputs under jit; the state as listed; a derivative of every parameter in reverse mode."""
    export = Export(name)
    model = export.model
    apply = jax.jit(model.apply)
    for index, (inputs, outputs) in enumerate(export.calls):
        assert_close(apply(model.params, inputs), outputs, TOLERANCE, f"call {index}")
    external = {variable.input: variable.output for variable in model.state if variable.kind == "external"}
    internal = [variable.name for variable in model.state if variable.kind == "internal"]
    assert external == export.expected["external"]
    assert len(internal) == export.expected["internal"], internal

    inputs, _ = export.calls[0]
    direction = {key: recording(value.shape) for key, value in model.params.items()}

    def loss(params):
        outputs = model.apply(params, inputs).values()
        return sum(jnp.mean(value**2) for value in outputs if jnp.issubdtype(value.dtype, jnp.floating))

    reverse = jax.jit(jax.grad(loss))(model.params)
    _, forward = jax.jit(lambda params: jax.jvp(loss, (params,), (direction,)))(model.params)
    products = [np.asarray(reverse[key]) * direction[key] for key in reverse]
    along, size = (sum(float(part.sum()) for part in parts) for parts in (products, map(np.abs, products)))
    assert size > 0
    assert abs(along - float(forward)) <= 1e-4 * size


def recording(shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.thorough
@pytest.mark.parametrize("name", named(lambda entry: entry["external"]))
def test_carried_steps(name):
    """Eight steps, the state of each the one that the step before gave."""
    export = Export(name)
    model, held = export.model, export.expected["external"]
    step = jax.jit(model.step)
    with exact_types():
        state = {key: jnp.array(export.calls[0][0][key]) for key in held}
        for index, (inputs, outputs) in enumerate(export.calls):
            data = {key: value for key, value in inputs.items() if key not in held}
            found, state = step(model.params, state, data)
            expected = {key: value for key, value in outputs.items() if key not in held.values()}
            assert_close(found, expected, TOLERANCE, f"step {index}")
            assert_close(state, {key: outputs[held[key]] for key in held}, TOLERANCE, f"state after step {index}")


@pytest.mark.parametrize("name", named(lambda entry: entry["internal"]))
def test_what_forgets_has_no_steps(name):
    model = Export(name).model
    check_refused(jaxrnn.StateError, "forgets its state after every call", model.init)


@pytest.mark.thorough
@pytest.mark.parametrize("name", named(lambda entry: entry["stream"] is True))
def test_streams(name):
    """In pulses of 1 and of 3 frames, recordings of both lengths."""
    export = Export(name)
    for pulse in (1, 3):
        streamed = export.model.stream(export.time, pulse)
        run = jax.jit(streamed.run)
        for inputs, outputs in export.calls:
            assert_close(run(export.model.params, inputs), outputs, TOLERANCE, f"pulse {pulse}")


@pytest.mark.parametrize("name", named(lambda entry: entry["stream"] is False))
def test_what_runs_backwards_does_not_stream(name):
    export = Export(name)
    with pytest.raises(jaxrnn.StreamError, match=r"(runs backwards in time|reverses time).*runs? forward"):
        export.model.stream(export.time)


CELLS = ("keras_lstm", "keras_gru", "keras_gru_before", "keras_simple", "loop_cellloop")


@pytest.mark.parametrize("name", of_tiers(CELLS, ("keras_gru",)))
def test_loops_over_time_are_cells(name):
    """One frame leaves no loop; over more, the recurrence is that of a cell, with its derivative rule."""
    export = Export(name)
    model, (inputs, _) = export.model, export.calls[0]
    one = str(jax.make_jaxpr(model.apply)(model.params, {key: value[:, :1] for key, value in inputs.items()}))
    assert "scan[" not in one
    assert "while[" not in one
    whole = str(jax.make_jaxpr(model.apply)(model.params, inputs))
    assert "while[" not in whole
    assert "name=_sequence" in whole
