"""Validation errors of pydantic as mistakes: one line for each key."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jaxrnn._files.messages import near
from jaxrnn.errors import InputError
from jaxrnn.settings.models import ValidationError

#: The keys that lead to a value, from the outside in; items of lists go by their number.
Keys = tuple[str | int, ...]


class SettingsError(InputError):
    """Mistakes in values: for each, the keys that lead to it and what is wrong."""

    def __init__(self, mistakes: Sequence[tuple[Keys, str]]):
        super().__init__("\n".join(": ".join(filter(None, (dotted(keys), text))) for keys, text in mistakes))
        self.mistakes = mistakes


def mistakes_of(
    error: ValidationError, values: Any, known: Callable[[Keys], Iterable[str]], kind: str = "key"
) -> SettingsError:
    """The mistakes in values.

    Args:
        error: of their validation.
        values: in plain types.
        known: the keys of the model that keys lead to.
        kind: the word for a key in messages.
    """
    by_keys: dict[Keys, list[Any]] = {}
    for each in error.errors(include_url=False):
        by_keys.setdefault(_inside(each["loc"], values, each["type"]), []).append(each)
    # A union reports a mistake for each of its types; those about the inside of a value say more than those about it.
    return SettingsError(
        [
            (keys, _message(keys, errors, known, kind))
            for keys, errors in by_keys.items()
            if not any(other != keys and other[: len(keys)] == keys for other in by_keys)
        ]
    )


def dotted(keys: Iterable[str | int]) -> str:
    """Keys as they are written for ``--set``."""
    return ".".join(map(str, keys))


def brief(value: Any) -> str:
    """A value in a message, shortened."""
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _message(keys: Keys, errors: list[Any], known: Callable[[Keys], Iterable[str]], kind: str) -> str:
    kinds = {each["type"] for each in errors}
    if "extra_forbidden" in kinds:
        names = list(known(keys[:-1]))
        return f"unknown {kind}{near(keys[-1], names)}; there are: {', '.join(names) or 'none'}"
    if kinds == {"missing"}:
        return "missing"
    for each in errors:
        if each["type"] == "value_error":
            return str(each["ctx"]["error"])
    # Each type of a union has a message of its own.
    first, *others = dict.fromkeys(re.sub(" or instance of .*", "", each["msg"]) for each in errors)
    return " or ".join([first, *(text.removeprefix("Input should be ") for text in others)]) + (
        f", not {brief(errors[0]['input'])}"
    )


def _inside(location: Sequence[str | int], values: Any, kind: str) -> Keys:
    """The part of pydantic's location that leads into the values; the rest names types of unions."""
    keys: list[str | int] = []
    for place, part in enumerate(location):
        ends_missing = kind == "missing" and place == len(location) - 1
        if isinstance(values, Mapping) and (part in values or ends_missing):
            values = values.get(part)
            keys.append(part)
        elif isinstance(values, list) and isinstance(part, int) and part < len(values):
            values = values[part]
            keys.append(part)
    return tuple(keys)
