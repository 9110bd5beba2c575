"""Evaluate the packaged denoiser on a corpus, and write a table, a summary and a report.

    python examples/make_corpus.py runs/corpus
    python examples/evaluate_corpus.py runs/corpus/denoising.csv --out runs/evaluation

The Python version of ``jaxrnn evaluate configs/evaluate_denoiser.yaml``. Requires ``pip install -e '.[evaluate]'``.
"""

from __future__ import annotations

from pathlib import Path

import click

import jaxrnn
from jaxrnn.audio import Frames, Network, Waveform
from jaxrnn.demo import PACKAGED
from jaxrnn.evaluation import evaluate, from_manifest


@click.command()
@click.argument("manifest", type=click.Path(path_type=Path))
@click.option("--out", default="runs/evaluation", show_default=True, type=click.Path(path_type=Path), help="Results.")
def main(manifest: Path, out: Path) -> None:
    """Evaluate the packaged denoiser on the recordings in MANIFEST."""
    try:
        denoiser = Waveform(Network(jaxrnn.load(PACKAGED), gives="mask"), Frames(256, 128, "sqrt_hann"))
        metrics = ["si_sdr", "si_sdr_improvement", "sdr"]
        results = evaluate(denoiser, from_manifest(manifest), metrics, out, slices=["snr", "noise"], keep=True)
    except jaxrnn.JaxrnnError as error:
        raise click.ClickException(str(error)) from error
    for name, summary in results.document["summary"].items():
        mean, *ends = ("none" if summary[key] is None else f"{summary[key]:.2f} dB" for key in ("mean", "low", "high"))
        interval = "too few for an interval" if "none" in ends else " to ".join(ends)
        click.echo(f"{name}: {mean} ({interval}, n = {summary['n']})")
    click.echo(f"wrote {out / 'results.parquet'}, {out / 'results.json'} and {out / 'report.html'}")


if __name__ == "__main__":
    main()
