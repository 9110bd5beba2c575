"""``jaxrnn check``: read recordings, and list every one that cannot be used."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import click

from jaxrnn.cli.commands import Count, Option, command
from jaxrnn.cli.errors import MISMATCH, wants_json
from jaxrnn.cli.options import Overrides
from jaxrnn.cli.output import Block, TextLine, show

if TYPE_CHECKING:
    from jaxrnn._files.stores import Location
    from jaxrnn.audio.checking import Examine


@command
def check(
    *,
    place: Annotated[str, Option(metavar="FOLDER|SETTINGS.yaml", positional=True)],
    headers: bool = False,
    rate: Annotated[Count, Option(metavar="N")] | None = None,
    same: bool = False,
    overrides: Overrides,
) -> None:
    """Read all recordings of a folder, or of a settings file of finetune or evaluate, and list all faults at once.

    A fault is a file that cannot be read (such as text named .wav), is empty, or ends before the length in its header
    (such as a FLAC file of an interrupted copy), and a sample that is NaN or infinite. Recordings of another rate or
    with other channels than most are listed too. They are no faults, because sound is resampled and averaged when it is
    read. Exit status 1 if a recording has a fault.

    FOLDER may be a folder, a table with a column "path", a pattern such as 'voices/*.wav', a file, or a URL of these.
    With settings, the recordings are those of corpus, or of data and validation. Files are read in parallel.

    The key check of data or corpus does the same before a training or an evaluation, and the key skip leaves out
    recordings with a fault, up to a share.

    Examples:
      jaxrnn check corpus
      jaxrnn check 'voices/**/*.flac' --headers
      jaxrnn check denoiser.yaml --set data.recordings.clean=other/voices --json

    Args:
        headers: Read headers only: fast, but it finds no bad samples and no FLAC or MP3 file that ends early.
        rate: Samples per second that a network takes, for rates that cannot be resampled. Settings have their own.
        same: Exit with status 1 also if rates, channels or frames differ.
        overrides: Replace a value of a settings file, written in YAML; may be given several times. Example: --set
            corpus.limit=100.
    """
    from jaxrnn.audio.checking import check_recordings

    count, faults, others = 0, dict[Any, str](), dict[Any, str]()
    for paths, examine in _recordings(place, rate, overrides):
        examine = functools.partial(examine, headers=headers)
        checked = check_recordings(paths, examine, progress=False if wants_json() else None)
        count += checked.count
        faults.update(checked.faults)
        others.update(checked.others)
    named = ({str(path): text for path, text in each.items()} for each in (faults, others))
    result = {"place": place, "recordings": count, "headers": headers, **dict(zip(KEYS, named, strict=True))}
    show(result, _report)
    if faults or (same and others):
        click.get_current_context().exit(MISMATCH)


#: The keys of faults and of differences in the result.
KEYS = ("faults", "others")


def _recordings(
    place: str, rate: int | None, overrides: tuple[str, ...]
) -> Sequence[tuple[Sequence[Location], Examine]]:
    """Return groups of recordings, with the function that examines them."""
    from jaxrnn._files.stores import local_path, location
    from jaxrnn.audio.checking import examine_example, examine_recording
    from jaxrnn.audio.contents import recordings_at
    from jaxrnn.audio.recordings import ARRAYS
    from jaxrnn.audio.sounds import SOUNDS

    if location(place).suffix.lower() not in (".yaml", ".yml"):
        paths = recordings_at(place, [f"**/*{suffix}" for suffix in (*SOUNDS, *ARRAYS)])
        sounds = [path for path in paths if path.suffix.lower() != ".npz"]
        examples = [path for path in paths if path.suffix.lower() == ".npz"]
        groups = [(sounds, functools.partial(examine_recording, rate=rate)), (examples, examine_example)]
        return [(paths, examine) for paths, examine in groups if paths]
    from jaxrnn.settings.files import keys_of

    path = local_path(place)
    if "corpus" in keys_of(path):
        from jaxrnn.evaluation.settings import recordings_in
    else:
        from jaxrnn.training.settings import recordings_in
    return recordings_in(path, overrides)


def _report(result: Mapping[str, Any]) -> Iterator[Block]:
    faults, others = (result[key] for key in KEYS)
    yield from (TextLine(text, "red") for text in faults.values())
    yield from others.values()
    read = "the headers of" if result["headers"] else "all samples of"
    found = f"{len(faults):,} with a fault" if faults else "no faults"
    if others:
        found += f", {len(others):,} unlike the others"
    yield TextLine(f"read {read} {result['recordings']:,} recordings: {found}", "bold red" if faults else "bold green")
