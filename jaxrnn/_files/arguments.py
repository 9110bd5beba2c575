"""Arguments in messages, in the form for the reader: Python, command-line options, or keys of settings."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import re
from collections.abc import Container, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, NamedTuple

_SAME = ("batch", "dtype", "length", "multiple", "opset", "past", "pulse", "state", "static", "what")
_SOUND = ("exponent", "gives", "norm", "padding", "symbol", "synthesis", "takes")
#: The command-line option for each argument of Python that messages name.
OPTIONS = {"dims": "--dim"} | {name: f"--{name}" for name in _SAME + _SOUND}
#: The arguments of `jaxrnn.load` that are keys of a file of settings.
_MODEL_KEYS = ("dims", "state", "static")

Reader = Literal["python", "command", "settings"]
_READER: ContextVar[Reader] = ContextVar("reader", default="python")


class Metavar(str):
    """A word that the reader replaces by a value, shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


NAME, VALUE, SIZE, INPUT, OUTPUT = map(Metavar, ("NAME", "VALUE", "SIZE", "INPUT", "OUTPUT"))


@contextlib.contextmanager
def writing_for(reader: Reader) -> Iterator[None]:
    """Set the reader of messages inside the context: Python, the user of a command, or the author of settings."""
    token = _READER.set(reader)
    try:
        yield
    finally:
        _READER.reset(token)


def argument(name: str, value: Any, call: str = "") -> str:
    """Write an argument in the form for the reader of a message: ``pulse=4``, ``--pulse 4`` or ``pulse: 4``.

    The value None writes only the name. A `Metavar` such as `SIZE` is a placeholder for a value of the reader's choice.
    ``call`` is the Python call that takes the argument, such as ``"jaxrnn.load(path)"``.
    """
    reader, option = _READER.get(), OPTIONS.get(name)
    foreign = option is None if reader == "command" else bool(call) and name not in _MODEL_KEYS
    if reader == "python" or (foreign and value is not None):
        written = in_python(name, value, call)
        return written if reader == "python" else f"in Python, {written}"
    shown = name if option is None or reader == "settings" else option
    if value is None:
        return shown
    if not isinstance(value, Mapping):
        return f"{shown} {value}" if reader == "command" else f"{shown}: {value}"
    if reader == "settings":
        return f"{shown}: {{{', '.join(f'{key}: {item}' for key, item in value.items())}}}"
    return " ".join(f"{shown} {key}={item}" for key, item in value.items()) or f"{shown} none"


def in_python(name: str, value: Any, call: str = "") -> str:
    """Write an argument in Python for any reader: ``jaxrnn.load(path, state={})``."""
    written = name if value is None else f"{name}={value!r}"
    return f"{call[:-1]}{'' if call.endswith('()') else ', '}{written})" if call else written


def called(name: str) -> str:
    """Return the name of an argument for the reader: ``batch``, or ``--batch`` on the command line."""
    return argument(name, None)


def either(python: str, command: str) -> str:
    """Return the text for a reader in Python, or else the text for the user of a command."""
    return python if _READER.get() == "python" else command


def static_argument(name: str = NAME) -> str:
    """Write the argument that fixes an input while the model is loaded."""
    return argument("static", {name: VALUE}, "jaxrnn.load(path)")


def static_or_eager() -> str:
    """Write how a value that depends on data can become a constant."""
    return static_argument() + either(", or call apply outside jit, grad and vmap", "")


class Argument(NamedTuple):
    """An argument of a function: name, type, default (`inspect.Parameter.empty` if needed) and description."""

    name: str
    type: Any
    default: Any
    text: str


def documented(docstring: str | None) -> dict[str, str]:
    """Return the descriptions in the sections ``Args`` and ``Attributes`` of a docstring, by name."""
    texts: dict[str, str] = {}
    for section in re.findall(r"^(?:Args|Attributes):\n((?:[ ]+.*\n?|\n)*)", inspect.cleandoc(docstring or ""), re.M):
        for name, text in re.findall(r"^    (\w+): ((?:.*\n?)(?:^     +.*\n?)*)", section, re.M):
            texts[name] = " ".join(text.split())
    return texts


def arguments_of(function: str, names: Container[str]) -> dict[str, Argument]:
    """Return arguments of a function ``module:name`` of this package, without an import.

    An import would bring JAX, which takes longer than all other work of ``--help``.
    """
    module, _, name = function.partition(":")
    node, module = _found(name, module)
    assert isinstance(node, ast.FunctionDef), function
    plain = [*node.args.posonlyargs, *node.args.args]
    defaults = [None] * (len(plain) - len(node.args.defaults)) + node.args.defaults
    pairs = [*zip(plain, defaults, strict=True), *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)]
    texts = documented(ast.get_docstring(node))
    return {
        each.arg: Argument(each.arg, _type(each.annotation, module), _default(default), texts.get(each.arg, ""))
        for each, default in pairs
        if each.arg in names
    }


