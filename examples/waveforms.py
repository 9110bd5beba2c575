"""Denoise a recording with a network over spectra, from waveform to waveform, and as one file in ONNX Runtime.

    python examples/waveforms.py noisy.wav denoised.wav --network gtcrn --models ../shared/models

`NETWORKS` has three networks: the denoiser of the package (a mask on magnitudes), DTLN (a mask on magnitudes, and then
a network over samples) and GTCRN (complex spectra). `jaxrnn.audio.Waveform` puts each between two short-time Fourier
transforms. The result streams in pulses of one hop, and is exported as one file with all signal processing. Requires
``pip install -e '.[verify,audio]'``.
"""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
import onnxruntime
from recordings import MODELS, RATE, Samples, load_model, read_recording, write_recording
from rich.console import Console

import jaxrnn
from jaxrnn.audio import Frames, Network, Waveform, latency
from jaxrnn.demo import PACKAGED

NETWORKS = ("demo", "dtln", "gtcrn")
#: The largest allowed difference of a sample, full scale 1.
TOLERANCE = 1e-5


def waveform(name: str, models: Path) -> Waveform:
    """Return one of `NETWORKS` as a function of waveforms. ``models`` is the folder of DTLN and GTCRN."""
    if name == "demo":
        return Waveform(Network(jaxrnn.load(PACKAGED), gives="mask"), Frames(256, 128, "sqrt_hann"))
    if name == "gtcrn":
        (model,) = load_model(models, "gtcrn.onnx")
        return Waveform(Network(model, gives="spectrum"), Frames(512, 256, "sqrt_hann"))
    first, second = load_model(models, "dtln_1.onnx", "dtln_2.onnx")
    # The second network has learned frames that only have to be added.
    return Waveform([Network(first, gives="mask"), Network(second)], Frames(512, 128, "boxcar", synthesis="sum"))


def run_in_onnx_runtime(path: Path, samples: Samples) -> Samples:
    """Run a recording through an exported stream and its flush. This function does not use jaxrnn."""
    step, flush = (onnxruntime.InferenceSession(each) for each in (path, path.with_name("flush.onnx")))
    facts = step.get_modelmeta().custom_metadata_map
    pairs = [line.split("=") for line in facts["jaxrnn.state"].splitlines()]
    state = dict(np.load(path.with_name(facts["jaxrnn.first_state"])))
    names, pulse, output = [each.name for each in step.get_outputs()], int(facts["jaxrnn.pulse"]), []
    whole = len(samples) // pulse * pulse
    for part in samples[:whole].reshape(-1, pulse):
        results = dict(zip(names, step.run(None, {"samples": part, **state}), strict=True))
        state = {before: results[after] for before, after in pairs}
        output.append(results["audio"])
    tail, valid = np.zeros(pulse, np.float32), np.array(len(samples) - whole, np.int32)
    tail[:valid] = samples[whole:]
    rest, count = flush.run(["audio", "audio_count"], {"samples": tail, "valid": valid, **state})
    return np.concatenate([*output, rest[:count]])[int(facts["jaxrnn.delay"].split("=")[1]) :]


@click.command()
@click.argument("noisy", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--network", type=click.Choice(NETWORKS), default="demo", show_default=True)
@click.option(
    "--models", default=MODELS, show_default=True, type=click.Path(path_type=Path), help="Folder of the networks."
)
def main(noisy: Path, out: Path, network: str, models: Path) -> None:
    """Denoise the recording NOISY (WAV, mono, 16 kHz), write OUT, and the stream beside it as ONNX files."""
    try:
        samples = read_recording(noisy)
        enhance = waveform(network, models)
        with Console(stderr=True).status("denoising"):
            offline = np.asarray(enhance({"samples": samples})["audio"])
            streamed = enhance.stream()
            path = out.with_suffix(".onnx")
            options = {"flush": path.with_name("flush.onnx"), "frame_rate": RATE}
            jaxrnn.export_onnx(streamed, enhance.params, path, label=network, **options)
            found = run_in_onnx_runtime(path, samples)
        write_recording(out, found)
    except (jaxrnn.JaxrnnError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo("\n".join(enhance.description))
    click.echo(f"wrote {out}, {path} and {path.with_name('flush.onnx')}")
    click.echo(f"pulses of {streamed.spec.pulse} samples, latency {latency(streamed, RATE):g} ms")
    difference = np.abs(found - offline).max()
    click.echo(f"ONNX Runtime against the whole recording at once, largest difference: {difference:.1e}")
    if not difference <= TOLERANCE:
        raise click.ClickException(f"that is more than {TOLERANCE:.0e}")


if __name__ == "__main__":
    main()
