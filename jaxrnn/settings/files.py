"""Files of settings: OmegaConf reads the file and applies overrides, and a pydantic model validates the values."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml
from omegaconf import Container, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from jaxrnn._files.files import check_regular
from jaxrnn.errors import InputError, JaxrnnError
from jaxrnn.settings.functions import check_options, find_function
from jaxrnn.settings.models import Keys, Settings, SettingsError, dotted, keys_at, mistakes_of, shown

#: New values for keys of a file: texts ``key.sub=value`` with the value in YAML, or values by ``key.sub``.
Overrides = Sequence[str] | Mapping[str, Any]
Model = TypeVar("Model", bound=Settings)

#: Deepest nesting of lists and mappings, which the YAML library reads by recursion in C without a limit.
MAX_DEPTH = 50


class SettingsFile(Generic[Model]):
    """The settings in a YAML file, validated by a model of its keys.

    Values may contain ``${VARIABLE}`` and ``${VARIABLE:-default}``; ``overrides`` replace values of the file. An
    InputError has one line per mistake, with the file, the key, the expected and the actual value, or the nearest key.
    """

    def __init__(self, model: type[Model], path: str | os.PathLike[str], overrides: Overrides = ()):
        self.path = Path(path)
        self.folder = self.path.resolve().parent
        config = _read(self.path)
        for assignment in overrides:
            with _mistakes_in(f"--set {assignment}"):
                if isinstance(overrides, Mapping):
                    key, value = assignment, overrides[assignment]
                else:
                    key, equals, text = assignment.partition("=")
                    if not equals:
                        raise InputError("expected KEY=VALUE or KEY.KEY=VALUE")
                    value = OmegaConf.from_dotlist([f"value={_filled_in(text)}"])["value"]
                    key = key.strip()
                _put(config, key, value)
        with _mistakes_in(str(self.path)):
            values = OmegaConf.to_container(config, resolve=True)
        with self.at():
            try:
                self.settings = model.model_validate(values, context=self.folder)
            except ValidationError as error:
                raise mistakes_of(error, values, lambda keys: keys_at(model, keys)) from error

    @contextlib.contextmanager
    def at(self, *keys: str | int) -> Iterator[None]:
        """Prefix errors inside the context with these keys of the file."""
        try:
            yield
        except SettingsError as error:
            raise InputError("\n".join(self._line((*keys, *rest), text) for rest, text in error.mistakes)) from error
        except JaxrnnError as error:
            raise type(error)(self._line(keys, str(error))) from error

    def call(self, function: str, arguments: Mapping[str, Any], *keys: str | int) -> Any:
        """Call the function that the file names below the keys, with its arguments."""
        with self.at(*keys, "function"):
            make = find_function(function, self.folder)
        with self.at(*keys, "arguments"):
            options = check_options(make, arguments, folder=self.folder)
        return make(**options)

    def _line(self, keys: Keys, text: str) -> str:
        return ": ".join(filter(None, (str(self.path), dotted(keys), text)))

    def to_yaml(self) -> str:
        """Return all settings as YAML, with defaults, overrides and variables. Paths are absolute (not in options)."""
        values = self.settings.model_dump(mode="json", context=self.folder)
        head = f"# All settings of {self.path}; paths among options of functions are relative to {self.folder}\n"
        return head + yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _read(path: Path) -> DictConfig:
    try:
        text = check_regular(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file in UTF-8") from error
    with _mistakes_in(str(path)):
        config = OmegaConf.create(_filled_in(text))
        if not isinstance(config, DictConfig):
            raise InputError("expected keys and values, such as 'model: net.onnx', not a list")
    return config


def _put(config: DictConfig, key: str, value: Any) -> None:
    parts = re.split(r"(?<!\\)\.", key)
    if not all(parts):
        raise InputError("expected KEY=VALUE or KEY.KEY=VALUE")
    for count in range(1, len(parts)):
        outer = ".".join(parts[:count])
        parent = OmegaConf.select(config, outer)
        if parent is not None and not isinstance(parent, Container):
            raise InputError(f"{outer} is {shown(parent)}, without keys of its own")
    OmegaConf.update(config, key, value, merge=False)


def _filled_in(text: str) -> str:
    events, depth = [], 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise InputError(f"line {event.start_mark.line + 1}: lists and mappings nest more than {MAX_DEPTH} deep")
        if isinstance(event, yaml.ScalarEvent):
            event.value = _VARIABLE.sub(_value_of, event.value)
        events.append(event)
    # Unchanged text keeps the line numbers of errors.
    return yaml.emit(events, allow_unicode=True) if _VARIABLE.search(text) else text


_VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?::-(?P<default>[^}]*))?\}")


def _value_of(variable: re.Match[str]) -> str:
    value = os.environ.get(variable["name"]) or variable["default"]
    if value is None:
        name = variable["name"]
        raise InputError(f"the environment variable {name} is not set; set it, or write ${{{name}:-default}}")
    return value


@contextlib.contextmanager
def _mistakes_in(label: str) -> Iterator[None]:
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}" if mark else ""
        raise InputError(f"{label}{where}: {(error.problem or str(error.context)).splitlines()[0]}") from error
    except InputError as error:
        raise InputError(f"{label}: {error}") from error
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, LookupError, RecursionError, AssertionError) as error:
        raise InputError(f"{label} cannot be understood: {str(error).partition(chr(10))[0] or 'no keys'}") from error
