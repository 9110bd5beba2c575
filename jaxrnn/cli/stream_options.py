"""Options that several commands share, and reading and writing the files that they name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from jaxrnn.cli.files import load_archive, load_array

#: Steps or pulses over random inputs, if nobody asks for another number.
STEPS = 500

model_argument = click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
static_option = click.option(
    "--static",
    metavar="NAME=VALUE",
    multiple=True,
    help="Fix an input while the model is compiled: a number, a JSON list, or a .npy file. "
    "Needed where a shape or a branch depends on it. Example: --static sr=16000.",
)
state_option = click.option(
    "--state",
    "pairs",
    metavar="INPUT=OUTPUT",
    multiple=True,
    help="Say which output carries the updated value of a state input, where the file leaves it open; "
    "'none' says that there is no state.",
)


def input_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options ``--input``, ``--inputs``, ``--static``, ``--dim`` and ``--seed``."""
    options = [
        click.option(
            "--input",
            "input_files",
            metavar="NAME=X.npy",
            multiple=True,
            help="An input from a .npy file; give the option once for each input.",
        ),
        click.option(
            "--inputs",
            "inputs_file",
            metavar="X.npz",
            type=click.Path(path_type=Path),
            help="Inputs by name from one .npz file.",
        ),
        static_option,
        click.option(
            "--dim",
            "dims",
            metavar="NAME=SIZE",
            multiple=True,
            help="Size of an open dimension of the random inputs. Those not given are 1 where the name looks like a "
            "batch, else 16. 'jaxrnn inspect' shows the names.",
        ),
        click.option(
            "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the random inputs."
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def split_pairs(option: str, pairs: Sequence[str]) -> dict[str, str]:
    """``NAME=VALUE`` arguments as a dict; the name ends at the first ``=``."""
    result: dict[str, str] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if not name or not value:
            raise click.BadParameter(f"{pair!r} is not of the form NAME=VALUE", param_hint=option)
        if name in result:
            raise click.BadParameter(f"{name!r} is given twice", param_hint=option)
        result[name] = value
    return result


def parse_state(pairs: Sequence[str]) -> dict[str, str] | None:
    """``--state INPUT=OUTPUT`` as pairs; None where nothing was said, and no pairs for ``--state none``."""
    if list(pairs) == ["none"]:
        return {}
    return split_pairs("--state", pairs) or None


def parse_dims(pairs: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """``--dim S=20,50`` as sizes by name."""
    result = {}
    for name, text in split_pairs("--dim", pairs).items():
        try:
            result[name] = tuple(int(part) for part in text.split(","))
        except ValueError:
            raise click.BadParameter(f"{text!r} is not a size, such as {name}=50", param_hint="--dim") from None
    return result


def single_dims(pairs: Sequence[str]) -> dict[str, int]:
    """``--dim S=20`` as one size by name."""
    parsed = parse_dims(pairs)
    for name, sizes in parsed.items():
        if len(sizes) != 1:
            raise click.BadParameter(f"{name} needs one size; only verify takes several", param_hint="--dim")
    return {name: size for name, (size,) in parsed.items()}


def parse_static(pairs: Sequence[str]) -> dict[str, Any]:
    """``--static NAME=VALUE`` as values by name."""
    result: dict[str, Any] = {}
    for name, text in split_pairs("--static", pairs).items():
        if text.endswith(".npy"):
            result[name] = load_array(Path(text))
            continue
        try:
            result[name] = json.loads(text)
        except ValueError:
            raise click.BadParameter(
                f"{name}: {text!r} is neither a number, nor a JSON list, nor a .npy file", param_hint="--static"
            ) from None
    return result


def load_inputs(files: Sequence[str], archive: Path | None) -> dict[str, np.ndarray]:
    """The arrays of ``--inputs`` and ``--input``, the latter having the last word.

    Raises:
        InputError: a file is missing or holds no arrays.
    """
    arrays = load_archive(archive) if archive is not None else {}
    for name, path in split_pairs("--input", files).items():
        arrays[name] = load_array(Path(path))
    return arrays


def pulse_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a command that turns a model over whole recordings into one that runs in pulses."""
    frames = {"type": click.IntRange(min=1), "metavar": "FRAMES"}
    for option in (
        click.option(
            "--shortest",
            **frames,
            help="With --symbol: no recording has fewer frames, where an error asks for such a constraint.",
        ),
        click.option(
            "--multiple",
            **frames,
            help="With --symbol: every recording has a multiple of so many frames, where the model works on no others.",
        ),
        click.option(
            "--pulse",
            **frames,
            help="New input frames a step, with --symbol. [default: the fewest that fit the model's strides]",
        ),
        click.option(
            "--symbol",
            metavar="NAME",
            help="The open dimension of the inputs that is time: work in pulses of it. 'jaxrnn inspect' shows which "
            "can.",
        ),
    ):
        command = option(command)
    return command


def check_pulse_options(symbol: str | None, options: Mapping[str, Any]) -> None:
    """Refuse options about pulses, by name, where no dimension was said to be time."""
    option = next((option for option, value in options.items() if value), None)
    if symbol is None and option is not None:
        raise click.UsageError(f"{option} is about pulses: it needs --symbol NAME, the dimension that is time")
