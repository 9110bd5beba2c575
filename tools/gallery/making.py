"""Making of the gallery: each entry in a separate folder, and again only if sources, files or versions changed."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import inspect
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from filelock import FileLock

from tools.gallery.entry import Entry, Figures, Item, Picture, Printed, Sound

ROOT = Path(__file__).parent.parent.parent
#: The names of the entries and their modules, in the order of the page.
NAMES = (
    "streamed",
    "denoising",
    "speech",
    "streams",
    "exactness",
    "memory",
    "finetuning",
    "bounded",
    "profiling",
    "engines",
)
#: The sources of an entry, apart from the modules of other entries.
_SOURCES = (
    "jaxrnn/**/*.py",
    "jaxrnn/demo/*.onnx",
    "examples/*.py",
    "configs/*.yaml",
    "benchmarks/**/*.py",
    "benchmarks/results/**/*.json",
    "tools/gallery/*.py",
    "tools/gallery/*.json",
)
_PACKAGES = ("jax", "matplotlib", "numpy", "soundfile")
#: The file with the facts about an entry, beside the pictures and sounds.
KEPT = "entry.json"
_KINDS = {kind.__name__: kind for kind in (Picture, Sound, Figures, Printed)}


@dataclasses.dataclass(frozen=True)
class Made:
    """The result of an entry.

    Attributes:
        name: the name of the module and of the folder.
        title: as `Entry.title`.
        see: as `Entry.see`.
        source: as `Entry.source`.
        code: the code of `Entry.shown`.
        missing: the reason if nothing was made, else empty.
        items: the pictures, sounds and figures.
    """

    name: str
    title: str
    see: str
    source: str
    code: str
    missing: str
    items: tuple[Item, ...]


def make(
    folder: Path, names: Iterable[str] = NAMES, *, watch: Callable[[str], object] = lambda name: None
) -> list[Made]:
    """Make the changed entries of the gallery, and return all; without changes, this takes about a second.

    Args:
        folder: the folder for the folders of all entries.
        names: the names of the entries.
        watch: called with the name of each entry that is made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        common = _digest_of_sources()
        return [_made(folder, name, common, watch) for name in names]


def kept(folder: Path, names: Iterable[str] = NAMES) -> list[Made]:
    """Return the stored results, even if sources have changed; missing entries name the command that makes them."""
    entries = []
    for name in names:
        _, made = _read(folder / name / KEPT)
        entries.append(made or _described(name, find(name), "`python -m tools.gallery`", ()))
    return entries


def _made(folder: Path, name: str, common: str, watch: Callable[[str], object]) -> Made:
    entry = find(name)
    digest = _digest(name, entry, common)
    digest_before, made = _read(folder / name / KEPT)
    if made is not None and digest_before == digest:
        return made
    watch(name)
    with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=folder) as place:
        written = Path(place, name)
        written.mkdir()
        missing = entry.missing
        items = () if missing else tuple(entry.make(written))
        made = _described(name, entry, missing, items)
        (written / KEPT).write_text(_text(digest, made), encoding="utf-8")
        shutil.rmtree(folder / name, ignore_errors=True)
        written.replace(folder / name)
    return made


def _described(name: str, entry: Entry, missing: str, items: tuple[Item, ...]) -> Made:
    code = inspect.getsource(entry.shown)
    return Made(name, entry.title, entry.see, entry.source, code, missing, items)


def find(name: str) -> Entry:
    """Return the entry of a name."""
    return importlib.import_module(f"tools.gallery.{name}").ENTRY


def _digest_of_sources() -> str:
    """Return a digest of the common sources and of versions of packages."""
    digest = hashlib.sha256()
    own = {f"{name}.py" for name in NAMES}
    for path in sorted(path for pattern in _SOURCES for path in ROOT.glob(pattern)):
        if path.parent.name != "gallery" or path.name not in own:
            digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    for package in _PACKAGES:
        try:
            digest.update(f"{package} {version(package)}\n".encode())
        except PackageNotFoundError:
            digest.update(f"no {package}\n".encode())
    return digest.hexdigest()


def _digest(name: str, entry: Entry, common: str) -> str:
    """Return a digest of all sources and files of an entry."""
    digest = hashlib.sha256(common.encode() + entry.missing.encode())
    for path in (Path(__file__).with_name(f"{name}.py"), *entry.files):
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


def _text(digest: str, made: Made) -> str:
    items = [{"kind": type(item).__name__, **dataclasses.asdict(item)} for item in made.items]
    return json.dumps({"digest": digest, **dataclasses.asdict(made), "items": items}, indent=1) + "\n"


def _read(path: Path) -> tuple[str, Made | None]:
    """Return the digest and the stored results; None without results in the current form."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        items = tuple(_KINDS[item.pop("kind")](**item) for item in plain.pop("items"))
        return plain.pop("digest"), Made(**plain, items=items)
    except (OSError, ValueError, TypeError, KeyError):
        return "", None
