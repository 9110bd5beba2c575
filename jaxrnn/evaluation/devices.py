"""A batch sharded over the devices of this process; the streams of different devices are independent."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxrnn._jax.context import exact_types
from jaxrnn.errors import InputError
from jaxrnn.evaluation.systems import System

Run = Callable[..., tuple[Any, Any]]


class Devices:
    """All devices of this process, which a batch is sharded over.

    Args:
        system: what runs.
        batch: recordings in a batch, a multiple of the number of devices.

    Raises:
        InputError: the batch is no such multiple.
    """

    def __init__(self, system: System, batch: int):
        self._system = system
        # A cache of the instance: one of the class would keep every system alive.
        self.run = functools.cache(self._run)
        self.devices = jax.local_devices()
        if batch % len(self.devices):
            raise InputError(
                f"a batch of {batch} cannot be sharded evenly over {len(self.devices)} devices: take a multiple of "
                f"{len(self.devices)}"
            )

    def _run(self, streams: int, ending: bool) -> Run:
        """``(carry, parts, frames) -> (pieces, carry)`` for a batch of so many streams.

        A batch of fewer than two streams for each device runs on one device.
        """
        run = functools.partial(self._system.run, ending=ending)
        count = len(self.devices)
        if count == 1 or streams % count or streams < 2 * count:
            return run
        sharded = PartitionSpec("streams")
        carry = self._carry_axes(streams)
        compiled = jax.jit(
            jax.shard_map(
                run,
                mesh=Mesh(np.array(self.devices), ("streams",)),
                in_specs=(carry, sharded, sharded),
                out_specs=(sharded, carry),
                check_vma=False,
            )
        )

        def sharded_run(carry: Any, parts: Mapping[str, Any], frames: Any) -> tuple[Any, Any]:
            # A function under jit takes whole numbers of 64 bits as such only where its caller's types are exact.
            is_wide = any(part.dtype.kind in "iu" and part.dtype.itemsize == 8 for part in parts.values())
            with exact_types() if is_wide else contextlib.nullcontext():
                return compiled(carry, parts, frames)

        return sharded_run

    def _carry_axes(self, streams: int) -> Any:
        """The sharding of each array of the carry: its batch axis is the one that grows with the batch."""

        def spec(one: Any, more: Any) -> PartitionSpec:
            axis = next((a for a, (x, y) in enumerate(zip(one.shape, more.shape, strict=True)) if x != y), None)
            return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, "streams")

        shapes = [jax.eval_shape(functools.partial(self._system.start, size)) for size in (streams, 2 * streams)]
        return jax.tree.map(spec, *shapes)
