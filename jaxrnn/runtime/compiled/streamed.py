"""A streamed function: its init, step and flush, exported, and the streamed function that a file of them makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn.errors import InputError, StateError
from jaxrnn.guards import exact_types
from jaxrnn.runtime.compiled.format import STREAMED_MAGIC, Archive
from jaxrnn.runtime.compiled.functions import Functions, export, facts_of, shape_of
from jaxrnn.runtime.compiled.manifest import dtype_named
from jaxrnn.runtime.ports import Port, fill_pulse, input_ports, output_axes
from jaxrnn.streaming import Flushed

if TYPE_CHECKING:
    from jaxrnn.streaming import Streamed

Arrays = Mapping[str, Any]
State = dict[str, Any]


def archive_streamed(streamed: Streamed, params: Any, platforms: Sequence[str] | None, label: str) -> Archive:
    """A streamed function's parameters, first state, step and flush.

    Raises:
        InputError: parameters are missing or do not fit, or the function has other trees than dicts by name.
    """
    ports, axes = input_ports(streamed), output_axes(streamed)
    params = streamed.check_params(params)
    leaves, structure = jax.tree.flatten(params)

    def init(leaves: Any, held: Arrays) -> State:
        return streamed.init(1, jax.tree.unflatten(structure, leaves), held or None)

    def step(leaves: Any, state: State, x: Arrays) -> tuple[dict[str, Any], State]:
        outputs, state = streamed.step(jax.tree.unflatten(structure, leaves), state, x)
        return {name: value for name, value in outputs.items() if value is not None}, state

    def flush(leaves: Any, state: State, tail: Arrays, valid: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        outputs, counts = streamed.flush(jax.tree.unflatten(structure, leaves), state, tail, valid)
        return outputs, {name: count for name, count in counts.items() if count is not None}

    given = [shape_of(leaf) for leaf in leaves]
    held = _held_at_the_start(streamed, params, ports)
    functions = {"init": export(init, platforms, given, held)}
    with exact_types():
        state = jax.eval_shape(init, given, held)
    (batch,) = jax.export.symbolic_shape("batch")
    for ending, lead in (("_lifted", (batch,)), ("", ())):
        before = {name: shape_of(vector, lead) for name, vector in state.items()}
        pulse = {port.name: shape_of(port, lead) for port in ports}
        valid = jax.ShapeDtypeStruct(lead, np.int32)
        functions[f"step{ending}"] = export(step, platforms, given, before, pulse)
        functions[f"flush{ending}"] = export(flush, platforms, given, before, pulse, valid)
    with exact_types():
        stepped, _ = jax.eval_shape(step, given, before, pulse)
        flushed, _ = jax.eval_shape(flush, given, before, pulse, valid)
    delay, rate = streamed.delay, streamed.rate
    manifest = {
        **facts_of(label),
        "pulse": streamed.pulse,
        "multiple": streamed.multiple,
        "smallest_pulse": streamed.smallest_pulse,
        "look_ahead": streamed.look_ahead,
        "receptive_field": streamed.receptive_field,
        "inputs": [_entry(port.name, port, axis=port.axis) for port in ports],
        "outputs": [
            _entry(
                name,
                stepped.get(name, flushed[name]),
                axis=axis,
                delay=delay[name],
                rate=None if rate[name] is None else str(rate[name]),
                at_end=name not in stepped,
            )
            for name, axis in axes.items()
        ],
        "state": [_entry(entry.name, entry, kind=entry.kind) for entry in streamed.state],
        "vectors": [_entry(name, vector) for name, vector in state.items()],
        "held": list(held),
    }
    return Archive(STREAMED_MAGIC, manifest, leaves, functions)


def _entry(name: str, array: Any, **facts: Any) -> dict[str, Any]:
    return {"name": name, "dtype": np.dtype(array.dtype).name, "shape": list(array.shape), **facts}


def _held_at_the_start(streamed: Streamed, params: Any, ports: Sequence[Port]) -> dict[str, Any]:
    """The shapes of the held inputs, if the state before the first frame is computed from them."""
    try:
        streamed.init(1, params)
    except InputError:
        return {port.name: shape_of(port) for port in ports if port.axis is None}
    return {}


class CompiledStream(Functions):
    """A streamed function from a compiled file: `init`, `step` and `flush` as `Streamed` has them, and its facts.

    Attributes:
        pulse, delay, rate, look_ahead, receptive_field, smallest_pulse: as those of `Streamed`, by name of the output.
        inputs: name, dtype, shape of one pulse and time axis of each; the axis is None where it is held constant.
        outputs: the same of each, with its delay and rate, and whether only a flush gives it (``at_end``).
        state: name, kind, dtype and shape of every entry.
        vectors: name, dtype and shape of the arrays that hold them.
    """

    def __init__(self, archive: Archive):
        super().__init__(archive)
        manifest = archive.manifest
        self.pulse: int = manifest["pulse"]
        self.smallest_pulse: int = manifest["smallest_pulse"]
        self.look_ahead: int = manifest["look_ahead"]
        self.receptive_field: int | None = manifest["receptive_field"]
        self.inputs: list[dict[str, Any]] = manifest["inputs"]
        self.outputs: list[dict[str, Any]] = [
            {**entry, "rate": None if entry["rate"] is None else Fraction(entry["rate"])}
            for entry in manifest["outputs"]
        ]
        self.state: list[dict[str, Any]] = manifest["state"]
        self.vectors: list[dict[str, Any]] = manifest["vectors"]
        self.delay: dict[str, int | None] = {entry["name"]: entry["delay"] for entry in self.outputs}
        self.rate: dict[str, Fraction | None] = {entry["name"]: entry["rate"] for entry in self.outputs}
        self._multiple: int = manifest["multiple"]
        self._held: list[str] = manifest["held"]
        self._ports = tuple(
            Port(entry["name"], dtype_named(entry["dtype"]), tuple(entry["shape"]), entry["axis"])
            for entry in self.inputs
        )

    def init(self, batch: int = 1, params: Sequence[Any] | None = None, held: Arrays | None = None) -> State:
        """As `Streamed.init`; ``params`` as in `step`.

        Raises:
            InputError: the state begins with something computed from held inputs, and they were not given.
        """
        given = {}
        with exact_types():
            for port in self._ports:
                if port.name not in self._held:
                    continue
                if held is None or port.name not in held:
                    raise InputError(
                        f"the state before the first frame is computed from held inputs: call init(batch, held=...) "
                        f"with {', '.join(self._held)}"
                    )
                given[port.name] = port.array(held[port.name])
            state = self._call("init", params, given)
            if batch != 1:
                state = {name: jnp.broadcast_to(vector, (batch, *vector.shape)) for name, vector in state.items()}
        return state

    def step(self, params: Sequence[Any] | None, state: State, x: Arrays) -> tuple[dict[str, Any], State]:
        """As `Streamed.step`, without the outputs that only a flush gives.

        Args:
            params: as the attribute, or None for those compiled into the step, which is faster.
            state: as `init` or the last step gave it.
            x: one pulse, by name.
        """
        lead = self._lead(state)
        if not isinstance(x, Mapping) or x.keys() != {port.name for port in self._ports}:
            found = ", ".join(map(str, x)) if isinstance(x, Mapping) else type(x).__name__
            raise InputError(f"x must be a dict with {', '.join(port.name for port in self._ports)}, not {found}")
        with exact_types():
            arrays = {port.name: port.array(x[port.name], lead) for port in self._ports}
        return self._call("step_lifted" if lead else "step", params, dict(state), arrays)

    def flush(self, params: Sequence[Any] | None, state: State, tail: Arrays | None = None, valid: Any = 0) -> Flushed:
        """As `Streamed.flush`, for a tail of at most one pulse.

        Args:
            params: as in `step`.
            state: behind the last step.
            tail: input frames that do not fill a pulse, by name, padded with anything to no more than one.
            valid: how many frames of the tail exist, in a batch perhaps another number for each; may be traced.
        """
        lead = self._lead(state)
        with exact_types():
            arrays = fill_pulse(self._ports, self.pulse, tail, valid, lead, multiple=self._multiple)
            existing = jnp.broadcast_to(jnp.asarray(valid).astype(jnp.int32), lead)
        outputs, counts = self._call("flush_lifted" if lead else "flush", params, dict(state), arrays, existing)
        return Flushed(outputs, {name: counts.get(name) for name in outputs})

    def _lead(self, state: State) -> tuple[int, ...]:
        """The batch in front of the state, or nothing.

        Raises:
            StateError: it is not a state of this function.
        """
        expected = {entry["name"]: entry for entry in self.vectors}
        if not isinstance(state, Mapping) or state.keys() != expected.keys():
            found = ", ".join(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
            raise StateError(f"the state must be a dict as init gives it, with {', '.join(expected)}, not {found}")
        leads = {jnp.shape(vector)[:-1] for vector in state.values()}
        for name, entry in expected.items():
            vector = state[name]
            fits = [*jnp.shape(vector)[-1:]] == entry["shape"] and vector.dtype == dtype_named(entry["dtype"])
            if not fits or len(leads) > 1 or jnp.ndim(vector) > 2:
                raise StateError(
                    f"state {name!r} must be {entry['dtype']}{entry['shape']}, in a batch with one leading axis, the "
                    f"same everywhere, not {vector.dtype.name}{list(jnp.shape(vector))}"
                )
        return leads.pop()
