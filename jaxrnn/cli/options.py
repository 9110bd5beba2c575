"""Options that several commands share: each group is one argument of the command that takes it."""

from __future__ import annotations

import functools
import inspect
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jaxrnn._files.files import check_writable
from jaxrnn.cli.errors import ask_for_json
from jaxrnn.cli.files import load_array

if TYPE_CHECKING:
    from jaxrnn.model import Model

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]


def grouped(name: str, make: Callable[..., Any], *options: Decorator) -> Decorator:
    """Options whose values a command takes as one argument.

    Args:
        name: of the argument.
        make: makes it of the values of the options, which are its parameters.
        options: in the order of the help.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(*args: Any, **values: Any) -> Any:
            taken = {key: values.pop(key) for key in inspect.signature(make).parameters if key in values}
            return command(*args, **{name: make(**taken)}, **values)

        return functools.reduce(lambda result, option: option(result), reversed(options), run)

    return decorate


def parsed(parse: Callable[[Any], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """A callback that makes of an option's value what the command takes."""
    return lambda ctx, parameter, value: None if value is None else parse(value)


class NumberRange(click.FloatRange):
    """A number in a range; NaN, which no comparison refuses, and infinities are none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number, or a usage error."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a number.", param, ctx)
        return number


def _json(ctx: click.Context, parameter: click.Parameter, chosen: bool) -> None:
    if chosen:
        ask_for_json(ctx)


json_option = click.option(
    "--json",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_json,
    help="Print one JSON object on standard output, and nothing else.",
)


def output_option(metavar: str, text: str, *, required: bool = False) -> Decorator:
    """The option ``--output``: a file in a folder that is there."""
    return click.option(
        "--output",
        "-o",
        metavar=metavar,
        required=required,
        type=click.Path(path_type=Path),
        callback=parsed(writable),
        help=text,
    )


def writable(path: Path) -> Path:
    """A file that can be written, or a usage error."""
    check_writable(path)
    return path


def split_pairs(pairs: Sequence[str]) -> dict[str, str]:
    """``NAME=VALUE`` arguments as a dict; the name ends at the first ``=``."""
    result: dict[str, str] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if not name or not value:
            raise click.BadParameter(f"{pair!r} is not of the form NAME=VALUE")
        if name in result:
            raise click.BadParameter(f"{name!r} is given twice")
        result[name] = value
    return result


#: Where a command's context keeps the names and multiples that ``--dim`` gives beside sizes.
DIMENSION_NAMES = "jaxrnn.dimension_names"


def _dimension_names() -> dict[str, str]:
    context = click.get_current_context(silent=True)
    return {} if context is None else dict(context.meta.get(DIMENSION_NAMES, {}))


@dataclass(frozen=True)
class ModelFile:
    """What ``FILE``, ``--static``, ``--state`` and the names of ``--dim`` say.

    Attributes:
        path: the file.
        static: values of inputs that are fixed, by name.
        state: outputs by the state inputs that they update; None where nothing is said.
        dims: other names of open dimensions, and multiples of them.
    """

    path: Path
    static: dict[str, Any]
    state: dict[str, str] | None = None
    dims: dict[str, str] = field(default_factory=_dimension_names, init=False)

    def load(self) -> Model:
        """The model in the file."""
        from jaxrnn.model.loading import load

        return load(self.path, static=self.static, state=self.state, dims=self.dims)


def _static(pairs: Sequence[str]) -> dict[str, Any]:
    return {name: _static_value(name, text) for name, text in split_pairs(pairs).items()}


def _static_value(name: str, text: str) -> Any:
    if text.endswith(".npy"):
        return load_array(Path(text))
    try:
        return json.loads(text)
    except ValueError:
        message = f"{name}: {text!r} is neither a number, nor a JSON list, nor a .npy file"
        raise click.BadParameter(message) from None


def _state(pairs: Sequence[str]) -> dict[str, str] | None:
    return {} if list(pairs) == ["none"] else split_pairs(pairs) or None


file_argument = click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
_static_option = click.option(
    "--static",
    metavar="NAME=VALUE",
    multiple=True,
    callback=parsed(_static),
    help="Fix an input at compile time: a number, a JSON list, or a .npy file. Needed if a shape or a branch depends "
    "on it. Example: --static sr=16000.",
)
state_option = click.option(
    "--state",
    metavar="INPUT=OUTPUT",
    multiple=True,
    callback=parsed(_state),
    help="Name the output that carries the new value of a state input, where the file leaves it open; 'none' if there "
    "is no state.",
)
#: ``FILE`` and ``--static``, and with ``--state``, as the argument ``file``.
stateless_file = grouped("file", ModelFile, file_argument, _static_option)
model_file = grouped("file", ModelFile, file_argument, _static_option, state_option)
