"""Settings files of ``jaxrnn finetune``: their keys, and the training that a file describes."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import jax

from jaxrnn._files.messages import short_repr
from jaxrnn._files.stores import Location, check_writable
from jaxrnn.audio.checking import Examine, examine_example, examine_recording
from jaxrnn.audio.waveforms import STFT, Waveform, waveform_of
from jaxrnn.errors import InputError, optional_package
from jaxrnn.export import export_onnx
from jaxrnn.model.loading import load, write_graph
from jaxrnn.settings.files import Overrides, SettingsFile
from jaxrnn.settings.functions import Options, build, check_options
from jaxrnn.settings.models import (
    AnyPath,
    FunctionName,
    FunctionSettings,
    LocalPath,
    ModelSettings,
    OpenSettings,
    Settings,
)
from jaxrnn.training import losses, metrics
from jaxrnn.training.agreement import check_alike
from jaxrnn.training.callbacks import Callback, EarlyStopping, logs
from jaxrnn.training.checkpoints import load_checkpoint
from jaxrnn.training.examples import NpzFiles, make_source
from jaxrnn.training.fit import Fitted, fit
from jaxrnn.training.losses import Loss
from jaxrnn.training.optimizers import Optimizer, find_optimizer, find_schedule, refusals_of
from jaxrnn.training.options import Checkpoints, Sequences, Validation
from jaxrnn.training.recordings import NOT_DRAWN, Mixtures
from jaxrnn.training.sharding import Placement, is_primary
from jaxrnn.training.student import Student
from jaxrnn.training.validation import validate

# isort: split
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

if TYPE_CHECKING:
    from jaxrnn.model import Model


#: The arguments of `Mixtures` that stand below `recordings`; the others are keys for all examples from files.
DRAWN = tuple(each.name for each in dataclasses.fields(Mixtures) if each.name not in NOT_DRAWN)


class ExamplesSettings(Settings):
    """Examples from files, from recordings, or from a function."""

    npz: AnyPath | None = None
    """A folder, or a pattern such as `data/*.npz`, as a path or URL: one example per file, with arrays by name."""
    function: FunctionName | None = None
    """Instead of `npz`: `file.py:function` or `module:function` that returns examples, or a function drawing one."""
    arguments: dict[str, Any] = {}
    """The arguments of the function."""
    recordings: Annotated[dict[str, Any], Options(Mixtures, names=DRAWN)] | None = None
    """Instead of `npz`: sounds to mix, as `jaxrnn.training.Mixtures`."""
    check: bool = False
    """True to read all files first, and to list every fault: files that cannot be read, are empty or cut, NaN."""
    skip: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The largest share of files to leave out for a fault, such as 0.01; all files are read first."""

    def check_rules(self) -> None:
        """Check that there is one source of examples."""
        if sum(each is not None for each in (self.npz, self.function, self.recordings)) != 1:
            raise ValueError("expected one of npz, function and recordings")
        if self.function is None and self.arguments:
            raise ValueError("arguments are for a function")
        if self.function is not None and (self.check or self.skip):
            raise ValueError("check and skip are for files of npz and recordings")


class DataSettings(ExamplesSettings):
    """Examples to train on."""

    trust_names: bool = False
    """True to resume on objects of a store that gives neither versions nor ETags, if names and sizes are equal."""


class PartSettings(FunctionSettings):
    """The name and the options of a loss, with a weight."""

    weight: float = 1.0
    """The factor of the loss in a sum."""


class ValidationSettings(ExamplesSettings):
    """Examples for validation, and early stopping."""

    count: PositiveInt = 64
    """Number of mixtures of `recordings`."""
    every: PositiveInt = 100
    """Updates between validations."""
    patience: PositiveInt | None = None
    """Validations without a better loss before the training stops early."""


class ScheduleSettings(OpenSettings):
    """The name and the arguments of a schedule of optax."""

    schedule: str
    """The name of the schedule, such as `cosine_decay_schedule`. Arguments stand beside the name."""


class OptimizerSettings(FunctionSettings):
    """The name and the arguments of an optimizer of optax, and the parameters to train."""

    name: str = "adam"
    """An optimizer of optax. Arguments stand beside the name."""
    learning_rate: PositiveFloat | ScheduleSettings | None = None
    """A number, or a schedule of optax; by default 0.001, or for `lbfgs` the rate that it finds."""
    clip_norm: PositiveFloat | None = None
    """The largest global norm of the gradients."""
    train: str | list[str] = "*"
    """Name patterns (with `*` and `?`) of the parameters to train."""
    freeze: str | list[str] = []
    """Name patterns of parameters to leave out of `train`."""
    average: Annotated[float, Field(gt=0, lt=1)] | None = None
    """The decay of a moving average of the parameters, such as 0.999, which is validated and exported."""


