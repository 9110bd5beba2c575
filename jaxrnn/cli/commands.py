"""Commands from functions: the parameters of a function are the options of a command, and its docstring is the help.

A parameter whose type is a dataclass is a group: the fields are options. A parameter of type `Taken` has options that
are arguments of a Python function, read from the signature and the docstring of that function.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import operator
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import click

from jaxrnn._files.arguments import Argument, arguments_of, described, documented
from jaxrnn._files.readers import for_reader
from jaxrnn.cli.errors import ask_for_json


class NumberRange(click.FloatRange):
    """A finite number in a range; click's own range accepts NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or raise a usage error."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a number.", param, ctx)
        return number


class Choice(click.Choice):
    """A choice of words that suggests the nearest word."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the word, or raise a usage error."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            from jaxrnn._files.messages import near

            self.fail(error.message.rstrip(".") + near(value, self.choices), param, ctx)


@dataclasses.dataclass(frozen=True)
class Option:
    """Details of an option beside the type and the docstring; part of an annotation.

    ``names`` replace the name of the parameter, ``parse`` converts the value that click returns, ``text`` follows the
    description, and a ``positional`` option is an argument of the command.
    """

    names: tuple[str, ...] = ()
    metavar: str | None = None
    type: click.ParamType | None = None
    parse: Callable[[Any], Any] | None = None
    text: str = ""
    positional: bool = False


class Given(dict[str, Any]):
    """Arguments of a Python function that the user has given; the others are left to the function."""

    def __init__(self, **options: Any):
        super().__init__({name: value for name, value in options.items() if value not in (None, ())})


class Taken:
    """Options that are arguments of a Python function, by the name ``module:function``; the type is `Given`.

    Types, defaults and descriptions are read from the function, with ``prefix`` before descriptions of optional
    arguments. The docstring of the command replaces descriptions that have words of Python.
    """

    def __init__(self, function: str, *, prefix: str = "", **details: Option):
        self.function, self.prefix, self.details = function, prefix, details

    def arguments(self, texts: Mapping[str, str]) -> Iterator[Argument]:
        """Return the arguments, with types for a command, and with these texts for a command."""
        known = arguments_of(self.function, self.details)
        for name, details in self.details.items():
            kind, default, text = known[name].type, known[name].default, known[name].text
            needed = default is inspect.Parameter.empty
            if name in texts:
                text = texts[name]
            else:
                text = for_reader(described(text if needed else f"{self.prefix} {text}".strip()), "command")
            if default and not needed:
                text += f" [default: {default:g}]" if isinstance(default, float) else f" [default: {default}]"
            yield Argument(name, typing.Annotated[kind, details], None, text)


#: Numbers with bounds that click checks.
Count = typing.Annotated[int, Option(type=click.IntRange(1))]
FrameCount = typing.Annotated[int, Option(type=click.IntRange(1), metavar="FRAMES")]
Positive = typing.Annotated[float, Option(type=NumberRange(0, min_open=True))]
Seed = typing.Annotated[int, Option(type=click.IntRange(0))]


class _Made(NamedTuple):
    """The parameters of click for a callable, and the function of their values that calls it."""

    parameters: list[click.Parameter]
    call: Callable[[Mapping[str, Any]], Any]


def command(function: Callable[..., Any]) -> click.Command:
    """Make a command of a function, with the option ``--json``."""
    made = _made(function, _signature(function), documented(function.__doc__))
    return click.Command(
        function.__name__.rstrip("_"),
        params=[*made.parameters, _json()],
        callback=lambda **values: made.call(values),
        help=_help(function),
    )


def _made(make: Callable[..., Any], arguments: Iterator[Argument], texts: Mapping[str, str]) -> _Made:
    """Return the parameters of click for a callable; descriptions of the command, in ``texts``, come first."""
    parameters: list[click.Parameter] = []
    parts: dict[str, Callable[[Mapping[str, Any]], Any]] = {}
    for each in arguments:
        kind, details = _plain(each.type)
        group = next((detail for detail in details if isinstance(detail, Taken)), None)
        if group is not None:
            inner = _made(kind, group.arguments(texts), texts)
        elif dataclasses.is_dataclass(kind):
            inner = _made(typing.cast(Any, kind), _signature(typing.cast(Any, kind)), texts)
        else:
            each = each._replace(text=texts.get(each.name, each.text))
            parameter = _parameter(each, kind, [detail for detail in details if isinstance(detail, Option)])
            inner = _Made([parameter], operator.itemgetter(str(parameter.name)))
        parameters += inner.parameters
        parts[each.name] = inner.call
    return _Made(parameters, lambda values: make(**{name: call(values) for name, call in parts.items()}))


def _signature(make: Callable[..., Any]) -> Iterator[Argument]:
    """Return the arguments of a function or a dataclass; inherited fields have the texts of the base class."""
    hints, texts = typing.get_type_hints(make, include_extras=True), {}
    for kind in reversed(make.__mro__[:-1]) if isinstance(make, type) else [make]:
        texts |= documented(kind.__doc__)
    for each in inspect.signature(make).parameters.values():
        yield Argument(each.name, hints[each.name], each.default, texts.get(each.name, ""))


def _plain(hint: Any) -> tuple[Any, list[Any]]:
    """Return a type without None, and the details in the annotations of the type."""
    if typing.get_origin(hint) is typing.Annotated:
        kind, details = _plain(hint.__origin__)
        return kind, [*details, *hint.__metadata__]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return _plain(next(each for each in typing.get_args(hint) if each is not type(None)))
    return hint, []


def _parameter(argument: Argument, kind: Any, details: list[Option]) -> click.Parameter:
    """Return the option or the argument of click; inner details come first, outer details replace them."""
    names = [field.name for field in dataclasses.fields(Option)]
    option = Option(**{name: value for each in details for name in names if (value := getattr(each, name))})
    several = typing.get_origin(kind) in (tuple, dict)
    needed = argument.default is inspect.Parameter.empty and not several
    common: dict[str, Any] = {"metavar": option.metavar}
    if kind is not bool:
        common["type"] = option.type or _type(typing.get_args(kind)[0] if several else kind)
    if (parse := option.parse) is not None:
        common["callback"] = lambda ctx, parameter, value: None if value is None else parse(value)
    if option.positional:
        return click.Argument([argument.name], **common)
    spelled = option.names or ("--" + argument.name.replace("_", "-"),)
    default = None if needed or several else argument.default
    if not needed:  # for click, None as a default is a value
        common["default"] = default
    return click.Option(
        [argument.name, *spelled],
        **common,
        is_flag=kind is bool,
        multiple=several,
        required=needed,
        show_default=default is not None and (kind is not bool or "/" in spelled[0]),
        help=f"{argument.text} {option.text}".strip(),
    )


def _type(kind: Any) -> click.ParamType | type:
    if typing.get_origin(kind) is Literal:
        return Choice(typing.get_args(kind))
    if kind is Path:
        return click.Path(path_type=Path)
    return NumberRange() if kind is float else kind


def _json() -> click.Option:
    return click.Option(
        ["--json"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=lambda ctx, parameter, chosen: ask_for_json(ctx) if chosen else None,
        help="Print one JSON object on standard output, and nothing else.",
    )


def _help(function: Callable[..., Any]) -> str:
    """Return the docstring up to the arguments; paragraphs with indented lines, such as examples, keep their lines."""
    text = inspect.cleandoc(function.__doc__ or "").partition("\n\nArgs:\n")[0]
    return "\n\n".join(f"\b\n{each}" if "\n  " in f"\n{each}" else each for each in text.split("\n\n"))
