"""``python -m tools.gallery``: make the gallery, or some of its entries, into a folder."""

from __future__ import annotations

import time
from pathlib import Path

import click

from tools.gallery.making import NAMES, ROOT, make


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(NAMES))
@click.option(
    "--out",
    default=ROOT / "build" / "gallery",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder to write to.",
)
def main(names: tuple[str, ...], out: Path) -> None:
    """Make the gallery of the documentation, or the entries of some NAMES; what has not changed stays."""
    began = time.perf_counter()
    for made in make(out, names or NAMES, watch=lambda name: click.echo(f"making {name}")):
        click.echo(f"{made.name}: " + (f"needs {made.missing}" if made.missing else f"{len(made.items)} items"))
    click.echo(f"wrote {out} in {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
