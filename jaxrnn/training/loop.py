"""The training loop: checked updates, validation, checkpoints, stopping and progress. Bad updates are explained."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import jax
import numpy as np

from jaxrnn._files.progress import progress_bar
from jaxrnn._jax.context import exact_types
from jaxrnn.audio.waveforms import Waveform
from jaxrnn.cells.forms import matrix_products_in
from jaxrnn.comparison import compare
from jaxrnn.errors import InputError, JaxrnnError, TrainingError
from jaxrnn.steps.specs import Arrays
from jaxrnn.training.batches import Batch, BatchChunk, Batches, Order, Position
from jaxrnn.training.callbacks import Callback, Running, StopTraining
from jaxrnn.training.checkpoints import Folder
from jaxrnn.training.parameters import finite
from jaxrnn.training.sharding import AgreedInterrupt
from jaxrnn.training.student import Student
from jaxrnn.training.train_state import Record, TrainState
from jaxrnn.training.updates import Forward, Updates, UpdateState
from jaxrnn.training.validation import Validator

#: The end of a training by a `StopTraining` without a text.
STOPPED = "callback"


@dataclasses.dataclass(frozen=True)
class _PendingUpdate:
    """An update in progress, with the states before and after."""

    batch: Batch
    chunk: BatchChunk
    before: UpdateState
    after: UpdateState
    report: dict[str, Any]
    position: Position


@dataclasses.dataclass
class TrainingLoop:
    """A training in progress. With ``steps`` None, the training ends with the order."""

    updates: Updates
    batches: Batches
    order: Order
    steps: int | None
    state: TrainState
    validator: Validator | None
    folder: Folder | None
    progress: bool | None
    callbacks: Sequence[Callback] = ()
    watched: bool = False  # whether the first process has callbacks that may stop the training
    _stopping: str = ""  # the reason that a callback of the first process gives
    _pending: _PendingUpdate | None = None
    _told: int = 0
    _padding_checked: bool = False

    def run(self) -> str:
        """Train to the end, and return the reason for the end.

        Whatever ends the training in a single process, or an `AgreedInterrupt` in several, first writes a checkpoint of
        all good updates.
        """
        self.state.start_clock()
        self._told = self.state.step
        total = len(self.order) if self.steps is None else self.steps
        with showing(self.progress, total, self._done, self.state.step) as show, contextlib.ExitStack() as watching:
            try:
                if self.state.step and _is_due(self.validator, self.state.step):
                    self._validate(show)
                for callback in self.callbacks:
                    watching.callback(callback.end)
                    with self._stoppable():
                        callback.begin(self._running)
                if not (self._complete or self._is_stopped()):
                    with closing(self.batches.make(self.order, self.state.counters.position.batch)) as made:
                        for batch in made:
                            if self._train_on(batch, show):
                                break
                self._settle(show)
                self._validate(show)
                self._save()
                self._tell()
            except AgreedInterrupt:
                self._settle(show)
                self._save()
                self._tell()
                raise
            except BaseException as error:
                self.state.forget_uncounted()
                if self.updates.placement.processes == 1:  # other processes may be at another update
                    try:
                        self._save()
                        self._tell()
                    except Exception as other:
                        error.add_note(f"then also, while the training ended: {type(other).__name__}: {other}")
                raise
        return "steps" if self._complete else self._stopping

    def _train_on(self, batch: Batch, show: Shown) -> bool:
        """Run updates for the remaining chunks of a batch; returns True at the end of the training."""
        position, arrays, first = self.state.counters.position, self.state.arrays, 0
        if self._pending is not None:
            arrays = self._pending.after
        elif position.batch == batch.number:
            first = position.chunk
        if not first:
            arrays = arrays._replace(carry=self.updates.fresh_carry(len(batch.labels)))
        for index in range(first, len(batch.chunks)):
            chunk, step = batch.chunks[index], self.state.step + 1 + (self._pending is not None)
            self._check_padding(arrays, batch, chunk)
            try:
                after, report = self.updates(arrays, chunk)
            except Exception as error:
                error.add_note(f"in update {step} of the training")
                raise
            # Read the previous update while the device computes the next one.
            self._settle(show)
            position = Position(batch.number, index).after(len(batch.chunks))
            self._pending = _PendingUpdate(batch, chunk, arrays, after, report, position)
            arrays = after
            validates, saves = _is_due(self.validator, step), _is_due(self.folder, step)
            if validates or saves:
                self._settle(show)
            if validates:
                self._validate(show)
                self._tell()
            if saves:
                self._save()
            if step == self.steps or self._is_stopped():
                return True
            self.updates.placement.check_interrupt(step)
        return False

    def _settle(self, show: Shown) -> None:
        """Wait for the update in progress, check that it is finite, and count it."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        self._tell()
        report, step = jax.device_get(pending.report), self.state.step + 1
        loss = float(report["loss"])
        if not bool(report["finite"]):
            self._save()
            reason = explain(self.updates, pending.before, pending.after, pending.chunk, pending.batch.labels)
            raise TrainingError(f"update {step} is not finite (loss {loss:g}): {reason}. {self._last_good()}")
        record: Record = {"step": step, "loss": loss}
        record |= {name: float(report[name]) for name in ("grad_norm", "param_norm")}
        if "learning_rate" in report:
            record["learning_rate"] = float(report["learning_rate"])
        record["seconds"] = self.state.seconds
        record |= {name: float(value) for name, value in report["metrics"].items()}
        # The carry after the last chunk of a batch is not needed.
        carry = pending.after.carry if pending.position.chunk else {}
        self.state.add(pending.after._replace(carry=carry), pending.position, record)
        show(self._done, step, loss, None)

    def _validate(self, show: Shown) -> None:
        """Validate the parameters after the last update, unless this was already done."""
        state = self.state
        if self.validator is None or state.counters.validated_step == state.step:
            return
        measured = self.validator(self.updates.params(state.arrays.judged))
        if not math.isfinite(measured["loss"]):
            self._save()
            raise TrainingError(
                f"the validation loss after update {state.step} is {measured['loss']}, though the loss of every update "
                "was finite: look for examples in validation= that are not like those of the training. "
                f"{self._last_good()}"
            )
        state.judge(measured)
        show(self._done, state.step, state.history[-1]["loss"], measured["loss"])

    def _tell(self) -> None:
        """Give callbacks the complete records, which have the results of a validation."""
        records, self._told = self.state.history[self._told :], self.state.step
        for record in records:
            for callback in self.callbacks:
                with self._stoppable():
                    callback.update(record, self._running)

    @contextlib.contextmanager
    def _stoppable(self) -> Iterator[None]:
        try:
            yield
        except StopTraining as stop:
            self._stopping = self._stopping or str(stop) or STOPPED

    def _is_stopped(self) -> bool:
        """Return True in all processes if a callback of the first has stopped the training."""
        if self.watched and self.updates.placement.agree([bool(self._stopping)]).any():
            self._stopping = self._stopping or STOPPED
        return bool(self._stopping)

    @functools.cached_property
    def _running(self) -> Running:
        def params() -> dict[str, Any]:
            return self.updates.placement.single(self.updates.params(self.state.arrays.judged))

        def examples(count: int) -> Iterator[dict[str, Any]]:
            return iter(()) if self.validator is None else self.validator.examples(params(), count)

        return Running(self.state.history, params, examples)

    def _save(self) -> None:
        """Write a checkpoint after the last update, unless one exists, as after an interrupt during writing."""
        state = self.state
        if self.folder is None or not state.step or state.step in self.folder.steps():
            return
        best_step = None if state.counters.best_loss is None else state.counters.best_step
        self.folder.save(state.snapshot(self.updates.placement), best_step)

    def _last_good(self) -> str:
        if self.folder is None:
            return "No checkpoint was kept: give checkpoints=FOLDER."
        return self.folder.describe_last()

    def _check_padding(self, arrays: UpdateState, batch: Batch, chunk: BatchChunk) -> None:
        """Check once, on the first batch with unequal lengths, that padding does not change the loss."""
        if chunk.ragged and not self._padding_checked:
            self._padding_checked, problem = True, None
            try:
                check_padding(self.updates.forward, self.updates.params(arrays.trained), chunk, batch.labels)
            except JaxrnnError as error:
                problem = error
            self.updates.placement.agree([], problem)

    @property
    def _complete(self) -> bool:
        return self._done >= (len(self.order) if self.steps is None else self.steps)

    @property
    def _done(self) -> int:
        """Return the number of updates, or of batches if ``steps`` is None."""
        return self.state.counters.position.batch if self.steps is None else self.state.step


