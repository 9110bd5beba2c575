"""Which open dimensions are a batch, by the names that exporters give them."""

from __future__ import annotations

import re

#: A file without names for its axes calls the first ``..._dim_0``.
_BATCH = re.compile(r"n|bs?|.*batch.*|.*_dim_0", re.IGNORECASE)


def is_batch_name(dimension: str) -> bool:
    """Whether a dimension's name is one of a batch, and so neither time nor a number of features."""
    return _BATCH.fullmatch(dimension) is not None
