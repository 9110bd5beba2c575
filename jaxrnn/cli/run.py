"""``jaxrnn run``: compute the outputs of a model for inputs from files or random inputs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from jaxrnn.cli.commands import Option, command
from jaxrnn.cli.options import OUTPUT, RandomInputs, StatelessFile, new_file
from jaxrnn.cli.output import Block, Table, busy, fields, random_line, show
from jaxrnn.cli.stream_options import Sound, described

if TYPE_CHECKING:
    import numpy as np


@command
def run(
    *,
    file: StatelessFile,
    given: RandomInputs,
    output: Annotated[Path, new_file("OUT.npz", *OUTPUT)] | None = None,
    sound: Sound,
    symbol: Annotated[str, Option(metavar="NAME")] | None = None,
) -> None:
    """Run a model once and show the outputs.

    Inputs are read from .npy files, from one .npz file, or drawn at random. Their dtypes and shapes must be those of
    the file. State that is not given is the state before the first frame. Dtypes that NumPy does not have, such as
    bfloat16, are stored as raw bytes and read back in the same way.

    Examples:
      jaxrnn run model.onnx --input features=x.npy --input h=h.npy --output out.npz
      jaxrnn run model.onnx --random --dim S=50
      jaxrnn run vad.onnx --static sr=16000 --inputs frame.npz --json

    Args:
        output: Write the outputs by name. The file appears once it is complete.
        symbol: With --stft: the dimension of an offline network that is time, in frames.
    """
    import numpy as np

    from jaxrnn.cli.arrays import save_outputs
    from jaxrnn.model.streaming import first_states
    from jaxrnn.verification.sampling import random_inputs

    if symbol is not None and not sound:
        raise click.UsageError("--symbol needs --stft SAMPLES: other models run on whole arrays")
    model = sound.load(file, symbol)
    arrays = given.of(model.inputs)
    if not sound and not given.random:
        arrays |= first_states(model, model.inputs, arrays)
    sample = random_inputs(model, arrays, dims=given.dims, seed=given.seed) if given.random else None
    start = time.perf_counter()
    with busy(f"running {file.path.name}"), sample.naming_assumptions() if sample else nullcontext():
        outputs = model(sample.inputs if sample else arrays)
        # Items of a sequence are called NAME[INDEX].
        named = [pair for info in model.outputs for pair in _arrays(info.name, outputs[info.name])]
        results = {name: np.asarray(array) for name, array in named}
    seconds = time.perf_counter() - start
    if output is not None:
        save_outputs(output, results, given.rate)
    result = {
        "model": str(file.path),
        "sound": described(model),
        "dims": sample.dims if sample else {},
        "random": sample.random if sample else [],
        "seconds": seconds,
        "outputs": [describe_array(name, array) for name, array in results.items()],
        "output": None if output is None else str(output),
    }
    show(result, lambda result: _report(result, given.seed))


def _report(result: Mapping[str, Any], seed: int) -> Iterator[Block]:
    yield from random_line(result, seed)
    yield from result["sound"]
    columns = fields("name", "dtype", "shape", "min", "max", "mean", "not finite")
    title = f"Outputs of {result['model']} ({result['seconds']:.2f} s with compilation)"
    yield Table(title, columns, result["outputs"])
    if result["output"] is not None:
        yield f"written to {result['output']}"


def _arrays(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _arrays(f"{name}[{index}]", item)
    elif value is not None:
        yield name, value


def describe_array(name: str, array: np.ndarray) -> dict[str, Any]:
    """Return name, dtype, shape, and minimum, maximum and mean of the finite elements (None without such elements)."""
    import numpy as np

    facts: dict[str, Any] = {"name": name, "dtype": array.dtype.name, "shape": array.shape}
    facts |= {"min": None, "max": None, "mean": None, "not_finite": 0}
    if array.dtype.kind in "OUSc" or array.size == 0:
        return facts
    numbers = array.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    facts["not_finite"] = int(numbers.size - finite.size)
    if finite.size:
        facts |= {"min": float(finite.min()), "max": float(finite.max()), "mean": float(finite.mean())}
    return facts
