"""The arguments of functions: types and defaults from the signature, descriptions from the docstring."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Container
from pathlib import Path
from typing import Any, Literal, NamedTuple


class Argument(NamedTuple):
    """An argument of a function: name, type, default (`inspect.Parameter.empty` if needed) and description."""

    name: str
    type: Any
    default: Any
    text: str


def documented(docstring: str | None) -> dict[str, str]:
    """Return the descriptions in the sections ``Args`` and ``Attributes`` of a docstring, as a dict."""
    texts: dict[str, str] = {}
    for section in re.findall(r"^(?:Args|Attributes):\n((?:[ ]+.*\n?|\n)*)", inspect.cleandoc(docstring or ""), re.M):
        for name, text in re.findall(r"^    (\w+): ((?:.*\n?)(?:^     +.*\n?)*)", section, re.M):
            texts[name] = " ".join(text.split())
    return texts


def described(text: str, mark: str = "") -> str:
    """Return a description as a sentence; marks are in place of double backticks and the quotes inside."""
    sentence = text if text.startswith("`") else text[:1].upper() + text[1:]
    return re.sub(r'``"?(.*?)"?``', rf"{mark}\1{mark}", sentence)


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
