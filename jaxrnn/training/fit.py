"""`fit`: fine-tuning a model on examples."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrnn.cells.chunks import Remat
from jaxrnn.errors import InputError, TrainingError
from jaxrnn.training.arguments import check_count, check_end, check_functions, check_precision, training_facts
from jaxrnn.training.batches import Batches
from jaxrnn.training.checkpoints import Folder
from jaxrnn.training.course import Course
from jaxrnn.training.evaluate import Evaluation, computes_wide, state_names
from jaxrnn.training.examples import Example, Source, make_source, read_example
from jaxrnn.training.fitted import Fitted
from jaxrnn.training.forward import Forward, Function
from jaxrnn.training.layout import TimeAxis, find_mode, inputs_of, make_layout
from jaxrnn.training.loop import Loop, Plan
from jaxrnn.training.optimizers import make_optimizer
from jaxrnn.training.parameters import Patterns, start_values, trained_names
from jaxrnn.training.sharding import Placement
from jaxrnn.training.snapshots import differences, digest_of_all
from jaxrnn.training.updates import Updates

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
    optimizer: str | optax.GradientTransformation = "adam",
    learning_rate: float | Callable[[Any], Any] | None = None,
    clip_norm: float | None = None,
    train: Patterns = "*",
    freeze: Patterns = (),
    params: Mapping[str, Any] | None = None,
    mode: str | None = None,
    time_axis: TimeAxis = None,
    chunk: int | None = None,
    bucket: int = 1,
    remat: Remat = None,
    compute_dtype: Any = None,
    devices: Sequence[Any] | None = None,
    metrics: Mapping[str, Function] | None = None,
    validation: Sequence[Mapping[str, Any]] | None = None,
    every: int = 100,
    patience: int | None = None,
    checkpoints: str | os.PathLike[str] | None = None,
    keep: int = 3,
    resume: bool = True,
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
            ``bool[frames]``. An update makes its mean over the examples of a batch smaller.
        steps: updates, or
        epochs: passes over the data.
        batch_size: examples in an update, on all devices of all processes together.
        optimizer: the name of one in optax, or an ``optax.GradientTransformation``, which has its own learning rate.
        learning_rate: a number or an optax schedule; 1e-3 by default.
        clip_norm: the largest global norm of the gradients.
        train: name patterns (as of files) of the parameters that are trained.
        freeze: name patterns of those among them that are not.
        params: the parameters to begin with; the file's by default.
        mode: ``"apply"`` runs whole sequences without state, ``"scan"`` runs `Model.scan` over frames, ``"step"`` runs
            `Model.step` on sequences along the file's own time dimension. By default, apply for a model without state
            of its own, else step if an open dimension besides the batch is time, else scan.
        time_axis: which axis of the example's arrays is time: one for all that have such an axis, or one by name, where
            arrays without a name are constant. Lengths may then be unequal, and rates too. An output's axis may be
            named where ``scan`` is to put its frames elsewhere than in front.
        chunk: frames in each chunk of truncated back-propagation through time. There is one update for each chunk, the
            state is carried on without its gradient, and starts anew with each batch. An example without a frame left
            counts nowhere. None for whole sequences.
        bucket: lengths are padded to multiples of it, so that fewer lengths are compiled.
        remat: what the backward pass of recurrences computes again to need less memory: None, ``"sqrt"``, or frames.
        compute_dtype: ``"bfloat16"`` for matrix products in that type; parameters and their sums stay as they are.
        devices: the devices that a batch is split over; all by default. Rows that do not count fill it up.
        metrics: more functions like the loss, by name; measured on the validation examples, or on the batches where
            there are none.
        validation: examples that are not trained on.
        every: updates between validations, and between checkpoints.
        patience: validations without a better loss before the training stops early.
        checkpoints: a folder to write checkpoints to. A training that finds one there goes on from it.
        keep: how many of the newest checkpoints stay, besides the best.
        resume: False to refuse a folder with checkpoints.
        seed: of everything that is drawn.
        progress: whether to show a progress bar on standard error; by default, if that is a terminal.

    Returns:
        The parameters and the history.

    Raises:
        InputError: an argument or an example does not fit.
        StateError: the model forgets its state, so that it has no steps.
        TrainingError: a loss or gradient is not finite; a checkpoint cannot be written, or is of another training.
        MissingPackageError: optax, or Orbax for checkpoints, is not installed.
        KeyboardInterrupt: with a checkpoint of the updates until then, where there is a folder.
    """
    for name, value in {"batch_size": batch_size, "bucket": bucket, "every": every, "keep": keep}.items():
        check_count(name, value)
    for name, value in {"chunk": chunk, "patience": patience}.items():
        if value is not None:
            check_count(name, value)
    seed = check_count("seed", seed, 0)
    functions = check_functions(loss, metrics)
    compute_dtype = check_precision(remat, compute_dtype)
    if patience is not None and validation is None:
        raise InputError("patience= counts validations: give validation= examples as well")
    if chunk is not None and time_axis is None:
        raise InputError("chunk= needs time_axis=, which says which axis of each array is cut into chunks")
    source = make_source(data, seed)
    check_end(steps, epochs, source.size)
    if source.size is not None and source.size < batch_size:
        raise InputError(f"batch_size={batch_size} is more than the {source.size} examples in data")
    chosen = make_optimizer(optimizer, learning_rate, clip_norm)

    trained = trained_names(model, train, freeze)
    start = start_values(model, params, trained)
    frozen = {name: value for name, value in start.items() if name not in trained}
    changed = {
        name: value
        for name, value in frozen.items()
        if digest_of_all({name: value}) != digest_of_all({name: model.params[name]})
    }

    mode = find_mode(model, mode)
    wide = computes_wide(model)
    label, first = _first_example(source, model, mode, batch_size, wide)
    layout = make_layout(model, mode, first, label, time_axis=time_axis, chunk=chunk, bucket=bucket)
    placement = Placement(devices, batch_size)
    on_batches = functions if validation is None else {}
    forward = Forward(model, layout, loss, on_batches, remat, compute_dtype)
    updates = Updates(forward, chosen, placement, frozen)
    state = state_names(model, mode)
    batches = Batches(source, layout, placement, state, wide=wide)
    evaluation = None
    if validation is not None:
        held_out = make_source(validation, None, what="validation")
        size = min(batch_size, len(validation))
        whole = dataclasses.replace(layout, chunk=None)
        rows = Placement(devices, size)
        measured = dataclasses.replace(forward, layout=whole, metrics=functions, remat=None)
        evaluation = Evaluation(measured, rows, held_out, Batches(held_out, whole, rows, state, wide=wide), size)

    settings = training_facts(
        model,
        layout,
        start,
        trained,
        chosen,
        loss,
        batch_size=batch_size,
        clip_norm=clip_norm,
        compute_dtype=compute_dtype,
        seed=seed,
        examples=source.size,
    )
    settings["frozen parameters"] = digest_of_all(frozen)
    plan = Plan(steps, epochs, batch_size, every, patience, settings, changed, progress)
    with jax.enable_x64(wide), ExitStack() as stack:
        folder = None if checkpoints is None else stack.enter_context(closing(Folder(checkpoints, keep=keep)))
        course = Course(updates.begin({name: start[name] for name in trained}))
        if folder is not None:
            _resume(course, placement, folder, settings, resume)
        stopped = Loop(updates, batches, source, evaluation, folder, plan, course).run()
        last = placement.single(updates.params(course.state.trained))
        best, best_step = last, course.step
        if course.best_loss is not None:
            best, best_step = placement.single(updates.params(course.best)), course.best_step
    return Fitted(best, last, course.history, course.step, best_step, stopped)


def _first_example(source: Source, model: Model, mode: str, batch_size: int, wide: bool) -> tuple[str, Example]:
    """The first example in the order of the training, which the others must be like."""
    label, value = source.get(0, 0, 0, batch_size)
    try:
        return label, read_example(value, inputs_of(model, mode), state_names(model, mode), wide=wide)
    except InputError as error:
        raise InputError(f"{label}: {error}") from error


def _resume(course: Course, placement: Placement, folder: Folder, settings: dict[str, Any], resume: bool) -> None:
    """Go on from the newest checkpoint of a folder, if it has one."""
    if not folder.steps():
        return
    if not resume:
        raise TrainingError(
            f"resume=False, but {folder.path} has checkpoints already, behind updates {folder.steps()}; choose another "
            "folder, or delete it"
        )
    snapshot = folder.newest(set_aside=True)
    assert snapshot is not None, "there are checkpoints"
    others = differences(snapshot.settings, settings)
    if others:
        more = f" (and {len(others) - 5} more)" if len(others) > 5 else ""
        raise TrainingError(
            f"the checkpoints in {folder.path} are of another training: {'; '.join(others[:5])}{more}. Choose another "
            "folder, or the same settings"
        )
    course.restore(snapshot, placement)
