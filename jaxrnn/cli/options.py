"""Options that several commands share: files of models, inputs, sizes, parameters and settings."""

from __future__ import annotations

import json
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import click

from jaxrnn.cli.commands import Option, Seed, command
from jaxrnn.cli.errors import write_for_settings
from jaxrnn.errors import InputError

# Modules that import NumPy are imported where they are used, so that `--help` is fast.
if TYPE_CHECKING:
    import numpy as np

    from jaxrnn.model import Model
    from jaxrnn.steps.specs import ArraySpec


def refuse(options: Mapping[str, Any], because: str) -> None:
    """Raise a usage error about the first option with a value, which ``because`` continues."""
    option = next((option for option, value in options.items() if value is not None and value is not False), None)
    if option is not None:
        raise click.UsageError(f"{option} {because}")


#: By the ending of an option's metavar: the endings of names, and the rule in words.
_ENDINGS = {
    ".onnx": ((".onnx",), "must end in .onnx, by which engines recognise the format"),
    ".tflite": ((".onnx", ".tflite"), "must end in .onnx, or for LiteRT in .tflite"),
    ".npz": ((".npz", ".wav"), "must end in .npz, or for sound in .wav"),
}
#: The placeholder of an option for a folder, which may exist.
FOLDER = "FOLDER"


def new_file(metavar: str, *names: str) -> Option:
    """Return the details of an option for a file or folder to write, in an existing folder."""
    endings, rule = _ENDINGS.get(Path(metavar).suffix, ((), ""))

    def writable(path: Path) -> Path:
        from jaxrnn._files.stores import check_writable

        if metavar != FOLDER or not path.is_dir():
            check_writable(path)
        if endings and path.suffix.lower() not in endings:
            raise click.BadParameter(f"{path.name!r} {rule}")
        return path

    return Option(names, metavar, parse=writable)


#: The names of the option for the main result.
OUTPUT = ("--output", "-o")


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


def _static_values(pairs: Sequence[str]) -> dict[str, Any]:
    return {name: _static_value(name, text) for name, text in split_pairs(pairs).items()}


def _static_value(name: str, text: str) -> Any:
    if text.endswith(".npy"):
        from jaxrnn.cli.arrays import load_array

        return load_array(Path(text))
    try:
        return json.loads(text)
    except ValueError:
        message = f"{name}: {text!r} is neither a number, nor a JSON list, nor a .npy file"
        raise click.BadParameter(message) from None


def _state_pairs(pairs: Sequence[str]) -> dict[str, str] | None:
    return {} if list(pairs) == ["none"] else split_pairs(pairs, "INPUT=OUTPUT") or None


def _openings(pairs: Sequence[str]) -> dict[str, dict[int, Any]]:
    """Return the axes to open, and the user's answers about constants, as the ``dims`` of `jaxrnn.load`."""
    result: dict[str, dict[int, Any]] = {}
    for place, given in split_pairs(pairs, "INPUT:AXIS=NAME").items():
        name, _, axis = place.rpartition(":")
        if not name or not axis.isdecimal():
            raise click.BadParameter(f"{place!r} is not of the form INPUT:AXIS, such as x:0=time")
        number = re.fullmatch(r"-?\d+(\.\d*)?(e-?\d+)?", given)
        result.setdefault(name, {})[int(axis)] = given if number is None else float(given) if number[1] else int(given)
    return result


#: The key of click's context for names and multiples given with ``--dim``.
_DIMENSION_NAMES = "jaxrnn.dimension_names"


