"""Export a denoiser from samples to samples as a streaming ONNX file, and run it in ONNX Runtime.

    python examples/export_streaming_onnx.py noisy.wav --out runs/streaming

The denoiser of the package takes spectra. `enhance` is a function of samples, with analysis and synthesis as
convolutions, for whole recordings. ``jaxrnn.stream`` turns this function into steps of 8 ms. ``jaxrnn.export_onnx``
writes a step as ``streaming.onnx`` and the end of a recording as ``flush.onnx``. `run_in_onnx_runtime` runs these files
without jaxrnn; see docs/deploying.md for C++ and the Web.

Without a recording, the script makes a noisy synthetic voice. Requires ``pip install -e '.[verify,audio]'``.
"""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

import click
import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
from jax import lax
from recordings import RATE, Samples, read_recording, write_recording
from rich.console import Console

import jaxrnn
from jaxrnn.demo import PACKAGED, mixture, si_sdr

#: Samples per frame and per hop, as in the training of the network.
FRAME, HOP = 256, 128
BINS = FRAME // 2 + 1
#: The largest allowed difference of a sample, full scale 1.
TOLERANCE = 1e-5

WINDOW = np.sqrt(0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FRAME) / FRAME))
_FORWARD, _BACK = np.fft.rfft(np.eye(FRAME)).T, np.fft.irfft([np.eye(BINS), 1j * np.eye(BINS)], FRAME)
#: Kernel of the convolution from samples to real and imaginary parts of spectra, float32[2 * BINS, 1, FRAME].
ANALYSIS = (np.concatenate([_FORWARD.real, _FORWARD.imag]) * WINDOW).astype(np.float32)[:, None]
#: Kernel of the dilated convolution from spectra to samples, float32[1, 2 * BINS, FRAME].
SYNTHESIS = (_BACK.reshape(2 * BINS, FRAME) * WINDOW)[None, :, ::-1].astype(np.float32)


def enhance(model: jaxrnn.Model, params: Any, x: dict[str, Any]) -> dict[str, Any]:
    """Denoise a whole recording.

    Args:
        model: the packaged denoiser.
        params: its parameters.
        x: ``samples``, ``float32[time]``, a multiple of `HOP`.

    Returns:
        ``enhanced``, ``float32[time]``.
    """
    # Half a frame of silence before and after: every sample is in two frames.
    spectra = lax.conv_general_dilated(x["samples"][None, None], ANALYSIS, (HOP,), [(HOP, HOP)])
    real, imaginary = jnp.split(spectra, 2, 1)
    magnitude = jnp.sqrt(real**2 + imaginary**2).transpose(0, 2, 1)
    start = jnp.zeros((1, 1, params["gru_R"].shape[-1]), jnp.float32)
    mask = model.apply(params, {"magnitude": magnitude, "h": start})["mask"].transpose(0, 2, 1)
    masked = spectra * jnp.concatenate([mask, mask], 1)
    edge = FRAME - 1 - HOP
    frames = lax.conv_general_dilated(masked, SYNTHESIS, (1,), [(edge, edge)], lhs_dilation=(HOP,))
    return {"enhanced": frames[0, 0]}


def export(folder: Path) -> tuple[jaxrnn.Model, Path]:
    """Write and verify the stream and the flush in a folder; return the model and the path of the stream."""
    model, example = jaxrnn.load(PACKAGED), {"samples": jax.ShapeDtypeStruct((10 * HOP,), jnp.float32)}
    offline = functools.partial(enhance, model)
    streamed = jaxrnn.stream(offline, example, axes={"samples": 0}, params=model.params, pulse=HOP, multiple=HOP)
    path = folder / "streaming.onnx"
    jaxrnn.export_onnx(streamed, model.params, path, flush=folder / "flush.onnx", label="denoiser")
    whole = jax.jit(functools.partial(offline, model.params))
    report = jaxrnn.export.verify_export(streamed, model.params, path, offline=whole)
    if not report.ok:
        raise click.ClickException(f"{path} differs from the model over whole recordings")
    return model, path


def run_in_onnx_runtime(path: Path, samples: Samples) -> tuple[Samples, list[float]]:
    """Run a recording through a streaming file; return the enhanced samples and the seconds of each step of 8 ms.

    This function does not use jaxrnn.
    """
    step, flush = (onnxruntime.InferenceSession(each) for each in (path, path.with_name("flush.onnx")))
    facts = step.get_modelmeta().custom_metadata_map
    pairs = [line.split("=") for line in facts["jaxrnn.state"].splitlines()]
    state = dict(np.load(path.with_name(facts["jaxrnn.first_state"])))
    names, output, seconds = [each.name for each in step.get_outputs()], [], []
    for pulse in samples.reshape(-1, HOP):
        began = time.perf_counter()
        results = dict(zip(names, step.run(None, {"samples": pulse, **state}), strict=True))
        state = {before: results[after] for before, after in pairs}
        seconds.append(time.perf_counter() - began)
        output.append(results["enhanced"])
    # The recording consists of whole pulses, so the flush takes no further frames.
    rest = flush.run(
        ["enhanced", "enhanced_count"], {"samples": np.zeros(HOP, np.float32), "valid": np.array(0, np.int32), **state}
    )
    enhanced = np.concatenate([*output, rest[0][: rest[1]]])
    return enhanced[int(facts["jaxrnn.delay"].split("=")[1]) :], seconds


@click.command()
@click.argument("noisy", required=False, type=click.Path(path_type=Path))
@click.option(
    "--out", default="runs/streaming", show_default=True, type=click.Path(path_type=Path), help="Folder to write to."
)
def main(noisy: Path | None, out: Path) -> None:
    """Export the packaged denoiser as a stream, and denoise NOISY (WAV, mono, 16 kHz) with it in ONNX Runtime."""
    out.mkdir(parents=True, exist_ok=True)
    try:
        clean, samples = mixture(np.random.default_rng(0), 4, 5) if noisy is None else (None, read_recording(noisy))
        with Console(stderr=True).status("exporting"):
            model, path = export(out)
        padded = np.pad(samples, (0, -len(samples) % HOP))
        enhanced, seconds = run_in_onnx_runtime(path, padded)
        offline = np.asarray(enhance(model, model.params, {"samples": padded})["enhanced"])
        write_recording(out / "noisy.wav", samples)
        write_recording(out / "enhanced.wav", enhanced[: len(samples)])
    except (jaxrnn.JaxrnnError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"wrote {', '.join(sorted(each.name for each in out.iterdir()))} to {out}")
    if clean is not None:
        before, after = si_sdr(samples, clean), si_sdr(enhanced[: len(clean)], clean)
        click.echo(f"SI-SDR: {before:.1f} dB noisy, {after:.1f} enhanced")
    click.echo(f"a step of {1e3 * HOP / RATE:.0f} ms takes {1e6 * np.median(seconds):.0f} us in ONNX Runtime")
    difference = np.abs(enhanced - offline).max()
    click.echo(f"against the whole recording at once, largest difference: {difference:.1e}")
    if not difference <= TOLERANCE:
        raise click.ClickException(f"that is more than {TOLERANCE:.0e}")


if __name__ == "__main__":
    main()
