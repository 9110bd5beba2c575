"""The training loop: updates in order, each checked once the next is under way; validation, checkpoints, stopping."""

from __future__ import annotations

import dataclasses
import math
from contextlib import closing
from typing import Any

import jax

from jaxrnn.errors import JaxrnnError, TrainingError
from jaxrnn.training.batches import Batch, BatchChunk, Batches
from jaxrnn.training.checkpoints import Folder
from jaxrnn.training.diagnosis import explain
from jaxrnn.training.order import Order, Position
from jaxrnn.training.padding import check_padding
from jaxrnn.training.progress import Shown, showing
from jaxrnn.training.sharding import AgreedInterrupt
from jaxrnn.training.snapshots import Record
from jaxrnn.training.train_state import TrainState
from jaxrnn.training.updates import Updates, UpdateState
from jaxrnn.training.validation import Validator


@dataclasses.dataclass(frozen=True)
class _PendingUpdate:
    """An update that is under way: what it began with, and what it will give."""

    batch: Batch
    chunk: BatchChunk
    before: UpdateState
    after: UpdateState
    report: dict[str, Any]
    position: Position


@dataclasses.dataclass
class TrainingLoop:
    """A training that is under way; `run` brings it to its end.

    Attributes:
        updates: the compiled update.
        batches: what makes batches of the examples.
        order: which examples are in which batch; where ``steps`` is None, the training ends with it.
        steps: updates, or None.
        state: where it begins.
        validator: measures the validation examples; None where there are none.
        folder: of the checkpoints; None to keep none.
        progress: whether to show progress.
    """

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
        """Train until the end: why it ended.

        Raises:
            TrainingError: something was not finite, or a checkpoint could not be written.
            KeyboardInterrupt: after a checkpoint of all updates that are known to be good. In several processes an
                `AgreedInterrupt`; any other leaves no checkpoint.
        """
        self.state.start_clock()
        total = len(self.order) if self.steps is None else self.steps
        with showing(self.progress, total, self._done, self.state.step) as show:
            try:
                return self._run(show)
            except AgreedInterrupt:
                self._settle(show)
                self._save()
                raise
            except KeyboardInterrupt:
                self.state.forget_uncounted()
                if self.updates.placement.processes == 1:  # others may be at another update
                    self._save()
                raise

    def _run(self, show: Shown) -> str:
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
        return "steps" if self._complete else "patience"

    def _train_on(self, batch: Batch, show: Shown) -> bool:
        """An update for each chunk of a batch, or for the rest of them; whether the training is at its end."""
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
            # Looked at only now: the device works on the next update while this one is read.
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
        """Wait for the update that is under way, see that it is finite, and count it as done."""
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
        # After the last chunk of a batch the carry is of no use, and a checkpoint need not have it.
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
        """Write a checkpoint after the last update, if there is none yet."""
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
        """Once, on the first batch with unequal lengths: see that frames which do not exist change nothing."""
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
        """Updates of those asked for; where passes over the data are, batches."""
        return self.state.counters.position.batch if self.steps is None else self.state.step


def _is_due(what: Validator | Folder | None, step: int) -> bool:
    return what is not None and step % what.options.every == 0
