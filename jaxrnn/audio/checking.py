"""Faults of recordings, all at once: headers or all samples are read in parallel before work begins."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from jaxrnn._files.arrays import read_npz, read_shapes
from jaxrnn._files.messages import short_repr
from jaxrnn._files.progress import progress_bar
from jaxrnn._files.stores import REQUESTS, Location, Url
from jaxrnn.audio.recordings import THREADS, open_recording
from jaxrnn.audio.sounds import check_finite
from jaxrnn.errors import InputError


@short_repr
@dataclass(frozen=True)
class Inspected:
    """The faults of recordings.

    Attributes:
        count: the number of recordings.
        faults: by recording, the reason why the recording cannot be used.
        others: by recording, the rate, channels or frames that differ from those of most recordings. Sound is resampled
            and averaged when it is read, so this is a fault only of arrays.
    """

    count: int
    faults: Mapping[Location, str]
    others: Mapping[Location, str]


def refuse_faults(faults: Iterable[str], count: int, share: float) -> None:
    """Raise an InputError that lists the faults, if they are more than a share of the recordings."""
    listed = list(faults)
    if len(listed) > share * count:
        allowed = (
            f"more than the share of {share:g} that `skip` allows" if share else "`skip=0.01` leaves out up to 1 %"
        )
        raise InputError(
            f"{len(listed):,} of {count:,} recordings cannot be used ({allowed}):\n  " + "\n  ".join(listed)
        )


def check_share(skip: float | None) -> None:
    """Check that ``skip`` is a share of recordings."""
    if skip is not None and not 0 <= skip <= 1:
        raise InputError(f"`skip` is the largest share of recordings to leave out, from 0 to 1, not {skip}")


#: A function of a recording, and of ``headers``, that returns what should be the same in all; an InputError is a fault.
Examine = Callable[..., str]


def faults_within(paths: Sequence[Location], examine: Examine, check: bool, skip: float) -> dict[Location, str]:
    """Return the faults of recordings, a share of at most ``skip``; without ``check`` and ``skip``, nothing is read.

    Raises:
        InputError: the faults are more, and the error lists them all; or all recordings have one.
        StoreError: a store cannot be reached.
    """
    check_share(skip)
    if not (check or skip):
        return {}
    checked = check_recordings(paths, examine)
    refuse_faults(checked.faults.values(), checked.count, skip if len(checked.faults) < checked.count else 0)
    return dict(checked.faults)


def examine_recording(path: Location, *, rate: int | None = None, headers: bool = False) -> str:
    """Read a recording, and return its rate and channels, or the shape of its frames."""
    recording = open_recording(path, rate)
    recording.check(headers=headers)
    return recording.form


def examine_example(path: Location, *, headers: bool = False) -> str:
    """Read an example of a training, whose arrays need not have the same length."""
    if headers:
        read_shapes(path)
        return "arrays"
    for name, array in read_npz(path).items():
        check_finite(np.atleast_1d(array), f"{path}, {name!r}")
    return "arrays"


def check_recordings(
    paths: Iterable[Location], examine: Examine = examine_recording, *, progress: bool | None = None
) -> Inspected:
    """Read recordings in parallel, and return the faults of all.

    A fault is a file that cannot be read, is empty, or ends before the length in the header, and a sample that is NaN
    or infinite.

    Args:
        paths: the recordings; one that is listed twice is read once.
        examine: a function that reads a recording, and returns what should be the same in all; an InputError has the
            fault.
        progress: True to show a progress bar on standard error; by default if standard error is a terminal.

    Raises:
        StoreError: a store cannot be reached.
    """
    places = list(dict.fromkeys(paths))
    faults: dict[Location, str] = {}
    forms: dict[Location, str] = {}

    def read(path: Location) -> tuple[str | None, str | None]:
        try:
            return None, examine(path)
        except InputError as error:
            return str(error), None

    is_far = any(isinstance(path, Url) for path in places)
    beside = "{task.completed:,.0f} of {task.total:,.0f}, {task.fields[faults]} with a fault, left:"
    with (
        ThreadPoolExecutor(REQUESTS if is_far else THREADS) as threads,
        progress_bar("checking", len(places), beside, shown=progress, faults=0) as show,
    ):
        for number, (path, (fault, form)) in enumerate(zip(places, threads.map(read, places), strict=True), 1):
            if form is None:
                faults[path] = str(fault)
            else:
                forms[path] = form
            show(number, faults=len(faults))
    most = next((form for form, _ in collections.Counter(forms.values()).most_common(1)), "")
    others = {
        path: f"{path} has {form}, and most recordings have {most}" for path, form in forms.items() if form != most
    }
    return Inspected(len(places), faults, others)
