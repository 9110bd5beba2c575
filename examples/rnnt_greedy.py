"""Decode with an RNN-T, live: the encoder is a stream, the predictor runs in steps, and the joiner scores tokens.

    python examples/rnnt_greedy.py --frames 206 --seed 1

The greedy loop takes three callables (`Transducer`), so the same loop runs on JAX, and on exported files in ONNX
Runtime and, if it is installed, in LiteRT. The networks are JAX functions with random weights: the encoder is a
convolution with look-ahead and a GRU, and the predictor is a GRU over tokens. The script decodes pulse by pulse in each
engine, and compares the tokens with a decoder without state: the encoder on the whole recording, and the predictor on
all tokens so far.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxrnn
from jaxrnn.export import FileRunner, export_litert
from jaxrnn.steps import DropDelay, StepSpec

FEATURES, WIDTH, TOKENS, PULSE = 20, 32, 12, 4
#: The token that ends a frame, and that stands before the first token.
BLANK = 0
#: The most tokens in a frame.
MOST = 3
#: What the joiner takes.
FRAME_AND_VECTOR = {name: jax.ShapeDtypeStruct((WIDTH,), jnp.float32) for name in ("frame", "vector")}

Params = dict[str, Any]


class Transducer(NamedTuple):
    """An RNN-T as three callables from NumPy to NumPy.

    Attributes:
        encode: takes pulses ``[PULSE, FEATURES]`` as they come, of which the last may be shorter, and yields frames
            ``[WIDTH]`` as soon as they are known.
        predict: returns the vector ``[WIDTH]`` after a token, and the new state. None is the first state.
        join: returns the scores ``[TOKENS]`` of a frame and a vector.
    """

    encode: Callable[[Iterable[np.ndarray]], Iterator[np.ndarray]]
    predict: Callable[[int, Any], tuple[np.ndarray, Any]]
    join: Callable[[np.ndarray, np.ndarray], np.ndarray]


def greedy(network: Transducer, pulses: Iterable[np.ndarray]) -> Iterator[int]:
    """Yield tokens while pulses come."""
    vector, state = network.predict(BLANK, None)
    for frame in network.encode(pulses):
        for _ in range(MOST):
            token = int(np.argmax(network.join(frame, vector)))
            if token == BLANK:
                break
            yield token
            vector, state = network.predict(token, state)


def cut(features: np.ndarray) -> Iterator[np.ndarray]:
    """Cut a recording into pulses; the last may be shorter."""
    return (features[at : at + PULSE] for at in range(0, len(features), PULSE))


# -- the networks, as functions of whole sequences


def gru(params: Params, x: jax.Array) -> jax.Array:
    """Return the hidden states of a GRU over ``[time, inputs]``."""

    def step(h: jax.Array, gates: jax.Array) -> tuple[jax.Array, jax.Array]:
        update, reset, new = jnp.split(gates, 3)
        from_update, from_reset, from_new = jnp.split(h @ params["recurrent"], 3)
        z = jax.nn.sigmoid(update + from_update)
        h = z * h + (1 - z) * jnp.tanh(new + jax.nn.sigmoid(reset + from_reset) * from_new)
        return h, h

    return lax.scan(step, jnp.zeros(WIDTH), x @ params["input"])[1]


def encoder(params: Params, x: Params) -> Params:
    """Map ``features`` to ``frames``, one for two: each sees two features ahead."""
    windows = lax.conv_general_dilated(
        x["features"][None], params["kernel"], (2,), [(2, 2)], dimension_numbers=("NWC", "WIO", "NWC")
    )
    return {"frames": gru(params, jnp.tanh(windows[0]))}


def predictor(params: Params, x: Params) -> Params:
    """Map ``tokens`` to ``vectors``."""
    return {"vectors": gru(params, jnp.take(params["embedding"], x["tokens"], axis=0))}


def joiner(params: Params, x: Params) -> Params:
    """Score each token for a ``frame`` and a ``vector``."""
    return {"scores": jnp.tanh(x["frame"] + x["vector"]) @ params["output"] + params["bias"]}


def random_params(seed: int) -> dict[str, Params]:
    """Return random weights of the three networks."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (scale * rng.normal(size=shape) / np.sqrt(np.prod(shape[:-1]))).astype(np.float32)

    bias = np.zeros(TOKENS, np.float32)
    bias[BLANK] = 2  # most frames have no token
    return {
        "encoder": {
            "kernel": draw(5, FEATURES, WIDTH, scale=2),
            "input": draw(WIDTH, 3 * WIDTH, scale=2),
            "recurrent": draw(WIDTH, 3 * WIDTH),
        },
        "predictor": {
            "embedding": draw(TOKENS, WIDTH, scale=4),
            "input": draw(WIDTH, 3 * WIDTH, scale=4),
            "recurrent": draw(WIDTH, 3 * WIDTH, scale=2),
        },
        "joiner": {"output": draw(WIDTH, TOKENS, scale=4), "bias": bias},
    }


