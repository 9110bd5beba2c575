"""Options that several commands share: each group is one argument of the command that takes it."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from jaxrnn.cli.errors import ask_for_json
from jaxrnn.cli.files import load_archive, load_array
from jaxrnn.writing import check_writable

if TYPE_CHECKING:
    from jaxrnn.model import Model
    from jaxrnn.streaming import Streamed

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
        callback=parsed(_writable),
        help=text,
    )


def _writable(path: Path) -> Path:
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


@dataclass(frozen=True)
class ModelFile:
    """What ``FILE``, ``--static`` and ``--state`` say.

    Attributes:
        path: the file.
        static: values of inputs that are fixed, by name.
        state: outputs by the state inputs that they update; None where nothing is said.
    """

    path: Path
    static: dict[str, Any]
    state: dict[str, str] | None = None

    def load(self) -> Model:
        """The model in the file."""
        from jaxrnn.model.loading import load

        return load(self.path, static=self.static, state=self.state)


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
    help="Fix an input while the model is compiled: a number, a JSON list, or a .npy file. "
    "Needed where a shape or a branch depends on it. Example: --static sr=16000.",
)
_state_option = click.option(
    "--state",
    metavar="INPUT=OUTPUT",
    multiple=True,
    callback=parsed(_state),
    help="Say which output carries the updated value of a state input, where the file leaves it open; "
    "'none' says that there is no state.",
)
#: ``FILE`` and ``--static``, and with ``--state``, as the argument ``file``.
stateless_file = grouped("file", ModelFile, file_argument, _static_option)
model_file = grouped("file", ModelFile, file_argument, _static_option, _state_option)


def _dims(pairs: Sequence[str]) -> dict[str, tuple[int, ...]]:
    result = {}
    for name, text in split_pairs(pairs).items():
        try:
            result[name] = tuple(int(part) for part in text.split(","))
        except ValueError:
            raise click.BadParameter(f"{text!r} is not a size, such as {name}=50") from None
    return result


def _single_dims(pairs: Sequence[str]) -> dict[str, int]:
    sizes = _dims(pairs)
    for name, several in sizes.items():
        if len(several) != 1:
            raise click.BadParameter(f"{name} needs one size; only verify and export take several")
    return {name: size for name, (size,) in sizes.items()}


def dim_option(text: str, *, several: bool = False) -> Decorator:
    """The option ``--dim``: sizes by the names of open dimensions, each a tuple of sizes if there may be several."""
    return click.option(
        "--dim",
        "dims",
        metavar="NAME=SIZE,..." if several else "NAME=SIZE",
        multiple=True,
        callback=parsed(_dims if several else _single_dims),
        help=text,
    )


def seed_option(text: str = "Seed of the random inputs.") -> Decorator:
    """The option ``--seed``."""
    return click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help=text)


@dataclass(frozen=True)
class Inputs:
    """What is said of a model's inputs.

    Attributes:
        arrays: by name.
        dims: sizes of open dimensions of the random inputs, by name.
        seed: of the random inputs.
        random: whether those without an array are random.
    """

    arrays: dict[str, np.ndarray]
    dims: dict[str, Any]
    seed: int
    random: bool


def _inputs(
    input_files: dict[str, str], inputs_file: Path | None, dims: dict[str, Any], seed: int, random: bool = True
) -> Inputs:
    if dims and not random:
        raise click.UsageError("--dim sets the sizes of random inputs: it needs --random")
    arrays = {} if inputs_file is None else load_archive(inputs_file)
    arrays |= {name: load_array(Path(path)) for name, path in input_files.items()}
    return Inputs(arrays, dims, seed, random)


def input_options(*, several: bool = False, random: str | None = None) -> Decorator:
    """The options ``--input``, ``--inputs``, ``--dim``, ``--seed`` and ``--random``, as the argument ``given``.

    Args:
        several: whether a dimension may have several sizes.
        random: the help of ``--random``; None for a command whose inputs are random unless they are given.
    """
    sizes = "Sizes of an open dimension of the random inputs, each a case of its own."
    options = [
        click.option(
            "--input",
            "input_files",
            metavar="NAME=X.npy",
            multiple=True,
            callback=parsed(split_pairs),
            help="An input from a .npy file; give the option once for each input.",
        ),
        click.option(
            "--inputs",
            "inputs_file",
            metavar="X.npz",
            type=click.Path(path_type=Path),
            help="Inputs by name from one .npz file.",
        ),
        dim_option(
            f"{sizes if several else 'Size of an open dimension of the random inputs.'} Those not given are 1 where "
            "the name looks like a batch, else 16. 'jaxrnn inspect' shows the names.",
            several=several,
        ),
        seed_option(),
    ]
    if random is not None:
        options.append(click.option("--random", is_flag=True, help=random))
    return grouped("given", _inputs, *options)


@dataclass(frozen=True)
class Pulses:
    """What is said of pulses; ``symbol`` is None for a model in steps."""

    symbol: str | None
    pulse: int | None
    multiple: int
    shortest: int

    def stream(self, model: Model, symbol: str, dims: Mapping[str, int]) -> Streamed:
        """The model in these pulses of a dimension, with sizes of its other open dimensions."""
        from jaxrnn.cli.stepping import stream_model

        return stream_model(model, symbol, self.pulse, dims, self.multiple, self.shortest)


def _pulses(symbol: str | None, pulse: int | None, multiple: int | None, shortest: int | None) -> Pulses:
    check_pulse_options(symbol, {"--pulse": pulse, "--multiple": multiple, "--shortest": shortest})
    return Pulses(symbol, pulse, multiple or 1, shortest or 1)


def check_pulse_options(symbol: str | None, options: Mapping[str, Any]) -> None:
    """Refuse options about pulses, by name, where no dimension was said to be time."""
    option = next((option for option, value in options.items() if value), None)
    if symbol is None and option is not None:
        raise click.UsageError(f"{option} is about pulses: it needs --symbol NAME, the dimension that is time")


_FRAMES: dict[str, Any] = {"type": click.IntRange(min=1), "metavar": "FRAMES"}
#: The options of a command that turns a model over whole recordings into one in pulses, as the argument ``pulses``.
pulse_options = grouped(
    "pulses",
    _pulses,
    click.option(
        "--symbol",
        metavar="NAME",
        help="The open dimension of the inputs that is time: work in pulses of it. 'jaxrnn inspect' shows which can.",
    ),
    click.option(
        "--pulse",
        **_FRAMES,
        help="New input frames a step, with --symbol. [default: the fewest that fit the model's strides]",
    ),
    click.option(
        "--multiple",
        **_FRAMES,
        help="With --symbol: every recording has a multiple of so many frames, where the model works on no others.",
    ),
    click.option(
        "--shortest",
        **_FRAMES,
        help="With --symbol: no recording has fewer frames, where an error asks for such a constraint.",
    ),
)
