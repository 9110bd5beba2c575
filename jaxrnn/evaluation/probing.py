"""The lengths of a corpus, from the headers of its recordings."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from jaxrnn._files.locations import Url
from jaxrnn._files.ranges import REQUESTS
from jaxrnn.errors import InputError
from jaxrnn.evaluation.corpus import Item
from jaxrnn.evaluation.recordings import open_recording

#: Recordings that are opened at once, and those that are waited for together.
THREADS, BLOCK = 8, 4096

#: The arrays of a recording, each with the shape of its frames.
Frame = tuple[tuple[str, tuple[int, ...]], ...]


def probe(corpus: Sequence[Item], rate: int) -> tuple[np.ndarray, dict[int, str]]:
    """The frames of each recording, ``int64[recordings]``, and why some cannot be evaluated, by their places.

    The length of those is -1. Frames must have the shape that those of most recordings have, as they share a batch.

    Args:
        corpus: the recordings.
        rate: samples a second that sound is resampled to.
    """
    lengths, shapes = np.full(len(corpus), -1), np.full(len(corpus), -1)
    errors: dict[int, str] = {}
    known: dict[Frame, int] = {}

    def opened(item: Item) -> tuple[int, Frame] | str:
        try:
            recording = open_recording(item.path, rate)
        except InputError as error:
            return str(error)
        return recording.length, tuple(sorted(recording.frame.items()))

    is_far = any(isinstance(item.path, Url) for item in corpus)
    with ThreadPoolExecutor(REQUESTS if is_far else THREADS) as threads:
        for start in range(0, len(corpus), BLOCK):
            for place, result in enumerate(threads.map(opened, corpus[start : start + BLOCK]), start):
                if isinstance(result, str):
                    errors[place] = result
                else:
                    lengths[place], shapes[place] = result[0], known.setdefault(result[1], len(known))
    if len(known) > 1:
        frames = list(known)
        most = int(np.bincount(shapes[shapes >= 0]).argmax())
        for place in np.flatnonzero((shapes >= 0) & (shapes != most)).tolist():
            lengths[place] = -1
            errors[place] = (
                f"a frame holds {dict(frames[shapes[place]])}, but that of most recordings {dict(frames[most])}"
            )
    return lengths, errors