def _found(name: str, module: str) -> tuple[ast.AST | None, str]:
    """Return the definition of a name in a module, or in the module that it is imported from, and that module."""
    for each in _body(module):
        if isinstance(each, ast.FunctionDef) and each.name == name:
            return each, module
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == name:
            return each.value, module
        if isinstance(each, ast.ImportFrom) and name in [alias.name for alias in each.names]:
            inside = str(each.module).startswith("jaxrnn.")
            return _found(name, str(each.module)) if inside else (None, module)
    return None, module


@functools.cache
def _body(module: str) -> list[ast.stmt]:
    path = Path(__file__).parents[1].joinpath(*module.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return [*body, *(inner for each in body if isinstance(each, ast.If) for inner in each.body)]  # for type checkers


def _type(node: ast.expr | None, module: str) -> Any:
    """Return the first type of an annotation that a text can have: a number, a choice, a text, or several of these."""
    if isinstance(node, ast.BinOp):
        return _type(node.left, module)
    if isinstance(node, ast.Subscript):
        kind, parts = ast.unparse(node.value), node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if kind == "Literal":
            return Literal[tuple(map(ast.literal_eval, parts))]
        return tuple[_type(parts[0], module), ...] if kind == "Sequence" else str
    name = node.id if isinstance(node, ast.Name) else ""
    if name in ("int", "float", "bool"):
        return {"int": int, "float": float, "bool": bool}[name]
    alias, defined_in = _found(name, module)
    return _type(alias, defined_in) if isinstance(alias, ast.expr) else str


def _default(node: ast.expr | None) -> Any:
    try:
        return inspect.Parameter.empty if node is None else ast.literal_eval(node)
    except ValueError:
        return None  # a name, such as that of a constant


#: Words for commands and files of settings in place of a function or an argument in Python.
_WORDS = {
    "resume=False": "--fresh",
}


def for_reader(text: str, reader: Literal["command", "settings"]) -> str:
    """Rewrite arguments in Python that stand in backticks, such as `pulse=4`, as options or as keys of settings.

    An argument that is neither an option nor a key stays in Python.
    """
    return _CODE.sub(lambda found: _written(found[1], reader) or found[0], text)


def for_command(text: str) -> str:
    """Rewrite arguments in Python as options; values in double backticks lose the backticks."""
    return for_reader(re.sub(r'``"?(.*?)"?``', r"\1", text), "command")


_CODE = re.compile(r"(?<!`)`([^`\n]{1,500})`(?!`)")


def _written(code: str, reader: str) -> str | None:
    """Write a name, arguments ``name=value`` or a call with arguments for the reader; None for any other code."""
    if code in _WORDS:
        return _WORDS[code]
    if code in OPTIONS:
        return OPTIONS[code] if reader == "command" else code
    bare = re.match(r"\w+=(?!=)", code) is not None
    try:
        call = ast.parse(f"_({code})" if bare else code, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(call, ast.Call) or not call.keywords:
        return None
    names = [each.arg for each in call.keywords]
    if any(name not in OPTIONS if reader == "command" else not bare and name not in _MODEL_KEYS for name in names):
        return f"in Python, {code}"
    write = _as_option if reader == "command" else _as_key
    return " ".join(write(str(each.arg), each.value) for each in call.keywords)


def _as_option(name: str, value: ast.expr) -> str:
    option = OPTIONS[name]
    if isinstance(value, ast.Dict):
        return " ".join(f"{option} {key}={item}" for key, item in _items(value)) or f"{option} none"
    return f"{option} {_text(value)}"


def _as_key(name: str, value: ast.expr) -> str:
    if not isinstance(value, ast.Dict | ast.Call):
        return f"{name}: {_text(value)}"
    return f"{name}: {{{', '.join(f'{key}: {item}' for key, item in _items(value))}}}"


def _items(value: ast.Dict | ast.Call) -> list[tuple[str, str]]:
    if isinstance(value, ast.Call):
        return [(str(each.arg), _text(each.value)) for each in value.keywords]
    return [(_text(key), _text(item)) for key, item in zip(value.keys, value.values, strict=True) if key is not None]


def _text(value: ast.expr) -> str:
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ast.unparse(value)