@dataclass(frozen=True)
class ModelFile:
    """A model's file, as `jaxrnn.load` takes it.

    Attributes:
        path: The file.
        static: Fix an input at compile time: a number, a JSON list, or a .npy file. Needed for inputs on which shapes
            or branches depend. Example: --static sr=16000.
        state: Name the output with the new value of a state input, if the file is ambiguous; 'none' if there is no
            state.
        opened: Open an axis of an input that the file fixes, under a name: --open x:0=time. Constants that follow
            from the length are computed, and the result is compared with the file. Where the graph does not decide
            whether a constant follows from the length, the error has the option for the answer.
    """

    path: Annotated[Path, Option(metavar="FILE", positional=True)]
    static: Annotated[dict[str, Any], Option(metavar="NAME=VALUE", parse=_static_values)] = field(default_factory=dict)
    state: Annotated[dict[str, str] | None, Option(metavar="INPUT=OUTPUT", parse=_state_pairs)] = None
    opened: Annotated[
        dict[str, dict[int, Any]], Option(("--open",), metavar="INPUT:AXIS=NAME", type=click.STRING, parse=_openings)
    ] = field(default_factory=dict)

    @property
    def dims(self) -> dict[str, Any]:
        """The names and multiples of dimensions that ``--dim`` gives, and axes to open; sizes are for the inputs."""
        context = click.get_current_context(silent=True)
        return {**({} if context is None else context.meta.get(_DIMENSION_NAMES, {})), **self.opened}

    @property
    def source(self) -> Any:
        """The file for functions that read it again: the path, or the file with the opened axes."""
        return self.load().proto if self.opened else self.path

    def load(self) -> Model:
        """Load the model."""
        from jaxrnn.model.loading import load

        return load(self.path, static=self.static, state=self.state, dims=self.dims)

    @property
    def has_steps(self) -> bool:
        """Return True if callers carry the state of the model, so that a step can be exported."""
        return {variable.kind for variable in self.load().state} == {"external"}


@dataclass(frozen=True)
class StatelessFile(ModelFile):
    """A model's file without ``--state``, for commands that compute the whole graph."""

    state: dict[str, str] | None = field(default=None, init=False)


def _sizes(pairs: Sequence[str]) -> dict[str, tuple[int, ...]]:
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
    click.get_current_context().meta[_DIMENSION_NAMES] = names
    return result


def single_sizes(dims: Mapping[str, tuple[int, ...]], because: str) -> dict[str, int]:
    """Return the size of each dimension, or raise a usage error for several sizes."""
    for name, sizes in dims.items():
        if len(sizes) != 1:
            raise click.BadParameter(f"{name} needs one size{because}")
    return {name: size for name, (size,) in dims.items()}


_RENAMES = (
    "A name in place of a size renames the dimension, one name for several dimensions ties them, and a multiple "
    "relates them: --dim T=4*U."
)
#: The option ``--dim`` with one size of each dimension, and with several.
Dims = Annotated[
    dict[str, int],
    Option(
        ("--dim",),
        "NAME=SIZE",
        parse=lambda pairs: single_sizes(_sizes(pairs), "; only verify and export take several"),
        text=_RENAMES,
    ),
]
ManyDims = Annotated[dict[str, tuple[int, ...]], Option(("--dim",), "NAME=SIZE,...", parse=_sizes, text=_RENAMES)]


