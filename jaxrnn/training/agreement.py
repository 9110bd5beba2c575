"""Facts that checkpoints and processes must agree on, and joining the processes of a training."""

from __future__ import annotations

import hashlib
import json
import socket
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxrnn._files.messages import first_line
from jaxrnn.errors import InputError, TrainingError
from jaxrnn.training.examples import ExampleSource
from jaxrnn.training.layout import ExampleLayout
from jaxrnn.training.optimizers import PROBED, Optimizer
from jaxrnn.training.options import Function
from jaxrnn.training.sharding import Placement, gather_texts, is_primary
from jaxrnn.version import __version__

if TYPE_CHECKING:
    from jaxrnn.model import Model

#: Seconds that a process waits for other processes when it ends.
END_SECONDS = 10


def join(coordinator: str | None, processes: int | None, process: int | None, lost_after: int) -> None:
    """Join the other processes of a training. JAX asks the launcher for values that are None.

    JAX ends a process that does not find the other processes within five minutes. ``lost_after`` is the number of
    seconds without an answer after which a process counts as lost.
    """
    if process == 0 and coordinator is not None:
        try:
            socket.create_server(("", int(coordinator.rpartition(":")[2]))).close()
        except OSError as error:
            raise InputError(
                f"--coordinator {coordinator}: process 0 cannot use this port here: {error.strerror}"
            ) from None
    # With all values given, JAX must not query the cluster: Kubernetes may refuse.
    known = None not in (coordinator, processes, process)
    try:
        jax.distributed.initialize(
            coordinator,
            processes,
            process,
            cluster_detection_method="deactivate" if known else None,
            heartbeat_timeout_seconds=lost_after,
            shutdown_timeout_seconds=END_SECONDS,
        )
    except (ValueError, RuntimeError, LookupError, OSError) as error:
        raise InputError(
            f"JAX does not find the other processes: {first_line(error).rstrip('.')}. It asks Slurm, Open MPI, TPU "
            "pods and Kubernetes by itself; anywhere else give --coordinator HOST:PORT --processes COUNT "
            "--process NUMBER"
        ) from error


def wait_for_others() -> None:
    """Wait until all processes are here, however long process 0 writes results."""
    multihost_utils.sync_global_devices("end")


def check_joined() -> None:
    """Refuse processes that share devices but have not joined, since they could not keep checkpoints."""
    if jax.process_count() > 1 and not jax.distributed.is_initialized():
        raise TrainingError(
            f"this is one of {jax.process_count()} processes with common devices, and they have not joined: give "
            "--coordinator auto, or call jax.distributed.initialize() first in Python"
        )


def check_alike(placement: Placement, facts: Mapping[str, Any]) -> None:
    """Check that all processes have the same facts, in JSON's types; a TrainingError names the differences."""
    if placement.processes == 1:
        return
    common = {"versions": {"jaxrnn": __version__, "jax": jax.__version__}, **facts}
    first, *others = map(json.loads, gather_texts(json.dumps(common, default=str)))
    for number, other in enumerate(others, 1):
        if differing := differences(first, other, "in process 0", f"in process {number}"):
            raise TrainingError(
                f"process {number} differs from process 0: {first_of(differing)}. "
                "Start all processes with the same settings, model, examples and versions"
            )


def check_shared(placement: Placement, folder: Path) -> None:
    """Check that all processes see a folder of checkpoints; process 0 creates the folder."""
    if placement.processes == 1:
        return
    # An error in one process must reach all processes.
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
    """Return a digest of the first, middle and last example, or of a drawn example; None in a single process."""
    if placement.processes == 1:
        return None
    numbers = [0] if source.size is None else sorted({0, source.size // 2, source.size - 1})
    read = [layout.read(*source.get(number)) for number in numbers]
    return digest_of_all({f"{place}.{name}": array for place, x in enumerate(read) for name, array in x.items()})


#: Facts with values that messages leave out.
_DIGESTS = ("starting parameters", "frozen parameters", "parameters", "examples in data", "examples in validation")


def training_facts(
    model: Model,
    layout: ExampleLayout,
    start: Mapping[str, Any],
    trained: tuple[str, ...],
    optimizer: Optimizer,
    loss: Function,
    **plain: Any,
) -> dict[str, Any]:
    """Return the facts that determine a training, in JSON's types; a continued training must have the same facts.

    Length, interval of validations, folders and devices may change, and are not included.
    """
    facts = {
        "model": {
            "inputs": [str(info) for info in model.inputs],
            "outputs": [str(info) for info in model.outputs],
            "parameters": {name: [array.dtype.name, *array.shape] for name, array in model.program.parameters.items()},
        },
        "starting parameters": digest_of_all(start),
        "frozen parameters": digest_of_all({name: value for name, value in start.items() if name not in trained}),
        "trained": list(trained),
        **optimizer.facts,
        "loss": getattr(loss, "__qualname__", type(loss).__name__),
        "mode": layout.mode,
        "time_axis": layout.axes,
        "chunk": layout.sequences.chunk,
        "bucket": layout.sequences.bucket,
        "batch_frames": layout.sequences.batch_frames,
        **plain,
    }
    return json.loads(json.dumps(facts, default=np.generic.item))  # options may be numbers of NumPy


def digest(array: Any) -> str:
    """Return a digest of the elements of an array."""
    return hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16).hexdigest()


def digest_of_all(arrays: Mapping[str, Any]) -> str:
    """Return a digest of all arrays and their names."""
    parts = "".join(f"{name}:{digest(arrays[name])};" for name in sorted(arrays))
    return hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()


def first_of(differing: list[str]) -> str:
    """Join the first five differences, and count the rest."""
    more = f" (and {len(differing) - 5} more)" if len(differing) > 5 else ""
    return "; ".join(differing[:5]) + more


def differences(
    before: Mapping[str, Any], now: Mapping[str, Any], there: str = "in the checkpoint", here: str = "here"
) -> list[str]:
    """Describe each difference between the facts of a checkpoint or process and the facts of this training."""
    # Convert tuples to lists, as in a file.
    return list(_differences(json.loads(json.dumps(before)), json.loads(json.dumps(now)), "", there, here))


def _differences(before: Any, now: Any, path: str, there: str, here: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*before, *now]):
            yield from _differences(before.get(key), now.get(key), f"{path}.{key}" if path else key, there, here)
    elif before == now:
        return
    elif path in _DIGESTS:
        yield f"the {path} have other values"
    elif _are_names(before) and _are_names(now):
        only = {there: [x for x in before if x not in now], here: [x for x in now if x not in before]}
        parts = [f"{_some(names)} only {where}" for where, names in only.items() if names]
        yield f"{path}: {', '.join(parts) or 'another order'}"
    elif path == "learning_rate" and isinstance(before, list) and isinstance(now, list):
        update, then, today = next(each for each in zip(PROBED, before, now, strict=True) if each[1] != each[2])
        yield f"{path} at update {update} is {then:.6g} {there} and {today:.6g} {here}"
    else:
        yield f"{path} is {_written(before, path)} {there} and {_written(now, path)} {here}"


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(repr, names[:3])) + more


def _written(value: Any, path: str) -> str:
    if path == "learning_rate" and isinstance(value, list):
        return "a schedule"
    text = "absent" if value is None else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
