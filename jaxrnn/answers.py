"""The answers to a question about a graph or a function: yes, no and unknown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Unknown:
    """The answer to a question that could not be settled, with the reason: neither yes nor no."""

    why: str

    def __bool__(self) -> bool:
        raise TypeError(f"an unknown answer counts neither as yes nor as no: {self.why}")


Answer = bool | Unknown


def any_of(answers: Iterable[Answer]) -> Answer:
    """Return True if an answer is yes, else the first unknown answer, else False."""
    unknown: list[Unknown] = []
    for answer in answers:
        if isinstance(answer, Unknown):
            unknown.append(answer)
        elif answer:
            return True
    return unknown[0] if unknown else False
