"""Take a bidirectional denoiser from offline to live: train it, bound its future, distil it into the bounded network.

    JAXRNN_AUDIO=/folder/of/recordings python examples/bidirectional_denoiser.py --out runs/bidirectional

The network is a bidirectional LSTM between two layers, from magnitudes of spectra to a mask. It learns to remove noise
from speech, offline. Then its backward half sees 0, 80, 160 and 320 ms of the future, in blocks of 80 ms. The script
measures what each bound costs on speech that no training has heard, lets each bounded network learn the outputs of the
offline network, and measures again. It writes the offline network, for each bound the tuned network and its stream, a
table, a picture and sounds. Requires ``pip install -e '.[train,verify,plot,audio]'``, a recording of speech, and some
minutes of two cores.
"""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from recordings import AUDIO, RATE, Samples, read_recording, write_recording

import jaxrnn
from jaxrnn.audio import Frames, Network, Waveform
from jaxrnn.demo import signals
from jaxrnn.signal import si_sdr
from jaxrnn.training import Fitted, Mixtures, Optimizer, Sequences, Student, Validation, fit
from jaxrnn.verification import compare_futures

#: Samples of a frame and of a hop, 16 ms.
SIZE, HOP = 512, 256
#: Later frames that the backward half sees, 0 to 320 ms, and frames of a block.
FUTURES, BLOCK = (0, 5, 10, 20), 5
#: Seconds of an example, and seconds of speech at the end of the recording that no training hears.
SECONDS, HELD_OUT = 2.0, 15.0
#: Examples of one length, in which all arrays have time first.
SEQUENCES = Sequences(time_axis=0)


@dataclasses.dataclass(frozen=True)
class Loss:
    """What a bound costs: decibels of the error below the offline output, and SI-SDR against clean speech.

    Attributes:
        future_ms: the later frames that the backward half sees, in milliseconds.
        delay_ms: from a sample of the input to the same sample of the output, with the window and the pulse.
        error_before: the error below the offline output with the parameters of the offline network, in dB.
        error_after: the same after the distillation.
        si_sdr_before: SI-SDR against the clean speech with the parameters of the offline network, in dB.
        si_sdr_after: the same after the distillation.
        seconds: the duration of the distillation.
    """

    future_ms: float
    delay_ms: float
    error_before: float
    error_after: float
    si_sdr_before: float
    si_sdr_after: float
    seconds: float


