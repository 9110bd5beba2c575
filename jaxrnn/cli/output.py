"""How results are printed: tables for people, one JSON object for programs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
import numpy as np

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

#: Wider than any table: what is piped into a file or another program is never cut or wrapped.
_UNLIMITED = 100_000


def console(*, stderr: bool = False) -> Console:
    """Where people read: plain text of any width unless it is a terminal."""
    from rich.console import Console

    out = Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=False)
    if not out.is_terminal:
        out.width = _UNLIMITED
    return out


def print_table(
    out: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = ()
) -> None:
    """Print a table under a title; the columns named in ``right`` are aligned to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        numeric = column in right
        table.add_column(column, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    print_title(out, title)
    out.print(table)


def print_title(out: Console, title: str) -> None:
    """Print an empty line and a title."""
    out.print()
    out.print(title, style="bold")


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on standard output."""
    click.echo(json.dumps(plain(value), indent=2, ensure_ascii=False))


def plain(value: Any) -> Any:
    """The value in JSON's types; dataclasses become objects, and NaN and infinities null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.dtype):
        return value.name
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def shape_text(shape: Sequence[int | str] | None) -> str:
    """A shape as it is written in messages: ``[1, S, 8]``, or ``[...]`` where the rank is not known."""
    return "[...]" if shape is None else f"[{', '.join(map(str, shape))}]"


def number(value: float | None) -> str:
    """A measured number with a few digits, or a dash where there is none."""
    return "-" if value is None else f"{value:.4g}"


def time_rows(what: str, microseconds: Mapping[str, float] | None) -> list[tuple[str, str]]:
    """Rows of a table with the times of steps, as `jaxrnn.cli.stepping.times_of` gives them."""
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
    """The numbers below ``count``, with a progress bar on standard error while they are taken, if that is a terminal.

    The bar is redrawn between two numbers and by no thread of its own, which would take time from what is measured.
    """
    from rich.progress import Progress

    out = console(stderr=True)
    if not out.is_terminal:
        yield iter(range(count))
        return
    with Progress(console=out, transient=True, auto_refresh=False) as bar:
        yield _watched(bar, bar.add_task(what, total=count), count)


def _watched(bar: Progress, task: TaskID, count: int) -> Iterator[int]:
    redrawn = max(1, count // 50)
    for index in range(count):
        yield index
        if (index + 1) % redrawn == 0:
            bar.update(task, completed=index + 1, refresh=True)
