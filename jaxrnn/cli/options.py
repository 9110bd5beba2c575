"""Options that several commands share. Each group of options is one argument of the command."""

from __future__ import annotations

import functools
import inspect
import json
import math
import pkgutil
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from jaxrnn._files.arguments import writing_for
from jaxrnn._files.arrays import read_arrays
from jaxrnn._files.stores import check_writable
from jaxrnn._files.writing import in_place_of
from jaxrnn.cli.errors import ask_for_json, echo
from jaxrnn.errors import InputError

if TYPE_CHECKING:
    from jaxrnn.model import Model
    from jaxrnn.steps.specs import ArraySpec

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]


def grouped(name: str, make: Callable[..., Any], *options: Decorator) -> Decorator:
    """Combine options into one argument of a command.

    ``make`` receives the values of the options by parameter name, and returns the value of the argument ``name``. The
    order of ``options`` is the order in the help.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(*args: Any, **values: Any) -> Any:
            taken = {key: values.pop(key) for key in inspect.signature(make).parameters if key in values}
            return command(*args, **{name: make(**taken)}, **values)

        return functools.reduce(lambda result, option: option(result), reversed(options), run)

    return decorate


def parsed(parse: Callable[[Any], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return a callback that converts the value of an option."""
    return lambda ctx, parameter, value: None if value is None else parse(value)


def refuse(options: Mapping[str, Any], because: str) -> None:
    """Raise a usage error about the first option with a value, which ``because`` continues."""
    option = next((option for option, value in options.items() if value is not None and value is not False), None)
    if option is not None:
        raise click.UsageError(f"{option} {because}")


