"""`fit` fine-tunes a model on examples; `Fitted` is the result."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrnn._files.writing import in_place_of
from jaxrnn._jax.context import compute_type
from jaxrnn.audio.waveforms import Waveform
from jaxrnn.errors import InputError, TrainingError, check_count, check_kind, optional_package
from jaxrnn.model import Model
from jaxrnn.training.agreement import (
    check_alike,
    check_joined,
    differences,
    digest,
    digest_of_examples,
    first_of,
    training_facts,
)
from jaxrnn.training.batches import Batches, drawn_order, example_order
from jaxrnn.training.callbacks import HISTORY, Callback, LogFile
from jaxrnn.training.checkpoints import Folder, open_folder
from jaxrnn.training.examples import make_source
from jaxrnn.training.layout import check_model, make_layout
from jaxrnn.training.loop import TrainingLoop, announce
from jaxrnn.training.optimizers import Optimizer
from jaxrnn.training.options import SEQUENCES, Checkpoints, Function, Sequences, Validation, check_end, check_functions
from jaxrnn.training.parameters import start_values, trained_names, warn_of_buffers
from jaxrnn.training.sharding import Placement, interrupted_by_sigterm, is_primary
from jaxrnn.training.student import Student
from jaxrnn.training.train_state import TrainState
from jaxrnn.training.updates import Forward, Updates
from jaxrnn.training.validation import Validator

if TYPE_CHECKING:
    import optax


def fit(
    model: Model | Waveform | Student,
    data: Sequence[Mapping[str, Any]] | Callable[[np.random.Generator], Mapping[str, Any]],
    loss: Function,
    *,
    steps: int | None = None,
    epochs: int | None = None,
    batch_size: int = 16,
    optimizer: str | optax.GradientTransformation | Optimizer = "adam",
    sequences: Sequences = SEQUENCES,
    metrics: Mapping[str, Function] | None = None,
    validation: Sequence[Mapping[str, Any]] | Validation | None = None,
    checkpoints: str | os.PathLike[str] | Checkpoints | None = None,
    params: Mapping[str, Any] | None = None,
    devices: Sequence[Any] | None = None,
    dtype: Any = None,
    seed: int = 0,
    progress: bool | None = None,
    callbacks: Sequence[Callback] = (),
) -> Fitted:
    """Fine-tune a model on examples.

    An example is a dict of arrays for *one* recording: the inputs of the model by the names of the file, without state
    (a batch dimension has size 1), and further arrays for the loss under other names. ``jax.vmap`` maps the model over
    a batch. Examples of different lengths are padded to the longest of their batch; a mask marks the frames that exist,
    and padding changes no result.

    The same seed gives the same result: bit-identical on one device, and after any interruption and resumption. The
    order of examples and all random numbers depend only on the seed and the position in the order.

    In several processes (``jax.distributed``), each process calls this function with the same arguments and loads a
    part of each batch. All processes must see the folder of checkpoints.

    Args:
        model: The model, or a `jaxrnn.audio.Waveform` of a single model, which is trained from waveform to waveform;
            or a `Student`, a model with bounded futures that may have a teacher.
        data: A sequence of examples, shuffled in each epoch, or a function that draws an example from a NumPy
            generator. Both run in a background thread.
        loss: ``loss(outputs, example, mask) -> scalar`` in JAX for one example: dicts of outputs and of arrays, and
            ``bool[frames]``. An update reduces the mean over the examples of a batch.
        steps: Number of updates. Give either ``steps`` or ``epochs``.
        epochs: Number of passes over the data.
        batch_size: Examples per update, on all devices of all processes together.
        optimizer: The name of an optax optimizer, an ``optax.GradientTransformation``, or an `Optimizer`, which also
            selects parameters. The default is adam for all parameters. A line search gets the loss of the batch.
        sequences: Time axis, chunks and padding of sequences.
        metrics: A dict of further functions like the loss, measured on the validation examples, or else on the batches.
        validation: A sequence of examples, or a `Validation`, which also sets the interval.
        checkpoints: A folder for checkpoints, or a `Checkpoints`. A training resumes from the newest checkpoint.
        params: Initial parameters, by default from the file.
        devices: Devices to split a batch over; all by default. Rows without weight fill up a batch that does not divide
            by the number of devices.
        dtype: Compute dtype, as in `Model.apply`. Trained parameters stay in the types of the file.
        seed: The random seed.
        progress: True to show a progress bar on standard error; by default if standard error is a terminal.
        callbacks: Objects that watch or stop the training, such as loggers of `jaxrnn.training.logs` and
            `EarlyStopping`. A folder of checkpoints always has the history in the file ``history.jsonl``.

    Returns:
        Parameters and history.

    Raises:
        InputError: An argument or an example does not fit, or a second training keeps checkpoints in the folder.
        StateError: The model forgets its state, so it has no steps.
        TrainingError: A loss or gradient is not finite, a checkpoint cannot be written or belongs to another training,
            or the arguments of processes differ.
        MissingPackageError: optax or Grain is missing, or Orbax for checkpoints.
        KeyboardInterrupt: After Ctrl-C, and after SIGTERM, as clusters send it before they end a job. In several
            processes, SIGTERM to one process interrupts all processes.

    In a single process, each error and interrupt comes after a checkpoint of the last good update, if there is a
    folder, and has the attribute ``fitted``: a `Fitted` of all good updates, if there was an update.

    Warns:
        UserWarning: The training changes running statistics, or a computed constant (a Fourier basis, a window, a
            filterbank). Sounds are to be logged, but without validation examples.
    """
    network: Any = check_model(model)  # a waveform has the functions of a model
    check_kind("sequences", sequences, Sequences, "jaxrnn.training.Sequences")
    check_joined()
    if not is_primary():
        progress = False
    check_count("batch_size", batch_size)
    seed = check_count("seed", seed, 0)
    functions = check_functions(loss, metrics)
    dtype = compute_type(dtype)
    for callback in callbacks:
        check_kind("each of callbacks", callback, Callback, "a jaxrnn.training.Callback")
    watched = bool(callbacks)
    optimizer = optimizer if isinstance(optimizer, Optimizer) else Optimizer(optimizer)
    if validation is not None and not isinstance(validation, Validation):
        validation = Validation(validation)
    if checkpoints is not None and not isinstance(checkpoints, Checkpoints):
        checkpoints = Checkpoints(checkpoints)
    source = make_source(data, seed)
    check_end(steps, epochs, source.size)
    if source.size is not None and source.size < batch_size:
        raise InputError(f"batch_size={batch_size} is more than the {source.size} examples in data")
    if source.size is None and sequences.batch_frames is not None:
        raise InputError("batch_frames= needs a sequence of examples; drawn examples have a length of your choice")

    trained = trained_names(network, optimizer.train, optimizer.freeze)
    start = start_values(network, params, trained, dtype)
    warn_of_buffers(network, start, trained, optimizer)
    frozen = {name: value for name, value in start.items() if name not in trained}
    changed = {name: value for name, value in frozen.items() if digest(value) != digest(network.params[name])}

    layout = make_layout(network, sequences, *source.get(0))
    if layout.reason:
        announce(
            f"{network.label} is trained in {layout}, because {layout.reason}; "
            f"mode and time_axis of `sequences` say otherwise",
            progress,
        )
    for fault in getattr(data, "left_out", {}).values():
        announce(f"left out: {fault}", progress is not False)
    placement = Placement(devices, batch_size)
    if source.size is None:
        order = drawn_order(batch_size, steps or 0)
    else:
        order = example_order(source, layout, placement, seed=seed, epochs=epochs)
    on_batches = functions if validation is None else {}
    forward = Forward(network, layout, loss, on_batches, dtype)
    updates = Updates(forward, optimizer, placement, frozen)
    validator = None
    if validation is not None:
        whole = dataclasses.replace(layout, sequences=sequences.whole)
        measured = Forward(network, whole, loss, functions, dtype)
        validator = Validator(measured, validation, batch_size, devices)
    facts = training_facts(
        network,
        layout,
        start,
        trained,
        optimizer,
        loss,
        batch_size=batch_size,
        dtype=None if dtype is None else dtype.name,
        seed=seed,
        examples=source.size,
        **({} if (mixtures := getattr(data, "identity", None)) is None else {"data": mixtures}),
        **({"student": model.facts} if isinstance(model, Student) else {}),
    )
    check_alike(
        placement,
        {
            **facts,
            "steps": steps,
            "epochs": epochs,
            "metrics": sorted(functions),
            "validation": None if validation is None else {"every": validation.every},
            "checkpoints": None if checkpoints is None else {"every": checkpoints.every, "resume": checkpoints.resume},
            "examples in data": digest_of_examples(placement, source, layout),
        },
    )
    with jax.enable_x64(layout.wide), ExitStack() as stack:
        state = TrainState(updates.begin({name: start[name] for name in trained}), facts, changed)
        folder = None
        if checkpoints is not None:
            folder = stack.enter_context(open_folder(checkpoints, placement))
            _resume(state, placement, folder, progress, trusted=getattr(data, "trust_names", False))
            if not any(isinstance(each, LogFile) and each.path.name == HISTORY for each in callbacks):
                callbacks = (LogFile(folder.path / HISTORY), *callbacks)
        resumed_from = state.step
        loop = TrainingLoop(
            updates=updates,
            batches=Batches(source, layout, placement),
            order=order,
            steps=steps,
            state=state,
            validator=validator,
            folder=folder,
            progress=progress,
            callbacks=callbacks if is_primary() else (),
            watched=watched,
        )

        def fitted(stopped: str) -> Fitted:
            last = placement.single(updates.params(state.arrays.trained))
            best, best_step, judged = last, state.step, state.arrays.judged
            if judged is not state.arrays.trained:
                best = placement.single(updates.params(judged))
            if state.counters.best_loss is not None:
                best, best_step = placement.single(updates.params(state.best)), state.counters.best_step
            used = layout.used_sequences
            return Fitted(best, last, state.history, state.step, best_step, stopped, used, resumed_from)

        with interrupted_by_sigterm(placement.processes):
            try:
                return fitted(loop.run())
            except BaseException as error:
                if placement.processes == 1 and state.step:
                    found = fitted("interrupt" if isinstance(error, KeyboardInterrupt) else "error")
                    vars(error)["fitted"] = found
                raise


def _resume(state: TrainState, placement: Placement, folder: Folder, progress: bool | None, *, trusted: bool) -> None:
    """Continue from the newest checkpoint of a folder, if any."""
    check_alike(placement, {"checkpoints in the folder, which all processes must see": folder.steps()})
    if not folder.steps():
        return
    if not folder.options.resume:
        raise TrainingError(
            f"`resume=False`, but {folder.path} has checkpoints already, after updates {folder.steps()}; choose "
            "another folder, or delete it"
        )
    snapshot = folder.newest(set_aside=True)
    assert snapshot is not None, "there are checkpoints"
    check_alike(placement, {"step": snapshot.counters.step})
    if differing := differences(snapshot.settings, state.settings):
        raise TrainingError(
            f"the checkpoints in {folder.path} are of another training: {first_of(differing)}. "
            "Choose another folder, or the same settings"
        )
    data = state.settings.get("data")
    if isinstance(data, dict) and "unknown_contents" in data and not trusted:
        raise TrainingError(
            f"{data['unknown_contents']} recordings may have changed since the checkpoints in {folder.path}: their "
            "store gives neither a version nor an ETag. Choose another folder, or trust their names and sizes with "
            "`trust_names=True` of `Mixtures` (`trust_names` of `data` in a settings file, --trust-names)"
        )
    state.restore(snapshot, placement)
    announce(f"Resumed from update {state.step}", progress is not False)


@dataclasses.dataclass(frozen=True)
class Fitted:
    """The result of `fit`.

    Attributes:
        params: All parameters for `Model.apply`, from the update with the best validation loss, or without validation
            from the last update.
        last_params: The parameters after the last update.
        history: One dict per update: ``step``, ``loss``, ``grad_norm`` (before clipping), ``param_norm``,
            ``learning_rate`` if the optimizer keeps it, ``seconds`` of training without pauses between runs, metrics,
            and after a validation ``validation_loss`` and ``validation_NAME``.
        step: Number of updates.
        best_step: The update after which `params` were taken.
        stopped: ``"steps"`` for the requested end; in the first process the text of `StopTraining`, such as
            ``"patience"`` of `EarlyStopping`, or else ``"callback"``; ``"error"`` or ``"interrupt"`` in the attribute
            ``fitted`` of an exception.
        sequences: The options of sequences, with the inferred mode and time axes.
        resumed_from: The update of the checkpoint from which this run continued; 0 for a run from the start.
    """

    params: dict[str, jax.Array]
    last_params: dict[str, jax.Array]
    history: list[dict[str, Any]]
    step: int
    best_step: int
    stopped: str
    sequences: Sequences
    resumed_from: int = 0

    def __repr__(self) -> str:
        losses = [f"{record['loss']:.4g}" for record in self.history]
        loss = f"loss {losses[0]} to {losses[-1]}, " if losses else ""
        count = sum(array.size for array in self.params.values())
        return (
            f"Fitted(step={self.step}, {loss}best_step={self.best_step}, stopped={self.stopped!r}, "
            f"mode={self.sequences.mode!r}, {count:,} parameters in {len(self.params)} arrays)"
        )

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Write the loss curve as a PNG: loss per update, running mean, and validation loss.

        Raises:
            MissingPackageError: matplotlib is missing.
            InputError: There was no update.
        """
        with optional_package("matplotlib", "drawing a loss curve", "plot"):
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        FigureCanvasAgg(figure)
        self.draw(figure.subplots())
        with in_place_of(Path(path)) as written:
            figure.savefig(written, format="png", dpi=120)

    def draw(self, axes: Any) -> None:
        """Draw the curve of `plot` on axes of matplotlib.

        Raises:
            InputError: There was no update.
        """
        steps, losses = self._curve("loss")
        if not steps.size:
            raise InputError("there was no update, so there is no loss curve")
        window = max(1, steps.size // 50)
        axes.plot(steps, losses, color="C0", alpha=0.4 if window > 1 else 1, linewidth=0.8, label="loss")
        if window > 1:
            means = np.convolve(losses, np.full(window, 1 / window), "valid")
            axes.plot(steps[window - 1 :], means, color="C0", label=f"mean of {window} updates")
        at, validation = self._curve("validation_loss")
        if at.size:
            axes.plot(at, validation, color="C1", marker="o", markersize=3, label="validation")
            axes.axvline(self.best_step, color="C2", linestyle=":", label=f"best, update {self.best_step}")
        axes.set_xlabel("update")
        axes.set_ylabel("loss")
        axes.grid(alpha=0.3)
        axes.legend()

    def _curve(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the updates with a recorded number, and the numbers."""
        points = [(record["step"], record[key]) for record in self.history if key in record]
        return np.array([step for step, _ in points]), np.array([value for _, value in points], np.float64)
