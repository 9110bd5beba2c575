"""A batch over all devices of this process: each computes some of its streams, and none waits for another's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxrnn.errors import InputError
from jaxrnn.evaluation.systems import System

Run = Callable[..., tuple[Any, Any]]


class Devices:
    """The devices that a batch is cut over.

    Args:
        system: what runs.
        batch: recordings at once; the number of devices has to divide it.
        devices: by default all of this process.

    Raises:
        InputError: the batch cannot be cut evenly.
    """

    def __init__(self, system: System, batch: int, devices: list[Any] | None = None):
        self._system = system
        self.devices = jax.local_devices() if devices is None else devices
        if batch % len(self.devices):
            raise InputError(
                f"a batch of {batch} cannot be cut evenly over {len(self.devices)} devices: take a multiple of "
                f"{len(self.devices)}"
            )

    @functools.cache  # noqa: B019 - lives as long as the evaluation
    def run(self, lanes: int, ending: bool) -> Run:
        """``(carry, parts, frames) -> (pieces, carry)`` for a batch of so many streams.

        It is not cut where a device would get less than two: a small rest is one device's.
        """
        run = functools.partial(self._system.run, ending=ending)
        count = len(self.devices)
        if count == 1 or lanes % count or lanes < 2 * count:
            return run
        streams = PartitionSpec("streams")
        carry = self._carry_axes(lanes)
        return jax.jit(
            jax.shard_map(
                run,
                mesh=Mesh(np.array(self.devices), ("streams",)),
                in_specs=(carry, streams, streams),
                out_specs=(streams, carry),
                check_vma=False,
            )
        )

    def _carry_axes(self, lanes: int) -> Any:
        """For each array of the carry, which axis grows with the batch."""

        def spec(one: Any, more: Any) -> PartitionSpec:
            axis = next((a for a, (x, y) in enumerate(zip(one.shape, more.shape, strict=True)) if x != y), None)
            return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, "streams")

        shapes = [jax.eval_shape(functools.partial(self._system.start, size)) for size in (lanes, 2 * lanes)]
        return jax.tree.map(spec, *shapes)
