"""`fit`: fine-tuning a model on examples."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrnn._jax.precision import compute_type
from jaxrnn.errors import InputError, TrainingError, check_count
from jaxrnn.training.agreement import check_alike, check_shared, digest_of_examples
from jaxrnn.training.arguments import Function, check_end, check_functions
from jaxrnn.training.batches import Batches
from jaxrnn.training.buffers import warn_of_buffers
from jaxrnn.training.checkpoints import Folder
from jaxrnn.training.examples import make_source
from jaxrnn.training.facts import differences, digest_of_all, training_facts
from jaxrnn.training.fitted import Fitted
from jaxrnn.training.forward import Forward
from jaxrnn.training.hosts import check_joined
from jaxrnn.training.loop import TrainingLoop
from jaxrnn.training.optimizers import Optimizer
from jaxrnn.training.options import OPEN, SEQUENCES, Checkpoints, Sequences, Validation, sequences_argument
from jaxrnn.training.order import drawn_order, sequence_order
from jaxrnn.training.parameters import start_values, trained_names
from jaxrnn.training.progress import announce
from jaxrnn.training.sharding import Placement, is_primary
from jaxrnn.training.time_axes import make_layout
from jaxrnn.training.train_state import TrainState
from jaxrnn.training.updates import Updates
from jaxrnn.training.validation import Validator

if TYPE_CHECKING:
    import optax

    from jaxrnn.model import Model


def fit(
    model: Model,
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
) -> Fitted:
    """Fine-tune a model on examples.

    An example is a dict of arrays for *one* example: what the model takes, by the names of the file and without its
    state (a batch dimension is 1), and anything that the loss needs, under other names. Batches are made by
    ``jax.vmap``. Examples of unequal lengths are padded to the longest of their batch; the mask says which frames
    exist, and padding changes no result.

    The same seed gives the same result, to the last bit on one device and whether or not the training was cut short
    and resumed: the order of examples and everything drawn depend on the seed and on the place in the order alone.

    In several processes (``jax.distributed``) every process calls this with the same arguments and makes its own part
    of each batch; the folder of checkpoints must be one that all of them see.

    Args:
        model: the model.
        data: examples: a sequence, whose order is drawn anew for every epoch, or a function of a NumPy generator that
            draws one. Either is called in another thread.
        loss: ``loss(outputs, example, mask) -> scalar`` in JAX, of one example: outputs and arrays by name, and
            ``bool[frames]``. An update reduces its mean over the examples of a batch.
        steps: updates, or
        epochs: passes over the data.
        batch_size: examples in an update, on all devices of all processes together.
        optimizer: the name of one in optax, an ``optax.GradientTransformation``, or an `Optimizer`, which also says
            which parameters are trained; adam of all parameters by default.
        sequences: how the model runs over sequences: which axis is time, chunks, padding.
        metrics: more functions like the loss, by name; measured on the validation examples, or on the batches where
            there are none.
        validation: examples that are not trained on, or a `Validation`, which also says how often they are measured.
        checkpoints: a folder to write checkpoints to, or `Checkpoints`. A training resumes from the newest one there.
        params: the parameters to begin with; the file's by default.
        devices: the devices that a batch is split over; all by default. If it does not divide by their number, rows
            that do not count fill it up.
        dtype: as in `Model.apply`. What is trained stays in the file's types.
        seed: of everything that is drawn.
        progress: whether to show a progress bar on standard error; by default, if that is a terminal.

    Returns:
        The parameters and the history.

    Raises:
        InputError: an argument or an example does not fit.
        StateError: the model forgets its state, so that it has no steps.
        TrainingError: a loss or gradient is not finite; a checkpoint cannot be written, or is of another training;
            processes differ in what they were given.
        MissingPackageError: optax or Grain is not installed, or Orbax for checkpoints.
        KeyboardInterrupt: with a checkpoint of the updates until then, where there is a folder. In several processes,
            SIGTERM to any of them does that in all of them.

    Warns:
        UserWarning: running statistics, or what was computed (a Fourier basis, a window, a filterbank), is trained.
    """
    check_joined()
    if not is_primary():
        progress = False
    check_count("batch_size", batch_size)
    seed = check_count("seed", seed, 0)
    functions = check_functions(loss, metrics)
    dtype = compute_type(dtype)
    optimizer = optimizer if isinstance(optimizer, Optimizer) else Optimizer(optimizer)
    if validation is not None and not isinstance(validation, Validation):
        validation = Validation(validation)
    if checkpoints is not None and not isinstance(checkpoints, Checkpoints):
        checkpoints = Checkpoints(checkpoints)
    source = make_source(data, seed)
    check_end(steps, epochs, source.size)
    if source.size is not None and source.size < batch_size:
        raise InputError(f"batch_size={batch_size} is more than the {source.size} examples in data")
    if source.size is None:
        order = drawn_order(batch_size, steps or 0)
    else:
        order = sequence_order(source.size, batch_size, seed=seed, epochs=epochs)

    trained = trained_names(model, optimizer.train, optimizer.freeze)
    start = start_values(model, params, trained, dtype)
    warn_of_buffers(model, start, trained, optimizer)
    frozen = {name: value for name, value in start.items() if name not in trained}
    changed = {
        name: value
        for name, value in frozen.items()
        if digest_of_all({name: value}) != digest_of_all({name: model.params[name]})
    }

    first = order[0]
    assert first, "a batch has examples"
    layout = make_layout(model, sequences, *source.get(first[0]))
    if layout.reason:
        announce(
            f"{model.label} is trained in {layout}, because {layout.reason}; "
            f"{sequences_argument(mode=OPEN, time_axis=OPEN)} says otherwise",
            progress,
        )
    placement = Placement(devices, batch_size)
    on_batches = functions if validation is None else {}
    forward = Forward(model, layout, loss, on_batches, dtype)
    updates = Updates(forward, optimizer, placement, frozen)
    validator = None
    if validation is not None:
        whole = dataclasses.replace(layout, sequences=sequences.whole)
        measured = Forward(model, whole, loss, functions, dtype)
        validator = Validator(measured, validation, batch_size, devices)
    facts = training_facts(
        model,
        layout,
        start,
        trained,
        optimizer,
        loss,
        batch_size=batch_size,
        dtype=None if dtype is None else dtype.name,
        seed=seed,
        examples=source.size,
    )
    check_alike(
        placement,
        {
            **facts,
            "steps": steps,
            "epochs": epochs,
            "metrics": sorted(functions),
            "validation": None if validation is None else {"every": validation.every, "patience": validation.patience},
            "checkpoints": None if checkpoints is None else {"every": checkpoints.every, "resume": checkpoints.resume},
            "examples in data": digest_of_examples(placement, source, layout),
        },
    )
    with jax.enable_x64(layout.wide), ExitStack() as stack:
        state = TrainState(updates.begin({name: start[name] for name in trained}), facts, changed)
        folder = None
        if checkpoints is not None:
            check_shared(placement, Path(checkpoints.folder).absolute())
            folder = stack.enter_context(closing(Folder(checkpoints)))
            _resume(state, placement, folder)
        loop = TrainingLoop(
            updates=updates,
            batches=Batches(source, layout, placement),
            order=order,
            steps=steps,
            state=state,
            validator=validator,
            folder=folder,
            progress=progress,
        )
        stopped = loop.run()
        last = placement.single(updates.params(state.arrays.trained))
        best, best_step = last, state.step
        if state.counters.best_loss is not None:
            best, best_step = placement.single(updates.params(state.best)), state.counters.best_step
    return Fitted(best, last, state.history, state.step, best_step, stopped, layout.used_sequences)


def _resume(state: TrainState, placement: Placement, folder: Folder) -> None:
    """Go on from the newest checkpoint of a folder, if it has one."""
    check_alike(placement, {"checkpoints in the folder, which all processes must see": folder.steps()})
    if not folder.steps():
        return
    if not folder.options.resume:
        raise TrainingError(
            f"resume=False, but {folder.path} has checkpoints already, after updates {folder.steps()}; choose another "
            "folder, or delete it"
        )
    snapshot = folder.newest(set_aside=True)
    assert snapshot is not None, "there are checkpoints"
    check_alike(placement, {"step": snapshot.counters.step})
    differing = differences(snapshot.settings, state.settings)
    if differing:
        more = f" (and {len(differing) - 5} more)" if len(differing) > 5 else ""
        raise TrainingError(
            f"the checkpoints in {folder.path} are of another training: {'; '.join(differing[:5])}{more}. "
            "Choose another folder, or the same settings"
        )
    state.restore(snapshot, placement)
