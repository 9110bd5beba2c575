"""Stream a Keras network on Keras' backend JAX, where the network is a JAX function already.

    KERAS_BACKEND=jax python examples/stream_keras_model.py

The network has causal convolutions with groups, a batch normalization and a GRU. `network.stateless_call` is a pure
function of the variables and one recording, so `jaxrnn.stream` takes it without an ONNX file.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

from typing import Any

import click
import jax
import keras
import numpy as np
from keras import layers

import jaxrnn

FEATURES = 20
#: Largest difference: the order of sums differs, so there are up to a hundred roundings of float32 (1.2e-7).
TOLERANCE = 1e-5


def build(rng: np.random.Generator) -> keras.Model:
    """Return a network with random weights and statistics, in place of a trained one."""
    x = keras.Input((None, FEATURES))
    y = layers.Conv1D(24, 3, padding="causal", groups=2, activation="relu")(x)
    y = layers.BatchNormalization()(y)
    y = layers.Conv1D(24, 3, padding="causal", dilation_rate=2)(y)
    y = layers.GRU(16, return_sequences=True)(y)
    network = keras.Model(x, layers.Dense(1, activation="sigmoid")(y))
    for weight in network.weights:
        weight.assign(rng.uniform(0.1 if "variance" in weight.path else -0.5, 0.5, weight.shape))
    return network


@click.command()
@click.option("--frames", type=click.IntRange(1), default=400)
@click.option("--pulse", type=click.IntRange(1), default=4)
def main(frames: int, pulse: int) -> None:
    """Compare a stream of a Keras network with the network on a whole recording."""
    rng = np.random.default_rng(0)
    network = build(rng)
    params = [
        [variable.value for variable in network.trainable_variables],
        [variable.value for variable in network.non_trainable_variables],
    ]

    def function(params: Any, x: jax.Array) -> jax.Array:
        outputs, _ = network.stateless_call(*params, x[None], training=False)
        return outputs[0]

    recording = rng.standard_normal((frames, FEATURES)).astype(np.float32)
    streamed = jaxrnn.stream(function, recording, axes=0, params=params, pulse=pulse)
    difference = np.abs(streamed.run(params, recording) - np.asarray(network(recording[None]))[0]).max()
    print(f"{frames} frames in pulses of {pulse}, delay {streamed.delay}, largest difference {difference:.1e}")
    if difference > TOLERANCE:
        raise SystemExit("the stream differs from Keras")
    print("same outputs as Keras")


if __name__ == "__main__":
    main()
