"""Recordings of folders, tables, patterns and files, and their identity: digests of files, versions of objects."""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from jaxrnn._files.progress import note
from jaxrnn._files.stores import REQUESTS, Location, Url, check_regular, location
from jaxrnn.answers import Unknown
from jaxrnn.audio.recordings import THREADS, recordings_below
from jaxrnn.errors import InputError, optional_package

#: Suffixes of tables of recordings.
TABLES = (".csv", ".parquet")
#: The place of recordings, or several.
Places = str | Path | Url | list[str | Path | Url]
#: Bytes to read from which a line says so.
LONG = 2**30
#: Nanoseconds that a file must be unchanged before its digest is kept: clocks of file systems are coarse.
SETTLED = 2_000_000_000

#: The size, the times of the last modification and change in nanoseconds, and the inode of a file.
Stamp = tuple[int, int, int, int]


def recordings_at(places: Places, patterns: Sequence[str], what: str = "recordings") -> list[Any]:
    """Return the recordings of a folder, a table, a pattern or a file, or of a list of these.

    A table (CSV or Parquet) has a column ``path``, and a pattern has ``*``, ``?`` or ``**``. ``patterns`` are those of
    recordings in a folder, and all names match the last part of one. ``what`` names the recordings in messages.

    Raises:
        InputError: a place does not exist, or has no recordings or other files.
        StoreError: the store cannot be reached.
    """
    found: list[Any] = []
    for each in places if isinstance(places, list) else [places]:
        place = location(each)
        parts = str(place).split("/")
        depth = next((index for index, part in enumerate(parts) if "*" in part or "?" in part), len(parts))
        if place.suffix.lower() in TABLES:
            from jaxrnn.audio.corpus import from_manifest  # needs Polars

            paths = [item.path for item in from_manifest(place)]
        elif place.is_dir():
            paths = recordings_below(place, patterns, what)
        elif place.is_file():
            paths = [place]
        elif depth < len(parts):
            folder = location("/".join(parts[:depth]) or ("/" if depth else "."))
            paths = recordings_below(folder, ["/".join(parts[depth:])], what)
        else:
            raise InputError(f"there is no folder or file {place}")
        for path in paths:
            if not any(fnmatch.fnmatchcase(path.name.lower(), pattern.rpartition("/")[2]) for pattern in patterns):
                listed = ", ".join(patterns)
                raise InputError(f"{place} has other files than {what}: {path.name} matches none of {listed}")
        found += paths
    return found


class Identity(NamedTuple):
    """The identity of recordings, as far as stores tell it.

    Attributes:
        digest: a digest of the names and contents in their order; of an object without a version, of name and size.
        unknown: the number of objects without a version, which may have changed at the same size.
    """

    digest: str
    unknown: int


def identity_of(paths: Sequence[Location]) -> Identity:
    """Return the identity of recordings; raise StoreError if a store cannot be reached."""
    digest, unknown = hashlib.sha256(), 0
    for path, content in zip(paths, contents_of(paths), strict=True):
        if isinstance(content, Unknown):
            unknown += 1
            content = f"{path.size} bytes".encode() if isinstance(path, Url) else b""
        for part in (os.fsencode(path.name), content):
            digest.update(len(part).to_bytes(8) + part)
    return Identity(digest.hexdigest(), unknown)


def facts_of(kinds: Mapping[str, Sequence[Location]], what: str) -> dict[str, Any]:
    """Return the identity of kinds of recordings as facts; ``unknown_contents`` counts objects without a version."""
    known = {kind: identity_of(paths) for kind, paths in kinds.items()}
    facts: dict[str, Any] = {kind: f"{len(kinds[kind])} {what} {each.digest[:16]}" for kind, each in known.items()}
    unknown = sum(each.unknown for each in known.values())
    return facts | ({"unknown_contents": unknown} if unknown else {})