def _is_due(what: Validator | Folder | None, step: int) -> bool:
    return what is not None and step % what.options.every == 0


#: A function that shows progress: the amount done, updates, their loss, and the validation loss or None.
Shown = Callable[[int, int, float, float | None], None]

_logger = logging.getLogger("jaxrnn.training")


def announce(line: str, progress: bool | None) -> None:
    """Log a line at the start of a training, and print it if progress is shown."""
    _logger.info(line)
    if sys.stderr.isatty() if progress is None else progress:
        print(line, file=sys.stderr)


@contextlib.contextmanager
def showing(progress: bool | None, total: int, done: int, updates: int) -> Iterator[Shown]:
    """Show a progress bar inside the context; ``progress`` None shows the bar if standard error is a terminal."""
    began, before = time.monotonic(), updates
    mean: float | None = None
    best: float | None = None
    texts = ("update {task.fields[updates]}", "{task.fields[rate]}", "{task.fields[loss]}")
    fields = {"updates": updates, "rate": "", "loss": ""}
    with progress_bar("training", total, *texts, shown=progress, stays=True, completed=done, **fields) as bar:

        def show(done: int, updates: int, loss: float, validation: float | None) -> None:
            nonlocal mean, best
            mean = loss if mean is None else 0.95 * mean + 0.05 * loss
            best = validation if validation is not None else best
            rate = f"{(updates - before) / max(time.monotonic() - began, 1e-9):.3g}/s"
            text = f"loss {mean:.4g}" + ("" if best is None else f", validation {best:.4g}")
            bar(done, updates=updates, rate=rate, loss=text)

        yield show


