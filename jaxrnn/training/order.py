"""Which examples make which batch, and making batches one ahead of their use: Grain's shuffle, epochs and thread."""

from __future__ import annotations

import contextvars
import dataclasses
from collections.abc import Callable, Generator
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from jaxrnn.errors import optional_package

if TYPE_CHECKING:
    import grain

T = TypeVar("T")
#: The numbers of the examples of every batch, from the first batch of the first epoch on.
Order: TypeAlias = "grain.MapDataset[tuple[int, ...]]"


@dataclasses.dataclass(frozen=True)
class Position:
    """A place in the order of a training: the next update is of this chunk of this batch."""

    batch: int = 0
    chunk: int = 0

    def after(self, chunks: int) -> Position:
        """The place after an update of this chunk of a batch of so many."""
        return Position(self.batch, self.chunk + 1) if self.chunk + 1 < chunks else Position(self.batch + 1)


def sequence_order(size: int, batch_size: int, *, seed: int | None = None, epochs: int | None = 1) -> Order:
    """The order of a sequence of examples; the last batch of an epoch may have fewer of them.

    Args:
        size: how many examples there are.
        batch_size: examples in a batch.
        seed: of the order of every epoch; None for that of the sequence.
        epochs: passes over the examples; None for passes without end.
    """
    numbers = _grain().MapDataset.range(size)
    if seed is not None:
        numbers = numbers.seed(seed).shuffle()
    return numbers.batch(batch_size, batch_fn=tuple).repeat(epochs)


def drawn_order(batch_size: int, batches: int) -> Order:
    """The order of examples that are drawn, each by its number."""
    return _grain().MapDataset.range(batches * batch_size).batch(batch_size, batch_fn=tuple)


def made_ahead(order: Order, start: int, make: Callable[[int, tuple[int, ...]], T]) -> Generator[T | BaseException]:
    """What a function makes of each batch, or what it raises: in one background thread, one call after another.

    Errors are values here: every process must learn of an error in another one. And Grain's thread dies silently of
    what is no ``Exception``, such as a KeyboardInterrupt, so that its reader would wait forever.

    Args:
        order: the order.
        start: the first batch.
        make: takes the number of a batch and those of its examples.
    """
    grain = _grain()
    context = contextvars.copy_context()  # in which messages are written, among others: a thread begins without one

    def attempt(batch: int, numbers: tuple[int, ...]) -> Any:
        try:
            return context.run(make, batch, numbers)
        except BaseException as error:
            return error

    alone = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    batches = order.map_with_index(attempt)[start:].to_iter_dataset(alone)
    # Closing it waits for the thread: when a training has ended, the caller's data is read no more.
    with closing(iter(grain.experimental.ThreadPrefetchIterDataset(batches, prefetch_buffer_size=1))) as ahead:
        yield from ahead


def _grain() -> Any:
    with optional_package("grain", "training", "train"):
        import grain
    return grain