class TrainingSettings(Settings):
    """The keys of a settings file for `jaxrnn finetune`."""

    model: ModelSettings
    """The network: its ONNX file, or the keys below."""
    data: DataSettings
    """The examples to train on."""
    loss: PartSettings | list[PartSettings]
    """The loss that updates minimize: a name, the keys below, or a list of losses, whose weighted sum counts."""
    steps: PositiveInt | None = None
    """Number of updates. Give either `steps` or `epochs`."""
    epochs: PositiveInt | None = None
    """Number of passes over the examples."""
    metrics: dict[str, FunctionSettings] = {}
    """Further functions to measure, by name: on the validation examples, or else on the batches."""
    batch_size: PositiveInt = 16
    """Examples per update, on all devices together."""
    optimizer: OptimizerSettings = OptimizerSettings()
    """The optimizer: a name, or the keys below."""
    sequences: Annotated[dict[str, Any], Options(Sequences)] = Field({}, validate_default=True)
    """The way in which the model runs over sequences."""
    stft: Annotated[dict[str, Any], Options(waveform_of, names=STFT)] | None = None
    """For a network over spectra: the transforms around it. It is trained from `samples` to `audio`."""
    symbol: str | None = None
    """With `stft` or `future`: the time dimension of an offline network; with `stft`, by default the network takes a
    frame a step."""
    future: NonNegativeInt | dict[str, int] | None = None
    """Train the network with bounded futures, a `Student`: the frames after a block that backward recurrences,
    statistics and attention see; or frames by the start of the name of a node, with the default under `""`."""
    past: PositiveInt | None = None
    """With `future`: the frames before a block that attention to all frames sees."""
    block: PositiveInt | None = None
    """With `future`: the frames that share their end; by default 1, and for recurrences the future."""
    teacher: ModelSettings | None = None
    """With `future`: a network of whole recordings, such as the file of `model`, whose outputs stand in each example
    under their own names, as targets of losses. With `stft`, the transforms are those of `model`."""
    validation: ValidationSettings | None = None
    """Examples for validation. The result has the parameters with the best validation loss."""
    checkpoints: Annotated[dict[str, Any], Options(Checkpoints, short="folder")] | None = None
    """Checkpoints, from which an interrupted run continues: a folder, or the keys below."""
    log: Annotated[dict[str, Any], Options(logs, short="to")] | None = None
    """Logs beside the history: a list such as `[tensorboard, csv]`, or the keys below."""
    params: LocalPath | None = None
    """A folder of checkpoints with initial parameters, in place of those of the file."""
    devices: PositiveInt | None = None
    """Number of devices to split a batch over; by default all."""
    dtype: Literal["bfloat16", "float16"] | None = None
    """The dtype of operands of products; by default the dtype of the parameters."""
    seed: NonNegativeInt = 0
    """The random seed."""
    export: LocalPath | None = None
    """ONNX file for the result: the file of `model` with new parameters."""
    export_stream: LocalPath | None = None
    """With `future`: ONNX file for the stream of the result; the flush stands beside it, as `NAME_flush.onnx`."""
    plot: LocalPath | None = None
    """PNG file for the loss curve."""

    def check_rules(self) -> None:
        """Check that the training has one length, and that bounds have a future."""
        if self.steps is None and self.epochs is None:
            raise ValueError("expected either steps or epochs")
        if self.steps is not None and self.epochs is not None:
            raise ValueError("expected either steps or epochs, not both; null takes one out")
        bounds = ("teacher", "past", "block", "export_stream")
        if self.future is None and (given := [key for key in bounds if getattr(self, key) is not None]):
            raise ValueError(f"{given[0]} goes with future, the frames that a network with bounded futures sees")


File = SettingsFile[TrainingSettings]