class NumberRange(click.FloatRange):
    """A finite number in a range; click's own range accepts NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or raise a usage error."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a number.", param, ctx)
        return number


#: A number of frames.
FRAMES: dict[str, Any] = {"type": click.IntRange(min=1), "metavar": "FRAMES"}
json_option = click.option(
    "--json",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda ctx, parameter, chosen: ask_for_json(ctx) if chosen else None,
    help="Print one JSON object on standard output, and nothing else.",
)


#: By the ending of an option's metavar: the endings of names, and the rule in words.
_ENDINGS = {
    ".onnx": ((".onnx",), "must end in .onnx, by which engines recognise the format"),
    ".npz": ((".npz", ".wav"), "must end in .npz, or for sound in .wav"),
}


#: The placeholder of an option for a folder, which may exist.
FOLDER = "FOLDER"


def path_option(names: Sequence[str], metavar: str, text: str, *, required: bool = False) -> Decorator:
    """Return an option for a file or folder to write, in an existing folder."""
    endings, rule = _ENDINGS.get(Path(metavar).suffix, ((), ""))

    def writable(path: Path) -> Path:
        if metavar != FOLDER or not path.is_dir():
            check_writable(path)
        if endings and path.suffix.lower() not in endings:
            raise click.BadParameter(f"{path.name!r} {rule}")
        return path

    return click.option(
        *names,
        metavar=metavar,
        required=required,
        type=click.Path(path_type=Path),
        callback=parsed(writable),
        help=text,
    )


#: The option ``--output``.
output_option = functools.partial(path_option, ("--output", "-o"))


def split_pairs(pairs: Sequence[str], form: str = "NAME=VALUE") -> dict[str, str]:
    """Return arguments of a form such as ``NAME=VALUE`` as a dict. A name ends at the first ``=``."""
    result: dict[str, str] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if not name or not value:
            raise click.BadParameter(f"{pair!r} is not of the form {form}")
        if name in result:
            raise click.BadParameter(f"{name!r} is given twice")
        result[name] = value
    return result


#: The key of click's context for names and multiples given with ``--dim``.
DIMENSION_NAMES = "jaxrnn.dimension_names"


def _dimension_names() -> dict[str, str]:
    context = click.get_current_context(silent=True)
    return {} if context is None else dict(context.meta.get(DIMENSION_NAMES, {}))


@dataclass(frozen=True)
class ModelFile:
    """A model's file with the values of ``--static``, ``--state`` and ``--dim``.

    ``state`` maps state inputs to the outputs that update them; None leaves the choice to `jaxrnn.load`.
    """

    path: Path
    static: dict[str, Any]
    state: dict[str, str] | None = None
    dims: dict[str, str] = field(default_factory=_dimension_names, init=False)

    def load(self) -> Model:
        """Load the model."""
        from jaxrnn.model.loading import load

        return load(self.path, static=self.static, state=self.state, dims=self.dims)

    @property
    def has_steps(self) -> bool:
        """Return True if callers carry the state of the model, so that a step can be exported."""
        return {variable.kind for variable in self.load().state} == {"external"}


def _static_value(name: str, text: str) -> Any:
    if text.endswith(".npy"):
        return load_array(Path(text))
    try:
        return json.loads(text)
    except ValueError:
        message = f"{name}: {text!r} is neither a number, nor a JSON list, nor a .npy file"
        raise click.BadParameter(message) from None


file_argument = click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
_static_option = click.option(
    "--static",
    metavar="NAME=VALUE",
    multiple=True,
    callback=parsed(lambda pairs: {name: _static_value(name, text) for name, text in split_pairs(pairs).items()}),
    help="Fix an input at compile time: a number, a JSON list, or a .npy file. Needed for inputs on which shapes or "
    "branches depend. Example: --static sr=16000.",
)
state_option = click.option(
    "--state",
    metavar="INPUT=OUTPUT",
    multiple=True,
    callback=parsed(lambda pairs: {} if list(pairs) == ["none"] else split_pairs(pairs, "INPUT=OUTPUT") or None),
    help="Name the output with the new value of a state input, if the file is ambiguous; 'none' if there is no state.",
)
#: ``FILE`` and ``--static`` as the argument ``file``; `model_file` adds ``--state``.
stateless_file = grouped("file", ModelFile, file_argument, _static_option)
model_file = grouped("file", ModelFile, file_argument, _static_option, state_option)


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


def single_sizes(dims: Mapping[str, tuple[int, ...]], because: str) -> dict[str, int]:
    """Return the size of each dimension, or raise a usage error for several sizes."""
    for name, sizes in dims.items():
        if len(sizes) != 1:
            raise click.BadParameter(f"{name} needs one size{because}")
    return {name: size for name, (size,) in dims.items()}


def dim_option(text: str, *, several: bool = False) -> Decorator:
    """Return the option ``--dim`` for the sizes of open dimensions; ``several`` allows several sizes of each."""

    def callback(ctx: click.Context, parameter: click.Parameter, pairs: Sequence[str]) -> dict[str, Any]:
        dims = _dims(ctx, pairs)
        return dims if several else single_sizes(dims, "; only verify and export take several")

    return click.option(
        "--dim",
        "dims",
        metavar="NAME=SIZE,..." if several else "NAME=SIZE",
        multiple=True,
        callback=callback,
        help=f"{text} A name in place of a size renames the dimension, one name for several dimensions ties them, and "
        "a multiple relates them: --dim T=4*U.",
    )


def seed_option(text: str = "Seed of the random inputs.") -> Decorator:
    """Return the option ``--seed``."""
    return click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help=text)


@dataclass(frozen=True)
class Inputs:
    """The inputs of a model: given arrays, sizes of open dimensions, and the seed of random inputs."""

    arrays: dict[str, np.ndarray]
    #: The samples of a WAV file without the name of an input.
    sound: np.ndarray | None
    #: The sample rate of WAV files.
    rate: int | None
    dims: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    random: bool = True

    def __bool__(self) -> bool:
        return bool(self.arrays) or self.sound is not None

    def of(self, specs: Sequence[ArraySpec]) -> dict[str, np.ndarray]:
        """Return arrays by name in the types of the inputs; sound without a name is the only input that is left."""
        from jaxrnn.onnx.graph import is_batch_name
        from jaxrnn.verification.sampling import restore_types

        arrays = restore_types(specs, self.arrays)
        if self.sound is None:
            return arrays
        missing = [each for each in specs if each.name not in arrays]
        shape = (missing[0].shape or ()) if len(missing) == 1 else ()
        long = [axis for axis, size in enumerate(shape) if size != 1 and not (axis == 0 and is_batch_name(str(size)))]
        if len(long) != 1:
            listed = ", ".join(map(str, missing)) or "none"
            raise InputError(
                "--inputs with a WAV file needs a model with a single input of samples; the inputs without an array "
                f"are: {listed}. Give --input NAME=X.wav, or --inputs X.npz"
            )
        arrays[missing[0].name] = self.sound.reshape([-1 if axis in long else 1 for axis in range(len(shape))])
        return arrays


def _inputs(
    input_files: dict[str, str],
    inputs_file: Path | None,
    dims: dict[str, Any] | None = None,
    seed: int = 0,
    random: bool = True,
) -> Inputs:
    if dims and not random:
        raise click.UsageError("--dim sets the sizes of random inputs: it needs --random")
    rates: set[int] = set()

    def sound_of(path: Path) -> np.ndarray:
        from jaxrnn.audio import read_wav

        samples, rate = read_wav(path)
        rates.add(rate)
        return samples

    arrays, sound = {}, None
    if inputs_file is not None and _is_wav(inputs_file):
        sound = sound_of(inputs_file)
    elif inputs_file is not None:
        arrays = load_archive(inputs_file)
    for name, path in ((name, Path(text)) for name, text in input_files.items()):
        arrays[name] = sound_of(path) if _is_wav(path) else load_array(path)
    if len(rates) > 1:
        raise click.UsageError(f"the WAV files have different sample rates: {', '.join(map(str, sorted(rates)))}")
    return Inputs(arrays, sound, next(iter(rates), None), dims or {}, seed, random)


def _is_wav(path: Path) -> bool:
    return path.suffix.lower() == ".wav"


#: ``--input`` and ``--inputs``.
_FILES = (
    click.option(
        "--input",
        "input_files",
        metavar="NAME=X.npy",
        multiple=True,
        callback=parsed(split_pairs),
        help="An input from a .npy file, or samples from a WAV file of one channel; may be given several times.",
    ),
    click.option(
        "--inputs",
        "inputs_file",
        metavar="X.npz|X.wav",
        type=click.Path(path_type=Path),
        help="Inputs from one .npz file, or the samples of the only input from a WAV file.",
    ),
)
#: ``--input`` and ``--inputs`` as the argument ``given``, for commands with own options of sizes and seeds.
input_files = grouped("given", lambda input_files, inputs_file: _inputs(input_files, inputs_file), *_FILES)


def input_options(*, several: bool = False, random: str | None = None) -> Decorator:
    """Return ``--input``, ``--inputs``, ``--dim``, ``--seed`` and ``--random`` as the argument ``given``.

    ``random`` is the help text of ``--random``. With None, the option does not exist, and missing inputs are always
    random.
    """
    sizes = "Sizes of an open dimension of the random inputs; each size is a separate case."
    options = [
        *_FILES,
        dim_option(
            f"{sizes if several else 'Size of an open dimension of the random inputs.'} By default 1 for a batch, else "
            "16. 'jaxrnn inspect' shows the names.",
            several=several,
        ),
        seed_option(),
    ]
    if random is not None:
        options.append(click.option("--random", is_flag=True, help=random))
    return grouped("given", _inputs, *options)


def load_array(path: Path) -> np.ndarray:
    """Return the array of a ``.npy`` file."""
    loaded = read_arrays(path)
    if isinstance(loaded, np.ndarray):
        return loaded
    raise InputError(f"{path} holds arrays by name ({', '.join(loaded)}); give it with --inputs")


def load_archive(path: Path) -> dict[str, np.ndarray]:
    """Return the named arrays of a ``.npz`` file."""
    loaded = read_arrays(path)
    if isinstance(loaded, np.ndarray):
        raise InputError(f"{path} holds one array without a name; give it with --input NAME={path}")
    return loaded


def save_outputs(path: Path, arrays: Mapping[str, np.ndarray], rate: float | None) -> None:
    """Write named outputs as ``.npz``, or the output ``audio`` of a function of waveforms as ``.wav``."""
    if path.suffix.lower() != ".wav":
        save_archive(path, arrays)
        return
    from jaxrnn.audio.waveforms import AUDIO, write_wav

    if AUDIO not in arrays or rate is None:
        audio = f"an output {AUDIO!r}, as with --stft"
        rated = "a sample rate: give a WAV file or --rate"
        raise InputError(f"{path} needs {rated if AUDIO in arrays else audio}")
    samples = arrays[AUDIO]
    write_wav(path, samples, int(rate) if rate == int(rate) else rate)  # type: ignore[arg-type]  # refused there
    if clipped := int(np.count_nonzero(np.abs(samples) > 1)):
        echo(f"warning: {path}: {clipped:,} of {samples.size:,} samples exceed full scale and are clipped", err=True)


def save_archive(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a ``.npz`` file completely or not at all."""
    with in_place_of(path) as written, zipfile.ZipFile(written, "w") as archive:
        for name, array in arrays.items():
            if array.dtype.kind == "O":  # strings, which NumPy would pickle
                array = array.astype(np.str_)
            elif array.dtype.isbuiltin != 1 and array.dtype.kind not in "US":
                # NumPy files cannot hold dtypes such as bfloat16.
                array = array.view(np.dtype((np.void, array.dtype.itemsize)))
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


