"""The base of all models of settings. The text below a key explains it, in help and documentation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, ClassVar

from jaxrnn._files.stores import Location, Url, joined
from jaxrnn.errors import optional_package

with optional_package("pydantic", "files of settings", "train", "evaluate"):
    from pydantic import (
        BaseModel,
        BeforeValidator,
        ConfigDict,
        Field,
        PlainSerializer,
        PlainValidator,
        SerializationInfo,
        ValidationError,  # noqa: F401  for those that import it from here, where a missing package is named
        ValidationInfo,
        model_validator,
    )


def _from_folder(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, str):
        return value
    if "\0" in value or "$" in value:
        raise ValueError(f"{value!r} cannot be a path; a variable of the environment is written ${{NAME}}")
    return joined(info.context or Path(), os.path.expanduser(value))


def _on_this_machine(value: Any, info: ValidationInfo) -> Any:
    path = _from_folder(value, info)
    if isinstance(path, Url):
        raise ValueError(f"expected a file or folder on this machine, not the URL {path}: copy it here")
    return path


def _anywhere(value: Any, info: ValidationInfo) -> Any:
    path = _from_folder(value, info)
    if not isinstance(path, Location):
        raise ValueError(f"expected a path or a URL, not {value!r}")
    return path


def _with_folder(name: str, info: SerializationInfo) -> str:
    file, _, function = name.rpartition(":")
    return f"{info.context / file}:{function}" if info.context and file.endswith(".py") else name


#: A path, relative to the folder of the file of settings, which is the context of a validation.
LocalPath = Annotated[Path, BeforeValidator(_on_this_machine)]
#: The same, or a URL of an object in a store.
AnyPath = Annotated[Location, PlainValidator(_anywhere), PlainSerializer(str)]
#: A function by its name; serialized with a whole path, where the context is that folder.
FunctionName = Annotated[str, PlainSerializer(_with_folder)]
PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]


class Settings(BaseModel):
    """Keys and values of a file, or of a part of it."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    #: The key that a plain text or path in place of keys and values stands for.
    short: ClassVar[str | None] = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {cls.short: value} if cls.short is not None and isinstance(value, str | Location) else value


class FunctionSettings(Settings):
    """A function by name, with its options beside the name."""

    model_config = ConfigDict(extra="allow")
    short = "name"

    name: FunctionName

    @property
    def options(self) -> dict[str, Any]:
        """What stands beside the keys of this model."""
        return dict(self.model_extra or {})


class ModelSettings(Settings):
    """A network: its file, or keys and values."""

    short = "file"

    file: LocalPath
    """The ONNX file."""
    static: dict[str, Any] = {}
    """Values of inputs that are fixed while the model is compiled, by name."""
    state: dict[str, str] | None = None
    """State inputs, each with the output that updates it, where the file leaves it open; `{}` for no state."""