@short_repr
@dataclasses.dataclass(frozen=True)
class PreparedTraining:
    """A training that is ready to run: settings, model, and the other arguments of `fit`."""

    settings: TrainingSettings
    model: Model
    arguments: dict[str, Any] = dataclasses.field(repr=False)

    def run(self, *, resume: bool | None = None, progress: bool | None = None) -> Fitted:
        """Train, and in the first process write the ONNX file and the loss curve named in the settings.

        ``resume`` overrides the setting for checkpoints; ``progress`` is as in `fit`.
        """
        settings = self.settings
        paths = (settings.export, settings.export_stream, settings.plot)
        export, export_stream, plot = paths if is_primary() else (None, None, None)
        for path in (export, export_stream, plot):
            if path is not None:
                folder = path.absolute().parent
                try:
                    folder.mkdir(parents=True, exist_ok=True)
                except OSError as error:
                    raise InputError(f"{path} cannot be written: {error.strerror}: {folder}") from error
                check_writable(path)
        if plot is not None:
            with optional_package("matplotlib", "drawing a loss curve", "plot"):
                import matplotlib.figure  # noqa: F401  before it trains
        arguments = dict(self.arguments)
        if resume is not None and (checkpoints := arguments["checkpoints"]) is not None:
            arguments["checkpoints"] = dataclasses.replace(checkpoints, resume=resume)
        fitted = fit(**arguments, progress=progress)
        if export is not None:
            write_graph(self.model, fitted.params, export)
        if export_stream is not None:
            flush = export_stream.with_name(f"{export_stream.stem}_flush.onnx")
            export_onnx(self.arguments["model"].streamed, fitted.params, export_stream, flush=flush)
        if plot is not None and fitted.history:
            fitted.plot(plot)
        return fitted

    def check_alike(self) -> None:
        """Check that all processes have the same settings, apart from folders."""
        placement = Placement(self.arguments["devices"], self.settings.batch_size)
        check_alike(placement, _without_folders(self.settings))

    def evaluate(self, params: Mapping[str, Any]) -> dict[str, float] | None:
        """Return the mean loss and metrics over the validation examples, or None without validation examples."""
        if (validation := self.arguments["validation"]) is None:
            return None
        names = ("loss", "metrics", "batch_size", "sequences", "dtype", "devices")
        return validate(
            self.arguments["model"], params, validation.data, **{name: self.arguments[name] for name in names}
        )


def prepare_training(path: str | os.PathLike[str], overrides: Overrides = ()) -> PreparedTraining:
    """Read a file of settings, and load the model and the examples that the file names.

    Args:
        path: A YAML file with the keys of `jaxrnn.training.settings.TrainingSettings`.
        overrides: Values that replace values of the file: texts ``key.sub=value`` in YAML, or a dict by ``key.sub``.

    Raises:
        InputError: Settings do not fit. The message has a line for each mistake, with the file and the key.
        JaxrnnError: The model cannot be loaded.
    """
    file = SettingsFile(TrainingSettings, path, overrides)
    arguments = file.together(
        {
            "loss": lambda: _loss(file),
            "metrics": lambda: file.together(
                {
                    name: functools.partial(_function, file, metric, "metric", metrics.METRICS, "metrics", name)
                    for name, metric in file.settings.metrics.items()
                }
            ),
            "optimizer": lambda: _optimizer(file),
            "sequences": lambda: _made(file, "sequences", Sequences),
            "checkpoints": lambda: _made(file, "checkpoints", Checkpoints),
            "callbacks": lambda: [*_logs(file), *_early_stopping(file)],
            "devices": lambda: _devices(file),
            "model": lambda: _model(file),
            "data": lambda: _examples(file, file.settings.data, "data"),
            "validation": lambda: _validation(file),
        }
    )
    settings = file.settings
    model, arguments["model"], arguments["params"] = arguments.pop("model")
    arguments |= {key: getattr(settings, key) for key in ("steps", "epochs", "batch_size", "dtype", "seed")}
    return PreparedTraining(settings, model, arguments)


def recordings_in(path: str | os.PathLike[str], overrides: Overrides = ()) -> list[tuple[Sequence[Location], Examine]]:
    """Return the recordings of a settings file, for training and for validation, with functions that examine them."""
    file = SettingsFile(TrainingSettings, path, overrides)
    found: list[tuple[Sequence[Location], Examine]] = []
    for key in ("data", "validation"):
        if (settings := getattr(file.settings, key)) is None:
            continue
        kind = next(kind for kind in ("npz", "recordings", "function") if getattr(settings, kind) is not None)
        with file.at(key, kind):
            if kind == "function":
                raise InputError("the examples of a function cannot be checked: give the folder of the recordings")
            if kind == "npz":
                found.append((NpzFiles(settings.npz).files, examine_example))
            else:
                mixtures = Mixtures(**settings.recordings)
                found.append((mixtures.recordings, functools.partial(examine_recording, rate=mixtures.rate)))
    return found


def _made(file: File, key: str, make: Callable[..., Any]) -> Any:
    """Return the object whose arguments are below a key, or None without the key."""
    with file.at(key):
        return None if (options := getattr(file.settings, key)) is None else make(**options)


def _devices(file: File) -> list[Any] | None:
    if (count := file.settings.devices) is None:
        return None
    with file.at("devices"):
        if count > jax.device_count():
            raise InputError(f"JAX sees {jax.device_count()} here, not {count}")
    return jax.devices()[:count]


