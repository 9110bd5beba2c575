"""A plan in pulses of one size: pure functions of one stream or a batch, with its arrays by their paths."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxrnn._jax.precision import cast_param, check_names, check_param
from jaxrnn.cells.products import Types, product_type
from jaxrnn.errors import InputError
from jaxrnn.jaxprs.eager import compiled
from jaxrnn.jaxprs.packing import Packed, Purpose, fits, fold, folding_of, run_folded, unpack
from jaxrnn.jaxprs.schedule import Step
from jaxrnn.steps.recordings import scan_steps
from jaxrnn.steps.stepper import State
from jaxrnn.streaming.facts import flat_spec
from jaxrnn.streaming.plan import Plan, shape_of
from jaxrnn.streaming.values import FinalValue

Arrays = Mapping[str, Any]


class Pulses:
    """What `Streamed` does, but for trees and checks; to be called where types are those of the trace.

    Args:
        plan: what was traced.
        params: an example of the parameters.
        units: of a pulse.
        multiple: what every number of input frames is a multiple of.

    Attributes:
        plan: as above.
        example: shapes of the parameters.
        spec: the facts.
    """

    def __init__(self, plan: Plan, params: Any, units: int, multiple: int):
        self.plan, self._units = plan, units
        self._traced = functools.cache(self._traced_step)
        self.example = jax.tree.map(shape_of, params)
        self.spec = flat_spec(plan, units, multiple, needs_params=bool(jax.tree.leaves(self.example)))

    def check_params(self, params: Any) -> None:
        """Hold parameters, plain or packed, against those that the function was streamed with.

        Raises:
            InputError: they are missing, differ in structure, shape or dtype, or were packed for another function.
        """
        unpacked = unpack(params, self.plan)
        expected, structure = jax.tree_util.tree_flatten_with_path(self.example)
        if unpacked is None and expected:
            raise InputError("the function was streamed with parameters: pass params")
        if isinstance(self.example, dict) and isinstance(unpacked, dict):
            check_names(unpacked, self.example)
        leaves, shape = jax.tree.flatten(unpacked)
        if shape != structure:
            raise InputError(f"params must be a pytree like those that the function was streamed with, {structure}")
        for (path, want), leaf in zip(expected, leaves, strict=True):
            check_param(f"params{jax.tree_util.keystr(path)}", leaf, want, product_type())

    def _leaves(self, params: Any) -> list[Any]:
        """The leaves of parameters, plain or packed, in the types that the function was streamed with."""
        return list(map(cast_param, jax.tree.leaves(unpack(params, self.plan)), jax.tree.leaves(self.example)))

    def init(self, params: Any, constants: list[Any] | None) -> State:
        """The state before the first frame.

        Args:
            params: None where it may not depend on them.
            constants: the inputs without a time axis; None where it may not depend on them.

        Raises:
            InputError: parameters or constants are needed.
        """
        if params is not None:
            self.check_params(params)
        initial, count = self.plan.initial, len(jax.tree.leaves(self.example))
        groups = {
            "params": (None if params is None else self._leaves(params), slice(0, count)),
            "constants": (constants, slice(count, None)),
        }
        arguments: list[Any] = []
        for name, (leaves, own) in groups.items():
            needed = initial.depends[own]
            if leaves is None and any(needed):
                raise InputError(f"the state before the first frame depends on {name}: call init({name}=...)")
            arguments += [None] * len(needed) if leaves is None else leaves
        return self._computed(arguments) if initial.known is None else initial.known

    @compiled
    def _computed(self, arguments: list[Any]) -> State:
        pairs = zip(arguments, self.plan.initial.closed.in_avals, strict=True)
        return self.plan.initial([jnp.zeros(aval.shape, aval.dtype) if leaf is None else leaf for leaf, aval in pairs])

    @property
    def initial_constants(self) -> list[bool]:
        """Of every input without a time axis, whether the state before the first frame depends on it."""
        return self.plan.initial.depends[len(jax.tree.leaves(self.example)) :]

    @compiled
    def step(self, params: Any, state: State, arrays: Arrays, *, batched: bool) -> tuple[list[Any], State]:
        """One pulse of one stream or a batch: the outputs, None for those that only a flush gives, and the state."""

        def one(state: State, arrays: Arrays) -> tuple[list[Any], State]:
            return self._step(params, [arrays[each.name] for each in self.spec.inputs], state)

        return (jax.vmap(one) if batched else one)(state, arrays)

    @compiled
    def scan(self, params: Any, state: State, arrays: Arrays, *, batched: bool) -> tuple[list[Any], State]:
        """Pulses after pulses of one stream or a batch, as `step`."""

        def step(state: State, arrays: Arrays) -> tuple[Arrays, State]:
            outputs, state = self._step(params, [arrays[each.name] for each in self.spec.inputs], state)
            return {each.name: output for each, output in zip(self.spec.outputs, outputs, strict=True)}, state

        def one(state: State, arrays: Arrays) -> tuple[list[Any], State]:
            outputs, state = scan_steps(self.spec, step, state, arrays)
            return [outputs[each.name] for each in self.spec.outputs], state

        return (jax.vmap(one) if batched else one)(state, arrays)

    def _step(self, params: Any, arrays: list[Any], state: State) -> tuple[list[Any], State]:
        if isinstance(params, Packed) and params.purpose.pulse == self.spec.pulse:
            stages = self._stages(params.params)
            if fits(stages, params.folded, params.purpose.folding):
                return run_folded(stages, params.folded, arrays, state)
        return self._plain_step(unpack(params, self.plan), arrays, state)

    def _plain_step(self, params: Any, arrays: list[Any], state: State) -> tuple[list[Any], State]:
        outputs, new = self.plan.run(self._leaves(params), state, arrays, self._units)
        outputs = _where(self.plan.is_within(state, self._units), outputs)
        return [
            None if isinstance(kind, FinalValue) else output
            for output, kind in zip(outputs, self.plan.outputs, strict=True)
        ], new

    def _stages(self, params: Any) -> Step:
        """The step as a jaxpr, traced once for all that it depends on."""
        leaves, structure = jax.tree.flatten(jax.tree.map(shape_of, params))
        return self._traced(structure, tuple(leaves), Types.here(), jax.sharding.get_abstract_mesh())

    def _traced_step(self, structure: Any, leaves: tuple[Any, ...], *_: Any) -> Step:
        arrays = [each.struct() for each in self.spec.inputs]
        return Step.trace(self._plain_step, structure.unflatten(leaves), arrays, self.plan.layout.vectors)

    @compiled
    def pack(self, params: Any) -> Packed:
        """As `Streamed.pack`."""
        unpacked = unpack(params, self.plan)
        stages = self._stages(unpacked)
        purpose = Purpose(self.plan.fingerprint, folding_of(stages), self.spec.pulse, label=self.plan.label)
        return Packed(unpacked, fold(stages, unpacked), purpose)

    @compiled
    def flush(
        self, params: Any, state: State, arrays: list[Any], existing: jax.Array, *, units: int, batched: bool
    ) -> tuple[list[Any], list[Any]]:
        """The outputs of a pass over so many units that ends after the existing frames, and their counts.

        Of a recording that the constraints do not allow, they are NaN, or 0 in types without it.
        """
        leaves = self._leaves(params)

        def one(state: State, arrays: list[Any], existing: jax.Array) -> tuple[list[Any], list[Any]]:
            outputs, _ = self.plan.run(leaves, state, arrays, units, existing)
            counts = self.plan.counts(state, existing)
            outputs = _where(self.plan.is_allowed(state, existing), outputs)
            return [
                output if count is None else _without_rest(output, kind.axis, count)
                for output, count, kind in zip(outputs, counts, self.plan.outputs, strict=True)
            ], counts

        if not batched:
            return one(state, arrays, existing)
        return jax.vmap(one, in_axes=(0, 0, 0 if existing.ndim else None))(state, arrays, existing)

    def padded(self, arrays: Arrays, units: int, lead: int) -> list[Any]:
        """The arrays of a tail in the order of the leaves, their time axes made as long as so many units."""
        frames = units * self.plan.clock.unit
        return [_padded_to(arrays[leaf.name], leaf.frames(frames), lead) for leaf in self.plan.leaves]


def _padded_to(array: Any, shape: tuple[int, ...], lead: int) -> Any:
    widths = [(0, size - have) for size, have in zip(shape, array.shape[lead:], strict=True)]
    return jnp.pad(array, [(0, 0)] * lead + widths) if any(map(any, widths)) else array


def _where(allowed: Any, outputs: Sequence[Any]) -> list[Any]:
    """The outputs of a recording that the constraints allow; else NaN."""
    return [*outputs] if allowed is True else [jnp.where(allowed, each, _nothing(each.dtype)) for each in outputs]


def _nothing(dtype: Any) -> Any:
    return jnp.asarray(jnp.nan if jnp.issubdtype(dtype, jnp.inexact) else 0, dtype)


def _without_rest(output: Any, axis: int, count: Any) -> Any:
    """An output of a flush with zeros where no frames are."""
    places = jnp.arange(output.shape[axis], dtype=jnp.int32).reshape(
        [-1 if d == axis else 1 for d in range(output.ndim)]
    )
    return jnp.where(places < count, output, jnp.zeros((), output.dtype))
