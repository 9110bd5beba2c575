"""Add a JAX primitive to `stream`, and an ONNX operator to `load`.

    python examples/own_primitive_and_operator.py

The primitive is the median of each frame and the two previous frames, which removes clicks from a signal.
`jaxrnn.streaming.register` adds the rule for pulses. A file uses the operator ``my.audio::Declick``, and
``jaxrnn.load(..., operators=...)`` provides the function. The script streams the file, and compares the result with the
whole recording.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from onnx import TensorProto, helper

import jaxrnn

FEATURES = 3

# -- a primitive: values and shapes

median_p = Primitive("median_of_three")


def median_of_three(x: jax.Array) -> jax.Array:
    """Return the medians of each frame and the two previous frames (zeros at first) of ``float32[time, features]``."""
    return median_p.bind(x)


def _whole(x: Any) -> Any:
    padded = jnp.pad(x, ((2, 0), (0, 0)))
    return jnp.median(jnp.stack([padded[:-2], padded[1:-1], padded[2:]]), axis=0)


median_p.def_impl(jax.jit(_whole))
median_p.def_abstract_eval(lambda x: x)
mlir.register_lowering(median_p, mlir.lower_fun(_whole, multiple_results=False))
batching.primitive_batchers[median_p] = lambda arrays, axes: (jax.vmap(_whole, axes[0])(*arrays), 0)


# -- the rule: the stream remembers two frames, and a frame depends on these and on itself


@jaxrnn.streaming.register(median_p)
def stream_median(run: Any, equation: Any, x: Any) -> Any:
    """Return the medians of the frames of one pulse."""
    x = run.fill(run.spread(x), 0.0)  # write zeros into frames that do not exist
    frames = run.window(x, 2, "history", initial=0.0)  # time comes first, with two past frames in front
    medians = jnp.median(jnp.stack([frames[:-2], frames[1:-1], frames[2:]]), axis=0)
    reach = x.reach and x.reach.under(x.timeline, length=3, stride=1, dilation=1, spacing=1, low=2)
    return run.make(jnp.moveaxis(medians, 0, x.axis), x.axis, x.timeline, x.delay, reach)


# -- an operator: its signature is its schema


def declick(x: Any, limit: Any = None, *, strength: float = 1.0) -> Any:
    """Move the signal towards its median, by at most ``limit`` if given."""
    change = strength * (median_of_three(x) - x)
    return x + (change if limit is None else jnp.clip(change, -limit, limit))


OPERATORS = {("my.audio", "Declick"): declick}


def file() -> onnx.ModelProto:
    """Return a file that uses the operator."""
    shape = ["S", FEATURES]
    graph = helper.make_graph(
        [
            helper.make_node("Declick", ["x"], ["clean"], domain="my.audio", strength=0.75),
            helper.make_node("Tanh", ["clean"], ["y"]),
        ],
        "declick",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("my.audio", 1)], ir_version=10
    )


def main() -> None:
    """Load the file, stream it in pulses of four frames, and compare."""
    model = jaxrnn.load(file(), operators=OPERATORS)
    streamed = model.stream("S", pulse=4)
    print(streamed.table())
    recording = {"x": np.random.default_rng(0).standard_normal((50, FEATURES)).astype(np.float32)}
    live, whole = streamed.run(model.params, recording)["y"], model(recording)["y"]
    difference = float(jnp.max(jnp.abs(live - whole)))
    print(f"\nlargest difference from the whole recording at once: {difference:.1e}")
    if live.shape != whole.shape or difference > 1e-6:
        raise SystemExit("the stream differs from the whole recording")


if __name__ == "__main__":
    main()