@dataclass(frozen=True)
class InputFiles:
    """Inputs of a model from files.

    Attributes:
        input: An input from a .npy file, or samples from a sound file (WAV, FLAC, MP3) of one channel; may be given
            several times.
        inputs: Inputs from one .npz file, or the samples of the only input from a sound file.
        resample: Resample sound files to this number of samples per second. Otherwise a sound of another rate than
            --rate, or than the input sr that --static fixes, is refused.
    """

    input: Annotated[dict[str, str], Option(metavar="NAME=X.npy", parse=split_pairs)] = field(default_factory=dict)
    inputs: Annotated[Path, Option(metavar="X.npz|X.wav")] | None = None
    resample: Annotated[int, Option(metavar="HZ", type=click.IntRange(1))] | None = None

    def __post_init__(self):
        _ = self._read  # so that mistakes come before any work

    @cached_property
    def _read(self) -> tuple[dict[str, np.ndarray], np.ndarray | None, int | None]:
        """A dict of arrays, the samples of a sound file without the name of an input, and the rate of sound files."""
        from jaxrnn.audio.sounds import read_sound
        from jaxrnn.cli.arrays import load_archive, load_array

        rates, expected = set[int](), _expected_rates()
        for option, asked in expected.items():
            if self.resample not in (None, asked):
                raise click.UsageError(f"--resample {self.resample} differs from {option} {asked:g}")

        def sound_of(path: Path) -> np.ndarray:
            samples, rate = read_sound(path, self.resample)
            for option, asked in expected.items():
                if rate != asked:
                    has = f"{path} has {rate} samples per second, but {option} is {asked:g}"
                    raise click.UsageError(f"{has}: --resample {asked:g} resamples it")
            rates.add(rate)
            return samples

        arrays, sound = {}, None
        if self.folder is not None:  # read one by one
            pass
        elif self.inputs is not None and _is_sound(self.inputs):
            sound = sound_of(self.inputs)
        elif self.inputs is not None:
            arrays = load_archive(self.inputs)
        for name, path in ((name, Path(text)) for name, text in self.input.items()):
            arrays[name] = sound_of(path) if _is_sound(path) else load_array(path)
        if len(rates) > 1:
            listed = ", ".join(map(str, sorted(rates)))
            raise click.UsageError(f"the sound files have different sample rates, {listed}: give --resample HZ")
        return arrays, sound, next(iter(rates), None)

    @property
    def folder(self) -> Path | None:
        """The folder of recordings, in place of a file, for commands that take several."""
        return self.inputs if self.inputs is not None and self.inputs.is_dir() else None

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """A dict of the arrays."""
        return self._read[0]

    @property
    def has_sound(self) -> bool:
        """Return True if a sound file has no name of an input."""
        return self._read[1] is not None

    @property
    def rate(self) -> int | None:
        """The sample rate of sound files."""
        return self._read[2]

    def __bool__(self) -> bool:
        return bool(self.input) or self.inputs is not None

    def of(self, specs: Sequence[ArraySpec]) -> dict[str, np.ndarray]:
        """Return a dict of arrays in the types of the inputs; sound without a name is the only input that is left."""
        from jaxrnn.onnx.graph import is_batch_name
        from jaxrnn.verification.sampling import restore_types

        if self.folder is not None:
            raise InputError(f"--inputs {self.folder} is a folder, and one recording is needed: give a file")
        read, sound, _ = self._read
        arrays = restore_types(specs, read)
        if sound is None:
            return arrays
        missing = [each for each in specs if each.name not in arrays]
        shape = (missing[0].shape or ()) if len(missing) == 1 else ()
        long = [axis for axis, size in enumerate(shape) if size != 1 and not (axis == 0 and is_batch_name(str(size)))]
        if len(long) != 1:
            listed = ", ".join(map(str, missing)) or "none"
            raise InputError(
                "--inputs with a sound file needs a model with a single input of samples; the inputs without an array "
                f"are: {listed}. Give --input NAME=X.wav, or --inputs X.npz"
            )
        arrays[missing[0].name] = sound.reshape([-1 if axis in long else 1 for axis in range(len(shape))])
        return arrays


def recordings_in(
    folder: Path, specs: Sequence[ArraySpec], resample: int | None
) -> dict[str, Callable[[], InputFiles]]:
    """Return functions that read the recordings of a folder, by file name.

    Recordings are sound files, .npz files, and .npy files of a single input. A line counts all that is left out.
    """
    from jaxrnn.audio.contents import recordings_at
    from jaxrnn.audio.sounds import SOUNDS

    def reader(path: Path) -> Callable[[], InputFiles]:
        if path.suffix.lower() == ".npy":
            return partial(InputFiles, input={specs[0].name: str(path)})
        return partial(InputFiles, inputs=path, resample=resample)

    suffixes = [*SOUNDS, ".npz", *([".npy"] if len(specs) == 1 else [])]
    return {path.name: reader(path) for path in recordings_at(folder, [f"*{suffix}" for suffix in suffixes])}


def read_recordings(folder: Path, specs: Sequence[ArraySpec], resample: int | None) -> dict[str, dict[str, np.ndarray]]:
    """Return the recordings of a folder by file name, all in memory."""
    return {name: read().of(specs) for name, read in recordings_in(folder, specs, resample).items()}


def _is_sound(path: Path) -> bool:
    from jaxrnn.audio.sounds import SOUNDS

    return path.suffix.lower() in SOUNDS


def _expected_rates() -> dict[str, float]:
    """Return a dict from options to the samples per second that the options give."""
    context = click.get_current_context(silent=True)
    given = {} if context is None else context.params
    fixed = {name: value for name, value in (given.get("static") or {}).items() if name in ("sr", "sample_rate")}
    told = {"--rate": given.get("rate"), **{f"--static {name}": value for name, value in fixed.items()}}
    return {option: value for option, value in told.items() if isinstance(value, int | float)}


@dataclass(frozen=True)
class Inputs(InputFiles):
    """Inputs from files, and random inputs in place of the others.

    Attributes:
        dims: Size of an open dimension of the random inputs. By default 1 for a batch, else 16. 'jaxrnn inspect' shows
            the names.
        seed: Seed of the random inputs.
    """

    dims: Dims = field(default_factory=dict)
    seed: Seed = 0
    random: ClassVar[bool] = True