def _model(file: File) -> tuple[Model, Model | Waveform | Student, Mapping[str, Any]]:
    """Return the model, the trained function of the model, and the initial parameters."""
    settings = file.settings
    with file.at("model"):
        model = _loaded(settings.model)
    trained, symbol = _function_of(file, model), settings.symbol
    if settings.future is not None:
        teacher = None
        if settings.teacher is not None:
            with file.at("teacher"):
                teacher = _function_of(file, _loaded(settings.teacher))
        bounds = {key: getattr(settings, key) for key in ("future", "past", "block")}
        with file.at("future" if teacher is None else "teacher"):
            trained = Student(trained, symbol=symbol if settings.stft is None else None, teacher=teacher, **bounds)
    elif symbol is not None and settings.stft is None:
        with file.at("symbol"):
            raise InputError("this key goes with stft or future; sequences.time_axis names the time of other networks")
    with file.at("params"):
        folder = file.settings.params
        return model, trained, model.params if folder is None else load_checkpoint(folder, model)


def _loaded(given: ModelSettings) -> Model:
    return load(given.file, static=given.static, state=given.state, dims=given.dims)


def _function_of(file: File, model: Model) -> Model | Waveform:
    """Return the model, or with `stft` the function of waveforms."""
    if file.settings.stft is None:
        return model
    with file.at("stft"):
        return waveform_of(model, file.settings.symbol, **file.settings.stft)


def _loss(file: File) -> Loss | None:
    """Build the loss, or the weighted sum of a list."""
    given = file.settings.loss
    parts = given if isinstance(given, list) else [given]
    places = [("loss", place) if isinstance(given, list) else ("loss",) for place in range(len(parts))]
    makers = [functools.partial(_function, file, part, "loss", losses.LOSSES) for part in parts]
    made = file.together({str(keys): functools.partial(make, *keys) for make, keys in zip(makers, places, strict=True)})
    if len(made) < len(parts):
        return None  # a part read a faulty key
    with file.at("loss"):
        return losses.weighted_sum([(part.weight, loss) for part, loss in zip(parts, made.values(), strict=True)])


def _logs(file: File) -> list[Callback]:
    log, checkpoints, data = (getattr(file.settings, key) for key in ("log", "checkpoints", "data"))
    if log is None:
        return []
    rate = log["rate"] or (data.recordings or {}).get("rate")
    with file.at("log"):
        return logs(**log | {"folder": log["folder"] or (checkpoints or {}).get("folder"), "rate": rate})


def _validation(file: File) -> Validation | None:
    if (validation := file.settings.validation) is None:
        return None
    return Validation(_examples(file, validation, "validation"), validation.every)


def _early_stopping(file: File) -> list[Callback]:
    validation = file.settings.validation
    return [] if validation is None or validation.patience is None else [EarlyStopping(validation.patience)]


def _without_folders(value: Any) -> Any:
    """Return settings with the names of files in place of paths."""
    if isinstance(value, dict | Settings):
        return {key: _without_folders(each) for key, each in dict(value).items()}
    return value.name if isinstance(value, Location) else value


def _function(
    file: File, settings: FunctionSettings, kind: str, table: Mapping[str, Callable[..., Any]], *keys: str | int
) -> Loss:
    """Build the loss or metric that is named in a part of the file."""
    axis = file.settings.sequences["time_axis"]
    usual = {"time_axis": axis} if isinstance(axis, int) else {}
    with file.at(*keys):
        return build(kind, settings.name, table, settings.options, file.folder, usual)


def _optimizer(file: File) -> Optimizer:
    settings, rate = file.settings.optimizer, file.settings.optimizer.learning_rate
    if isinstance(rate, ScheduleSettings):
        with file.at("optimizer", "learning_rate"):
            make = find_schedule(rate.schedule)
            options = check_options(make, rate.options)
            with refusals_of(make):
                rate = make(**options)
                float(rate(0))
    with file.at("optimizer"):
        given = {"learning_rate": 1.0 if rate is None else rate}  # optimizers differ in whether they need one
        options = check_options(find_optimizer(settings.name), {**settings.options, **given})
        checked = options.pop("learning_rate")
        rate = rate if rate is None else checked
        common = settings.model_dump(include={"clip_norm", "train", "freeze", "average"})
        return Optimizer(settings.name, rate, **common, options=options)


def _examples(file: File, settings: ExamplesSettings, key: str) -> Any:
    common: dict[str, Any] = {"check": settings.check, "skip": settings.skip}
    common["trust_names"] = isinstance(settings, DataSettings) and settings.trust_names
    if settings.npz is not None:
        with file.at(key, "npz"):
            return NpzFiles(settings.npz, **common)
    if settings.recordings is not None:
        with file.at(key, "recordings"):
            mixtures = Mixtures(**settings.recordings, **common)
            return mixtures.drawn(settings.count) if isinstance(settings, ValidationSettings) else mixtures
    assert settings.function is not None, "it has one of the three"
    examples = file.call(settings.function, settings.arguments, key)
    with file.at(key, "function"):
        make_source(examples, 0 if key == "data" else None, what=key)
    return examples