def settings_options(model: str, example: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the argument ``SETTINGS.yaml`` with the options ``--set``, ``--print-config`` and ``--keys``.

    ``model`` is the module and name of the settings model, and ``example`` a key with its value for the help.
    """

    def print_keys(ctx: click.Context, parameter: click.Parameter, chosen: bool) -> None:
        if not chosen or ctx.resilient_parsing:
            return
        from jaxrnn.settings.models import reference

        formatter = ctx.make_formatter()
        rows = reference(pkgutil.resolve_name(model))
        formatter.write_dl([(key, f"{text} [{default}]" if default else text) for key, default, text in rows])
        click.echo(formatter.getvalue(), nl=False)
        ctx.exit()

    argument = click.argument("path", metavar="SETTINGS.yaml", type=click.Path(path_type=Path))
    override = click.option(
        "--set",
        "overrides",
        metavar="KEY.SUB=VALUE",
        multiple=True,
        help=f"Replace a value of the file, written in YAML; may be given several times. Example: --set {example}.",
    )
    printed = click.option(
        "--print-config",
        is_flag=True,
        help="Print all settings, with defaults, overrides and variables filled in, and exit.",
    )
    keys = click.option(
        "--keys",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=print_keys,
        help="Explain each key of the file, and exit.",
    )

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def run(path: Path, overrides: tuple[str, ...], print_config: bool, **others: Any) -> Any:
            if not print_config:
                with writing_for("settings"):
                    return command(path=path, overrides=overrides, **others)
            from jaxrnn.settings.files import SettingsFile

            return click.echo(SettingsFile(pkgutil.resolve_name(model), path, overrides).to_yaml(), nl=False)

        return argument(override(printed(keys(run))))

    return decorate


@dataclass(frozen=True)
class ParamsOptions:
    """The source of parameters: a folder of checkpoints or a ``.npz`` file. False if no option was given."""

    checkpoint: Path | None
    step: int | None
    last: bool
    best: bool
    archive: Path | None

    def __post_init__(self):
        chosen = {"--step": self.step is not None, "--last": self.last, "--best": self.best}
        options = [option for option, value in chosen.items() if value]
        if self.checkpoint is not None and self.archive is not None:
            raise click.UsageError("give either --checkpoint DIR or --params FILE.npz")
        if self.checkpoint is None:
            refuse(chosen, "needs --checkpoint DIR")
        if len(options) > 1:
            raise click.UsageError(f"{' and '.join(options)} exclude each other")

    def __bool__(self) -> bool:
        return self.checkpoint is not None or self.archive is not None

    def of(self, model: Model) -> dict[str, Any]:
        """Return the chosen parameters for a model, by default from the file of the model."""
        if self.checkpoint is not None:
            from jaxrnn.training import load_checkpoint

            return load_checkpoint(self.checkpoint, model=model, step=self.step, best=not self.last)
        if self.archive is None:
            return model.params
        from jaxrnn.steps.specs import ArraySpec
        from jaxrnn.verification.sampling import restore_types

        infos = [ArraySpec(name, array.dtype, array.shape) for name, array in model.program.parameters.items()]
        return restore_types(infos, load_archive(self.archive))


#: The options for parameters, as the argument ``params``.
params_options = grouped(
    "params",
    ParamsOptions,
    click.option(
        "--checkpoint",
        metavar="DIR",
        type=click.Path(path_type=Path),
        help="Read the parameters from this folder of checkpoints of a training.",
    ),
    click.option(
        "--step", metavar="N", type=click.IntRange(min=0), help="With --checkpoint: the parameters after this update."
    ),
    click.option("--last", is_flag=True, help="With --checkpoint: the parameters of the last checkpoint."),
    click.option(
        "--best", is_flag=True, help="With --checkpoint: the parameters with the best validation loss. [default]"
    ),
    click.option(
        "--params",
        "archive",
        metavar="FILE.npz",
        type=click.Path(path_type=Path),
        help="Read the parameters from a .npz file, by the names that 'jaxrnn inspect --params' shows.",
    ),
)
