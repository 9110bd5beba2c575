"""Options that say what a model's inputs are: arrays from files, or random ones of a size."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from jaxrnn.cli.files import load_archive, load_array
from jaxrnn.cli.options import DIMENSION_NAMES, Decorator, grouped, parsed, split_pairs


def _dims(ctx: click.Context, pairs: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the sizes, and leave names and multiples of dimensions to `ModelFile`."""
    result, names = {}, {}
    for name, text in split_pairs(pairs).items():
        try:
            result[name] = tuple(int(part) for part in text.split(","))
        except ValueError:
            if not re.match(r"[A-Za-z_]|\d+\s*\*", text):
                message = f"{text!r} is neither a size, such as {name}=50, nor a name, such as {name}=time"
                raise click.BadParameter(message) from None
            names[name] = text
    ctx.meta[DIMENSION_NAMES] = names
    return result


def _single_dims(ctx: click.Context, pairs: Sequence[str]) -> dict[str, int]:
    sizes = _dims(ctx, pairs)
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
        callback=lambda ctx, parameter, pairs: (_dims if several else _single_dims)(ctx, pairs),
        help=f"{text} A name in place of a size renames the dimension, the same name ties several, and a multiple "
        "relates them: --dim T=4*U.",
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
            help="An input from a .npy file; once for each input.",
        ),
        click.option(
            "--inputs",
            "inputs_file",
            metavar="X.npz",
            type=click.Path(path_type=Path),
            help="Inputs by name from one .npz file.",
        ),
        dim_option(
            f"{sizes if several else 'Size of an open dimension of the random inputs.'} By default 1 if the name looks "
            "like a batch, else 16. 'jaxrnn inspect' shows the names.",
            several=several,
        ),
        seed_option(),
    ]
    if random is not None:
        options.append(click.option("--random", is_flag=True, help=random))
    return grouped("given", _inputs, *options)
