"""Making the gallery: each entry into a folder of its own, and again only where what it is made of has changed."""

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
#: The entries in the order of the page; each is the module of its name.
NAMES = ("denoising", "speech", "streams", "exactness", "memory", "finetuning", "profiling", "engines")
#: What every entry may be made with: all of it, but for the modules of the other entries.
_SOURCES = (
    "jaxrnn/**/*.py",
    "jaxrnn/demo/*.onnx",
    "examples/*.py",
    "configs/*.yaml",
    "benchmarks/**/*.py",
    "benchmarks/results/**/*.json",
    "tools/gallery/*.py",
)
_PACKAGES = ("jax", "matplotlib", "numpy", "soundfile")
#: What an entry is, beside what it has made.
KEPT = "entry.json"
_KINDS = {kind.__name__: kind for kind in (Picture, Sound, Figures, Printed)}


@dataclasses.dataclass(frozen=True)
class Made:
    """An entry as it was made.

    Attributes:
        name: of its module and of its folder.
        title: its heading.
        see: what to see.
        source: where models and recordings are from.
        code: the text of the function that is shown.
        missing: why nothing was made; empty where it was.
        items: what there is to see and to hear.
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
    """Make the gallery, or what of it has changed; about a second where nothing has.

    Args:
        folder: what an entry makes goes into the folder of its name in it.
        names: of the entries.
        watch: called with the name of every entry that is made.
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
    """Of the sources that all entries share, and of versions."""
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
    """Of all that an entry is made of."""
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
