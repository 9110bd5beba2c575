"""Train the small recurrent denoiser that comes with jaxrnn, from nothing but synthetic signals.

An ONNX graph is built with random weights and loaded with ``jaxrnn.load``; ``model.apply`` is then a JAX function like
any other, trained here with ``jax.grad`` and optax. The trained weights go back into the same graph.

    python examples/train_demo_denoiser.py --config configs/demo_denoiser.yaml --out denoiser.onnx

The same seed gives the same signals and first weights; on one machine and one JAX, the same file.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import jax
import jax.numpy as jnp
import numpy as np
import onnx
import optax
import yaml
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import jaxrnn
from jaxrnn.demo import PACKAGED, RATE, denoise_at_once, si_sdr, signals
from jaxrnn.demo.spectra import BINS, FRAME, HOP, WINDOW
from jaxrnn.demo.writing import replacing

CONFIG = Path(__file__).parent.parent / "configs" / "demo_denoiser.yaml"
#: Magnitudes below this are taken for silence: 100 dB under a full-scale tone.
FLOOR = 1e-3

ABOUT = """A denoiser of 16 kHz audio: one GRU layer turns magnitudes of short-time spectra (frame 256, hop 128, window
sqrt-Hann) into a mask for them. h is the state before the first frame, h_out after the last. Trained on synthetic
voiced signals and noises by jaxrnn's examples/train_demo_denoiser.py."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the configuration file holds; its comments say what each entry is."""

    hidden: int
    steps: int
    batch: int
    seconds: float
    learning_rate: float
    clip_norm: float
    snr: tuple[float, float]
    level: tuple[float, float]
    pool: int
    fresh: int

    @classmethod
    def read(cls, path: Path) -> Settings:
        """The settings in a file; it must hold every one of them and nothing else."""
        entries = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        names = {field.name for field in dataclasses.fields(cls)}
        if set(entries) != names:
            missing, unknown = sorted(names - set(entries)), sorted(set(entries) - names)
            raise click.ClickException(f"{path}: missing {missing or 'nothing'}, unknown {unknown or 'nothing'}")
        return cls(**entries)


def build(rng: np.random.Generator, hidden: int) -> onnx.ModelProto:
    """The network with random weights.

    Its inputs are ``magnitude[batch, time, BINS]`` and ``h[1, batch, hidden]``; its outputs, ``mask`` and ``h_out``,
    have their shapes.
    """

    def uniform(*shape: int, fan_in: int) -> np.ndarray:
        bound = fan_in**-0.5
        return rng.uniform(-bound, bound, shape).astype(np.float32)

    weights = {
        "floor": np.array(FLOOR, np.float32),
        "normal_offset": np.full(BINS, -2.0, np.float32),
        "normal_scale": np.full(BINS, 0.4, np.float32),
        "gru_W": uniform(1, 3 * hidden, BINS, fan_in=BINS),
        "gru_R": uniform(1, 3 * hidden, hidden, fan_in=hidden),
        "gru_B": np.zeros((1, 6 * hidden), np.float32),
        "mask_weight": uniform(hidden, BINS, fan_in=hidden),
        "mask_bias": np.zeros(BINS, np.float32),
    }
    nodes = [
        helper.make_node("Clip", ["magnitude", "floor"], ["audible"]),
        helper.make_node("Log", ["audible"], ["level"]),
        helper.make_node("Sub", ["level", "normal_offset"], ["centred"]),
        helper.make_node("Mul", ["centred", "normal_scale"], ["features"]),
        helper.make_node("Transpose", ["features"], ["features_by_time"], perm=[1, 0, 2]),
        helper.make_node(
            "GRU",
            ["features_by_time", "gru_W", "gru_R", "gru_B", "", "h"],
            ["hidden_by_time", "h_out"],
            hidden_size=hidden,
            linear_before_reset=1,
        ),
        helper.make_node("Squeeze", ["hidden_by_time", "direction_axis"], ["hidden_one_direction"]),
        helper.make_node("Transpose", ["hidden_one_direction"], ["hidden"], perm=[1, 0, 2]),
        helper.make_node("MatMul", ["hidden", "mask_weight"], ["mask_product"]),
        helper.make_node("Add", ["mask_product", "mask_bias"], ["mask_logit"]),
        helper.make_node("Sigmoid", ["mask_logit"], ["mask"]),
    ]
    for node in nodes:
        node.name = node.output[0]
    spectra = ["batch", "time", BINS]
    state = [1, "batch", hidden]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "jaxrnn_demo_denoiser",
        [info("magnitude", TensorProto.FLOAT, spectra), info("h", TensorProto.FLOAT, state)],
        [info("mask", TensorProto.FLOAT, spectra), info("h_out", TensorProto.FLOAT, state)],
        [
            *(numpy_helper.from_array(array, name) for name, array in weights.items()),
            numpy_helper.from_array(np.array([1], np.int64), "direction_axis"),
        ],
    )
    proto = helper.make_model(
        graph,
        producer_name="jaxrnn",
        producer_version=jaxrnn.__version__,
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
        doc_string=ABOUT,
    )
    onnx.checker.check_model(proto, full_check=True)
    return proto


