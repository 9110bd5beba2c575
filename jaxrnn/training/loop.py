"""The training loop: updates, each checked while the next one runs; validation, checkpoints, stopping, progress."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import jax

from jaxrnn._files.progress import progress_bar
from jaxrnn.errors import JaxrnnError, TrainingError
from jaxrnn.training.batches import Batch, BatchChunk, Batches, Order, Position
from jaxrnn.training.checkpoints import Folder
from jaxrnn.training.diagnosis import check_padding, explain
from jaxrnn.training.sharding import AgreedInterrupt
from jaxrnn.training.train_state import Record, TrainState
from jaxrnn.training.updates import Updates, UpdateState
from jaxrnn.training.validation import Validator


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
    _pending: _PendingUpdate | None = None
    _padding_checked: bool = False

    def run(self) -> str:
        """Train to the end, and return the reason for the end.

        After Ctrl-C, and in several processes after an `AgreedInterrupt`, a checkpoint holds all good updates.
        """
        self.state.start_clock()
        total = len(self.order) if self.steps is None else self.steps
        with showing(self.progress, total, self._done, self.state.step) as show:
            try:
                if self.state.step and _is_due(self.validator, self.state.step):
                    self._validate(show)
                if not (self._complete or self._out_of_patience):
                    with closing(self.batches.make(self.order, self.state.counters.position.batch)) as made:
                        for batch in made:
                            if self._train_on(batch, show):
                                break
                self._settle(show)
                if not self._out_of_patience:
                    self._validate(show)
                self._save()
            except AgreedInterrupt:
                self._settle(show)
                self._save()
                raise
            except KeyboardInterrupt:
                self.state.forget_uncounted()
                if self.updates.placement.processes == 1:  # other processes may be at another update
                    self._save()
                raise
        return "steps" if self._complete else "patience"

    def _train_on(self, batch: Batch, show: Shown) -> bool:
        """Run updates for the remaining chunks of a batch; returns True at the end of the training."""
        position, arrays, first = self.state.counters.position, self.state.arrays, 0
        if self._pending is not None:
            arrays = self._pending.after
        elif position.batch == batch.number:
            first = position.chunk
        if not first:
            arrays = arrays._replace(carry=self.updates.fresh_carry)
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
            if saves:
                self._save()
            if step == self.steps or self._out_of_patience:
                return True
            self.updates.placement.check_interrupt(step)
        return False

    def _settle(self, show: Shown) -> None:
        """Wait for the update in progress, check that it is finite, and count it."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        report, step = jax.device_get(pending.report), self.state.step + 1
        loss = float(report["loss"])
        if not bool(report["finite"]):
            reason = explain(self.updates, pending.before, pending.after, pending.chunk, pending.batch.labels)
            raise TrainingError(f"update {step} is not finite (loss {loss:g}): {reason}. {self._last_good()}")
        record: Record = {"step": step, "loss": loss, "grad_norm": float(report["grad_norm"])}
        if "learning_rate" in report:
            record["learning_rate"] = float(report["learning_rate"])
        record["seconds"] = self.state.seconds
        record |= {name: float(value) for name, value in report["metrics"].items()}
        # The carry after the last chunk of a batch is not needed.
        carry = pending.after.carry if pending.position.chunk else {}
        self.state.add(pending.after._replace(carry=carry), pending.position, record)
        show(self._done, step, loss, None)

    def _validate(self, show: Shown) -> None:
        """Measure the validation examples with the parameters after the last update, once."""
        state = self.state
        if self.validator is None or state.counters.validated_step == state.step:
            return
        measured = self.validator(self.updates.params(state.arrays.trained))
        if not math.isfinite(measured["loss"]):
            raise TrainingError(
                f"the validation loss after update {state.step} is {measured['loss']}, though the loss of every update "
                "was finite: look for examples in validation= that are not like those of the training. "
                f"{self._last_good()}"
            )
        state.judge(measured)
        show(self._done, state.step, state.history[-1]["loss"], measured["loss"])

    def _save(self) -> None:
        """Write a checkpoint after the last update, unless one exists."""
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
        """Check once, on the first batch with unequal lengths, that missing frames change nothing."""
        if chunk.ragged and not self._padding_checked:
            self._padding_checked, problem = True, None
            try:
                check_padding(self.updates.forward, self.updates.params(arrays.trained), chunk, batch.labels)
            except JaxrnnError as error:
                problem = error
            self.updates.placement.agree([], problem)

    @property
    def _out_of_patience(self) -> bool:
        patience = None if self.validator is None else self.validator.options.patience
        return patience is not None and self.state.counters.patience_counter >= patience

    @property
    def _complete(self) -> bool:
        return self._done >= (len(self.order) if self.steps is None else self.steps)

    @property
    def _done(self) -> int:
        """Return the number of updates, or with passes over the data of batches."""
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
