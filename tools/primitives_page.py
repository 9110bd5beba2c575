"""The table on the page of primitives, made from the table in the code: ``python -m tools.primitives_page --write``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from jaxrnn._files.writing import in_place_of
from jaxrnn.export.lowering import COMPLEX
from jaxrnn.export.rules import RULES as EXPORTED
from jaxrnn.jaxprs.primitives import KINDS, PRIMITIVES, Rules
from jaxrnn.streaming.interpreter import AWAITING_RULES, PAIR_RULES
from jaxrnn.streaming.rules import RULES as STREAMED
from tools.sweep import DIFFERENCES, OPSET, WITHOUT, LiteRT, OnnxRuntime

PAGE = Path(__file__).resolve().parent.parent / "docs" / "primitives.md"
HEADING = "## Primitives of JAX\n"
_HEAD = (
    HEADING
    + """
Programs become canonical before jaxrnn looks at them: identities go, calls become the equations of their functions, and
spellings become one. A `shard_map` over a single device is also a call. Primitives that JAX uses only in kernels
for accelerators (Pallas) are not in the table.

- **streams**: `stream` has a rule. The rule may refuse some uses, such as a sort along time.
- **pairs**: values with time on two axes, one element for each pair of frames, such as scores of attention.
- **end**: values that only the end of the stream decides, such as a mean over time.
- **exported**: `export_onnx` writes the primitive, in some cases as several operators. An ONNX operator of the same
  meaning is in parentheses.
- **LiteRT**: the types in which files for LiteRT have the primitive; in other types it is refused. Integers are int8 to
  int64 and uint8 to uint32, floats are float16 and float32.

The table is generated from `jaxrnn/jaxprs/primitives.py`: `python -m tools.primitives_page --write`.
"""
)
_COLUMNS = ("primitives", "streams", "pairs", "end", "exported", "LiteRT")
_DIFFERENCES = """
### What engines compute otherwise

`tools/sweep.py` compares each primitive in each type with NumPy and JAX, in ONNX Runtime and in LiteRT, at odd values:
NaN, infinities, zeros of both signs, subnormal numbers, the ends of integers, and divisors of 0. Zeros may have the
other sign, and subnormal numbers may count as 0, as in JAX. In LiteRT, `sqrt` is too large by half beyond 8e37, `log`
is infinite beyond 2.5e38 and has an absolute error of 1e-7 close to 1, and `sin`, `cos` and `tan` lose digits beyond a
million. Products, quotients and powers of complex numbers follow the formulas for their parts, so infinite parts may
make NaN. All differences:
"""
_OPERANDS = {"NaN": "NaN, which is lost", "infinity": "infinities", "large": "numbers beyond a million"}
#: Groups of types by their names in the table.
_GROUPS = {
    "integers": "int8 int16 int32 int64 uint8 uint16 uint32".split(),  # noqa: SIM905
    "floats": ["float16", "float32"],
}
#: Kinds whose primitives are not in canonical programs.
GONE = ("identity", "spelling", "call")


def is_ruled(rules: Rules[Any], name: str) -> bool:
    """Return True if rules contain a rule for a primitive that does more than refuse."""
    rule = rules.of(name)
    return rule is not None and getattr(rule, "__annotations__", {}).get("return") not in ("NoReturn", NoReturn)


def cells(name: str) -> tuple[str, ...]:
    """Return the cells of a primitive, after the name."""
    entry = PRIMITIVES[name]
    by_operator = entry.kind != "elementwise" or name in EXPORTED or bool(entry.operator)
    exported = (by_operator and is_ruled(EXPORTED, name)) or (name in COMPLEX and is_ruled(COMPLEX, name))
    ruled = *(is_ruled(rules, name) for rules in (STREAMED, PAIR_RULES, AWAITING_RULES)), exported
    return *("yes" if each else "" for each in ruled), types(entry.litert.split())


def types(names: list[str]) -> str:
    """Return the names of types, with groups by their names."""
    for group, members in _GROUPS.items():
        if set(members) <= set(names):
            place = names.index(members[0])
            names = [each for each in [*names[:place], group, *names[place:]] if each not in members]
    return ", ".join(names)


def differences() -> str:
    """Return what engines compute otherwise."""
    lines = [_DIFFERENCES, _row(("engine", "operands", "primitives")), _row(["---"] * 3)]
    for engine in (OnnxRuntime.name, LiteRT.name):
        for kind, names in DIFFERENCES[engine].items():
            lines.append(_row((engine, _OPERANDS[kind], ", ".join(f"`{each}`" for each in names.split()))))
    lines.append(f"\nONNX Runtime has no kernel, or ONNX no operator of opset {OPSET}, for:\n")
    lines += [f"- {types(names.split())}: {', '.join(f'`{each}`' for each in which.split())}"
              for names, which in WITHOUT.items()]  # fmt: skip
    return "\n".join(lines)


def table() -> str:
    """Return the table, with a section for each kind."""
    parts = [_HEAD]
    for kind, meaning in KINDS.items():
        rows = {name: entry for name, entry in PRIMITIVES.items() if entry.kind == kind}
        parts.append(f"\n**{kind}**: {meaning}.\n")
        if kind in GONE:
            parts.append(f"{_names(rows)}.")
            continue
        ruled = {name: cells(name) for name, entry in rows.items() if not entry.why}
        if ruled:
            parts += [_row(_COLUMNS), _row(["---"] * len(_COLUMNS))]
            parts += [_row((_names(names), *facts)) for facts, names in _grouped(ruled.items())]
        reasons = {name: entry.why for name, entry in rows.items() if entry.why}
        parts += [
            "\n" * bool(ruled) + f"No rule, because {why}: {_names(names)}." for why, names in _grouped(reasons.items())
        ]
    return "\n".join([*parts, differences()]) + "\n"


def _grouped(pairs: Iterable[tuple[str, Any]]) -> list[tuple[Any, list[str]]]:
    """Return the names of each value, in the order of the first name."""
    pairs = list(pairs)
    values = list(dict.fromkeys(value for _, value in pairs))
    return [(value, [name for name, other in pairs if other == value]) for value in values]


def _names(names: Iterable[str]) -> str:
    operators = {name: PRIMITIVES[name].operator for name in sorted(names)}
    return ", ".join(f"`{name}`" + f" ({operator})" * bool(operator) for name, operator in operators.items())


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table, or write it into the page."""
    parser = argparse.ArgumentParser(description="Make the table of primitives.")
    parser.add_argument("--write", action="store_true", help=f"write it into {PAGE.name} instead of printing it")
    if not parser.parse_args().write:
        sys.stdout.write(table())
        return
    text = PAGE.read_text(encoding="utf-8").partition(HEADING)[0]
    with in_place_of(PAGE) as written:
        written.write_text(f"{text.rstrip()}\n\n{table()}", encoding="utf-8")


if __name__ == "__main__":
    main()