@dataclass(frozen=True)
class ManyInputs(Inputs):
    """The same for several sizes of each dimension.

    Attributes:
        dims: Sizes of an open dimension of the random inputs; each size is a separate case. By default 1 for a batch,
            else 16. 'jaxrnn inspect' shows the names.
    """

    dims: ManyDims = field(default_factory=dict)  # pyright: ignore[reportIncompatibleVariableOverride]


@dataclass(frozen=True)
class RandomInputs(Inputs):
    """Inputs that are random only on request.

    Attributes:
        random: Draw inputs that are not given at random.
    """

    random: bool = False  # pyright: ignore[reportIncompatibleVariableOverride]  # an option here

    def __post_init__(self):
        if self.dims and not self.random:
            raise click.UsageError("--dim sets the sizes of random inputs: it needs --random")
        super().__post_init__()


#: The argument ``SETTINGS.yaml``, and the option ``--set``.
SettingsPath = Annotated[Path, Option(metavar="SETTINGS.yaml", positional=True)]
Overrides = Annotated[tuple[str, ...], Option(("--set",), "KEY.SUB=VALUE")]


def settings_command(model: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Return a decorator like `command`, which adds ``--print-config`` and ``--keys``.

    ``model`` is the module and name of the settings model of the file ``path``.
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

    printed = click.Option(
        ["--print-config"],
        is_flag=True,
        help="Print all settings, with defaults, overrides and variables filled in, and exit.",
    )
    keys = click.Option(
        ["--keys"],
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=print_keys,
        help="Explain each key of the file, and exit.",
    )

    def decorate(function: Callable[..., Any]) -> click.Command:
        made = command(function)
        inner = made.callback
        assert inner is not None, "a command has a function"

        def run(print_config: bool, **values: Any) -> Any:
            write_for_settings()
            if not print_config:
                return inner(**values)
            from jaxrnn.settings.files import SettingsFile

            text = SettingsFile(pkgutil.resolve_name(model), values["path"], values["overrides"]).to_yaml()
            return click.echo(text, nl=False)

        made.params[2:2] = [printed, keys]
        made.callback = run
        return made

    return decorate


@dataclass(frozen=True)
class ParamsOptions:
    """The source of parameters: a folder of checkpoints or a ``.npz`` file. False if no option was given.

    Attributes:
        checkpoint: Read the parameters from this folder of checkpoints of a training.
        step: With --checkpoint: the parameters after this update.
        last: With --checkpoint: the parameters of the last checkpoint.
        best: With --checkpoint: the parameters with the best validation loss. [default]
        params: Read the parameters from a .npz file, by the names that 'jaxrnn inspect --params' shows.
    """

    checkpoint: Annotated[Path, Option(metavar="DIR")] | None = None
    step: Annotated[Seed, Option(metavar="N")] | None = None
    last: bool = False
    best: bool = False
    params: Annotated[Path, Option(metavar="FILE.npz")] | None = None

    def __post_init__(self):
        chosen = {"--step": self.step is not None, "--last": self.last, "--best": self.best}
        options = [option for option, value in chosen.items() if value]
        if self.checkpoint is not None and self.params is not None:
            raise click.UsageError("give either --checkpoint DIR or --params FILE.npz")
        if self.checkpoint is None:
            refuse(chosen, "needs --checkpoint DIR")
        if len(options) > 1:
            raise click.UsageError(f"{' and '.join(options)} exclude each other")

    def __bool__(self) -> bool:
        return self.checkpoint is not None or self.params is not None

    def of(self, model: Model) -> dict[str, Any]:
        """Return the chosen parameters for a model, by default from the file of the model."""
        if self.checkpoint is not None:
            from jaxrnn.training import load_checkpoint

            return load_checkpoint(self.checkpoint, model=model, step=self.step, best=not self.last)
        if self.params is None:
            return model.params
        from jaxrnn.cli.arrays import load_archive
        from jaxrnn.steps.specs import ArraySpec
        from jaxrnn.verification.sampling import restore_types

        infos = [ArraySpec(name, array.dtype, array.shape) for name, array in model.program.parameters.items()]
        return restore_types(infos, load_archive(self.params))
