"""The results page: tables and pictures from the JSON files of a folder, between the text of a template.

The template holds no figure, and this file types none: each comes from a result.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.results import Result, read, replace_text
from benchmarks.running import BENCHMARKS
from benchmarks.tables import mean_cells, refusals, tables
from benchmarks.targets import target_cells

TEMPLATE = Path(__file__).parent / "performance_template.md"

_PLACE = re.compile(r"\{\{ *([a-z_]+) *\}\}")


def write(folder: Path, page: Path) -> None:
    """Write the page, whole or not at all.

    Raises:
        ValueError: the folder holds no results, or something else among them; or the template asks for what is unknown.
    """
    results = read_all(folder)
    page.parent.mkdir(parents=True, exist_ok=True)
    # Links are as seen from the page.
    pictures = Path(os.path.relpath(folder.resolve(), page.parent.resolve()))
    replace_text(page, fill(TEMPLATE.read_text(encoding="utf-8"), results, folder, pictures))


def read_all(folder: Path) -> list[Result]:
    """The results in a folder, in the order of the benchmarks, one core before all.

    Raises:
        ValueError: there are none, or a file is something else.
    """
    found = [read(path) for path in sorted(folder.glob("*.json"))]
    if not found:
        raise ValueError(f"there are no results in {folder}: python -m benchmarks all --out {folder} makes them")
    unknown = [result.benchmark for result in found if result.benchmark not in BENCHMARKS]
    if unknown:
        raise ValueError(f"{folder} has results of {unknown[0]!r}, which is none of: {', '.join(BENCHMARKS)}")
    return sorted(found, key=lambda result: (BENCHMARKS.index(result.benchmark), result.cores != "one"))


def fill(template: str, results: Sequence[Result], folder: Path, pictures: Path) -> str:
    """The template with everything in its places.

    Args:
        template: text with ``{{ name }}`` where a part goes.
        results: what was found.
        folder: where the pictures are.
        pictures: the same, as seen from the page.

    Raises:
        ValueError: the template asks for a part that there is not.
    """
    single = {result.benchmark: result for result in results if result.cores == "one"}
    parts = {
        "targets": markdown(["what", "against", "to reach", "found", "reached"], target_cells(single)),
        "machine": _machine(results),
        "commands": "\n".join(f"    {text}" for text in dict.fromkeys(result.command for result in results)),
    }
    for name in BENCHMARKS:
        mine = [result for result in results if result.benchmark == name]
        parts[name] = "\n\n".join(_section(r, folder, pictures) for r in mine) or "Not measured."

    def part(match: re.Match[str]) -> str:
        if match[1] not in parts:
            raise ValueError(f"the template asks for {match[1]!r}; there are: {', '.join(parts)}")
        return parts[match[1]]

    return _PLACE.sub(part, template)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; numbers, which are in all columns but the first, are aligned to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _section(result: Result, folder: Path, pictures: Path) -> str:
    where = "one core" if result.cores == "one" else f"all cores ({result.surroundings.get('threads')} threads)"
    title = f"**{result.title[:1].upper()}{result.title[1:]}; {where}.**"
    pieces = [title + (" From a quick run: these figures do not count." if result.quick else "")]
    header, rows = mean_cells(result)
    if rows:
        pieces.append(markdown(header, rows))
    pieces += [markdown(*table) for table in tables(result)]
    refused = [f"- {what}: {why}" for what, why in refusals(result)]
    if refused:
        pieces.append("Left out, and why:\n\n" + "\n".join(refused))
    failed = [f"- {what}: {why}" for what, why in result.failures.items()]
    if failed:
        pieces.append("Not timed, and why:\n\n" + "\n".join(failed))
    if (folder / f"{result.stem}.png").is_file():
        pieces.append(f"![{result.benchmark}, {where}]({(pictures / f'{result.stem}.png').as_posix()})")
    return "\n\n".join(pieces)


def _machine(results: Sequence[Result]) -> str:
    """The machine and versions of all results; those that differ between them, with the results that have them."""
    values: dict[str, dict[str, list[str]]] = {}
    for result in results:
        for key, value in result.surroundings.items():
            values.setdefault(key, {}).setdefault(str(value), []).append(result.stem)
        for engine in result.absent:
            values.setdefault(engine, {}).setdefault("not installed", []).append(result.stem)
    rows = []
    for key, found in values.items():
        several = len(found) > 1
        shown = [f"{value} ({', '.join(stems)})" if several else value for value, stems in found.items()]
        rows.append([key.replace("_", " "), "; ".join(shown)])
    return markdown(["", ""], rows)
