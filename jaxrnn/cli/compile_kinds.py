"""What ``jaxrnn compile`` writes: a model in steps, or a model over whole recordings in pulses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from jaxrnn.errors import StateError
from jaxrnn.runtime.compiled import Compiled
from jaxrnn.runtime.compiled.streamed import CompiledStream
from jaxrnn.specs import ArraySpec
from jaxrnn.verification.comparison import Comparison, compare
from jaxrnn.verification.sampling import index_limits, random_arrays, symbols_of

if TYPE_CHECKING:
    from jaxrnn.model import Model
    from jaxrnn.streaming import Streamed

#: Pulses that are compared: behind the first, the state is no longer what it begins with.
PULSES = 3


class Kind(Protocol):
    """What to compile, how to compare the file with it, and what to say of the file.

    Attributes:
        compared: what is compared, in words.
    """

    compared: str

    @property
    def function(self) -> Model | Streamed:
        """What `save_compiled` takes."""
        ...

    @property
    def arguments(self) -> dict[str, Any]:
        """What else it takes."""
        ...

    def compare(self, compiled: Any) -> list[Comparison]:
        """What the file gives on random inputs, against the model."""
        ...

    def describe(self, compiled: Any) -> dict[str, Any]:
        """What is in the file, ready for JSON."""
        ...

    def facts(self, result: Mapping[str, Any]) -> list[str]:
        """Further lines for people."""
        ...


class InSteps:
    """A model whose call is a step."""

    compared = "one step"

    def __init__(self, model: Model, dims: Mapping[str, int]):
        self.function = model
        self.arguments: dict[str, Any] = {"dims": dims}
        forgets = any(variable.kind == "internal" for variable in model.state)
        try:
            _ = model.step_inputs
        except StateError as error:
            if not forgets:
                raise
            raise StateError(
                f"{error}. Here: --symbol NAME, the open dimension that is time; 'jaxrnn inspect' shows which can"
            ) from error

    def compare(self, compiled: Compiled) -> list[Comparison]:
        """One step, from a random state."""
        import jax

        model, infos = self.function, _infos(compiled.inputs)
        # All that a compiled file leaves open is the batch.
        batch = dict.fromkeys(symbols_of(infos), 1)
        frame = random_arrays(infos, {}, dims=batch, limits=index_limits(model)).inputs
        start = {name: _disturbed(value) for name, value in model.init_state().items()}
        here = compiled.step(compiled.params, start, frame)
        peer = jax.jit(model.step)(model.params, start, frame)
        return [
            compare(name, here[part][name], peer[part][name], scaled=True) for part in range(2) for name in peer[part]
        ]

    def describe(self, compiled: Compiled) -> dict[str, Any]:
        """Inputs, outputs and state of a step."""
        return {
            "functions": ["step", "scan"],
            "batch": compiled.batch_symbol or "a leading axis",
            "inputs": compiled.inputs,
            "outputs": compiled.outputs,
            "state": compiled.state,
        }

    def facts(self, result: Mapping[str, Any]) -> list[str]:
        """Nothing further."""
        return []


class InPulses:
    """A model over whole recordings, in pulses."""

    compared = "a step or the flush"

    def __init__(
        self, model: Model, symbol: str, pulse: int | None, dims: Mapping[str, int], multiple: int, shortest: int
    ):
        from jaxrnn.cli.pulses import stream_model

        self._model, self._multiple = model, multiple
        self.function = stream_model(model, symbol, pulse, dims, multiple, shortest)
        self.arguments: dict[str, Any] = {"params": model.params}

    def compare(self, compiled: CompiledStream) -> list[Comparison]:
        """Some pulses and the flush of a tail, from the first state on."""
        import jax

        streamed, params = self.function, self._model.params
        infos, limits = _infos(compiled.inputs), index_limits(self._model)
        held = {entry["name"] for entry in compiled.inputs if entry["axis"] is None}
        pulses = [random_arrays(infos, {}, seed=seed, limits=limits).inputs for seed in range(PULSES + 1)]
        pulses = [{**pulse, **{name: pulses[0][name] for name in held}} for pulse in pulses]
        constant = {name: pulses[0][name] for name in held}
        state, expected = compiled.init(held=constant), streamed.init(1, params, constant)
        outputs, wanted, step = {}, {}, jax.jit(streamed.step)
        for pulse in pulses[:-1]:
            outputs, state = compiled.step(None, state, pulse)
            wanted, expected = step(params, expected, pulse)
        pairs = {
            **{name: (outputs.get(name), value) for name, value in wanted.items()},
            **{f"state {name}": (state[name], value) for name, value in expected.items()},
        }
        flush = jax.jit(streamed.flush)
        # A tail may be too short for any frame to come of it.
        for valid in (compiled.pulse - self._multiple, compiled.pulse):
            rest = compiled.flush(None, state, pulses[-1], np.int32(valid))
            last = flush(params, expected, pulses[-1], np.int32(valid))
            behind = f"behind {valid} frame(s)"
            pairs |= {f"flush of {name} {behind}": (rest.outputs[name], x) for name, x in last.outputs.items()}
            pairs |= {f"frames of {name} {behind}": (rest.counts[name], x) for name, x in last.counts.items()}
        return [
            compare(name, here, peer, scaled=True)
            for name, (here, peer) in pairs.items()
            # None is what the other function gives.
            if here is not None or peer is not None
        ]

    def describe(self, compiled: CompiledStream) -> dict[str, Any]:
        """Inputs, outputs and state of a pulse, and the facts of streaming."""
        return {
            "functions": ["init", "step", "flush"],
            "batch": "a leading axis",
            "inputs": compiled.inputs,
            "outputs": [info.name for info in self._model.outputs],
            "state": compiled.state,
            "pulse": compiled.pulse,
            "delay": compiled.delay,
            "rate": {name: None if rate is None else str(rate) for name, rate in compiled.rate.items()},
            "look_ahead": compiled.look_ahead,
        }

    def facts(self, result: Mapping[str, Any]) -> list[str]:
        """Pulse, look-ahead and delays."""
        delays = [
            f"{name} comes at the end" if delay is None else f"{name} by {delay} of its frames"
            for name, delay in result["delay"].items()
        ]
        return [
            f"pulse: {result['pulse']} input frame(s); look-ahead: {result['look_ahead']}",
            f"delay: {', '.join(delays)}",
        ]


def _infos(entries: list[dict[str, Any]]) -> list[ArraySpec]:
    import jax.numpy as jnp

    return [ArraySpec(entry["name"], jnp.dtype(entry["dtype"]), tuple(entry["shape"])) for entry in entries]


def _disturbed(value: Any) -> Any:
    """A state that is not zero where it may be another, so that a state that is not read does not go unseen."""
    if value.dtype.kind != "f":
        return value
    return np.random.default_rng(0).normal(0, 0.1, value.shape).astype(value.dtype)
