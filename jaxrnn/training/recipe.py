"""A fine-tuning as a configuration file says it: what is in the file becomes a model, examples and functions."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import inspect
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax

from jaxrnn.errors import InputError, MissingPackageError
from jaxrnn.settings.functions import find_function, lookup
from jaxrnn.settings.loader import Keys
from jaxrnn.settings.problems import at, problem
from jaxrnn.settings.sections import Called
from jaxrnn.settings.source import Overrides, Source
from jaxrnn.training import losses, metrics
from jaxrnn.training.config import Config, Examples, read_config
from jaxrnn.training.fit import fit
from jaxrnn.training.fitted import Fitted
from jaxrnn.training.loading import load_checkpoint
from jaxrnn.training.losses import Loss
from jaxrnn.training.optimizers import Optimizer
from jaxrnn.training.options import Checkpoints, Sequences, Validation
from jaxrnn.training.recipe_data import NpzExamples, check_data
from jaxrnn.training.recipe_optimizer import optimizer_options
from jaxrnn.training.recipe_options import checked_options
from jaxrnn.training.validation import validate

if TYPE_CHECKING:
    from jaxrnn.model import Model


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A fine-tuning that is ready to run.

    Attributes:
        config: what stands in the file.
        model: the model.
        params: the parameters to begin with.
        data: the examples to train on, as `jaxrnn.training.fit` takes them.
        validation: the examples to judge by, or None.
        loss: of one example.
        metrics: more of the same, by name.
        optimizer: what updates the parameters.
        options: what `jaxrnn.training.fit` and `jaxrnn.training.validate` are told alike.
    """

    config: Config
    model: Model
    params: Mapping[str, Any]
    data: Any
    validation: Any
    loss: Loss
    metrics: dict[str, Loss]
    optimizer: Optimizer
    options: dict[str, Any]

    def run(self, *, resume: bool | None = None, progress: bool | None = None) -> Fitted:
        """Train, and write the ONNX file and the loss curve that the configuration names.

        Args:
            resume: whether to go on from checkpoints that are there; by default, what the configuration says.
            progress: whether to show a progress bar; by default, if standard error is a terminal.

        Raises:
            JaxrnnError: as `jaxrnn.training.fit` and `jaxrnn.export_onnx` say.
        """
        from jaxrnn.model.exporting import export_onnx

        for path in (self.config.export, self.config.plot):
            if path is not None:
                _make_folder_of(path)
        if self.config.plot is not None and importlib.util.find_spec("matplotlib") is None:
            raise MissingPackageError("plot: drawing a loss curve needs matplotlib: pip install 'jaxrnn[plot]'")
        config, checkpoints, validation = self.config, None, None
        if self.validation is not None:
            validation = Validation(self.validation, config.every, config.patience)
        elif config.patience is not None:
            raise InputError("patience counts validations: give validation examples as well")
        if config.checkpoints is not None:
            resume = config.resume if resume is None else resume
            checkpoints = Checkpoints(config.checkpoints, config.every, config.keep, resume)
        fitted = fit(
            self.model,
            self.data,
            self.loss,
            steps=config.steps,
            epochs=config.epochs,
            optimizer=self.optimizer,
            metrics=self.metrics,
            validation=validation,
            checkpoints=checkpoints,
            params=self.params,
            seed=config.seed,
            progress=progress,
            **self.options,
        )
        if self.config.export is not None:
            export_onnx(self.model, fitted.params, self.config.export)
        if self.config.plot is not None and fitted.history:
            fitted.plot(self.config.plot)
        return fitted

    def evaluate(self, params: Mapping[str, Any]) -> dict[str, float]:
        """The mean loss and metrics over the validation examples.

        Raises:
            InputError: there are none.
        """
        if self.validation is None:
            raise InputError("the configuration has no validation examples")
        return validate(self.model, params, self.validation, self.loss, metrics=self.metrics, **self.options)


def read_recipe(path: str | os.PathLike[str], overrides: Overrides = ()) -> Recipe:
    """Read a configuration file and make ready what it names.

    Args:
        path: a YAML file with the keys of `jaxrnn.training.config.Config`.
        overrides: what stands in place of values of the file: texts ``key.sub=value``, the value being YAML, or values
            by such keys.

    Raises:
        InputError: something in the file does not fit; names the file and line, and the key.
        JaxrnnError: the model cannot be loaded.
    """
    from jaxrnn.model.loading import load

    config, source = read_config(path, overrides)
    loss = _function("loss", losses.LOSSES, config.loss, config, source, ("loss",))
    functions = {
        name: _function("metric", metrics.METRICS, called, config, source, ("metrics", name))
        for name, called in config.metrics.items()
    }
    optimizer = Optimizer(
        clip_norm=config.clip_norm, train=config.train, freeze=config.freeze, **optimizer_options(config, source)
    )
    options = {
        "sequences": Sequences(config.mode, config.time_axis, config.chunk, config.bucket, config.remat),
        "batch_size": config.batch_size,
        "compute_dtype": config.compute_dtype,
        "devices": _devices(config, source),
    }
    with at(source, ("model",)):
        model = load(config.model.file, static=config.model.static, state=config.model.state)
    with at(source, ("params",)):
        params = model.params if config.params is None else load_checkpoint(config.params, model)
    data = _examples(config.data, config, source, ("data",))
    validation = None
    if config.validation is not None:
        validation = _examples(config.validation, config, source, ("validation",))
    return Recipe(config, model, params, data, validation, loss, functions, optimizer, options)


def _function(
    kind: str, table: Mapping[str, Callable[..., Any]], called: Called, config: Config, source: Source, keys: Keys
) -> Loss:
    """The loss or metric that a section names, with its options."""
    name, options = called.name, dict(called.options)
    with at(source, (*keys, "name")):
        found = lookup(kind, name, table, source.folder)
    takes_axis = "time_axis" in inspect.signature(found).parameters
    if takes_axis and isinstance(config.time_axis, int):
        options.setdefault("time_axis", config.time_axis)
    options = checked_options(found, options, source, keys, skipped=0 if name in table else 3)
    if name in table:
        with at(source, keys):
            return found(**options)
    return functools.partial(found, **options) if options else found


def _examples(section: Examples, config: Config, source: Source, keys: Keys) -> Any:
    if section.npz is not None:
        with at(source, (*keys, "npz")):
            return NpzExamples(section.npz, config.time_axis)
    assert section.function is not None, "it has one of both"
    with at(source, (*keys, "function")):
        make = find_function(section.function, source.folder)
    arguments = checked_options(make, section.arguments, source, (*keys, "arguments"))
    made = make(**arguments)
    with at(source, (*keys, "function")):
        return check_data(made, section.function, drawn=keys == ("data",))


def _devices(config: Config, source: Source) -> list[Any] | None:
    if config.devices is None:
        return None
    if config.devices > jax.device_count():
        raise problem(source, ("devices",), f"JAX sees {jax.device_count()} here, not {config.devices}")
    return jax.devices()[: config.devices]


def _make_folder_of(path: os.PathLike[str]) -> None:
    folder = os.path.dirname(os.path.abspath(path))
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise InputError(f"{os.fspath(path)} cannot be written: {error.strerror}: {folder}") from error
    if os.path.isdir(path):
        raise InputError(f"{os.fspath(path)} is a folder; give the name of a file in it")
