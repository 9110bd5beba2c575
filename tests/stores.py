"""Stores for the tests of locations: fsspec's memory, with a count of what is read and failures to order."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import polars as pl
from fsspec.implementations.memory import MemoryFileSystem

from jaxrnn._files.stores import Url, location
from jaxrnn.evaluation.parts import FACTS

_NAMES = itertools.count()


class CountedStore(MemoryFileSystem):
    """A store of its own class of URLs, ``counted://``, that says how it was used."""

    protocol = "counted"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    #: The ranges that were asked for, by path: from and to, None where it was all of an object.
    reads: ClassVar[list[tuple[str, Any, Any]]] = []
    #: What happens before an operation: takes its name and the path.
    before: ClassVar[Any] = staticmethod(lambda operation, path: None)

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("counted://", "memory://"))

    def cat_file(self, path, start=None, end=None, **options):
        self.before("read", path)
        self.reads.append((self._strip_protocol(path), start, end))
        return super().cat_file(path, start=start, end=end, **options)

    def info(self, path, **options):
        self.before("info", path)
        return super().info(path, **options)

    def find(self, path, *others, **options):
        self.before("list", path)
        return super().find(path, *others, **options)

    def put_file(self, lpath, rpath, *others, **options):
        self.before("write", rpath)
        return super().put_file(lpath, rpath, *others, **options)

    def pipe_file(self, path, value, mode="overwrite", **options):
        self.before("write", path)
        return super().pipe_file(path, value, mode=mode, **options)


fsspec.register_implementation("counted", CountedStore, clobber=True)


@contextlib.contextmanager
def ordered(before):
    """Inside, a function is called before every operation on the store, and may raise."""
    CountedStore.before = staticmethod(before)
    CountedStore.reads.clear()
    try:
        yield CountedStore.reads
    finally:
        CountedStore.before = staticmethod(lambda operation, path: None)


def new_bucket(scheme: str = "counted") -> Url:
    """A bucket that no other test has."""
    bucket = location(f"{scheme}://bucket{next(_NAMES)}")
    assert isinstance(bucket, Url)
    return bucket


def upload(folder: Path, url: Url) -> Url:
    """Copy all files below a folder."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            (url / path.relative_to(folder).as_posix()).put(path)
    return url


def contents(place: Path | Url) -> dict[str, bytes]:
    """All files below a place, by their names relative to it, but for what differs from run to run."""
    files = place.below() if isinstance(place, Url) else [path for path in place.rglob("*") if path.is_file()]
    found = {str(path)[len(str(place)) + 1 :]: path.read_bytes() for path in files}
    return {name: data for name, data in sorted(found.items()) if name not in ("times.json", "lock")}


def same_results(local, remote, folder, url):
    """Both hold the same files; names of the corpus in them are of one or the other."""
    here, there = contents(local), contents(remote)
    assert here.keys() == there.keys()
    for name, data in here.items():
        if name.endswith(".parquet"):
            tables = [pl.read_parquet(io.BytesIO(each)) for each in (data, there[name])]
            tables[0] = tables[0].with_columns(
                pl.col("path", "reference", "error").str.replace(str(folder), str(url), literal=True)
            )
            assert tables[0].equals(tables[1]), name
            texts = [pl.read_parquet_metadata(io.BytesIO(each)).get(FACTS, "{}") for each in (data, there[name])]
            facts = [json.loads(text) for text in texts]
            for each in facts:
                each.get("corpus", {}).pop("sha256", None)  # the corpus is there by its digest
            assert facts[0] == facts[1], name
            continue
        if name in ("results.json", "report.html"):
            data = data.replace(str(folder).encode(), str(url).encode())
        assert data == there[name], name
