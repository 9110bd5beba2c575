"""The keys of a model of settings: for messages, for ``--keys`` and for the documentation."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic.fields import FieldInfo

from jaxrnn.settings.models import Settings

#: In place of a default, for a key that must be there.
NEEDED = "needed"


def reference(model: type[Settings], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Every key of a model and of the models inside it, with its default and its explanation."""
    for name, field in model.model_fields.items():
        inner = _models(field.annotation)
        default = NEEDED if field.is_required() else _written(field)
        yield prefix + name, default, " ".join((field.description or "").split())
        for each in inner:
            many = typing.get_origin(field.annotation)
            between = {list: ".0.", dict: ".NAME."}.get(many, ".")
            yield from reference(each, prefix + name + between)


def table(model: type[Settings]) -> str:
    """The reference in Markdown."""
    rows = [
        f"| `{key}` | {f'`{default}`' if default not in ('', NEEDED) else default} | {text} |"
        for key, default, text in reference(model)
    ]
    return "\n".join(["| key | default | what it says |", "|---|---|---|", *rows])


def keys_at(model: type[Settings], keys: Iterable[str | int]) -> list[str]:
    """The keys of the model that keys lead to."""
    for key in keys:
        field = model.model_fields.get(str(key))  # none of a list's number or a mapping's name
        model = next(iter(_models(field.annotation)), model) if field else model
    return list(model.model_fields)


def _models(annotation: Any) -> list[type[Settings]]:
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return [annotation] if issubclass(annotation, Settings) else []
    return [found for argument in typing.get_args(annotation) for found in _models(argument)]


def _written(field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True)
    if isinstance(default, Settings):
        default = getattr(default, default.short or "", None)
    if default is None or default == {} or default == []:
        return ""
    return default if isinstance(default, str) else json.dumps(default)
