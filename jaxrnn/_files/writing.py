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

from jaxrnn._files.stores import Location, Url, check_replaceable, check_writable, place
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
def scratch(path: Path, *, alone: bool = False) -> Iterator[Path]:
    """Yield an empty folder beside a file for the unfinished file, which gets the usual permissions in a new folder.

    The end of the context removes the folder. The next call for the same file removes the folder of a killed process.
    With ``alone``, an InputError reports a process that writes the file already, if the file system has locks.
    """
    with _naming(path), _held_folder(path, alone) as folder:
        yield Path(folder)


@contextmanager
def _naming(path: Location) -> Iterator[None]:
    """Let errors of the operating system name a file in place of the temporary folder, or of no file."""
    try:
        yield
    except OSError as error:
        names = f"{error.filename} {error.filename2}"  # a copy names its source first
        if error.errno is not None and (error.filename is None or f".{path.name}." in names):
            error.filename, error.filename2 = str(path), None
        raise


def _held_folder(path: Path, alone: bool) -> contextlib.AbstractContextManager[Path | str]:
    try:
        for count in itertools.count():
            try:
                if held := _hold(path.with_name(f".{path.name}.{count}")):
                    return held
            except BlockingIOError:
                if alone:
                    raise InputError(f"another process writes {path}: wait for its end, or give another name") from None
        raise AssertionError("there is always another number")
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
            remove_folder(self.folder)


def _hold(folder: Path) -> _Held | None:
    """Create or take over a folder of unfinished files, or return None if the folder belongs to somebody else.

    A BlockingIOError reports a process that uses the folder.
    """
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
        raise
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
                    remove_folder(left) if left.is_dir() and not left.is_symlink() else left.unlink()
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


def remove_folder(folder: Path) -> None:
    """Remove a folder where possible. An interrupt waits: `shutil.rmtree` would close a file twice."""
    with deferred_interrupts():
        shutil.rmtree(folder, ignore_errors=True)


def replace_all(files: Mapping[Path, Path]) -> None:
    """Move finished files to their paths, all or none; readers open the last file first.

    The old files but the last are moved away, then the last is replaced at once, and then the other new files are
    moved in. Files of two versions are therefore never side by side, also if the process is killed in between: then
    some files are missing. Files of two processes are not mixed, if the file system has locks.
    """
    *others, last = files
    moved: list[tuple[Path, Path]] = []  # the moves that restore the files that were there before

    def move(path: Path, target: Path) -> None:
        os.replace(path, target)
        moved.append((target, path))

    for path in files:
        check_replaceable(path)
    with _one_at_a_time({path.parent for path in files}), deferred_interrupts():
        try:
            for index, path in enumerate(others):
                if os.path.lexists(path):
                    move(path, files[path].with_name(f"{index}.before"))
            if os.path.lexists(last):
                before = files[last].with_name("last.before")
                _keep(last, before)
                os.replace(files[last], last)
                moved.append((before, last))
            else:
                move(files[last], last)
            for path in others:
                move(files[path], path)
        except BaseException:
            for path, target in reversed(moved):
                os.replace(path, target)
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

    An InputError names the work of a second process in the folder (``doing``), such as "runs an evaluation". A warning
    reports a file system without locks.
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
