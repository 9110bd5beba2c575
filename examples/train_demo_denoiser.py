"""Train the small recurrent denoiser of the package on synthetic signals.

The script builds an ONNX graph with random weights, trains it as described in ``configs/demo_denoiser.yaml``, and
writes the trained weights into the same graph.

    python examples/train_demo_denoiser.py --config configs/demo_denoiser.yaml --out denoiser.onnx

The same seed leads to the same signals and initial weights, and, on one machine with one version of JAX, to the same
file.
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
import jax
import jax.numpy as jnp
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import jaxrnn
from jaxrnn.demo import PACKAGED, RATE, denoise_at_once, signals
from jaxrnn.demo.audio import BINS, FRAME, HOP, WINDOW, Samples, analyse
from jaxrnn.signal import si_sdr
from jaxrnn.training.settings import prepare_training

CONFIG = Path(__file__).parent.parent / "configs" / "demo_denoiser.yaml"
#: Magnitudes below this value count as silence: 100 dB below a full-scale tone.
FLOOR = 1e-3

ABOUT = """A denoiser of 16 kHz audio: one GRU layer turns magnitudes of short-time spectra (frame 256, hop 128, window
sqrt-Hann) into a mask for them. h is the state before the first frame, h_out after the last. Trained on synthetic
voiced signals and noises by jaxrnn's examples/train_demo_denoiser.py."""


def build(rng: np.random.Generator, hidden: int) -> onnx.ModelProto:
    """Return the network with random weights.

    The inputs are ``magnitude[batch, time, BINS]`` and ``h[1, batch, hidden]``. The outputs ``mask`` and ``h_out`` have
    the same shapes.
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


def overlap_add(spectra: jax.Array) -> jax.Array:
    """Convert spectra ``[1, count, BINS]`` to the samples covered by two frames, ``[(count - 1) * HOP]``."""
    parts = jnp.fft.irfft(spectra[0], FRAME) * WINDOW
    return (parts[:-1, HOP:] + parts[1:, :HOP]).reshape(-1)


def loss(outputs: dict[str, jax.Array], example: dict[str, jax.Array], mask: jax.Array) -> jax.Array:
    """Return the loss: minus the SNR of the denoised signal in tens of dB, plus the error of loudness.

    The second term is the mean squared error of magnitudes to the power 0.3 (Braun and Tashev, "A consolidated view
    of loss functions for supervised deep learning-based speech enhancement", 2021); it also counts in pauses,
    which the first term ignores. All signals have the same length, so all frames exist.
    """
    estimate, target = example["noisy"] * outputs["mask"].astype(jnp.complex64), example["clean"]
    wanted, got = overlap_add(target), overlap_add(estimate)
    energy, error = jnp.sum(wanted**2), jnp.sum((got - wanted) ** 2)
    snr = jnp.log10(energy / (error + 1e-3 * energy))
    loudness = _compressed(estimate) - _compressed(target)
    return jnp.mean(5 * loudness**2) - snr


def _compressed(spectra: jax.Array) -> jax.Array:
    return (jnp.real(spectra) ** 2 + jnp.imag(spectra) ** 2 + 1e-8) ** 0.15


def mixtures(
    seconds: float, snr: tuple[float, float], level: tuple[float, float], pool: int, seed: int
) -> Callable[[np.random.Generator], dict[str, np.ndarray]]:
    """Return a function that draws examples: a new mixture of a voice and a noise from a pool.

    Args:
        seconds: length of an example.
        snr: range of the SNR in dB, drawn uniformly.
        level: range of the level of the voice in dB of full scale, drawn uniformly.
        pool: number of voices and of noises; each is made at first use.
        seed: seed of voices and noises.
    """
    samples = round(seconds * RATE)

    @functools.cache
    def sound(make: Callable[[np.random.Generator, int], Samples], index: int) -> Samples:
        return make(np.random.default_rng([seed, index]), samples)

    def draw(rng: np.random.Generator) -> dict[str, np.ndarray]:
        voice, noise = sound(signals.voiced, rng.integers(pool)), sound(signals.noise, rng.integers(pool))
        shifted = np.roll(noise, rng.integers(samples))
        clean, noisy = signals.mix(voice, shifted, snr=rng.uniform(*snr), level=rng.uniform(*level))
        spectra = {"noisy": analyse(noisy)[None], "clean": analyse(clean)[None]}
        return {"magnitude": np.abs(spectra["noisy"]), **spectra}

    return draw


def validate(model: jaxrnn.Model, snr: float, count: int = 12, seconds: float = 5.0) -> tuple[float, float]:
    """Return the mean SI-SDR in dB before and after, over signals that are not used in training."""
    pairs = [signals.mixture(np.random.default_rng(seed), seconds, snr) for seed in range(count)]
    before = [si_sdr(noisy, clean) for clean, noisy in pairs]
    after = [si_sdr(denoise_at_once(noisy, model), clean) for clean, noisy in pairs]
    return float(np.mean(before)), float(np.mean(after))


@click.command()
@click.option("--config", default=CONFIG, show_default=True, type=click.Path(path_type=Path), help="Settings.")
@click.option("--hidden", default=80, show_default=True, type=click.IntRange(1), help="Units of the GRU.")
@click.option("--steps", type=click.IntRange(1), help="Updates, where others are wanted than the settings say.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of weights and signals.")
@click.option(
    "--out",
    default=PACKAGED,
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="ONNX file to write.",
)
@click.option("--untrained", is_flag=True, help="Write the network with random weights, for another training.")
def main(config: Path, hidden: int, steps: int | None, seed: int, out: Path, untrained: bool) -> None:
    """Train the demo denoiser and write it as an ONNX file."""
    if untrained:
        out.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(build(np.random.default_rng(seed), hidden), out)
        click.echo(f"wrote {out} with random weights")
        return
    began, chosen = time.perf_counter(), {"seed": seed, "data.arguments.seed": seed, "export": out.absolute()}
    chosen |= {} if steps is None else {"steps": steps, "optimizer.learning_rate.transition_steps": steps}
    with tempfile.TemporaryDirectory() as folder:
        start = Path(folder) / "untrained.onnx"
        onnx.save(build(np.random.default_rng(seed), hidden), start)
        try:
            fitted = prepare_training(config, chosen | {"model": start}).run()
        except jaxrnn.JaxrnnError as error:
            raise click.ClickException(str(error)) from error
    losses = [record["loss"] for record in fitted.history]
    tenth = max(1, len(losses) // 10)
    click.echo(
        f"loss {np.mean(losses[:tenth]):.4f} -> {np.mean(losses[-tenth:]):.4f} in {time.perf_counter() - began:.0f} s"
    )
    trained = jaxrnn.load(out)
    for snr in (-5, 0, 5, 10):
        before, after = validate(trained, snr)
        click.echo(f"input SNR {snr:3d} dB: SI-SDR {before:6.2f} -> {after:6.2f} dB ({after - before:+.2f})")
    click.echo(f"wrote {out} ({out.stat().st_size:,} bytes)")


if __name__ == "__main__":
    main()
