"""What several processes must have in common, compared before they begin."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from jaxrnn.errors import TrainingError
from jaxrnn.training.examples import ExampleSource
from jaxrnn.training.facts import differences, digest_of_all
from jaxrnn.training.layout import ExampleLayout
from jaxrnn.training.sharding import Placement, gather_texts, is_primary
from jaxrnn.version import __version__


def check_alike(placement: Placement, facts: Mapping[str, Any]) -> None:
    """See that the processes of a training agree on what decides its course; nothing where there is one process.

    Args:
        placement: the devices of all of them.
        facts: what they must have in common, in JSON's types.

    Raises:
        TrainingError: one differs from process 0; in all of them.
    """
    if placement.processes == 1:
        return
    common = {"versions": {"jaxrnn": __version__, "jax": jax.__version__}, **facts}
    first, *others = map(json.loads, gather_texts(json.dumps(common, default=str)))
    for number, other in enumerate(others, 1):
        if differing := differences(first, other, "in process 0", f"in process {number}"):
            more = f" (and {len(differing) - 5} more)" if len(differing) > 5 else ""
            raise TrainingError(
                f"process {number} differs from process 0: {'; '.join(differing[:5])}{more}. "
                "Start all processes with the same settings, model, examples and versions"
            )


def check_shared(placement: Placement, folder: Path) -> None:
    """See that all processes see what process 0 writes to a folder, which it makes; nothing where there is one process.

    Raises:
        TrainingError: one does not; in all of them.
    """
    if placement.processes == 1:
        return
    # The errors of one process must reach the others.
    problem, mark = None, folder / f".seen-by-all-{uuid.uuid4().hex}"
    try:
        if is_primary():
            folder.mkdir(parents=True, exist_ok=True)
            mark.touch()
    except OSError as error:
        problem = TrainingError(f"checkpoints: the folder {folder} cannot be used: {error.strerror or error}")
    placement.agree([], problem)
    name = gather_texts(mark.name)[0]
    views = [json.loads(view) for view in gather_texts(json.dumps([str(folder), (folder / name).exists()]))]
    if is_primary():
        mark.unlink(missing_ok=True)
    for number, (path, seen) in enumerate(views):
        if not seen:
            raise TrainingError(
                f"process {number} does not see in {path} what process 0 writes to {views[0][0]}: checkpoints need one "
                "folder that all processes see, such as one on a network file system"
            )


def digest_of_examples(placement: Placement, source: ExampleSource, layout: ExampleLayout) -> str | None:
    """A digest of the first, the middle and the last example, or of one that is drawn; None for one process.

    Each process reads its own examples alone, so that more than some is never at one place.
    """
    if placement.processes == 1:
        return None
    numbers = [0] if source.size is None else sorted({0, source.size // 2, source.size - 1})
    read = [layout.read(*source.get(number)) for number in numbers]
    return digest_of_all({f"{place}.{name}": array for place, x in enumerate(read) for name, array in x.items()})