def explain(updates: Updates, before: UpdateState, after: UpdateState, chunk: BatchChunk, labels: list[str]) -> str:
    """Describe the first value that is not finite in an update."""
    trained = [name for name in updates.forward.model.program.parameters if name in before.trained]
    carry = {}
    for name, array in before.carry.items():
        shards = sorted(array.addressable_shards, key=lambda shard: shard.index[0].start or 0)
        carry[name] = np.concatenate([np.asarray(shard.data) for shard in shards])
    with matrix_products_in(updates.forward.dtype):
        reason = _on_examples(updates.forward, updates.params(before.trained), carry, chunk, trained, labels)
    if reason:
        return reason
    if updates.placement.processes > 1:
        return "the loss and the gradients of every example of this process are finite; see what the others say"
    bad = next((name for name in trained if not finite(after.trained[name])), None)
    if bad is None:
        return "the loss and the gradients of every example are finite, but not their means"
    return (
        f"the gradients are finite, but the update makes parameters infinite or NaN, the first of them {bad!r}; the "
        "learning rate may be too high"
    )


def _on_examples(
    forward: Forward, params: Arrays, carry: Arrays, chunk: BatchChunk, trained: list[str], labels: list[str]
) -> str:
    arrays, mask, weights = chunk.own
    device = next(iter(chunk.mask.addressable_shards)).device
    with jax.default_device(device), exact_types():
        params = jax.device_put({name: np.asarray(value) for name, value in params.items()})

        def row(index: int) -> tuple[Any, Any, Any]:
            return jax.tree.map(lambda x: jax.device_put(x[index]), (carry, arrays, mask))

    def loss_of(values: Arrays, state: Arrays, example: Arrays, mask: jax.Array) -> jax.Array:
        return forward.measure({**params, **values}, state, example, mask, chunk.ragged)[0]

    gradients = jax.jit(jax.value_and_grad(loss_of))
    values = {name: params[name] for name in trained}
    for index in map(int, np.flatnonzero(weights)):
        for name, array in {**arrays, **carry}.items():
            if not finite(array[index]):
                return f"{name!r} of {labels[index]} holds {_kind(array[index])}"
        loss, gradient = gradients(values, *row(index))
        bad = [name for name in trained if not finite(gradient[name])]
        if np.isfinite(loss) and not bad:
            continue
        if not np.isfinite(loss):
            where = _first_node(forward, params, *row(index), chunk.ragged)
            reason = where or "every output of the model is finite there, so it is the loss function that is not"
            return f"the loss of {labels[index]} is {_kind(np.asarray(loss))}; {reason}"
        return (
            f"the loss of {labels[index]} is finite ({float(loss):.4g}), but the first parameter whose gradient is not "
            f"is {bad[0]!r} ({_kind(gradient[bad[0]])})"
        )
    return ""


