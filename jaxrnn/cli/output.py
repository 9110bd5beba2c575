"""Output of commands: one JSON object for programs, lines and tables for people."""

from __future__ import annotations

import contextlib
import json
import shutil
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxrnn._files.messages import as_json, pairs_of
from jaxrnn._files.progress import progress_bar
from jaxrnn.cli.errors import echo, naming_output, printable, wants_json, worded

if TYPE_CHECKING:
    from rich.console import Console

#: Wider than any table: rich does not cut or wrap output into a file or a pipe.
_UNLIMITED = 100_000

#: The width of running text and folded tables.
_WIDTH = 120


@contextlib.contextmanager
def plain_warnings(shown: bool = True) -> Iterator[None]:
    """Print warnings on standard error without source lines, or hide warnings if ``shown`` is False."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: (
            echo(f"warning: {worded(str(message))}", err=True) if shown else None
        )
        yield


@dataclass(frozen=True)
class TextLine:
    """A line of text with a style."""

    text: str
    style: str | None = None


@dataclass(frozen=True)
class Table:
    """A table with a title. Without rows, only the title is printed.

    ``columns`` maps headings to keys of a row or functions of a row, or lists headings for rows that are sequences.
    Columns in ``right``, and columns of numbers, are right-aligned. With ``folded``, long cells of a table that is
    wider than running text take several lines.
    """

    title: str
    columns: Mapping[str, str | Callable[[Any], Any]] | Sequence[str] = ()
    rows: Sequence[Any] = ()
    right: Sequence[str] = ()
    folded: bool = False

    def cells(self) -> list[list[Any]]:
        """Return the values, row by row."""
        keys = self.columns.values() if isinstance(self.columns, Mapping) else range(len(self.columns))
        return [[key(row) if callable(key) else row[key] for key in keys] for row in self.rows]


def wrapped(text: str) -> str:
    """Wrap a text at 120 columns, or at the width of a narrower terminal; words, such as names, stay whole."""
    width = min(_WIDTH, shutil.get_terminal_size((_WIDTH, 24)).columns)
    return textwrap.fill(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def fields(*headings: str) -> dict[str, str]:
    """Return columns with the keys of the rows as headings, and spaces in place of underscores."""
    return {heading: heading.replace(" ", "_") for heading in headings}


#: A part of a report.
Block = str | TextLine | Table


def show(result: Any, report: Callable[[dict[str, Any]], Iterable[Block]]) -> None:
    """Print a result as JSON, or as the lines and tables that ``report`` yields."""
    facts = _texts(as_json(result), lambda text, message: worded(text) if message else text)
    if wants_json():
        echo(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    out = console()
    # Texts, such as names from a file, take one line; the messages among the facts keep their lines.
    for block in report(_texts(facts, lambda text, message: text if message else text.replace("\n", "\\n"))):
        with naming_output():
            print_block(out, block)


def _texts(value: Any, change: Callable[[str, bool], str], message: bool = False) -> Any:
    """Change all texts in a value; the change also takes whether a text is a message, by the key."""
    if isinstance(value, Mapping):
        messages = ("problem", "reason", "error", "warnings")
        return {change(key, False): _texts(item, change, key.endswith(messages)) for key, item in value.items()}
    if isinstance(value, list):
        return [_texts(item, change, message) for item in value]
    return change(value, message) if isinstance(value, str) else value


def console(*, stderr: bool = False) -> Console:
    """Return a console; unless the output is a terminal, lines have no limit of length."""
    from rich.console import Console

    out = Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=False)
    if not out.is_terminal:
        out.width = _UNLIMITED
    return out


def print_block(out: Console, block: Block) -> None:
    """Print a part of a report."""
    from rich import box
    from rich.table import Table as Grid
    from rich.text import Text

    if not isinstance(block, Table):
        line = block if isinstance(block, TextLine) else TextLine(block)
        out.print(printable(line.text), style=line.style)
        return
    out.print()
    out.print(printable(block.title), style="bold")
    if not block.rows:
        return
    grid = Grid(box=box.SIMPLE, pad_edge=False, show_edge=False, header_style="bold")
    cells = block.cells()
    for place, heading in enumerate(block.columns):
        numbers = (row[place] is None or type(row[place]) in (int, float) for row in cells)
        right = heading in block.right or all(numbers)
        grid.add_column(heading, justify="right" if right else "left", no_wrap=right, overflow="fold")
    for row in cells:
        grid.add_row(*(Text(printable(text_of(value))) for value in row))
    out.print(grid, width=min(_WIDTH, out.width) if block.folded else None)


def text_of(value: Any) -> str:
    """Format a value for people: ``1,024``, ``0.1235``, ``[1, T]``, ``S=4``; a dash for None."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return pairs_of(value)
    return f"[{', '.join(map(str, value))}]" if isinstance(value, (list, tuple)) else str(value)


def difference(comparison: Mapping[str, Any]) -> str:
    """Return ``agrees``, or the reason why values differ and the place of the largest difference.

    The reason says if no element was compared.
    """
    if comparison["ok"]:
        return f"agrees {comparison['reason']}" if comparison["reason"] else "agrees"
    first = comparison["first_frame"]
    since = "" if first is None else f", first in frame {first:,}"
    place = f", most at {comparison['worst']}" if comparison["worst"] else ""
    arbiter = f"; {comparison['arbiter']}" if comparison.get("arbiter") else ""
    return f"{comparison['reason']}{since}{place}{arbiter}"


#: Columns of a comparison of values with those of another engine.
COMPARED: Mapping[str, str | Callable[[Any], Any]] = {
    "compared": "compared",
    "largest absolute": "max_abs",
    "largest relative": "max_rel",
    "result": difference,
}


def verdict(ok: bool, cases: Iterable[Mapping[str, Any]]) -> TextLine:
    """Return the last line of a comparison: ``agrees``, ``differs``, or the values without a compared element."""
    comparisons = [output for case in cases for output in case["outputs"]]
    if ok:
        count = sum(each["compared"] for each in comparisons)
        return TextLine(f"agrees in {count:,} element{'' if count == 1 else 's'}", "bold green")
    if any(each["differs"] for each in comparisons):
        return TextLine("differs", "bold red")
    known = {each["name"] for each in comparisons if each["compared"]}
    names = dict.fromkeys(each["name"] for each in comparisons if each["name"] not in known)
    return TextLine(
        f"nothing was compared of {', '.join(names) or 'the outputs'}; give --inputs with finite outputs", "bold red"
    )


def random_line(result: Mapping[str, Any], seed: int) -> list[str]:
    """Return a line with the names of random inputs, or no line."""
    details = ", ".join(filter(None, (f"seed {seed}", pairs_of(result["dims"]))))
    return [f"random: {', '.join(result['random'])} ({details})"] if result["random"] else []


def past_line(past: int | None) -> list[str]:
    """Return a line about the bound on past frames, or no line."""
    from jaxrnn.steps.stepspec import said_past

    return [] if past is None else [f"the model is {said_past(past)}"]


@contextlib.contextmanager
def busy(what: str) -> Iterator[None]:
    """Show a spinner on standard error, if that is a terminal."""
    out = console(stderr=True)
    if out.is_terminal:
        with out.status(printable(what)):
            yield
    else:
        yield


@contextlib.contextmanager
def counting(what: str, count: int) -> Iterator[Iterator[int]]:
    """Yield an iterator over the numbers below ``count`` that advances a progress bar."""
    with progress_bar(what, count) as show_progress:

        def numbers() -> Iterator[int]:
            for index in range(count):
                yield index
                show_progress(index + 1)

        yield numbers()
