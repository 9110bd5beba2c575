"""Error rates of transcripts: the texts of a recogniser against references, counted over a table."""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxrnn.errors import InputError, optional_package
from jaxrnn.evaluation.metrics.protocol import Column, Metric, NoValueError, Pool


def wer(
    called: str = "wer",
    reference: str = "reference",
    hypothesis: str = "hypothesis",
    lowercase: bool = False,
    punctuation: bool = True,
) -> Metric:
    """Make the word error rate of transcripts in percent: wrong, missing and inserted words over words of references.

    jiwer aligns the words (Morris, Maier and Green, "From WER and RIL to MER and WIL", 2004). Over a table, words are
    counted, and rows are not averaged. A missing hypothesis is an empty text, so all words are missing. A row without a
    reference has no value, and a reference without words counts only for the table as a whole.

    Args:
        called: the name of the column.
        reference: the column of references.
        hypothesis: the column of hypotheses.
        lowercase: True to compare texts in lower case.
        punctuation: False to remove punctuation.
    """
    return _error_rate("wer", called, reference, hypothesis, lowercase, punctuation)


def cer(
    called: str = "cer",
    reference: str = "reference",
    hypothesis: str = "hypothesis",
    lowercase: bool = False,
    punctuation: bool = True,
) -> Metric:
    """Make the character error rate of transcripts in percent, which is `wer` with characters, spaces included.

    Args:
        called: the name of the column.
        reference: the column of references.
        hypothesis: the column of hypotheses.
        lowercase: True to compare texts in lower case.
        punctuation: False to remove punctuation.
    """
    return _error_rate("cer", called, reference, hypothesis, lowercase, punctuation)


def _error_rate(kind: str, called: str, reference: str, hypothesis: str, lowercase: bool, punctuation: bool) -> Metric:
    def start(rate: Any) -> Any:
        raise InputError(
            f"{called} judges the texts of a table, not the outputs of a system: write the table as `corpus: "
            "{table: FILE.csv}` without a system, or call jaxrnn.evaluation.evaluate_table"
        )

    def values(sums: np.ndarray) -> dict[str, np.ndarray]:
        wrong, there = sums[..., 0], sums[..., 1]
        return {called: np.divide(100 * wrong, there, out=np.full(np.shape(there), np.nan), where=there > 0)}

    pool = Pool(f"{called}_counts", 2, values)
    align = _aligned(kind, lowercase, punctuation)

    def of_row(expected: str | None, found: str | None) -> dict[str, Any]:
        if expected is None:
            raise NoValueError("there is no reference; the reference of silence is an empty text in quotes")
        sums = np.array(align(expected, found or ""), np.float64)
        return {called: float(values(sums)[called]), pool.key: pool.counts(sums)}

    options = {"kind": kind, "reference": reference, "hypothesis": hypothesis}
    options |= {"lowercase": lowercase, "punctuation": punctuation}
    return Metric(
        called,
        (Column(called, "%", higher_is_better=False),),
        start,
        needs_reference=False,
        pool=pool,
        options=options,
        reads={reference: str, hypothesis: str},
        of_row=of_row,
    )


def _aligned(kind: str, lowercase: bool, punctuation: bool) -> Callable[[str, str], tuple[int, int]]:
    """Return a function from two texts to the number of errors and the number of units of the first."""

    def counts(expected: str, found: str) -> tuple[int, int]:
        with optional_package("jiwer", f"the metric {kind}", "texts"):
            import jiwer
        last = jiwer.ReduceToListOfListOfWords() if kind == "wer" else jiwer.ReduceToListOfListOfChars()
        changes: list[Any] = [jiwer.ToLowerCase()] if lowercase else []
        changes += [] if punctuation else [jiwer.RemovePunctuation()]
        change = jiwer.Compose([*changes, jiwer.RemoveMultipleSpaces(), jiwer.Strip(), last])
        process = jiwer.process_words if kind == "wer" else jiwer.process_characters
        aligned = process(expected, found, reference_transform=change, hypothesis_transform=change)
        wrong = aligned.substitutions + aligned.deletions
        return wrong + aligned.insertions, wrong + aligned.hits

    return counts
