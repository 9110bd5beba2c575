"""Comparison of imported models with other engines and recordings, and random inputs for the comparison."""

from __future__ import annotations

from jaxrnn.comparison import Comparison, compare
from jaxrnn.verification.futures import FutureLoss, compare_futures
from jaxrnn.verification.peers import PeerError
from jaxrnn.verification.sampling import random_inputs
from jaxrnn.verification.verify import Case, Mismatch, Recorded, Report, verify

__all__ = [
    "Case",
    "Comparison",
    "FutureLoss",
    "Mismatch",
    "PeerError",
    "Recorded",
    "Report",
    "compare",
    "compare_futures",
    "random_inputs",
    "verify",
]
__dir__ = __all__.copy
