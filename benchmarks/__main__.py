"""``python -m benchmarks NAME``: run a benchmark, run ``all`` benchmarks, or write the ``report``."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks import BENCHMARKS

if TYPE_CHECKING:
    from benchmarks.results import Result


@click.group()
def main() -> None:
    """Time jaxrnn beside other engines, on this machine, in one process.

    The outputs are seen to agree before anything is timed. Models are looked for in JAXRNN_MODELS; engines that are not
    installed are left out.
    """


def _options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of all benchmarks to a command."""
    options = (
        click.option("--quick", is_flag=True, help="Fewer rounds and cases: seconds, and wider spread."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else."),
        click.option(
            "--cores",
            type=click.Choice(["one", "all"]),
            default="one",
            show_default=True,
            help="One core, to which the process is pinned, or all.",
        ),
        click.option("--only", multiple=True, metavar="PATTERN", help="Cases whose name contains it; may be repeated."),
        click.option("--rounds", type=click.IntRange(min=1), help="At most so many rounds: minutes instead of hours."),
        click.option(
            "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for NAME.json and NAME.png."
        ),
    )
    return functools.reduce(lambda made, option: option(made), reversed(options), command)


def _run(
    names: Sequence[str],
    quick: bool,
    as_json: bool,
    cores: str,
    only: tuple[str, ...],
    rounds: int | None,
    out: Path | None,
) -> None:
    from benchmarks import machine, tables
    from benchmarks.plan import Plan
    from benchmarks.running import benchmark_module, run
    from jaxrnn.cli.output import console

    prepared = machine.prepare(cores)
    plan = Plan(quick, machine.threads(cores), only, rounds=rounds)
    results: dict[str, Result] = {}
    for name in names:
        cases = benchmark_module(name).cases(plan)
        if not plan.chosen(cases):
            if len(names) == 1:
                raise click.UsageError(f"--only {' '.join(only)}: the cases are: {', '.join(cases)}")
            continue
        results[name] = result = run(name, plan, cores, prepared)
        if out is not None:
            _write(result, out)
        if not as_json:
            tables.show(console(), result)
    if not results:
        raise click.UsageError("no benchmark has a case that --only and --without leave")
    if as_json:
        plain = {name: result.plain() for name, result in results.items()}
        shown = plain if len(names) > 1 else next(iter(plain.values()))
        click.echo(json.dumps(shown, indent=2, ensure_ascii=False))
    failures = [f"{name}: {text}" for result in results.values() for name, text in result.failures.items()]
    if failures:
        raise click.ClickException("\n".join(["not timed:", *failures]))


def _write(result: Result, out: Path) -> None:
    try:
        from benchmarks import plots
        from benchmarks.results import save

        save(result, out)
        plots.save(result, out)
    except OSError as error:
        raise click.ClickException(f"cannot write to {out}: {error}") from error
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}; pip install 'jaxrnn[bench]' for the pictures") from error


def _command(name: str, summary: str) -> None:
    @main.command(name, help=summary)
    @_options
    def command(**options: Any) -> None:
        _run([name], **options)


for _name, _summary in BENCHMARKS.items():
    _command(_name, _summary)


@main.command("all")
@click.option("--without", multiple=True, type=click.Choice(list(BENCHMARKS)), help="Not this one; may be repeated.")
@_options
def every(without: tuple[str, ...], **options: Any) -> None:
    """All of them, one after another: hours, or some minutes with --quick.

    Nearly all that targets are judged by takes half an hour with --rounds 5 --without corpus --without scale.
    """
    _run([name for name in BENCHMARKS if name not in without], **options)


@main.command()
@click.option("--only", multiple=True, metavar="NAME", help="Models whose name contains it; may be repeated.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(__file__).parent / "results",
    show_default="benchmarks/results",
    help="Folder for engines.json.",
)
@click.option(
    "--page",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path(__file__).parent.parent / "docs" / "engines.md",
    show_default="docs/engines.md",
    help="The page to write.",
)
def engines(only: tuple[str, ...], out: Path, page: Path) -> None:
    """Export some 60 files, run each in every engine, and write which engine runs which file.

    Engines that are not Python packages of this environment are found by JAXRNN_ONNXRUNTIME_NODE (the folder of the
    package) and JAXRNN_ONNXRUNTIME_WEB (package/dist).
    """
    from benchmarks.engines import save, table

    try:
        found = table(only)
        save(found, out, page)
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    for engine, what in found.absent.items():
        click.echo(f"left out: {engine}; {what}")
    click.echo(f"wrote {out / 'engines.json'} and {page}")


@main.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--page",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path(__file__).parent.parent / "docs" / "performance.md",
    show_default="docs/performance.md",
    help="The page to write.",
)
def report(folder: Path, page: Path) -> None:
    """Make the results page from the JSON files in FOLDER."""
    from benchmarks.report import write

    try:
        write(folder, page)
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"wrote {page}")


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
