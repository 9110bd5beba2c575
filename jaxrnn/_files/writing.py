"""Files that appear whole or not at all: unfinished versions, interrupts, and a folder with one writer at a time."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
import signal
import stat
import tempfile
import threading
import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

from jaxrnn._files.stores import Location, Url, check_writable, place
from jaxrnn.errors import InputError, StoreError, optional_package

try:
    import fcntl
except ImportError:  # a system without these locks, such as Windows
    fcntl = None

#: The name of the lock in a folder with one writer, and in a folder of unfinished files.
LOCK = "lock"


@contextmanager
def in_place_of(path: Location) -> Iterator[Path]:
    """Write a file whole or not at all: yield a temporary path that replaces the file if no error is raised.

    The temporary path of a file is in a folder of `scratch`. The temporary path of an object is in the system's folder
    for temporary files.
    """
    if isinstance(path, Path):
        check_writable(path)
        held: contextlib.AbstractContextManager[Path | str] = scratch(path)
    else:
        held = tempfile.TemporaryDirectory(prefix=f".{path.name}.")
    with _naming(path), held as folder:
        written = Path(folder, path.name)
        yield written
        place(written, path)


@contextmanager
def scratch(path: Path) -> Iterator[Path]:
    """Yield an empty folder beside a file for the unfinished file, which gets the usual permissions in a new folder.

    The end of the context removes the folder. The next call for the same file removes the folder of a killed process.
    """
    with _naming(path), _held_folder(path) as folder:
        yield Path(folder)


@contextmanager
def _naming(path: Location) -> Iterator[None]:
    """Let errors of the operating system name a file in place of the temporary folder, or of no file."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and (error.filename is None or f".{path.name}." in str(error.filename)):
            error.filename, error.filename2 = str(path), None
        raise


def _held_folder(path: Path) -> contextlib.AbstractContextManager[Path | str]:
    try:
        return next(filter(None, (_hold(path.with_name(f".{path.name}.{count}")) for count in itertools.count())))
    except _NoLockError:
        # Without locks, no later call can know that the folder is no longer in use: the folder gets a name of its own.
        return tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent)


class _NoLockError(Exception):
    """A file system or an operating system without locks."""


@dataclass
class _Held:
    """A folder, and a file in the folder that the operating system keeps locked until the process ends."""

    folder: Path
    lock: IO[bytes]

    def __enter__(self) -> Path:
        return self.folder

    def __exit__(self, *exception: object) -> None:
        with self.lock:  # closed also after an interrupt, so that the next call takes over the folder
            shutil.rmtree(self.folder, ignore_errors=True)


def _hold(folder: Path) -> _Held | None:
    """Create or take over a folder of unfinished files; return None if a process uses the folder."""
    if fcntl is None:
        raise _NoLockError
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return None  # somebody else's, who could exchange the file
    try:
        lock = open(folder / LOCK, "ab")  # noqa: SIM115 - closed with the folder
    except FileNotFoundError:  # its process has just removed the folder
        return _hold(folder)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    except OSError as error:
        lock.close()
        with contextlib.suppress(OSError):
            (folder / LOCK).unlink()
            folder.rmdir()
        raise _NoLockError from error
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.stat(folder / LOCK), os.fstat(lock.fileno())):
            for left in folder.iterdir():
                if left.name != LOCK:
                    shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
            return _Held(folder, lock)
    lock.close()  # the lock of a folder that has been removed
    return _hold(folder)


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Put Ctrl-C and SIGTERM off to the end of the context, if they have handlers in Python.

    Only the main thread handles signals, so that the context has no effect in other threads.
    """
    caught: list[tuple[int, FrameType | None]] = []
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: handler for number in numbers if callable(handler := signal.getsignal(number))}
    try:
        for number in before:
            signal.signal(number, lambda *received: caught.append(received))
        yield
    finally:
        for number, handler in reversed(before.items()):
            signal.signal(number, handler)
        for number, frame in caught[:1]:
            before[number](number, frame)


def replace_all(files: Mapping[Path, Path]) -> None:
    """Move finished files to their paths in order. If a move fails, restore the files that were there before.

    Files of two processes are not mixed, if the file system has locks.
    """
    moved: list[tuple[Path, Path | None]] = []
    with _one_at_a_time({path.parent for path in files}), deferred_interrupts():
        try:
            for index, (path, written) in enumerate(files.items()):
                before = written.with_name(f"{index}.before") if os.path.lexists(path) else None
                if before is not None:
                    _keep(path, before)
                moved.append((path, before))
                os.replace(written, path)
        except BaseException:
            for path, before in reversed(moved):
                if before is not None:
                    os.replace(before, path)
                else:
                    path.unlink(missing_ok=True)
            raise


@contextmanager
def _one_at_a_time(folders: Iterable[Path]) -> Iterator[None]:
    """Wait until no other process moves files into these folders."""
    with contextlib.ExitStack() as stack:
        for folder in sorted(folders):
            if fcntl is None:
                break
            number = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, number)
            with contextlib.suppress(OSError):  # a file system that locks no folders
                fcntl.flock(number, fcntl.LOCK_EX)
        yield


def _keep(path: Path, before: Path) -> None:
    """Create a hard link to a file, or a copy if the file system has no hard links."""
    try:
        os.link(path, before, follow_symlinks=False)
    except (OSError, NotImplementedError):
        shutil.copy2(path, before, follow_symlinks=False)


@contextmanager
def locked(folder: Location, doing: str) -> Iterator[None]:
    """Lock a folder with one writer at a time; the operating system ends a lock on this machine with the process.

    An InputError reports what a second process is ``doing`` in the folder, such as "runs an evaluation". A file system
    without locks is reported by a warning.
    """
    with optional_package("filelock", "a folder with one writer", "train", "evaluate"):
        from filelock import FileLock, Timeout
    mine = hashlib.sha256(f"{os.path.expanduser('~')} {folder}".encode()).hexdigest()[:16]
    here = folder if isinstance(folder, Path) else Path(tempfile.gettempdir(), f"jaxrnn-{mine}")
    here.mkdir(parents=True, exist_ok=True)
    lock = FileLock(here / LOCK, blocking=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise InputError(f"another process {doing} in {folder}: wait for its end, or choose another folder") from error
    except NotImplementedError:
        warnings.warn(
            f"the file system of {here} has no locks, so it is unknown whether another process {doing} in {folder}: "
            "start one process at a time",
            stacklevel=3,
        )
    try:
        if isinstance(folder, Path):
            yield
            return
        _take(folder, here / "machine", doing)
        try:
            yield
        finally:
            with contextlib.suppress(StoreError, FileNotFoundError):
                (folder / LOCK).unlink()
    finally:
        lock.release()


def _take(folder: Url, machine: Path, doing: str) -> None:
    """Create a lock file in a store, with a name for this machine as content.

    A later run on this machine takes over the lock of a killed run; other machines are refused.
    """
    if not machine.exists():
        machine.write_text(uuid.uuid4().hex)
    lock, name = folder / LOCK, machine.read_bytes()
    try:
        lock.create(name)
    except FileExistsError:
        if lock.read_bytes() != name:
            raise InputError(
                f"a process on another machine {doing} in {folder}: wait for its end, or choose another folder; if "
                f"that process was killed, delete {lock}"
            ) from None
