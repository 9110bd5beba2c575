"""Cores of this machine, shared out to processes before any of them counts the cores to make threads."""

from __future__ import annotations

import os

#: Environment variable with the cores that a process keeps to.
CORES = "JAXRNN_CORES"


def share_cores(count: int) -> list[dict[str, str]]:
    """Keep this process to its share of the cores; what the environments of the others hold for theirs.

    Args:
        count: of processes, this one among them.
    """
    if not hasattr(os, "sched_setaffinity"):
        return [{} for _ in range(1, count)]
    given = os.environ.get(CORES)
    cores = sorted(map(int, given.split(","))) if given else sorted(os.sched_getaffinity(0))
    shares = [cores[index::count] or [cores[index % len(cores)]] for index in range(count)]
    if given or count > 1:
        os.sched_setaffinity(0, shares[0])
    return [{CORES: ",".join(map(str, share))} for share in shares[1:]]
