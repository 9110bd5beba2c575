"""How the result of a command is printed: one JSON object for programs, lines and tables for people."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from jaxrnn._files.messages import pairs_of, plain
from jaxrnn._files.progress import progress_bar
from jaxrnn.cli.errors import wants_json

if TYPE_CHECKING:
    from rich.console import Console

#: Wider than any table: what is piped into a file or another program is never cut or wrapped.
_UNLIMITED = 100_000

#: Columns that show how a value compares with a peer's.
COMPARED = {"largest absolute": "max_abs", "largest relative": "max_rel"}


@dataclass(frozen=True)
class TextLine:
    """A line of text."""

    text: str
    style: str | None = None


@dataclass(frozen=True)
class Table:
    """Rows under a title, which stands alone where there are none.

    Attributes:
        title: stands above it.
        columns: headings, each with what its cells show: the key of a row, or a function of it. Headings alone are
            those of rows that are sequences.
        rows: as the columns read them. `text_of` writes their values.
        right: headings of columns that are aligned to the right, as columns of numbers are without being named here.
    """

    title: str
    columns: Mapping[str, str | Callable[[Any], Any]] | Sequence[str] = ()
    rows: Sequence[Any] = ()
    right: Sequence[str] = ()

    def cells(self) -> list[list[Any]]:
        """The values, row by row."""
        keys = self.columns.values() if isinstance(self.columns, Mapping) else range(len(self.columns))
        return [[key(row) if callable(key) else row[key] for key in keys] for row in self.rows]


def fields(*headings: str) -> dict[str, str]:
    """Columns whose headings are the keys of the rows, with spaces."""
    return {heading: heading.replace(" ", "_") for heading in headings}


#: What a report for people is made of. A text is a line.
Block = str | TextLine | Table


def show(result: Any, report: Callable[[dict[str, Any]], Iterable[Block]]) -> None:
    """Print the result of a command.

    Args:
        result: a mapping, or a dataclass, which `plain` brings to JSON's types.
        report: what people read of that.
    """
    facts = plain(result)
    if wants_json():
        print_json(facts)
        return
    out = console()
    for block in report(facts):
        print_block(out, block)


def console(*, stderr: bool = False) -> Console:
    """Where people read: plain text of any width unless it is a terminal."""
    from rich.console import Console

    out = Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=False)
    if not out.is_terminal:
        out.width = _UNLIMITED
    return out


def print_block(out: Console, block: Block) -> None:
    """Print a part of a report."""
    if isinstance(block, Table):
        out.print()
        out.print(block.title, style="bold")
        if block.rows:
            out.print(_grid(block))
    else:
        line = block if isinstance(block, TextLine) else TextLine(block)
        out.print(line.text, style=line.style)


def _grid(table: Table) -> Any:
    from rich import box
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=box.SIMPLE, pad_edge=False, show_edge=False, header_style="bold")
    cells = table.cells()
    for place, heading in enumerate(table.columns):
        right = heading in table.right or all(map(_is_number, [row[place] for row in cells]))
        grid.add_column(heading, justify="right" if right else "left", no_wrap=right, overflow="fold")
    for row in cells:
        grid.add_row(*(Text(text_of(value)) for value in row))
    return grid


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def text_of(value: Any) -> str:
    """A value as people read it: a number with a few digits, a shape in brackets, sizes by name; a dash for none."""
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


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on standard output."""
    click.echo(json.dumps(plain(value), indent=2, ensure_ascii=False))


def verdict(ok: bool) -> TextLine:
    """The last line of a comparison."""
    return TextLine("agrees", "bold green") if ok else TextLine("differs", "bold red")


def random_line(result: Mapping[str, Any], seed: int) -> list[str]:
    """A line that says which inputs are random, where some are."""
    details = ", ".join(filter(None, (f"seed {seed}", pairs_of(result["dims"]))))
    return [f"random: {', '.join(result['random'])} ({details})"] if result["random"] else []


def time_rows(what: str, microseconds: Mapping[str, float] | None) -> list[tuple[str, str]]:
    """Rows of a table with the times of steps, as `jaxrnn stream` measures them."""
    words = {"p50": "median", "p95": "95th percentile", "p99": "99th percentile", "max": "longest"}
    return [(f"{what}, {words[key]}", f"{value:.1f} µs") for key, value in (microseconds or {}).items()]


@contextlib.contextmanager
def busy(what: str) -> Iterator[None]:
    """A spinner on standard error while something long runs, if that is a terminal."""
    out = console(stderr=True)
    if out.is_terminal:
        with out.status(what):
            yield
    else:
        yield


@contextlib.contextmanager
def counting(what: str, count: int) -> Iterator[Iterator[int]]:
    """The numbers below ``count``, with a progress bar while they are taken."""
    with progress_bar(what, count) as show_progress:

        def numbers() -> Iterator[int]:
            for index in range(count):
                yield index
                show_progress(index + 1)

        yield numbers()
