"""Files of settings: OmegaConf reads the file and applies overrides, and a pydantic model validates the values."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import yaml
from omegaconf import Container, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError, create_model

from jaxrnn._files.readers import for_reader
from jaxrnn._files.stores import check_regular, local_path
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
    Mistakes in values are raised when `settings` is read, or with further mistakes by `together`.
    """

    def __init__(self, model: type[Model], path: str | os.PathLike[str], overrides: Overrides = ()):
        self.path = local_path(path)
        self.folder = self.path.resolve().parent
        config = _read(self.path)
        refused = []
        for assignment in overrides:
            try:
                _override(config, assignment, overrides)
            except InputError as error:
                refused.append(str(error))
        if refused:
            raise InputError("\n".join(refused))
        with _mistakes_in(str(self.path)):
            values = cast(dict[Any, Any], OmegaConf.to_container(config, resolve=True))
        self._mistakes: list[str] = []
        self._collecting = False
        self._settings = self._validated(model, values)

    def _validated(self, model: type[Model], values: dict[Any, Any]) -> Model:
        """Return the settings, and collect mistakes. Reading a faulty key of the result raises an error."""
        try:
            return model.model_validate(values, context=self.folder)
        except ValidationError as error:
            found = mistakes_of(error, values, lambda keys: keys_at(model, keys)).mistakes
        faulty = {str(keys[0]) for keys, _ in found if keys}
        fields: Any = dict.fromkeys(model.model_fields.keys() & faulty, (Any, None))
        without_rules: Any = create_model(model.__name__, __base__=model, **fields)
        without_rules.check_rules = lambda self: None
        known = {key: value for key, value in values.items() if key in model.model_fields}
        partial = cast(Model, _Partial(without_rules.model_validate(known, context=self.folder), faulty))
        # pydantic checks rules between keys only if all keys are valid. An unknown key may be a misspelling of a key
        # that a rule needs, so rules are not checked then.
        if faulty and faulty <= model.model_fields.keys():
            try:
                model.check_rules(partial)
            except _FaultyKeyError:
                pass
            except ValueError as error:
                found = [*found, ((), str(error))]
        self._mistakes = [self._line(keys, text) for keys, text in found]
        return partial

    @property
    def settings(self) -> Model:
        """The validated settings. If the file has mistakes, reading them raises an InputError."""
        if self._mistakes and not self._collecting:
            raise InputError("\n".join(self._mistakes))
        return self._settings

    def together(self, parts: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        """Call all parts, and return a dict of their results.

        A part may call this method for inner parts. A part that reads a faulty key ends there. An InputError has the
        mistakes of the file and of all parts, each on a line.
        """
        results: dict[str, Any] = {}
        errors: list[JaxrnnError] = []
        inside, self._collecting = self._collecting, True
        try:
            for name, part in parts.items():
                try:
                    results[name] = part()
                except _FaultyKeyError:
                    continue
                except JaxrnnError as error:
                    errors.append(error)
        finally:
            self._collecting = inside
        mistakes = [] if inside else self._mistakes
        if errors and len(errors) + len(mistakes) == 1:
            raise errors[0]
        if errors or mistakes:
            raise InputError("\n".join([*mistakes, *map(str, errors)]))
        return results

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
        """Call a function with the name and the arguments that the file has below the keys."""
        with self.at(*keys, "function"):
            make = find_function(function, self.folder)
        with self.at(*keys, "arguments"):
            options = check_options(make, arguments, folder=self.folder)
        return make(**options)

    def _line(self, keys: Keys, text: str) -> str:
        return ": ".join(filter(None, (str(self.path), dotted(keys), for_reader(text, "settings"))))

    def to_yaml(self) -> str:
        """Return all settings as YAML, with defaults, overrides and variables. Paths are absolute (not in options)."""
        values = self.settings.model_dump(mode="json", context=self.folder)
        head = f"# All settings of {self.path}; paths among options of functions are relative to {self.folder}\n"
        return head + yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def keys_of(path: str | os.PathLike[str]) -> list[str]:
    """Return the outer keys of a file of settings, which tell what the file describes."""
    return [str(key) for key in _read(local_path(path))]


class _FaultyKeyError(Exception):
    """A part has read a faulty key, whose mistake is reported separately."""


class _Partial:
    """Settings without the keys that have mistakes."""

    def __init__(self, settings: Settings, faulty: set[str]):
        self._settings, self._faulty = settings, faulty

    def __getattr__(self, key: str) -> Any:
        if key in self._faulty:
            raise _FaultyKeyError(key)
        return getattr(self._settings, key)


#: The limit of a file of settings in bytes.
_MOST = 2**24


def _read(path: Path) -> DictConfig:
    try:
        text = check_regular(path, _MOST).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file in UTF-8") from error
    with _mistakes_in(str(path)):
        config = OmegaConf.create(_filled_in(text))
        if not isinstance(config, DictConfig):
            raise InputError("expected keys and values, such as 'model: net.onnx', not a list")
    return config


def _override(config: DictConfig, assignment: str, overrides: Overrides) -> None:
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
    value = os.environ.get(variable["name"])
    if not value and variable["default"] is not None:
        return variable["default"]
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