def _first_node(forward: Forward, params: Arrays, state: Arrays, example: Arrays, mask: Any, ragged: bool) -> str:
    layout, model = forward.layout, forward.model
    inputs = {info.name: example[info.name] for info in layout.inputs}
    if layout.mode != "scan":
        return _walk(forward, params, {**inputs, **forward.state_inputs(state)}, "")
    step = jax.jit(model.step)
    for frame in range(int(np.asarray(mask).sum())):
        here = {}
        for info in layout.inputs:
            value, axis = inputs[info.name], layout.axes.get(info.name)
            if axis is None:
                here[info.name] = value
            elif value.ndim == len(info.shape or ()):
                size = value.shape[axis] // mask.shape[0]
                here[info.name] = jax.lax.slice_in_dim(value, frame * size, (frame + 1) * size, axis=axis)
            else:
                here[info.name] = jax.lax.index_in_dim(value, frame, axis, keepdims=False)
        outputs, new = step(params, state, here)
        if not all(map(finite, [*outputs.values(), *new.values()])):
            return _walk(forward, params, {**here, **forward.state_inputs(state)}, f", in frame {frame}")
        state = new
    return ""


def _walk(forward: Forward, params: Arrays, inputs: Arrays, where: str) -> str:
    if isinstance(forward.model, Waveform | Student):  # without nodes
        bad = [name for name, value in forward.model.apply(params, inputs).items() if not finite(value)]
        return f"output {bad[0]!r} of {forward.model.label} is not finite" if bad else ""
    for name, (node, value) in forward.model.intermediates(params, inputs).items():
        for leaf in jax.tree.leaves(value):
            if not finite(leaf):
                return (
                    f"the first node whose output is not finite is {node.name!r} ({node.operator}), output {name!r}"
                    f"{where}: {_kind(leaf)}"
                )
    return ""


def _kind(array: Any) -> str:
    wide = np.asarray(array)
    wide = wide if wide.dtype.kind in "fc" else wide.astype(np.float32)
    return "NaN" if np.isnan(wide).any() else "infinity"


Outputs = dict[str, np.ndarray]
#: An example with its mask: without padding, and with padding.
Sides = tuple[tuple[Any, jax.Array], ...]


