"""``jaxrnn run``: a model's outputs for inputs from files, or random ones."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from jaxrnn.cli.options import (
    check_folder,
    input_options,
    json_option,
    load_inputs,
    model_argument,
    parse_static,
    save_archive,
    single_dims,
)
from jaxrnn.cli.output import busy, console, number, print_json, print_table, shape_text

if TYPE_CHECKING:
    from jaxrnn.model import Model
    from jaxrnn.verification.sampling import Sample


@click.command()
@model_argument
@input_options
@click.option("--random", "use_random", is_flag=True, help="Make the inputs that are not given at random.")
@click.option(
    "--output",
    "-o",
    metavar="OUT.npz",
    type=click.Path(path_type=Path),
    help="Write the outputs by name. The file appears when it is complete.",
)
@json_option
def run(
    file: Path,
    input_files: tuple[str, ...],
    inputs_file: Path | None,
    static: tuple[str, ...],
    dims: tuple[str, ...],
    seed: int,
    use_random: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Run a model once and show its outputs.

    Inputs come from .npy files, from one .npz file, or at random; their element types and shapes must be those of the
    file. A type that NumPy does not know, such as bfloat16, is stored as raw bytes and read back the same way.

    \b
    Examples:
      jaxrnn run model.onnx --input features=x.npy --input h=h.npy --output out.npz
      jaxrnn run model.onnx --random --dim S=50
      jaxrnn run vad.onnx --static sr=16000 --inputs frame.npz --json
    """  # noqa: D301
    from jaxrnn.model.loading import load
    from jaxrnn.verification.sampling import random_inputs, restore_types

    if output is not None:
        check_folder(output)
    given, sizes = load_inputs(input_files, inputs_file), single_dims(dims)
    if sizes and not use_random:
        raise click.UsageError("--dim sets the sizes of random inputs: it needs --random")
    model = load(file, static=parse_static(static))
    given = restore_types(model.inputs, given)
    sample = random_inputs(model, given, dims=sizes, seed=seed) if use_random else None
    start = time.perf_counter()
    with busy(f"running {file.name}"):
        results = _evaluate(model, given, sample)
    seconds = time.perf_counter() - start
    if output is not None:
        save_archive(output, results)
    facts = [describe_array(name, array) for name, array in results.items()]
    if as_json:
        print_json(
            {
                "model": str(file),
                "dims": sample.dims if sample else {},
                "random": sample.random if sample else [],
                "seconds": seconds,
                "outputs": facts,
                "output": None if output is None else str(output),
            }
        )
        return
    out = console()
    if sample and sample.random:
        dims_text = "".join(f", {name}={size}" for name, size in sample.dims.items())
        out.print(f"random: {', '.join(sample.random)} (seed {seed}{dims_text})")
    print_table(
        out,
        f"Outputs of {file} ({seconds:.2f} s with compilation)",
        ("name", "dtype", "shape", "min", "max", "mean", "not finite"),
        [
            (
                fact["name"],
                fact["dtype"],
                shape_text(fact["shape"]),
                *(number(fact[key]) for key in ("min", "max", "mean")),
                fact["not_finite"] or "",
            )
            for fact in facts
        ],
        right=("min", "max", "mean", "not finite"),
    )
    if output is not None:
        out.print(f"written to {output}")


def _evaluate(model: Model, given: Mapping[str, Any], sample: Sample | None) -> dict[str, np.ndarray]:
    """The outputs as NumPy arrays; the items of a sequence get an index after their name."""
    if sample is None:
        outputs = model(given)
    else:
        with sample.blamed():
            outputs = model(sample.inputs)
    named = (pair for info in model.outputs for pair in _arrays(info.name, outputs[info.name]))
    return {name: np.asarray(array) for name, array in named}


def _arrays(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _arrays(f"{name}[{index}]", item)
    elif value is not None:
        yield name, value


def describe_array(name: str, array: np.ndarray) -> dict[str, Any]:
    """Name, dtype, shape, and the least, largest and mean of the finite elements, None where there are none."""
    facts: dict[str, Any] = {"name": name, "dtype": array.dtype.name, "shape": list(array.shape)}
    facts |= {"min": None, "max": None, "mean": None, "not_finite": 0}
    if array.dtype.kind in "OUSc" or array.size == 0:
        return facts
    numbers = array.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    facts["not_finite"] = int(numbers.size - finite.size)
    if finite.size:
        facts |= {"min": float(finite.min()), "max": float(finite.max()), "mean": float(finite.mean())}
    return facts
