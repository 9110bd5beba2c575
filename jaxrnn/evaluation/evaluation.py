"""One system over one corpus: its units, the journal of those that are finished, and their rows."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrnn._files.locations import Location
from jaxrnn.evaluation.corpus import Item, checked
from jaxrnn.evaluation.evaluator import Computing, Evaluator
from jaxrnn.evaluation.identity import identity_of
from jaxrnn.evaluation.journal import Journal, Row, UnitRows, row_of
from jaxrnn.evaluation.limits import chunk_frames
from jaxrnn.evaluation.metrics import Metric, check_metrics, latency
from jaxrnn.evaluation.probing import probe
from jaxrnn.evaluation.results import OUTPUTS, TABLE, Results, results_of, write_document
from jaxrnn.evaluation.systems import System
from jaxrnn.evaluation.units import Unit, Units
from jaxrnn.evaluation.writers import discard_partial

#: Recordings in a batch, and seconds of each in a chunk.
BATCH, CHUNK = 16, 4.0


class Evaluation:
    """One system over one corpus.

    Args:
        system: what is evaluated.
        corpus: the recordings, with different ids.
        metrics: by which each is judged.
        out: a folder for results; units that are finished there are not computed again.
        facts: what else determines the results (files, settings of a system of one's own), so that another evaluation
            is not mixed with this one. A `Chain` and an `Offline` are identified without it, parameters included;
            a stepper of one's own by its `fingerprint`, or by its spec where it has none.
        batch: recordings in a batch.
        chunk: seconds of each recording in a chunk; for arrays, frames over the system's rate.
        keep: whether to write the outputs.
        computing: who computes the units; by default this process.

    Attributes:
        units: what is computed, batches of recordings.
        journal: the finished units, in the folder of results.
        outputs: the folder of outputs; None where they are not written.
        computing: who computes the units.

    Raises:
        InputError: an argument does not fit, or the folder holds the results of another evaluation.
    """

    def __init__(
        self,
        system: System,
        corpus: Sequence[Item],
        metrics: Sequence[Metric],
        out: Location,
        *,
        facts: Mapping[str, Any] | None = None,
        batch: int = BATCH,
        chunk: float = CHUNK,
        keep: bool = False,
        computing: Computing | None = None,
    ):
        self.system, self.corpus, self.metrics = system, checked(corpus), tuple(metrics)
        frames = chunk_frames(chunk, system.rate, system.multiple, batch)
        check_metrics(self.metrics, system, self.corpus)
        self.outputs = out / OUTPUTS if keep else None
        self.computing = computing or Evaluator(system, self.metrics, batch=batch, chunk=chunk, outputs=self.outputs)
        self._facts = {**(facts or {}), **identity_of(system)}
        lengths, self._unreadable = probe(self.corpus, system.rate)
        self.units = Units(self.corpus, lengths, system.rate, batch)
        self.journal = Journal(
            out,
            {
                "corpus": _fingerprint(self.corpus),
                # They determine the units: a recording of another length makes another corpus.
                "lengths of recordings": hashlib.sha256(np.asarray(lengths, "<i8").tobytes()).hexdigest(),
                "metrics": [metric.facts for metric in self.metrics],
                "batch": batch,
                "chunk": frames,
                "keep": keep,
                **self._facts,
            },
        )

    def run(
        self, units: Iterable[Unit] | None = None, *, watch: Callable[[Unit, list[Row]], Any] | None = None
    ) -> None:
        """Compute what is not finished yet.

        Args:
            units: the units in order; by default all of them.
            watch: called with each finished unit and its rows.

        Raises:
            InputError: another process runs an evaluation in this folder, the folder holds results of other versions or
                devices, or the disk is full. Finished units are kept.
        """
        with self.journal.writing():
            finished = self.journal.finished()
            if len(finished) == len(self.units) and self.journal.surroundings is not None:
                return
            with self._partial_outputs(), self.computing:
                self.journal.begin(self.computing.surroundings)
                unfinished = (unit for unit in units or self.units if unit.index not in finished)
                for unit, rows in self.computing.compute(unfinished):
                    self.journal.finish(unit.index, rows)
                    if watch is not None:
                        watch(unit, rows)

    @contextlib.contextmanager
    def _partial_outputs(self) -> Iterator[None]:
        """Nothing is left of outputs that a killed process had begun."""
        try:
            yield
        finally:
            if self.outputs is not None:
                discard_partial(self.outputs)

    def rows(self) -> list[Row]:
        """All rows in the order of ids, those of unreadable recordings included."""
        return sorted(self._rows, key=lambda row: row["id"])

    @property
    def _rows(self) -> UnitRows:
        unread = [row_of(self.corpus[place], None, error) for place, error in self._unreadable.items()]
        return UnitRows(self.journal.folder, unread)

    def write_results(self, slices: Sequence[str] = ()) -> Results:
        """Write ``results.parquet`` and ``results.json`` of the finished units.

        Args:
            slices: columns to group results by.

        Raises:
            InputError: there is no such column, or the folder cannot be written.
            MissingPackageError: Polars is not installed.
        """
        folder = self.journal.folder
        facts = {**(self.journal.surroundings or {}), **self._facts, "latency": latency(self.system)}
        results = results_of(
            folder.name,
            self._rows,
            self.metrics,
            slices=slices,
            facts=facts,
            outputs=self.outputs,
            path=folder / TABLE,
        )
        write_document(folder, results)
        return results

    @property
    def is_complete(self) -> bool:
        """Whether every unit is finished."""
        return len(self.journal.finished()) == len(self.units)


def _fingerprint(corpus: Sequence[Item]) -> dict[str, Any]:
    digest = hashlib.sha256()
    for item in corpus:
        line = [item.id, str(item.path), str(item.reference), dict(item.columns)]
        digest.update(json.dumps(line, sort_keys=True, default=str).encode() + b"\n")
    return {"recordings": len(corpus), "sha256": digest.hexdigest()}
