"""``jaxrnn demo``: run the packaged denoiser over a synthetic noisy signal, and measure the gain and the speed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from jaxrnn._files.progress import progress_bar
from jaxrnn.cli.commands import NumberRange, Option, Seed, command
from jaxrnn.cli.errors import MismatchError, wants_json
from jaxrnn.cli.output import Block, Table, show

if TYPE_CHECKING:
    import numpy as np

    from jaxrnn.model import Model


@command
def demo(
    out: Annotated[Path, Option(type=click.Path(file_okay=False, path_type=Path))] | None = None,
    seconds: Annotated[float, Option(type=NumberRange(1, 600))] = 10.0,
    snr: Annotated[float, Option(type=NumberRange(-40, 60))] = 0.0,
    seed: Seed = 0,
) -> None:
    """Denoise a synthetic signal with a recurrent network that comes with jaxrnn.

    Loads the packaged ONNX file, compares it with another engine, runs it frame by frame over a synthetic noisy voice,
    and prints the gain in SI-SDR and the speed. Needs no file and no network.

    Examples:
      jaxrnn demo
      jaxrnn demo --snr 5 --seconds 20 --out denoised

    Args:
        out: Folder for the recordings and their spectrograms. [default: nothing is written]
        seconds: Length of the signal.
        snr: SNR of the signal, in dB.
        seed: Seed of the signal and the noise.
    """
    from jaxrnn.demo.audio import need_matplotlib

    if out is not None:
        need_matplotlib()
        out.mkdir(parents=True, exist_ok=True)
    result, signals = _run(seconds, snr, seed)
    if out is not None:
        result["files"] = [str(path) for path in _write(out, result, signals)]
    show(result, _report)


def _run(seconds: float, snr: float, seed: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the figures and the three signals."""
    import numpy as np

    from jaxrnn.demo import PACKAGED, RATE, denoise, mixture
    from jaxrnn.demo.audio import hops
    from jaxrnn.model.loading import load
    from jaxrnn.signal import si_sdr

    model = load(PACKAGED)
    clean, noisy = mixture(np.random.default_rng(seed), seconds, snr)
    engine, error = _verify(model, noisy[:RATE])
    with progress_bar("denoising", len(hops(noisy)), shown=False if wants_json() else None) as watch:
        denoised = denoise(noisy, model, watch=watch)
    before, after = si_sdr(noisy, clean), si_sdr(denoised.samples, clean)
    microseconds = denoised.seconds * 1e6
    result = {
        "model": PACKAGED.name,
        "verified_against": engine,
        "verification_error": error,
        "seconds": seconds,
        "snr_db": snr,
        "seed": seed,
        "si_sdr_before_db": before,
        "si_sdr_after_db": after,
        "si_sdr_improvement_db": after - before,
        "frames": len(microseconds),
        "frame_median_us": float(np.median(microseconds)),
        "frame_p95_us": float(np.percentile(microseconds, 95)),
        "times_real_time": denoised.times_real_time,
        "files": [],
    }
    return result, {"noisy": noisy, "denoised": denoised.samples, "clean": clean}


def _verify(model: Model, noisy: np.ndarray) -> tuple[str, float]:
    """Return the name of the other engine and the largest absolute difference of the outputs."""
    from jaxrnn.demo import spectra_and_state
    from jaxrnn.verification import verify

    _, inputs = spectra_and_state(noisy, model)
    report = verify(model.proto, inputs)
    outputs = report.cases[0].outputs
    if not report.ok:
        wrong = "; ".join(f"{output.name}: {output.reason}" for output in outputs if not output.ok)
        raise MismatchError(f"{model.label} differs from {report.engine}: {wrong}")
    return report.engine, max(output.max_abs or 0.0 for output in outputs)


def _write(folder: Path, result: dict[str, Any], signals: dict[str, np.ndarray]) -> list[Path]:
    from jaxrnn._files.writing import replace_all, scratch
    from jaxrnn.audio import write_wav
    from jaxrnn.demo.audio import RATE, draw_spectrograms

    titles = {
        "noisy": f"noisy: SI-SDR {result['si_sdr_before_db']:z.1f} dB",
        "denoised": f"denoised: SI-SDR {result['si_sdr_after_db']:z.1f} dB",
        "clean": "clean",
    }
    picture = folder / "spectrogram.png"
    with scratch(picture) as beside:
        for name, samples in signals.items():
            write_wav(beside / f"{name}.wav", samples, RATE)
        figure = draw_spectrograms({titles[name]: samples for name, samples in signals.items()})
        figure.savefig(beside / picture.name, dpi=150)
        written = {folder / name: beside / name for name in (*(f"{name}.wav" for name in signals), picture.name)}
        replace_all(written)
    return [*written]


def _report(result: Mapping[str, Any]) -> Iterator[Block]:
    rows = [
        ("SI-SDR before", f"{result['si_sdr_before_db']:.2f} dB"),
        ("SI-SDR after", f"{result['si_sdr_after_db']:.2f} dB"),
        ("improvement", f"{result['si_sdr_improvement_db']:+.2f} dB"),
        ("a frame, median", f"{result['frame_median_us']:.0f} µs"),
        ("a frame, 95th percentile", f"{result['frame_p95_us']:.0f} µs"),
        ("speed", f"{result['times_real_time']:.0f} times real time"),
        (f"largest error against {result['verified_against']}", f"{result['verification_error']:.1e}"),
    ]
    title = f"{result['model']}: {result['seconds']:g} s at {result['snr_db']:g} dB SNR"
    yield Table(title, ("figure", "value"), rows, right=("value",))
    yield from (f"wrote {path}" for path in result["files"])
