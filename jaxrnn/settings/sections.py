"""Sections of configuration files: what every one of them has in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar

from jaxrnn.errors import MissingPackageError

try:
    from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo
    from pydantic import model_validator as validator
except ImportError as error:
    raise MissingPackageError(
        "a configuration file needs pydantic: pip install 'jaxrnn[train]' or 'jaxrnn[evaluate]'"
    ) from error

from jaxrnn.settings.source import Source


def _expand(value: Any, info: ValidationInfo) -> Any:
    return info.context.expand(value) if isinstance(value, str) and isinstance(info.context, Source) else value


#: A path in a configuration: relative to its file, with variables of the environment.
ConfigPath = Annotated[Path, BeforeValidator(_expand)]
PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]


class Section(BaseModel):
    """A mapping with known keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    #: The key that a plain value in place of the mapping stands for.
    short: ClassVar[str | None] = None

    @validator(mode="before")
    @classmethod
    def _from_plain_value(cls, value: Any) -> Any:
        return {cls.short: value} if cls.short is not None and isinstance(value, str) else value


class Called(Section):
    """A function by name, and its options beside the name; or the name alone."""

    model_config = ConfigDict(extra="allow")
    short = "name"

    name: str

    @property
    def options(self) -> dict[str, Any]:
        """What stands beside the name."""
        return dict(self.model_extra or {})


class ModelFile(Section):
    """The network: its file, inputs that are fixed, and pairs of state input and output; or the file alone."""

    short = "file"

    file: ConfigPath
    static: dict[str, Any] = {}
    state: dict[str, str] | None = None
