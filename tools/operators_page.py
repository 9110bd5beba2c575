"""The page of operators, made from the registry: ``python -m tools.operators_page --write docs/operators.md``.

Names, versions and static inputs are read from the registry, notes from the functions' docstrings. The module `trials`
tests derivatives and streaming of each operator.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxrnn._files.writing import in_place_of
from jaxrnn.onnx.operators import operator_table
from jaxrnn.onnx.registry import operator
from tools.trials import Evidence, Key, try_operators

_HEAD = """# Operators

jaxrnn implements {count} operators of {domains} domains. A file with other operators is refused when it is loaded,
with a list of all such nodes, unless you provide them: `jaxrnn.load(..., operators={{(domain, name): function}})`.

- **versions**: the implemented versions of the operator. A node uses the newest version that is not newer than the
  opset.
- **static**: inputs whose values jaxrnn needs while tracing. They come from the file, from shapes, or from
  `jaxrnn.load(..., static=...)`; outside of `jit`, `grad` and `vmap` they may have any values.
  `Slice` and `Range` also take ends that are sums of an input and known numbers, as `offset` and `offset + 4`.
- **differentiable**: *yes* if a test case of onnx has a non-zero derivative of an output with respect to an input;
  *no* if all derivatives are zero or missing. A dash: the operator has no float inputs and outputs, or no test case.
- **streams**: *yes* if `stream` has a rule for each JAX primitive of the operator in such a test case, so a model
  with a time axis can be streamed through the operator; *not*, with the primitives that lack a rule. Operations over
  all of time (a mean, a softmax, a reverse scan) are refused for any operator. *no*: shapes or results depend on
  data, so the operator cannot be traced. A dash: all inputs are static, or no test case.

The page is generated from the registry: `python -m tools.operators_page --write docs/operators.md`.
"""
_COLUMNS = ("operator", "versions", "static", "differentiable", "streams", "notes")
_TITLES = {"": "ai.onnx, the default domain"}


@dataclass(frozen=True)
class Entry:
    """The facts about an operator in the registry. A test compares this part of a row with the page.

    Attributes:
        name: the operator.
        versions: the versions that are implemented.
        static: the names of the static inputs of the newest version.
        note: the first paragraph of the docstring of the newest version's function, without the operator's name.
    """

    name: str
    versions: str
    static: str
    note: str


def entries() -> dict[Key, Entry]:
    """Return all registered operators, by domain and name."""
    table = {}
    for (domain, name), versions in sorted(operator_table().items()):
        newest = operator(name, domain, max(versions), versions)
        slots = [*newest.slots, *([newest.variadic] if newest.variadic else [])]
        static = ", ".join(f"`{slot.name}`" for slot in slots if slot.static)
        table[domain, name] = Entry(name, ", ".join(map(str, sorted(versions))), static, _note((domain, name)))
    return table


def page(evidence: Mapping[Key, Evidence | None], kept: Mapping[Key, tuple[str, str]] | None = None) -> str:
    """Return the page, with the evidence on each operator; operators without evidence keep facts of an older page."""
    table = entries()
    domains = list(dict.fromkeys(domain for domain, _ in table))
    parts = [_HEAD.format(count=len(table), domains=len(domains))]
    for domain in domains:
        parts.append(f"\n## {_TITLES.get(domain, domain)}\n")
        parts += [_row(_COLUMNS), _row(["---"] * len(_COLUMNS))]
        for key, entry in table.items():
            if key[0] == domain:
                seen = evidence.get(key)
                facts = (
                    (_differentiable(seen), _streams(seen)) if key in evidence else (kept or {}).get(key, ("-", "-"))
                )
                parts.append(_row((entry.name, entry.versions, entry.static, *facts, entry.note)))
    return "\n".join(parts) + "\n"


def read_page(text: str) -> dict[Key, tuple[Entry, tuple[str, str]]]:
    """Return the rows of a page: the entry of the registry, and the cells about derivatives and streams."""
    domains = {title: domain for domain, title in _TITLES.items()}
    rows: dict[Key, tuple[Entry, tuple[str, str]]] = {}
    domain = ""
    for line in text.splitlines():
        if line.startswith("## "):
            domain = domains.get(line[3:], line[3:])
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == len(_COLUMNS) and cells[0] not in (_COLUMNS[0], "---"):
            name, versions, static, differentiable, streams, note = cells
            rows[domain, name] = Entry(name, versions, static, note), (differentiable, streams)
    return rows


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _differentiable(seen: Evidence | None) -> str:
    if seen is None or seen.differentiable is None:
        return "-"
    return "yes" if seen.differentiable else "no"


def _streams(seen: Evidence | None) -> str:
    if seen is None or not seen.fed:
        return "-"
    if seen.missing is None:
        return "no"
    return "not " + ", ".join(f"`{name}`" for name in seen.missing) if seen.missing else "yes"


def _note(key: Key) -> str:
    versions = operator_table()[key]
    function = versions[max(versions)]
    function = function.func if isinstance(function, functools.partial) else function
    text = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
    note = re.sub(rf"^{key[1]}\b[:,.; ]*", "", text).strip()
    return note[:1].upper() + note[1:]


def main() -> None:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(description="Make the page of operators.")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write it there instead of printing it")
    parser.add_argument(
        "--operator", action="append", metavar="NAME", help="try this operator only, and keep what FILE has of others"
    )
    options = parser.parse_args()
    newest = {key: max(versions) for key, versions in operator_table().items()}
    tried = [key for key in newest if options.operator is None or key[1] in options.operator]
    kept = read_page(options.write.read_text(encoding="utf-8")) if options.operator and options.write else {}
    evidence = try_operators(tried, newest, lambda key: print(*filter(None, key), file=sys.stderr))
    text = page(evidence, {key: facts for key, (_, facts) in kept.items()})
    if options.write is None:
        sys.stdout.write(text)
        return
    with in_place_of(options.write) as written:
        written.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
