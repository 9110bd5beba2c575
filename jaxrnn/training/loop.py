"""The training loop: updates in order, each checked once the next is under way; validation, checkpoints, stopping."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import jax

from jaxrnn.errors import JaxrnnError, TrainingError
from jaxrnn.training.batches import Batch, Batches, Chunk
from jaxrnn.training.checkpoints import Folder
from jaxrnn.training.course import Course
from jaxrnn.training.diagnosis import explain
from jaxrnn.training.examples import Position, Source, batches_from, behind
from jaxrnn.training.history import Record
from jaxrnn.training.options import Checkpoints, Validation
from jaxrnn.training.padding import check_padding
from jaxrnn.training.progress import Shown, showing
from jaxrnn.training.updates import TrainState, Updates
from jaxrnn.training.validation import Validator


@dataclasses.dataclass(frozen=True)
class Plan:
    """How long a training runs, and what happens on the way.

    Attributes:
        steps: updates, or None.
        epochs: passes over the data, or None.
        batch_size: examples in a batch.
        validation: how often, and what ends the training early; None where there are no validation examples.
        checkpoints: how often; None to keep none.
        settings: what a checkpoint must have in common with the training.
        changed: the frozen parameters that are not the file's.
        progress: whether to show progress.
    """

    steps: int | None
    epochs: int | None
    batch_size: int
    validation: Validation | None
    checkpoints: Checkpoints | None
    settings: dict[str, Any]
    changed: Mapping[str, Any]
    progress: bool | None


@dataclasses.dataclass(frozen=True)
class _Pending:
    """An update that is under way: what it began with, and what it will give."""

    batch: Batch
    chunk: Chunk
    before: TrainState
    after: TrainState
    report: dict[str, Any]
    position: Position


class Loop:
    """A training that is under way; `run` brings it to its end.

    Args:
        updates: the compiled update.
        batches: what makes batches of the examples.
        source: the examples.
        validator: of the validation examples, or None.
        folder: of the checkpoints, or None.
        plan: how long, and what on the way.
        course: where it begins.
    """

    def __init__(
        self,
        updates: Updates,
        batches: Batches,
        source: Source,
        validator: Validator | None,
        folder: Folder | None,
        plan: Plan,
        course: Course,
    ):
        self._updates, self._batches, self._source = updates, batches, source
        self._validator, self._folder, self._plan, self._course = validator, folder, plan, course
        self._pending: _Pending | None = None
        self._padding_checked = False

    def run(self) -> str:
        """Train until the end: why it ended.

        Raises:
            TrainingError: something was not finite, or a checkpoint could not be written.
            KeyboardInterrupt: after a checkpoint of all updates that are known to be good.
        """
        self._course.start_clock()
        with showing(self._plan.progress, self._total(), self._done(), self._course.step) as show:
            try:
                return self._run(show)
            except KeyboardInterrupt:
                self._course.forget_uncounted()
                if self._updates.placement.processes == 1:  # others may be at another update
                    self._save()
                raise

    def _run(self, show: Shown) -> str:
        plan, course = self._plan, self._course
        if course.step and _is_due(plan.validation, course.step):
            self._validate(show)
        places = batches_from(course.position, self._source.size, plan.batch_size, plan.epochs)
        if self._complete() or self._out_of_patience():
            places = iter(())
        with closing(self._batches.make(places, plan.batch_size)) as made:
            for batch in made:
                if self._batch(batch, show):
                    break
        self._settle(show)
        if not self._out_of_patience():
            self._validate(show)
        self._save()
        return "steps" if self._complete() else "patience"

    def _batch(self, batch: Batch, show: Shown) -> bool:
        """All chunks of a batch, or the rest of them; whether the training is at its end."""
        plan, course, count = self._plan, self._course, len(batch.chunks)
        state, first = course.state, 0
        if self._pending is not None:
            state = self._pending.after
        elif dataclasses.replace(course.position, chunk=0) == batch.position:
            first = course.position.chunk
        if not first:
            state = state._replace(carry=self._updates.fresh_carry)
        for index in range(first, count):
            chunk, number = batch.chunks[index], course.step + 1 + (self._pending is not None)
            self._check_padding(state, batch, chunk)
            try:
                after, report = self._updates(state, chunk)
            except Exception as error:
                error.add_note(f"in update {number} of the training")
                raise
            # Looked at only now: the device works on the next update while this one is read.
            self._settle(show)
            here = dataclasses.replace(batch.position, chunk=index)
            self._pending = _Pending(
                batch, chunk, state, after, report, behind(here, count, self._source.size, plan.batch_size)
            )
            state = after
            validates, saves = (_is_due(each, number) for each in (plan.validation, plan.checkpoints))
            if validates or saves:
                self._settle(show)
            if validates:
                self._validate(show)
            if saves:
                self._save()
            if self._out_of_patience():
                return True
            if number == plan.steps:
                return True
        return False

    def _settle(self, show: Shown) -> None:
        """Wait for the update that is under way, see that it is finite, and count it as done."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        report, number = jax.device_get(pending.report), self._course.step + 1
        loss = float(report["loss"])
        if not bool(report["finite"]):
            reason = explain(self._updates, pending.before, pending.after, pending.chunk, pending.batch.labels)
            raise TrainingError(f"update {number} is not finite (loss {loss:g}): {reason}. {self._last_good()}")
        record: Record = {"step": number, "loss": loss, "grad_norm": float(report["grad_norm"])}
        if "learning_rate" in report:
            record["learning_rate"] = float(report["learning_rate"])
        record["seconds"] = self._course.seconds
        record |= {name: float(value) for name, value in report["metrics"].items()}
        # Behind the last chunk of a batch the carry is of no use, and a checkpoint need not have it.
        carry = pending.after.carry if pending.position.chunk else {}
        self._course.add(pending.after._replace(carry=carry), pending.position, record)
        show(self._done(), number, loss, None)

    def _validate(self, show: Shown) -> None:
        """Measure the validation examples with the parameters behind the last update, once."""
        course = self._course
        if self._validator is None or course.validated == course.step:
            return
        found = self._validator(self._updates.params(course.state.trained))
        if not math.isfinite(found["loss"]):
            raise TrainingError(
                f"the validation loss behind update {course.step} is {found['loss']}, though the loss of every update "
                "was finite: look for examples in validation= that are not like those of the training. "
                f"{self._last_good()}"
            )
        course.judge(found)
        show(self._done(), course.step, course.history[-1]["loss"], found["loss"])

    def _save(self) -> None:
        """Write a checkpoint behind the last update, if there is none yet."""
        course = self._course
        if self._folder is None or not course.step or course.step in self._folder.steps():
            return
        snapshot = course.snapshot(self._updates.placement, self._plan.settings, self._plan.changed)
        self._folder.save(snapshot, course.best_step if course.best_loss is not None else None)

    def _last_good(self) -> str:
        if self._folder is None:
            return "No checkpoint was kept: give checkpoints=FOLDER."
        return self._folder.describe_last()

    def _check_padding(self, state: TrainState, batch: Batch, chunk: Chunk) -> None:
        """Once, on the first batch with unequal lengths: see that frames which do not exist change nothing."""
        if chunk.ragged and not self._padding_checked:
            self._padding_checked, problem = True, None
            try:
                check_padding(self._updates.forward, self._updates.params(state.trained), chunk, batch.labels)
            except JaxrnnError as error:
                problem = error
            self._updates.placement.agree([], problem)

    def _out_of_patience(self) -> bool:
        validation = self._plan.validation
        patience = None if validation is None else validation.patience
        return patience is not None and self._course.waited >= patience

    def _complete(self) -> bool:
        if self._plan.steps is not None:
            return self._course.step >= self._plan.steps
        return self._course.position.epoch >= (self._plan.epochs or 0)

    def _per_epoch(self) -> int:
        return -(-(self._source.size or 1) // self._plan.batch_size)

    def _total(self) -> int:
        return self._plan.steps or (self._plan.epochs or 0) * self._per_epoch()

    def _done(self) -> int:
        position = self._course.position
        return self._course.step if self._plan.steps else position.epoch * self._per_epoch() + position.batch


def _is_due(what: Validation | Checkpoints | None, update: int) -> bool:
    return what is not None and update % what.every == 0
