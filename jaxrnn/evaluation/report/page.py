"""The page itself: its sections in order, in one file that needs no other."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jaxrnn.errors import InputError, MissingPackageError
from jaxrnn.evaluation.compare import Comparison, compare
from jaxrnn.evaluation.corpus import Item
from jaxrnn.evaluation.report.comparing import comparison as comparing
from jaxrnn.evaluation.report.content import Content, Limits, Results, main_of
from jaxrnn.evaluation.report.parts import Section, Tile
from jaxrnn.evaluation.report.sections import curves, distributions, errors, facts, files, listening
from jaxrnn.evaluation.report.summaries import slices, summary, tiles
from jaxrnn.evaluation.report.wording import defined, duration, is_number, number, text, whole
from jaxrnn.writing import in_place_of

TEMPLATES = Path(__file__).parent / "templates"


def write_report(
    path: Path,
    results: Results,
    *,
    baseline: Results | None = None,
    comparison: Comparison | None = None,
    corpus: Iterable[Item] = (),
    title: str | None = None,
    main: str | None = None,
    times: Mapping[str, Any] | None = None,
    rate: int = 16_000,
    limits: Limits | None = None,
) -> None:
    """Write the report of an evaluation: one HTML file, which needs no network and no file beside it.

    The same arguments and sounds give the same bytes. All foreign text, names of files among it, is shown as text.

    Args:
        path: the file to write or replace; its folder is made where it is not there.
        results: of the system.
        baseline: what another system gave on the same corpus, to compare with.
        comparison: of the baseline and the results, in this order; by default what `compare` gives of their rows,
            without what is counted over the whole corpus.
        corpus: the recordings, for their sounds; what has since been moved is a note on the page.
        title: of the page.
        main: the metric that tells the best and the worst recordings; by default the first.
        times: what a run took; a number called ``times_real_time`` stands at the head of the page.
        rate: samples a second of the system.
        limits: what the page holds at most.

    Raises:
        InputError: there is no metric ``main``, the baseline is of another corpus, or the file cannot be written.
        MissingPackageError: jinja2, matplotlib or soundfile is not installed.
    """
    if baseline is not None and comparison is None:
        comparison = compare(
            baseline.rows,
            results.rows,
            metrics=results.columns,
            slices=tuple(results.said["slices"]),
            names=(baseline.name, results.name),
            same_files=False,
        )
    content = Content(
        results,
        main_of(results.said, main),
        baseline,
        comparison,
        {item.id: item for item in corpus},
        rate,
        limits or Limits(),
    )
    page = render(content, title, times or {})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with in_place_of(path) as written:
            written.write_text(page, encoding="utf-8", newline="\n")
    except OSError as error:
        raise InputError(f"the report {path} cannot be written: {error.strerror or error}") from error


def render(content: Content, title: str | None, times: Mapping[str, Any]) -> str:
    """The page as text."""
    try:
        import jinja2
    except ImportError as error:
        raise MissingPackageError("a report needs jinja2: pip install 'jaxrnn[evaluate]'") from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    sections: list[Section | None] = [
        summary(content),
        comparing(content),
        slices(content),
        curves(content),
        distributions(content),
        listening(content),
        errors(content),
        files(content),
        facts(content, times),
    ]
    style, script = ((TEMPLATES / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    # The browser is told to run this script and no other, whatever text found its way into the page.
    digest = base64.b64encode(hashlib.sha256(f"\n{script}".encode()).digest()).decode()
    return environment.get_template("report.html").render(
        title=text(title or f"Evaluation of {content.results.name}"),
        lead=_lead(content, title),
        tiles=[*tiles(content), *_counts(content, times)],
        sections=[section for section in sections if section is not None],
        style=style,
        script=script,
        script_hash=f"sha256-{digest}",
    )


def _lead(content: Content, title: str | None) -> str:
    """What the title does not say."""
    name = "" if title is None else text(content.results.name)
    if content.baseline is None:
        return name
    beside = text(content.baseline.name)
    return f"{name}, compared with {beside}" if name else f"Compared with {beside}"


def _counts(content: Content, times: Mapping[str, Any]) -> list[Tile]:
    """How much was evaluated, and how fast."""
    failed = len(content.failed)
    found = [
        Tile("files", whole(len(content.results.rows)), f"{whole(failed)} with errors" if failed else "no errors"),
        Tile("sound", duration(sum(defined([row.get("seconds") for row in content.results.rows])))),
    ]
    speed = times.get("times_real_time")
    if is_number(speed):
        found.append(Tile("speed", f"{number(speed, 0)} \N{MULTIPLICATION SIGN}", "times real time"))
    return found