def with_weights(proto: onnx.ModelProto, params: dict[str, jax.Array]) -> onnx.ModelProto:
    """The same graph with other weights."""
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    for tensor in result.graph.initializer:
        if tensor.name in params:
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(params[tensor.name]), tensor.name))
    return result


def frames(samples: jax.Array) -> jax.Array:
    """``[batch, hops * HOP]`` to complex spectra ``[batch, hops - 1, BINS]``."""
    hops = samples.reshape(len(samples), -1, HOP)
    return jnp.fft.rfft(jnp.concatenate([hops[:, :-1], hops[:, 1:]], axis=-1) * WINDOW)


def overlap_add(spectra: jax.Array) -> jax.Array:
    """Spectra ``[batch, count, BINS]`` to the samples that two frames cover: ``[batch, (count - 1) * HOP]``."""
    parts = jnp.fft.irfft(spectra, FRAME) * WINDOW
    return (parts[:, :-1, HOP:] + parts[:, 1:, :HOP]).reshape(len(spectra), -1)


def denoise(model: jaxrnn.Model, params: dict[str, jax.Array], spectra: jax.Array) -> jax.Array:
    """Spectra ``[batch, time, BINS]`` times the mask that the network gives for them, from a zero state."""
    h = jnp.zeros((1, len(spectra), params["gru_R"].shape[-1]), jnp.float32)
    mask = model.apply(params, {"magnitude": jnp.abs(spectra), "h": h})["mask"]
    return spectra * mask.astype(spectra.dtype)


def loss(model: jaxrnn.Model, params: dict[str, jax.Array], noisy: jax.Array, clean: jax.Array) -> jax.Array:
    """How far the denoised signal is from the clean one: minus its SNR in tens of dB, and the error of loudness.

    The second term is the mean squared error of magnitudes to the power 0.3 (Braun and Tashev, "A consolidated view
    of loss functions for supervised deep learning-based speech enhancement", 2021); it counts in the pauses, where
    the first is blind.
    """
    target = frames(clean)
    estimate = denoise(model, params, frames(noisy))
    wanted, got = overlap_add(target), overlap_add(estimate)
    energy, error = jnp.sum(wanted**2, 1), jnp.sum((got - wanted) ** 2, 1)
    snr = jnp.log10(energy / (error + 1e-3 * energy))
    loudness = _compressed(estimate) - _compressed(target)
    return jnp.mean(5 * loudness**2) - jnp.mean(snr)


def _compressed(spectra: jax.Array) -> jax.Array:
    return (jnp.real(spectra) ** 2 + jnp.imag(spectra) ** 2 + 1e-8) ** 0.15


class Mixtures:
    """Batches of noisy and clean signals; every one has fresh voices and noises, pitches, levels and SNRs in it."""

    def __init__(self, rng: np.random.Generator, settings: Settings):
        self._rng = rng
        self._settings = settings
        self._samples = round(settings.seconds * RATE)
        self._voices: list[np.ndarray] = []
        self._noises: list[np.ndarray] = []
        self._renew(settings.batch)

    def _renew(self, count: int) -> None:
        for pool, draw in ((self._voices, signals.voiced), (self._noises, signals.noise)):
            pool.extend(draw(self._rng, self._samples) for _ in range(count))
            del pool[: -self._settings.pool]

    def draw(self) -> tuple[np.ndarray, np.ndarray]:
        """Noisy and clean, ``float32[batch, samples]`` each."""
        self._renew(self._settings.fresh)
        rng = self._rng
        pairs = [
            signals.mix(
                self._voices[rng.integers(len(self._voices))],
                np.roll(self._noises[rng.integers(len(self._noises))], rng.integers(self._samples)),
                snr=rng.uniform(*self._settings.snr),
                level=rng.uniform(*self._settings.level),
            )
            for _ in range(self._settings.batch)
        ]
        return np.stack([pair.noisy for pair in pairs]), np.stack([pair.clean for pair in pairs])


