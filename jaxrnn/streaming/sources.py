"""Where an equation comes from: the node or module that it was traced in, or else the line of the user's code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
from jax.extend.core import JaxprEqn

#: Folders whose lines are not the user's.
_LIBRARIES = tuple(f"{folder}{os.sep}" for folder in (Path(jax.__file__).parent, Path(__file__).parent.parent))


def scope_of(equation: JaxprEqn, outer: str = "") -> str:
    """The scope that an equation was traced in, from the outermost on; empty where there is none."""
    inner = str(equation.source_info.name_stack)
    if inner.startswith("/") and outer:
        return outer + inner
    return "/".join(part for part in (outer, inner) if part)


def line_of(equation: JaxprEqn) -> str:
    """The line of the user's code that an equation was traced from; empty where it is not known."""
    traceback = equation.source_info.traceback
    for frame in () if traceback is None else traceback.frames:
        name = str(frame.file_name)
        if not name.startswith(_LIBRARIES) and os.sep + "flax" + os.sep not in name and not name.startswith("<"):
            return f"{os.path.basename(name)}:{frame.line_num} ({frame.function_name})"
    return ""


def describe_equation(equation: JaxprEqn, outer: str = "") -> str:
    """An equation for an error message: its primitive and where it comes from."""
    scope, line = scope_of(equation, outer), line_of(equation)
    place = " of ".join(part for part in (f"node {scope!r}" if scope else "", line) if part)
    return f"{equation.primitive.name!r}" + (f" ({place})" if place else "")


def label_of(equation: JaxprEqn, outer: str = "") -> Any:
    """A short name for the state that an equation needs."""
    return scope_of(equation, outer) or equation.primitive.name
