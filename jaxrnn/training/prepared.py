"""A training described by a file of settings."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax

from jaxrnn._files.files import check_replaceable
from jaxrnn._files.messages import short_repr
from jaxrnn._files.stores import Location
from jaxrnn.errors import InputError, optional_package
from jaxrnn.model.loading import load, write_graph
from jaxrnn.settings.files import Overrides, SettingsFile
from jaxrnn.settings.functions import build, check_options
from jaxrnn.settings.models import Settings
from jaxrnn.training import losses, metrics
from jaxrnn.training.agreement import check_alike
from jaxrnn.training.checkpoints import load_checkpoint
from jaxrnn.training.examples import NpzFiles, make_source
from jaxrnn.training.fit import Fitted, fit
from jaxrnn.training.losses import Loss
from jaxrnn.training.optimizers import Optimizer, find_optimizer, find_schedule, refusals_of
from jaxrnn.training.options import Checkpoints, Sequences, Validation
from jaxrnn.training.settings import ExamplesSettings, LossSettings, ScheduleSettings, TrainingSettings
from jaxrnn.training.sharding import Placement, is_primary
from jaxrnn.training.validation import validate

if TYPE_CHECKING:
    from jaxrnn.model import Model

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
        export, plot = (self.settings.export, self.settings.plot) if is_primary() else (None, None)
        for path in (export, plot):
            if path is not None:
                folder = path.absolute().parent
                try:
                    folder.mkdir(parents=True, exist_ok=True)
                except OSError as error:
                    raise InputError(f"{path} cannot be written: {error.strerror}: {folder}") from error
                check_replaceable(path)
        if plot is not None:
            with optional_package("matplotlib", "drawing a loss curve", "plot"):
                import matplotlib.figure  # noqa: F401  before it trains
        arguments = dict(self.arguments)
        if resume is not None and (checkpoints := arguments["checkpoints"]) is not None:
            arguments["checkpoints"] = dataclasses.replace(checkpoints, resume=resume)
        fitted = fit(self.model, **arguments, progress=progress)
        if export is not None:
            write_graph(self.model, fitted.params, export)
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
        return validate(self.model, params, validation.data, **{name: self.arguments[name] for name in names})


def prepare_training(path: str | os.PathLike[str], overrides: Overrides = ()) -> PreparedTraining:
    """Read a file of settings, and load the model and the examples that the file names.

    Args:
        path: A YAML file with the keys of `jaxrnn.training.settings.TrainingSettings`.
        overrides: Values that replace those of the file: texts ``key.sub=value`` in YAML, or values by such keys.

    Raises:
        InputError: A setting does not fit. The message names the file and the key.
        JaxrnnError: The model cannot be loaded.
    """
    file = SettingsFile(TrainingSettings, path, overrides)
    settings = file.settings
    arguments: dict[str, Any] = {
        **{key: getattr(settings, key) for key in ("steps", "epochs", "batch_size", "dtype", "seed")},
        "loss": _function(file, settings.loss, "loss", losses.LOSSES, "loss"),
        "metrics": {
            name: _function(file, metric, "metric", metrics.METRICS, "metrics", name)
            for name, metric in settings.metrics.items()
        },
        "optimizer": _optimizer(file),
        "checkpoints": None if settings.checkpoints is None else Checkpoints(**dict(settings.checkpoints)),
    }
    with file.at("sequences"):
        arguments["sequences"] = Sequences(**dict(settings.sequences))
    with file.at("devices"):
        if (count := settings.devices) is not None and count > jax.device_count():
            raise InputError(f"JAX sees {jax.device_count()} here, not {count}")
        arguments["devices"] = None if count is None else jax.devices()[:count]
    with file.at("model"):
        given = settings.model
        model = load(given.file, static=given.static, state=given.state, dims=given.dims)
    with file.at("params"):
        arguments["params"] = model.params if settings.params is None else load_checkpoint(settings.params, model)
    arguments["data"], arguments["validation"] = _examples(file, settings.data, "data"), None
    if (validation := settings.validation) is not None:
        examples = _examples(file, validation, "validation")
        arguments["validation"] = Validation(examples, validation.every, validation.patience)
    return PreparedTraining(settings, model, arguments)


def _without_folders(value: Any) -> Any:
    """Return settings with the names of files in place of paths."""
    if isinstance(value, dict | Settings):
        return {key: _without_folders(each) for key, each in dict(value).items()}
    return value.name if isinstance(value, Location) else value


def _function(
    file: File, settings: LossSettings, kind: str, table: Mapping[str, Callable[..., Any]], *keys: str
) -> Loss:
    """Return the loss or metric that a part of the file names, with its options."""
    axis = file.settings.sequences.time_axis
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
        options = check_options(find_optimizer(settings.name), {**settings.options, "learning_rate": rate})
        rate = options.pop("learning_rate")
        return Optimizer(settings.name, rate, settings.clip_norm, settings.train, settings.freeze, options)


def _examples(file: File, settings: ExamplesSettings, key: str) -> Any:
    if settings.npz is not None:
        with file.at(key, "npz"):
            return NpzFiles(settings.npz)
    assert settings.function is not None, "it has one of both"
    examples = file.call(settings.function, settings.arguments, key)
    with file.at(key, "function"):
        make_source(examples, 0 if key == "data" else None, what=key)
    return examples