def make_update(model: jaxrnn.Model, optimizer: optax.GradientTransformation) -> Callable[..., Any]:
    """One training step, compiled: parameters, optimizer state and a batch to new ones and the loss."""

    @jax.jit
    def update(params: Any, state: Any, noisy: jax.Array, clean: jax.Array) -> tuple[Any, Any, jax.Array]:
        value, gradient = jax.value_and_grad(loss, argnums=1)(model, params, noisy, clean)
        change, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, change), state, value

    return update


def train(
    proto: onnx.ModelProto, rng: np.random.Generator, settings: Settings, console: Console
) -> tuple[Any, list[float]]:
    """Train the network in ``proto``; the parameters after it, and the loss at every step."""
    model = jaxrnn.load(proto)
    schedule = optax.cosine_onecycle_schedule(
        settings.steps, settings.learning_rate, pct_start=0.1, final_div_factor=100
    )
    optimizer = optax.chain(optax.clip_by_global_norm(settings.clip_norm), optax.adam(schedule))
    update, mixtures = make_update(model, optimizer), Mixtures(rng, settings)
    params, losses = model.params, []
    state = optimizer.init(params)
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[loss]}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=settings.steps, loss="")
        for _ in range(settings.steps):
            params, state, value = update(params, state, *mixtures.draw())
            losses.append(float(value))
            progress.update(task, advance=1, loss=f"loss {np.mean(losses[-100:]):.4f}")
    return params, losses


def validate(proto: onnx.ModelProto, snr: float, count: int = 12, seconds: float = 5.0) -> tuple[float, float]:
    """Mean SI-SDR in dB before and after, over signals that training never draws."""
    model = jaxrnn.load(proto)
    pairs = [signals.mixture(np.random.default_rng(seed), seconds, snr) for seed in range(count)]
    before = [si_sdr(noisy, clean) for clean, noisy in pairs]
    after = [si_sdr(denoise_at_once(noisy, model), clean) for clean, noisy in pairs]
    return float(np.mean(before)), float(np.mean(after))


@click.command()
@click.option(
    "--config", default=CONFIG, show_default=True, type=click.Path(exists=True, path_type=Path), help="Settings."
)
@click.option("--steps", type=click.IntRange(1), help="Updates, where others are wanted than the settings say.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of weights and signals.")
@click.option(
    "--out",
    default=PACKAGED,
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="ONNX file to write.",
)
def main(config: Path, steps: int | None, seed: int, out: Path) -> None:
    """Train the demo denoiser and write it as an ONNX file."""
    console, began = Console(stderr=True), time.perf_counter()
    settings = Settings.read(config)
    settings = dataclasses.replace(settings, steps=steps or settings.steps)
    weights_rng, signals_rng = np.random.default_rng(seed).spawn(2)
    untrained = build(weights_rng, settings.hidden)
    params, losses = train(untrained, signals_rng, settings, console)
    trained = with_weights(untrained, params)
    tenth = max(1, settings.steps // 10)
    click.echo(
        f"loss {np.mean(losses[:tenth]):.4f} -> {np.mean(losses[-tenth:]):.4f} in {time.perf_counter() - began:.0f} s"
    )
    for snr in (-5, 0, 5, 10):
        before, after = validate(trained, snr)
        click.echo(f"input SNR {snr:3d} dB: SI-SDR {before:6.2f} -> {after:6.2f} dB ({after - before:+.2f})")
    with replacing(out) as file:
        file.write(trained.SerializeToString())
    click.echo(f"wrote {out} ({out.stat().st_size:,} bytes)")


if __name__ == "__main__":
    main()
