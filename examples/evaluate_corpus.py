"""Evaluate the packaged denoiser on a corpus, and write a table, a summary and a report.

    python examples/make_corpus.py runs/corpus
    python examples/evaluate_corpus.py runs/corpus/denoising.csv --out runs/evaluation

It is what ``jaxrnn evaluate configs/evaluate_denoiser.yaml`` does, by API; ``pip install -e '.[evaluate]'``.
"""

from __future__ import annotations

from pathlib import Path

import click

import jaxrnn
from jaxrnn.demo import PACKAGED
from jaxrnn.evaluation import Chain, Evaluation, Stage, build_metric, from_manifest, write_report, write_results
from jaxrnn.evaluation.report import Results


@click.command()
@click.argument("manifest", type=click.Path(path_type=Path))
@click.option("--out", default="runs/evaluation", show_default=True, type=click.Path(path_type=Path), help="Results.")
def main(manifest: Path, out: Path) -> None:
    """Evaluate the packaged denoiser on the recordings that MANIFEST lists."""
    try:
        denoiser = Chain((Stage(jaxrnn.load(PACKAGED), "magnitude", "mask"),), size=256, hop=128, window="sqrt_hann")
        corpus = from_manifest(manifest)
        metrics = [build_metric(name) for name in ("si_sdr", "si_sdr_improvement", "sdr")]
        evaluation = Evaluation(denoiser, corpus, metrics, out, facts={"model": PACKAGED.name}, keep=True)
        evaluation.run(watch=lambda unit, rows: click.echo(f"{len(rows)} recordings more"))
        rows = evaluation.rows()
        said = write_results(out, rows, metrics, slices=("snr", "noise"))
        write_report(out / "report.html", Results(out.name, rows, said, out / "outputs"), corpus=corpus)
    except jaxrnn.JaxrnnError as error:
        raise click.ClickException(str(error)) from error
    for name, found in said["summary"].items():
        click.echo(f"{name}: {found['mean']:.2f} dB ({found['low']:.2f} to {found['high']:.2f})")
    click.echo(f"wrote {out / 'results.parquet'}, {out / 'results.json'} and {out / 'report.html'}")


if __name__ == "__main__":
    main()