def streams(params: dict[str, Params]) -> tuple[jaxrnn.streaming.Streamed, jaxrnn.streaming.Streamed]:
    """Return the encoder as a stream of pulses, and the predictor as a stream of single tokens."""
    features = {"features": jax.ShapeDtypeStruct((PULSE, FEATURES), jnp.float32)}
    tokens = {"tokens": jax.ShapeDtypeStruct((1,), jnp.int32)}
    return (
        jaxrnn.stream(encoder, features, axes=0, params=params["encoder"], pulse=PULSE, multiple=2),
        jaxrnn.stream(predictor, tokens, axes=0, params=params["predictor"], pulse=1),
    )


# -- the callables


def offline(params: dict[str, Params], features: np.ndarray) -> list[int]:
    """Decode without a state: all features at once, and all tokens so far for each prediction."""

    def encode(pulses: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        yield from np.asarray(encoder(params["encoder"], {"features": np.concatenate([*pulses])})["frames"])

    @jax.jit
    def last(tokens: jax.Array, count: jax.Array) -> jax.Array:
        return predictor(params["predictor"], {"tokens": tokens})["vectors"][count - 1]

    def predict(token: int, before: list[int] | None) -> tuple[np.ndarray, list[int]]:
        tokens = [*(before or []), token]
        # Padded, because JAX compiles each length; no vector depends on later tokens.
        padded = np.pad(tokens, (0, 1 + MOST * len(features) - len(tokens))).astype(np.int32)
        return np.asarray(last(padded, np.int32(len(tokens)))), tokens

    join = jax.jit(lambda frame, vector: joiner(params["joiner"], {"frame": frame, "vector": vector})["scores"])
    return [*greedy(Transducer(encode, predict, join), cut(features))]


def of_runners(
    encoder_spec: StepSpec, start: Callable[[], Any], run: Any, join: Callable[[np.ndarray, np.ndarray], Any]
) -> Transducer:
    """Return the transducer of live streams: ``start`` begins one of the encoder, and ``run`` is the predictor."""

    def encode(pulses: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        stream, drop, tail = start(), DropDelay(encoder_spec), None
        for pulse in pulses:
            if len(pulse) == PULSE:
                yield from drop(stream({"features": pulse}))["frames"]
            else:
                tail = {"features": pulse}
        yield from drop(stream.flush(tail))["frames"]

    def predict(token: int, state: Any) -> tuple[np.ndarray, Any]:
        if state is None:
            run.reset()
        # The runner keeps the state. A search with several hypotheses would assign `run.state`.
        return run({"tokens": np.array([token], np.int32)})["vectors"][0], run

    return Transducer(encode, predict, join)


def in_jax(params: dict[str, Params]) -> Transducer:
    """Return the transducer in JAX."""
    of_encoder, of_predictor = streams(params)
    run = jaxrnn.Runner(of_predictor, params["predictor"])
    join = jax.jit(lambda frame, vector: joiner(params["joiner"], {"frame": frame, "vector": vector})["scores"])
    return of_runners(of_encoder.spec, lambda: jaxrnn.Runner(of_encoder, params["encoder"]), run, join)


def in_litert(params: dict[str, Params], folder: Path) -> Transducer:
    """Write the networks as LiteRT files, and return the transducer in LiteRT."""
    from ai_edge_litert.interpreter import Interpreter

    of_encoder, of_predictor = streams(params)
    export_litert(of_encoder, params["encoder"], folder / "encoder.tflite")
    export_litert(of_predictor, params["predictor"], folder / "predictor.tflite")
    export_litert(joiner, params["joiner"], folder / "joiner.tflite", example=FRAME_AND_VECTOR)
    scores = Interpreter(str(folder / "joiner.tflite")).get_signature_runner("function")
    return of_runners(
        of_encoder.spec,
        lambda: FileRunner(folder / "encoder.tflite"),
        FileRunner(folder / "predictor.tflite"),
        lambda frame, vector: scores(frame=frame, vector=vector)["scores"],
    )


def export(params: dict[str, Params], folder: Path) -> None:
    """Write the networks as ``encoder.onnx``, ``encoder_flush.onnx``, ``predictor.onnx`` and ``joiner.onnx``."""
    of_encoder, of_predictor = streams(params)
    flush = folder / "encoder_flush.onnx"
    jaxrnn.export_onnx(of_encoder, params["encoder"], folder / "encoder.onnx", flush=flush)
    jaxrnn.export_onnx(of_predictor, params["predictor"], folder / "predictor.onnx")
    jaxrnn.export_onnx(joiner, params["joiner"], folder / "joiner.onnx", example=FRAME_AND_VECTOR)


class Session:
    """An exported step in ONNX Runtime, with the state as a dict."""

    def __init__(self, path: Path):
        import onnxruntime

        self._session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self.facts = self._session.get_modelmeta().custom_metadata_map
        self._names = [output.name for output in self._session.get_outputs()]
        lines = self.facts.get("jaxrnn.state", "").splitlines()
        self._pairs = [line.split("=") for line in lines]
        first = self.facts.get("jaxrnn.first_state")
        self.first = {} if first is None else dict(np.load(path.parent / first))

    def __call__(self, inputs: Params, state: Params) -> tuple[Params, Params]:
        """Return the outputs, and the state after the step."""
        results = dict(zip(self._names, self._session.run(None, {**inputs, **state}), strict=True))
        return results, {before: results[after] for before, after in self._pairs if after in results}


def in_onnx_runtime(folder: Path) -> Transducer:
    """Return the transducer in ONNX Runtime, from the files of `export`."""
    names = ("encoder", "encoder_flush", "predictor", "joiner")
    step, flush, of_tokens, of_scores = (Session(folder / f"{name}.onnx") for name in names)

    def encode(pulses: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        state, skip, tail = step.first, int(step.facts["jaxrnn.delay"].partition("=")[2]), np.zeros((0, FEATURES))
        for pulse in pulses:
            if len(pulse) < PULSE:
                tail = pulse
                break
            outputs, state = step({"features": pulse}, state)
            yield from outputs["frames"][skip:]
            skip = max(0, skip - len(outputs["frames"]))
        padded = np.pad(tail, ((0, PULSE - len(tail)), (0, 0))).astype(np.float32)
        outputs, _ = flush({"features": padded, "valid": np.array(len(tail), np.int32)}, state)
        yield from outputs["frames"][skip : int(outputs["frames_count"])]

    def predict(token: int, state: Params | None) -> tuple[np.ndarray, Params]:
        outputs, after = of_tokens({"tokens": np.array([token], np.int32)}, of_tokens.first if state is None else state)
        return outputs["vectors"][0], after

    def join(frame: np.ndarray, vector: np.ndarray) -> np.ndarray:
        return of_scores({"frame": frame, "vector": vector}, {})[0]["scores"]

    return Transducer(encode, predict, join)


@click.command(help=__doc__)
@click.option("--frames", default=202, help="Frames of features.", show_default=True)
@click.option("--seed", default=0, help="Seed of the weights and the features.", show_default=True)
def main(frames: int, seed: int) -> None:
    """Decode random features in each engine."""
    params = random_params(seed)
    features = np.random.default_rng(seed + 1).normal(size=(frames, FEATURES)).astype(np.float32)
    expected = offline(params, features)
    with tempfile.TemporaryDirectory() as folder:
        export(params, Path(folder))
        engines = {"JAX": in_jax(params), "ONNX Runtime": in_onnx_runtime(Path(folder))}
        if importlib.util.find_spec("litert_converter"):
            engines["LiteRT"] = in_litert(params, Path(folder))
        for name, network in engines.items():
            tokens = [*greedy(network, cut(features))]
            if tokens != expected:
                raise click.ClickException(f"{name} gives {tokens}, and without a state the tokens are {expected}")
            click.echo(f"{name}: {len(tokens)} tokens, as offline: {' '.join(map(str, tokens[:16]))} ...")


if __name__ == "__main__":
    main()