def build(rng: np.random.Generator, hidden: int) -> onnx.ModelProto:
    """Return the network with random weights: ``magnitude[time, 1, bins]`` to ``mask`` of the same shape."""
    bins = SIZE // 2 + 1

    def weight(*shape: int, fan_in: int) -> np.ndarray:
        return rng.uniform(-(fan_in**-0.5), fan_in**-0.5, shape).astype(np.float32)

    arrays = {
        "floor": np.array(1e-3, np.float32),
        "in_weight": weight(bins, hidden, fan_in=bins),
        "in_bias": np.full(hidden, 0.1, np.float32),
        "W": weight(2, 4 * hidden, hidden, fan_in=hidden),
        "R": weight(2, 4 * hidden, hidden, fan_in=hidden),
        "B": np.zeros((2, 8 * hidden), np.float32),
        "out_weight": weight(2 * hidden, bins, fan_in=2 * hidden),
        "out_bias": np.ones(bins, np.float32),
        "joined_shape": np.array([0, 0, 2 * hidden]),
    }
    steps = [
        ("Clip", ["magnitude", "floor"], "audible", {}),
        ("Log", ["audible"], "level", {}),
        ("MatMul", ["level", "in_weight"], "projected", {}),
        ("Add", ["projected", "in_bias"], "shifted", {}),
        ("Tanh", ["shifted"], "features", {}),
        ("LSTM", ["features", "W", "R", "B"], "directions", {"hidden_size": hidden, "direction": "bidirectional"}),
        ("Transpose", ["directions"], "by_frame", {"perm": [0, 2, 1, 3]}),
        ("Reshape", ["by_frame", "joined_shape"], "joined", {}),
        ("MatMul", ["joined", "out_weight"], "product", {}),
        ("Add", ["product", "out_bias"], "logit", {}),
        ("Sigmoid", ["logit"], "mask", {}),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(kind, given, [made], name=made, **options) for kind, given, made, options in steps],
        "bidirectional_denoiser",
        [info("magnitude", TensorProto.FLOAT, ["time", 1, bins])],
        [info("mask", TensorProto.FLOAT, ["time", 1, bins])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def of_sound(model: jaxrnn.Model) -> Waveform:
    """Return the network between two transforms: from noisy to clean samples."""
    return Waveform(Network(model, gives="mask", symbol="time"), Frames(SIZE, HOP, "sqrt_hann"))


def prepare(speech: Samples, folder: Path, noises: int) -> Mixtures:
    """Write speech and synthetic noises to a folder, and return the mixtures of the training."""
    write_recording(folder / "speech.flac", (speech / 2).astype(np.float32))
    (folder / "noise").mkdir(exist_ok=True)
    for number in range(noises):
        noise = signals.noise(np.random.default_rng([1, number]), round(4 * RATE))
        write_recording(folder / "noise" / f"{number}.flac", (noise / (2 * abs(noise).max())).astype(np.float32))
    return Mixtures(folder / "speech.flac", folder / "noise", seconds=SECONDS, snr=(-5, 10))


def held_out(speech: Samples, count: int) -> dict[str, signals.Mixture]:
    """Return mixtures of speech and noises that no training has heard."""
    parts = np.array_split(speech, count)
    noises = (signals.noise(np.random.default_rng([2, number]), len(part)) for number, part in enumerate(parts))
    return {
        f"part {number}": signals.mix(part, noise, (0, 5)[number % 2])
        for number, (part, noise) in enumerate(zip(parts, noises, strict=True))
    }


def train(model: Waveform | Student, data: Mixtures, target: str, updates: int, batch: int, rate: float) -> Fitted:
    """Train on mixtures, with the clean speech or the outputs of a teacher as the target of the SI-SDR."""
    import optax

    from jaxrnn.training import losses

    return fit(
        model,
        data,
        losses.si_sdr("audio", target, time_axis=0),
        steps=updates,
        batch_size=batch,
        optimizer=Optimizer("adam", optax.cosine_decay_schedule(rate, updates), clip_norm=1.0),
        sequences=SEQUENCES,
        validation=Validation(data.drawn(2 * batch), every=max(1, updates // 4)),
    )


def distil(
    teacher: Waveform,
    future: int,
    data: Mixtures,
    updates: int,
    batch: int,
) -> tuple[Student, Fitted]:
    """Let the bounded network learn the outputs of the offline network."""
    block = BLOCK if future else None
    student = Student(teacher, future=future, block=block, teacher=teacher)
    return student, train(student, data, "audio", updates, batch, 5e-4)


def measure(
    student: Student, offline: Waveform, params: Any, mixtures: dict[str, signals.Mixture]
) -> tuple[float, float, float]:
    """Return the error below the offline output and the SI-SDR against clean speech, in dB, and the latency in ms."""
    noisy = {name: {"samples": mixture.noisy} for name, mixture in mixtures.items()}
    future: Any = student.future
    (loss,) = compare_futures(offline, noisy, [future], params=params, rate=RATE, block=student.block)
    outputs = {name: student.apply(params, each)["audio"] for name, each in noisy.items()}
    quality = [si_sdr(np.asarray(outputs[name]), mixture.clean) for name, mixture in mixtures.items()]
    assert loss.latency_ms is not None, "the rate is known"
    return loss.mean, float(np.mean(quality)), loss.latency_ms


def draw(results: list[Loss], path: Path) -> None:
    """Draw delay against error, before and after the distillation."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    plot(figure.subplots(), results)
    figure.savefig(path, dpi=120)


def plot(axes: Any, results: list[Loss]) -> None:
    """Plot delay against error on axes of matplotlib."""
    delays = [each.delay_ms for each in results]
    axes.plot(delays, [each.error_before for each in results], "o--", label="the offline parameters")
    axes.plot(delays, [each.error_after for each in results], "o-", label="after the distillation")
    axes.set_xlabel("delay (ms)")
    axes.set_ylabel("error below the offline output (dB)")
    axes.legend()


@click.command()
@click.option("--speech", type=click.Path(path_type=Path), default=AUDIO / "speech_16k.wav", help="Speech of 16 kHz.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/bidirectional"), help="Folder to write.")
@click.option("--updates", default=1500, help="Updates of the offline training.")
@click.option("--tuning", default=400, help="Updates of each distillation.")
@click.option("--hidden", default=96, help="Units of the LSTM in each direction.")
@click.option("--batch", default=8, help="Examples of an update.")
@click.option("--futures", default=",".join(map(str, FUTURES)), help="Later frames that the backward half sees.")
def main(speech: Path, out: Path, updates: int, tuning: int, hidden: int, batch: int, futures: str) -> None:
    """Train, bound, distil and measure."""
    out.mkdir(parents=True, exist_ok=True)
    samples = read_recording(speech)
    split = len(samples) - round(HELD_OUT * RATE)
    data, unheard = prepare(samples[:split], out, 40 if updates > 100 else 4), held_out(samples[split:], 4)
    onnx.save(build(np.random.default_rng(0), hidden), out / "random.onnx")

    began = time.monotonic()
    model = jaxrnn.load(out / "random.onnx")
    fitted = train(of_sound(model), data, "clean", updates, batch, 2e-3)
    trained = time.monotonic() - began
    jaxrnn.export_onnx(model, fitted.params, out / "offline.onnx")
    offline = of_sound(jaxrnn.load(out / "offline.onnx"))

    noisy = {name: {"samples": mixture.noisy} for name, mixture in unheard.items()}
    whole = {name: np.asarray(offline.apply(offline.params, each)["audio"]) for name, each in noisy.items()}
    quality = {
        "noisy": float(np.mean([si_sdr(mixture.noisy, mixture.clean) for mixture in unheard.values()])),
        "offline": float(np.mean([si_sdr(whole[name], mixture.clean) for name, mixture in unheard.items()])),
    }
    gain = f"SI-SDR {quality['noisy']:.1f} to {quality['offline']:.1f} dB"
    click.echo(f"trained {updates} updates in {trained:.0f} s; {gain}")
    first = next(iter(unheard))
    sounds = {"noisy": unheard[first].noisy, "clean": unheard[first].clean, "offline": whole[first]}

    results = []
    for future in map(int, futures.split(",")):
        began = time.monotonic()
        student, tuned = distil(offline, future, data, tuning, batch)
        seconds = time.monotonic() - began
        before, after = (measure(student, offline, params, unheard) for params in (offline.params, tuned.params))
        milliseconds = 1000 * future * HOP / RATE
        results.append(Loss(milliseconds, after[2], before[0], after[0], before[1], after[1], seconds))
        click.echo(str(results[-1]))
        name = f"{milliseconds:.0f}ms"
        for said, params in (("before", offline.params), ("after", tuned.params)):
            sounds[f"{name}_{said}"] = np.asarray(student.apply(params, noisy[first])["audio"])
        jaxrnn.export_onnx(offline.networks[0].model, tuned.params, out / f"tuned_{name}.onnx")
        flush = out / f"live_{name}_flush.onnx"
        jaxrnn.export_onnx(student.streamed, tuned.params, out / f"live_{name}.onnx", flush=flush, frame_rate=RATE)

    for name, sound in sounds.items():
        write_recording(out / f"{name}.flac", sound)
    figures = {"seconds": trained, "si_sdr": quality, "bounds": [dataclasses.asdict(each) for each in results]}
    (out / "results.json").write_text(json.dumps(figures, indent=2))
    draw(results, out / "delay.png")


if __name__ == "__main__":
    main()
