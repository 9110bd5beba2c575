"""Messages in the words of their reader: Python, the command line, or a file of settings.

A message has arguments as Python code in backticks: `pulse=4`, `jaxrnn.load(path, dims={'T': SIZE})`, `batch`. Where
the message leaves Python, the code becomes options or keys: ``--pulse 4``, ``--dim T=SIZE``, ``pulse: 4``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any, Literal

Reader = Literal["command", "settings"]

_SAME = (
    "batch",
    "dtype",
    "future",
    "io_dtype",
    "length",
    "multiple",
    "opset",
    "past",
    "pulse",
    "quantize",
    "state",
    "static",
    "target",
    "what",
)
_SOUND = ("exponent", "gives", "hop", "norm", "padding", "symbol", "synthesis", "takes", "window")
#: The command-line option for each argument in Python.
OPTIONS = {"dims": "--dim", "metadata": "--metadata", "names": "--name"} | {
    name: f"--{name.replace('_', '-')}" for name in _SAME + _SOUND
}
#: The arguments of calls that are also keys of a file of settings: those of `jaxrnn.load`.
_MODEL_KEYS = ("dims", "state", "static")
#: Code with other words outside of Python.
_WORDS = {
    "model.apply": "jaxrnn run",
    "model.stream": "jaxrnn stream --symbol NAME",
    "resume=False": "--fresh",
    "step=True": "--as-step",
    "Quantization.exclude": "--quantize-exclude",
    "Quantization.recordings": "--calibrate",
    "input=NAME": "--takes NAME=KIND",
    "output=NAME": "--gives NAME=KIND",
}
_CODE = re.compile(r"(?<!`)`([^`\n]{1,4000})`(?!`)")
#: A constraint on the length of a recording.
_LENGTH = re.compile(r"\w+ (>=|<=) (\d+)")


def for_reader(text: str, reader: Reader) -> str:
    """Rewrite arguments in backticks as options, or as keys of settings; the other arguments stay in Python."""

    def write(found: re.Match[str]) -> str:
        try:
            return _written(found[1], reader) or found[0]
        except (AttributeError, MemoryError, RecursionError, SyntaxError, TypeError, ValueError):
            return found[0]  # other text, such as a name from a file

    return _CODE.sub(write, text)


def _written(code: str, reader: Reader) -> str | None:
    """Write code for the reader, or None if the code is not an argument."""
    if code in _WORDS:
        return _WORDS[code]
    if code in OPTIONS:
        return OPTIONS[code] if reader == "command" else code
    alone = re.match(r"\w+=(?!=)", code) is not None
    call = ast.parse(f"_({code})" if alone else code, mode="eval").body
    if not isinstance(call, ast.Call):
        return None
    given = {str(each.arg): each.value for each in call.keywords}
    if ast.unparse(call.func) == "model.stream" and call.args:
        given = {"symbol": call.args[0], **given}
    elif not given:
        return None
    if reader == "settings":
        foreign = not alone and not given.keys() <= {*_MODEL_KEYS}
        return f"in Python, {code}" if foreign else ", ".join(map(_as_key, given, given.values()))
    lengths = _lengths(given)
    if lengths is None or not given.keys() <= OPTIONS.keys():
        return f"in Python, {code}"
    return " ".join([*map(_as_option, given, given.values()), *lengths])


def _lengths(given: dict[str, ast.expr]) -> list[str] | None:
    """Take ``constraints``, in multiples, from arguments, and return the options in frames; None without options."""
    constraints = given.pop("constraints", None)
    if constraints is None:
        return []
    multiple = ast.literal_eval(given["multiple"]) if "multiple" in given else 1
    found = [_LENGTH.fullmatch(text) for text in ast.literal_eval(constraints)]
    names = {">=": "--shortest", "<=": "--longest"}
    options = [f"{names[each[1]]} {int(each[2]) * multiple}" for each in found if each is not None]
    return options if len(options) == len(found) else None


def _as_option(name: str, value: ast.expr) -> str:
    option = OPTIONS[name]
    if isinstance(value, ast.Dict):
        return " ".join(_entries(option, value)) or f"{option} none"
    return f"{option} {_text(value)}"


def _entries(option: str, value: ast.Dict) -> Iterator[str]:
    """Yield an option for each entry of a dict; axes by the name of an input are opened."""
    for key, item in zip(value.keys, value.values, strict=True):
        if isinstance(item, ast.Dict):
            yield from (f"--open {_text(key)}:{axis}={name}" for axis, name in _items(item))
        else:
            yield f"{option} {_text(key)}={_text(item)}"


def _as_key(name: str, value: ast.expr) -> str:
    if not isinstance(value, ast.Dict | ast.Call):
        return f"{name}: {_text(value)}"
    return f"{name}: {{{', '.join(f'{key}: {item}' for key, item in _items(value))}}}"


def _items(value: Any) -> list[tuple[str, str]]:
    """Return the entries of a dict, or the arguments of a call such as ``Sequences(mode='scan')``."""
    if isinstance(value, ast.Call):
        return [(str(each.arg), _text(each.value)) for each in value.keywords]
    return [(_text(key), _text(item)) for key, item in zip(value.keys, value.values, strict=True)]


def _text(value: Any) -> str:
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ast.unparse(value)