def check_padding(forward: Forward, params: Mapping[str, Any], chunk: BatchChunk, labels: list[str]) -> None:
    """Compare the loss of the shortest example of a batch with and without padding.

    A loss may ignore the mask. Apart from `Model.scan`, which takes lengths, the graph sees missing frames: harmless
    for causal models, but not for a reverse recurrence or a mean over time. An InputError names the cause, the
    model or the loss.
    """
    arrays, mask, weights = chunk.own
    counts = np.where(weights, mask.sum(1), mask.shape[1])
    row, frames = int(counts.argmin()), int(counts.min())
    if frames == mask.shape[1]:
        return
    if isinstance(forward.model, Student):
        raise InputError(
            f"{labels[row]} was padded from {frames} to {mask.shape[1]} frames, and the outputs of a student and of a "
            "teacher depend on the last frame. Train on examples of one length, or with batch_size=1 and bucket=1"
        )
    long = {name: array[row] for name, array in arrays.items()}
    short = {}
    for name, array in long.items():
        axis, lengths = forward.layout.axes.get(name), chunk.own_lengths.get(name)
        if axis is not None:
            length = array.shape[axis] * frames // mask.shape[1] if lengths is None else lengths[row]
            array = array.take(np.arange(length), axis)
        short[name] = array
    with exact_types():
        values = jax.device_put({name: np.asarray(value) for name, value in params.items()})
        state = {} if forward.layout.mode == "apply" else forward.model.init()
        sides = jax.device_put(((short, np.ones(frames, bool)), (long, mask[row])))

    @jax.jit
    def run(sides: Sides) -> list[Any]:
        return [forward.run(values, state, *side, True)[0] for side in sides]

    @jax.jit
    def judge(outputs: Sequence[Any], sides: Sides) -> list[jax.Array]:
        return [forward.judge(*each)[0] for each in zip(outputs, *zip(*sides, strict=True), strict=True)]

    low_precision = forward.dtype is not None or any(x.dtype.itemsize == 2 for x in values.values())
    tolerance = 0.05 if low_precision else 1e-3

    def losses(outputs: Sequence[Any]) -> tuple[float, float, bool | None]:
        """Return both losses, and whether they differ; None if a loss is not finite."""
        short, long = map(float, judge(outputs, sides))
        if not np.isfinite([short, long]).all():
            return short, long, None
        return short, long, abs(long - short) > tolerance * (abs(long) + abs(short) + 1e-3)

    said = f"{labels[row]} was padded from {frames} to {mask.shape[1]} frames, and that changes its loss"
    ignored = (
        "also where the model's outputs are the same in every frame that exists: the loss must leave out the frames "
        "where its mask is False"
    )
    *_, differ = losses(_made_up(*jax.eval_shape(run, sides)))
    if differ:
        raise InputError(f"{said}, {ignored}")
    if forward.layout.mode == "scan" and differ is False:
        return
    without, padded = run(sides)
    expected, actual, differ = losses((without, padded))
    if not differ and np.isfinite(expected) == np.isfinite(actual):
        return
    said = f"{said} from {expected:.6g} to {actual:.6g}"
    changed = [name for name in without if _differ(without[name], padded[name], tolerance)]
    if not changed:
        raise InputError(f"{said}, {ignored}")
    raise InputError(
        f"{said}, through output {changed[0]!r}: the model looks ahead, takes a mean over time, or gives its last "
        "state. Train it on examples of one length, with batch_size=1 and bucket=1, in mode 'scan' if it has a state, "
        "or through an input of the file that takes lengths"
    )


def _made_up(short: Mapping[str, Any], long: Mapping[str, Any]) -> tuple[Outputs, Outputs]:
    """Return random outputs between 0 and 1 that agree in common frames, with zeros in further frames."""
    rng, without, padded = np.random.default_rng(0), {}, {}
    for name, shape in short.items():
        values = rng.uniform(0.1, 0.9, shape.shape)
        without[name] = values.astype(shape.dtype)
        widths = [(0, more - less) for less, more in zip(shape.shape, long[name].shape, strict=True)]
        padded[name] = np.pad(without[name], widths)
    return without, padded


def _differ(without: Any, padded: Any, tolerance: float) -> bool:
    expected, actual = np.asarray(without, np.float64), np.asarray(padded, np.float64)
    actual = actual[tuple(slice(0, size) for size in expected.shape)]
    scale = np.abs(expected).max(initial=0.0, where=np.isfinite(expected)) + 1e-6
    return compare("", actual, expected, atol=tolerance * scale, rtol=0.0).differs