def contents_of(paths: Sequence[Location]) -> list[bytes | Unknown]:
    """Return the identity of the content of each recording; equal identities mean equal contents.

    The identity of a file is the SHA-256 of all bytes. The digests are kept in the user's cache folder beside the
    stamps of the files, so that a file is read again only if its stamp differs. The identity of an object in a store is
    the version or ETag, which the store changes with the content; an object without either is `Unknown`. The identity
    of a file that cannot be read is the reason.

    Raises:
        StoreError: a store cannot be reached.
    """
    files = list(dict.fromkeys(path for path in paths if isinstance(path, Path)))
    urls = list(dict.fromkeys(path for path in paths if isinstance(path, Url)))
    with ThreadPoolExecutor(THREADS) as threads, _kept() as kept:
        stamps = dict(zip(files, threads.map(_stamp, files), strict=True))
        found: dict[Location, bytes | Unknown] = {}
        for path, stamp in stamps.items():
            if isinstance(stamp, bytes):
                found[path] = stamp
            elif (digest := kept.get(path, stamp)) is not None:
                found[path] = digest
        unread = {path: stamp for path, stamp in stamps.items() if path not in found and not isinstance(stamp, bytes)}
        if (size := sum(stamp[0] for stamp in unread.values())) >= LONG:
            note(f"reading {len(unread):,} recordings ({size / 1e9:,.1f} GB) once, to recognise their contents")
        for path, digest in zip(unread, threads.map(_digest, unread), strict=True):
            found[path] = digest
            kept.put(path, unread[path], digest)
    if urls:
        with ThreadPoolExecutor(REQUESTS) as requests:
            found |= zip(urls, requests.map(_version, urls), strict=True)
    return [found[path] for path in paths]


def _stamp(path: Path) -> Stamp | bytes:
    """Return the stamp of a file, or the reason why the file cannot be read."""
    try:
        found = os.stat(check_regular(path))
    except OSError as error:
        return f"unreadable: {error.strerror}".encode()
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def _digest(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        return f"unreadable: {error.strerror}".encode()


def _version(url: Url) -> bytes | Unknown:
    try:
        version = url.version
    except FileNotFoundError as error:
        return f"unreadable: {error.strerror}".encode()
    return Unknown(f"the store gives neither a version nor an ETag of {url}") if version is None else version.encode()


class _Digests:
    """Digests of files in a database; without a database, no digest is known."""

    def __init__(self, database: sqlite3.Connection | None):
        self._database = database
        self._run("CREATE TABLE IF NOT EXISTS digests (path BLOB PRIMARY KEY, stamp TEXT, digest BLOB) WITHOUT ROWID")

    def get(self, path: Path, stamp: Stamp) -> bytes | None:
        """Return the digest of an unchanged file, or None if the file must be read."""
        found = self._run("SELECT digest FROM digests WHERE path = ? AND stamp = ?", _key(path), str(stamp))
        return found[0][0] if found else None

    def put(self, path: Path, stamp: Stamp, digest: bytes) -> None:
        """Keep the digest of a file that did not change while it was read, or shortly before."""
        if time.time_ns() - max(stamp[1:3]) > SETTLED and _stamp(path) == stamp:
            self._run("INSERT OR REPLACE INTO digests VALUES (?, ?, ?)", _key(path), str(stamp), digest)

    def _run(self, statement: str, *values: object) -> list[tuple[bytes]]:
        if self._database is None:
            return []
        try:
            return self._database.execute(statement, values).fetchall()
        except sqlite3.Error:  # a damaged database, a full disk, or another process that writes
            self._database = None
            return []


@contextlib.contextmanager
def _kept() -> Iterator[_Digests]:
    with optional_package("platformdirs", "a folder for digests of recordings", "cli"):
        import platformdirs
    database = None
    with contextlib.suppress(OSError, sqlite3.Error):
        folder = platformdirs.user_cache_path("jaxrnn")
        folder.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(folder / "contents.sqlite3", timeout=1)
    try:
        yield _Digests(database)
        with contextlib.suppress(sqlite3.Error):
            if database is not None:
                database.commit()
    finally:
        if database is not None:
            database.close()


def _key(path: Path) -> bytes:
    return os.fsencode(os.path.abspath(path))
